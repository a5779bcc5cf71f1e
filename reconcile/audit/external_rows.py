"""Compares rows in files of other writers with the archives, and interprets the result.

Another writer may move rows between files but must not change them. Each row is compared with the archive
rows at the same partition and offset. It is *altered* if an archive has the offset but no archive has an
equal row. If no archive is left, or none with a correct digest, the result is unknown, with the reason. The
rows to compare are given as runs of offsets, never as a list.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from archiver.schema.evolution.state import TopicSchema
from reconcile.audit.rows import Compared, ExternalRows, RowFile, RowReader
from reconcile.snapshot.offset_coverage import Range, intersect, merge, subtract
from reconcile.snapshot.topic_views import FileView, RewrittenRows, TableState

RANGES_MAX = 64
"""Most ranges that select rows of a file; beyond that, the whole span from the first to the last range is
read."""

NO_ARCHIVE = "no archive is left to compare them with"
_HIDDEN = "they differ from the archived rows, but unsupported delete files may hide them"
_DECODED = (
    "they give the archived records, but their columns differ from those of the archives: another schema "
    "version decoded them, or they were altered"
)

Rows = Mapping[int, tuple[Range, ...]]
"""Offsets by partition, merged."""
Lacking = Mapping[int, Sequence[tuple[Range, str]]]
"""By partition: ranges without a usable archive, and the reason."""


def comparable(found: ExternalRows, starts: Mapping[int, int]) -> Rows:
    """The offsets of the rows to compare: in the partitions of `starts`, from the start on."""
    ranges = {
        partition: subtract(
            merge((one.low, one.high) for one in stretches),
            ((0, starts[partition]),) if starts[partition] else (),
        )
        for partition, stretches in found.stretches.items()
        if partition in starts
    }
    return {partition: kept for partition, kept in sorted(ranges.items()) if kept}


def needed(rows: Mapping[int, Sequence[Range]], partition: int, base: int, end: int) -> bool:
    """Whether an archive of [base, end) has offsets of rows to compare."""
    ranges = rows.get(partition, ())
    place = bisect_right(ranges, base, key=lambda one: one[1])
    return place < len(ranges) and ranges[place][0] < end


def reference_files(files: Iterable[RowFile], rows: Mapping[int, Sequence[Range]]) -> list[RowFile]:
    """The archives with such offsets, limited to them."""
    found: list[RowFile] = []
    for file in files:
        key = file.key
        if key is not None and needed(rows, key.partition, key.base, key.end):
            found.append(replace(file, offsets=_few(intersect(rows[key.partition], [(key.base, key.end)]))))
    return found


def compared(
    reader: RowReader,
    table: TableState,
    files: Sequence[tuple[FileView, RowFile]],
    references: Sequence[RowFile],
    rows: Rows,
    versions: Sequence[TopicSchema],
    lacking: Lacking,
) -> dict[int, tuple[RewrittenRows, ...]]:
    """The results for `rows`, by partition; none for rows equal to the archived ones. Raises like the
    reader.
    """
    if not versions or not references:
        return _not_compared(rows, lacking, files)
    origins: list[tuple[int, bool]] = sorted(
        {(view.snapshot_id, _is_certain(view, table)) for view, _ in files}
    )
    numbered = [
        replace(
            file, origin=origins.index((view.snapshot_id, _is_certain(view, table))), extent=_extent(view)
        )
        for view, file in files
    ]
    first = reader.comparison(numbered, references, versions, records=False)
    if first.trouble is not None:
        return {
            partition: (RewrittenRows(ranges, 0, f"they could not be compared: {first.trouble}"),)
            for partition, ranges in rows.items()
        }
    altered: Mapping[tuple[int, int], Sequence[Range]] = first.altered
    decoded: Mapping[tuple[int, int], Sequence[Range]] = {}
    if altered and len(versions) > 1:
        altered, decoded = _by_records(reader, numbered, references, versions, first)
    found: dict[int, list[RewrittenRows]] = {}
    for places, why in ((altered, ""), (decoded, _DECODED)):
        for (origin, partition), runs in sorted(places.items()):
            snapshot_id, certain = origins[origin]
            if ranges := intersect(rows.get(partition, ()), merge(runs)):
                found.setdefault(partition, []).append(
                    RewrittenRows(ranges, snapshot_id, why if certain else why or _HIDDEN)
                )
    for (origin, partition), runs in sorted(first.alone.items()):
        ranges = intersect(rows.get(partition, ()), merge(runs))
        found.setdefault(partition, []).extend(_alone(ranges, origins[origin][0], lacking.get(partition, ())))
    return {partition: tuple(rewritten) for partition, rewritten in found.items()}


def _by_records(
    reader: RowReader,
    files: Sequence[RowFile],
    references: Sequence[RowFile],
    versions: Sequence[TopicSchema],
    first: Compared,
) -> tuple[dict[tuple[int, int], tuple[Range, ...]], dict[tuple[int, int], tuple[Range, ...]]]:
    """The altered rows, and rows that were only decoded by another schema version: a replay may have
    rewritten an archive since.
    """
    odd = {
        partition: merge(run for (_, of), runs in first.altered.items() if of == partition for run in runs)
        for _, partition in first.altered
    }
    offsets = _few(merge(run for ranges in odd.values() for run in ranges))
    origins = {origin for origin, _ in first.altered}
    again = reader.comparison(
        [replace(file, offsets=offsets) for file in files if file.origin in origins],
        reference_files(references, odd),
        versions,
        records=True,
    )
    if again.trouble is not None:
        return {}, {place: merge(runs) for place, runs in first.altered.items()}
    altered = {
        place: intersect(merge(runs), merge(again.altered.get(place, ())))
        for place, runs in first.altered.items()
    }
    return altered, {place: subtract(merge(runs), altered[place]) for place, runs in first.altered.items()}


def _not_compared(
    rows: Rows, lacking: Lacking, files: Sequence[tuple[FileView, RowFile]]
) -> dict[int, tuple[RewrittenRows, ...]]:
    """The results if there is nothing to compare with."""
    ids = {view.snapshot_id for view, _ in files}
    snapshot_id = ids.pop() if len(ids) == 1 else 0
    return {
        partition: tuple(_alone(ranges, snapshot_id, lacking.get(partition, ())))
        for partition, ranges in rows.items()
    }


def _alone(
    ranges: Sequence[Range], snapshot_id: int, lacking: Sequence[tuple[Range, str]]
) -> list[RewrittenRows]:
    """Rows without a compared archive, by reason."""
    found: list[RewrittenRows] = []
    for held, why in lacking:
        if mine := intersect(ranges, [held]):
            found.append(RewrittenRows(mine, snapshot_id, why))
    left = subtract(ranges, merge(held for held, _ in lacking))
    return [*found, RewrittenRows(left, snapshot_id, NO_ARCHIVE)] if left else found


def _is_certain(view: FileView, table: TableState) -> bool:
    """Whether no unsupported delete file can hide rows of the file."""
    if table.has_deletes:
        return False
    unread = (one for one in table.hidden if not one.readable)
    return not any(view.sequence_number < one.sequence_number + (0 if one.equality else 1) for one in unread)


def _extent(view: FileView) -> tuple[int, int, int, int] | None:
    bounds = (view.partition_min, view.partition_max, view.offset_min, view.offset_max)
    return None if None in bounds else bounds  # type: ignore[return-value]


def _few(ranges: Sequence[Range]) -> tuple[Range, ...]:
    return tuple(ranges) if len(ranges) <= RANGES_MAX else ((ranges[0][0], ranges[-1][1]),)
