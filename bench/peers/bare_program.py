"""Copies a topic into an Iceberg table with only the libraries that the archiver uses, as a
separate program.

`python -m bench.peers.bare_program SETTINGS`, a JSON object. Reads one JSON object a line,
`{"topic"}`, copies the topic's current records, and answers with `{"files": N}`. Ends with its
standard input. A process per core consumes its share of the partitions with the client library and
decodes the values with ptars. It encodes them again, compares the bytes, and writes one Parquet
file; the files become one snapshot. Nothing is stored in between, so a crash restarts from the
beginning. Keys, headers, times and offsets are left out. Client batch sizes, Python's garbage
collector and Parquet options are set as was found best for the archiver.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, Message, TopicPartition

from archiver.daemon.limits import collect_less_often
from bench import orders
from bench.bare import DECODE_ROWS, Steps, decode, options_of, write_whole
from bench.peers.tables import Tables
from intake.sources.kafka.client import PORTION_RECORDS

PATIENCE_S = 60.0


def consumed(
    brokers: str, topic: str, partitions: Sequence[int], what: Callable[[Message], Any] = Message.value
) -> Iterator[list[Any]]:
    """Yield lists of the current messages' values, or of `what` returns for each message."""
    consumer = Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": "bare",
            "enable.auto.commit": "false",
            "auto.offset.reset": "error",
        }
    )
    try:
        left = 0
        for partition in partitions:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), PATIENCE_S)
            left += high - low
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        values: list[Any] = []
        while left:
            messages = consumer.consume(min(PORTION_RECORDS, left), PATIENCE_S)
            assert messages, f"{left} messages of {topic} are missing"
            assert not any(map(Message.error, messages)), "the broker reports an error"
            values.extend(map(what, messages))
            left -= len(messages)
            if len(values) >= DECODE_ROWS or not left:
                yield values
                values = []
    finally:
        consumer.close()


def take_share(brokers: str, topic: str, target: str, partitions: Sequence[int]) -> str:
    """Process the partitions of one process; return the path of its file."""
    collect_less_often()
    messages = orders.handler(enum_repr="string")
    path = f"{target}-{partitions[0]}.parquet"
    batches = (pa.array(values, pa.binary()) for values in consumed(brokers, topic, partitions))
    table = pa.Table.from_batches([decode(messages, values, Steps()) for values in batches])
    write_whole(table, path, options_of(table.to_batches()))
    return path


def main(settings: dict[str, Any]) -> None:
    """Answer requests until the input ends."""
    tables = Tables(Path(settings["folder"]))
    shares = [
        list(range(core, settings["partitions"], settings["cores"])) for core in range(settings["cores"])
    ]
    tables.warehouse.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(len(shares), mp_context=get_context("spawn")) as pool:
        for line in sys.stdin:
            topic = json.loads(line)["topic"]
            paths = list(
                pool.map(
                    partial(take_share, settings["brokers"], topic, str(tables.warehouse / topic)), shares
                )
            )
            tables.table(topic).add_files([f"file://{path}" for path in paths])
            print(json.dumps({"files": len(paths)}), flush=True)
    tables.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
