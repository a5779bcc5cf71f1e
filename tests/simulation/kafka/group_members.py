"""One process of a member of a consumer group: it joins, fetches offsets, reads, sleeps past its session and leaves.

It keeps the rules of Kafka's clients. A record counts as processed as soon as a member has it. Everything that a
member is answered goes to `GroupWatch`. How offsets are committed is left to the kinds of members.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

from aiokafka.record.memory_records import MemoryRecords
from kio.schema.errors import ErrorCode

from archiver.runtime.errors import RetryLater
from archiver.runtime.ids import TopicPartition
from tests.simulation.ground import Ground
from tests.simulation.kafka.consumers import Read
from tests.simulation.kafka.coordinator_link import AGAIN, ELSEWHERE, CoordinatorLink
from tests.simulation.kafka.group_requests import (
    NO_OFFSET,
    Stated,
    assigned,
    fetch_offsets,
    fetched_offsets,
    heartbeat,
    join,
    leave,
    sync,
    unstable_places,
)
from tests.simulation.kafka.group_watch import Author, GroupWatch
from tests.simulation.kafka.kafka_clients import Links
from tests.simulation.kafka.requests import Place, fetch
from tests.simulation.kafka.wire import Brokers, Connection, DaemonPort, Disconnected, answered
from tests.simulation.schedule import Process, Violation

REST_US: Final = 200_000
PATIENCE_US: Final = 6_000_000
"""Longer than a rebalance may take."""
UNKNOWN: Final = {ErrorCode.request_timed_out}
"""The commit may count."""
REJOIN: Final = {ErrorCode.rebalance_in_progress, ErrorCode.illegal_generation, ErrorCode.unknown_member_id}


@dataclass(frozen=True)
class Habits:
    """How the members of a run behave."""

    session_s: float
    rebalance_s: float
    long_sleep_us: int
    """The longest sleep without requests."""
    is_numbered: bool
    """Each commit has a number in its metadata, so that no offset is left out as unchanged."""


class Member(Protocol):
    """The actor whose processes are members."""

    group: str
    instance_id: str | None
    inputs: Collection[str] | None
    """The topics that it reads; None: all of them."""
    ground: Ground
    watch: GroupWatch
    habits: Habits
    reads: list[Read]
    batches: set[tuple[TopicPartition, int, int]]


class Membership:
    """One process of a member."""

    def __init__(self, actor: Member, process: Process, choices: random.Random, brokers: Brokers) -> None:
        self._member = actor
        self._process = process
        self._random = choices
        self._links = Links(process, brokers, choices)
        self._coordinator = CoordinatorLink(process, brokers, choices, self._links, actor.group)
        self._stated = Stated(actor.group, "", actor.instance_id)
        self._leader = ""
        self._joined_at: DaemonPort | None = None
        """Of its coordinator."""
        self._places: dict[Place, TopicPartition] = {}
        """The assignment; empty until the member has joined."""
        self._positions: dict[Place, int] = {}
        self._is_joined = False
        self._rewinds = False
        self._number = 0
        self._heard_us = 0

    def live(self, is_over: Callable[[], bool]) -> None:
        """Work until that, then end."""
        while not is_over():
            if self._process.schedule.calm:
                self._process.require_current()
            try:
                self.go_on()
            except Disconnected:
                # A replaced process goes on until then, or until it is fenced.
                self._process.require_current()
                self._process.sleep(self._random.randrange(1, REST_US))
        with suppress(Disconnected):
            self.end()

    def go_on(self) -> None:
        """One step. Raises `Disconnected`."""
        raise NotImplementedError

    def end(self) -> None:
        """The work is done. Raises `Disconnected`."""
        if self._is_joined and self._random.random() < 0.5:
            answered(leave(self._coordinator.connection(), self._stated), PATIENCE_US)

    # --- Membership

    @property
    def _is_due(self) -> bool:
        """Whether the coordinator must get a heartbeat."""
        return self._process.schedule.now_us >= self._heard_us + self._member.habits.session_s * 250_000

    def _known(self, connection: Connection) -> dict[Place, TopicPartition]:
        """The partitions that the group reads."""
        known, inputs = self._links.places(connection), self._member.inputs
        return known if inputs is None else {one: tp for one, tp in known.items() if one[0] in inputs}

    def _join(self) -> None:
        habits, actor = self._member.habits, self._member
        self._positions, self._places = {}, {}
        connection = self._coordinator.connection()
        body = answered(join(connection, self._stated, habits.session_s, habits.rebalance_s), PATIENCE_US)
        code = ErrorCode(body["error_code"])
        if code is ErrorCode.member_id_required:
            self._state(member_id=body["member_id"])
            return
        if code is not ErrorCode.none:
            self._refused("joins", code)
            return
        self._state(member_id=body["member_id"], generation=body["generation_id"])
        self._leader, self._joined_at = body["leader"], connection.port
        assignments: Mapping[str, Sequence[Place]] = {}
        if self._leader == self._stated.member_id and not body["skip_assignment"]:
            members = [one["member_id"] for one in body["members"]]
            self._random.shuffle(members)
            places = sorted(self._known(connection))
            assignments = {one: places[place :: len(members)] for place, one in enumerate(members)}
        body = answered(sync(connection, self._stated, assignments), PATIENCE_US)
        code = ErrorCode(body["error_code"])
        if code is not ErrorCode.none:
            self._refused("syncs", code)
            return
        known = self._links.places(connection)
        self._places = {place: known[place] for place in assigned(body)}
        owner = self._member.instance_id or self._stated.member_id
        actor.watch.assigned(actor.group, self._author(), owner, list(self._places.values()))
        self._is_joined, self._rewinds = True, False
        self._accepted()
        actor.ground.met["group generations"] += 1

    def _begin(self) -> None:
        """Fetch the committed offsets of the assignment."""
        actor, sent = self._member, len(self._member.ground.entries)
        connection = self._coordinator.connection()
        reply = fetch_offsets(connection, actor.group, sorted(self._places))
        body = answered(reply, PATIENCE_US)
        code = ErrorCode(body["error_code"])
        if code is not ErrorCode.none:
            self._refused("fetches offsets", code)
            return
        unstable = unstable_places(body)
        found = {place: one for place, one in fetched_offsets(body).items() if place not in unstable}
        actor.watch.fetched(
            actor.group,
            self._author(),
            sent,
            {self._places[place]: one for place, one in found.items()},
            {self._places[place] for place in unstable},
            own=connection.port is self._joined_at,
        )
        if unstable:
            # As Kafka's consumers: none of the offsets is used.
            self._process.sleep(self._random.randrange(1, REST_US))
            return
        self._positions = {
            place: 0 if one.offset == NO_OFFSET else one.offset for place, one in found.items()
        }

    def _heartbeat(self) -> None:
        body = answered(heartbeat(self._coordinator.connection(), self._stated), PATIENCE_US)
        code = ErrorCode(body["error_code"])
        if code is ErrorCode.none:
            self._accepted()
        else:
            self._refused("lives", code)

    def _hang(self) -> None:
        """The process hangs, perhaps past its session."""
        self._process.sleep(self._random.randrange(round(self._member.habits.session_s * 2e6)))

    def _leave(self) -> None:
        """Leave the group, with or without a word, and come back some time later."""
        self._is_joined = False
        if self._random.random() < 0.7:
            body = answered(leave(self._coordinator.connection(), self._stated), PATIENCE_US)
            self._member.ground.met[f"group left: {ErrorCode(body['error_code']).name}"] += 1
        self._state(member_id="", generation=-1)
        self._process.sleep(self._random.randrange(self._member.habits.long_sleep_us))

    def _state(self, *, member_id: str, generation: int = -1) -> None:
        self._stated = Stated(self._stated.group, member_id, self._stated.instance_id, generation)

    def _accepted(self) -> None:
        self._heard_us = self._process.schedule.now_us

    def _refused(self, what: str, code: ErrorCode) -> None:
        """Do as Kafka's clients do."""
        process = self._process
        process.schedule.note(process.name, f"{what}: {code.name}")
        self._member.ground.met[f"group {code.name}"] += 1
        if code in AGAIN:
            if code in ELSEWHERE:
                self._coordinator.leave()
            process.sleep(self._random.randrange(1, REST_US))
        elif code is ErrorCode.rebalance_in_progress:
            if self._is_joined and self._positions:
                self._revoked()
            self._is_joined = False
        elif code in REJOIN:
            self._is_joined = False
            # With its id, as Java's client does after an old generation.
            keeps_id = code is ErrorCode.illegal_generation
            self._state(member_id=self._stated.member_id if keeps_id else "")
        elif code is ErrorCode.fenced_instance_id:
            raise RetryLater("another process has its instance id")
        elif code not in UNKNOWN:
            raise Violation("a client that keeps the rules is served", f"{process.name} {what}: {code.name}")

    def _revoked(self) -> None:
        """The partitions are going to be another member's."""

    def _author(self) -> Author:
        number = self._number if self._member.habits.is_numbered else 0
        return Author(self._leader, self._stated.generation, self._stated.member_id, number, self._rewinds)

    # --- Records

    def _read(self, sizes: Sequence[int]) -> None:
        """Fetch from the positions on, with a limit of one of these sizes in bytes."""
        asked = dict(self._positions)
        wait_ms, bytes_max = self._random.choice((0, 100)), self._random.choice(sizes)
        body = answered(fetch(self._links.leader(), asked, wait_ms, bytes_max, committed=True), PATIENCE_US)
        for topic in body["responses"]:
            for part in topic["partitions"]:
                self._take((topic["topic"], part["partition_index"]), asked, part)

    def _take(self, place: Place, asked: Mapping[Place, int], part: Mapping[str, Any]) -> None:
        code, start = ErrorCode(part["error_code"]), asked[place]
        if code is ErrorCode.kafka_storage_error:
            return
        tp = self._places[place]
        if code is not ErrorCode.none:
            raise Violation(
                "a position is served", f"{self._process.name} at {start} of {tp} gets {code.name}"
            )
        records: dict[int, bytes] = {}
        at, data = start, MemoryRecords(b"".join(part["records"]))
        while data.has_next():
            batch = data.next_batch()
            if not batch.is_control_batch:
                self._member.batches.add((tp, batch.base_offset, batch.next_offset - 1))
                records |= {one.offset: one.value for one in batch if one.offset >= start}
            at = batch.next_offset
        if at > start:
            self._member.reads.append(Read(tp, start, at, records, part["last_stable_offset"]))
            self._member.watch.processed(self._member.group, tp, list(records))
            self._positions[place] = at
            self._process_records(place, records)

    def _process_records(self, place: Place, records: Mapping[int, bytes]) -> None:
        """What the member does with records, by their offsets."""
