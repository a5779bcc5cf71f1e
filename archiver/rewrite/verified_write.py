"""Archives made from other archives: several merged into one, or one decoded again, verified before they are
stored.

Guarantees: a stored archive gives back the records it was made from, byte for byte. The records of each old
archive, and those rebuilt from the finished file, are compared with the digests in the footers before
anything is stored. An object that exists under the key is never reused, because its writer is not known.
Merging copies columns as they are and decodes nothing. Decoding again stores nothing if a key or value that
was decoded before would not be. Holds a batch of an old archive and a row group of the new one. Old objects
are never changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from archiver.ledger.archives import ArchiveFile
from archiver.objects.paths import ArchiveKey
from archiver.objects.store import ObjectStore
from archiver.refine.archive_file import ArchiveWriter, Conflict, Footer, SpooledArchive, store_archive
from archiver.refine.plan_writer import TopicRows, data_file_of
from archiver.refine.task import RefineOptions, WrittenFile
from archiver.rewrite.replay_report import NO_SCHEMA
from archiver.rewrite.undecoded import SIDES, DoubtedFile, undecoded_rows
from archiver.runtime.errors import Corrupted
from archiver.schema.protobuf.error_causes import cause_of, count_errors
from archiver.schema.protobuf.tree import ERR
from archiver.stream.archives import FoundArchive, FoundFooter, read_footer
from archiver.stream.rebuild import Layout, Layouts, check_records, from_archive, whole_archive
from intake.log.state import merged
from intake.read.digest import RecordsDigest


@dataclass(frozen=True, slots=True)
class ArchiveLocation:
    """Key and offsets of the new archive."""

    archive: ArchiveKey
    gaps: tuple[tuple[int, int], ...]
    cluster_id: str

    @property
    def key(self) -> str:
        """Key of the object."""
        return self.archive.key


class Sums:
    """Sums over the records that were written."""

    def __init__(self, digest: RecordsDigest) -> None:
        """`digest`: an empty one, of the version that the new archive gets."""
        self.digest = digest
        self.raw_bytes = 0
        self.ingest_min_us: int | None = None
        self.ingest_max_us = 0

    def add(self, records: pa.RecordBatch) -> None:
        """Add a batch in `STREAM_SCHEMA`."""
        self.digest.update(records)
        headers: Any = records.column("headers")
        # The list gives structs, and those their two fields.
        names, values = headers.flatten().flatten()
        column: Any
        for column in (records.column("key"), records.column("value"), names, values):
            self.raw_bytes += pc.sum(pc.binary_length(column)).as_py() or 0
        if records.num_rows:
            times = records.column("ingest_timestamp").cast(pa.int64())
            first = times[0].as_py()
            # Ingest times never decrease, so the first and the last are the extremes.
            self.ingest_min_us = first if self.ingest_min_us is None else self.ingest_min_us
            self.ingest_max_us = times[-1].as_py()


def close_full(writer: ArchiveWriter, options: RefineOptions) -> None:
    """Close the current row group if it is large enough."""
    if writer.pending_rows >= options.row_group_rows or writer.pending_bytes >= options.row_group_bytes:
        writer.close_row_group()


def footer_of(place: ArchiveLocation, rows: TopicRows, digest: RecordsDigest) -> Footer:
    """The footer of the new archive."""
    return Footer(
        cluster_id=place.cluster_id,
        topic=rows.topic.name,
        topic_id=rows.topic.topic_id,
        partition=place.archive.partition,
        base=place.archive.base,
        end=place.archive.end,
        gaps=place.gaps,
        epoch=place.archive.epoch,
        schema=rows.topic.schema.version,
        records_digest=digest.digest(),
        digest_version=digest.version,
    )


def mismatch(place: ArchiveLocation, spooled: SpooledArchive, layouts: Layouts) -> str | None:
    """Why the records of the finished file are not those that its footer names; None if they are, byte for
    byte.
    """
    # Read from the spool file as a reader would from the store, before it is uploaded.
    made = FoundArchive.of(place.key, spooled.size, place.archive)
    try:
        with pa.OSFile(str(spooled.path), "rb") as file:
            check_records(file, made, place.cluster_id, layouts)
    except Corrupted as error:
        return str(error)
    return None


def store_verified(
    objects: ObjectStore,
    place: ArchiveLocation,
    rows: TopicRows,
    spooled: SpooledArchive,
    sums: Sums,
    errors: Mapping[tuple[str, str], int],
) -> WrittenFile | Conflict:
    """Upload the finished file. Returns a `Conflict`, with nothing stored, if an object exists under its key.
    Raises as `store_archive`.
    """
    stored = store_archive(objects, place.key, spooled)
    if isinstance(stored, Conflict):
        return stored
    # Not reused as in refinement: its writer is not known, and so its columns are not verified.
    if stored.adopted:
        return Conflict(f"{place.key} exists already; the next run takes another key")
    archive = ArchiveFile(
        key=place.key,
        size=stored.size,
        sha256=stored.sha256,
        records_digest=spooled.footer.records_digest,
        partition=place.archive.partition,
        base=place.archive.base,
        end=place.archive.end,
        epoch=place.archive.epoch,
        schema_version=stored.schema_version,
        rows=stored.metadata.num_rows,
        raw_bytes=sums.raw_bytes,
        ingest_min_us=sums.ingest_min_us or 0,
        ingest_max_us=sums.ingest_max_us,
        gaps=place.gaps,
    )
    return WrittenFile(
        archive, data_file_of(objects, rows, place.archive.partition_value, stored), dict(errors)
    )


# --- Merging
_GAP_BYTES = 24
"""Size of a gap in an entry, at most: two numbers of ten bytes with their tags."""


@dataclass(frozen=True, slots=True)
class Small:
    """An archive in a table that may be merged with its neighbours."""

    path: str
    """As the table names it."""
    key: str
    size: int
    """Bytes."""
    archive: ArchiveKey
    """What its key says."""

    @property
    def found(self) -> FoundArchive:
        """As readers need it."""
        return FoundArchive.of(self.key, self.size, self.archive)


@dataclass(frozen=True, slots=True)
class Piece:
    """One of the archives that are merged."""

    small: Small
    footer: FoundFooter

    @property
    def entry_bytes(self) -> int:
        """Upper bound for its part of a ledger entry: its key and size, and its gaps, which the new archive
        has as well.
        """
        # 24: the size as a number, and the tags and lengths of the message.
        return len(self.small.key) + 24 + _GAP_BYTES * len(self.footer.gaps)


class Damaged(Corrupted):
    """One of the old archives does not match its footer or key."""

    def __init__(self, place: int, why: str) -> None:
        super().__init__(why)
        self.place = place
        """Its index among the merged archives."""


def split_run(
    objects: ObjectStore,
    run: Sequence[Small],
    cluster_id: str,
    entry_bytes_max: int,
    skip: Callable[[str, str], None],
) -> Iterator[list[Piece]]:
    """Split a run of archives where the schema version changes, and before the ledger entry that names them
    would be too large. A part may be a single archive. An archive whose footer does not match its key is left
    out and reported to `skip`.
    """
    together: list[Piece] = []
    size = 0
    for small in run:
        try:
            piece = Piece(small, read_footer(objects, small.found, cluster_id))
        except Corrupted as error:
            skip(small.key, str(error))
            # The archives before and after the damaged one do not follow each other.
            yield together
            together, size = [], 0
            continue
        # Columns are copied, so one file can have those of a single version only.
        other = together and together[-1].footer.schema_version != piece.footer.schema_version
        if other or size + piece.entry_bytes > entry_bytes_max:
            yield together
            together, size = [], 0
        together.append(piece)
        size += piece.entry_bytes
    yield together


def merge_archives(
    objects: ObjectStore,
    together: Sequence[Piece],
    rows: TopicRows,
    cluster_id: str,
    options: RefineOptions,
    epoch: int,
) -> WrittenFile | Conflict:
    """Merge archives, which have the schema version of `rows` and follow each other, and store the result
    under a key of `epoch`.

    Returns a `Conflict`, with nothing stored, if its records are not those of the old ones, or if another
    object exists under the key. Raises `Damaged` if an old archive is not what it says, `RetryLater` if the
    disk is full or the store is unavailable.
    """
    first, last = together[0].small.archive, together[-1].small.archive
    gaps = tuple(merged((gap for piece in together for gap in piece.footer.gaps), first.base, last.end))
    # The merged range under the key of the first: same topic, partition and table partition.
    place = ArchiveLocation(replace(first, end=last.end, epoch=epoch), gaps, cluster_id)
    layout = Layout(rows.columns.schema, rows.codec)
    writer = ArchiveWriter(objects.spool_dir(), rows.columns, rows.encodings, options.zstd_level)
    try:
        sums = Sums(RecordsDigest())
        for number, piece in enumerate(together):
            try:
                for batch, records in whole_archive(
                    objects, piece.small.found, cluster_id, lambda _topic, _version: layout
                ):
                    # The digest of all records cannot be computed from the digests of the old archives.
                    sums.add(records)
                    writer.append(_laid_out(batch, rows.columns.schema))
                    close_full(writer, options)
            # Says which archive, so that the caller can merge those around it.
            except Corrupted as error:
                raise Damaged(number, str(error)) from error
        # Verified from the finished file: the copy is proven, not assumed.
        spooled = writer.finish(footer_of(place, rows, sums.digest))
        why = mismatch(place, spooled, lambda _topic, _version: layout)
        if why is not None:
            writer.discard()
            return Conflict(f"merged they would not give their records back: {why}")
    # Also for Ctrl-C: the spool file must not stay.
    except BaseException:
        writer.discard()
        raise
    return store_verified(objects, place, rows, spooled, sums, {})


def _laid_out(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The rows with the column names of the schema: pyarrow gives the values of a map the map's own name when
    it reads them.
    """
    columns = [
        column if column.type.equals(field.type) else column.cast(field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


# --- Decoding again
@dataclass(frozen=True, slots=True)
class Probe:
    """How many of a file's undecoded keys and values decode now."""

    decoded: int
    left: int
    causes: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Those that are left, by (`key` or `value`, cause)."""


@dataclass(frozen=True, slots=True)
class Source:
    """The archive that is rewritten."""

    file: DoubtedFile
    archive: ArchiveKey
    found: FoundArchive
    footer: FoundFooter


def open_source(objects: ObjectStore, file: DoubtedFile, archive: ArchiveKey, cluster_id: str) -> Source:
    """The archive of a file in the data folder; raises `Corrupted` if its footer does not match its key."""
    assert file.key is not None, "an archive has a key"
    found = FoundArchive.of(file.key, file.size, archive)
    return Source(file, archive, found, read_footer(objects, found, cluster_id))


def probe(objects: ObjectStore, file: DoubtedFile, rows: TopicRows) -> Probe:
    """Decode only what could not be decoded; stores nothing."""
    decoded = left = 0
    causes: Counter[tuple[str, str]] = Counter()
    for batch in undecoded_rows(objects, file, payloads=True):
        # A side without a schema has no payloads; a null is neither decoded nor counted.
        no_payload = pa.nulls(len(batch), pa.binary())
        keys, values = batch.payloads.get("key", no_payload), batch.payloads.get("value", no_payload)
        for start, end in rows.codec.portions(keys, values):
            columns = rows.codec.encode_columns(
                keys.slice(start, end - start), values.slice(start, end - start)
            )
            for side, column in zip(SIDES, columns, strict=True):
                errors = batch.errors.get(side)
                before = _errors(None if errors is None else errors.slice(start, end - start))
                still = _still(column, before)
                decoded += max(0, before - still.total())
                left += still.total()
                causes.update({(side, cause): number for cause, number in still.items()})
    return Probe(decoded, left, causes)


def decode_again(
    objects: ObjectStore,
    source: Source,
    layouts: Layouts,
    rows: TopicRows,
    cluster_id: str,
    options: RefineOptions,
    epoch: int,
    left: int,
) -> WrittenFile | Conflict:
    """Decode the records of an archive again with the schema of `rows`, and store the result under a key of
    `epoch`.

    Returns a `Conflict`, with nothing stored, in these cases:

    - More than `left` keys and values would not be decoded.
    - Its keys or values have no schema any more.
    - The new columns do not give the records back.
    - Another object exists under the key.

    Raises `Corrupted` if the old archive is not what it says, `RetryLater` if the disk is full or the store
    is unavailable.
    """
    was = layouts(source.found.topic_id, source.footer.schema_version).columns
    # The old columns decode a side that the new ones would keep as bytes only.
    if gone := sorted(_without_schema(rows.columns.schema) - _without_schema(was)):
        return Conflict(
            f"its {' and '.join(gone)} columns would be emptied: the newest schema has no message for them"
        )
    place = ArchiveLocation(replace(source.archive, epoch=epoch), source.footer.gaps, cluster_id)
    writer = ArchiveWriter(objects.spool_dir(), rows.columns, rows.encodings, options.zstd_level)
    try:
        sums = Sums(RecordsDigest(source.footer.digest_version))
        errors = Counter[tuple[str, str]]()
        for records in from_archive(
            objects, source.found, source.archive.base, source.archive.end, cluster_id, layouts
        ):
            sums.add(records)
            _append(writer, rows, source.archive.partition, records, options, errors)
        # Compared with the old footer: damage to the old archive must not get a new, valid digest.
        if sums.digest.digest() != source.footer.records_digest:
            raise Corrupted(
                f"{source.found.key}: its records do not have the digest that its footer says; restore it"
            )
        # A replay must never make a record worse that is decoded now.
        if errors.total() > left:
            writer.discard()
            return Conflict(
                f"{errors.total() - left} of its keys and values that are decoded now would not be "
                "under the newest schema"
            )
        spooled = writer.finish(footer_of(place, rows, sums.digest))
        why = mismatch(place, spooled, layouts)
        if why is not None:
            writer.discard()
            return Conflict(f"rewritten it would not give its records back: {why}")
    except BaseException:
        writer.discard()
        raise
    return store_verified(objects, place, rows, spooled, sums, errors)


def _append(
    writer: ArchiveWriter,
    rows: TopicRows,
    partition: int,
    records: pa.RecordBatch,
    options: RefineOptions,
    errors: Counter[tuple[str, str]],
) -> None:
    for start in range(0, records.num_rows, options.decode_rows):
        for built in rows.built(partition, records.slice(start, options.decode_rows)):
            count_errors(built, errors)
            writer.append(built)
            close_full(writer, options)


def _errors(column: pa.Array[Any] | None) -> int:
    return 0 if column is None else len(column) - column.null_count


def _still(column: pa.StructArray, before: int) -> Counter[str]:
    """What a side still does not decode, by cause; without a schema, as many as before."""
    place = column.type.get_field_index(ERR)
    if place < 0:
        return Counter({NO_SCHEMA: before})
    errors: Any = column.field(place)
    return Counter(cause_of(why) for why in errors.drop_null().to_pylist())


def _without_schema(columns: pa.Schema) -> set[str]:
    return {side for side in SIDES if columns.field(side).type.get_field_index(ERR) < 0}
