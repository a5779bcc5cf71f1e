"""A sender over Kafka's protocol, as a team's own producer is: librdkafka, with idempotence or without.

An idempotent producer repeats a batch by itself until it is acknowledged. A plain one is not allowed to repeat
anything here, so each of its errors says what happened to one attempt.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import partial
from typing import Final, Literal

from confluent_kafka import KafkaError, Message, Producer

from tests.harness.ledger_file import LedgerFile
from tests.harness.payload import Payload, digest, payload

KafkaKind = Literal["kafka-idempotent", "kafka-plain"]
CLIENT: Final = {
    "socket.timeout.ms": 3000,
    "topic.metadata.refresh.interval.ms": 500,
    "reconnect.backoff.max.ms": 300,
}
"""So that a client notices a dead daemon within a run."""
DELIVERY_S: Final = {"kafka-idempotent": 60.0, "kafka-plain": 10.0}
"""An idempotent producer must outlast every fault: after this time it gives a record up."""
FAILED: Final = frozenset(
    {KafkaError.NOT_ENOUGH_REPLICAS, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART}
)
"""Errors by which a daemon says that it has not stored the records."""


class KafkaSender:
    """One client. A burst has answers for all its records, or has given them up."""

    def __init__(
        self,
        ledger: LedgerFile,
        seed: int,
        name: str,
        kind: KafkaKind,
        servers: str,
        topics: Mapping[str, int],
        burst_max: int,
    ) -> None:
        self._ledger = ledger
        self._seed = seed
        self._name = name
        self._kind = kind
        self._servers = servers
        self._topics = topics
        self._burst_max = burst_max
        self._rng = random.Random(f"{seed}/{name}")
        self._number = 0
        self._lines_of_order = 0
        self._producer = self._new_producer()

    def burst(self) -> None:
        """Some records of one topic."""
        rng, topic = self._rng, self._rng.choice(list(self._topics))
        by_key = rng.random() < 0.4
        sender = f"{self._name}/{self._lines_of_order}"
        contents: dict[int, tuple[int | None, Payload]] = {}
        for _ in range(rng.randint(1, self._burst_max)):
            place = None if by_key else rng.randrange(self._topics[topic])
            contents[self._number] = (place, payload(self._seed, self._name, self._number))
            self._number += 1
        records = [
            [number, topic, place, None, _digest(content)] for number, (place, content) in contents.items()
        ]
        self._ledger.write("send", sender=sender, attempt=1, records=records)
        answers: dict[int, list[object]] = {}
        for number, (place, content) in contents.items():
            self._producer.produce(
                topic,
                content.value,
                content.key,
                partition=-1 if place is None else place,
                headers=[*content.headers],
                timestamp=content.timestamp_us // 1000,
                on_delivery=partial(self._answered, answers, number),
            )
        left = self._producer.flush(DELIVERY_S[self._kind] + 10.0)
        self._ledger.write("ack", sender=sender, attempt=1, records=list(answers.values()))
        # What has no answer may still be carried out, after the records of the next burst.
        if left or any(answer[1] == "unknown" for answer in answers.values()):
            self._lines_of_order += 1
            self._producer = self._new_producer()

    def close(self) -> None:
        """Nothing is left: every burst waits for its answers."""

    def _answered(
        self, answers: dict[int, list[object]], number: int, error: KafkaError | None, message: Message
    ) -> None:
        offset = message.offset()
        # -1001 is librdkafka's own mark. Any other offset is the daemon's, also in an error.
        offset = None if offset is None or offset == -1001 else offset
        outcome = "ok"
        if error is not None:
            certain = self._kind == "kafka-plain" and error.code() in FAILED
            outcome = "failed" if certain else "unknown"
            offset = None if offset == -1 else offset
        place = message.partition()
        answers[number] = [
            *(number, outcome, None if place is None or place < 0 else place, offset, None),
            None if error is None else str(error)[:200],
        ]

    def _new_producer(self) -> Producer:
        idempotent = self._kind == "kafka-idempotent"
        options = {
            "bootstrap.servers": self._servers,
            "client.id": self._name,
            "enable.idempotence": idempotent,
            "delivery.timeout.ms": round(1000 * DELIVERY_S[self._kind]),
            # Several batches of an idempotent producer are under way at a time. Of a plain one there is one in a
            # burst and partition: nothing keeps the order of two.
            "batch.num.messages": 5 if idempotent else 10_000,
            "linger.ms": 2 if idempotent else 500,
            **CLIENT,
        }
        return Producer(options if idempotent else options | {"retries": 0})


def _digest(content: Payload) -> str:
    """Kafka's times have milliseconds."""
    return digest(content.key, content.value, content.headers, content.timestamp_us // 1000 * 1000)
