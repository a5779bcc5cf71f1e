"""The audit of topics with aborted transactions, over real archives: known gaps are no loss, and nothing else
counts as one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from archiver.config.settings import TopicSettings
from archiver.objects import paths
from archiver.refine.task import WrittenFile
from archiver.runtime.errors import Corrupted
from archiver.runtime.ids import TopicId, TopicPartition
from intake.log.backlog import Backlog
from reconcile.audit.report import Audit
from tests.support.builders.audited import CLUSTER, NOW, TABLE, Document, World
from tests.support.builders.refining import refine
from tests.support.intake.intake_files import Row
from tests.support.schema.orders import order, order_schema

ENDS = (36, 42)
"""Of both partitions: 0 has a gap [30, 33) before its last records, 1 has only gaps after its first 30."""


class Transactions(World):
    """The world of 30 records per partition with transactions after them, which commit or abort by `commit`."""

    def __init__(self, root: Path, *, commit: bool = False) -> None:
        super().__init__(root)
        self._first = self.refine()
        producer = self.intake.producer("p")
        self._send(producer, {0: 3, 1: 8})
        self.intake.end(producer, commit=commit)
        self._send(None, {0: 3})
        self._send(producer, {1: 4})
        self.intake.end(producer, commit=commit)

    def _send(self, producer: tuple[int, int] | None, counts: dict[int, int]) -> None:
        rows: dict[tuple[TopicId, int], Sequence[Row]] = {
            (self.topic, partition): [Row(NOW + 9, order(7))] * count for partition, count in counts.items()
        }
        self.intake.file(rows, producer=producer)

    def archived(self) -> list[WrittenFile]:
        """Archived in two rounds; in the second, partition 1 has only gaps."""
        files = [*self._first, *self.refine_rest()]
        self.commit(files, ENDS)
        self.record(*ENDS)
        self.mine.passed.add(1, 30, 42)
        return files

    def refine_rest(self) -> list[WrittenFile]:
        """Files of what follows the first 30 records."""
        plans = [plan for partition in (0, 1) for plan in self.intake.plans(self.topic, partition, start=30)]
        wanted = [plan for plan in plans if not plan.gap_only]
        return [one for result in refine(self.intake, wanted, schema=order_schema()) for one in result.files]

    def looked_at(self, backlog: Backlog) -> Document:
        """The document as it is with that view of the intake log."""
        archive = {"kind": "iceberg", "catalog": "local", "table": "shop.orders"}
        settings = [TopicSettings.model_validate({"name": "orders", "partitions": 2, "archive": archive})]
        check = Audit(self.store, CLUSTER, lambda _name: self.tables, settings, self.clock)
        found: Document = json.loads(json.dumps(check.run(lambda: self.ledger, lambda: backlog)))
        return found


@pytest.fixture
def world(tmp_path: Path) -> Transactions:
    return Transactions(tmp_path / "data")


def reported(document: Document, *names: str) -> list[list[Any]]:
    return [[item[name] for name in names] for item in document["partitions"]]


def test_gaps_are_reported_before_anything_is_archived(world: Transactions) -> None:
    assert reported(world.audit(), "verdict", "gaps", "missing") == [
        ["valid", [[30, 33]], []],
        ["valid", [[30, 42]], []],
    ]


def test_archives_with_gaps_and_ranges_without_any_archive(
    world: Transactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = world.archived()
    assert [(one.archive.partition, one.archive.base, one.archive.end, one.archive.gaps) for one in files][
        -1
    ] == (0, 30, 36, ((30, 33),))
    assert max(one.archive.end for one in files if one.archive.partition == 1) == 30

    def closed(key: str) -> pa.NativeFile:
        raise AssertionError(f"{key} is opened, though log, manifest and name explain it")

    monkeypatch.setattr(world.store, "open_input", closed)
    document = world.audit()
    assert reported(document, "verdict", "gaps", "rows", "proof") == [
        ["valid", [[30, 33]], 33, "bounds"],
        ["valid", [[30, 42]], 30, "bounds"],
    ]


def test_a_record_in_a_gap_is_found(tmp_path: Path) -> None:
    """The archives hold what the log says was aborted."""
    committed = Transactions(tmp_path / "data", commit=True)
    committed.archived()
    aborted = Transactions(tmp_path / "other")
    document = committed.looked_at(aborted.intake.backlog)
    assert reported(document, "verdict", "missing", "doubled") == [["invalid", [], []], ["invalid", [], []]]
    first, second = reported(document, "why")
    assert "rows at offsets 30 to 32, which are gaps" in first[0]
    assert "rows at offsets 30 to 41, which are gaps" in second[0]


def test_a_record_that_was_archived_as_a_gap_is_found(tmp_path: Path) -> None:
    """The archives, and the ledger, lack what the log says was committed."""
    aborted = Transactions(tmp_path / "data")
    aborted.archived()
    committed = Transactions(tmp_path / "other", commit=True)
    document = aborted.looked_at(committed.intake.backlog)
    assert reported(document, "verdict", "missing") == [["invalid", [[30, 33]]], ["invalid", [[30, 42]]]]
    assert all(
        "were archived as gaps, and the intake log has records there" in why
        for (why,) in reported(document, "why")
    )


def test_a_lost_archive_is_no_gap(world: Transactions) -> None:
    files = world.archived()
    last = [one for one in files if one.archive.partition == 0][-1]
    world.tables.replace_files(TABLE, [last.data_file.path], [])
    document = world.audit()
    assert reported(document, "verdict", "missing") == [["invalid", [[33, 36]]], ["valid", []]]


def test_files_compacted_by_others_have_no_footer_to_name_gaps(world: Transactions) -> None:
    files = world.archived()
    rows = pa.concat_tables(
        [pq.read_table(world.store.root / file.archive.key, partitioning=None) for file in files]
    )
    key = f"{paths.data_prefix(world.topic)}compacted.parquet"
    path = world.store.root / key
    pq.write_table(rows.replace_schema_metadata(None), path)
    mixed = replace(
        files[0].data_file,
        path=world.store.uri(key),
        record_count=rows.num_rows,
        file_size=path.stat().st_size,
        lower_bounds={},
        upper_bounds={},
    )
    world.tables.replace_files(TABLE, [file.data_file.path for file in files], [mixed])
    assert reported(world.audit(), "verdict", "rows", "proof") == [
        ["valid", 33, "rows"],
        ["valid", 30, "rows"],
    ]
    unread = reported(world.looked_at(Deaf(world.intake.fold)), "verdict", "missing", "why")
    assert unread[0][:2] == ["unknown", [[30, 33]]], "nothing shows any more that it is a gap"
    assert "the intake log does not show which offsets are gaps" in unread[0][2]
    assert unread[1][0] == "valid", "the ledger knows"


class Deaf(Backlog):
    """The history files are damaged."""

    def gaps(self, tp: TopicPartition, start: int, end: int) -> list[tuple[int, int]]:
        raise Corrupted("a shelf is gone")


def test_without_the_log_footers_and_ledger_decide(world: Transactions) -> None:
    world.archived()
    document = world.looked_at(Deaf(world.intake.fold))
    assert reported(document, "verdict", "gaps", "rows") == [
        ["valid", [[30, 33]], 33],
        ["valid", [[30, 42]], 30],
    ]


def test_archives_without_a_table(world: Transactions) -> None:
    world.kind = "parquet"
    world.refine_rest()
    world.record(*ENDS)
    world.mine.passed.add(1, 30, 42)
    assert reported(world.audit(), "verdict", "gaps", "rows") == [
        ["valid", [[30, 33]], 33],
        ["valid", [[30, 42]], 30],
    ]
