"""A loop over Kafka's protocol that reads, processes and writes exactly once: librdkafka with a transaction for each
round, which has the offsets of what was read.

Each record of the input gives one record of the output, which names it in a header. A round that does not commit is
done again from the committed offsets.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

from tests.harness.group_member import group_options
from tests.harness.history import Outcome
from tests.harness.kafka_reader import digest_of
from tests.harness.kafka_sender import CLIENT, Answers, Record
from tests.harness.kafka_transactional_sender import PATIENCE_S, TIMEOUT_S, asked, begun, flush
from tests.harness.ledger_file import LedgerFile
from tests.harness.payload import LIFE_NUMBERS, Payload

LOOP: Final = "kafka-loop"
"""The kind of client, and its group."""
POLL_S = 0.2
READ_MAX = 60
"""Records of one transaction."""
ABORT_SHARE = 0.1
COMMITTED_S = 10.0
HANGING_S = PATIENCE_S + 10.0
"""librdkafka does not keep the timeout of `send_offsets_to_transaction`, and waits for ever for a coordinator that was
killed (its issues 5456 and 5511). After this time the loop opens its id again, with another producer."""


class KafkaLoop:
    """One worker in one life. All of them are in one group."""

    def __init__(
        self,
        ledger: LedgerFile,
        seed: int,
        name: str,
        life: int,
        servers: str,
        topics: Mapping[str, int],
        outputs: Mapping[str, int],
    ) -> None:
        self._ledger = ledger
        self._name = name
        self._life = life
        self._servers = servers
        self._places = [(topic, partition) for topic, count in topics.items() for partition in range(count)]
        self._topics = list(topics)
        ((self._output, self._outputs),) = outputs.items()
        self._rng = random.Random(f"{seed}/{name}/{life}")
        self._number = life * LIFE_NUMBERS
        self._count = 0
        self._fresh: list[Message] = []
        """Records of the next transaction."""
        self._producer: Producer | None = None
        self._consumer = self._new_consumer()

    def burst(self) -> None:
        """One transaction, if there is something to do."""
        # The next life of this worker fences the one before.
        self._producer = self._producer or self._opened()
        deadline = time.monotonic() + POLL_S
        while len(self._fresh) < READ_MAX and (left := deadline - time.monotonic()) > 0:
            message = self._consumer.poll(left)
            if message is not None and message.error() is None:
                self._fresh.append(message)
            elif message is not None:
                self._note("group-error", error=str(message.error())[:200])
        if self._fresh and self._producer is not None:
            self._transaction(self._producer)

    def close(self) -> None:
        """Leave the group. What was read and not committed is read by another one."""
        self._consumer.close()

    def _transaction(self, producer: Producer) -> None:
        name = f"{self._name}/{self._life}/{self._count}"
        self._count += 1
        messages, self._fresh = self._fresh, []
        self._step(name, "begin")
        if not begun(producer):
            self._producer = None
            self._rewind()
            return
        self._send(producer, name, messages)
        outcome = self._offsets(producer, name, messages)
        if outcome == "ok" and self._rng.random() >= ABORT_SHARE:
            outcome = self._end(producer, name, "commit")
            if outcome == "ok":
                return
        if outcome == "unknown" or self._end(producer, name, "abort") != "ok":
            # The next producer with this id ends what is open.
            self._producer = None
        self._rewind()

    def _send(self, producer: Producer, name: str, messages: list[Message]) -> None:
        records, sources = [], []
        for message in messages:
            topic, partition, offset = message.topic() or "", message.partition() or 0, message.offset() or 0
            found: Any = message.headers() or []
            headers = (
                *((key, value.encode() if isinstance(value, str) else value) for key, value in found),
                ("source", f"{topic}:{partition}:{offset}".encode()),
                ("by", f"{self._name}/{self._number}".encode()),
            )
            key: Any = message.key()
            value: Any = message.value()
            content = Payload(key, value, headers, message.timestamp()[1] * 1000)
            place = self._places.index((topic, partition)) % self._outputs
            records.append(Record(self._number, self._output, place, content))
            sources.append([topic, partition, offset, digest_of(message)])
            self._number += 1
        lines = [one.line for one in records]
        self._ledger.write("send", sender=self._name, attempt=1, tx=name, records=lines, sources=sources)
        answers = Answers(lambda _: "unknown")
        for record in records:
            try:
                record.produce(producer, partial(answers.take, record.number))
            except (KafkaException, BufferError):
                # The producer is fenced, or its transaction has failed. What follows is refused, too.
                break
        flush(producer)
        self._ledger.write("ack", sender=self._name, attempt=1, records=answers.lines)

    def _offsets(self, producer: Producer, name: str, messages: list[Message]) -> Outcome:
        ends = {(one.topic() or "", one.partition() or 0): (one.offset() or 0) + 1 for one in messages}
        lines = [[*place, end] for place, end in ends.items()]
        self._note("group-commit", number=self._count, offsets=lines, of=name)
        offsets = [TopicPartition(*place, end) for place, end in ends.items()]
        metadata = self._consumer.consumer_group_metadata()
        outcome, error = _asked_by_thread(
            lambda wait_s: producer.send_offsets_to_transaction(offsets, metadata, wait_s)
        )
        self._note("group-sent", outcome=outcome, error=error)
        return outcome

    def _end(self, producer: Producer, name: str, step: str) -> Outcome:
        self._step(name, step)
        outcome, error = asked(
            producer.commit_transaction if step == "commit" else producer.abort_transaction
        )
        self._step(name, step, outcome, error)
        return outcome

    def _rewind(self) -> None:
        """Read from the committed offsets on again."""
        self._fresh.clear()
        try:
            places = self._consumer.committed(self._consumer.assignment(), COMMITTED_S)
            for place in places:
                self._consumer.seek(TopicPartition(place.topic, place.partition, max(0, place.offset)))
        except KafkaException as problem:
            self._note("group-error", error=str(problem.args[0])[:200])
            # As an application that starts again.
            self._consumer.close()
            self._consumer = self._new_consumer()

    def _new_consumer(self) -> Consumer:
        options = group_options(self._servers, f"{self._name}/{self._life}", LOOP)
        consumer = Consumer({**options, "partition.assignment.strategy": "range"})
        consumer.subscribe(
            self._topics, on_assign=self._changed, on_revoke=self._changed, on_lost=self._changed
        )
        return consumer

    def _changed(self, _: Consumer, __: list[TopicPartition]) -> None:
        # The member that gets a partition reads it from its committed offset.
        self._fresh.clear()

    def _opened(self) -> Producer | None:
        producer = Producer(
            {
                "bootstrap.servers": self._servers,
                "client.id": self._name,
                "transactional.id": self._name,
                "transaction.timeout.ms": round(1000 * TIMEOUT_S),
                "message.timeout.ms": round(1000 * TIMEOUT_S),
                "linger.ms": 2,
                **CLIENT,
            }
        )
        outcome, _ = asked(producer.init_transactions)
        return producer if outcome == "ok" else None

    def _step(self, name: str, step: str, outcome: Outcome | None = None, error: str | None = None) -> None:
        answer = {} if outcome is None else {"outcome": outcome, "error": error}
        self._ledger.write("tx", sender=self._name, tx=name, step=step, **answer)

    def _note(self, event: str, **fields: object) -> None:
        self._ledger.write(event, group=LOOP, member=f"{self._name}/{self._life}", **fields)


def _asked_by_thread(call: Callable[[float], None]) -> tuple[Outcome, str | None]:
    """As `asked`, by a thread that is left behind if it gets no answer. What it does later is what a zombie does."""
    answers: list[tuple[Outcome, str | None]] = []
    # A process does not wait for such a thread when it ends.
    thread = threading.Thread(target=lambda: answers.append(asked(call)), daemon=True)
    thread.start()
    thread.join(HANGING_S)
    return answers[0] if answers else ("unknown", f"no answer within {HANGING_S:g} s")
