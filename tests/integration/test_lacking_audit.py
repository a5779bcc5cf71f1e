"""An audit, and a reconcile run, that lacked memory, files or a connection: unknown, and no finding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from archiver.schema.codec import RecordCodec
from archiver.schema.evolution.state import TopicSchema
from reconcile.audit.rows import FileRows, RowFile
from reconcile.audit.spark import summary
from reconcile.repair.run import ReconcileReport
from reconcile.snapshot import observer
from tests.integration.test_deep_audit_doubts import deep, world  # noqa: F401 - a fixture
from tests.support.builders.audited import TABLE, World, verdicts
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver
from tests.support.builders.lacking import DAMAGED, LACKING, failing
from tests.support.spark.here_rows import ROWS, HereRows


class Partly(HereRows):
    """Gives so many batches of the first archive, then calls a function of the test."""

    def __init__(self, world: World, batches: int, then: Callable[[], object] = lambda: None) -> None:  # noqa: F811
        super().__init__(world.store)
        self._batches = batches
        self._then = then

    def archives(self, files: Sequence[RowFile], schema: TopicSchema) -> list[FileRows]:
        found = super().archives(files, schema)
        first = summary.ArchiveRows(files[0], RecordCodec(schema))
        with pq.ParquetFile(files[0].uri.removeprefix("file://")) as file:
            for batch in islice(file.iter_batches(ROWS), self._batches):
                first.add(batch)
        found[0] = first.finish()
        self._then()
        return found


@pytest.mark.parametrize("batches", [0, 1])
def test_a_file_that_came_back_short_and_is_whole(world: World, batches: int) -> None:  # noqa: F811
    world.archived()
    document = deep(world, Partly(world, batches))
    assert verdicts(document) == ["unknown", "valid"]
    assert "although a second read succeeded" in document["partitions"][0]["why"]


@pytest.mark.parametrize("batches", [0, 1])
@pytest.mark.parametrize("error", [*LACKING, *DAMAGED], ids=str)
def test_the_second_look(
    world: World,  # noqa: F811
    batches: int,
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world.archived()
    document = deep(
        world,
        Partly(world, batches, lambda: monkeypatch.setattr(pq.ParquetFile, "iter_batches", failing(error))),
    )
    assert verdicts(document) == ["unknown" if error in LACKING else "invalid", "valid"]
    reported = "audit again" if error in LACKING else "it was altered, restore it"
    assert reported in document["partitions"][0]["why"]


@pytest.mark.parametrize("error", [*LACKING, DAMAGED[0]], ids=str)
def test_the_first_look(world: World, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    world.archived()
    monkeypatch.setattr(pq, "read_metadata", failing(error))
    document = deep(world)
    assert verdicts(document) == ["unknown" if error in LACKING else "invalid"] * 2
    assert all(("audit again" in item["why"]) == (error in LACKING) for item in document["partitions"])


@pytest.mark.parametrize("error", [LACKING[0], DAMAGED[0]], ids=str)
def test_records_that_could_not_be_rebuilt(
    world: World,  # noqa: F811
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world.archived()
    monkeypatch.setattr(summary, "archive_records", failing(error))
    document = deep(world)
    assert verdicts(document) == ["unknown" if error in LACKING else "invalid"] * 2
    assert "its records cannot be rebuilt" in document["partitions"][0]["why"]


@pytest.mark.parametrize("error", [*LACKING, *DAMAGED], ids=str)
def test_a_file_without_bounds(world: World, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    (first, *_) = world.archived()
    world.tables.replace_files(
        TABLE, [first.data_file.path], [replace(first.data_file, lower_bounds={}, upper_bounds={})]
    )
    assert world.audit()["verdict"] == "valid"
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", failing(error))
    document = world.audit()
    if error in LACKING:
        assert verdicts(document) == ["unknown", "unknown"]
        assert "the table could not be read" in document["partitions"][0]["why"]
    else:
        assert verdicts(document) == ["unknown", "valid"]
        assert "it cannot be read" in document["partitions"][0]["why"]


@pytest.mark.parametrize("error", [*LACKING, *DAMAGED], ids=str)
def test_archives_without_a_table_are_no_finding(
    tmp_path: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look() -> ReconcileReport:
        return driver.application.maintenance.reconciling(lambda _: None).run("nothing", "files")

    with Driver(Deployment(tmp_path / "d")) as driver:
        driver.send("files", [b"a", b"b"])
        driver.archive()
        assert look().exit_code == 0
        monkeypatch.setattr(observer, "check_seal", failing(error))
        report = look()
        found = [finding.id for finding, _ in report.findings]
        assert (found, sorted(report.unread)) == (
            ([], ["files"]) if error in LACKING else (["altered-object"], [])
        )
        assert report.exit_code == (2 if error in LACKING else 1)
