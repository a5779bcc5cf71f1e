"""A reader over Kafka's protocol that follows every partition from its beginning, while daemons die."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from tests.harness.kafka_sender import CLIENT
from tests.harness.ledger_file import LedgerFile
from tests.harness.payload import digest

POLL_S = 0.5
READ_MAX = 500
QUIET_S = 3.0
"""At the end, a reader that got nothing for so long has what there is, or is stuck; the judge sees which."""
PATIENCE_S = 60.0


class KafkaReader:
    """One consumer without a group. It never seeks: after an error librdkafka goes on where it was."""

    def __init__(self, ledger: LedgerFile, name: str, servers: str, topics: Mapping[str, int]) -> None:
        self._ledger = ledger
        self._name = name
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "client.id": name,
                "group.id": "unused",
                "enable.auto.commit": False,
                "check.crcs": True,
                # An offset that a daemon does not know must be seen, not skipped.
                "auto.offset.reset": "error",
                **CLIENT,
            }
        )
        self._places = [
            TopicPartition(topic, number, 0) for topic, count in topics.items() for number in range(count)
        ]
        self._consumer.assign(self._places)

    def burst(self) -> int:
        """Read for a moment; how many records came."""
        return self._note(self._consumer.consume(READ_MAX, POLL_S))

    def close(self) -> None:
        """Read what there is, then end."""
        deadline = time.monotonic() + PATIENCE_S
        quiet_since = time.monotonic()
        while time.monotonic() < deadline and time.monotonic() - quiet_since < QUIET_S:
            if self.burst():
                quiet_since = time.monotonic()
        for place in self._places:
            try:
                _, end = self._consumer.get_watermark_offsets(place, timeout=20.0)
            except KafkaException as error:
                self._ledger.write("reading", reader=self._name, error=str(error)[:200])
                continue
            self._ledger.write(
                "end-offset", reader=self._name, topic=place.topic, partition=place.partition, offset=end
            )
        self._consumer.close()

    def _note(self, messages: list[Message]) -> int:
        rows = []
        for message in messages:
            if (error := message.error()) is not None:
                self._ledger.write("reading", reader=self._name, error=str(error)[:200])
                continue
            found: Any = message.headers()
            headers = [(name, _bytes(value)) for name, value in found or ()]
            key, value = _bytes(message.key()), _bytes(message.value())
            known = digest(key, value, headers, message.timestamp()[1] * 1000)
            rows.append([message.topic(), message.partition(), message.offset(), known])
        if rows:
            self._ledger.write("fetched", reader=self._name, records=rows)
        return len(rows)


def _bytes(data: str | bytes | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data
