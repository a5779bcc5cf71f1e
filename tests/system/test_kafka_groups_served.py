"""Daemons that coordinate consumer groups and are killed or paused: members go on at the other one, no commit of a
stale coordinator counts, and no committed offset goes backwards."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from signal import SIGCONT
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from kio.schema.errors import ErrorCode

from archiver.kafka.protocol import ApiKey
from tests.support.builders.deployment import Deployment
from tests.support.kafka.wire import WireClient
from tests.support.process.processes import until
from tests.support.process.serving import Served
from tests.system.test_kafka_listener_served import (
    CLIENT,
    PARTITIONS,
    TOPIC,
    address,
    bootstrap,
    configure,
    coordinator,
    two,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="searches /proc for descendants"),
]


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[tuple[Served, Served]]:
    deployment = Deployment(tmp_path / "d")
    configure(
        deployment,
        group_initial_rebalance_delay="100ms",
        group_session_timeout_min="1s",
        group_consumer_session_timeout="4s",
        group_consumer_heartbeat_interval="300ms",
    )
    with two(deployment, tmp_path) as found:
        yield found


def committed(client: WireClient, group: str) -> dict[int, int] | None:
    """The committed offsets; None while this daemon does not coordinate the group."""
    found = client.ask(ApiKey.OFFSET_FETCH, 7, {"group_id": group, "topics": None, "require_stable": True})
    if found.error_code is not ErrorCode.none:
        return None
    return {
        part.partition_index: part.committed_offset for topic in found.topics for part in topic.partitions
    }


OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "classic": {"group.protocol": "classic", "session.timeout.ms": 4000, "heartbeat.interval.ms": 300},
    "consumer": {"group.protocol": "consumer"},
}


class Reader(threading.Thread):
    """A member of a group that commits each record, until `finish`."""

    def __init__(self, servers: str, group: str, protocol: str = "classic", **options: Any) -> None:
        super().__init__(daemon=True)
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **OPTIONS[protocol],
                **CLIENT,
                **options,
            }
        )
        self._stopping = threading.Event()
        self.seen: dict[int, set[int]] = {number: set() for number in range(PARTITIONS)}

    def run(self) -> None:
        self._consumer.subscribe([TOPIC])
        while not self._stopping.is_set():
            message = self._consumer.poll(0.1)
            if message is None or message.error() is not None:
                continue
            partition, offset = message.partition(), message.offset()
            assert partition is not None and offset is not None
            self.seen[partition].add(offset)
            with contextlib.suppress(KafkaException):
                self._consumer.commit(message=message, asynchronous=False)
        self._consumer.close()

    def finish(self) -> None:
        self._stopping.set()
        self.join(60)
        assert not self.is_alive()


@pytest.mark.parametrize("protocols", [["classic"] * 2, ["consumer"] * 2, ["classic", "consumer"]])
def test_members_go_on_when_their_coordinator_is_killed(
    daemons: tuple[Served, Served], protocols: list[str]
) -> None:
    servers = ",".join(bootstrap(one) for one in daemons)
    place = coordinator(daemons[0], "g")
    killed = next(one for one in daemons if address(one) == place)
    (left,) = (one for one in daemons if one is not killed)
    producer = Producer({"bootstrap.servers": servers, **CLIENT})
    sent = dict.fromkeys(range(PARTITIONS), 0)

    def send(count: int) -> None:
        for number in range(PARTITIONS):
            for _ in range(count):
                producer.produce(TOPIC, b"v", partition=number)
            sent[number] += count
        assert producer.flush(60) == 0

    readers = [Reader(servers, "g", one) for one in protocols]

    def all_read() -> bool:
        return all(
            {offset for one in readers for offset in one.seen[number]} == set(range(count))
            for number, count in sent.items()
        )

    for one in readers:
        one.start()
    send(20)
    until("all is read", all_read)
    with WireClient(address(killed)) as client:
        before = until("it is committed", lambda: committed(client, "g"))
    killed.kill()
    with WireClient(address(left)) as client:
        after = until("the other coordinates", lambda: committed(client, "g"))
        assert all(after[number] >= offset for number, offset in before.items())
        send(20)
        until("the rest is read", all_read)
        newest = dict(after)

        def all_committed() -> bool:
            found = committed(client, "g")
            assert found is not None
            assert all(found[number] >= offset for number, offset in newest.items()), (found, newest)
            newest.update(found)
            return newest == sent

        until("the rest is committed", all_committed)
    for one in readers:
        one.finish()


class Member(WireClient):
    """A member by hand, alone in its group."""

    generation = -1
    member_id = ""

    def enter(self) -> None:
        joining = {
            "group_id": "g",
            "session_timeout": 60_000,
            "rebalance_timeout": 60_000,
            "member_id": "",
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
        }
        first = self.ask(ApiKey.JOIN_GROUP, 5, joining)
        joined = self.ask(ApiKey.JOIN_GROUP, 5, {**joining, "member_id": first.member_id})
        assert joined.error_code is ErrorCode.none
        self.generation, self.member_id = joined.generation_id, joined.member_id
        syncing = {**self._identity(), "generation_id": self.generation, "assignments": []}
        assert self.ask(ApiKey.SYNC_GROUP, 3, syncing).error_code is ErrorCode.none

    def committing(self, offset: int) -> dict[str, Any]:
        part = {"partition_index": 0, "committed_offset": offset, "committed_metadata": None}
        return {
            **self._identity(),
            "generation_id_or_member_epoch": self.generation,
            "topics": [{"name": TOPIC, "partitions": [{**part, "committed_leader_epoch": -1}]}],
        }

    def commit(self, offset: int) -> ErrorCode:
        found = self.ask(ApiKey.OFFSET_COMMIT, 7, self.committing(offset))
        code: ErrorCode = found.topics[0].partitions[0].error_code
        return code

    def _identity(self) -> dict[str, Any]:
        return {"group_id": "g", "member_id": self.member_id, "group_instance_id": None}


def test_a_paused_coordinator_commits_nothing_when_it_wakes(daemons: tuple[Served, Served]) -> None:
    place = coordinator(daemons[0], "g")
    paused = next(one for one in daemons if address(one) == place)
    (other,) = (one for one in daemons if one is not paused)
    with WireClient(address(other)) as client:
        assert committed(client, "g") is None, "it is the other one's group"
    with Member(address(paused)) as stale, Member(address(other)) as new:
        stale.enter()
        assert stale.commit(5) is ErrorCode.none
        paused.pause()
        until("the other coordinates", lambda: coordinator(other, "g") == address(other))
        assert until("it has the offsets", lambda: committed(new, "g")) == {0: 5}
        new.enter()
        assert new.commit(9) is ErrorCode.none
        # They wait in the socket, so the first thing that the daemon does is to believe them.
        stale.send(ApiKey.OFFSET_COMMIT, 7, stale.committing(6))
        stale.send(ApiKey.OFFSET_FETCH, 7, {"group_id": "g", "topics": None, "require_stable": True})
        paused.signal(SIGCONT)
        answers = stale.receive(), stale.receive()
        code = int.from_bytes(answers[0][-2:], "big", signed=True)
        assert ErrorCode(code) in (ErrorCode.not_coordinator, ErrorCode.unknown_member_id)
        # No old offset in any answer: either none at all, or the newest.
        assert (5).to_bytes(8, "big") not in answers[1]

        def newest() -> dict[int, int] | None:
            place = coordinator(other, "g")
            if place is None:
                return None
            with WireClient(place) as client:
                return committed(client, "g")

        assert until("the group is coordinated", newest) == {0: 9}


class Consuming(WireClient):
    """A member of the consumer protocol by hand."""

    def beat(self, member_id: str, epoch: int, owned: Any = None) -> Any:
        full = owned is not None
        return self.ask(
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
            1,
            {
                "group_id": "g",
                "member_id": member_id,
                "member_epoch": epoch,
                "instance_id": None,
                "rack_id": None,
                "rebalance_timeout": 60_000 if full else -1,
                "subscribed_topic_names": [TOPIC] if full else None,
                "subscribed_topic_regex": None,
                "server_assignor": None,
                "topic_partitions": owned,
            },
        )


def test_a_partition_is_not_given_away_while_its_owner_may_read_it(daemons: tuple[Served, Served]) -> None:
    """A coordinator is paused and wakes. Its members get an error, and the next one waits for them."""
    place = coordinator(daemons[0], "g")
    paused = next(one for one in daemons if address(one) == place)
    (other,) = (one for one in daemons if one is not paused)
    with Consuming(address(paused)) as stale, Consuming(address(other)) as new:
        joined = stale.beat("m", 0, [])
        assert [len(one.partitions) for one in joined.assignment.topic_partitions] == [PARTITIONS]
        paused.pause()
        until("the other coordinates", lambda: coordinator(other, "g") == address(other))
        first = new.beat("n", 0, [])
        assert (first.error_code, first.assignment.topic_partitions) == (ErrorCode.none, ())
        # The member is asked what it owns, and gets that back once it has abandoned it.
        assert new.beat("m", joined.member_epoch).error_code is ErrorCode.not_coordinator
        owned = [
            {"topic_id": one.topic_id, "partitions": list(one.partitions)[:1]}
            for one in joined.assignment.topic_partitions
        ]
        assert new.beat("m", joined.member_epoch, owned).error_code is ErrorCode.unknown_member_id
        assert new.beat("n", first.member_epoch).assignment is None
        (back,) = new.beat("m", 0, []).assignment.topic_partitions
        assert list(back.partitions) == owned[0]["partitions"]
        # It joins once more, which gives up nothing that the other one could get before the wait is over.
        epochs = {"n": first.member_epoch, "m": 0}
        known = {"m": 1, "n": 0}

        def all_assigned() -> bool:
            for member_id, epoch in list(epochs.items()):
                answer = new.beat(member_id, epoch, None if epoch else [])
                assert answer.error_code is ErrorCode.none
                epochs[member_id] = answer.member_epoch
                if answer.assignment is not None:
                    known[member_id] = sum(len(one.partitions) for one in answer.assignment.topic_partitions)
            return sum(known.values()) == PARTITIONS

        until("the wait is over", all_assigned)
        paused.signal(SIGCONT)
        assert stale.beat("m", joined.member_epoch).error_code is ErrorCode.not_coordinator
