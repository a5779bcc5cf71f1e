"""The audit when logs and data folder do not belong together, and when intake files are damaged."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from archiver.ledger.views import PendingFile, WrittenEvent
from archiver.objects import paths
from archiver.runtime.errors import NotFound, RetryLater
from reconcile.snapshot import object_listing
from tests.support.builders.audited import TABLE, Document, World, verdicts
from tests.support.intake.intake_files import Intake, Row

STRANGE = "f" * 32


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "data")


@pytest.fixture
def empty(tmp_path: Path) -> World:
    """A new deployment: configured, and nothing else."""
    world = World(tmp_path / "data")
    shutil.rmtree(world.store.root)
    world.tables.drop(TABLE)
    world.lose_metadata()
    return world


def why(document: Document, entry: int = 0) -> str:
    return str(document["partitions"][entry]["why"])


def test_a_new_deployment_is_valid(empty: World) -> None:
    for scope in (None, ("orders", None), ("orders", frozenset({1}))):
        document = empty.audit(scope)
        assert (document["verdict"], document["partitions"], document["snapshot_ids"]) == ("valid", [], {})


def test_scope_of_what_neither_log_nor_configuration_has(empty: World) -> None:
    with pytest.raises(NotFound, match="no topic payments"):
        empty.audit(("payments", None))
    with pytest.raises(NotFound, match="orders has no partition 2"):
        empty.audit(("orders", frozenset({2})))


def test_metadata_lost(world: World) -> None:
    world.archived()
    world.lose_metadata()
    document = world.audit()
    assert document["verdict"] == "unknown"
    assert document["snapshot_ids"] == {"orders": world.view().snapshot_id}
    assert [item["partition"] for item in document["partitions"]] == [0, 1]
    entry = document["partitions"][1]
    text = entry.pop("why")
    assert entry == {
        "topic": "orders",
        "topic_id": world.topic,
        "partition": 1,
        "start": 0,
        "watermark": 0,
        "stable": 0,
        "next": 0,
        "rows": 0,
        "gaps": [],
        "missing": [],
        "doubled": [],
        "removed": [],
        "altered": [],
        "pending": [],
        "proof": "bounds",
        "verdict": "unknown",
    }
    assert "orders is not in the intake log, but its table shop.orders has 60 rows" in text
    assert "put the newest one in place" in text


def test_metadata_lost_and_a_scope(world: World) -> None:
    world.archived()
    world.lose_metadata()
    assert verdicts(world.audit(("orders", None))) == ["unknown", "unknown"]
    assert [item["partition"] for item in world.audit(("orders", frozenset({1})))["partitions"]] == [1]


def test_metadata_and_data_folder_lost(world: World) -> None:
    world.archived()
    world.lose_metadata()
    shutil.rmtree(world.store.root)
    assert "its table shop.orders has 60 rows" in why(world.audit())


def test_metadata_lost_and_the_table_without_rows(world: World) -> None:
    world.lose_metadata()
    shutil.rmtree(world.store.root)
    assert "its table shop.orders was made for it" in why(world.audit())


def test_metadata_lost_of_a_topic_without_archives(world: World) -> None:
    world.kind = "none"
    world.lose_metadata()
    document = world.audit()
    assert verdicts(document) == ["unknown", "unknown"]
    assert document["partitions"][0]["topic_id"] is None
    assert f"the log is empty and the data folder holds {min(world.intake.keys)}" in why(document)
    assert document["snapshot_ids"] == {"orders": None}


def test_metadata_lost_of_archives_without_a_table(world: World) -> None:
    world.kind = "parquet"
    world.refine()
    world.lose_metadata()
    document = world.audit()
    assert [(item["topic"], item["topic_id"]) for item in document["partitions"]] == [
        *[("(unknown)", world.topic)] * 2,
        *[("orders", None)] * 2,
    ]
    world.identify(world.topic, "orders")
    document = world.audit()
    assert [(item["topic"], item["topic_id"], item["verdict"]) for item in document["partitions"]] == [
        ("orders", world.topic, "unknown")
    ] * 2
    assert f"archive/{world.topic}/ holds objects of it" in why(document)


def test_metadata_lost_and_nothing_configured(world: World) -> None:
    world.lose_metadata()
    world.topics_configured = False
    document = world.audit()
    assert [(item["topic"], item["topic_id"], item["verdict"]) for item in document["partitions"]] == [
        ("(unknown)", None, "unknown")
    ]
    assert document["snapshot_ids"] == {}


def test_a_catalog_that_is_down_says_nothing_of_a_new_topic(empty: World) -> None:
    def down(_name: str) -> object:
        raise RetryLater("the catalog does not answer")

    document = empty.audit(tables=down)  # type: ignore[arg-type]
    assert verdicts(document) == ["unknown", "unknown"]
    assert "the catalog does not answer" in why(document)


def add_new(world: World) -> None:
    world.configured.append({"name": "new", "partitions": 3, "archive": {"kind": "none"}})


def unnamed_file(world: World, topic: str) -> str:
    """An intake file of another log: this one does not name it."""
    other = Intake(world.store)
    other.keys = [*world.intake.keys]
    return other.file({(other.topic(topic), 0): [Row(1)]})


def test_a_topic_that_was_just_configured_is_new(world: World) -> None:
    world.archived()
    add_new(world)
    unnamed_file(world, "orders")  # left by a writer that was killed before its append
    document = world.audit()
    assert document["verdict"] == "valid"
    assert {item["topic"] for item in document["partitions"]} == {"orders"}
    assert world.audit(("new", None))["partitions"] == []


def test_an_old_copy_of_the_log_lacks_a_topic_that_has_intake(world: World) -> None:
    world.archived()
    add_new(world)
    key = unnamed_file(world, "new")
    document = world.audit()
    assert [(item["topic"], item["partition"], item["verdict"]) for item in document["partitions"]] == [
        *[("new", number, "unknown") for number in range(3)],
        *[("orders", number, "valid") for number in range(2)],
    ]
    assert f"{key} holds records of it" in why(document)
    assert [item["partition"] for item in world.audit(("new", frozenset({2})))["partitions"]] == [2]
    assert world.audit(("orders", None))["verdict"] == "valid"


def test_an_unnamed_intake_file_that_cannot_be_read_leaves_it_open(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_new(world)
    world.store.create(paths.intake_key(1_800_000_000_000_000, "0" * 26), b"no Parquet")
    assert "cannot be read" in why(world.audit())
    monkeypatch.setattr(object_listing, "UNNAMED_READ_MAX", 0)
    assert "more than 0 files that the intake log does not name" in why(world.audit())


def test_archives_of_a_topic_id_that_the_log_does_not_know(world: World) -> None:
    world.archived()
    stray = paths.archive_key(STRANGE, 4, "day", 20_000, 0, 10, 1)
    world.store.create(stray, b"x")
    found = world.audit()
    assert found["verdict"] == "unknown"
    assert [(item["topic"], item["topic_id"], item["partition"]) for item in found["partitions"]] == [
        ("(unknown)", STRANGE, 4),
        ("orders", world.topic, 0),
        ("orders", world.topic, 1),
    ]
    assert found["snapshot_ids"] == {"orders": world.view().snapshot_id}
    assert world.audit(("orders", None))["verdict"] == "valid", "its topic is unknown"
    world.identify(STRANGE, "orders")
    found = world.audit(("orders", None))
    assert [(item["topic_id"], item["partition"], item["verdict"]) for item in found["partitions"]] == [
        (world.topic, 0, "valid"),
        (world.topic, 1, "valid"),
        (STRANGE, 4, "unknown"),
    ]
    assert f"archive/{STRANGE}/ holds objects of a topic id that the intake log does not know" in why(
        found, 2
    )
    assert found["snapshot_ids"] == {"orders": world.view().snapshot_id}
    assert world.audit(("orders", frozenset({0})))["verdict"] == "valid"


def test_a_folder_without_archives_has_one_entry(world: World) -> None:
    world.identify(STRANGE, "old")
    entry = world.audit()["partitions"][0]
    assert (entry["topic"], entry["partition"], entry["verdict"]) == ("old", 0, "unknown")
    (world.store.root / paths.topic_key(STRANGE)).write_bytes(b'["no object"]')
    assert world.audit()["partitions"][0]["topic"] == "(unknown)"


def test_archives_of_a_partition_that_the_log_does_not_know(world: World) -> None:
    world.archived()
    world.store.create(paths.archive_key(world.topic, 2, "day", 20_000, 0, 10, 1), b"x")
    document = world.audit()
    assert verdicts(document) == ["valid", "valid", "unknown"]
    assert "archives of a partition that the intake log does not know" in why(document, 2)


@pytest.mark.parametrize("kind", ["iceberg", "parquet", "none"])
def test_archives_beyond_the_end_of_the_log(kind: str, world: World) -> None:
    world.kind = kind
    world.store.create(paths.archive_key(world.topic, 1, "day", 20_000, 20, 31, 1), b"x")
    document = world.audit()
    assert verdicts(document) == ["valid", "unknown"]
    assert "reaches offset 31, the intake log ends at 30" in why(document, 1)


def test_a_data_folder_that_cannot_be_listed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.archived()

    def fail(_prefix: str) -> object:
        raise RetryLater("the disk does not answer")

    monkeypatch.setattr(world.store, "list", fail)
    assert verdicts(world.audit()) == ["unknown", "unknown"]
    world.kind = "none"
    world.mine.watermarks.clear()
    document = world.audit()
    assert verdicts(document) == ["unknown", "unknown"]
    assert "the disk does not answer" in why(document)
    world.lose_metadata()
    assert verdicts(world.audit()) == ["unknown", "unknown"]


# --- intake files


def harm(world: World, number: int, how: str = "gone") -> str:
    key = sorted(world.intake.keys)[number]
    path = world.store.root / key
    content = path.read_bytes()
    path.unlink()
    if how == "truncated":
        path.write_bytes(content[:-1])
    return key


@pytest.mark.parametrize("kind", ["iceberg", "parquet", "none"])
@pytest.mark.parametrize("how", ["gone", "truncated"])
@pytest.mark.parametrize("one_by_one", [True, False])
def test_backlog_in_a_harmed_intake_file(
    kind: str, how: str, one_by_one: bool, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.kind = kind
    if not one_by_one:
        monkeypatch.setattr(object_listing, "INFO_MAX", 0)
    assert world.audit()["verdict"] == "valid"
    key = harm(world, 1, how)
    document = world.audit()
    assert verdicts(document) == ["invalid", "invalid"]
    assert [item["missing"] for item in document["partitions"]] == [[[10, 20]], [[10, 20]]]
    assert key in why(document)
    assert ("is gone" if how == "gone" else "bytes, the intake log says") in why(document)
    assert "nothing else holds offsets 10 to 19" in why(document)


def test_intake_that_is_archived_is_not_needed(world: World) -> None:
    world.archived()
    for number in range(3):
        harm(world, number)
    assert world.audit()["verdict"] == "valid"


def test_only_the_part_that_is_not_archived_is_missing(world: World) -> None:
    files = world.refine()
    world.commit([files[0], files[1], files[3]], (20, 10))
    world.record(20, 10)
    harm(world, 1)
    document = world.audit()
    assert verdicts(document) == ["valid", "invalid"]
    assert document["partitions"][1]["missing"] == [[10, 20]]
    assert verdicts(world.audit(("orders", frozenset({0})))) == ["valid"]


def test_an_archive_that_waits_for_its_commit_holds_its_offsets(world: World) -> None:
    files = world.refine()
    for file in files:
        world.mine.add_pending(
            PendingFile(file.archive, b"", world.mine.table_uuid, 0, 1, WrittenEvent(1, b"", b"", 1), 0)
        )
    harm(world, 1)
    assert world.audit()["verdict"] == "valid"
    path = world.store.root / files[1].archive.key
    path.write_bytes(path.read_bytes()[:-1])
    document = world.audit()
    assert verdicts(document) == ["invalid", "valid"]
    assert document["partitions"][0]["missing"] == [[10, 20]]


def test_a_commit_that_the_ledger_has_still_to_record_holds_its_offsets(world: World) -> None:
    files = world.refine()
    world.commit([file for file in files if file.archive.partition == 0], (30, 0))
    harm(world, 1)
    document = world.audit()
    assert verdicts(document) == ["unknown", "invalid"]
    assert [item["missing"] for item in document["partitions"]] == [[], [[10, 20]]]


def test_lost_intake_is_reported_next_to_a_catalog_that_is_down_and_a_table_that_is_gone(
    world: World,
) -> None:
    world.archived()
    world.record(20, 30)
    harm(world, 2)

    def down(_name: str) -> object:
        raise RetryLater("the catalog does not answer")

    document = world.audit(tables=down)  # type: ignore[arg-type]
    assert verdicts(document) == ["invalid", "unknown"]
    assert document["partitions"][0]["missing"] == [[20, 30]]
    world.tables.drop(TABLE)
    assert [item["missing"] for item in world.audit()["partitions"]] == [[[0, 30]], [[0, 30]]]


def add_foreign(world: World, places: list[tuple[int, int]], said: int | None = None) -> None:
    """Add an external file with rows at these partitions and offsets to the table."""
    (first, *_) = world.archived()
    key = f"{paths.data_prefix(world.topic)}foreign.parquet"
    rows = [{"partition": partition, "offset": offset} for partition, offset in places]
    pq.write_table(pa.table({"kafka": rows}), world.store.root / key)
    size = (world.store.root / key).stat().st_size
    count = len(rows) if said is None else said
    data_file = replace(
        first.data_file,
        path=world.store.uri(key),
        record_count=count,
        file_size=size,
        lower_bounds={},
        upper_bounds={},
    )
    world.tables.replace_files(TABLE, [], [data_file], operation="append")


def test_rows_of_a_partition_that_the_topic_does_not_have(world: World) -> None:
    add_foreign(world, [(5, 0), (5, 1)])
    document = world.audit()
    assert [(item["partition"], item["verdict"], item["rows"]) for item in document["partitions"]] == [
        (0, "valid", 30),
        (1, "valid", 30),
        (5, "invalid", 2),
    ]
    assert "the table holds offsets 0 to 1" in why(document, 2)
    assert verdicts(world.audit(("orders", frozenset({1})))) == ["valid"]


def test_a_foreign_file_with_another_number_of_rows_than_the_table_says(world: World) -> None:
    add_foreign(world, [(0, 30)], said=2)
    document = world.audit()
    assert verdicts(document) == ["invalid", "valid"]
    assert "foreign.parquet holds 1 row, the table says 2" in why(document)
