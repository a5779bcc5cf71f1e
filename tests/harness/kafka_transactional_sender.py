"""A sender of transactions over Kafka's protocol, as a team's own producer is: librdkafka with a transactional id.

Some transactions are aborted on purpose, some are open for longer than their timeout, and in some a second producer
opens the id before the first one commits. A kill leaves one open: the next life takes over its id, or uses another
one, and then the timeout ends it.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Mapping
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Producer

from tests.harness.history import Outcome
from tests.harness.kafka_sender import CLIENT, Answers, Record
from tests.harness.ledger_file import LedgerFile
from tests.harness.payload import LIFE_NUMBERS, payload

TIMEOUT_S = 6.0
"""Of a transaction. While one is open, no reader of committed records gets past it."""
LATE_TIMEOUT_S = 2.0
LATE_S = 2 * LATE_TIMEOUT_S
"""How long a late transaction is open."""
PATIENCE_S = 20.0
"""A producer must outlast every fault."""
ABORT_SHARE, LATE_SHARE, FENCE_SHARE = 0.25, 0.05, 0.1
PARTS_MAX = 3
"""A transaction is sent in up to so many parts, each of which is acknowledged before the next."""


class KafkaTransactionalSender:
    """One thread of one life. Each burst is a transaction."""

    def __init__(
        self,
        ledger: LedgerFile,
        seed: int,
        name: str,
        life: int,
        servers: str,
        topics: Mapping[str, int],
        burst_max: int,
    ) -> None:
        self._ledger = ledger
        self._seed = seed
        self._name = name
        self._life = life
        self._servers = servers
        self._topics = topics
        self._burst_max = burst_max
        self._rng = random.Random(f"{seed}/{name}/{life}")
        self._number = life * LIFE_NUMBERS
        self._count = 0
        # Every second life takes over the id of the one before.
        self._id = f"{name}-{life // 2}"
        self._producer: Producer | None = None

    def burst(self) -> None:
        """One transaction."""
        draw = self._rng.random()
        if draw < LATE_SHARE:
            self._late()
            return
        producer = self._producer = self._producer or self._opened(self._id, TIMEOUT_S)
        if producer is None:
            return
        name = self._begun(producer)
        if name is None:
            self._producer = None
            return
        for _ in range(self._rng.randint(1, PARTS_MAX)):
            self._send(producer, name, self._id)
        if draw < LATE_SHARE + FENCE_SHARE:
            self._fence(producer, name)
        elif draw < LATE_SHARE + FENCE_SHARE + ABORT_SHARE:
            if self._end(producer, name, "abort") != "ok":
                self._producer = None
        elif (outcome := self._end(producer, name, "commit")) != "ok" and (
            outcome == "unknown" or self._end(producer, name, "abort") != "ok"
        ):
            # The next producer with this id ends what is open.
            self._producer = None

    def close(self) -> None:
        """Nothing is left: every burst ends its transaction, or gives it up."""

    def _late(self) -> None:
        """A transaction that is open for too long, of a producer that is used once."""
        id_ = f"{self._name}-late-{self._life}-{self._count}"
        producer = self._opened(id_, LATE_TIMEOUT_S)
        name = None if producer is None else self._begun(producer)
        if producer is not None and name is not None:
            self._send(producer, name, id_)
            time.sleep(LATE_S)
            self._end(producer, name, "commit")

    def _fence(self, first: Producer, name: str) -> None:
        """A second producer opens the id, and then the first one commits."""
        self._producer = self._opened(self._id, TIMEOUT_S)
        if self._producer is not None:
            self._note(name, "fenced")
            self._note(name, "fenced", "ok")
        self._end(first, name, "commit")

    def _opened(self, id_: str, timeout_s: float) -> Producer | None:
        producer = Producer(
            {
                "bootstrap.servers": self._servers,
                "client.id": id_,
                "transactional.id": id_,
                "transaction.timeout.ms": round(1000 * timeout_s),
                "message.timeout.ms": round(1000 * timeout_s),
                "linger.ms": 2,
                "batch.num.messages": 5,
                **CLIENT,
                # librdkafka refuses a longer one.
                "socket.timeout.ms": min(CLIENT["socket.timeout.ms"], round(1000 * timeout_s)),
            }
        )
        outcome, _ = asked(producer.init_transactions)
        return producer if outcome == "ok" else None

    def _begun(self, producer: Producer) -> str | None:
        name = f"{self._name}/{self._life}/{self._count}"
        self._count += 1
        self._note(name, "begin")
        return name if begun(producer) else None

    def _send(self, producer: Producer, name: str, id_: str) -> None:
        """Some records of all topics, and their answers."""
        rng = self._rng
        sender, records = f"{self._name}/{id_}", []
        for _ in range(rng.randint(1, self._burst_max)):
            topic = rng.choice(list(self._topics))
            content = payload(self._seed, self._name, self._number)
            records.append(Record(self._number, topic, rng.randrange(self._topics[topic]), content))
            self._number += 1
        self._ledger.write("send", sender=sender, attempt=1, tx=name, records=[one.line for one in records])
        answers = Answers(lambda _: "unknown")
        for record in records:
            try:
                record.produce(producer, partial(answers.take, record.number))
            except (KafkaException, BufferError):
                # The producer is fenced, or its transaction has failed. What follows is refused, too.
                break
        flush(producer)
        self._ledger.write("ack", sender=sender, attempt=1, records=answers.lines)

    def _end(self, producer: Producer, name: str, step: str) -> Outcome:
        self._note(name, step)
        outcome, error = asked(
            producer.commit_transaction if step == "commit" else producer.abort_transaction
        )
        self._note(name, step, outcome, error)
        return outcome

    def _note(self, name: str, step: str, outcome: Outcome | None = None, error: str | None = None) -> None:
        answer = {} if outcome is None else {"outcome": outcome, "error": error}
        self._ledger.write("tx", sender=self._name, tx=name, step=step, **answer)


def begun(producer: Producer) -> bool:
    """Begin a transaction. False: the producer is fenced."""
    try:
        producer.begin_transaction()
    except KafkaException:
        return False
    return True


def flush(producer: Producer) -> None:
    """Wait for the answers to what was sent."""
    # The Python client raises a fatal error here, such as that of a fenced producer. It becomes a SystemError if an
    # answer is handed over after it. The request that ends the transaction reports the error as well.
    with contextlib.suppress(KafkaException, SystemError):
        producer.flush(TIMEOUT_S + 1.0)


def asked(call: Callable[[float], None]) -> tuple[Outcome, str | None]:
    """The answer to a request of a transaction. A request that may be repeated is repeated."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            call(max(1.0, deadline - time.monotonic()))
            return "ok", None
        except KafkaException as problem:
            error: KafkaError = problem.args[0]
            if error.retriable() and time.monotonic() < deadline:
                time.sleep(0.1)
                continue
            return "failed" if error.txn_requires_abort() else "unknown", str(error)[:200]
        except SystemError as problem:
            # As in `flush`.
            return "unknown", str(problem)[:200]
