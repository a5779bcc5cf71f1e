"""Can the members of a consumer group be moved to `group.protocol=consumer` and back while they consume?

Members of Kafka's Java client and of librdkafka are replaced one at a time, while a producer writes. Every
record is read, no committed offset goes backwards, and no member reads what another one has committed.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from archiver.spark.java import require_java
from tests.support.kafka import kafka_server
from tests.support.kafka.listening import Listening, configured, listening
from tests.support.process.processes import until
from tests.support.servers.maven import compiled, jars, spark_jars

RELEASE = kafka_server.PACKAGES[0].rsplit(":", 1)[1]
SOURCES = Path(__file__).parent / "group_member"
TOPIC, GROUP = "orders", "report"
PARTITIONS = 6
PATIENCE_S = 60.0
QUICK = {
    "group_initial_rebalance_delay": "100ms",
    "group_session_timeout_min": "1s",
    "group_consumer_session_timeout": "6s",
    "group_consumer_heartbeat_interval": "200ms",
}
CLASSIC = {"group.protocol": "classic", "session.timeout.ms": "6000", "heartbeat.interval.ms": "200"}
CONSUMER = {"group.protocol": "consumer"}

pytestmark = [pytest.mark.timeout(400), pytest.mark.turns(2)]


@dataclass(frozen=True)
class Event:
    """What a member did, with the time of the clock that all processes share."""

    time_ns: int
    member: str
    kind: str
    values: tuple[str, ...]

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(int(one) for one in self.values)


class Member:
    """A member of the group; its events are in the order in which they happened."""

    def __init__(self, name: str, settings: Mapping[str, str]) -> None:
        self.name = name
        self.is_new = settings["group.protocol"] == "consumer"
        self.identity = {key: value for key, value in settings.items() if key == "group.instance.id"}
        self.events: list[Event] = []

    def tell(self, time_ns: int, kind: str, *values: str) -> None:
        self.events.append(Event(time_ns, self.name, kind, values))

    @property
    def assigned(self) -> set[int]:
        found: set[int] = set()
        for event in list(self.events):
            if event.kind == "assigned":
                found |= set(event.numbers)
            elif event.kind in ("revoked", "lost"):
                found -= set(event.numbers)
        return found

    def close(self) -> None:
        raise NotImplementedError


class RdkafkaMember(Member):
    """A consumer of librdkafka in a thread."""

    def __init__(self, name: str, settings: Mapping[str, str]) -> None:
        super().__init__(name, settings)
        self._consumer = Consumer({**settings, "client.id": name})
        self._is_behind = False
        """A commit failed, which is no error while members join."""
        self._is_eager = settings.get("partition.assignment.strategy") == "range"
        self._stopping = threading.Event()
        self._consumer.subscribe([TOPIC], on_assign=self._got, on_revoke=self._revoked, on_lost=self._lost)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _tell(self, kind: str, partitions: list[TopicPartition]) -> None:
        self.tell(time.monotonic_ns(), kind, *(str(one.partition) for one in partitions))

    def _got(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if self._is_eager:
            consumer.assign(partitions)
        else:
            consumer.incremental_assign(partitions)
        self._tell("assigned", partitions)

    def _gives_up(self, kind: str, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._tell(kind, partitions)
        if self._is_eager:
            consumer.unassign()
        else:
            consumer.incremental_unassign(partitions)

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._gives_up("revoked", consumer, partitions)

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._gives_up("lost", consumer, partitions)

    def _run(self) -> None:
        while not self._stopping.is_set():
            message = self._consumer.poll(0.05)
            if message is None:
                if self._is_behind:
                    # It commits the positions in all of its partitions.
                    self._commit()
                continue
            if (error := message.error()) is not None:
                self.tell(time.monotonic_ns(), "error", str(error))
                continue
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            self.tell(time.monotonic_ns(), "read", str(partition), str(offset))
            if self._commit(message=message):
                self.tell(time.monotonic_ns(), "committed", str(partition), str(offset + 1))
        self._consumer.close()

    def _commit(self, **what: Message) -> bool:
        try:
            self._consumer.commit(asynchronous=False, **what)
        except KafkaException as refused:
            self.tell(time.monotonic_ns(), "uncommitted", str(refused))
            # Without positions, others have what it read.
            self._is_behind = refused.args[0].code() != KafkaError._NO_OFFSET
        else:
            self._is_behind = False
        return not self._is_behind

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


class JavaMember(Member):
    """A consumer of Kafka's Java client in a process."""

    def __init__(self, name: str, settings: Mapping[str, str]) -> None:
        super().__init__(name, settings)
        needed = [*jars(f"org.apache.kafka:kafka-clients:{RELEASE}"), *spark_jars("slf4j-api")]
        classes = compiled(f"group-member/{RELEASE}", SOURCES, needed)
        path = os.pathsep.join(map(str, (classes, *needed)))
        java = [str(require_java(os.environ).executable), "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", path]
        stated = [f"{key}={value}" for key, value in {**settings, "client.id": name}.items()]
        self._process = subprocess.Popen(
            [*java, "GroupMember", TOPIC, *stated],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                time_ns, kind, *values = line.split()
                self.tell(int(time_ns), kind, *values)

    def close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write("end\n")
            self._process.stdin.close()
        self._process.wait(PATIENCE_S)
        self._thread.join(PATIENCE_S)


class Group:
    """The members that are live and those that were, and a producer that writes all the time."""

    def __init__(self, served: Listening, make: Callable[[str, Mapping[str, str]], Member]) -> None:
        self._served = served
        self._make = make
        self._bootstrap = served.bootstrap
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=one, daemon=True) for one in (self._produce, self._observe)]
        self.members: list[Member] = []
        self.live: list[Member] = []
        self.sent = 0
        """Records in each partition."""
        self.committed: dict[int, int] = {}
        self.went_back: list[tuple[int, int, int]] = []
        for thread in self._threads:
            thread.start()

    def _produce(self) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap, "linger.ms": 0})
        while not self._stopping.wait(0.03):
            for number in range(PARTITIONS):
                producer.produce(TOPIC, b"%d" % self.sent, partition=number)
            assert producer.flush(PATIENCE_S) == 0
            self.sent += 1

    def _observe(self) -> None:
        topic_id = self._served.application.topic(TOPIC).topic_id
        while not self._stopping.wait(0.02):
            found = self._served.writer.sequencer.refresh().consumer_groups.get(GROUP)
            for number, one in () if found is None else found.topics[topic_id]:
                if one.offset < self.committed.get(number, 0):
                    self.went_back.append((number, self.committed[number], one.offset))
                self.committed[number] = one.offset

    def start(self, **settings: str) -> Member:
        shared = {
            "bootstrap.servers": self._bootstrap,
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": "false",
        }
        member = self._make(f"m{len(self.members)}", shared | settings)
        self.members.append(member)
        self.live.append(member)
        return member

    def all_assigned(self) -> bool:
        found = [one.assigned for one in self.live]
        return all(found) and sorted(number for one in found for number in one) == list(range(PARTITIONS))

    def replace_each(self, **settings: str) -> None:
        """Replace the members one at a time. The group has the consumer protocol while one member has it."""
        for old in list(self.live):
            self.replace(old, **settings)
            until("all partitions are assigned", self.all_assigned, PATIENCE_S)
            has_new = any(one.is_new for one in self.live)
            kind = ConsumerGroupType.CONSUMER if has_new else ConsumerGroupType.CLASSIC
            until(f"it is {kind.name}", lambda: self.type() is kind, PATIENCE_S)  # noqa: B023

    def replace(self, old: Member, **settings: str) -> None:
        """The new member has the same `group.instance.id`, if there is one."""
        old.close()
        self.live.remove(old)
        self.start(**old.identity, **settings)

    def type(self) -> ConsumerGroupType | None:
        admin = AdminClient({"bootstrap.servers": self._bootstrap})
        found = {one.group_id: one for one in admin.list_consumer_groups().result(30).valid}
        return found[GROUP].type if GROUP in found else None

    def close(self) -> None:
        for one in self.live:
            one.close()

    def stop_producing(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def events(self) -> list[Event]:
        return sorted((event for one in self.members for event in one.events), key=lambda one: one.time_ns)


@contextmanager
def consumed(tmp_path: Path, make: Callable[[str, Mapping[str, str]], Member]) -> Iterator[Group]:
    """A group, judged at the end."""
    topics = [{"name": TOPIC, "partitions": PARTITIONS}]
    with ExitStack() as stack:
        served = stack.enter_context(listening(configured(tmp_path, topics, kafka=QUICK)))
        group = Group(served, make)
        stack.callback(group.close)
        stack.callback(group.stop_producing)
        yield group
        group.stop_producing()

        def all_committed() -> bool:
            found = served.writer.sequencer.refresh().consumer_groups.get(GROUP)
            topic_id = served.application.topic(TOPIC).topic_id
            offsets = {} if found is None else {number: one.offset for number, one in found.topics[topic_id]}
            return offsets == dict.fromkeys(range(PARTITIONS), group.sent)

        until("everything is committed", all_committed, PATIENCE_S)
    assert group.went_back == []
    judge(group.events(), group.sent)


def judge(events: list[Event], sent: int) -> None:
    """Every record was read, and none that another member had committed. Commits only grow."""
    read: dict[int, set[int]] = {number: set() for number in range(PARTITIONS)}
    committed: dict[int, tuple[int, str]] = {}
    for event in events:
        assert event.kind != "error", event
        if event.kind == "read":
            number, offset = event.numbers
            end, by = committed.get(number, (0, ""))
            assert offset >= end or by == event.member, (event, end, by)
            read[number].add(offset)
        elif event.kind == "committed":
            number, offset = event.numbers
            assert offset >= committed.get(number, (0, ""))[0], (event, committed[number])
            committed[number] = offset, event.member
    assert read == {number: set(range(sent)) for number in range(PARTITIONS)}


ASSIGNORS: Mapping[type[RdkafkaMember | JavaMember], Mapping[str, str]] = {
    RdkafkaMember: {"range": "range", "cooperative": "cooperative-sticky"},
    JavaMember: {
        "range": "org.apache.kafka.clients.consumer.RangeAssignor",
        "cooperative": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
    },
}


@pytest.mark.parametrize("make", ASSIGNORS, ids=["librdkafka", "java"])
@pytest.mark.parametrize("assignor", ["range", "cooperative"])
def test_members_are_replaced_one_at_a_time(
    make: type[RdkafkaMember | JavaMember], assignor: str, tmp_path: Path
) -> None:
    classic = CLASSIC | {"partition.assignment.strategy": ASSIGNORS[make][assignor]}
    with consumed(tmp_path, make) as group:
        for _ in range(3):
            group.start(**classic)
        until("all partitions are assigned", group.all_assigned, PATIENCE_S)
        assert group.type() is ConsumerGroupType.CLASSIC
        group.replace_each(**CONSUMER)
        group.replace_each(**classic)


@pytest.mark.parametrize("make", ASSIGNORS, ids=["librdkafka", "java"])
def test_static_members_are_replaced(make: type[RdkafkaMember | JavaMember], tmp_path: Path) -> None:
    classic = CLASSIC | {"partition.assignment.strategy": ASSIGNORS[make]["range"]}
    with consumed(tmp_path, make) as group:
        for number in range(3):
            group.start(**classic, **{"group.instance.id": f"i{number}"})
        until("all partitions are assigned", group.all_assigned, PATIENCE_S)
        group.replace_each(**CONSUMER)
        group.replace_each(**classic)


@pytest.mark.parametrize("assignor", ["range", "cooperative"])
def test_members_are_replaced_while_others_still_join(assignor: str, tmp_path: Path) -> None:
    classic = CLASSIC | {"partition.assignment.strategy": ASSIGNORS[RdkafkaMember][assignor]}
    with consumed(tmp_path, RdkafkaMember) as group:
        for _ in range(3):
            group.start(**classic)
        until("all partitions are assigned", group.all_assigned, PATIENCE_S)
        for settings in (CONSUMER, classic, CONSUMER):
            for old in list(group.live):
                group.replace(old, **settings)
        until("all partitions are assigned", group.all_assigned, PATIENCE_S)
        until("it moved", lambda: group.type() is ConsumerGroupType.CONSUMER, PATIENCE_S)
