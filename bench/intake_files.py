"""Writes records into intake files through the product's writer and returns the plans that refine
them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from archiver.config.groups import IntakeSettings, LogSettings
from archiver.objects.local import LocalObjectStore
from archiver.objects.paths import cluster_key
from archiver.refine.plan import Plan, plan_partition
from archiver.runtime.clock import SystemClock
from archiver.runtime.ids import SystemIds, TopicId
from bench.orders import make_values
from intake.log.sequencer import Sequencer
from intake.records import RECORD_SCHEMA
from intake.write.writer import IntakeWriter
from tests.support.log.memory_log import MemoryLogStore

PARTITIONS = 16
CLUSTER = "c" * 32
ZSTD_LEVEL = 1
CHUNK_ROWS = 200_000
"""Rows per batch."""
KEY_BYTES = 12
"""Bytes of each key."""
FILES_MIN = 4
"""Enough files for every core."""


def fill_intake(
    count: int,
    folder: Path,
    make: Callable[[int, int], pa.Array[Any]] = make_values,
    partitions: int = PARTITIONS,
) -> tuple[Sequencer, LocalObjectStore, TopicId, int]:
    """Send records through the product's writer. Return sequencer, store, topic id and raw bytes.
    `make` returns values for a count and a seed.
    """
    objects = LocalObjectStore(folder / "data")
    identity = {"format": 1, "cluster_id": CLUSTER, "name": "bench"}
    objects.create(cluster_key(), json.dumps(identity).encode())
    settings = LogSettings()
    sequencer = Sequencer(
        MemoryLogStore(settings.entry_bytes_max).log("intake"), SystemIds(), SystemClock(), settings
    )
    topic = sequencer.declare_topic("orders", partitions)
    with IntakeWriter(objects, sequencer, IntakeSettings(), SystemClock(), SystemIds()) as writer:
        raw_bytes = send(writer, count, make)
    return sequencer, objects, topic.topic_id, raw_bytes


def send(writer: IntakeWriter, count: int, make: Callable[[int, int], pa.Array[Any]]) -> int:
    """Send `count` records to the topic `orders`, wait until they are in the log, and return their
    raw bytes.
    """
    raw_bytes = 0
    step = max(1, min(CHUNK_ROWS, count // FILES_MIN))
    for first in range(0, count, step):
        rows = min(step, count - first)
        values = make(rows, first)
        keys = pa.array([b"%0*d" % (KEY_BYTES, number) for number in range(first, first + rows)], pa.binary())
        headers = pa.array([[]] * rows, RECORD_SCHEMA.field("headers").type)
        times = pa.array(1_700_000_000_000_000 + np.arange(first, first + rows) * 50).cast(
            RECORD_SCHEMA.field("event_timestamp").type
        )
        writer.send_batch(
            "orders", pa.RecordBatch.from_arrays([keys, values, headers, times], schema=RECORD_SCHEMA)
        )
        raw_bytes += bytes_of(values) + KEY_BYTES * rows
        writer.flush()
    return raw_bytes


def bytes_of(values: Any) -> int:
    """Return the bytes of all values."""
    return int(pc.sum(pc.binary_length(values)).as_py())


def plans_of(sequencer: Sequencer, topic_id: TopicId, epoch: int) -> list[Plan]:
    """Return the plans of the whole backlog, cut at the product's default archive size."""
    fold = sequencer.fold
    found: list[Plan] = []
    for partition in range(fold.topics_by_id[topic_id].partitions):
        tp = (topic_id, partition)
        found += plan_partition(
            tp, "orders", fold.segments(tp), 0, fold.stable_offset(tp), epoch, 128 * 2**20
        )
    return found
