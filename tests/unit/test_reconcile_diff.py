"""Every kind of finding: one scene that has it, and a good scene without any."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from archiver.objects.paths import ArchiveKey
from archiver.runtime.ids import TopicId
from archiver.runtime.metric_names import FINDINGS, LABELS
from reconcile.findings.diff import differences
from reconcile.findings.finding import IDS, SEVERITIES, Finding, anchor
from reconcile.snapshot.topic_snapshot import (
    ExternalSnapshot,
    FolderSnapshot,
    PendingArchive,
    TableSnapshot,
    TopicSnapshot,
    UnreferencedObject,
)
from reconcile.snapshot.topic_views import FileView, PartitionView, Removal, TableState, TopicView

TOPIC = TopicId("ab" * 16)
CLUSTER = "cd" * 16
UUID = uuid.UUID(int=7)


def file(base: int, end: int, *, epoch: int = 1, partition: int = 0) -> FileView:
    """A file of this cluster as the table lists it, with its object."""
    key = ArchiveKey(TOPIC, partition, "day", 20_000, base, end, epoch)
    path = f"file:///data/archive/{TOPIC}/data/partition={partition:05}/{base}-{end}-{epoch}.parquet"
    return FileView(path, end - base, 100, 100, key, base, end - 1, partition, partition)


def pending(base: int, end: int) -> PendingArchive:
    return PendingArchive(f"archive/{TOPIC}/{base}-{end}.parquet", 0, base, end, 100, 100)


def partition(watermark: int, waiting: tuple[tuple[int, int], ...] = ()) -> PartitionView:
    return PartitionView(0, 0, 20, 20, watermark, waiting)


def table(**changes: object) -> TableSnapshot:
    made = TableSnapshot("shop.clicks", UUID, CLUSTER, TOPIC, 2, "day", 3)
    return replace(made, **changes)  # type: ignore[arg-type]


def state(*files: FileView, watermark: int = 10) -> TableState:
    return TableState("shop.clicks", 1, {0: watermark}, None, files)


GOOD_VIEW = TopicView("clicks", TOPIC, "iceberg", (partition(10),), state(file(0, 5), file(5, 10)))
GOOD = TopicSnapshot(
    view=GOOD_VIEW, topic_id=TOPIC, table_name="shop.clicks", granularity="day", known_uuid=UUID, archived=True, table=table(),
    archives={0: ((0, 10),)},
)  # fmt: skip


def with_files(*files: FileView, archives: tuple[tuple[int, int], ...] = ((0, 10),)) -> TopicSnapshot:
    return replace(GOOD, view=replace(GOOD_VIEW, table=state(*files)), archives={0: archives})


def other(mismatch: str, **changes: object) -> TopicSnapshot:
    """A table of the expected name that does not match. The audit reads it only if it is the topic's table."""
    view = (
        replace(GOOD_VIEW, table=None, absent=mismatch)
        if changes.keys() & {"uuid", "topic_id", "cluster_id"}
        else GOOD_VIEW
    )
    return replace(GOOD, view=view, table=table(mismatch=mismatch, **changes))


ROLLED_BACK = replace(
    GOOD,
    view=replace(GOOD_VIEW, table=TableState("shop.clicks", 1, None, "rolled back", (file(0, 5),))),
    table=table(doubt="it was rolled back", rolled_back=True),
)
WAITING = replace(
    GOOD, view=replace(GOOD_VIEW, partitions=(partition(10, ((10, 12),)),)), pending=(pending(10, 12),)
)
REMOVED = replace(GOOD_VIEW, table=replace(state(file(0, 5)), removals=(Removal(9, 5),)))

SCENES: dict[str, tuple[TopicSnapshot, FolderSnapshot]] = {
    name: (sight, FolderSnapshot())
    for name, sight in {
        "table-missing": replace(GOOD, view=replace(GOOD_VIEW, table=None, absent="gone"), table=None),
        "table-replaced": other("has another uuid", uuid=uuid.UUID(int=8)),
        "topic-recreated-on-old-table": other("belongs to a topic with another id", topic_id="ef" * 16),
        "format-changed": other("has iceberg format version 3", format_version=3),
        "spec-changed": other("is partitioned by hour", granularity="hour"),
        "schema-drift": replace(GOOD, table=table(schema_fault="column kafka is gone")),
        "rolled-back": ROLLED_BACK,
        "evidence-doubted": replace(
            GOOD, table=table(doubt="table property archiver.watermarks cannot be understood")
        ),
        "dangling-reference": with_files(
            file(0, 5), replace(file(5, 10), object_size=None), archives=((0, 5),)
        ),
        "altered-object": with_files(file(0, 5), replace(file(5, 10), object_size=99)),
        "gap": with_files(file(0, 5), archives=((0, 5),)),
        "doubled-file": with_files(file(0, 5), file(5, 10), file(5, 10, epoch=2)),
        "overlap": with_files(file(0, 5), file(5, 10), file(4, 7, epoch=2)),
        "unknown-commit": replace(
            GOOD,
            view=replace(GOOD_VIEW, partitions=(partition(5, ((5, 10),)),)),
            table=table(ahead={0: (5, 10)}, landed=("k",)),
        ),
        "missing-in-catalog": WAITING,
        "foreign-rows": replace(GOOD, table=table(external=(ExternalSnapshot(4, "append", 3),))),
        "stale-lease": replace(GOOD, idle_s=2000.0, holder="elsewhere:1"),
        "orphan": replace(GOOD, unreferenced=(UnreferencedObject("archive/x", 1, "nobody names it"),)),
        "rows-removed": replace(GOOD, view=REMOVED),
    }.items()
} | {
    "stray-upload": (
        GOOD,
        FolderSnapshot(uploads=(UnreferencedObject("/data/.spool/x", 1, "its process is gone"),)),
    ),
    "log-ahead": (GOOD, FolderSnapshot(log_ahead=(2_000_000_000_000_000, 1000.0))),
}


def found(sight: TopicSnapshot, folder: FolderSnapshot | None = None) -> list[Finding]:
    return differences([sight], folder or FolderSnapshot())


def test_the_good_scene_has_no_finding() -> None:
    assert found(GOOD) == []


@pytest.mark.parametrize("kind", sorted(IDS))
def test_each_kind_has_a_scene_that_gives_it_and_nothing_else(kind: str) -> None:
    sight, folder = SCENES[kind]
    findings = found(sight, folder)
    assert [item.id for item in findings] == [kind]
    assert findings[0].severity == IDS[kind]
    assert findings[0].what
    assert findings[0].repair
    assert findings[0].safe == (kind in {"unknown-commit", "missing-in-catalog"})
    assert findings == found(sight, folder), "the same state gives the same findings"


def test_committed_rows_that_archives_still_hold_are_never_repaired_unasked() -> None:
    one = found(with_files(file(0, 5)))
    assert [(item.id, item.severity, item.safe) for item in one] == [("missing-in-catalog", "error", False)]
    assert "offsets 5 to 9" in one[0].what


def test_what_is_on_its_way_is_no_finding() -> None:
    assert found(replace(WAITING, busy=True)) == []
    ahead, _ = SCENES["unknown-commit"]
    assert found(replace(ahead, busy=True)) == []
    lacking = replace(GOOD, table=table(schema_lacking=True))
    assert [(item.id, item.severity) for item in found(lacking)] == [("schema-drift", "warning")]
    assert found(replace(lacking, busy=True)) == []


def test_a_pending_archive_whose_object_is_gone_or_altered_is_not_committed() -> None:
    gone = replace(WAITING, pending=(replace(pending(10, 12), object_size=None),))
    assert [(item.id, item.safe) for item in found(gone)] == [("dangling-reference", False)]
    short = replace(WAITING, pending=(replace(pending(10, 12), object_size=3),))
    assert [item.id for item in found(short)] == ["altered-object"]
    other_bytes = replace(WAITING, pending=(replace(pending(10, 12), altered="has other bytes"),))
    assert [item.id for item in found(other_bytes)] == ["altered-object"]


def test_what_cannot_be_looked_at_gives_no_finding() -> None:
    assert (
        found(
            replace(GOOD, view=replace(GOOD_VIEW, table=None, unreadable="the catalog is down"), table=None)
        )
        == []
    )


def test_a_topic_that_was_never_archived_has_no_table_yet() -> None:
    new = replace(
        GOOD,
        view=replace(GOOD_VIEW, partitions=(partition(0),), table=None),
        table=None,
        archived=False,
        known_uuid=None,
    )
    assert found(replace(new, archives={})) == []


def test_a_folder_of_an_unknown_topic_is_reported_as_a_warning() -> None:
    findings = differences([], FolderSnapshot(unknown=(UnreferencedObject("archive/ff/", 1, "of nobody"),)))
    assert [(item.id, item.severity, item.topic) for item in findings] == [("orphan", "warning", None)]


def test_many_unreferenced_files_are_summed_up() -> None:
    findings = found(
        replace(
            GOOD,
            unreferenced=tuple(UnreferencedObject(f"archive/{number:03}", 1, "why") for number in range(30)),
        )
    )
    assert len(findings) == 21
    assert any("10 more such objects (10 bytes)" in item.what for item in findings)


def test_findings_are_reported_by_topic_and_kind() -> None:
    both = replace(
        GOOD, unreferenced=(UnreferencedObject("archive/x", 1, "why"),), table=table(schema_fault="gone")
    )
    second = replace(both, view=replace(both.view, topic="apples"))
    reported = [(item.topic, item.id) for item in differences([both, second], FolderSnapshot())]
    assert reported == [
        ("apples", "schema-drift"),
        ("apples", "orphan"),
        ("clicks", "schema-drift"),
        ("clicks", "orphan"),
    ]


def test_metrics_and_anchors_know_the_same_ids() -> None:
    assert tuple(IDS) == FINDINGS == LABELS["finding"]
    assert LABELS["severity"] == SEVERITIES
    assert set(IDS.values()) == set(SEVERITIES)
    assert anchor("gap") == "finding-gap"


# The views are of different moments.

ONE_VIEW = {
    *("table-replaced", "topic-recreated-on-old-table", "format-changed", "spec-changed"),
    *("dangling-reference", "altered-object", "foreign-rows", "rows-removed", "doubled-file", "overlap"),
}
"""Kinds that only need the table or an object that it names."""
OF_THE_FOLDER = {"stray-upload", "log-ahead"}


@pytest.mark.parametrize("kind", sorted(IDS))
def test_no_kind_compares_views_of_different_moments(kind: str) -> None:
    sight, folder = SCENES[kind]
    ids = {item.id for item in found(replace(sight, moving=True), folder)}
    assert ids == ({kind} if kind in ONE_VIEW | OF_THE_FOLDER else set())


@pytest.mark.parametrize("kind", ["evidence-doubted", "unknown-commit", "missing-in-catalog"])
def test_no_kind_that_compares_ledger_and_table_is_reported_of_work_under_way(kind: str) -> None:
    sight, folder = SCENES[kind]
    assert found(replace(sight, busy=True), folder) == []


def test_a_table_ahead_of_an_older_view_of_the_ledger_is_no_older_metadata_store() -> None:
    why = (
        "is complete up to offset 9 of partition 0, and the ledger knows of archives only up to 5: the "
        "metadata store is an older copy"
    )
    ahead = replace(GOOD, table=table(contradiction=why))
    assert [item.id for item in found(ahead)] == ["evidence-doubted"]
    assert found(replace(ahead, busy=True)) == []
    assert found(replace(ahead, moving=True)) == []


def test_rows_that_another_writer_wrote_again_are_foreign_rows() -> None:
    one = replace(GOOD, table=table(external=(ExternalSnapshot(4, "overwrite", 0, rewritten=3),)))
    (finding,) = found(one)
    assert (finding.id, finding.severity, finding.safe) == ("foreign-rows", "warning", False)
    assert "snapshot 4" in finding.what
    assert "rewrote 3 rows, perhaps with other content" in finding.what
    assert "archiver audit --deep" in finding.repair


def test_rows_that_a_removal_wrote_again_are_named_with_it() -> None:
    kept = table(external=(ExternalSnapshot(9, "overwrite", 0, rewritten=7, removes=True),))
    (finding,) = found(replace(GOOD, view=REMOVED, table=kept))
    assert (finding.id, finding.severity) == ("rows-removed", "info")
    assert "removed 5 rows and rewrote 7 rows, whose content `archiver audit --deep` compares" in finding.what
