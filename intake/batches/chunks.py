"""Chunks: record batches of Kafka clients inside an intake file, as they came.

A chunk is a byte range with the batches of some segments. Its records, in the order of the batches, are what
a row group has in the Parquet part of the file: a segment is a range of them. The footer has the index of the
chunks (`archiver.batches`), so its digest in the log covers the index. Each batch has a checksum over all
that is read of it.

Pure. Base offset and leader epoch of a stored batch mean nothing; the log assigns offsets.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError

from archiver.proto import intake_file_pb2 as pb
from archiver.runtime.errors import InvalidInput
from intake.arrow_arrays import ArrowArray
from intake.batches.decoding import Bytes, StoredBatches
from intake.records import TIMESTAMP, UNKNOWN_BATCH

CHUNKS_KEY = "archiver.batches"
"""Footer key: the base64 text of a zlib-compressed `Chunks` message."""
FIRST_CHUNK_AT = 4
"""Behind the magic of Parquet."""

_INDEX_BYTES_MAX = 32 * 2**20
"""Of an index, before compression: about 2.5 million batches. As text it fits into a footer."""


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A record batch that `measure` accepted."""

    data: Bytes
    records: int
    accept_us: int
    log_append_time: bool
    """The accept time replaces the time of every record."""
    mirrored: bool = False
    """It is of an upstream, whose brokers may divide and merge the batches of producers."""


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive batches that were accepted at the same time, from the same kind of sender."""

    batches: int
    accept_us: int
    log_append_time: bool
    mirrored: bool = False


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk and its place in the file."""

    start: int
    size: int
    records: int
    runs: tuple[Run, ...]


def chunk_index(chunks: Sequence[Sequence[StoredBatch]]) -> str:
    """The text of the index of chunks, which stand one after the other. Raises `InvalidInput` if there are
    too many batches.
    """
    message = pb.Chunks(
        chunks=[
            pb.Chunk(
                size=sum(len(batch.data) for batch in chunk),
                records=sum(batch.records for batch in chunk),
                runs=[
                    pb.Run(
                        batches=sum(1 for _ in same),
                        accept_us=accept_us,
                        log_append_time=append,
                        mirrored=mirrored,
                    )
                    for (accept_us, append, mirrored), same in groupby(
                        chunk, key=lambda batch: (batch.accept_us, batch.log_append_time, batch.mirrored)
                    )
                ],
            )
            for chunk in chunks
        ]
    )
    data = message.SerializeToString(deterministic=True)
    # No reader would accept it, so nothing of it must be stored.
    if len(data) > _INDEX_BYTES_MAX:
        raise InvalidInput(f"the index of {sum(map(len, chunks))} record batches is too large for one file")
    return base64.b64encode(zlib.compress(data, 1)).decode("ascii")


def read_chunk_index(text: bytes) -> list[Chunk]:
    """The chunks that an index names. Raises `InvalidInput` if it is none."""
    try:
        inflate = zlib.decompressobj()
        data = inflate.decompress(base64.b64decode(text, validate=True), _INDEX_BYTES_MAX)
        if not inflate.eof:
            raise InvalidInput("the index of its record batches is too large or cut off")
        message = pb.Chunks.FromString(data)
    except (binascii.Error, zlib.error, DecodeError) as error:
        raise InvalidInput(f"the index of its record batches cannot be read ({error})") from error
    found: list[Chunk] = []
    start = FIRST_CHUNK_AT
    for chunk in message.chunks:
        runs = tuple(Run(run.batches, run.accept_us, run.log_append_time, run.mirrored) for run in chunk.runs)
        found.append(Chunk(start, chunk.size, chunk.records, runs))
        start += chunk.size
    return found


def decode_chunk(chunk: Chunk, data: Bytes) -> pa.RecordBatch:
    """The records of a chunk: the columns `READ_COLUMNS`. Raises `InvalidInput` if the bytes are not those
    that the index describes.
    """
    import pyarrow.compute as pc  # loads slowly, and `status` reads no records

    batches = StoredBatches(data)
    counts = batches.counts
    run_sizes = np.array([run.batches for run in chunk.runs], np.int64)
    if int(run_sizes.sum()) != len(counts) or int(counts.sum()) != chunk.records:
        raise InvalidInput(
            f"it has {len(counts)} batches with {int(counts.sum())} records, the index says "
            f"{int(run_sizes.sum())} with {chunk.records}"
        )
    records = batches.decode()
    rows_of_batch = np.repeat(np.arange(len(chunk.runs)), run_sizes)
    run_of = np.repeat(rows_of_batch, counts)
    accepted: ArrowArray = pa.array(np.array([run.accept_us for run in chunk.runs], np.int64)[run_of])
    accepted = accepted.view(TIMESTAMP)
    times: ArrowArray = records.column("event_timestamp")
    if any(run.log_append_time for run in chunk.runs):
        append = np.array([run.log_append_time for run in chunk.runs])[run_of]
        times = pc.if_else(pa.array(append), accepted, times)
    if times.null_count:
        # As for every record without a time of its own.
        times = pc.coalesce(times, accepted)
    ends = np.cumsum(counts)
    places = np.arange(int(ends[-1])) - np.repeat(ends - counts, counts)
    if any(run.mirrored for run in chunk.runs):
        places[np.array([run.mirrored for run in chunk.runs])[run_of]] = UNKNOWN_BATCH
    return pa.RecordBatch.from_arrays(
        [
            *(records.column(name) for name in ("key", "value", "headers")),
            times,
            accepted,
            pa.array(places.astype(np.int32)),
        ],
        names=["key", "value", "headers", "event_timestamp", "accept_timestamp", "batch"],
    )
