"""Reading a mirrored topic where it comes from: a plain consumer of committed records, from the beginning to
the end."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from tests.harness.history import Row
from tests.harness.payload import digest
from tests.harness.places import Unreadable

PATIENCE_S = 60.0
"""For one partition."""


def upstream_rows(brokers: str, topic: str) -> list[Row]:
    """Every committed record. Raises `Unreadable`."""
    consumer = Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": "nobody",
            "enable.auto.commit": "false",
            "isolation.level": "read_committed",
            "enable.partition.eof": "true",
            "auto.offset.reset": "error",
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions
        return [
            row for partition in sorted(partitions) for row in _partition_rows(consumer, topic, partition)
        ]
    finally:
        consumer.close()


def _partition_rows(consumer: Consumer, topic: str, partition: int) -> list[Row]:
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
    deadline = time.monotonic() + PATIENCE_S
    rows: list[Row] = []
    while time.monotonic() < deadline:
        for message in consumer.consume(1000, 0.05):
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                return rows
            if error is not None:
                raise Unreadable(f"{topic}:{partition}: {error.str()}")
            headers: Any = message.headers() or []
            offset: Any = message.offset()
            known = digest(message.key(), message.value(), headers, message.timestamp()[1] * 1000)
            rows.append(Row(partition, offset, known, 0, None))
    raise Unreadable(f"{topic}:{partition} could not be read to its end within {PATIENCE_S:g} s")
