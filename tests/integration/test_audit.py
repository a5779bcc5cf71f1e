"""The fast audit over real archives: does it detect what happened to files and tables?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from archiver.catalog.expiry import recorded
from archiver.catalog.external_changes import retained_changes
from archiver.catalog.table_layout import COMMIT_ID, WATERMARKS, table_properties
from archiver.catalog.tables import SnapshotView, Tables
from archiver.events.types import DataFile
from archiver.ledger.views import PendingFile, WrittenEvent
from archiver.objects import paths
from archiver.refine.task import WrittenFile
from archiver.runtime.clock import ManualClock
from archiver.runtime.errors import NotFound, RetryLater
from archiver.runtime.ids import TopicId
from archiver.stream.seal import UNSEALED, seal
from reconcile.audit.report import ATTEMPTS_MAX
from tests.support.builders.audited import CLUSTER, TABLE, World, verdicts


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "data")


def test_document_of_a_sound_topic(world: World) -> None:
    world.archived()
    document = world.audit()
    assert list(document) == ["verdict", "partitions", "checked_at", "snapshot_ids"]
    assert document["verdict"] == "valid"
    assert document["checked_at"] == "2023-11-14T22:13:20.000000Z"
    assert document["snapshot_ids"] == {"orders": world.view().snapshot_id}
    assert document["partitions"][1] == {
        "topic": "orders",
        "topic_id": world.topic,
        "partition": 1,
        "start": 0,
        "watermark": 30,
        "stable": 30,
        "next": 30,
        "rows": 30,
        "gaps": [],
        "missing": [],
        "doubled": [],
        "removed": [],
        "altered": [],
        "pending": [],
        "proof": "bounds",
        "verdict": "valid",
        "why": None,
    }


def test_nothing_archived_yet(world: World) -> None:
    document = world.audit()
    assert document["verdict"] == "valid"
    assert [item["rows"] for item in document["partitions"]] == [0, 0]


@pytest.mark.parametrize("in_time", [True, False])
def test_a_commit_that_comes_between_ledger_and_table_is_looked_at_again(world: World, in_time: bool) -> None:
    """A daemon archives during the audit, so its table is ahead of the ledger for a moment. The audit reads
    again."""
    world.commit(world.refine(), (30, 30))
    pauses: list[float] = []

    class InBetween(ManualClock):
        def sleep(self, seconds: float) -> None:
            pauses.append(seconds)
            if in_time and len(pauses) == 2:
                world.record(30, 30)

    world.clock = InBetween()
    document = world.audit()
    assert (document["verdict"], len(pauses)) == (("valid", 2) if in_time else ("unknown", ATTEMPTS_MAX - 1))


def test_scope(world: World) -> None:
    world.archived()
    assert [item["partition"] for item in world.audit(("orders", frozenset({1})))["partitions"]] == [1]
    with pytest.raises(NotFound, match="no topic payments"):
        world.audit(("payments", None))
    with pytest.raises(NotFound, match="no partition 2"):
        world.audit(("orders", frozenset({2})))


def test_object_deleted(world: World) -> None:
    files = world.archived()
    world.store.delete(files[1].archive.key)
    document = world.audit()
    assert verdicts(document) == ["invalid", "valid"]
    assert document["partitions"][0]["missing"] == [[10, 20]]


def test_object_truncated(world: World) -> None:
    files = world.archived()
    path = world.store.root / files[4].archive.key
    path.write_bytes(path.read_bytes()[:-1])
    document = world.audit()
    assert verdicts(document) == ["valid", "invalid"]
    assert "bytes, the table says" in document["partitions"][1]["why"]


def test_file_removed_from_the_table_by_compaction_gone_wrong(world: World) -> None:
    files = world.archived()
    world.tables.replace_files(TABLE, [files[0].data_file.path], [])
    document = world.audit()
    assert verdicts(document) == ["invalid", "valid"]
    assert document["partitions"][0]["missing"] == [[0, 10]]


def test_file_added_twice_by_another_writer(world: World) -> None:
    files = world.archived()
    world.tables.replace_files(TABLE, [], [files[2].data_file], operation="append")
    document = world.audit()
    assert document["partitions"][0]["doubled"] == [[20, 30]]
    assert document["verdict"] == "invalid"


def compacted(
    world: World, files: list[WrittenFile], keep: slice = slice(None), name: str = "compacted.parquet"
) -> DataFile:
    """One external file with the rows of several archives, as an engine's compaction writes it: in its own
    order, under its own name."""
    tables = [pq.read_table(world.store.root / file.archive.key, partitioning=None) for file in files]
    rows = pa.concat_tables(tables)
    rows = rows.take(list(range(rows.num_rows))[::-1]).slice(0, rows.num_rows)
    rows = rows.take(list(range(rows.num_rows))[keep])
    key = f"{paths.data_prefix(world.topic)}{name}"
    path = world.store.root / key
    pq.write_table(rows, path)
    uri = world.store.uri(key).replace("file:///", "file:/")  # as Spark spells it
    first = files[0].data_file
    return replace(
        first,
        path=uri,
        record_count=rows.num_rows,
        file_size=path.stat().st_size,
        lower_bounds={},
        upper_bounds={},
    )


def test_compacted_by_another_writer_is_proven_by_rows(world: World) -> None:
    files = world.archived()
    world.tables.replace_files(TABLE, [file.data_file.path for file in files], [compacted(world, files)])
    document = world.audit()
    assert verdicts(document) == ["valid", "valid"]
    assert [(item["proof"], item["rows"]) for item in document["partitions"]] == [("rows", 30), ("rows", 30)]


def test_compaction_that_lost_rows(world: World) -> None:
    files = world.archived()
    lossy = compacted(world, files, slice(0, -4))
    world.tables.replace_files(TABLE, [file.data_file.path for file in files], [lossy])
    document = world.audit()
    assert verdicts(document) == ["invalid", "valid"]
    assert document["partitions"][0]["missing"] == [[0, 4]]


def test_foreign_file_outside_of_the_data_folder(world: World) -> None:
    files = world.archived()
    stray = replace(files[0].data_file, path="s3://elsewhere/x.parquet", lower_bounds={}, upper_bounds={})
    world.tables.replace_files(TABLE, [files[0].data_file.path], [stray])
    document = world.audit()
    assert document["verdict"] == "unknown"
    assert "outside of the data folder" in document["partitions"][0]["why"]


def test_wrong_record_count_in_the_manifest(world: World) -> None:
    files = world.archived()
    lying = replace(files[0].data_file, record_count=9)
    world.tables.replace_files(TABLE, [files[0].data_file.path], [lying])
    document = world.audit()
    assert verdicts(document) == ["invalid", "valid"]
    assert "holds 10 rows, the table says 9" in document["partitions"][0]["why"]


def test_rolled_back(world: World) -> None:
    files = world.refine()
    world.commit([files[0], files[3]], (10, 10))
    first = world.view().snapshot_id
    assert first is not None
    world.commit([files[1], files[4]], (20, 20))
    world.record(20, 20)
    assert world.audit()["verdict"] == "valid"
    world.tables.roll_back(TABLE, first)
    document = world.audit()
    assert verdicts(document) == ["invalid", "invalid"]
    assert document["partitions"][0]["missing"] == [[10, 20]]
    assert "rolled back" in document["partitions"][0]["why"]


def test_table_ahead_of_the_ledger(world: World) -> None:
    files = world.refine()
    world.commit(files[:3], (30, 0))
    assert world.audit()["partitions"][0]["verdict"] == "unknown"
    for file in files[:3]:
        event = WrittenEvent(1, b"", b"", 1)
        world.mine.add_pending(PendingFile(file.archive, b"", world.mine.table_uuid, 0, 1, event, 0))
    document = world.audit()
    assert document["verdict"] == "valid"
    assert (document["partitions"][0]["rows"], document["partitions"][0]["watermark"]) == (30, 0)


def test_dropped_table(world: World) -> None:
    world.archived()
    world.tables.drop(TABLE)
    document = world.audit()
    assert verdicts(document) == ["invalid", "invalid"]
    assert "dropped or renamed" in document["partitions"][0]["why"]
    assert document["snapshot_ids"] == {"orders": None}


def test_table_of_another_topic(world: World) -> None:
    world.archived()
    view = world.view()
    world.tables.drop(TABLE)
    properties = table_properties(CLUSTER, TopicId("e" * 32), "orders")
    world.tables.create(TABLE, view.location, view.schema_json, "day", properties)
    assert "belongs to topic id eeee" in world.audit()["partitions"][0]["why"]


def test_table_made_again(world: World) -> None:
    world.archived()
    view = world.view()
    world.tables.drop(TABLE)
    world.tables.create(TABLE, view.location, view.schema_json, "day", dict(view.properties))
    document = world.audit()
    assert document["verdict"] == "invalid"
    assert "dropped and recreated" in document["partitions"][0]["why"]


def test_catalog_that_is_down(world: World) -> None:
    world.archived()

    def down(_name: str) -> Tables:
        raise RetryLater("the catalog does not answer")

    document = world.audit(tables=down)
    assert verdicts(document) == ["unknown", "unknown"]
    assert "the catalog does not answer" in document["partitions"][0]["why"]


def test_archives_without_a_table(world: World) -> None:
    world.kind = "parquet"
    files = world.refine()
    world.refine(epoch=2)  # what an earlier leader left behind does not count twice
    world.record(30, 20)
    document = world.audit()
    assert verdicts(document) == ["valid", "valid"]
    assert [item["rows"] for item in document["partitions"]] == [30, 20]
    for epoch in (1, 2):
        world.store.delete(files[1].archive.key.replace("-00000001.", f"-{epoch:08}."))
    document = world.audit()
    assert verdicts(document) == ["invalid", "valid"]
    assert document["partitions"][0]["missing"] == [[10, 20]]


def test_archive_without_a_table_that_lacks_rows(world: World) -> None:
    world.kind = "parquet"
    files = world.refine()
    world.record(30, 30)
    path = world.store.root / files[0].archive.key
    metadata = pq.read_metadata(path).metadata or {}
    rows = pq.read_table(path, partitioning=None).slice(0, 9)
    path.unlink()
    with pq.ParquetWriter(path, rows.schema, store_schema=False) as writer:
        writer.write_table(rows)
        footer = {
            name.decode(): text.decode() for name, text in metadata.items() if name.startswith(b"archiver.")
        }
        writer.add_key_value_metadata({**footer, "archiver.footer_sha256": UNSEALED})
    document = world.audit()
    assert verdicts(document) == ["unknown", "valid"], "a footer without its checksum is not believed"
    with path.open("r+b") as file:
        seal(file)
    document = world.audit()
    assert verdicts(document) == ["invalid", "valid"]


def test_archived_topic_whose_kind_is_none_now(world: World) -> None:
    world.archived()
    world.kind = "none"
    assert world.audit()["verdict"] == "unknown"


@pytest.mark.parametrize("expired", [False, True], ids=["retained", "expired"])
def test_what_was_removed_is_forgotten_when_retention_has_passed_it(world: World, expired: bool) -> None:
    """Otherwise a topic that is erased from for years would stay unknown: fewer rows are missing than were
    ever removed."""
    files = world.archived()
    world.tables.replace_files(TABLE, [files[0].data_file.path], [], operation="delete")
    view = world.view()
    if expired:
        assert view.snapshot_id is not None
        gone = [snapshot.snapshot_id for snapshot in view.snapshots]
        reported = {**recorded(view, gone, world.mine, (30, 30)), WATERMARKS: view.properties[WATERMARKS]}
        world.tables.swap(world.tables.prepare(view, [], lambda *_: reported, {COMMIT_ID: "x"}, False, gone))
        assert len(world.view().snapshots) == 1
    assert world.audit()["partitions"][0]["removed"] == [[0, 10]]
    world.mine.starts.update({0: 10, 1: 0})
    assert verdicts(world.audit()) == ["unknown", "unknown"], (
        "it is unknown which of the rows that retention has left were removed"
    )
    world.mine.starts.update({0: 30, 1: 30})
    document = world.audit()
    assert verdicts(document) == ["valid", "valid"], document
    assert document["partitions"][0]["why"] is None


def test_foreign_removals_go_by_summaries(world: World) -> None:
    def snapshot(number: int, operation: str, **summary: str) -> SnapshotView:
        return SnapshotView(
            number,
            number - 1 or None,
            number,
            0,
            operation,
            {name.replace("_", "-"): text for name, text in summary.items()},
        )

    snapshots = (
        snapshot(1, "append", added_records="10"),
        snapshot(2, "overwrite", deleted_records="10", added_records="8"),
        snapshot(3, "replace", deleted_records="8", added_records="8"),
        snapshot(4, "delete", deleted_records="3"),
        snapshot(5, "delete", deleted_records="5", archiver_x="1"),
    )
    ours = replace(snapshots[4], summary={**snapshots[4].summary, COMMIT_ID: "x"})
    view = replace(world.view(), snapshot_id=5, snapshots=(*snapshots[:4], ours))
    assert [(item.snapshots, item.rows, item.added) for _, item in retained_changes(view)] == [
        ((1,), 0, 10),
        ((2,), 2, 0),
        ((4,), 3, 0),
    ]
