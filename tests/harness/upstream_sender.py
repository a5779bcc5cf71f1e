"""External producers: one process that sends to topics of a Kafka cluster, in transactions and without, until
SIGTERM.

`python -m tests.harness.upstream_sender SPEC.json`. Keeps no ledger: what counts in the end is what a plain
reader of committed records finds in the cluster. May be killed at any instant; its transaction is then open
until the next life begins, which aborts it, or until it times out.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException, Producer

from tests.harness.payload import payload

ABORTED_ONE_IN = 3
ALONE_ONE_IN = 4
"""One burst in so many has no transaction."""
TRANSACTION_TIMEOUT_MS = 3000
PATIENCE_S = 20.0


class UpstreamSender:
    """One life."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = spec
        self._parent = os.getppid()
        self._stop = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: self._stop.set())
        self._name = f"upstream-{spec['life']}"
        self._rng = random.Random(f"{spec['seed']}/{self._name}")
        self._number = 0

    def run(self) -> None:
        """Send until stopped. After any error a new producer takes over, as in an application."""
        while not self._over():
            common = {
                "bootstrap.servers": self._spec["brokers"],
                "linger.ms": 5,
                "socket.timeout.ms": TRANSACTION_TIMEOUT_MS,
            }
            dealing = Producer(
                {**common, "transactional.id": "upstream", "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS}
            )
            alone = Producer({**common, "enable.idempotence": True, "message.timeout.ms": 10_000})
            try:
                dealing.init_transactions(PATIENCE_S)
                while not self._over():
                    self._burst(dealing, alone)
                    self._stop.wait(self._rng.uniform(0.0, self._spec["pause_s"]))
                return
            except (KafkaException, BufferError) as error:
                print(f"{self._name}: {error}", file=sys.stderr, flush=True)
                self._stop.wait(0.5)

    def _over(self) -> bool:
        return self._stop.is_set() or os.getppid() != self._parent

    def _burst(self, dealing: Producer, alone: Producer) -> None:
        rng = self._rng
        if rng.randrange(ALONE_ONE_IN) == 0:
            self._produce(alone)
            alone.flush(PATIENCE_S)
            return
        dealing.begin_transaction()
        self._produce(dealing)
        if rng.randrange(ABORTED_ONE_IN) == 0:
            dealing.flush(PATIENCE_S)  # else they would not have been sent at all
            dealing.abort_transaction(PATIENCE_S)
        else:
            dealing.commit_transaction(PATIENCE_S)

    def _produce(self, producer: Producer) -> None:
        for _ in range(self._rng.randint(1, self._spec["burst_max"])):
            content = payload(self._spec["seed"], self._name, self._number)
            self._number += 1
            topic = self._rng.choice(sorted(self._spec["topics"]))
            producer.produce(
                topic,
                content.value,
                content.key,
                partition=self._rng.randrange(self._spec["topics"][topic]),
                timestamp=content.timestamp_us // 1000,
                headers=list(content.headers),
            )
        producer.poll(0)


if __name__ == "__main__":
    UpstreamSender(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))).run()
