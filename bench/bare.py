"""Refines intake files with pyarrow and ptars alone, as the lower bound of what refinement costs.

Each process reads its share of the intake files and decodes the values with ptars. It encodes them
again, compares the bytes, and writes one synced Parquet file. There is no Spark, and there are no
partitions, ingest times or digests. Bounds are only those that the Parquet options write.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from archiver.refine.column_stats import leaves
from archiver.refine.encodings import DICTIONARY_BYTES_MAX, chosen
from bench.intake_files import ZSTD_LEVEL
from bench.shapes import SHAPES

COLUMNS = ["key", "value", "headers", "event_timestamp", "accept_timestamp"]
DECODE_ROWS = 65_536
GROUP_ROWS = 1_000_000
DEFAULT, TUNED = "default", "tuned"
DEFAULT_OPTIONS: dict[str, Any] = {"compression": "zstd", "compression_level": ZSTD_LEVEL}


class Steps:
    """Accumulates CPU seconds of this process by step."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(("read", "decode", "encode and compare", "write"), 0.0)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Count the CPU time of the block as that step."""
        began = time.process_time()
        yield
        self.seconds[name] += time.process_time() - began


def refine_share(shape: str, paths: list[str], target: str, options: str) -> tuple[int, dict[str, float]]:
    """Refine the files of one process; return the size of its output file and CPU seconds by step."""
    return refine_files(SHAPES[shape].handler(), paths, target, options)


def refine_files(messages: Any, paths: list[str], target: str, options: str) -> tuple[int, dict[str, float]]:
    """Refine the files with a message handler; return the output size in bytes and CPU seconds by
    step.
    """
    steps = Steps()
    writer: pq.ParquetWriter | None = None
    pending: list[pa.RecordBatch] = []
    for rows in _decoded(messages, paths, steps):
        pending.append(rows)
        if sum(one.num_rows for one in pending) >= GROUP_ROWS:
            with steps.step("write"):
                writer = _written(writer, pending, target, options)
    with steps.step("write"):
        if pending or writer is None:
            writer = _written(writer, pending, target, options)
        writer.close()
        _sync(target)
    return Path(target).stat().st_size, steps.seconds


def refine_into_many(messages: Any, paths: list[str], folder: Path, rows: int) -> int:
    """Write one file per `rows` consecutive rows and return the number of files. `rows` must divide
    the number of all rows.
    """
    held: list[pa.RecordBatch] = []
    options: dict[str, Any] = {}
    files = 0
    for batch in _decoded(messages, paths, Steps()):
        held.append(batch)
        options = options or options_of([batch.slice(0, rows)])
        while sum(one.num_rows for one in held) >= rows:
            table = pa.Table.from_batches(held)
            write_whole(table.slice(0, rows), str(folder / f"{files}.parquet"), options)
            held = table.slice(rows).to_batches()
            files += 1
    assert not held, "a rest"
    return files


def _decoded(messages: Any, paths: list[str], steps: Steps) -> Iterator[pa.RecordBatch]:
    """Yield all rows of the files, decoded. Raises if re-encoding does not reproduce the bytes."""
    for path in paths:
        with steps.step("read"):
            batches = (
                pq.read_table(path, columns=COLUMNS, use_threads=False)
                .combine_chunks()
                .to_batches(max_chunksize=DECODE_ROWS)
            )
        for batch in batches:
            yield _joined(batch.drop_columns(["value"]), decode(messages, batch.column("value"), steps))


def decode(messages: Any, values: pa.Array[Any], steps: Steps) -> pa.RecordBatch:
    """Return the columns of serialized messages. Raises if re-encoding does not reproduce the
    bytes.
    """
    with steps.step("decode"):
        decoded: pa.RecordBatch = messages.array_to_record_batch(values)
    with steps.step("encode and compare"):
        assert pc.all(pc.equal(messages.record_batch_to_array(decoded).cast(pa.binary()), values)).as_py()
    return decoded


def write_whole(table: pa.Table, target: str, options: dict[str, Any]) -> None:
    """Write the table as one synced Parquet file."""
    pq.write_table(table, target, row_group_size=GROUP_ROWS, **options)
    _sync(target)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def _joined(left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
    names = [*left.schema.names, *(f"value.{name}" for name in right.schema.names)]
    return pa.RecordBatch.from_arrays([*left.columns, *right.columns], names=names)


def _written(
    writer: pq.ParquetWriter | None, pending: list[pa.RecordBatch], target: str, options: str
) -> pq.ParquetWriter:
    table = pa.Table.from_batches(pending)
    if writer is None:
        writer = pq.ParquetWriter(
            target, table.schema, **(options_of(pending) if options == TUNED else DEFAULT_OPTIONS)
        )
    pending.clear()
    writer.write_table(table, row_group_size=max(1, table.num_rows))
    return writer


def options_of(batches: Sequence[pa.RecordBatch]) -> dict[str, Any]:
    """Return Parquet options as for an archive: encodings chosen from the rows, and statistics
    outside of lists.
    """
    ids = itertools.count(1)
    found = leaves(pa.schema([_numbered(field, ids) for field in batches[0].schema]))
    columns = [
        dataclasses.replace(leaf, type=pa.string()) if leaf.path == "key" else leaf for leaf in found
    ]  # keys are like texts
    encodings = chosen(columns, batches)
    return {
        **DEFAULT_OPTIONS,
        "use_dictionary": encodings.dictionary,
        "dictionary_pagesize_limit": DICTIONARY_BYTES_MAX,
        "column_encoding": encodings.others,
        "write_statistics": [leaf.path for leaf in columns if not leaf.repeated],
        "store_schema": False,
    }


def _numbered(field: pa.Field[Any], ids: Iterator[int]) -> pa.Field[Any]:
    """Return the field with field ids on itself and its children, as in an archive's columns."""
    kind: Any = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_numbered(one, ids) for one in kind])
    elif pa.types.is_map(kind):
        kind = pa.map_(_numbered(kind.key_field, ids), _numbered(kind.item_field, ids))
    elif pa.types.is_list(kind):
        kind = pa.list_(_numbered(kind.value_field, ids))
    return pa.field(field.name, kind, field.nullable, metadata={"PARQUET:field_id": str(next(ids))})
