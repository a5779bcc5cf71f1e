"""One archive: its Parquet file, the upload to the object store, and the table entry that describes it.

Owns the layout of the bytes (row groups, encodings, statistics, footer keys) and what happens when the key
exists. Guarantees: a stored archive is complete. An existing object is never replaced. An existing object
under the same key is reused only if its footer names the same records. Only a closed file is uploaded.

Footer keys, all text: `archiver.version` (1 or 2: the format of the records digest), `archiver.cluster_id`,
`archiver.topic`, `archiver.topic_id`, `archiver.partition`, `archiver.base`, `archiver.end` (exclusive),
`archiver.gaps` (JSON, `[[base, end], …]`), `archiver.epoch`, `archiver.schema` (version of the topic's
schema), `archiver.records_digest` (hex), `archiver.footer_sha256` (`archiver.stream.seal`).
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq

from archiver.catalog.table_layout import SORT_ORDER_ID
from archiver.events.types import DataFile
from archiver.objects.paths import parse_archive_key
from archiver.objects.store import ObjectStore
from archiver.refine.column_stats import Columns, FloatColumn, FloatCounts, describe
from archiver.refine.encodings import DICTIONARY_BYTES_MAX, Encodings, SharedEncodings
from archiver.runtime import failpoints
from archiver.runtime.errors import (
    ArchiverError,
    Corrupted,
    KeyExists,
    NotFound,
    OutcomeUnknown,
    RetryLater,
    passing,
)
from archiver.stream.archives import FOOTER_VERSIONS, DescribedArchive, FoundArchive, check_footer
from archiver.stream.seal import SEAL_KEY, UNSEALED, check_seal, seal

_VERSION_OF_DIGEST = {digest: version for version, digest in FOOTER_VERSIONS.items()}
_PREFIX = "archiver."
_IDENTITY = ("cluster_id", "topic_id", "partition", "base", "end", "version", "records_digest")
"""Footer values that must be equal before an existing object is reused. The records are a function of the
log; the columns depend on the schema as well. Digests of two versions cannot be compared."""

_HASH_CHUNK_BYTES = 1024 * 1024
_MEMORY_BYTES_MAX = 4 * 1024 * 1024
"""An archive with one row group, of at most this many bytes of columns, is written to memory first."""


@dataclass(frozen=True, slots=True)
class Footer:
    """The `archiver.*` footer keys of an archive, typed."""

    cluster_id: str
    topic: str
    topic_id: str
    partition: int
    base: int
    end: int
    gaps: tuple[tuple[int, int], ...]
    epoch: int
    schema: int
    records_digest: bytes
    digest_version: int

    def values(self) -> dict[str, str]:
        """The key-value pairs of a Parquet footer whose checksum is not filled in yet."""
        texts = {
            "version": _VERSION_OF_DIGEST[self.digest_version],
            "cluster_id": self.cluster_id,
            "topic": self.topic,
            "topic_id": self.topic_id,
            "partition": str(self.partition),
            "base": str(self.base),
            "end": str(self.end),
            "gaps": json.dumps([list(gap) for gap in self.gaps]),
            "epoch": str(self.epoch),
            "schema": str(self.schema),
            "records_digest": self.records_digest.hex(),
            # The placeholder has the length of the checksum, so `seal` can overwrite it in place.
            SEAL_KEY: UNSEALED,
        }
        return {_PREFIX + name: text for name, text in texts.items()}


def footer_values(metadata: pq.FileMetaData) -> dict[str, str]:
    """The `archiver.*` keys of any Parquet file, without the prefix; empty if it has none."""
    pairs: Mapping[bytes, bytes] = metadata.metadata or {}
    texts = {name.decode("utf-8", "replace"): text.decode("utf-8", "replace") for name, text in pairs.items()}
    return {name.removeprefix(_PREFIX): text for name, text in texts.items() if name.startswith(_PREFIX)}


@dataclass(frozen=True, slots=True)
class SpooledArchive:
    """A complete archive in a local file."""

    path: Path
    size: int
    sha256: bytes
    metadata: pq.FileMetaData
    footer: Footer
    floats: Mapping[int, FloatColumn] = field(default_factory=dict)
    """Statistics of floating-point columns by field id, which the footer does not have."""


@dataclass(frozen=True, slots=True)
class StoredArchive:
    """A complete archive in the object store: uploaded now, or an existing object with the same records."""

    key: str
    size: int
    sha256: bytes
    metadata: pq.FileMetaData
    schema_version: int
    adopted: bool
    floats: Mapping[int, FloatColumn] = field(default_factory=dict)
    """As in `SpooledArchive`; empty if the object was reused, because its values were not counted."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Another object exists under the key of an archive; the partition must not continue."""

    why: str


class ArchiveWriter:
    """Collects columns and writes row groups to a spool file. Not thread-safe; ended by `discard` or
    `finish`.
    """

    def __init__(
        self, spool_dir: Path, columns: Columns, encodings: SharedEncodings, zstd_level: int
    ) -> None:
        """The spool file will be in `spool_dir`. `encodings` are shared with other archives that have these
        columns.
        """
        self._spool_dir = spool_dir
        self._columns = columns
        self._encodings = encodings
        self._zstd_level = zstd_level
        self._floats = FloatCounts((leaf.field_id, leaf.place) for leaf in columns.measured if leaf.floating)
        self._pending: list[pa.RecordBatch] = []
        self.pending_rows = 0
        self.pending_bytes = 0
        """Size in memory of the columns that are not in a row group yet."""
        self._path: Path | None = None
        self._memory: pa.BufferOutputStream | None = None
        """Where an archive with a single small row group is written first."""
        self._opened: pq.ParquetWriter | None = None
        self._metadata: list[pq.FileMetaData] = []
        """The footer, once the file is closed."""

    def append(self, batch: pa.RecordBatch) -> None:
        """Add columns to the current row group."""
        self._pending.append(batch)
        self.pending_rows += batch.num_rows
        self.pending_bytes += batch.nbytes

    def close_row_group(self) -> None:
        """Write the pending columns as one row group; does nothing if there are none."""
        if not self._pending:
            return
        with _spooling("write to"):
            writer = self._writer()
            table = pa.Table.from_batches(self._pending, schema=self._columns.schema)
            # The size makes it one row group; by default pyarrow would begin another after 1 Mi rows.
            # At least 1: pyarrow refuses a row group size of 0.
            writer.write_table(table, row_group_size=max(1, table.num_rows))
        self._floats.add(table)
        self._pending, self.pending_rows, self.pending_bytes = [], 0, 0

    def _writer(self) -> pq.ParquetWriter:
        """The Parquet writer. It is opened with the first row group, because the encodings are chosen from
        these rows.
        """
        if self._opened is None:
            self._opened = _open_writer(
                self._closed_new_file() if self._memory is None else self._memory,
                self._columns,
                self._zstd_level,
                self._encodings.of(self._columns.leaves, self._pending, self.pending_bytes),
                self._metadata,
            )
        return self._opened

    def _closed_new_file(self) -> Path:
        """Create the spool file. pyarrow opens it by its name."""
        handle, path = self._new_file()
        os.close(handle)
        return path

    def _new_file(self) -> tuple[int, Path]:
        """Create the spool file; the caller must close the descriptor."""
        handle, name = tempfile.mkstemp(prefix="archive-", suffix=".parquet", dir=self._spool_dir)
        self._path = Path(name)
        return handle, self._path

    def finish(self, footer: Footer) -> SpooledArchive:
        """Close the file. The caller must then upload it or remove it."""
        if self._opened is None and self.pending_bytes <= _MEMORY_BYTES_MAX:
            # Writing page by page, sealing and hashing a file takes many calls of the system.
            self._memory = pa.BufferOutputStream()
        self.close_row_group()
        with _spooling("close"):
            writer = self._writer()
            # Without any row this writer was opened just now, and writes the schema alone.
            writer.add_key_value_metadata(footer.values())
            writer.close()
            (metadata,) = self._metadata
            size, sha256 = self._sealed_file() if self._memory is None else self._sealed_memory(self._memory)
            assert self._path is not None
            return SpooledArchive(self._path, size, sha256, metadata, footer, self._floats.columns())

    def _sealed_file(self) -> tuple[int, bytes]:
        """Seal the spool file; its size and SHA-256."""
        assert self._path is not None
        # The checksum is of the footer, so the file must be closed before it is known.
        with self._path.open("r+b") as file:
            seal(file)
            file.seek(0)
            # Hashed after sealing: the ledger names the bytes that are uploaded.
            sha256 = hashlib.file_digest(file, "sha256").digest()
        return self._path.stat().st_size, sha256

    def _sealed_memory(self, memory: pa.BufferOutputStream) -> tuple[int, bytes]:
        """Seal what was written to memory, and write it to a spool file; its size and SHA-256."""
        whole = io.BytesIO(memory.getvalue())
        seal(whole)
        handle, _ = self._new_file()
        with os.fdopen(handle, "wb") as file, whole.getbuffer() as data:
            file.write(data)
            return len(data), hashlib.sha256(data).digest()

    def discard(self) -> None:
        """Close and remove the spool file; allowed in every state."""
        self._pending, self.pending_rows, self.pending_bytes = [], 0, 0
        # Cleanup must not replace the error that led to it.
        with contextlib.suppress(OSError, pa.ArrowException):
            if self._opened is not None:
                self._opened.close()
        with contextlib.suppress(OSError):
            if self._path is not None:
                self._path.unlink(missing_ok=True)


class _Spooling(contextlib.AbstractContextManager[None]):
    """Turns operating system errors on the spool file into `RetryLater`: a full disk may have space later."""

    def __init__(self, doing: str) -> None:
        self._doing = doing

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # Arrow raises errors of the file system as `OSError` too.
        if isinstance(error, OSError) and not isinstance(error, ArchiverError):
            raise RetryLater(
                f"cannot {self._doing} a spool file ({error}); make room there, the next run tries again"
            ) from error


def _spooling(doing: str) -> _Spooling:
    return _Spooling(doing)


def _open_writer(
    sink: Path | pa.NativeFile,
    columns: Columns,
    zstd_level: int,
    encodings: Encodings,
    metadata: list[pq.FileMetaData],
) -> pq.ParquetWriter:
    """A writer to `sink` that appends the file's footer to `metadata` once it is closed."""
    order = {leaf.path: position for position, leaf in enumerate(columns.leaves)}
    compressed = [leaf.path for leaf in columns.leaves if leaf.path not in encodings.uncompressed]
    return pq.ParquetWriter(
        sink,
        columns.schema,
        version="2.6",
        # pyarrow does not compress columns that are not named.
        compression=dict.fromkeys(compressed, "zstd"),
        compression_level=dict.fromkeys(compressed, zstd_level),
        use_dictionary=encodings.dictionary,  # type: ignore[arg-type]  # the stubs know no list of columns
        dictionary_pagesize_limit=DICTIONARY_BYTES_MAX,
        column_encoding=encodings.others,
        # pyarrow's minima and maxima ignore NaN, so floating columns get no Parquet statistics (see
        # `FloatCounts`).
        write_statistics=[leaf.path for leaf in columns.measured if not leaf.floating],
        write_page_checksum=True,
        store_schema=False,
        # Declares the order that the rows have: ingest times never decrease along the offsets.
        sorting_columns=[
            pq.SortingColumn(order[path])
            for path in ("kafka.ingest_timestamp", "kafka.offset")
            if path in order
        ],
        metadata_collector=metadata,
    )


def store_archive(objects: ObjectStore, key: str, spooled: SpooledArchive) -> StoredArchive | Conflict:
    """Upload under `key`, or reuse an existing object with the same records.

    Raises `RetryLater` if nothing was stored, or if the outcome is unknown: the next attempt finds what was
    stored. The spool file is removed in any case.
    """
    try:
        failpoints.reach("archive.upload.before")
        objects.create_from_file(key, spooled.path)
        failpoints.reach("archive.upload.after")
    # Mostly an earlier attempt at the same plan stored it.
    except KeyExists:
        return _adopt(objects, key, spooled)
    except OutcomeUnknown as error:
        # An object that is not visible may still appear, so this is a retry and not a failure.
        if objects.info(key) is None:
            raise RetryLater(
                f"the upload of {key} was left without an answer and is not visible; the next run tries again"
            ) from error
        return _adopt(objects, key, spooled)
    finally:
        with contextlib.suppress(OSError):
            spooled.path.unlink(missing_ok=True)
    return StoredArchive(
        key,
        spooled.size,
        spooled.sha256,
        spooled.metadata,
        spooled.footer.schema,
        adopted=False,
        floats=spooled.floats,
    )


def _adopt(objects: ObjectStore, key: str, spooled: SpooledArchive) -> StoredArchive | Conflict:
    """Reuse the existing object under the key if its footer names the same records."""
    try:
        with objects.open_input(key) as source:
            # The ledger records size and digest of the existing object: its encodings may differ from those
            # here.
            size, sha256 = _hash_all(source)
            check_seal(source, key)
            source.seek(0)
            metadata = pq.read_metadata(source)
    except NotFound as error:
        raise RetryLater(f"{key} was there and is gone; the next run tries again") from error
    # An object is never replaced, not even a damaged one: an operator must decide.
    except (Corrupted, pa.ArrowInvalid) as error:
        return Conflict(f"{key} exists and is no whole archive ({error}); move it away, then archive again")
    theirs, ours = (
        footer_values(metadata),
        {name.removeprefix(_PREFIX): text for name, text in spooled.footer.values().items()},
    )
    for name in _IDENTITY:
        if theirs.get(name) != ours[name]:
            return Conflict(
                f"{key} exists with {_PREFIX}{name} {theirs.get(name)!r}, ours is {ours[name]!r}; find "
                "out who wrote it and move it away"
            )
    # The ledger records the schema version of the existing object, so its footer must state one.
    if metadata.num_rows != spooled.metadata.num_rows or not theirs.get("schema", "").isdigit():
        return Conflict(
            f"{key} exists with {metadata.num_rows} rows, ours has {spooled.metadata.num_rows}; find "
            "out who wrote it and move it away"
        )
    return StoredArchive(key, size, sha256, metadata, int(theirs["schema"]), adopted=True)


def _hash_all(source: pa.NativeFile) -> tuple[int, bytes]:
    """Size and SHA-256 of the whole object, in bounded memory."""
    digest, size = hashlib.sha256(), 0
    while chunk := source.read(_HASH_CHUNK_BYTES):
        digest.update(chunk)
        size += len(chunk)
    return size, digest.digest()


class Upload(Future[StoredArchive | Conflict]):
    """One archive on its way into the store."""

    def __init__(self) -> None:
        super().__init__()
        self._claim = threading.Lock()

    def run(self, objects: ObjectStore, key: str, spooled: SpooledArchive) -> None:
        """Store it as `store_archive` does, unless another thread has started to."""
        # A job may run twice: in the pool, and in the caller that could start no thread (`Uploads.begin`).
        if not self._claim.acquire(blocking=False):
            return
        try:
            self.set_result(store_archive(objects, key, spooled))
        except BaseException as error:  # noqa: BLE001 - raised to the caller that asks for the result
            self.set_exception(error)


class Uploads:
    """Stores archives in background threads, or in the caller's thread if `most` is 0. Use it in a `with`,
    from one thread.

    Storing means waiting: for a disk to sync, for a bucket to answer. A task with hundreds of small archives
    would wait for each (`docs/performance-notes.md`). At most `most` uploads run at a time, and none after
    the `with`. Each upload runs once and has the outcome of `store_archive`, errors included. An upload that
    was started is never dropped: only its outcome says whether the key is in use.
    """

    def __init__(self, objects: ObjectStore, most: int) -> None:
        self._objects = objects
        self._pool = ThreadPoolExecutor(most, thread_name_prefix="archive-upload") if most else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for all uploads that were started; the timeouts of the store bound this."""
        if self._pool is not None:
            # Jobs that still wait in the queue are carried out: their callers may ask for the result.
            self._pool.shutdown()

    def begin(self, key: str, spooled: SpooledArchive) -> Upload:
        """Start to store the archive under the key; it may be stored when this returns."""
        upload = Upload()
        if self._pool is not None:
            try:
                self._pool.submit(upload.run, self._objects, key, spooled)
            except RuntimeError:
                # No thread can be started. The job was queued before that failed, so another thread may be
                # running it; `run` lets one win.
                pass
            else:
                return upload
        upload.run(self._objects, key, spooled)
        return upload


def describe_archive(objects: ObjectStore, found: FoundArchive, cluster_id: str) -> DescribedArchive:
    """The Iceberg data file entry of a stored archive, read from its footer.

    The numbers equal those of refinement, except for floating-point columns: a footer has no statistics for
    them, so they get no bounds and no NaN counts. Checks that the footer matches its checksum and the key,
    and that the number of rows equals the records in the range. Raises `Corrupted` if the archive cannot be
    read or does not match its key, `Halt` for an unknown format version.
    """
    key = parse_archive_key(found.key)
    assert key is not None, "an archive was found by its key"
    try:
        with objects.open_input(found.key) as source:
            check_seal(source, found.key)
            source.seek(0)
            metadata = pq.read_metadata(source)
    except ArchiverError as error:
        # The ledger or the listing has named the object, so its absence is damage and no wrong input.
        if isinstance(error, NotFound):
            raise Corrupted(
                f"{found.key} is gone; offsets {found.base} to {found.end - 1} are in it"
            ) from error
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        damage = Corrupted(
            f"{found.key} cannot be read ({error}); offsets {found.base} to {found.end - 1} are in it"
        )
        # A lack of memory or files says nothing about the bytes.
        raise passing(error, found.key) or damage from error
    footer = check_footer(found, metadata, cluster_id)
    expected = found.end - found.base - sum(high - low for low, high in footer.gaps)
    if metadata.num_rows != expected:
        raise Corrupted(
            f"{found.key} holds {metadata.num_rows} rows, its range without gaps {expected}; the object was "
            "altered"
        )
    columns = Columns.of(metadata.schema.to_arrow_schema())
    # The values were not counted, so floating-point columns get no bounds.
    counted = describe(metadata, columns, {})
    data_file = DataFile(
        path=objects.uri(found.key),
        record_count=counted.record_count,
        file_size=found.size,
        spec_id=0,
        partition=(key.partition_value,),
        column_sizes=counted.column_sizes,
        value_counts=counted.value_counts,
        null_value_counts=counted.null_value_counts,
        lower_bounds=counted.lower_bounds,
        upper_bounds=counted.upper_bounds,
        split_offsets=counted.split_offsets,
        sort_order_id=SORT_ORDER_ID,
    )
    return DescribedArchive(found, footer, columns.schema, data_file)
