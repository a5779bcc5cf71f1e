"""The demo's steps: what stops it. The real parts complete it on a handful of rows."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from archiver import Reader
from archiver.app.application import open_application
from archiver.catalog.tables import LiveFile, TableView
from archiver.config.settings import load_settings
from archiver.demo import run
from archiver.demo.report import DemoReport, TableReport
from archiver.demo.run import run_demo
from archiver.publish.report import ArchiveReport
from archiver.runtime.clock import ManualClock, SystemClock
from archiver.runtime.errors import Halt, OutcomeUnknown, RetryLater
from intake.write.acknowledgements import OK, FlushOutcome, PendingBatch
from tests.support.builders.demo_source import write_source


@pytest.fixture(autouse=True)
def _small_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    source.mkdir()
    write_source(source)
    monkeypatch.setattr(run, "find_data", lambda: source)


@dataclass
class Parts:
    """An application that stores nothing and returns the configured answers."""

    verdict: FlushOutcome = OK
    report: ArchiveReport = field(default_factory=ArchiveReport)
    sent: int = 0
    closed: bool = False

    def writer(self) -> Parts:
        return self

    def send_batch(self, topic: str, batch: pa.RecordBatch) -> PendingBatch:
        rows = batch.num_rows
        self.sent += rows
        pending = PendingBatch(topic, np.zeros(rows, np.int32), threading.Condition())
        pending.expect(0)
        pending.admitted()
        pending.set_outcome(0, np.arange(rows, dtype=np.int64), np.zeros(rows, np.int32), [self.verdict])
        return pending

    def close(self) -> None:
        self.closed = True

    @property
    def intake(self) -> Parts:
        return self

    @property
    def archiving(self) -> Parts:
        return self

    @property
    def maintenance(self) -> Parts:
        return self

    def round(self, progress: Callable[[str], None]) -> Parts:
        progress("refining")
        return self

    def run(self, scope: None, *, everything: bool) -> ArchiveReport:
        assert everything
        return self.report

    def audit(self, scope: None) -> dict[str, Any]:
        return {"verdict": "valid", "partitions": []}

    def table(self, topic: str) -> TableView | None:
        return None

    def live_files(self, catalog: str, view: TableView) -> list[LiveFile]:
        return []


def run_with(parts: Parts, tmp_path: Path) -> DemoReport:
    @contextmanager
    def opened(_path: Path) -> Iterator[Any]:
        yield parts

    opened_application: Any = opened

    return run_demo(tmp_path / "demo", opened_application, ManualClock(), lambda _line: None)


@pytest.mark.parametrize(("outcome", "error"), [("unknown", OutcomeUnknown), ("failed", RetryLater)])
def test_records_that_were_not_acknowledged_stop_it(
    tmp_path: Path, outcome: Any, error: type[Exception]
) -> None:
    parts = Parts(FlushOutcome(outcome, "the disk is full"))
    with pytest.raises(error, match="the disk is full"):
        run_with(parts, tmp_path)
    assert parts.closed


def test_halted_topic_stops_it(tmp_path: Path) -> None:
    parts = Parts()
    parts.report.of("planes").halt("the table belongs to somebody else")
    with pytest.raises(Halt, match="planes: the table belongs to somebody else"):
        run_with(parts, tmp_path)


def test_missing_table_stops_it(tmp_path: Path) -> None:
    parts = Parts()
    with pytest.raises(Halt, match=r"its table nyc\.flights is not in the catalog"):
        run_with(parts, tmp_path)
    assert parts.sent == 14


def test_short_table_is_never_called_valid(tmp_path: Path) -> None:
    short = TableReport("flights", "nyc.flights", 10, 9, 1, 100, "file:///m.json", ("file:///a.parquet",))
    report = DemoReport(
        tmp_path, tmp_path / "archiver.yaml", (), (short,), (), {"verdict": "valid", "partitions": []}
    )
    assert report.verdict == "invalid"
    assert "nyc.flights holds 9 rows, but 10 records went to flights" in "\n".join(report.lines())


@pytest.mark.spark
def test_the_real_parts_carry_it_twice(tmp_path: Path) -> None:
    lines: list[str] = []
    for _ in range(2):
        report = run_demo(
            tmp_path / "demo",
            lambda path: open_application(load_settings(path, os.environ), os.environ),
            SystemClock(),
            lines.append,
        )
        assert report.verdict == "valid"
        assert {table.topic: table.rows for table in report.tables} == {
            "flights": 4,
            "weather": 4,
            "planes": 2,
            "airports": 2,
            "airlines": 2,
        }
        assert len(report.answers) == 3
        weather = report.answers[1]
        assert {row[0] for row in weather.rows} == {"fair", "visibility below 2 miles", "gusts above 30 mph"}
        page = "\n".join(report.lines())
        assert "Audit: valid (19 topic partitions" in page
        assert f"archiver consume -c {report.configuration}" in page
        assert json.loads(json.dumps(report.to_json()))["verdict"] == "valid"
        with Reader(report.configuration) as reader:
            for table in report.tables:
                records = list(reader.read(table.topic))
                assert len(records) == table.rows, (
                    "maps, lists, enums and times come back out of the archives"
                )
                assert {record.source for record in records} == {"archive"}
    assert [line for line in lines if line.startswith("[")][:2] == [
        "[1/5] reading the source data",
        "[2/5] sending the data through the intake writer",
    ]
