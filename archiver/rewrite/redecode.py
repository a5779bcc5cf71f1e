"""One archive made anew under a newer schema, from the old archive alone.

Promises that the new archive holds the same records: same range and gaps, and before anything is stored both
the records of the old file and those rebuilt from the new one are compared with the old footer's digest. A
row that the old columns had decoded and the new ones do not is reason enough not to store it. Holds a batch
of the old archive and a row group of the new one. Must never touch the old object.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from archiver.objects.paths import ArchiveKey
from archiver.objects.store import ObjectStore
from archiver.refine.archive_file import ArchiveWriter, Conflict
from archiver.refine.rows import TopicRows
from archiver.refine.task import RefineOptions, WrittenFile
from archiver.rewrite.undecoded import SIDES, DoubtedFile, undecoded_rows
from archiver.rewrite.verified_write import ArchiveLocation, Sums, close_full, footer_of, store, unlike
from archiver.runtime.errors import Corrupted
from archiver.schema.protobuf.error_causes import count_errors
from archiver.schema.protobuf.tree import ERR
from archiver.stream.archives import FoundArchive, FoundFooter, read_footer
from archiver.stream.rebuild import Layouts, from_archive


@dataclass(frozen=True, slots=True)
class Probe:
    """What of a file's undecoded keys and values decodes now."""

    decoded: int
    left: int


@dataclass(frozen=True, slots=True)
class Source:
    """The archive that is made anew."""

    file: DoubtedFile
    archive: ArchiveKey
    found: FoundArchive
    footer: FoundFooter


def open_source(objects: ObjectStore, file: DoubtedFile, archive: ArchiveKey, cluster_id: str) -> Source:
    """The archive behind a file of ours; raises `Corrupted` if its footer is not what its name says."""
    assert file.key is not None, "an archive of ours has a key"
    found = FoundArchive.of(file.key, file.size, archive)
    return Source(file, archive, found, read_footer(objects, found, cluster_id))


def probe(objects: ObjectStore, file: DoubtedFile, rows: TopicRows) -> Probe:
    """Decode what could not be decoded, and nothing else; stores nothing."""
    decoded = left = 0
    for batch in undecoded_rows(objects, file, payloads=True):
        nothing = pa.nulls(len(batch), pa.binary())
        keys, values = batch.payloads.get("key", nothing), batch.payloads.get("value", nothing)
        for start, end in rows.codec.portions(keys, values):
            columns = rows.codec.encode_columns(
                keys.slice(start, end - start), values.slice(start, end - start)
            )
            for side, column in zip(SIDES, columns, strict=True):
                errors = batch.errors.get(side)
                before = _errors(None if errors is None else errors.slice(start, end - start))
                after = _errors_of(column, before)
                decoded += max(0, before - after)
                left += after
    return Probe(decoded, left)


def rewrite(
    objects: ObjectStore,
    source: Source,
    layouts: Layouts,
    rows: TopicRows,
    cluster_id: str,
    options: RefineOptions,
    epoch: int,
    left: int,
) -> WrittenFile | Conflict:
    """Make an archive anew under `rows`' schema and store it under a key of `epoch`.

    A `Conflict`, with nothing stored, if more than `left` keys and values would not be decoded, if its keys
    or values have no schema any more, if the new columns do not give the records back, or if another object
    stands under the key. Raises `Corrupted` if the old archive is not what it says, `RetryLater` if there is
    no room or the store is away.
    """
    was = layouts(source.found.topic_id, source.footer.schema_version).columns
    if gone := sorted(_without_schema(rows.columns.schema) - _without_schema(was)):
        return Conflict(
            f"its {' and '.join(gone)} columns would be emptied: the newest schema has no message for them"
        )
    place = ArchiveLocation(replace(source.archive, epoch=epoch), source.footer.gaps, cluster_id)
    writer = ArchiveWriter(objects.spool_dir(), rows.columns, rows.encodings, options.zstd_level)
    try:
        sums, errors = Sums(), Counter[tuple[str, str]]()
        for records in from_archive(
            objects, source.found, source.archive.base, source.archive.end, cluster_id, layouts
        ):
            sums.add(records)
            _append(writer, rows, source.archive.partition, records, options, errors)
        if sums.digest.digest() != source.footer.records_digest:
            raise Corrupted(
                f"{source.found.key}: its records do not have the digest that its footer says; restore it"
            )
        if errors.total() > left:
            writer.discard()
            return Conflict(
                f"{errors.total() - left} of its keys and values that are decoded now would not be "
                "under the newest schema"
            )
        spooled = writer.finish(footer_of(place, rows, source.footer.records_digest))
        why = unlike(place, spooled, layouts)
        if why is not None:
            writer.discard()
            return Conflict(f"made anew it would not give its records back: {why}")
    except BaseException:
        writer.discard()
        raise
    return store(objects, place, rows, spooled, sums, errors)


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


def _errors_of(column: pa.StructArray, before: int) -> int:
    """What a side still does not decode; without a schema, nothing that did not before."""
    place = column.type.get_field_index(ERR)
    return before if place < 0 else _errors(column.field(place))


def _without_schema(columns: pa.Schema) -> set[str]:
    return {side for side in SIDES if columns.field(side).type.get_field_index(ERR) < 0}
