"""Consumer groups over the listener: real clients, and the errors of each request."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from kafka import KafkaConsumer
from kio.schema.errors import ErrorCode

from archiver.kafka.protocol import VERSIONS, ApiKey
from intake.log.checkpoint import CheckpointStore
from intake.log.committed_offsets import Commit, CommittedOffsets, OffsetBounds, TopicCommit
from intake.log.consumer_groups import slot_of
from intake.log.sequencer import Sequencer
from tests.support.kafka.listening import Listening, configured, listening
from tests.support.kafka.wire import WireClient
from tests.support.process.processes import until

pytestmark = pytest.mark.timeout(120)

TOPICS = [{"name": name, "partitions": 4} for name in ("orders", "clicks", "hidden")]
QUICK = {"group_initial_rebalance_delay": "100ms", "group_session_timeout_min": "100ms"}
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
    """A confluent consumer in a thread: what it has, and what it was assigned."""

    def __init__(self, served: Listening, group: str, **options: Any) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": served.bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 200,
                **options,
            }
        )
        self.values: list[bytes] = []
        self.assigned: set[int] = set()
        self.changes: list[tuple[str, tuple[int, ...]]] = []
        self._stopping = threading.Event()
        self._consumer.subscribe(["orders"], on_assign=self._got, on_revoke=self._lost)
        self._cooperative = options.get("partition.assignment.strategy") == "cooperative-sticky"
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _got(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        numbers = tuple(sorted(one.partition for one in partitions))
        self.changes.append(("+", numbers))
        self.assigned = (self.assigned if self._cooperative else set()) | set(numbers)

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        numbers = tuple(sorted(one.partition for one in partitions))
        self.changes.append(("-", numbers))
        self.assigned -= set(numbers)

    def _run(self) -> None:
        while not self._stopping.is_set():
            message = self._consumer.poll(0.05)
            if message is not None and message.error() is None:
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


EACH = dict.fromkeys(range(4), COUNT // 4)


def test_groups_are_watched_without_a_request(served: Listening) -> None:
    """Their offsets expire also if no client comes back."""
    until("the port is open", lambda: served.service.server.loop is not None)
    until("groups are watched", lambda: served.service._coordinator._task is not None)


# --- Real clients.
@pytest.mark.parametrize("assignor", ["range", "roundrobin", "cooperative-sticky"])
def test_two_members_share_the_partitions_and_one_goes_on_alone(served: Listening, assignor: str) -> None:
    group, options = f"share-{assignor}", {"partition.assignment.strategy": assignor}
    first = Reader(served, group, **options)
    until("the first has all", lambda: first.assigned == {0, 1, 2, 3} and len(first.values) == COUNT)
    second = Reader(served, group, **options)
    until("both have two", lambda: len(first.assigned) == len(second.assigned) == 2)
    assert first.assigned | second.assigned == {0, 1, 2, 3}
    if assignor == "cooperative-sticky":
        # Only what moves is revoked.
        assert [len(numbers) for sign, numbers in first.changes if sign == "-"] == [2]
    first.close()
    until("the second has all", lambda: second.assigned == {0, 1, 2, 3})
    second.close()
    assert committed(served, group) == EACH
    # Everything was committed, so nothing was read twice.
    assert second.values == []


def test_a_consumer_that_starts_again_resumes(served: Listening) -> None:
    first = Reader(served, "resume")
    until("it has read", lambda: len(first.values) == COUNT)
    first.close()
    again = Consumer({"bootstrap.servers": served.bootstrap, "group.id": "resume"})
    found = again.committed([TopicPartition("orders", number) for number in range(4)], timeout=20)
    assert [one.offset for one in found] == [25] * 4
    again.commit(offsets=[TopicPartition("orders", 1, 7, "why", 0)], asynchronous=False)
    (other,) = again.committed([TopicPartition("orders", 1)], timeout=20)
    assert (other.offset, other.metadata) == (7, "why")
    again.close()
    second = Reader(served, "resume")
    until("the rest is read again", lambda: len(second.values) == 18)
    second.close()


def test_a_static_member_keeps_its_partitions_through_a_restart(served: Listening) -> None:
    options = {"partition.assignment.strategy": "range"}
    readers = [Reader(served, "static", **options, **{"group.instance.id": name}) for name in ("a", "b")]
    until("both have two", lambda: all(len(one.assigned) == 2 for one in readers))
    held = readers[1].assigned
    before = served.service.state.groups.rebalances
    readers[1].close()
    again = Reader(served, "static", **options, **{"group.instance.id": "b"})
    until("it has them again", lambda: again.assigned == held)
    assert served.service.state.groups.rebalances == before
    # A second process with the same id fences the first one.
    third = Reader(served, "static", **options, **{"group.instance.id": "b"})
    until("the newest has them", lambda: third.assigned == held)
    for one in (readers[0], third):
        one.close()
    with contextlib.suppress(KafkaException, RuntimeError):
        again.close()


def test_aiokafka_and_kafka_python_in_one_group(served: Listening) -> None:
    async def read() -> int:
        consumer = AIOKafkaConsumer(
            "orders",
            bootstrap_servers=served.bootstrap,
            group_id="python",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await consumer.start()
        try:
            count = 0
            while count < COUNT:
                found = await consumer.getmany(timeout_ms=500)
                count += sum(len(records) for records in found.values())
            await consumer.commit()
            return count
        finally:
            await consumer.stop()

    assert asyncio.run(read()) == COUNT
    assert committed(served, "python") == EACH
    consumer = KafkaConsumer(
        "orders", bootstrap_servers=served.bootstrap, group_id="python", auto_offset_reset="earliest"
    )
    try:

        def assigned() -> set[int]:
            assert consumer.poll(timeout_ms=500) == {}
            return {one.partition for one in consumer.assignment()}

        until("it has all partitions", lambda: assigned() == {0, 1, 2, 3})
        assert assigned() == {0, 1, 2, 3}
    finally:
        consumer.close()


# --- Requests by hand.
class Member(WireClient):
    """One connection of a member of a group."""

    def __init__(self, served: Listening, group: str) -> None:
        super().__init__(served.address)
        self.group = group

    def joining(self, member_id: str = "", **more: Any) -> dict[str, Any]:
        return {
            "group_id": self.group,
            "session_timeout": 60_000,
            "rebalance_timeout": 60_000,
            "member_id": member_id,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": SUBSCRIPTION}],
            "reason": None,
            **more,
        }

    def join(self, version: int = 9, **more: Any) -> Any:
        return self.ask(ApiKey.JOIN_GROUP, version, self.joining(**more))

    def enter(self, **more: Any) -> Any:
        """Join as clients do."""
        return self.join(member_id=self.join(**more).member_id, **more)

    def sync(self, joined: Any, version: int = 5, **more: Any) -> Any:
        return self.ask(
            ApiKey.SYNC_GROUP,
            version,
            {
                "group_id": self.group,
                "generation_id": joined.generation_id,
                "member_id": joined.member_id,
                "group_instance_id": None,
                "protocol_type": "consumer",
                "protocol_name": "range",
                "assignments": [{"member_id": joined.member_id, "assignment": b"all"}],
                **more,
            },
        )

    def commit(
        self, offset: int, generation: int = -1, member_id: str = "", version: int = 8, **more: Any
    ) -> Any:
        parts = [
            {
                "partition_index": 0,
                "committed_offset": offset,
                "committed_leader_epoch": 0,
                "committed_metadata": more.pop("metadata", None),
            }
        ]
        return self.ask(
            ApiKey.OFFSET_COMMIT,
            version,
            {
                "group_id": self.group,
                "generation_id_or_member_epoch": generation,
                "member_id": member_id,
                "group_instance_id": None,
                "topics": [{"name": more.pop("topic", "orders"), "partitions": parts}],
                **more,
            },
        )

    def code_of_commit(self, *arguments: Any, **more: Any) -> ErrorCode:
        code: ErrorCode = self.commit(*arguments, **more).topics[0].partitions[0].error_code
        return code

    def fetch(self, version: int = 7, topics: Any = None) -> Any:
        body = {"group_id": self.group, "topics": topics, "require_stable": True}
        return self.ask(ApiKey.OFFSET_FETCH, version, body)


SUBSCRIPTION = struct.pack(">hih6s", 0, 1, 6, b"orders") + struct.pack(">i", -1)


@pytest.fixture
def member(served: Listening, request: pytest.FixtureRequest) -> Iterator[Member]:
    with Member(served, request.node.name) as made:
        yield made


def test_every_version_of_the_membership(served: Listening) -> None:
    for version in range(VERSIONS[ApiKey.JOIN_GROUP][1] + 1):
        with Member(served, f"version-{version}") as member:
            joined = member.join(version)
            if version >= 4:
                assert joined.error_code is ErrorCode.member_id_required
                joined = member.join(version, member_id=joined.member_id)
            assert (joined.error_code, joined.generation_id) == (ErrorCode.none, 1)
            assert joined.leader == joined.member_id
            assert joined.members[0].metadata == SUBSCRIPTION
            synced = member.sync(joined, min(version, 5))
            assert (synced.error_code, synced.assignment) == (ErrorCode.none, b"all")
            stated = {
                "group_id": member.group,
                "generation_id": 1,
                "member_id": joined.member_id,
                "group_instance_id": None,
            }
            assert member.ask(ApiKey.HEARTBEAT, min(version, 4), stated).error_code is ErrorCode.none
            identity = {"member_id": joined.member_id, "group_instance_id": None, "reason": None}
            left = member.ask(
                ApiKey.LEAVE_GROUP,
                min(version, 5),
                {"group_id": member.group, "member_id": joined.member_id, "members": [identity]},
            )
            assert left.error_code is ErrorCode.none
            again = member.ask(ApiKey.HEARTBEAT, min(version, 4), stated)
            assert again.error_code is ErrorCode.unknown_member_id


def test_a_classic_member_may_state_its_generation_in_a_fetch_of_offsets(member: Member) -> None:
    joined = member.enter()
    member.sync(joined)
    assert member.code_of_commit(5, joined.generation_id, joined.member_id) is ErrorCode.none

    def fetched(member_id: str | None, epoch: int, group: str = member.group) -> Any:
        asked = {"group_id": group, "member_id": member_id, "member_epoch": epoch, "topics": None}
        return member.ask(ApiKey.OFFSET_FETCH, 9, {"groups": [asked], "require_stable": True}).groups[0]

    for member_id, epoch in ((None, -1), (joined.member_id, 1), (joined.member_id, 7), ("other", 1)):
        found = fetched(member_id, epoch)
        assert found.error_code is ErrorCode.none
        assert found.topics[0].partitions[0].committed_offset == 5
    # A group without members here: after a change of coordinator this makes them join again.
    assert fetched("other", 1, f"{member.group}-unknown").error_code is ErrorCode.unknown_member_id


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"group_id": ""}, ErrorCode.invalid_group_id),
        ({"group_id": "x" * 1025}, ErrorCode.invalid_group_id),
        ({"session_timeout": 99}, ErrorCode.invalid_session_timeout),
        ({"session_timeout": 2**31 - 1}, ErrorCode.invalid_session_timeout),
        ({"member_id": "unknown"}, ErrorCode.unknown_member_id),
        ({"protocols": []}, ErrorCode.inconsistent_group_protocol),
        ({"protocols": [{"name": "range", "metadata": bytes(2**20)}]}, ErrorCode.message_too_large),
    ],
)
def test_joins_that_are_refused(member: Member, more: dict[str, Any], code: ErrorCode) -> None:
    assert member.join(**more).error_code is code


def test_commits_and_what_they_answer(member: Member) -> None:
    assert member.code_of_commit(5) is ErrorCode.none, "without members, as tools do"
    joined = member.enter()
    member.sync(joined)
    mine = (joined.generation_id, joined.member_id)
    assert member.code_of_commit(7, *mine) is ErrorCode.none
    assert member.code_of_commit(8) is ErrorCode.unknown_member_id
    assert member.code_of_commit(8, 9, joined.member_id) is ErrorCode.illegal_generation
    assert member.code_of_commit(8, 1, "x") is ErrorCode.unknown_member_id
    assert member.code_of_commit(-1, *mine) is ErrorCode.invalid_request
    assert member.code_of_commit(2**63 - 1, *mine) is ErrorCode.none
    assert member.code_of_commit(8, *mine, metadata="x" * 4097) is ErrorCode.offset_metadata_too_large
    assert member.code_of_commit(8, *mine, topic="unknown") is ErrorCode.unknown_topic_or_partition
    assert member.code_of_commit(9, *mine, metadata="ü") is ErrorCode.none
    for version in range(2, 8):
        (topic,) = member.fetch(version).topics
        (part,) = topic.partitions
        assert (topic.name, part.committed_offset, part.metadata) == ("orders", 9, "ü")
    asked = [{"name": "orders", "partition_indexes": [0, 1]}, {"name": "unknown", "partition_indexes": [0]}]
    for version in range(1, 8):
        known, unknown = member.fetch(version, asked).topics
        assert [one.committed_offset for one in known.partitions] == [9, -1]
        assert [one.committed_offset for one in unknown.partitions] == [-1]
    groups = [{"group_id": member.group, "topics": None}, {"group_id": "other", "topics": None}]
    found = member.ask(ApiKey.OFFSET_FETCH, 8, {"groups": groups, "require_stable": False}).groups
    assert [len(one.topics) for one in found] == [1, 0]


def test_a_member_that_only_the_coordinator_before_knew_joins_again(member: Member) -> None:
    assert member.code_of_commit(1, 4, "of-before") is ErrorCode.unknown_member_id
    assert member.join(member_id="of-before").error_code is ErrorCode.unknown_member_id


def test_a_waiting_member_that_is_gone_holds_nothing(served: Listening, member: Member) -> None:
    joined = member.enter()
    member.sync(joined)
    counts = served.service.state.counts
    with Member(served, member.group) as gone:
        first = gone.join()
        open_connections = counts.connections
        gone.send(ApiKey.JOIN_GROUP, 9, gone.joining(first.member_id))
        beating = {"group_id": member.group, "member_id": joined.member_id, "generation_id": 1}
        until(
            "the join is in work",
            lambda: (
                member.ask(ApiKey.HEARTBEAT, 4, {**beating, "group_instance_id": None}).error_code
                is ErrorCode.rebalance_in_progress
            ),
        )
    until("its connection is closed", lambda: counts.connections < open_connections)


def test_a_member_may_wait_longer_than_a_connection_may_rest(tmp_path: Path) -> None:
    kafka = {**QUICK, "group_initial_rebalance_delay": "2500ms", "connections_idle": "1s"}
    with listening(configured(tmp_path, TOPICS, kafka=kafka)) as served, Member(served, "g") as member:
        assert member.enter().generation_id == 1
        # Then it is idle.
        assert member.closed()


def test_large_metadata_of_waiting_members_leaves_room_for_others(tmp_path: Path) -> None:
    kafka = {
        **QUICK,
        "request_bytes_max": "1MiB",
        "requests_bytes_max": "1MiB",
        "group_initial_rebalance_delay": "2s",
    }
    with listening(configured(tmp_path, TOPICS, kafka=kafka)) as served, contextlib.ExitStack() as stack:
        members = [stack.enter_context(Member(served, "large")) for _ in range(8)]
        large = [{"name": "range", "metadata": bytes(400_000)}]
        ids = [one.join(protocols=large).member_id for one in members]
        with ThreadPoolExecutor(8) as threads:
            found = list(
                threads.map(
                    lambda pair: pair[0].join(member_id=pair[1], protocols=large),
                    zip(members, ids, strict=True),
                )
            )
        # All of them wait at the same time, though two of them are as large as the memory for requests.
        assert [one.generation_id for one in found] == [1] * 8


def test_bounds_of_groups_and_their_memory(tmp_path: Path) -> None:
    kafka = {**QUICK, "groups_max": 2, "group_members_max": 1, "groups_bytes_max": "1MiB"}
    with (
        listening(configured(tmp_path, TOPICS, kafka=kafka)) as served,
        Member(served, "one") as one,
        Member(served, "two") as two,
        Member(served, "three") as three,
    ):
        first = one.enter()
        assert first.error_code is ErrorCode.none
        with Member(served, "one") as other:
            assert other.join().error_code is ErrorCode.group_max_size_reached
        assert two.enter().error_code is ErrorCode.none
        assert three.join().error_code is ErrorCode.coordinator_not_available
        identity = {"member_id": first.member_id, "group_instance_id": None, "reason": None}
        one.ask(ApiKey.LEAVE_GROUP, 5, {"group_id": "one", "members": [identity]})
        # An empty group gives way.
        assert three.join().error_code is ErrorCode.member_id_required
        large = [{"name": "range", "metadata": bytes(2**20 - 1000)}]
        assert three.join(protocols=large).error_code is ErrorCode.coordinator_not_available


# --- Administration.
def admin(member: Member, api: ApiKey, body: dict[str, Any], version: int | None = None) -> Any:
    return member.ask(api, VERSIONS[api][1] if version is None else version, body)


def listed(member: Member, states: tuple[str, ...] = (), types: tuple[str, ...] = ()) -> dict[str, Any]:
    found = admin(member, ApiKey.LIST_GROUPS, {"states_filter": states, "types_filter": types})
    return {one.group_id: (one.group_state, one.protocol_type, one.group_type) for one in found.groups}


def test_groups_are_listed_described_and_deleted(served: Listening, member: Member) -> None:
    group = member.group
    describing = {"groups": [group], "include_authorized_operations": True}
    (found,) = admin(member, ApiKey.DESCRIBE_GROUPS, describing).groups
    assert (found.error_code, found.group_state) == (ErrorCode.none, "Dead")
    assert _deleted(member, group) is ErrorCode.group_id_not_found
    joined = member.enter()
    assert listed(member)[group] == ("CompletingRebalance", "consumer", "classic")
    member.sync(joined)
    member.commit(3, 1, joined.member_id)
    assert listed(member, ("stable",), ("Classic",))[group] == ("Stable", "consumer", "classic")
    assert group not in listed(member, ("empty",))
    assert listed(member, types=("consumer",)) == {}
    for version in range(6):
        (found,) = admin(member, ApiKey.DESCRIBE_GROUPS, describing, version).groups
        (one,) = found.members
        assert (found.protocol_data, one.member_metadata, one.member_assignment) == (
            "range",
            SUBSCRIPTION,
            b"all",
        )
        assert (one.client_id, one.client_host) == ("test", "/127.0.0.1")
    assert found.authorized_operations == 1 << 3 | 1 << 6 | 1 << 8
    assert _deleted(member, group) is ErrorCode.non_empty_group
    deleting = {
        "group_id": group,
        "topics": [_partition("orders", 0), _partition("clicks", 0), _partition("?", 0)],
    }
    found = admin(member, ApiKey.OFFSET_DELETE, deleting)
    assert [one.partitions[0].error_code for one in found.topics] == [
        ErrorCode.group_subscribed_to_topic,
        ErrorCode.none,
        ErrorCode.unknown_topic_or_partition,
    ]
    identity = {"member_id": joined.member_id, "group_instance_id": None, "reason": None}
    admin(member, ApiKey.LEAVE_GROUP, {"group_id": group, "members": [identity]})
    assert listed(member, ("Empty",))[group] == ("Empty", "consumer", "classic")
    found = admin(member, ApiKey.OFFSET_DELETE, {"group_id": group, "topics": [_partition("orders", 0)]})
    assert found.topics[0].partitions[0].error_code is ErrorCode.none
    assert member.fetch().topics == ()
    assert _deleted(member, group) is ErrorCode.none
    assert group not in listed(member)


def test_a_group_of_another_type_keeps_its_offsets_while_it_has_members(member: Member) -> None:
    joined = member.enter(protocol_type="connect")
    found = admin(
        member, ApiKey.OFFSET_DELETE, {"group_id": member.group, "topics": [_partition("orders", 0)]}
    )
    assert found.error_code is ErrorCode.non_empty_group
    assert joined.protocol_type == "connect"
    missing = admin(member, ApiKey.OFFSET_DELETE, {"group_id": "no-such", "topics": []})
    assert missing.error_code is ErrorCode.group_id_not_found


def _deleted(member: Member, group: str) -> ErrorCode:
    (found,) = admin(member, ApiKey.DELETE_GROUPS, {"groups_names": [group]}).results
    code: ErrorCode = found.error_code
    return code


def _partition(topic: str, number: int) -> dict[str, Any]:
    return {"name": topic, "partitions": [{"partition_index": number}]}


def test_groups_find_their_coordinator(served: Listening, member: Member) -> None:
    for version in range(5):
        body = {"key": "any", "key_type": 0, "coordinator_keys": ["any", "other"]}
        found = admin(member, ApiKey.FIND_COORDINATOR, body, version)
        for one in found.coordinators if version >= 4 else [found]:
            assert (one.error_code, (one.host, one.port)) == (ErrorCode.none, served.address)
    refused = admin(member, ApiKey.FIND_COORDINATOR, {"key": "g:t:0", "key_type": 2}, 3)
    assert refused.error_code is ErrorCode.invalid_request


def elsewhere(served: Listening, group: str) -> tuple[CommittedOffsets, int]:
    """Another process, which claims the slot of a group; this one has not read that yet."""
    found = served.application
    sequencer = Sequencer(
        found.intake_log, found.ids, found.clock, found.settings.log, CheckpointStore(found.objects)
    )
    offsets = CommittedOffsets(sequencer, found.clock, OffsetBounds(2**30, 1))
    return offsets, offsets.claim_slots([slot_of(group)], 99)


def test_offsets_are_not_read_under_an_old_claim(served: Listening, member: Member) -> None:
    assert member.code_of_commit(3) is ErrorCode.none
    # Before: it reads the log.
    topic = TopicCommit(served.application.topic("orders").topic_id, [0], [9])
    other, claim = elsewhere(served, member.group)
    assert other.commit([Commit(member.group, claim, [topic])]) == ["ok"]
    assert member.fetch().error_code is ErrorCode.not_coordinator
    until("it coordinates again", lambda: member.fetch().error_code is ErrorCode.none)
    assert member.fetch().topics[0].partitions[0].committed_offset == 9


def test_a_commit_under_an_old_claim_ends_the_membership(served: Listening, member: Member) -> None:
    joined = member.enter()
    member.sync(joined)
    mine = (joined.generation_id, joined.member_id)
    assert member.code_of_commit(3, *mine) is ErrorCode.none
    lost = served.service.state.groups.slots_lost
    elsewhere(served, member.group)
    assert member.code_of_commit(4, *mine) is ErrorCode.not_coordinator
    assert served.service.state.groups.slots_lost == lost + 1
    # The next claim is its own again, after a pause, and the member joins again.
    until("it coordinates again", lambda: member.fetch().error_code is ErrorCode.none)
    # Before it has joined, its group must not count as empty.
    loading, group = ErrorCode.coordinator_load_in_progress, member.group
    assert _deleted(member, group) is loading
    deleting = {"group_id": group, "topics": [_partition("orders", 0)]}
    assert admin(member, ApiKey.OFFSET_DELETE, deleting).error_code is loading
    (described,) = admin(
        member, ApiKey.DESCRIBE_GROUPS, {"groups": [group], "include_authorized_operations": False}
    ).groups
    assert described.error_code is loading
    assert member.code_of_commit(4, *mine) is ErrorCode.unknown_member_id
    assert member.fetch().topics[0].partitions[0].committed_offset == 3
    member.sync(member.enter())
    assert _deleted(member, group) is ErrorCode.non_empty_group


# --- Permissions.
RULES = [
    {
        "principal": "User:ANONYMOUS",
        "operations": ["read"],
        "groups": ["mine", "mine-*"],
        "topics": ["orders"],
    },
    {"principal": "User:ANONYMOUS", "operations": ["describe"], "groups": ["seen"]},
    {"principal": "User:ANONYMOUS", "operations": ["delete"], "groups": ["mine-gone"]},
]


@pytest.fixture(scope="module")
def ruled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    root = tmp_path_factory.mktemp("ruled")
    # Offsets that exist, by a listener that allows everything.
    with listening(configured(root, TOPICS, kafka=QUICK)) as found:
        for group in ("mine", "mine-gone", "seen", "theirs"):
            for topic in ("orders", "hidden"):
                with Member(found, group) as member:
                    assert member.code_of_commit(5, topic=topic) is ErrorCode.none
    with (
        pytest.MonkeyPatch.context() as patch,
        listening(configured(root, TOPICS, kafka={**QUICK, "acls": RULES})) as found,
    ):
        # The first listener had no members that could join again.
        patch.setattr(found.service._coordinator.claims, "may_rejoin", lambda _slot: False)
        yield found


DENIED = ErrorCode.group_authorization_failed


@pytest.mark.parametrize("group", ["theirs", "no-such-group"])
def test_a_group_that_is_not_allowed_looks_like_one_that_does_not_exist(ruled: Listening, group: str) -> None:
    with Member(ruled, group) as member:
        joined = member.join(member_id="m")
        assert (joined.error_code, joined.member_id) == (DENIED, "m")
        assert member.sync(joined).error_code is DENIED
        beating = {"group_id": group, "member_id": "m", "generation_id": 1, "group_instance_id": None}
        assert admin(member, ApiKey.HEARTBEAT, beating).error_code is DENIED
        identity = {"member_id": "m", "group_instance_id": None, "reason": None}
        left = admin(member, ApiKey.LEAVE_GROUP, {"group_id": group, "members": [identity]})
        assert (left.error_code, left.members) == (DENIED, ())
        assert member.code_of_commit(6) is DENIED
        assert (member.fetch().error_code, member.fetch().topics) == (DENIED, ())
        described = admin(
            member, ApiKey.DESCRIBE_GROUPS, {"groups": [group], "include_authorized_operations": True}
        )
        (found,) = described.groups
        assert (found.error_code, found.group_state, found.members) == (DENIED, "", ())
        assert found.authorized_operations == -(2**31)
        assert _deleted(member, group) is DENIED
        deleting = {"group_id": group, "topics": [_partition("orders", 0)]}
        assert admin(member, ApiKey.OFFSET_DELETE, deleting).error_code is DENIED
        finding = {"key_type": 0, "coordinator_keys": [group]}
        (one,) = admin(member, ApiKey.FIND_COORDINATOR, finding).coordinators
        assert (one.error_code, one.host, one.port) == (DENIED, "", -1)


def test_only_groups_that_may_be_seen_are_listed(ruled: Listening) -> None:
    with Member(ruled, "seen") as member:
        assert set(listed(member)) == {"mine", "mine-gone", "seen"}
        assert member.code_of_commit(6) is DENIED
        assert _deleted(member, "mine") is DENIED


@pytest.mark.parametrize("topic", ["hidden", "no-such-topic"])
def test_a_topic_that_is_not_allowed_looks_like_one_that_does_not_exist(ruled: Listening, topic: str) -> None:
    with Member(ruled, "mine") as member:
        assert member.code_of_commit(6, topic=topic) is ErrorCode.topic_authorization_failed
        asked = [{"name": topic, "partition_indexes": [0]}]
        (part,) = member.fetch(topics=asked).topics[0].partitions
        assert (part.error_code, part.committed_offset) == (ErrorCode.topic_authorization_failed, -1)
        # All topics of the group are asked for: those that may be seen.
        assert [one.name for one in member.fetch().topics] == ["orders"]
    with Member(ruled, "mine-gone") as member:
        deleting = {"group_id": "mine-gone", "topics": [_partition(topic, 0)]}
        found = admin(member, ApiKey.OFFSET_DELETE, deleting)
        assert found.topics[0].partitions[0].error_code is ErrorCode.topic_authorization_failed
