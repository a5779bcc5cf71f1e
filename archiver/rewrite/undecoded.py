"""Keys and values that could not be decoded: which files hold them, which records they are, and the list by
cause.

Reads `__err__`. A table's manifests say how many nulls a file has in `key.__err__` and `value.__err__`; a
file in which all are null is never opened. Of the others, row groups whose statistics say the same are
skipped, and only a few columns are read. Writes nothing, needs no lease, and holds at most a batch of a file.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from archiver.catalog.identity import load_table, target_of
from archiver.catalog.tables import LiveFile, Tables, TableView
from archiver.config.settings import TopicSettings
from archiver.ledger.archive_visibility import ArchiveVisibility
from archiver.ledger.fold import LedgerFold
from archiver.ledger.views import TopicLedger
from archiver.objects.path_normalization import key_of
from archiver.objects.paths import ArchiveKey, parse_archive_key
from archiver.objects.store import ObjectStore
from archiver.publish.scope import Scope, check_scope
from archiver.runtime.clock import Clock
from archiver.runtime.errors import (
    ArchiverError,
    Corrupted,
    NotFound,
    passing,
)
from archiver.runtime.exit_codes import FINE, UNKNOWN
from archiver.runtime.ids import TopicId
from archiver.runtime.redaction import excerpt
from archiver.schema.protobuf.error_causes import Cause, cause_counts, cause_of
from archiver.schema.protobuf.tree import ERR, RAW
from archiver.stream.archives import find_archives
from archiver.stream.seal import check_seal
from intake.log.backlog import Backlog
from intake.log.fold import TopicState
from intake.parquet_footer import read_unverified_metadata
from intake.parquet_pages import checked_batches

Side = Literal["key", "value"]
SIDES: tuple[Side, ...] = ("key", "value")

BATCH_ROWS = 16_384
"""Rows of a file that are read together."""


@dataclass(frozen=True, slots=True)
class DoubtedFile:
    """A file that may hold keys or values that could not be decoded."""

    path: str
    """As the table names it; the object's key without a table."""
    key: str | None
    """None if it lies outside of the data folder."""
    size: int
    """Bytes, as the table says."""
    archive: ArchiveKey | None
    """The parsed key; None if another writer made the file."""
    spec_id: int = 0
    has_deletes: bool = False
    undecoded: int | None = field(default=None, compare=False)
    """Keys and values that could not be decoded, by the table's counts; None if it has none for the file."""

    @property
    def name(self) -> str:
        """For people."""
        return self.key or self.path


@dataclass(frozen=True, slots=True)
class UndecodedBatch:
    """Rows of which the key or the value could not be decoded, as columns of one length."""

    partitions: Sequence[int]
    offsets: Sequence[int]
    errors: dict[Side, pa.Array[Any]]
    """Texts; null where that side was decoded. A side without a schema is missing."""
    payloads: dict[Side, pa.Array[Any]]
    """The original bytes of undecoded sides (null for others); empty if not requested."""

    def __len__(self) -> int:
        return len(self.offsets)

    def entries(self) -> Iterator[tuple[int, int, Side, Cause, str]]:
        """(partition, offset, side, cause, text) of everything that could not be decoded."""
        texts: dict[Side, list[str | None]] = {
            side: column.to_pylist() for side, column in self.errors.items()
        }
        for row, (partition, offset) in enumerate(zip(self.partitions, self.offsets, strict=True)):
            for side, of_side in texts.items():
                why = of_side[row]
                if why is not None:
                    yield partition, offset, side, cause_of(why), why


class Search:
    """Bounds of one search of archives, and what it left out. Not for several threads."""

    def __init__(self, files_max: int, seconds: float, clock: Clock) -> None:
        self._files = files_max
        self._clock = clock
        self._deadline_s = clock.monotonic_s() + seconds
        self.files_left: dict[str, int | None] = {}
        """By topic, the files that were not read, or not to their end; None: at least one."""
        self.topics_left: list[str] = []
        """Topics that were not begun."""
        self.counted: dict[str, int] = {}
        """By topic, the undecoded keys and values in all files, by the table's counts."""

    @property
    def is_over(self) -> bool:
        """Whether the time is over."""
        return self._clock.monotonic_s() >= self._deadline_s

    def take(self) -> bool:
        """Whether another file may be read."""
        if self._files <= 0 or self.is_over:
            return False
        self._files -= 1
        return True


def error_fields(schema_json: str) -> dict[Side, int]:
    """The field ids of `key.__err__` and `value.__err__` in a table's schema; a side without a schema has
    none.
    """
    found: dict[Side, int] = {}
    columns = {item["name"]: item["type"] for item in json.loads(schema_json)["fields"]}
    for side in SIDES:
        kind = columns.get(side)
        # A side without a schema has `__raw__` alone.
        for item in kind.get("fields", []) if isinstance(kind, dict) else []:
            if item["name"] == ERR:
                found[side] = item["id"]
    return found


def undecoded_count(tables: Tables, view: TableView) -> int:
    """How many keys and values of a table have an error in place of their columns, by the manifests alone.
    Raises as `Tables.live_files`.

    Files without counts, which other writers may add, do not count.
    """
    fields = error_fields(view.schema_json)
    if not fields:
        return 0
    return sum(undecoded_by_side(tables.live_files(view, nulls_of=set(fields.values())), fields).values())


def undecoded_by_side(files: Iterable[LiveFile], fields: Mapping[Side, int]) -> dict[Side, int]:
    """Undecoded keys and values in files whose null counts have the `error_fields`."""
    found = dict.fromkeys(fields, 0)
    for file in files:
        nulls = dict(file.null_counts)
        for side, number in fields.items():
            # A record without an error has null there, so the others are the undecoded ones.
            found[side] += file.record_count - nulls[number] if number in nulls else 0
    return found


def topic_table(
    settings: TopicSettings,
    state: TopicState,
    ledger: TopicLedger,
    cluster_id: str,
    objects: ObjectStore,
    tables: Callable[[str], Tables],
) -> tuple[Tables, TableView | None]:
    """The catalog and the table of a topic of kind iceberg, for reading; None if there is no table. Raises as
    `load_table`.
    """
    catalog = tables(settings.archive.catalog or "")
    return catalog, load_table(
        catalog, target_of(settings, state.topic_id, state.partitions, cluster_id, objects), ledger.table_uuid
    )


def doubted_files(
    objects: ObjectStore, topic_id: TopicId, tables: Tables, view: TableView
) -> list[DoubtedFile]:
    """The files of a table that may hold undecoded keys or values, by the manifests alone: archives ordered
    by partition and offset, then files of other writers. Raises as `Tables.live_files`.
    """
    fields = set(error_fields(view.schema_json).values())
    doubted: list[DoubtedFile] = []
    # Without a schema on either side nothing is decoded, so nothing can fail.
    for file in tables.live_files(view, nulls_of=fields) if fields else ():
        nulls = dict(file.null_counts)
        # A file without counts, of another writer, may hold some and is kept.
        if all(nulls.get(number) == file.record_count for number in fields):
            continue
        key = key_of(objects, file.path)
        parsed = None if key is None else parse_archive_key(key)
        archive = parsed if parsed is not None and parsed.topic_id == topic_id else None
        counts = [file.record_count - nulls[number] for number in fields if number in nulls]
        undecoded = sum(counts) if len(counts) == len(fields) else None
        doubted.append(
            DoubtedFile(file.path, key, file.file_size, archive, file.spec_id, file.has_deletes, undecoded)
        )
    return sorted(doubted, key=_order)


def _order(file: DoubtedFile) -> tuple[bool, int, int, str]:
    archive = file.archive
    return (True, 0, 0, file.path) if archive is None else (False, archive.partition, archive.base, file.path)


def doubted_archives(
    objects: ObjectStore, topic_id: TopicId, partitions: int, ledger: TopicLedger
) -> Iterator[DoubtedFile]:
    """The archives, up to the watermarks, that a reader of a topic without a table would read: only their
    footers say more.
    """
    for partition in range(partitions):
        # Listed as a reader does, so that killed and replaced archives do not count.
        index = find_archives(objects, topic_id, partition, ArchiveVisibility.of(ledger, partition))
        at, end = ledger.start(partition), ledger.watermark(partition)
        while at < end:
            found = index.covering(at)
            if found is None:
                # No archive holds it, as in a range of gaps.
                at = min(end, index.next_base(at) or end)
                continue
            yield DoubtedFile(found.key, found.key, found.size, parse_archive_key(found.key))
            at = found.end


def undecoded_rows(
    objects: ObjectStore, file: DoubtedFile, *, payloads: bool = False
) -> Iterator[UndecodedBatch]:
    """The rows of a file that could not be decoded, in its order. Raises `Corrupted` if the file is gone or
    cannot be read.
    """
    if file.key is None:
        raise Corrupted(f"{file.path} lies outside of the data folder; it cannot be read")
    try:
        with objects.open_input(file.key) as source:
            # Files of other writers have no such checksum.
            metadata = None if file.archive is not None else read_unverified_metadata(source)
            if file.archive is not None:
                check_seal(source, file.key)
            source.seek(0)
            with pq.ParquetFile(source, metadata=metadata, page_checksum_verification=True) as parquet:
                yield from _rows(source, parquet, payloads=payloads, ours=file.archive is not None)
    # `KeyError`: another writer may have left out a column.
    except (NotFound, pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise passing(error, file.key) or Corrupted(
            f"{file.key} cannot be read ({error}); restore it"
        ) from error


def _rows(
    source: pa.NativeFile, parquet: pq.ParquetFile, *, payloads: bool, ours: bool
) -> Iterator[UndecodedBatch]:
    schema = parquet.schema_arrow
    sides = [
        side for side in SIDES if side in schema.names and schema.field(side).type.get_field_index(ERR) >= 0
    ]
    # By the statistics, before any column is read.
    groups = _row_groups(parquet.metadata, [f"{side}.{ERR}" for side in sides])
    if not groups:
        return
    columns = ["kafka.partition", "kafka.offset", *(f"{side}.{ERR}" for side in sides)]
    # The bytes are much larger than the rest, and a listing does not need them.
    columns += [f"{side}.{RAW}" for side in sides] if payloads else []
    batches = (
        checked_batches(source, parquet, BATCH_ROWS, groups, columns)
        if ours
        else parquet.iter_batches(batch_size=BATCH_ROWS, row_groups=groups, columns=columns)
    )
    for batch in batches:
        found: dict[Side, Any] = {side: pc.struct_field(batch.column(side), ERR) for side in sides}
        bad: Any = None
        for errors in found.values():
            # Either side may be the undecoded one.
            bad = errors.is_valid() if bad is None else pc.or_(bad, errors.is_valid())
        rows = batch.filter(bad)
        if rows.num_rows:
            yield UndecodedBatch(
                pc.struct_field(rows.column("kafka"), "partition").to_pylist(),
                pc.struct_field(rows.column("kafka"), "offset").to_pylist(),
                {side: errors.filter(bad) for side, errors in found.items()},
                {side: _payloads(rows, side) for side in sides} if payloads else {},
            )


def _payloads(rows: pa.RecordBatch, side: Side) -> Any:
    """The bytes of a side where it was not decoded, as plain binary."""
    raw: Any = pc.struct_field(rows.column(side), RAW)
    wrong: Any = pc.struct_field(rows.column(side), ERR)
    # `__raw__` also has the bytes of decoded rows that do not encode to the same bytes.
    return pc.if_else(wrong.is_valid(), raw.cast(pa.binary()), pa.scalar(None, pa.binary()))


def _row_groups(metadata: pq.FileMetaData, names: Sequence[str]) -> list[int]:
    """The row groups in which one of the columns is not all null, or has no null count."""
    columns = [place for place in range(metadata.num_columns) if metadata.schema.column(place).path in names]
    chosen: list[int] = []
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group)
        statistics: list[Any] = [rows.column(place).statistics for place in columns]
        # A row group that says nothing must be read.
        if any(one is None or not one.has_null_count or one.null_count < rows.num_rows for one in statistics):
            chosen.append(group)
    return chosen


# --- The list by cause
ERROR_CHARACTERS_MAX = 500
"""Of a reason; the file has all of it."""


@dataclass
class UndecodedReport:
    """The document of `archiver dlq list --output json`."""

    records: list[dict[str, object]] = field(default_factory=list)
    total: int = 0
    """Keys and values that could not be decoded, shown or not."""
    topics: list[dict[str, object]] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """What `archiver dlq list` exits with."""
        return UNKNOWN if any(topic["why"] for topic in self.topics) else FINE

    def to_json(self) -> dict[str, object]:
        """The document."""
        return {"records": self.records, "more": self.total - len(self.records), "topics": self.topics}


class UndecodedListing:
    """Lists what could not be decoded in the configured topics, and counts it by cause.

    Counts are complete even if only a part is shown, and no more records than requested are held. Records
    that are in no table yet are not listed: their archive comes with the next commit.
    """

    def __init__(
        self,
        objects: ObjectStore,
        cluster_id: str,
        tables: Callable[[str], Tables],
        topics: Sequence[TopicSettings],
    ) -> None:
        self._objects = objects
        self._cluster_id = cluster_id
        self._tables = tables
        self._topics = sorted(
            (topic for topic in topics if topic.archive.kind != "none"), key=lambda topic: topic.name
        )
        self._configured = topics

    def run(
        self,
        intake: Backlog,
        ledger: LedgerFold,
        scope: Scope | None,
        records_max: int,
        search: Search | None = None,
    ) -> UndecodedReport:
        """List at most `records_max` keys and values, and count all within the bounds of `search`.

        Raises `NotFound` for an unknown topic or partition in `scope`; a topic that cannot be read is named
        with the reason.
        """
        check_scope(scope, self._configured, intake.topics_by_name)
        report = UndecodedReport()
        for settings in self._topics:
            state = intake.topics_by_name.get(settings.name)
            if state is None or (scope is not None and settings.name != scope[0]):
                continue
            if search is not None and search.is_over:
                search.topics_left.append(settings.name)
                continue
            self._topic(
                settings,
                state,
                ledger.topic(state.topic_id),
                None if scope is None else scope[1],
                records_max,
                report,
                search,
            )
        return report

    def _topic(
        self,
        settings: TopicSettings,
        state: TopicState,
        ledger: TopicLedger,
        partitions: frozenset[int] | None,
        records_max: int,
        report: UndecodedReport,
        search: Search | None,
    ) -> None:
        counts: Counter[tuple[str, str]] = Counter()
        read = 0
        why: str | None = None
        try:
            files = self._files(settings, state, ledger)
            if search is not None and isinstance(files, list):
                search.counted[settings.name] = sum(file.undecoded or 0 for file in files)
            for place, file in enumerate(files):
                # A file of another writer may hold any partition; its records are filtered later.
                if (
                    file.archive is not None
                    and partitions is not None
                    and file.archive.partition not in partitions
                ):
                    continue
                # The others are not counted where that would list the archives of every partition.
                left = len(files) - place if isinstance(files, list) else None
                if search is not None and not search.take():
                    search.files_left[settings.name] = left
                    break
                before, is_cut = counts.total(), False
                try:
                    for record in self._records(file, partitions, counts):
                        report.total += 1
                        # Counting continues after the limit, because the totals are of everything.
                        if len(report.records) < records_max:
                            report.records.append({"topic": settings.name, **record})
                        elif is_cut := search is not None and search.is_over:
                            break
                except Corrupted as error:
                    # The first is enough: the audit reports every damaged file.
                    why = why or str(error)
                read += counts.total() > before
                if is_cut and search is not None:
                    search.files_left[settings.name] = left
                    break
        except ArchiverError as error:
            why = str(error)
        report.topics.append(
            {"topic": settings.name, "files": read, "decode_errors": cause_counts(counts), "why": why}
        )

    def _files(
        self, settings: TopicSettings, state: TopicState, ledger: TopicLedger
    ) -> list[DoubtedFile] | Iterator[DoubtedFile]:
        """A list where one step gives all of them."""
        if settings.archive.kind == "parquet":
            return doubted_archives(self._objects, state.topic_id, state.partitions, ledger)
        tables, view = topic_table(settings, state, ledger, self._cluster_id, self._objects, self._tables)
        return [] if view is None else doubted_files(self._objects, state.topic_id, tables, view)

    def _records(
        self, file: DoubtedFile, partitions: frozenset[int] | None, counts: Counter[tuple[str, str]]
    ) -> Iterator[Mapping[str, object]]:
        for batch in undecoded_rows(self._objects, file):
            for partition, offset, side, cause, error in batch.entries():
                if partitions is None or partition in partitions:
                    counts[side, cause] += 1
                    shown = {
                        "side": side,
                        "cause": cause,
                        "error": excerpt(error, ERROR_CHARACTERS_MAX),
                        "archive": file.name,
                    }
                    yield {"partition": partition, "offset": offset, **shown}
