"""Readers over Kafka's protocol, while daemons die: one follows every partition from its beginning, one begins there
again and again."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from tests.harness.history import Isolation
from tests.harness.kafka_sender import CLIENT
from tests.harness.ledger_file import LedgerFile
from tests.harness.payload import digest

POLL_S = 0.5
READ_MAX = 500
SOCKET_MS = 15_000
QUIET_S = 3.0
"""At the end, a reader that got nothing for so long has what there is, or is stuck; the judge sees which."""
PATIENCE_S = 60.0
AGAIN_RECORDS, AGAIN_S = 20_000, 15.0
"""A reader that begins again does so after so many records or so much time, if it has not read all before."""


class KafkaReader:
    """One consumer without a group. It never seeks: after an error librdkafka goes on where it was."""

    def __init__(
        self,
        ledger: LedgerFile,
        name: str,
        servers: str,
        topics: Mapping[str, int],
        isolation: Isolation = "committed",
    ) -> None:
        ledger.write("reader", reader=name, isolation=isolation)
        self._ledger = ledger
        self._name = name
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "client.id": name,
                "group.id": "unused",
                "enable.auto.commit": False,
                "check.crcs": True,
                "isolation.level": f"read_{isolation}",
                # An offset that a daemon does not know must be seen, not skipped.
                "auto.offset.reset": "error",
                **CLIENT,
                # A daemon reads for up to 5 s for one Fetch of many partitions. A client that waits less never gets
                # the answer, if it is far behind on a busy machine.
                "socket.timeout.ms": SOCKET_MS,
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
        self.follow(PATIENCE_S)
        for place in self._places:
            try:
                _, end = self._consumer.get_watermark_offsets(place, timeout=20.0)
            except KafkaException as error:
                self._ledger.write("reading", reader=self._name, error=str(error)[:200])
                continue
            self._ledger.write(
                "end-offset", reader=self._name, topic=place.topic, partition=place.partition, offset=end
            )
        self.leave()

    def follow(self, seconds: float, records_max: float = math.inf) -> None:
        """Read until nothing comes, for so long and so many records at most."""
        quiet_since = time.monotonic()
        deadline, count = quiet_since + seconds, 0
        while time.monotonic() < min(deadline, quiet_since + QUIET_S) and count < records_max:
            if got := self.burst():
                quiet_since = time.monotonic()
            count += got

    def leave(self) -> None:
        """End here."""
        self._consumer.close()

    def _note(self, messages: list[Message]) -> int:
        rows = []
        for message in messages:
            if (error := message.error()) is not None:
                self._ledger.write("reading", reader=self._name, error=str(error)[:200])
                continue
            rows.append([message.topic(), message.partition(), message.offset(), digest_of(message)])
        if rows:
            self._ledger.write("fetched", reader=self._name, records=rows)
        return len(rows)


class KafkaRereader:
    """Reads from offset 0 on again and again, each time as a new reader: archives first, then intake."""

    def __init__(self, ledger: LedgerFile, name: str, servers: str, topics: Mapping[str, int]) -> None:
        self._ledger = ledger
        self._name = name
        self._servers = servers
        self._topics = topics
        self._times = 0

    def burst(self) -> None:
        """One reading, perhaps of a part."""
        reader = self._reader()
        reader.follow(AGAIN_S, AGAIN_RECORDS)
        reader.leave()

    def close(self) -> None:
        """One reading to the end."""
        self._reader().close()

    def _reader(self) -> KafkaReader:
        self._times += 1
        return KafkaReader(self._ledger, f"{self._name}/{self._times}", self._servers, self._topics)


def digest_of(message: Message) -> str:
    """What a record that was read is known by."""
    found: Any = message.headers()
    headers = [(name, _bytes(value)) for name, value in found or ()]
    return digest(_bytes(message.key()), _bytes(message.value()), headers, message.timestamp()[1] * 1000)


def _bytes(data: str | bytes | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data
