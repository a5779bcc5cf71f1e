"""A sender over Kafka's protocol, as a team's own producer is: librdkafka, with idempotence or without.

An idempotent producer repeats a batch by itself until it is acknowledged. A plain one is not allowed to repeat
anything here, so each of its errors says what happened to one attempt.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from confluent_kafka import KafkaError, Message, Producer

from tests.harness.history import Outcome
from tests.harness.ledger_file import LedgerFile
from tests.harness.payload import LIFE_NUMBERS, Payload, digest, payload

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


@dataclass(frozen=True, slots=True)
class Record:
    """One record to be sent. Kafka's times have milliseconds."""

    number: int
    topic: str
    partition: int | None
    """None: the key decides."""
    content: Payload

    @property
    def line(self) -> list[object]:
        """Its line in a `send`."""
        content = self.content
        time_us = content.timestamp_us // 1000 * 1000
        known = digest(content.key, content.value, content.headers, time_us)
        return [self.number, self.topic, self.partition, None, known]

    def produce(self, producer: Producer, on_delivery: Callable[[KafkaError | None, Message], None]) -> None:
        """Hand it to a client."""
        producer.produce(
            self.topic,
            self.content.value,
            self.content.key,
            partition=-1 if self.partition is None else self.partition,
            headers=[*self.content.headers],
            timestamp=self.content.timestamp_us // 1000,
            on_delivery=on_delivery,
        )


class KafkaSender:
    """One client. A burst has answers for all its records, or has given them up."""

    def __init__(
        self,
        ledger: LedgerFile,
        seed: int,
        name: str,
        life: int,
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
        self._life = life
        self._rng = random.Random(f"{seed}/{name}/{life}")
        self._number = life * LIFE_NUMBERS
        self._lines_of_order = 0
        self._producer = self._new_producer()

    def burst(self) -> None:
        """Some records of one topic."""
        rng = self._rng
        topic = rng.choice(list(self._topics))
        by_key = rng.random() < 0.4
        places = [
            None if by_key else rng.randrange(self._topics[topic])
            for _ in range(rng.randint(1, self._burst_max))
        ]
        self._deliver([(topic, place) for place in places])

    def close(self) -> None:
        """An idempotent producer ends with a record in every partition. So each partition has a visible record at
        its end, and a reader of committed records can come to the end."""
        if self._kind == "kafka-idempotent":
            self._deliver([(topic, place) for topic, count in self._topics.items() for place in range(count)])

    def _deliver(self, places: Sequence[tuple[str, int | None]]) -> None:
        sender = f"{self._name}/{self._life}.{self._lines_of_order}"
        records = []
        for topic, place in places:
            records.append(Record(self._number, topic, place, payload(self._seed, self._name, self._number)))
            self._number += 1
        self._ledger.write("send", sender=sender, attempt=1, records=[one.line for one in records])
        answers = Answers(self._outcome)
        for record in records:
            record.produce(self._producer, partial(answers.take, record.number))
        left = self._producer.flush(DELIVERY_S[self._kind] + 10.0)
        self._ledger.write("ack", sender=sender, attempt=1, records=answers.lines)
        # What has no answer may still be carried out, after the records of the next burst.
        if left or answers.unknown:
            self._lines_of_order += 1
            self._producer = self._new_producer()

    def _outcome(self, error: KafkaError) -> Outcome:
        return "failed" if self._kind == "kafka-plain" and error.code() in FAILED else "unknown"

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


class Answers:
    """The answers to the records of one burst, in the order in which they come."""

    def __init__(self, otherwise: Callable[[KafkaError], Outcome]) -> None:
        """`otherwise`: the outcome of a record with this error."""
        self._otherwise = otherwise
        self.lines: list[list[object]] = []
        """The records of an `ack`."""
        self._counted: dict[tuple[str | None, int | None], int] = {}
        """Per partition, the offset that librdkafka gives to the next record of a batch with an error."""

    @property
    def unknown(self) -> bool:
        """Whether a record may be there or not."""
        return any(line[1] == "unknown" for line in self.lines)

    def take(self, number: int, error: KafkaError | None, message: Message) -> None:
        """One answer."""
        offset, place = message.offset(), message.partition()
        outcome: Outcome = "ok"
        if error is not None:
            outcome = self._otherwise(error)
            offset = self._offset_of_error(error, (message.topic(), place), offset)
        text = None if error is None else str(error)[:200]
        known = None if place is None or place < 0 else place
        self.lines.append([number, outcome, known, offset, None, text])

    def _offset_of_error(
        self, error: KafkaError, place: tuple[str | None, int | None], offset: int | None
    ) -> int | None:
        # An answer with an error has the offset -1, which the Python client gives as None. librdkafka counts up
        # from it over the records of the batch, so the second one has 0. The first one shows what the daemon said.
        counted = self._counted.pop(place, None)
        if offset is None and error.code() > 0:
            self._counted[place] = 0
        elif offset is not None and offset == counted:
            self._counted[place] = offset + 1
            return None
        return offset
