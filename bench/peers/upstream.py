"""Fills a topic of a real broker with the orders and computes what every table must contain."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Producer

from bench import orders
from tests.support.kafka.mirroring import Cluster

PARTITIONS = 4
"""Two for each of two cores: both have work until the end, and no archive or file is small."""
CHUNK_ROWS = 200_000
RUN_ROWS = 500
"""Consecutive records that go to one partition."""
FLUSH_S = 120
EPOCH_US = 1_700_000_000_000_000
COLUMNS = ("id", "customer", "state", "created", "lines", "tags", "total", "gift")


def chunks(count: int) -> Iterator[pa.Array[Any]]:
    """Yield the orders in chunks; the values are the same in each call."""
    for first in range(0, count, CHUNK_ROWS):
        yield orders.make_values(min(CHUNK_ROWS, count - first), first)


def fill(brokers: str, topic: str, count: int) -> int:
    """Create the topic and send the orders; return the bytes of the values."""
    cluster = Cluster(brokers)
    cluster.create(topic, PARTITIONS)
    producer = Producer(
        {"bootstrap.servers": brokers, "linger.ms": 50, "queue.buffering.max.messages": 2_000_000}
    )
    sent = size = 0
    for values in chunks(count):
        for value in values.cast(pa.binary()).to_pylist():
            assert value is not None
            producer.produce(topic, value, partition=sent // RUN_ROWS % PARTITIONS)
            sent += 1
            size += len(value)
            if sent % RUN_ROWS == 0:
                producer.poll(0)
        assert producer.flush(FLUSH_S) == 0
    return size


def decoded(count: int) -> pa.Table:
    """Return the same orders as columns, decoded by ptars alone."""
    handler = orders.handler()
    return pa.Table.from_batches(
        [handler.array_to_record_batch(values.cast(pa.binary())) for values in chunks(count)]
    )


def facts(table: pa.Table, unit_us: int = 1) -> dict[str, Any]:
    """Return figures that tables with the same orders share, independent of order. Timestamps are
    truncated to `unit_us`.
    """
    ids = np.sort(table["id"].to_numpy())
    lines: Any = pc.list_flatten(table["lines"])
    times = table["created"].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_numpy() - EPOCH_US
    tags: dict[str, int] = {}
    # Copied: for maps whose entries are a slice, as from readers, pyarrow 26 returns entries of other
    # rows.
    chunks: list[Any] = table["tags"].chunks
    maps = pa.concat_arrays([*chunks, chunks[0].slice(0, 0)])
    for key in ("channel", "campaign"):
        found: Any = pc.map_lookup(maps, pa.scalar(key), "first")
        tags[key] = int(
            pc.sum(pc.cast(pc.utf8_slice_codeunits(pc.drop_null(found), 6), pa.int64())).as_py() or 0
        )
    return {
        "rows": table.num_rows,
        "ids": hashlib.sha256(ids.astype("<i8").tobytes()).hexdigest(),
        "customers": int(
            pc.sum(pc.cast(pc.utf8_slice_codeunits(table["customer"], 9), pa.int64())).as_py() or 0
        ),
        "states": {name: int(np.count_nonzero(_states(table["state"]) == name)) for name in STATES},
        "created_us": int((times // unit_us * unit_us).sum()),
        "total_cents": int(np.rint(table["total"].to_numpy() * 100).astype(np.int64).sum()),
        "gifts": int(pc.sum(table["gift"]).as_py() or 0),
        "lines": len(lines),
        "quantity": int(pc.sum(pc.struct_field(lines, "quantity")).as_py() or 0),
        "price_cents": int(pc.sum(pc.struct_field(lines, "price_cents")).as_py() or 0),
        "tags": tags,
    }


STATES = ("STATE_UNKNOWN", "STATE_NEW", "STATE_PAID", "STATE_SHIPPED")


def _states(column: pa.ChunkedArray[Any]) -> Any:
    if pa.types.is_integer(column.type):
        return np.asarray(STATES)[column.to_numpy()]
    return column.to_numpy().astype(str)
