"""Reads every row of a topic's files for the deep audit, and compares rows of other writers with archives.

Archives are read one by one: first seal and footer, then all rows with page checksums. The records are
rebuilt by the function that `consume` uses. Files of other writers are read together: first their
coordinates, then every column, row by row against the archive rows at the same offsets (decision 0067). A
file that cannot be read now is `unknown`; only proven damage is `invalid`. The driver holds runs of offsets,
never rows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq

from archiver.ledger.views import TopicLedger
from archiver.objects import paths
from archiver.objects.path_normalization import key_of
from archiver.objects.store import ObjectStore
from archiver.runtime.errors import ArchiverError, NotFound, RetryLater, passing
from archiver.runtime.ids import TopicId
from archiver.runtime.text import counted
from archiver.schema.evolution.state import TopicSchema
from archiver.stream.archives import FoundArchive, FoundFooter, check_footer, list_archives
from archiver.stream.seal import check_seal
from intake.log.backlog import Backlog, windows
from intake.parquet_footer import read_unverified_metadata
from intake.parquet_pages import checked_batches
from reconcile.audit.rows import (
    Compared,
    Coordinates,
    ExternalRows,
    FileRows,
    IntakeRange,
    RowFile,
    RowReader,
    Stretch,
)
from reconcile.snapshot.offset_coverage import Range, intersect, merge, shown, subtract, total
from reconcile.snapshot.topic_views import FileView, RewrittenRows, RowFault, TableState, TopicView

# --- Rows of other writers' files against the archives
RANGES_MAX = 64
"""Most ranges that select rows of a file. Beyond that, the span from the first to the last range is read."""

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
            # Archives below the start may be deleted, so rows there cannot be compared.
            ((0, starts[partition]),) if starts[partition] else (),
        )
        for partition, stretches in found.stretches.items()
        if partition in starts
    }
    return {partition: kept for partition, kept in sorted(ranges.items()) if kept}


def needed(rows: Mapping[int, Sequence[Range]], partition: int, base: int, end: int) -> bool:
    """Whether an archive of [base, end) has offsets of rows to compare."""
    ranges = rows.get(partition, ())
    # The first range that ends above `base`; the ranges are merged and ascending.
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
    # Without a recorded schema no columns can be compared.
    if not versions or not references:
        return _not_compared(rows, lacking, files)
    # Files of one snapshot and certainty share a number: results grow with these, not with files.
    origins: list[tuple[int, bool]] = sorted(
        {(view.snapshot_id, _is_certain(view, table)) for view, _ in files}
    )
    numbered = [
        replace(
            file, origin=origins.index((view.snapshot_id, _is_certain(view, table))), extent=_extent(view)
        )
        for view, file in files
    ]
    # First all columns: a row with `__raw__` gives the same record for any content of its other columns.
    first = reader.comparison(numbered, references, versions, records=False)
    if first.trouble is not None:
        return {
            partition: (RewrittenRows(ranges, 0, f"they could not be compared: {first.trouble}"),)
            for partition, ranges in rows.items()
        }
    altered: Mapping[tuple[int, int], Sequence[Range]] = first.altered
    decoded: Mapping[tuple[int, int], Sequence[Range]] = {}
    # With one schema version, rows that differ in columns cannot come from another decoding.
    if altered and len(versions) > 1:
        altered, decoded = _by_records(reader, numbered, references, versions, first)
    found: dict[int, list[RewrittenRows]] = {}
    for places, why in ((altered, ""), (decoded, _DECODED)):
        for (origin, partition), runs in sorted(places.items()):
            snapshot_id, certain = origins[origin]
            # Rows outside of `rows` may share a file; they are not in the scope.
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
    """The altered rows, and rows that were only decoded by another schema version."""
    # A replay may have rewritten an archive with more columns, after another writer copied its rows.
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
        # Not comparable by record, so none of the rows counts as altered.
        return {}, {place: merge(runs) for place, runs in first.altered.items()}
    altered = {
        # Altered only if both comparisons differ.
        place: intersect(merge(runs), merge(again.altered.get(place, ())))
        for place, runs in first.altered.items()
    }
    return altered, {place: subtract(merge(runs), altered[place]) for place, runs in first.altered.items()}


def _not_compared(
    rows: Rows, lacking: Lacking, files: Sequence[tuple[FileView, RowFile]]
) -> dict[int, tuple[RewrittenRows, ...]]:
    """The results if there is nothing to compare with."""
    ids = {view.snapshot_id for view, _ in files}
    # 0: several snapshots added the files.
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
    # Unread delete files may hide any row.
    if table.has_deletes:
        return False
    unread = (one for one in table.hidden if not one.readable)
    # Equality deletes apply to files of lower sequence numbers, position deletes also to those of their own.
    return not any(view.sequence_number < one.sequence_number + (0 if one.equality else 1) for one in unread)


def _extent(view: FileView) -> tuple[int, int, int, int] | None:
    bounds = (view.partition_min, view.partition_max, view.offset_min, view.offset_max)
    return None if None in bounds else bounds  # type: ignore[return-value]


def _few(ranges: Sequence[Range]) -> tuple[Range, ...]:
    return tuple(ranges) if len(ranges) <= RANGES_MAX else ((ranges[0][0], ranges[-1][1]),)


# --- What the rows of files prove
_START = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Sealed:
    """The contents of an archive's sealed footer."""

    footer: FoundFooter
    rows: int


def proven(file: FileView, sealed: Sealed, found: FileRows, intake_digest: bytes | None) -> FileView:
    """The view of an archive whose rows were all read."""
    key = file.key
    assert key is not None, "only archives of ours are read one by one"
    faults = [*_order_faults(file, found)]
    expected = subtract(merge([(key.base, key.end)]), merge(sealed.footer.gaps))
    ranges = {
        partition: [(one.low, one.high) for one in stretches]
        for partition, stretches in found.stretches.items()
    }
    # Hidden rows are in the file too. Whether they are in the table is judged later.
    held = merge([*ranges.get(key.partition, ()), *found.removed.get(key.partition, ())])
    if found.rows != sealed.rows:
        faults.append(
            RowFault(
                key.partition,
                f"{file.path} gave {counted(found.rows, 'row')}, its footer says {sealed.rows:,}",
            )
        )
    if held != expected:
        lacking, more = subtract(expected, held), subtract(held, expected)
        texts = [f"lacks offsets {shown(lacking)}"] if lacking else []
        texts += [f"has additional offsets {shown(more)}"] if more else []
        faults.append(RowFault(key.partition, f"{file.path} {' and '.join(texts)}, by its name and footer"))
    # With other offsets the digest cannot match; one reason per fault.
    elif found.rows == total(expected):
        faults += _digest_faults(file, sealed, found, intake_digest)
    part = file.part
    if part is not None:
        ranges = {
            partition: [piece for one in runs for piece in intersect([one], [part])]
            for partition, runs in ranges.items()
        }
        rows = sum(high - low for runs in ranges.values() for low, high in runs)
        file = replace(file, record_count=rows)
    return replace(
        file,
        gaps=sealed.footer.gaps,
        rows={partition: tuple(runs) for partition, runs in ranges.items() if runs},
        removed={partition: tuple(runs) for partition, runs in found.removed.items()},
        rows_in_file=None if part is not None else found.rows,
        faults=(*file.faults, *faults),
    )


def _order_faults(file: FileView, found: FileRows) -> Iterable[RowFault]:
    if found.disorder is not None:
        yield RowFault(
            None, f"{file.path}: offset {found.disorder[0]} comes after offset {found.disorder[1]}"
        )
    if found.backwards is not None:
        yield RowFault(None, f"{file.path}: {_back(*found.backwards)}")
    if found.misplaced is not None:
        yield RowFault(
            None,
            f"{file.path}: the ingest time of offset {found.misplaced} does not match the file's path and "
            "partition",
        )
    if found.trouble is not None:
        yield RowFault(None, f"{file.path}: {found.trouble}")


def _digest_faults(
    file: FileView, sealed: Sealed, found: FileRows, intake_digest: bytes | None
) -> Iterable[RowFault]:
    assert file.key is not None
    record = f"some record of offsets {file.key.base} to {file.key.end - 1}"
    # Both are reported already; another order has another digest.
    if found.digest is None or found.disorder is not None:
        return
    # The footer's digest is from before the columns existed, so it also checks the decoding.
    if found.digest != sealed.footer.records_digest:
        yield RowFault(
            None,
            f"{file.path}: the digest of its records is {found.digest.hex()}, its footer says "
            f"{sealed.footer.records_digest.hex()}: {record} was altered; restore the object",
        )
    if intake_digest is not None and found.digest != intake_digest:
        yield RowFault(
            None,
            f"{file.path}: the digest of its records is {found.digest.hex()}, that of the same offsets "
            f"in intake is {intake_digest.hex()}: {record} differs from what was sent",
        )


def between_files(
    own: Iterable[tuple[str, FileRows]], external: ExternalRows, partitions: Sequence[int]
) -> list[RowFault]:
    """Ingest times that decrease from one file to the next, or in files of other writers; the first per
    partition.
    """
    places: dict[int, list[tuple[Stretch, str]]] = {}
    for path, found in own:
        for partition, stretches in found.stretches.items():
            places.setdefault(partition, []).extend((one, path) for one in stretches)
    for partition, stretches in external.stretches.items():
        places.setdefault(partition, []).extend((one, "a file of another writer") for one in stretches)
    faults = [
        RowFault(partition, f"files of another writer: {_back(*back)}")
        for partition, back in external.backwards.items()
        if partition in partitions
    ]
    for partition in sorted(set(places) & set(partitions)):
        back = _first_back(places[partition])
        faults += [] if back is None else [RowFault(partition, back)]
    return faults


def _first_back(places: list[tuple[Stretch, str]]) -> str | None:
    """The first decrease between two files."""
    before: tuple[Stretch, str] | None = None
    for one, path in sorted(places, key=lambda place: (place[0].low, place[0].high)):
        if (
            # Overlaps are skipped: duplicate offsets are reported elsewhere, and either row may be wrong.
            before is not None
            and path != before[1]
            and one.low >= before[0].high
            and one.low_us < before[0].high_us
        ):
            return (
                f"{path}: {_back(one.low, one.low_us, before[0].high_us)} at offset {before[0].high - 1} "
                f"in {before[1]}"
            )
        if before is None or one.high > before[0].high:
            before = (one, path)
    return None


def _back(offset: int, time_us: int, before_us: int) -> str:
    return f"the ingest time goes back at offset {offset}: {_moment(time_us)} after {_moment(before_us)}"


def _moment(time_us: int) -> str:
    try:
        return (
            (_START + timedelta(microseconds=time_us))
            .isoformat(timespec="microseconds")
            .replace("+00:00", "Z")
        )
    # A damaged time may be beyond the year 9999.
    except OverflowError:
        return f"{time_us} µs"


# --- Reading
FOOTERS_AT_A_TIME = 8
REREADS_MAX = 20
"""Most incomplete files that are read again for the reason; the others are reported as incomplete."""

_REREAD_ROWS = 16_384
"""Rows per batch when only readability matters."""


@dataclass(slots=True)
class _Work:
    """One archive."""

    view: FileView
    key: str
    file: RowFile
    sealed: Sealed
    rows: FileRows | None = None
    intake: bytes | None = None


@dataclass(slots=True)
class _Read:
    """The data read for one topic."""

    works: list[_Work] = field(default_factory=list)
    others: list[FileView] = field(default_factory=list)
    """Files reported without their rows."""
    external: list[tuple[FileView, RowFile]] = field(default_factory=list)
    found: ExternalRows = field(default_factory=ExternalRows)


class RowProof:
    """Reads the rows of one topic at a time."""

    def __init__(
        self, objects: ObjectStore, cluster_id: str, reader: RowReader, progress: Callable[[str], None]
    ) -> None:
        self._objects = objects
        self._cluster_id = cluster_id
        self._reader = reader
        self._progress = progress

    def proven(self, view: TopicView, ledger: TopicLedger, intake: Backlog) -> TopicView:
        """The view with the proof of its files' rows. Never raises an `ArchiverError`: the view has what is
        unreadable.
        """
        view = replace(view, by_rows=True)
        table = view.table
        if table is None or view.topic_id is None or view.unreadable is not None:
            return view
        try:
            return replace(view, table=self._table(view, view.topic_id, table, ledger, intake))
        except ArchiverError as error:
            return replace(view, unreadable=f"the rows could not be read: {error}")

    def _table(
        self, view: TopicView, topic_id: TopicId, table: TableState, ledger: TopicLedger, intake: Backlog
    ) -> TableState:
        numbers = [place.partition for place in view.partitions]
        read = _Read()
        hidden = self._hidden(table)
        self._sort(
            # None: every partition is in the scope, so archives of unknown partitions are read too.
            table,
            numbers if len(numbers) < (view.count or 0) else None,
            hidden,
            read,
            _coordinates(ledger),
        )
        rows = sum(work.sealed.rows for work in read.works)
        self._progress(
            f"{view.topic}: reading {counted(rows, 'row')} of {counted(len(read.works), 'archive')}"
        )
        self._read_archives(ledger, read)
        self._read_intake(topic_id, read.works, intake)
        if read.external:
            self._progress(f"{view.topic}: reading {counted(len(read.external), 'file')} of other writers")
            read.found = self._reader.external([file for _, file in read.external])
        rewritten = self._compared(topic_id, view, table, ledger, intake, read, numbers)
        own = [(work.view.path, work.rows) for work in read.works if work.rows is not None]
        short = [work.key for work in read.works if work.rows is None or work.rows.rows != work.sealed.rows]
        # A second read may take as long as the first, so their number is limited.
        doubted = set(short[:REREADS_MAX])
        files = [
            *read.others,
            *(self._file_view(work, reread=work.key in doubted) for work in read.works),
            *(_external_view(one, file, read.found) for one, file in read.external),
        ]
        unread = [one for one in table.hidden if not one.readable]
        return replace(
            table,
            files=tuple(files),
            has_deletes=table.has_deletes or bool(unread),
            spans={
                partition: tuple((one.low, one.high) for one in stretches)
                for partition, stretches in read.found.stretches.items()
            },
            removed={partition: tuple(runs) for partition, runs in read.found.removed.items()},
            removed_by=tuple(sorted({one.snapshot_id for one in table.hidden if one.readable})),
            faults=tuple(between_files(own, read.found, numbers)),
            rewritten=rewritten,
        )

    def _hidden(self, table: TableState) -> dict[str, tuple[Range, ...]]:
        """Row positions that delete files hide, by the data file's key."""
        numbers = {key_of(self._objects, one.path) or one.path: one.sequence_number for one in table.files}
        files = [
            RowFile(one.path, one.size, origin=one.sequence_number) for one in table.hidden if one.readable
        ]
        hidden: dict[str, tuple[Range, ...]] = {}
        for (path, sequence_number), runs in self._reader.positions(files).items():
            key = key_of(self._objects, path) or path
            # A delete file hides no rows of a newer data file.
            if numbers.get(key, 0) <= sequence_number:
                hidden[key] = merge([*hidden.get(key, ()), *runs])
        return hidden

    def _sort(
        self,
        table: TableState,
        numbers: Sequence[int] | None,
        hidden: dict[str, tuple[Range, ...]],
        read: _Read,
        coordinates: Coordinates | None,
    ) -> None:
        """Select the files and how they are read; reads seals and footers."""
        mine: list[tuple[FileView, str]] = []
        for view in table.files:
            # Without a table, the path of a view is an object key.
            key = view.path if view.part is not None else key_of(self._objects, view.path)
            if key is None or view.object_size is None or view.unread is not None:
                read.others.append(view)
            elif view.key is None:
                # Read by its object key, so that the spelling of its path does not matter.
                one = RowFile(
                    self._objects.uri(key),
                    view.object_size,
                    hidden=hidden.get(key, ()),
                    coordinates=coordinates,
                )
                read.external.append((view, one))
            elif numbers is None or view.key.partition in numbers:
                mine.append((view, key))
            else:
                read.others.append(view)
        # Each footer needs several requests to the store, so several files are read at a time.
        with ThreadPoolExecutor(FOOTERS_AT_A_TIME, thread_name_prefix="audit-footer") as pool:
            for found in pool.map(lambda pair: self._footer(pair[0], pair[1], hidden.get(pair[1], ())), mine):
                read.works.append(found) if isinstance(found, _Work) else read.others.append(found)

    def _footer(self, view: FileView, key: str, hidden: tuple[Range, ...]) -> _Work | FileView:
        """The archive to read, or its view with a fault if its footer is not trustworthy."""
        parsed = view.key
        assert parsed is not None, "only archives of ours have such a footer"
        found = FoundArchive.of(key, view.object_size or 0, parsed)
        try:
            with self._objects.open_input(key) as source:
                check_seal(source, key)
                source.seek(0)
                metadata = pq.read_metadata(source)
            footer = check_footer(found, metadata, self._cluster_id)
        except (ArchiverError, pa.ArrowException, OSError, ValueError) as error:
            # The file may be gone or the store unreachable, which says nothing about its bytes.
            if isinstance(error, NotFound | RetryLater | OSError | MemoryError):
                return _with_fault(
                    view,
                    RowFault(
                        parsed.partition, f"{key} could not be read: {error}; audit again", unclear=True
                    ),
                )
            return _with_fault(view, RowFault(parsed.partition, str(error)))
        groups = range(metadata.num_row_groups)
        memory = sum(metadata.row_group(number).total_byte_size for number in groups)
        file = RowFile(
            self._objects.uri(key),
            found.size,
            parsed,
            metadata.num_rows,
            memory // max(1, metadata.num_rows),
            footer.schema_version,
            footer.digest_version,
            hidden,
        )
        return _Work(view, key, file, Sealed(footer, metadata.num_rows))

    def _read_archives(self, ledger: TopicLedger, read: _Read) -> None:
        """Read the rows of archives, one schema version at a time: their columns differ."""
        by_version: dict[int, list[_Work]] = {}
        for work in read.works:
            by_version.setdefault(work.file.schema_version, []).append(work)
        for version, works in sorted(by_version.items()):
            entry = ledger.schemas.get(version)
            # The ledger may be an older copy; without the schema the columns have no meaning.
            if entry is None:
                fault = RowFault(
                    None,
                    f"the ledger has no schema version {version}, so archives with its columns cannot "
                    "be read",
                    unclear=True,
                )
                read.others += [_with_fault(work.view, fault) for work in works]
                read.works = [work for work in read.works if work.file.schema_version != version]
                continue
            ordered = sorted(
                works,
                key=lambda work: (work.file.key.partition, work.file.key.base) if work.file.key else (0, 0),
            )
            found = {
                one.uri: one
                for one in self._reader.archives(
                    [work.file for work in ordered], TopicSchema.from_entry(entry)
                )
            }
            # A missing result means unread rows, except for a file without rows.
            for work in works:
                work.rows = found.get(
                    work.file.uri, FileRows(work.file.uri) if not work.sealed.rows else None
                )

    def _read_intake(self, topic_id: TopicId, works: Sequence[_Work], intake: Backlog) -> None:
        """Digests of the same offsets in intake, for archives whose intake files all exist."""
        there = {info.key: info.size for info in self._objects.list(paths.INTAKE_PREFIX)}
        ranges = [
            one
            for work in works
            if work.rows is not None
            for one in self._range(topic_id, work, intake, there)
        ]
        digests = self._reader.intake_digests(ranges) if ranges else {}
        for work in works:
            work.intake = digests.get(work.file.uri)

    def _range(
        self, topic_id: TopicId, work: _Work, intake: Backlog, there: dict[str, int]
    ) -> Iterator[IntakeRange]:
        key, version = work.view.key, work.file.digest_version
        assert key is not None, "an archive of ours"
        assert version is not None, "its footer was read"
        try:
            found = list(windows(intake, (topic_id, key.partition), key.base, key.end))
        except ArchiverError:
            # The history file was deleted with the intake files.
            return
        segments = tuple(dict.fromkeys(segment for window in found for segment in window.segments))
        # A digest of a part would prove nothing, so all intake files of the range must exist.
        if segments and all(there.get(segment.file.key) == segment.file.size for segment in segments):
            yield IntakeRange(
                work.file.uri,
                key.base,
                key.end,
                segments,
                merge(gap for window in found for gap in window.gaps),
                version,
            )

    def _compared(
        self,
        topic_id: TopicId,
        view: TopicView,
        table: TableState,
        ledger: TopicLedger,
        intake: Backlog,
        read: _Read,
        numbers: Sequence[int],
    ) -> dict[int, tuple[RewrittenRows, ...]]:
        """The comparison result of rows in other writers' files, by partition. Never raises an
        `ArchiverError`.
        """
        starts = {place.partition: place.start for place in view.partitions}
        rows = comparable(read.found, {partition: starts.get(partition, 0) for partition in numbers})
        # Unreadable coordinates are reported for the files.
        if not rows or read.found.trouble is not None:
            return {}
        try:
            references, lacking = self._references(topic_id, ledger, intake, read, rows)
            self._progress(
                f"{view.topic}: comparing {counted(len(read.external), 'file')} of another writer with "
                f"{counted(len(references), 'archive')}"
            )
            versions = [TopicSchema.from_entry(entry) for _, entry in sorted(ledger.schemas.items())]
            return compared(self._reader, table, read.external, references, rows, versions, lacking)
        except ArchiverError as error:
            why = f"they could not be compared with the archives: {error}"
            return {partition: (RewrittenRows(ranges, 0, why),) for partition, ranges in rows.items()}

    def _references(
        self,
        topic_id: TopicId,
        ledger: TopicLedger,
        intake: Backlog,
        read: _Read,
        rows: Mapping[int, Sequence[Range]],
    ) -> tuple[list[RowFile], dict[int, list[tuple[Range, str]]]]:
        """The archives for the comparison, each proved by its digest first, and the ranges of unproved ones
        with the reason.
        """
        known = {work.key: work for work in read.works}
        seen = {
            *known,
            *(key for one in read.others if one.key is not None and (key := key_of(self._objects, one.path))),
        }
        others = _Read()
        # Archives count even if the table no longer references them: their records follow from the log.
        listed = [
            found
            for found in list_archives(self._objects, topic_id)
            if needed(rows, found.partition, found.base, found.end)
        ]
        for found in listed:
            if found.key not in seen:
                parsed = paths.parse_archive_key(found.key)
                one = self._footer(
                    FileView(self._objects.uri(found.key), 0, found.size, found.size, parsed), found.key, ()
                )
                others.works.append(one) if isinstance(one, _Work) else others.others.append(one)
        self._read_archives(ledger, others)
        self._read_intake(topic_id, others.works, intake)
        views = [self._file_view(work, reread=False) for work in (*read.works, *others.works)]
        # Against a damaged archive, intact rows of other writers would count as altered.
        sound = {view.path for view in views if not view.faults}
        files = [work.file for work in (*read.works, *others.works) if work.view.path in sound]
        lacking: dict[int, list[tuple[Range, str]]] = {}
        for view in (*views, *read.others, *others.others):
            if view.key is not None and view.faults:
                lacking.setdefault(view.key.partition, []).append(
                    ((view.key.base, view.key.end), view.faults[0].why)
                )
        return reference_files(files, rows), lacking

    def _file_view(self, work: _Work, *, reread: bool) -> FileView:
        """The view of an archive for the judge."""
        rows = work.rows
        if rows is not None and rows.rows == work.sealed.rows:
            return proven(work.view, work.sealed, rows, work.intake)
        got = 0 if rows is None else rows.rows
        why = (
            f"{got} of its {counted(work.sealed.rows, 'row')} could be read"
            if rows is None or rows.trouble is None
            else rows.trouble
        )
        fault = self._reread(work, why) if reread else RowFault(None, f"{work.key}: {why}", unclear=True)
        view = _with_fault(work.view, fault)
        # Unread rows prove nothing.
        return view if rows is None or not got or fault.unclear else proven(view, work.sealed, rows, None)

    def _reread(self, work: _Work, why: str) -> RowFault:
        """Why a file was read incompletely: deleted, damaged, or unknown. The driver reads it again."""
        partition = None if work.view.key is None else work.view.key.partition
        if self._objects.info(work.key) is None:
            return RowFault(partition, f"{work.key} disappeared while it was read; audit again", unclear=True)
        try:
            with self._objects.open_input(work.key) as source:
                # Perhaps altered since its seal was checked.
                metadata = read_unverified_metadata(source)
                file = pq.ParquetFile(source, metadata=metadata, page_checksum_verification=True)
                for _ in checked_batches(source, file, _REREAD_ROWS, range(file.num_row_groups)):
                    pass
        except (pa.ArrowException, OSError, ValueError, ArchiverError) as error:
            # A temporary error on both reads is still no proof of damage.
            if isinstance(error, RetryLater | NotFound) or passing(error, work.key) is not None:
                return RowFault(
                    partition, f"{work.key} could not be read ({error}; {why}); audit again", unclear=True
                )
            return RowFault(
                partition, f"{work.key} cannot be read ({error}; {why}): it was altered, restore it"
            )
        return RowFault(partition, f"{work.key}: {why}, although a second read succeeded", unclear=True)


def _coordinates(ledger: TopicLedger) -> Coordinates | None:
    """The columns of the topic's coordinates in the newest recorded schema; None without a schema."""
    if not ledger.schemas:
        return None
    schema = TopicSchema.from_entry(ledger.schemas[max(ledger.schemas)]).schema()
    kafka = next(one for one in schema["fields"] if one["name"] == "kafka")
    inside = {one["name"]: one["id"] for one in kafka["type"]["fields"]}
    return Coordinates(kafka["id"], inside["partition"], inside["offset"], inside["ingest_timestamp"])


def _with_fault(view: FileView, fault: RowFault) -> FileView:
    return replace(view, faults=(*view.faults, fault))


def _external_view(view: FileView, file: RowFile, found: ExternalRows) -> FileView:
    """The view of another writer's file for the judge, with its row count; the table's spans have its
    offsets.
    """
    if found.trouble is not None:
        # The bounds come from its writer, so it may hold rows of any partition.
        return replace(view, unread=found.trouble, partition_min=None, partition_max=None)
    return replace(view, rows={}, rows_in_file=found.counts.get(file.uri, 0))
