"""Requests of consumer groups, as the handlers get them."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from kio.schema.errors import ErrorCode

from archiver.kafka.protocol import ApiKey
from tests.simulation.kafka.requests import Place
from tests.simulation.kafka.wire import Connection, Reply

PROTOCOL = "range"
NO_OFFSET = -1


@dataclass(frozen=True)
class Offset:
    """A committed offset with its metadata."""

    offset: int = NO_OFFSET
    metadata: str = ""


@dataclass(frozen=True)
class Stated:
    """What a member states with its requests."""

    group: str
    member_id: str = ""
    instance_id: str | None = None
    generation: int = -1


def find_coordinator(connection: Connection, key: str, *, transactional: bool = False) -> Reply:
    """Ask for the daemon that coordinates a group, or the transactions of a transactional id."""
    body = SimpleNamespace(key=key, key_type=int(transactional))
    return connection.send(ApiKey.FIND_COORDINATOR, 3, body, f"FindCoordinator {key}")


def join(connection: Connection, member: Stated, session_s: float, rebalance_s: float) -> Reply:
    """Join the group."""
    body = SimpleNamespace(
        group_id=member.group,
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        session_timeout=round(session_s * 1000),
        rebalance_timeout=round(rebalance_s * 1000),
        protocol_type="consumer",
        protocols=[SimpleNamespace(name=PROTOCOL, metadata=memoryview(struct.pack(">hii", 0, 0, 0)))],
        reason=None,
    )
    return connection.send(ApiKey.JOIN_GROUP, 9, body, f"JoinGroup of {member.member_id or 'a new member'}")


def sync(connection: Connection, member: Stated, assignments: Mapping[str, Sequence[Place]]) -> Reply:
    """Ask for the assignment; the leader brings those of all."""
    body = SimpleNamespace(
        group_id=member.group,
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        generation_id=member.generation,
        protocol_type="consumer",
        protocol_name=PROTOCOL,
        assignments=[
            SimpleNamespace(member_id=one, assignment=memoryview(json.dumps(places).encode()))
            for one, places in assignments.items()
        ],
    )
    return connection.send(ApiKey.SYNC_GROUP, 5, body, f"SyncGroup in generation {member.generation}")


def assigned(body: Mapping[str, Any]) -> list[Place]:
    """The partitions that a SyncGroup assigns."""
    return [(topic, number) for topic, number in json.loads(bytes(body["assignment"]) or b"[]")]


def heartbeat(connection: Connection, member: Stated) -> Reply:
    """The member is alive."""
    body = SimpleNamespace(
        group_id=member.group,
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        generation_id=member.generation,
    )
    return connection.send(ApiKey.HEARTBEAT, 4, body, f"Heartbeat in generation {member.generation}")


def leave(connection: Connection, member: Stated) -> Reply:
    """The member leaves."""
    one = SimpleNamespace(member_id=member.member_id, group_instance_id=member.instance_id, reason=None)
    body = SimpleNamespace(group_id=member.group, members=[one])
    return connection.send(ApiKey.LEAVE_GROUP, 5, body, "LeaveGroup")


def commit(connection: Connection, member: Stated, offsets: Mapping[Place, Offset]) -> Reply:
    """Commit offsets."""
    body = SimpleNamespace(
        group_id=member.group,
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        generation_id_or_member_epoch=member.generation,
        topics=_topics(offsets),
    )
    return connection.send(ApiKey.OFFSET_COMMIT, 8, body, f"OffsetCommit {_shown(offsets)}")


def commit_in_transaction(
    connection: Connection,
    member: Stated,
    transactional_id: str,
    producer: tuple[int, int],
    offsets: Mapping[Place, Offset],
) -> Reply:
    """Commit offsets in the open transaction of a producer, of which id and epoch are given."""
    body = SimpleNamespace(
        transactional_id=transactional_id,
        group_id=member.group,
        producer_id=producer[0],
        producer_epoch=producer[1],
        generation_id=member.generation,
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        topics=_topics(offsets),
    )
    what = f"TxnOffsetCommit of {producer} in generation {member.generation}: {_shown(offsets)}"
    return connection.send(ApiKey.TXN_OFFSET_COMMIT, 3, body, what)


def _topics(offsets: Mapping[Place, Offset]) -> list[SimpleNamespace]:
    topics: dict[str, list[SimpleNamespace]] = {}
    for (topic, partition), one in offsets.items():
        part = SimpleNamespace(
            partition_index=partition,
            committed_offset=one.offset,
            committed_leader_epoch=-1,
            committed_metadata=one.metadata,
        )
        topics.setdefault(topic, []).append(part)
    return [SimpleNamespace(name=name, partitions=parts) for name, parts in topics.items()]


def _shown(offsets: Mapping[Place, Offset]) -> dict[Place, int]:
    return {place: one.offset for place, one in sorted(offsets.items())}


def commit_codes(body: Mapping[str, Any]) -> dict[Place, int]:
    """The error code of each partition."""
    return {
        (topic["name"], part["partition_index"]): part["error_code"]
        for topic in body["topics"]
        for part in topic["partitions"]
    }


def fetch_offsets(connection: Connection, group: str, places: Sequence[Place]) -> Reply:
    """Ask for the committed offsets."""
    topics: dict[str, list[int]] = {}
    for topic, partition in places:
        topics.setdefault(topic, []).append(partition)
    body = SimpleNamespace(
        group_id=group,
        topics=[SimpleNamespace(name=name, partition_indexes=numbers) for name, numbers in topics.items()],
        require_stable=True,
    )
    return connection.send(ApiKey.OFFSET_FETCH, 7, body, f"OffsetFetch of {group}")


def unstable_places(body: Mapping[str, Any]) -> set[Place]:
    """The partitions whose offset an open transaction may replace."""
    return {
        (topic["name"], part["partition_index"])
        for topic in body["topics"]
        for part in topic["partitions"]
        if ErrorCode(part["error_code"]) is ErrorCode.unstable_offset_commit
    }


def fetched_offsets(body: Mapping[str, Any]) -> dict[Place, Offset]:
    """What an OffsetFetch found."""
    return {
        (topic["name"], part["partition_index"]): Offset(part["committed_offset"], part["metadata"])
        for topic in body["topics"]
        for part in topic["partitions"]
    }
