"""A member of a consumer group over Kafka's protocol, as a team's own consumer is: librdkafka, which commits after it
has processed.

To process a record is to note it in the ledger. An offset is committed only after every record before it is noted.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from tests.harness.kafka_reader import digest_of
from tests.harness.kafka_sender import CLIENT
from tests.harness.ledger_file import LedgerFile

SESSION_S = 3.0
HEARTBEAT_S = 0.5
POLL_S = 0.2
READ_MAX = 200
"""Records between two commits."""
ASSIGNORS: Final = {"kafka-member-eager": "range", "kafka-member-cooperative": "cooperative-sticky"}
"""Per kind of member, how its group shares partitions. Each has a group of its own."""


def group_options(servers: str, name: str, group: str) -> dict[str, str | int | float | bool]:
    """The options of a client that is a member."""
    return {
        "bootstrap.servers": servers,
        "client.id": name,
        "group.id": group,
        "enable.auto.commit": False,
        # A group whose offsets are lost begins again, and the judge sees that.
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "session.timeout.ms": round(1000 * SESSION_S),
        "heartbeat.interval.ms": round(1000 * HEARTBEAT_S),
        **CLIENT,
    }


class GroupMember:
    """One member in one life."""

    def __init__(
        self, ledger: LedgerFile, name: str, life: int, kind: str, servers: str, topics: Mapping[str, int]
    ) -> None:
        self._ledger = ledger
        self._member = f"{name}/{life}"
        self._group = kind
        self._commits = 0
        self._fresh: list[Message] = []
        """Records that are not processed yet."""
        options = group_options(servers, self._member, kind)
        self._consumer = Consumer({**options, "partition.assignment.strategy": ASSIGNORS[kind]})
        self._consumer.subscribe(
            list(topics), on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
        )

    def burst(self) -> None:
        """Some records, and the commit of their offsets."""
        # One by one: a batch could have records of a partition that was revoked within the call.
        deadline = time.monotonic() + POLL_S
        while len(self._fresh) < READ_MAX and (left := deadline - time.monotonic()) > 0:
            message = self._consumer.poll(left)
            if message is not None and message.error() is None:
                self._fresh.append(message)
            elif message is not None:
                self._note("group-error", error=str(message.error())[:200])
        self._process()

    def close(self) -> None:
        """Leave the group."""
        self._process()
        self._consumer.close()

    def _assigned(self, _: Consumer, places: list[TopicPartition]) -> None:
        # The client fetches the committed offsets after this.
        self._note("group-assigned", places=[[one.topic, one.partition] for one in places])

    def _revoked(self, _: Consumer, places: list[TopicPartition]) -> None:
        self._process()
        self._note("group-revoked", places=[[one.topic, one.partition] for one in places])

    def _lost(self, _: Consumer, places: list[TopicPartition]) -> None:
        # Others have these partitions by now.
        self._fresh.clear()
        self._note("group-revoked", places=[[one.topic, one.partition] for one in places])

    def _process(self) -> None:
        if not self._fresh:
            return
        records = [[one.topic(), one.partition(), one.offset(), digest_of(one)] for one in self._fresh]
        self._note("group-processed", records=records)
        ends = {(one.topic(), one.partition()): (one.offset() or 0) + 1 for one in self._fresh}
        self._fresh.clear()
        offsets = [[*place, end] for place, end in ends.items()]
        self._note("group-commit", number=self._commits, offsets=offsets)
        asked = [TopicPartition(topic or "", partition or 0, end) for (topic, partition), end in ends.items()]
        done: list[TopicPartition] = []
        error: str | None = None
        try:
            done = self._consumer.commit(offsets=asked, asynchronous=False) or []
        except KafkaException as problem:
            # Perhaps an attempt before the last one was carried out.
            error = str(problem.args[0])[:200]
        ok = [[one.topic, one.partition, one.offset] for one in done if one.error is None]
        self._note("group-committed", number=self._commits, offsets=ok, error=error)
        self._commits += 1

    def _note(self, event: str, **fields: object) -> None:
        self._ledger.write(event, group=self._group, member=self._member, **fields)
