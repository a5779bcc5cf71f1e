"""Intake files in a form that costs next to nothing, for most runs: the format is pure, and what a file holds
is all that matters here.

One seed in eight uses the real format. Reads both.
"""

from __future__ import annotations

import hashlib
import marshal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq

from archiver.objects.key_rules import check_key
from intake.batches.chunks import CHUNKS_KEY, StoredBatch, decode_chunk, read_chunk_index
from intake.batches.decoding import StoredBatches
from intake.format import IntakeFileBytes, PlacedSegment
from intake.write.encode import Part, SortedFlush
from tests.support.objects import memory_store

Row = tuple[bytes, int]
"""Value and accept time."""
_MAGIC = b"LIGHT"


@contextmanager
def light_files() -> Iterator[None]:
    """Writers make light files inside, and a key that was checked is not checked again."""
    checked = lru_cache(maxsize=10_000)(check_key)
    with patch.object(SortedFlush, "encode", _encode), patch.object(memory_store, "check_key", checked):
        yield


def _encode(flush: SortedFlush, part: Part, row_group_bytes: int, log_index: int) -> IntakeFileBytes:
    """As `SortedFlush.encode`: one row group, the rows in file order."""
    del row_group_bytes
    order = flush.order[part.first_row : part.end_row]
    accept_us = flush.accept_us[part.first_row : part.end_row]
    if flush._kept is not None:
        kept = flush._kept[part.first_row : part.end_row]
        order, accept_us = order[kept], accept_us[kept]
    values = flush._gathered.columns.column("value").take(pa.array(order, pa.int64())).to_pylist()
    in_rows: Any = zip(values, accept_us.tolist(), strict=True)
    rows: list[Row] = []
    placed: list[PlacedSegment] = []
    first_row = 0
    for one in flush.segments[part.first_segment : part.end_segment]:
        placed.append(
            PlacedSegment(
                one.topic_id,
                one.partition,
                0,
                first_row,
                one.rows,
                one.raw_bytes,
                one.accept_max_us,
                one.stamp,
            )
        )
        first_row += one.rows
        rows.extend(_rows_of(one.batches) if one.batches else islice(in_rows, one.rows))
    data = _MAGIC + marshal.dumps((log_index, rows))
    return IntakeFileBytes(data, hashlib.sha256(data).digest(), tuple(placed))


def _rows_of(batches: Sequence[StoredBatch]) -> Iterator[Row]:
    for batch in batches:
        records: Any = StoredBatches(batch.data).decode()
        yield from ((value, batch.accept_us) for value in records.column("value").to_pylist())


def row_groups(data: bytes) -> list[list[Row]]:
    """The rows of an intake file, light or real."""
    if data.startswith(_MAGIC):
        rows: list[Row] = marshal.loads(data[len(_MAGIC) :])[1]
        return [rows]
    parquet = pq.ParquetFile(pa.BufferReader(data))
    groups: list[list[Row]] = []
    for number in range(parquet.metadata.num_row_groups):
        table = parquet.read_row_group(number, columns=["value", "accept_timestamp"], use_threads=False)
        values: list[Any] = table.column(0).to_pylist()
        accept_us: list[Any] = table.column(1).cast(pa.int64()).to_pylist()
        groups.append(list(zip(values, accept_us, strict=True)))
    index = (parquet.metadata.metadata or {}).get(CHUNKS_KEY.encode())
    for chunk in [] if index is None else read_chunk_index(index):
        records: Any = decode_chunk(chunk, data[chunk.start : chunk.start + chunk.size])
        values = records.column("value").to_pylist()
        accept_us = records.column("accept_timestamp").cast(pa.int64()).to_pylist()
        groups.append(list(zip(values, accept_us, strict=True)))
    return groups
