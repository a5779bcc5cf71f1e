"""What rows prove: each check alone, at its edge. A good scene has no fault; one fault gives that finding
only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from archiver.objects.paths import ArchiveKey
from archiver.runtime.ids import TopicId
from archiver.stream.archives import FoundFooter
from reconcile.audit.deep import Sealed, between_files, proven
from reconcile.audit.rows import ExternalRows, FileRows, Stretch
from reconcile.audit.rules import PartitionFinding, judge_topic
from reconcile.audit.spark.summary import add_stretches
from reconcile.snapshot.topic_views import FileView, PartitionView, RowFault, TableState, TopicView

TOPIC = TopicId("a" * 32)
DIGEST = b"d" * 32
GAP = (14, 16)


def archive(base: int = 10, end: int = 20, gaps: tuple[tuple[int, int], ...] = (GAP,)) -> FileView:
    key = ArchiveKey(TOPIC, 0, "day", 20_000, base, end, 1)
    rows = end - base - sum(high - low for low, high in gaps)
    return FileView(
        f"{base}-{end}",
        rows,
        100,
        100,
        key=key,
        offset_min=base,
        offset_max=end - 1,
        partition_min=0,
        partition_max=0,
    )


def read(**changes: Any) -> FileRows:
    whole = FileRows("x", 8, {0: [Stretch(10, 14, 100, 103), Stretch(16, 20, 104, 107)]}, digest=DIGEST)
    return replace(whole, **changes)


def reported(found: FileRows, file: FileView | None = None, intake: bytes | None = DIGEST) -> FileView:
    return proven(file or archive(), Sealed(FoundFooter((GAP,), 1, DIGEST, 2), 8), found, intake)


def test_rows_as_they_should_be() -> None:
    found = reported(read())
    assert (found.faults, found.rows, found.rows_in_file, found.gaps) == (
        (),
        {0: ((10, 14), (16, 20))},
        8,
        (GAP,),
    )


def test_intake_that_is_gone_is_no_fault() -> None:
    assert reported(read(), intake=None).faults == ()


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (read(disorder=(12, 12)), "offset 12 comes after offset 12"),
        (
            read(backwards=(12, 5, 6)),
            (
                "the ingest time goes back at offset 12: 1970-01-01T00:00:00.000005Z after "
                "1970-01-01T00:00:00.000006Z"
            ),
        ),
        (read(misplaced=12), "the ingest time of offset 12 does not match"),
        (read(trouble="its records cannot be rebuilt: x", digest=None), "its records cannot be rebuilt: x"),
        (read(digest=b"e" * 32), "its footer says"),
        (read(rows=9), "gave 9 rows, its footer says 8"),
        (
            read(stretches={0: [Stretch(10, 14, 1, 2), Stretch(16, 19, 3, 4)]}),
            "lacks offsets 19, by its name and footer",
        ),
        (
            read(stretches={0: [Stretch(10, 15, 1, 2), Stretch(16, 20, 3, 4)]}),
            "has additional offsets 14, by its name and footer",
        ),
        (
            read(stretches={0: [Stretch(10, 14, 1, 2), Stretch(16, 21, 3, 4)]}),
            "has additional offsets 20, by its name and footer",
        ),
    ],
)
def test_each_fault_alone(found: FileRows, why: str) -> None:
    faults = reported(found).faults
    if why == "its footer says":
        assert len(faults) == 2, "it is not what intake holds either"
    else:
        assert len(faults) == 1, faults
    assert why in faults[0].why
    assert not faults[0].unclear


def test_an_archive_that_agrees_with_itself_and_not_with_intake() -> None:
    (fault,) = reported(read(), intake=b"i" * 32).faults
    assert "that of the same offsets in intake is" in fault.why


def test_hidden_rows_are_there_and_removed() -> None:
    found = reported(
        read(stretches={0: [Stretch(10, 14, 1, 2), Stretch(17, 20, 3, 4)]}, removed={0: [(16, 17)]})
    )
    assert (found.faults, found.removed) == ((), {0: ((16, 17),)})


def test_of_an_archive_without_a_table_only_the_part_that_is_read_counts() -> None:
    found = reported(read(), replace(archive(), part=(12, 18)))
    assert (found.rows, found.record_count, found.faults) == ({0: ((12, 14), (16, 18))}, 4, ())


def judged(files: tuple[FileView, ...], **table: Any) -> PartitionFinding:
    place = PartitionView(0, 10, 30, 30, 30, gaps=(GAP,))
    state = TableState("t", 1, {0: 30}, files=files, **table)
    found, *_ = judge_topic(TopicView("orders", TOPIC, "iceberg", (place,), state, count=1, by_rows=True))
    return found


SECOND = proven(
    archive(20, 30, ()),
    Sealed(FoundFooter((), 1, DIGEST, 2), 10),
    FileRows("y", 10, {0: [Stretch(20, 30, 108, 117)]}, digest=DIGEST),
    None,
)


def test_the_judge_believes_rows() -> None:
    found = judged((reported(read()), SECOND))
    assert (found.verdict, found.why, found.proof, found.rows) == ("valid", None, "rows", 18)


@pytest.mark.parametrize(
    ("spoil", "verdict", "why"),
    [
        (lambda one: replace(one, faults=(RowFault(None, "wrong order"),)), "invalid", "wrong order"),
        (
            lambda one: replace(one, faults=(RowFault(0, "could not look", unclear=True),)),
            "unknown",
            "could not look",
        ),
        (
            lambda one: replace(one, faults=(RowFault(0, "a broken seal"),), rows=None),
            "invalid",
            "a broken seal",
        ),
        (lambda one: replace(one, object_size=99), "invalid", "has 99 bytes, the table says 100"),
        (lambda one: replace(one, object_size=None, rows=None), "invalid", "is not in the object store"),
        (lambda one: replace(one, record_count=9), "invalid", "holds 8 rows, the table says 9"),
        (
            lambda one: replace(one, rows={**one.rows, 7: ((1, 2),)}),
            "invalid",
            "holds rows of partitions [0, 7]",
        ),
    ],
)
def test_the_judge_sees_every_fault(spoil: Callable[[FileView], FileView], verdict: str, why: str) -> None:
    found = judged((spoil(reported(read())), SECOND))
    assert found.verdict == verdict
    assert why in str(found.why)


def test_faults_between_files_reach_their_partition() -> None:
    files = (reported(read()), SECOND)
    assert judged(files, faults=(RowFault(0, "time goes back"),)).verdict == "invalid"
    assert judged(files, faults=(RowFault(0, "not told", unclear=True),)).verdict == "unknown"


def test_rows_of_another_writers_files_count_together() -> None:
    one = FileView("foreign", 18, 5, 5, rows={}, rows_in_file=18)
    whole = judged((one,), spans={0: ((10, 14), (16, 30))})
    assert (whole.verdict, whole.rows) == ("valid", 18)
    lacking = judged((one,), spans={0: ((10, 14), (17, 30))}, removed={0: ((16, 17),)}, removed_by=(5, 6))
    assert (lacking.verdict, lacking.removed, lacking.missing) == ("valid", ((16, 17),), ())
    assert "offsets 16 were removed by external snapshot 5, 6" in str(lacking.why)
    lost = judged((one,), spans={0: ((10, 14), (17, 30))})
    assert (lost.verdict, lost.missing) == ("invalid", ((16, 17),))


def stretches(*given: tuple[int, int, int, int]) -> FileRows:
    return FileRows("x", stretches={0: [Stretch(*one) for one in given]})


def test_ingest_times_between_files() -> None:
    first, later, earlier = stretches((0, 10, 5, 9)), stretches((10, 20, 9, 12)), stretches((10, 20, 8, 12))
    assert between_files([("a", first), ("b", later)], ExternalRows(), [0]) == []
    (fault,) = between_files([("b", earlier), ("a", first)], ExternalRows(), [0])
    assert "b: the ingest time goes back at offset 10" in fault.why
    assert fault.why.endswith("at offset 9 in a")
    assert between_files([("a", first), ("b", earlier)], ExternalRows(), [1]) == [], (
        "partition 0 was not requested"
    )


def test_an_overlap_says_nothing_of_times() -> None:
    assert (
        between_files([("a", stretches((0, 10, 5, 9))), ("b", stretches((5, 15, 1, 2)))], ExternalRows(), [0])
        == []
    )


def test_ingest_times_inside_another_writers_files() -> None:
    (fault,) = between_files([], ExternalRows(backwards={0: (3, 1, 2)}), [0])
    assert fault.partition == 0
    assert "goes back at offset 3" in fault.why


def test_stretches_of_rows_in_any_cut() -> None:
    offsets = np.array([0, 1, 2, 5, 6, 6, 7, 3], np.int64)
    for cut in range(len(offsets) + 1):
        found: dict[int, list[Stretch]] = {}
        for part in (offsets[:cut], offsets[cut:]):
            add_stretches(found, np.zeros(len(part), np.int64), part, part * 10)
        assert found[0] == [
            Stretch(0, 3, 0, 20),
            Stretch(5, 7, 50, 60),
            Stretch(6, 8, 60, 70),
            Stretch(3, 4, 30, 30),
        ]
