"""A read-process-write loop of librdkafka, in a process that a test kills. It lives as long as its input.

Arguments: bootstrap servers, group, transactional id, topic to read, topic to write. Each transaction copies
some records to the same partition of the other topic. Prints `committed` and their number, or `again` and why
it starts over: the same as the program of the Java client (`tests/compat/exactly_once`).
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, Producer, TopicPartition

TOGETHER = 10
WAIT_S = 30

_stopping = threading.Event()


class _Loop:
    def __init__(self, servers: str, group: str, name: str, source: str, target: str) -> None:
        common: dict[str, Any] = {
            "bootstrap.servers": servers,
            "socket.timeout.ms": 3000,
            "topic.metadata.refresh.interval.ms": 500,
            "reconnect.backoff.max.ms": 300,
        }
        self._target = target
        self._producer = Producer(
            {**common, "transactional.id": name, "transaction.timeout.ms": 10_000, "linger.ms": 0}
        )
        self._consumer = Consumer(
            {
                **common,
                "group.id": group,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 500,
            }
        )
        self._held: list[Message] = []
        self._producer.init_transactions(WAIT_S)
        # With callbacks, the generation changes only within `poll`, and not while a transaction is open.
        self._consumer.subscribe([source], on_assign=self._rebalanced, on_revoke=self._rebalanced)

    def _rebalanced(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        # Another member reads them, or this one does again.
        self._held.clear()

    def run(self) -> None:
        try:
            while not _stopping.is_set():
                self._held.clear()
                while len(self._held) < TOGETHER and (message := self._consumer.poll(0.1)) is not None:
                    if message.error() is None:
                        self._held.append(message)
                if self._held:
                    self._copy(self._held)
        finally:
            self._consumer.close()

    def _copy(self, messages: list[Message]) -> None:
        offsets: dict[int, TopicPartition] = {}
        try:
            self._producer.begin_transaction()
            for one in messages:
                partition, offset = one.partition(), one.offset()
                assert partition is not None and offset is not None
                self._producer.produce(self._target, one.value(), one.key(), partition)
                offsets[partition] = TopicPartition(one.topic() or "", partition, offset + 1)
            metadata = self._consumer.consumer_group_metadata()
            self._producer.send_offsets_to_transaction(list(offsets.values()), metadata, WAIT_S)
            self._producer.commit_transaction(WAIT_S)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            print("aborts", error.args[0], flush=True)
            self._producer.abort_transaction(WAIT_S)
            for place in self._consumer.committed(self._consumer.assignment(), WAIT_S):
                start = place.offset if place.offset >= 0 else OFFSET_BEGINNING
                self._consumer.seek(TopicPartition(place.topic, place.partition, start))
            return
        print("committed", len(messages), flush=True)


def main() -> None:
    """Run loops until the end of the input; each takes over from the one before."""

    def read() -> None:
        sys.stdin.read()
        _stopping.set()

    threading.Thread(target=read, daemon=True).start()
    while not _stopping.is_set():
        try:
            _Loop(*sys.argv[1:6]).run()
        except KafkaException as error:
            print("again", error.args[0], flush=True)


if __name__ == "__main__":
    main()
