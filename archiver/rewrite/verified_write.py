"""An archive that is made of others: its place, its sums, and its way into the store.

Promises that what is stored gives back the records it was made of, byte for byte: they are rebuilt from the
finished file and compared with the digest of those that went in. Must never adopt an object that stands under
its key already: who made it is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from archiver.ledger.archives import ArchiveFile
from archiver.objects.paths import ArchiveKey
from archiver.objects.store import ObjectStore
from archiver.refine.archive_file import ArchiveWriter, Conflict, Footer, SpooledArchive, store_archive
from archiver.refine.plan_writer import data_file_of
from archiver.refine.rows import TopicRows
from archiver.refine.task import RefineOptions, WrittenFile
from archiver.runtime.errors import Corrupted
from archiver.stream.archives import FoundArchive
from archiver.stream.rebuild import Layouts, check_records
from intake.read.digest import RecordsDigest


@dataclass(frozen=True, slots=True)
class ArchiveLocation:
    """Where the new archive stands, and what offsets it holds."""

    archive: ArchiveKey
    gaps: tuple[tuple[int, int], ...]
    cluster_id: str

    @property
    def key(self) -> str:
        """Of the object."""
        return self.archive.key


class Sums:
    """Over the records that went in."""

    def __init__(self) -> None:
        self.digest = RecordsDigest()
        self.raw_bytes = 0
        self.ingest_min_us: int | None = None
        self.ingest_max_us = 0

    def add(self, records: pa.RecordBatch) -> None:
        """Count a batch in `STREAM_SCHEMA`."""
        self.digest.update(records)
        headers: Any = records.column("headers")
        names, values = headers.flatten().flatten()
        column: Any
        for column in (records.column("key"), records.column("value"), names, values):
            self.raw_bytes += pc.sum(pc.binary_length(column)).as_py() or 0
        if records.num_rows:
            times = records.column("ingest_timestamp").cast(pa.int64())
            first = times[0].as_py()
            self.ingest_min_us = first if self.ingest_min_us is None else self.ingest_min_us
            self.ingest_max_us = times[-1].as_py()


def close_full(writer: ArchiveWriter, options: RefineOptions) -> None:
    """End the row group that is being filled if it is large enough."""
    if writer.pending_rows >= options.row_group_rows or writer.pending_bytes >= options.row_group_bytes:
        writer.close_row_group()


def footer_of(place: ArchiveLocation, rows: TopicRows, digest: bytes) -> Footer:
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
        records_digest=digest,
    )


def unlike(place: ArchiveLocation, spooled: SpooledArchive, layouts: Layouts) -> str | None:
    """Why the records of the finished file are not those that its footer says; None if they are, byte for
    byte.
    """
    made = FoundArchive.of(place.key, spooled.size, place.archive)
    try:
        with pa.OSFile(str(spooled.path), "rb") as file:
            check_records(file, made, place.cluster_id, layouts)
    except Corrupted as error:
        return str(error)
    return None


def store(
    objects: ObjectStore,
    place: ArchiveLocation,
    rows: TopicRows,
    spooled: SpooledArchive,
    sums: Sums,
    errors: Mapping[tuple[str, str], int],
) -> WrittenFile | Conflict:
    """Upload the finished file; a `Conflict`, with nothing stored, if an object stands under its key. Raises
    as `publish`.
    """
    stored = store_archive(objects, place.key, spooled)
    if isinstance(stored, Conflict):
        return stored
    if stored.adopted:
        return Conflict(f"{place.key} stands there already; the next run takes another key")
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
