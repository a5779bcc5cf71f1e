"""The consumer protocol (KIP-848) over the listener: librdkafka, and the errors of each request."""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from kio.schema.errors import ErrorCode

from archiver.kafka.embedded_protocol import read_assignment, write_assignment
from archiver.kafka.protocol import ApiKey
from tests.support.kafka.listening import Listening, configured, listening
from tests.support.kafka.wire import WireClient
from tests.support.process.processes import until

pytestmark = pytest.mark.timeout(120)

TOPICS = [{"name": name, "partitions": 4} for name in ("orders", "order-lines", "grows")]
QUICK = {
    "group_initial_rebalance_delay": "100ms",
    "group_consumer_session_timeout": "30s",
    "group_consumer_heartbeat_interval": "200ms",
}
COUNT = 100


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    with listening(configured(tmp_path_factory.mktemp("kafka"), TOPICS, kafka=QUICK)) as found:
        producer = Producer({"bootstrap.servers": found.bootstrap})
        for number in range(COUNT):
            producer.produce("orders", b"%d" % number, partition=number % 4)
        assert producer.flush(30) == 0
        yield found


class Reader:
    """A consumer of librdkafka in a thread, which commits each record."""

    def __init__(
        self, served: Listening, group: str, topics: Sequence[str] = ("orders",), **options: Any
    ) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": served.bootstrap,
                "group.id": group,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **options,
            }
        )
        self.values: list[bytes] = []
        self.assigned: set[tuple[str, int]] = set()
        self.errors: list[str] = []
        self._stopping = threading.Event()
        self._consumer.subscribe(list(topics), on_assign=self._got, on_revoke=self._lost, on_lost=self._lost)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _got(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_assign(partitions)
        self.assigned |= {(one.topic, one.partition) for one in partitions}

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.assigned -= {(one.topic, one.partition) for one in partitions}
        consumer.incremental_unassign(partitions)

    def _run(self) -> None:
        while not self._stopping.is_set():
            message = self._consumer.poll(0.05)
            if message is None:
                continue
            if (error := message.error()) is not None:
                self.errors.append(str(error))
                continue
            value = message.value()
            assert isinstance(value, bytes)
            self.values.append(value)
            self._consumer.commit(message=message, asynchronous=True)

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(30)
        with contextlib.suppress(KafkaException):
            self._consumer.commit(asynchronous=False)
        self._consumer.close()


def committed(served: Listening, group: str) -> dict[int, int]:
    found = served.writer.sequencer.refresh().consumer_groups.get(group)
    topic_id = served.application.topic("orders").topic_id
    return {} if found is None else {number: one.offset for number, one in found.topics[topic_id]}


def all_of(topic: str, count: int = 4) -> set[tuple[str, int]]:
    return {(topic, number) for number in range(count)}


EACH = dict.fromkeys(range(4), COUNT // 4)


# --- librdkafka


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_two_members_share_the_partitions_and_one_goes_on_alone(served: Listening, assignor: str) -> None:
    group, options = f"share-{assignor}", {"group.remote.assignor": assignor}
    first = Reader(served, group, **options)
    until("the first has all", lambda: first.assigned == all_of("orders") and len(first.values) == COUNT)
    second = Reader(served, group, **options)
    until("both have two", lambda: len(first.assigned) == len(second.assigned) == 2)
    assert first.assigned | second.assigned == all_of("orders")
    first.close()
    until("the second has all", lambda: second.assigned == all_of("orders"))
    second.close()
    assert committed(served, group) == EACH
    # Nothing was read twice: each commit came before its partition moved.
    assert sorted(first.values + second.values) == sorted(b"%d" % number for number in range(COUNT))
    assert first.errors == second.errors == []


def test_a_pattern_and_new_partitions(served: Listening) -> None:
    reader = Reader(served, "pattern", ["^order.*", "grows"])
    # Only the whole name matches.
    until(
        "the topics that match",
        lambda: reader.assigned == all_of("orders") | all_of("order-lines") | all_of("grows"),
    )
    served.writer.sequencer.grow_topic("grows", 6)
    until("the new partitions", lambda: all_of("grows", 6) <= reader.assigned)
    reader.close()
    assert reader.errors == []


def test_a_static_member_returns_without_a_rebalance(served: Listening) -> None:
    other = Reader(served, "static", **{"group.instance.id": "other"})
    first = Reader(served, "static", **{"group.instance.id": "one"})
    until("both have two", lambda: len(first.assigned) == len(other.assigned) == 2)
    had, others = set(first.assigned), set(other.assigned)
    first.close()
    back = Reader(served, "static", **{"group.instance.id": "one"})
    until("it has them again", lambda: back.assigned == had)
    assert other.assigned == others
    back.close()
    other.close()


BOTH = struct.pack(">hih6sh11sii", 1, 2, 6, b"orders", 11, b"order-lines", -1, 0)
"""A subscription of version 1 to two topics, without partitions that are owned."""
ORDERS = struct.pack(">hih6sii", 1, 1, 6, b"orders", -1, 0)
CLASSIC: dict[str, Any] = {
    "group.protocol": "classic",
    "session.timeout.ms": 6000,
    "partition.assignment.strategy": "cooperative-sticky",
}


def test_an_empty_group_changes_its_protocol(served: Listening) -> None:
    producer = Producer({"bootstrap.servers": served.bootstrap})
    read: list[bytes] = []
    for options in ({}, CLASSIC, {}):
        producer.produce("order-lines", b"%d" % len(read), partition=0)
        assert producer.flush(30) == 0
        reader = Reader(served, "moves", ["order-lines"], **options)
        found = reader.values
        until("it goes on", found.copy)
        reader.close()
        read += found
    assert read == [b"0", b"1", b"2"]


class ClassicMember(WireClient):
    """A member of the classic protocol by hand."""

    member_id = ""
    generation = -1
    metadata = ORDERS

    def join(self, group: str) -> None:
        body = {
            "group_id": group,
            "session_timeout": 60_000,
            "rebalance_timeout": 60_000,
            "member_id": self.member_id,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": self.metadata}],
            "reason": None,
        }
        joined = self.ask(ApiKey.JOIN_GROUP, 9, body)
        self.member_id, self.generation = joined.member_id, joined.generation_id
        if joined.error_code is ErrorCode.member_id_required:
            self.join(group)
            return
        assert joined.error_code is ErrorCode.none
        self.leads = joined.leader == self.member_id

    def sync(self, group: str) -> Mapping[str, Sequence[int]]:
        body = self._identity(group) | {
            "generation_id": self.generation,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [],
        }
        if self.leads:
            mine = write_assignment([("orders", number) for number in range(4)], 1)
            body["assignments"] = [{"member_id": self.member_id, "assignment": mine}]
        synced = self.ask(ApiKey.SYNC_GROUP, 5, body)
        assert synced.error_code is ErrorCode.none
        return read_assignment(bytes(synced.assignment)).assigned

    def beat(self, group: str) -> ErrorCode:
        body = self._identity(group) | {"generation_id": self.generation}
        code: ErrorCode = self.ask(ApiKey.HEARTBEAT, 4, body).error_code
        return code

    def commit(self, group: str, generation: int) -> ErrorCode:
        part = {
            "partition_index": 0,
            "committed_offset": 1,
            "committed_leader_epoch": -1,
            "committed_metadata": None,
        }
        body = self._identity(group) | {
            "generation_id_or_member_epoch": generation,
            "topics": [{"name": "orders", "partitions": [part]}],
        }
        code: ErrorCode = self.ask(ApiKey.OFFSET_COMMIT, 8, body).topics[0].partitions[0].error_code
        return code

    def leave(self, group: str) -> ErrorCode:
        member = {"member_id": self.member_id, "group_instance_id": None, "reason": None}
        answer = self.ask(ApiKey.LEAVE_GROUP, 5, {"group_id": group, "members": [member]})
        code: ErrorCode = answer.members[0].error_code
        return code

    def _identity(self, group: str) -> dict[str, Any]:
        return {"group_id": group, "member_id": self.member_id, "group_instance_id": None}


def test_members_of_both_protocols_are_in_one_group(served: Listening) -> None:
    group = "mixed"

    def listed(client: WireClient) -> tuple[str, str]:
        asked: dict[str, list[str]] = {"states_filter": [], "types_filter": []}
        found = client.ask(ApiKey.LIST_GROUPS, 5, asked).groups
        ((kind, state),) = [(one.group_type, one.group_state) for one in found if one.group_id == group]
        return kind, state

    with ClassicMember(served.address) as classic, WireClient(served.address) as new:
        classic.join(group)
        assert classic.sync(group) == {"orders": [0, 1, 2, 3]}
        assert listed(new) == ("classic", "Stable")
        joined = new.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, beating(group, "m"))
        assert joined.error_code is ErrorCode.none
        assert listed(new) == ("consumer", "Reconciling")
        assert classic.commit(group, classic.generation) is ErrorCode.none
        assert classic.beat(group) is ErrorCode.rebalance_in_progress
        old_generation = classic.generation
        classic.join(group)
        assert (classic.generation, classic.leads) == (joined.member_epoch, False)
        assert classic.sync(group) == {"orders": [0, 1]}
        assert classic.beat(group) is ErrorCode.none
        assert classic.commit(group, old_generation) is ErrorCode.illegal_generation
        beaten = new.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, beating(group, "m", joined.member_epoch))
        assert sorted(beaten.assignment.topic_partitions[0].partitions) == [2, 3]
        asked = {"group_ids": [group], "include_authorized_operations": False}
        (described,) = new.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, asked).groups
        assert {
            one.member_id: (one.member_type, list(one.assignment.topic_partitions[0].partitions))
            for one in described.members
        } == {classic.member_id: (0, [0, 1]), "m": (1, [2, 3])}
        old = {"groups": [group], "include_authorized_operations": False}
        assert new.ask(ApiKey.DESCRIBE_GROUPS, 5, old).groups[0].group_state == "Dead"
        new.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, beating(group, "m", -1))
        assert listed(new) == ("classic", "PreparingRebalance")
        (described,) = new.ask(ApiKey.DESCRIBE_GROUPS, 5, old).groups
        assert [one.member_id for one in described.members] == [classic.member_id]
        assert classic.beat(group) is ErrorCode.rebalance_in_progress
        classic.join(group)
        assert classic.leads
        assert classic.sync(group) == {"orders": [0, 1, 2, 3]}
        new.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, beating(group, "m"))
        assert classic.leave(group) is ErrorCode.none
        assert classic.leave(group) is ErrorCode.unknown_member_id


def test_a_classic_member_gets_no_topic_that_it_may_not_see(tmp_path: Path) -> None:
    rule = {"principal": "User:ANONYMOUS", "operations": ["read"], "groups": ["*"], "topics": ["orders"]}
    with (
        listening(configured(tmp_path, TOPICS, kafka={**QUICK, "acls": [rule]})) as found,
        ClassicMember(found.address) as classic,
        WireClient(found.address) as new,
    ):
        joined = new.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, beating("ruled", "m"))
        assert joined.error_code is ErrorCode.none
        classic.metadata = BOTH
        classic.join("ruled")
        new.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, beating("ruled", "m", -1))
        # The group has moved back. The next member moves it once more.
        new.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, beating("ruled", "m"))
        classic.join("ruled")
        assert classic.sync("ruled").keys() <= {"orders"}
        asked = {"group_ids": ["ruled"], "include_authorized_operations": False}
        (described,) = new.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, asked).groups
        assert described.error_code is ErrorCode.none
        assert [list(one.subscribed_topic_names) for one in described.members] == [["orders"]] * 2


def test_a_member_of_another_type_keeps_the_classic_protocol(served: Listening) -> None:
    with WireClient(served.address) as client:
        joining = {
            "group_id": "workers",
            "session_timeout": 60_000,
            "rebalance_timeout": 60_000,
            "member_id": "",
            "group_instance_id": None,
            "protocol_type": "connect",
            "protocols": [{"name": "sessioned", "metadata": b"m"}],
        }
        asked = client.ask(ApiKey.JOIN_GROUP, 5, joining)
        client.ask(ApiKey.JOIN_GROUP, 5, joining | {"member_id": asked.member_id})
        answer = client.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, beating("workers", "m"))
        assert answer.error_code is ErrorCode.group_id_not_found
        reader = Reader(served, "assigned-2")
        until("it has all", lambda: reader.assigned == all_of("orders"))
        refused = client.ask(ApiKey.JOIN_GROUP, 5, joining | {"group_id": "assigned-2"})
        assert refused.error_code is ErrorCode.inconsistent_group_protocol
    reader.close()


def test_groups_are_listed_described_and_deleted(served: Listening) -> None:
    admin = AdminClient({"bootstrap.servers": served.bootstrap})
    reader = Reader(served, "shown", **{"client.id": "reader"})
    until("it is committed", lambda: committed(served, "shown") == EACH)

    def listed(**filters: Any) -> dict[str, Any]:
        return {one.group_id: one for one in admin.list_consumer_groups(**filters).result(30).valid}

    assert listed(types={ConsumerGroupType.CONSUMER})["shown"].type is ConsumerGroupType.CONSUMER
    assert listed(states={ConsumerGroupState.STABLE})["shown"].state is ConsumerGroupState.STABLE
    assert "shown" not in listed(types={ConsumerGroupType.CLASSIC})
    described = admin.describe_consumer_groups(["shown"])["shown"].result(30)
    assert (described.state, described.partition_assignor) == (ConsumerGroupState.STABLE, "uniform")
    (member,) = described.members
    assert member.client_id == "reader"
    assert {(one.topic, one.partition) for one in member.assignment.topic_partitions} == all_of("orders")
    with pytest.raises(KafkaException, match="NON_EMPTY_GROUP"):
        admin.delete_consumer_groups(["shown"])["shown"].result(30)
    reset = ConsumerGroupTopicPartitions("shown", [TopicPartition("orders", 0, 1)])
    (refused,) = admin.alter_consumer_group_offsets([reset])["shown"].result(30).topic_partitions
    assert refused.error is not None
    assert refused.error.name() == "UNKNOWN_MEMBER_ID"
    reader.close()
    assert listed()["shown"].state is ConsumerGroupState.EMPTY
    admin.alter_consumer_group_offsets([reset])["shown"].result(30)
    assert committed(served, "shown") == EACH | {0: 1}
    admin.delete_consumer_groups(["shown"])["shown"].result(30)
    assert "shown" not in listed()


# --- Errors


def beating(group: str, member_id: str, epoch: int = 0, **fields: Any) -> dict[str, Any]:
    """A heartbeat; that of a member that joins by default."""
    first = {"rebalance_timeout": 60_000, "subscribed_topic_names": ["orders"], "topic_partitions": []}
    nothing = {"rebalance_timeout": -1, "subscribed_topic_names": None, "topic_partitions": None}
    return {
        "group_id": group,
        "member_id": member_id,
        "member_epoch": epoch,
        "instance_id": None,
        "rack_id": None,
        "subscribed_topic_regex": None,
        "server_assignor": None,
        **(first if epoch == 0 else nothing),
        **fields,
    }


@pytest.mark.parametrize(
    ("epoch", "fields", "code"),
    [
        (0, {"member_id": ""}, ErrorCode.invalid_request),
        (0, {"rebalance_timeout": -1}, ErrorCode.invalid_request),
        (0, {"topic_partitions": None}, ErrorCode.invalid_request),
        (0, {"subscribed_topic_names": []}, ErrorCode.invalid_request),
        (0, {"instance_id": ""}, ErrorCode.invalid_request),
        (0, {"rack_id": "r" * 250}, ErrorCode.invalid_request),
        (0, {"server_assignor": "sticky"}, ErrorCode.unsupported_assignor),
        (0, {"subscribed_topic_regex": "a)(b"}, ErrorCode.invalid_regular_expression),
        (0, {"subscribed_topic_regex": "a" * 1001}, ErrorCode.invalid_regular_expression),
        (0, {"group_id": ""}, ErrorCode.invalid_group_id),
        (1, {}, ErrorCode.unknown_member_id),
        (-1, {}, ErrorCode.unknown_member_id),
        (-2, {}, ErrorCode.invalid_request),
        (-2, {"instance_id": "i"}, ErrorCode.unknown_member_id),
        (-3, {}, ErrorCode.invalid_request),
    ],
)
def test_the_error_of_a_heartbeat(
    served: Listening, epoch: int, fields: dict[str, Any], code: ErrorCode
) -> None:
    with WireClient(served.address) as client:
        answer = client.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, beating("errors", "m", epoch) | fields)
    assert answer.error_code is code


def test_a_member_by_hand(served: Listening) -> None:
    with WireClient(served.address) as client:

        def beat(epoch: int, version: int = 1, member_id: str = "m", **fields: Any) -> Any:
            return client.ask(
                ApiKey.CONSUMER_GROUP_HEARTBEAT, version, beating("hand", member_id, epoch, **fields)
            )

        def commit(member_id: str, epoch: int, version: int = 9) -> ErrorCode:
            part = {
                "partition_index": 0,
                "committed_offset": 1,
                "committed_leader_epoch": -1,
                "committed_metadata": None,
            }
            body = {
                "group_id": "hand",
                "generation_id_or_member_epoch": epoch,
                "member_id": member_id,
                "group_instance_id": None,
                "topics": [{"name": "orders", "partitions": [part]}],
            }
            code: ErrorCode = (
                client.ask(ApiKey.OFFSET_COMMIT, version, body).topics[0].partitions[0].error_code
            )
            return code

        def fetch(member_id: str | None, epoch: int) -> ErrorCode:
            group = {"group_id": "hand", "member_id": member_id, "member_epoch": epoch, "topics": None}
            body = {"groups": [group], "require_stable": True}
            code: ErrorCode = client.ask(ApiKey.OFFSET_FETCH, 9, body).groups[0].error_code
            return code

        # A coordinator makes the id of old clients.
        made = beat(0, 0, "")
        assert len(made.member_id) == 36
        beat(-1, member_id=made.member_id)
        joined = beat(0)
        assert (joined.error_code, joined.member_id) == (ErrorCode.none, "m")
        (assigned,) = joined.assignment.topic_partitions
        assert (UUID(bytes=assigned.topic_id.bytes).hex, set(assigned.partitions)) == (
            served.application.topic("orders").topic_id,
            {0, 1, 2, 3},
        )
        epoch = joined.member_epoch
        assert beat(epoch).assignment is None
        assert beat(epoch + 1).error_code is ErrorCode.fenced_member_epoch
        assert commit("m", epoch) is fetch("m", epoch) is ErrorCode.none
        assert commit("m", epoch + 1) is fetch("m", epoch + 1) is ErrorCode.stale_member_epoch
        assert commit("n", epoch) is fetch("n", epoch) is ErrorCode.unknown_member_id
        assert commit("m", epoch, 8) is ErrorCode.unsupported_version
        assert commit("", -1) is ErrorCode.unknown_member_id
        assert fetch(None, -1) is ErrorCode.none
        described = client.ask(
            ApiKey.DESCRIBE_GROUPS, 5, {"groups": ["hand"], "include_authorized_operations": False}
        )
        assert described.groups[0].group_state == "Dead"
        asked = {"group_ids": ["hand", "unknown"], "include_authorized_operations": True}
        shown, unknown = client.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, asked).groups
        assert (shown.group_epoch, shown.assignment_epoch, shown.members[0].member_epoch) == (
            epoch,
            epoch,
            epoch,
        )
        assert shown.members[0].target_assignment.topic_partitions[0].topic_name == "orders"
        assert unknown.error_code is ErrorCode.group_id_not_found
        assert beat(-1).member_epoch == -1
