"""Members of consumer groups: they join, fetch, process, commit, sleep past their session, leave and come back.

They keep the rules of Kafka's clients. A record counts as processed as soon as a member has it, and a commit
states the end of what was processed. Everything that a member is answered goes to `GroupWatch`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiokafka.record.memory_records import MemoryRecords
from kio.schema.errors import ErrorCode

from archiver.runtime.errors import RetryLater
from archiver.runtime.ids import TopicPartition
from tests.simulation.ground import Ground
from tests.simulation.kafka.consumers import Read
from tests.simulation.kafka.coordinator_link import AGAIN, CoordinatorLink
from tests.simulation.kafka.group_requests import (
    NO_OFFSET,
    Offset,
    Stated,
    assigned,
    commit,
    commit_codes,
    fetch_offsets,
    fetched_offsets,
    heartbeat,
    join,
    leave,
    sync,
)
from tests.simulation.kafka.group_watch import Author, GroupWatch
from tests.simulation.kafka.kafka_clients import Links
from tests.simulation.kafka.requests import Place, fetch
from tests.simulation.kafka.wire import Brokers, DaemonPort, Disconnected, Reply, answered
from tests.simulation.schedule import Process, Violation

_REST_US = 200_000
_PATIENCE_US = 6_000_000
"""Longer than a rebalance may take."""
_UNKNOWN = {ErrorCode.request_timed_out}
"""The commit may count."""
_REJOIN = {ErrorCode.rebalance_in_progress, ErrorCode.illegal_generation, ErrorCode.unknown_member_id}


@dataclass(frozen=True)
class Habits:
    """How the members of a run behave."""

    session_s: float
    rebalance_s: float
    long_sleep_us: int
    """The longest sleep without requests."""
    is_numbered: bool
    """Each commit has a number in its metadata, so that no offset is left out as unchanged."""


@dataclass(frozen=True)
class _Open:
    """A commit without an answer so far."""

    reply: Reply
    sent: int
    """Entries of the log when it was sent."""
    offsets: Mapping[TopicPartition, Offset]


class GroupConsumer:
    """A member of a group until all senders have finished and the group has read everything."""

    def __init__(
        self,
        name: str,
        group: str,
        instance_id: str | None,
        ground: Ground,
        watch: GroupWatch,
        choices: random.Random,
        brokers: Brokers,
        senders_finished: Callable[[], bool],
        habits: Habits,
    ) -> None:
        self.name = name
        self.group = group
        self.instance_id = instance_id
        self.ground = ground
        self.watch = watch
        self.habits = habits
        self._random = choices
        self._brokers = brokers
        self._senders_finished = senders_finished
        self.committed = True
        self.ends = 0
        self.reads: list[Read] = []
        self.batches: set[tuple[TopicPartition, int, int]] = set()

    def is_over(self) -> bool:
        """Whether nothing is left to do."""
        return self._senders_finished() and self.watch.is_read(self.group)

    def live(self, process: Process) -> None:
        membership = _Membership(self, process, self._random, self._brokers)
        while not self.is_over():
            if process.schedule.calm:
                process.require_current()
            try:
                membership.go_on()
            except Disconnected:
                # A replaced process goes on as a member until then.
                process.require_current()
                process.sleep(self._random.randrange(1, _REST_US))
        membership.end()


class _Membership:
    """One process of a member."""

    def __init__(
        self, actor: GroupConsumer, process: Process, choices: random.Random, brokers: Brokers
    ) -> None:
        self._actor = actor
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
        self._open: list[_Open] = []
        self._rewinds = False
        self._number = 0
        self._heard_us = 0

    def go_on(self) -> None:
        """The next thing that a member does. Raises `Disconnected`."""
        self._hear()
        if not self._is_joined:
            self._join()
            return
        if not self._positions and self._places:
            self._begin()
            return
        drawn, habits = self._random.random(), self._actor.habits
        if self._process.schedule.now_us >= self._heard_us + habits.session_s * 250_000:
            self._heartbeat()
        elif drawn < 0.03:
            # The process of the consumer hangs, perhaps past its session.
            self._process.sleep(self._random.randrange(round(habits.session_s * 2e6)))
        elif drawn < 0.05:
            self._leave(habits.long_sleep_us)
        elif drawn < 0.06 and self._positions:
            place = self._random.choice(sorted(self._positions))
            self._positions[place] = self._random.randrange(self._positions[place] + 1)
            self._rewinds = True
        elif drawn < 0.65 and self._positions:
            self._read()
        elif self._positions:
            self._commit()
        else:
            self._process.sleep(self._random.randrange(1, 2 * _REST_US))

    def end(self) -> None:
        """The work is done."""
        if self._is_joined and self._random.random() < 0.5:
            try:
                answered(leave(self._coordinator.connection(), self._stated), _PATIENCE_US)
            except Disconnected:
                pass

    # --- Membership

    def _join(self) -> None:
        habits, actor = self._actor.habits, self._actor
        self._positions, self._places = {}, {}
        connection = self._coordinator.connection()
        body = answered(join(connection, self._stated, habits.session_s, habits.rebalance_s), _PATIENCE_US)
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
            places = sorted(self._links.places(connection))
            assignments = {one: places[place :: len(members)] for place, one in enumerate(members)}
        body = answered(sync(connection, self._stated, assignments), _PATIENCE_US)
        code = ErrorCode(body["error_code"])
        if code is not ErrorCode.none:
            self._refused("syncs", code)
            return
        known = self._links.places(connection)
        self._places = {place: known[place] for place in assigned(body)}
        owner = self._actor.instance_id or self._stated.member_id
        actor.watch.assigned(actor.group, self._author(), owner, list(self._places.values()))
        self._is_joined, self._rewinds = True, False
        self._accepted()
        actor.ground.met["group generations"] += 1

    def _begin(self) -> None:
        """Fetch the committed offsets of the assignment."""
        actor, sent = self._actor, len(self._actor.ground.entries)
        connection = self._coordinator.connection()
        reply = fetch_offsets(connection, actor.group, sorted(self._places))
        body = answered(reply, _PATIENCE_US)
        code = ErrorCode(body["error_code"])
        if code is not ErrorCode.none:
            self._refused("fetches offsets", code)
            return
        found = fetched_offsets(body)
        actor.watch.fetched(
            actor.group,
            self._author(),
            sent,
            {self._places[place]: one for place, one in found.items()},
            own=connection.port is self._joined_at,
        )
        self._positions = {
            place: 0 if one.offset == NO_OFFSET else one.offset for place, one in found.items()
        }

    def _heartbeat(self) -> None:
        body = answered(heartbeat(self._coordinator.connection(), self._stated), _PATIENCE_US)
        code = ErrorCode(body["error_code"])
        if code is ErrorCode.none:
            self._accepted()
        else:
            self._refused("lives", code)

    def _leave(self, long_sleep_us: int) -> None:
        """Leave the group, with or without a word, and come back some time later."""
        self._is_joined = False
        if self._random.random() < 0.7:
            body = answered(leave(self._coordinator.connection(), self._stated), _PATIENCE_US)
            self._actor.ground.met[f"group left: {ErrorCode(body['error_code']).name}"] += 1
        self._state(member_id="", generation=-1)
        self._process.sleep(self._random.randrange(long_sleep_us))

    def _state(self, *, member_id: str, generation: int = -1) -> None:
        self._stated = Stated(self._stated.group, member_id, self._stated.instance_id, generation)

    def _accepted(self) -> None:
        self._heard_us = self._process.schedule.now_us

    def _refused(self, what: str, code: ErrorCode) -> None:
        """Do as Kafka's clients do."""
        process = self._process
        process.schedule.note(process.name, f"{what}: {code.name}")
        self._actor.ground.met[f"group {code.name}"] += 1
        if code in AGAIN:
            self._coordinator.leave()
            process.sleep(self._random.randrange(1, _REST_US))
        elif code is ErrorCode.rebalance_in_progress:
            if self._is_joined and self._positions and self._random.random() < 0.5:
                # As when partitions are revoked.
                self._commit()
            self._is_joined = False
        elif code in _REJOIN:
            self._is_joined = False
            # With its id, as Java's client does after an old generation.
            keeps_id = code is ErrorCode.illegal_generation
            self._state(member_id=self._stated.member_id if keeps_id else "")
        elif code is ErrorCode.fenced_instance_id:
            raise RetryLater("another process has its instance id")
        elif code not in _UNKNOWN:
            raise Violation("a client that keeps the rules is served", f"{process.name} {what}: {code.name}")

    # --- Records and commits

    def _author(self) -> Author:
        number = self._number if self._actor.habits.is_numbered else 0
        return Author(self._leader, self._stated.generation, self._stated.member_id, number, self._rewinds)

    def _read(self) -> None:
        asked = dict(self._positions)
        wait_ms, bytes_max = self._random.choice((0, 100)), self._random.choice((1, 200, 1 << 20))
        body = answered(fetch(self._links.leader(), asked, wait_ms, bytes_max, committed=True), _PATIENCE_US)
        for topic in body["responses"]:
            for part in topic["partitions"]:
                self._process_records((topic["topic"], part["partition_index"]), asked, part)

    def _process_records(self, place: Place, asked: Mapping[Place, int], part: Mapping[str, Any]) -> None:
        code, start = ErrorCode(part["error_code"]), asked[place]
        if code is ErrorCode.kafka_storage_error:
            return
        tp = self._places[place]
        if code is not ErrorCode.none:
            raise Violation(
                "a position is served", f"{self._process.name} at {start} of {tp} gets {code.name}"
            )
        records: dict[int, bytes] = {}
        at, data = start, MemoryRecords(bytes(part["records"]))
        while data.has_next():
            batch = data.next_batch()
            if not batch.is_control_batch:
                self._actor.batches.add((tp, batch.base_offset, batch.next_offset - 1))
                records |= {one.offset: one.value for one in batch if one.offset >= start}
            at = batch.next_offset
        if at > start:
            self._actor.reads.append(Read(tp, start, at, records, part["last_stable_offset"]))
            self._actor.watch.processed(self._actor.group, tp, list(records))
            self._positions[place] = at

    def _commit(self) -> None:
        """Commit the positions; the answer may be awaited, or come later."""
        connection = self._coordinator.connection()
        self._number += 1
        author = self._author().text()
        offsets = {place: Offset(offset, author) for place, offset in self._positions.items()}
        sent = len(self._actor.ground.entries)
        reply = commit(connection, self._stated, offsets)
        self._open.append(_Open(reply, sent, {self._places[place]: one for place, one in offsets.items()}))
        if self._random.random() < 0.6:
            answered(reply, _PATIENCE_US)
            self._hear()

    def _hear(self) -> None:
        """Learn from the answers to commits that have come."""
        for one in list(self._open):
            if one.reply.arrived:
                self._open.remove(one)
                self._hear_commit(one)
            elif one.reply.connection.closed:
                self._open.remove(one)
            elif self._process.schedule.now_us >= one.reply.sent_us + _PATIENCE_US:
                one.reply.connection.close()

    def _hear_commit(self, one: _Open) -> None:
        assert one.reply.body is not None, "a commit is answered"
        actor, stated = self._actor, one.reply.request.body
        code = ErrorCode(next(iter(commit_codes(one.reply.body).values())))
        if code is ErrorCode.none:
            actor.watch.committed(actor.group, one.sent, one.offsets)
        elif code not in _UNKNOWN:
            actor.watch.refused(actor.group, one.offsets)
        is_present = (stated.member_id, stated.generation_id_or_member_epoch) == (
            self._stated.member_id,
            self._stated.generation,
        )
        if not is_present or not self._is_joined:
            actor.ground.met[f"group late commit {code.name}"] += 1
        elif code is ErrorCode.none:
            self._accepted()
        else:
            self._refused("commits", code)
