"""A light stand-in for the bytes of archives and intake files, so that a schedule takes milliseconds: what it
tests is who writes what when, and not Parquet. One seed of several plays with the real format.

Only bytes are light. The product's own code does the rest: planning, reading in the order of the log, ingest
times, the cut into files, digests, the footer's keys. It also decides which objects are reused and which
conflict.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from archiver.objects.key_rules import check_key
from archiver.objects.store import ObjectStore
from archiver.refine import archive_file, plan_writer
from archiver.refine.archive_file import Footer, SpooledArchive
from archiver.refine.column_stats import Columns, FileStatistics
from archiver.rewrite import verified_write
from archiver.runtime.errors import Corrupted, NotFound
from archiver.stream.archives import FoundArchive, FoundFooter, check_footer
from archiver.stream.records import STREAM_SCHEMA
from intake.format import READ_SCHEMA
from intake.read.digest import RecordsDigest
from intake.read.reader import IntakeReader
from intake.segments import FileRef
from tests.simulation.publish.contents import LIGHT_ARCHIVE, Row, light_archive, light_intake_rows, read_light
from tests.support.objects import memory_store


@contextmanager
def light_archives() -> Iterator[None]:
    """Refinement reads and writes light files inside, and a key that was checked is not checked again."""
    with ExitStack() as stack:
        for owner, name, stand_in in (
            (plan_writer, "ArchiveWriter", _LightWriter),
            (plan_writer, "describe", _describe),
            (verified_write, "ArchiveWriter", _LightWriter),
            (verified_write, "read_footer", _read_footer),
            (verified_write, "whole_archive", _whole_archive),
            (verified_write, "mismatch", lambda *_: None),
            (verified_write, "_laid_out", lambda batch, _: batch),
            (archive_file, "pq", SimpleNamespace(read_metadata=_read_metadata)),
            (archive_file, "check_seal", _check_seal),
            (IntakeReader, "row_groups", _row_groups),
            (memory_store.MemoryObjectStore, "spool_dir", lambda _: Path("no-spool")),
            (memory_store, "check_key", lru_cache(maxsize=10_000)(check_key)),
        ):
            stack.enter_context(patch.object(owner, name, stand_in))
        yield


@dataclass(frozen=True)
class _LightPath:
    """A spool file that was never on a disk."""

    data: bytes

    def read_bytes(self) -> bytes:
        return self.data

    def unlink(self, *, missing_ok: bool = False) -> None:
        """Nothing to remove."""


class _LightMetadata:
    """A footer as far as the product asks for it."""

    def __init__(self, data: bytes) -> None:
        pairs, self.ids, self.rows = read_light(data)
        self.metadata = {name.encode(): text.encode() for name, text in pairs.items()}
        self.num_rows = len(self.rows)
        self.schema = SimpleNamespace(to_arrow_schema=lambda: pa.schema([]))


class _LightWriter:
    """Stands for `ArchiveWriter`."""

    def __init__(self, spool_dir: object, columns: Columns, encodings: object, zstd_level: int) -> None:
        del spool_dir, encodings, zstd_level
        ids = {leaf.path: leaf.field_id for leaf in columns.leaves}
        self._ids = (ids["kafka.partition"], ids["kafka.offset"], ids["kafka.ingest_timestamp"])
        self._rows: list[Row] = []
        self.pending_rows = self.pending_bytes = 0

    def append(self, batch: pa.RecordBatch) -> None:
        kafka: Any = batch.column("kafka")
        value: Any = batch.column("value")
        columns = (
            kafka.field("partition"),
            kafka.field("offset"),
            value.field("__raw__"),
            kafka.field("ingest_timestamp").cast(pa.int64()),
        )
        self._rows.extend(zip(*(column.to_pylist() for column in columns), strict=True))

    def close_row_group(self) -> None:
        """There are no row groups."""

    def finish(self, footer: Footer) -> SpooledArchive:
        data = light_archive(footer.values(), self._ids, self._rows)
        path: Any = _LightPath(data)
        found: Any = _LightMetadata(data)
        return SpooledArchive(path, len(data), hashlib.sha256(data).digest(), found, footer)

    def discard(self) -> None:
        """There is no file."""


def _describe(metadata: Any, columns: object, floats: object) -> FileStatistics:
    """Bounds of `kafka.partition`, `kafka.offset` and the ingest time; the simulation reads no others."""
    del columns, floats
    found = FileStatistics({}, {}, {}, {}, {}, (4,), metadata.num_rows)
    for field_id, place, form in zip(metadata.ids, (0, 1, 3), ("<i", "<q", "<q"), strict=True):
        numbers = [row[place] for row in metadata.rows]
        found.value_counts[field_id] = metadata.num_rows
        found.null_value_counts[field_id] = 0
        found.lower_bounds[field_id] = struct.pack(form, min(numbers))
        found.upper_bounds[field_id] = struct.pack(form, max(numbers))
    return found


def _read_metadata(source: Any) -> _LightMetadata:
    return _LightMetadata(source.read())


def _check_seal(source: Any, key: str) -> None:
    source.seek(0)
    if not source.read().startswith(LIGHT_ARCHIVE):
        raise Corrupted(f"{key} is no light archive")


def _read_footer(objects: ObjectStore, found: FoundArchive, cluster_id: str) -> FoundFooter:
    """As `archiver.stream.archives.read_footer`."""
    try:
        metadata: Any = _LightMetadata(objects.read(found.key))
    except NotFound as error:
        raise Corrupted(f"{found.key} is gone") from error
    return check_footer(found, metadata, cluster_id)


def _whole_archive(
    objects: ObjectStore, found: FoundArchive, cluster_id: str, _layouts: object
) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
    """As `archiver.stream.rebuild.whole_archive`; the records are those that refinement made the rows of."""
    footer = _read_footer(objects, found, cluster_id)
    rows = _LightMetadata(objects.read(found.key)).rows
    partitions, offsets, values, times = (list(column) for column in zip(*rows, strict=True))
    columns: dict[str, Any] = {
        "offset": pa.array(offsets, pa.int64()),
        "ingest_timestamp": pa.array(times, pa.int64()),
        "event_timestamp": pa.array([0] * len(rows), pa.int64()),
        "batch_start": pa.array(offsets, pa.int64()),
        "value": pa.array(values, pa.binary()),
        "headers": pa.array([[]] * len(rows), STREAM_SCHEMA.field("headers").type),
        "key": pa.nulls(len(rows), pa.binary()),
    }
    records = pa.RecordBatch.from_arrays(
        [columns[field.name].cast(field.type) for field in STREAM_SCHEMA], schema=STREAM_SCHEMA
    )
    digest = RecordsDigest(footer.digest_version)
    digest.update(records)
    if digest.digest() != footer.records_digest:
        raise Corrupted(f"{found.key} has not the records that its footer says")
    kafka = pa.StructArray.from_arrays(
        [pa.array(partitions, pa.int32()), records.column("offset"), records.column("ingest_timestamp")],
        names=["partition", "offset", "ingest_timestamp"],
    )
    value = pa.StructArray.from_arrays([records.column("value")], names=["__raw__"])
    yield pa.RecordBatch.from_arrays([kafka, value], names=["kafka", "value"]), records


def _row_groups(
    reader: IntakeReader, file: FileRef, wanted: Sequence[int]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """As `IntakeReader.row_groups`. There is one."""
    if not wanted:
        return
    try:
        data = reader._objects.read(file.key)
    except NotFound as error:
        raise Corrupted(f"intake file {file.key} is gone") from error
    assert list(wanted) == [0]
    yield 0, _batch(data)


@lru_cache(maxsize=256)
def _batch(data: bytes) -> pa.RecordBatch:
    """The records as a reader gives them."""
    rows = light_intake_rows(data)
    columns: dict[str, Any] = {
        "value": [value for value, _ in rows],
        "headers": [[]] * len(rows),
        "event_timestamp": [0] * len(rows),
        "accept_timestamp": [accept_us for _, accept_us in rows],
        "batch": [0] * len(rows),
    }
    arrays = [
        pa.array(columns[field.name], pa.int64()).cast(field.type)
        if field.name.endswith("_timestamp")
        else pa.array(columns[field.name], field.type)
        if field.name in columns
        else pa.nulls(len(rows), field.type)
        for field in READ_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=READ_SCHEMA)
