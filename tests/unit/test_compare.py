"""Which rows are compared with which archives, and what follows where delete files are in doubt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from archiver.objects.paths import ArchiveKey
from archiver.runtime.ids import TopicId
from archiver.schema.evolution.state import TopicSchema
from reconcile.audit.deep import (
    NO_ARCHIVE,
    RANGES_MAX,
    comparable,
    compared,
    needed,
    reference_files,
)
from reconcile.audit.rows import Compared, ExternalRows, RowFile, RowReader, Stretch
from reconcile.audit.rules import judge_topic
from reconcile.snapshot.topic_views import (
    FileView,
    HiddenRows,
    PartitionView,
    RewrittenRows,
    TableState,
    TopicView,
)
from tests.support.schema.orders import raw_schema

TOPIC = TopicId("a" * 32)
TABLE = TableState("shop.orders", 7, {0: 30})
THEIRS = FileView("theirs.parquet", 10, 100, 100, snapshot_id=41, sequence_number=5)


def archive(base: int, end: int) -> RowFile:
    return RowFile(f"{base}-{end}", 100, ArchiveKey(TOPIC, 0, "day", 20_000, base, end, 1))


class Found:
    """A reader that returns given comparisons."""

    def __init__(self, *results: Compared) -> None:
        self._results = list(results)
        self.asked: list[tuple[Sequence[RowFile], Sequence[RowFile], bool]] = []

    def comparison(
        self,
        files: Sequence[RowFile],
        archives: Sequence[RowFile],
        versions: Sequence[TopicSchema],
        *,
        records: bool,
    ) -> Compared:
        del versions
        self.asked.append((files, archives, records))
        return self._results.pop(0)


def concluded(
    *results: Compared,
    table: TableState = TABLE,
    versions: int = 1,
    lacking: dict[int, list[tuple[tuple[int, int], str]]] | None = None,
) -> dict[int, tuple[RewrittenRows, ...]]:
    reader = Found(*results)
    schemas = [raw_schema()] * versions
    files = [(THEIRS, RowFile("theirs.parquet", 100))]
    as_reader: RowReader = reader  # type: ignore[assignment]
    return compared(as_reader, table, files, [archive(0, 30)], {0: ((0, 30),)}, schemas, lacking or {})


def test_rows_below_the_start_and_of_other_partitions_are_left_out() -> None:
    found = ExternalRows(stretches={0: [Stretch(0, 5, 1, 1), Stretch(5, 20, 1, 1)], 1: [Stretch(0, 9, 1, 1)]})
    assert comparable(found, {0: 3}) == {0: ((3, 20),)}
    assert comparable(found, {0: 20}) == {}
    assert comparable(found, {0: 0, 1: 8}) == {0: ((0, 20),), 1: ((8, 9),)}


@pytest.mark.parametrize(
    ("base", "end", "expected"),
    [(0, 5, False), (0, 6, True), (9, 12, True), (10, 20, False), (29, 31, True), (31, 99, False)],
)
def test_only_archives_with_such_offsets_are_read(base: int, end: int, expected: bool) -> None:
    assert needed({0: ((5, 10), (20, 31))}, 0, base, end) is expected
    assert not needed({0: ((5, 10), (20, 31))}, 1, base, end)


def test_what_is_read_of_an_archive_is_bounded() -> None:
    many = tuple((number, number + 1) for number in range(0, 4 * RANGES_MAX, 2))
    (few,) = reference_files([archive(0, 3)], {0: many})
    assert few.offsets == ((0, 1), (2, 3))
    (whole,) = reference_files([archive(0, 4 * RANGES_MAX)], {0: many})
    assert whole.offsets == ((0, 4 * RANGES_MAX - 1),)


def test_equal_rows_are_not_mentioned() -> None:
    assert concluded(Compared()) == {}


def test_altered_rows_name_the_snapshot() -> None:
    assert concluded(Compared(altered={(0, 0): [(3, 5)]})) == {0: (RewrittenRows(((3, 5),), 41),)}


@pytest.mark.parametrize(
    ("equality", "sequence_number", "certain"),
    [
        (True, 5, True),
        (True, 6, False),
        (True, 4, True),
        (False, 4, True),
        (False, 5, False),
        (False, 6, False),
    ],
)
def test_delete_files_that_are_not_understood_hide_rows_by_their_sequence_number(
    equality: bool, sequence_number: int, certain: bool
) -> None:
    """Equality deletes apply to older data files only, so an update by equality deletes is found. Other
    deletes apply to those of their own snapshot."""
    hidden = HiddenRows("deletes", 1, False, 40, sequence_number, equality)
    ((row,),) = concluded(
        Compared(altered={(0, 0): [(3, 5)]}), table=replace(TABLE, hidden=(hidden,))
    ).values()
    assert (row.why == "") is certain
    ((read,),) = concluded(
        Compared(altered={(0, 0): [(3, 5)]}), table=replace(TABLE, hidden=(replace(hidden, readable=True),))
    ).values()
    assert read.why == "", "a delete file that was read hides what it hides"


def test_delete_files_that_are_not_listed_may_hide_anything() -> None:
    ((row,),) = concluded(
        Compared(altered={(0, 0): [(3, 5)]}), table=replace(TABLE, has_deletes=True)
    ).values()
    assert "may hide them" in row.why


def test_rows_without_an_archive_have_the_reason_of_each_range() -> None:
    found = concluded(Compared(alone={(0, 0): [(0, 30)]}), lacking={0: [((10, 20), "archive x is damaged")]})
    assert found == {
        0: (
            RewrittenRows(((10, 20),), 41, "archive x is damaged"),
            RewrittenRows(((0, 10), (20, 30)), 41, NO_ARCHIVE),
        )
    }


def test_a_comparison_that_fails_is_a_reason() -> None:
    ((row,),) = concluded(Compared(trouble="no memory")).values()
    assert (row.ranges, row.why) == (((0, 30),), "they could not be compared: no memory")


def test_with_several_versions_rows_that_differ_are_compared_by_record() -> None:
    first, second = Compared(altered={(0, 0): [(3, 6)]}), Compared(altered={(0, 0): [(4, 5)]})
    altered, decoded = concluded(first, second, versions=2)[0]
    assert (altered.ranges, altered.why) == (((4, 5),), "")
    assert decoded.ranges == ((3, 4), (5, 6))
    assert "another schema version decoded them, or they were altered" in decoded.why
    ((unsure,),) = concluded(first, Compared(trouble="no memory"), versions=2).values()
    assert (unsure.ranges, bool(unsure.why)) == (((3, 6),), True)


# the verdict


def judged(
    *rows: RewrittenRows, gaps: tuple[tuple[int, int], ...] = ()
) -> tuple[str, str | None, tuple[tuple[int, int], ...]]:
    table = replace(TABLE, spans={0: ((0, 10), (12, 30) if gaps else (10, 30))}, rewritten={0: rows})
    place = PartitionView(0, 0, 30, 30, 30, gaps=gaps)
    (found,) = judge_topic(TopicView("orders", TOPIC, "iceberg", (place,), table, by_rows=True))
    return found.verdict, found.why, found.altered


def test_altered_is_invalid_and_not_compared_is_unknown() -> None:
    assert judged() == ("valid", None, ())
    verdict, why, altered = judged(RewrittenRows(((3, 5),), 41))
    assert (verdict, altered) == ("invalid", ((3, 5),))
    assert (
        why
        == "offsets 3 to 4 were altered by snapshot 41: the table's rows are not the ones that were archived"
    )
    assert judged(RewrittenRows(((3, 5),), 41, NO_ARCHIVE))[0] == "unknown"


def test_rows_where_none_should_be_need_no_archive() -> None:
    """Their presence is already an error, which another finding reports."""
    assert judged(RewrittenRows(((10, 12),), 41, NO_ARCHIVE), gaps=((10, 12),)) == ("valid", None, ())
