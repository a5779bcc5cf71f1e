"""Members of consumer groups with plain commits: they join, process, commit, go back, leave and come back.

A commit states the end of what was processed. Its answer may come late, also after the member has lost its
partitions.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from archiver.runtime.ids import TopicPartition
from tests.simulation.ground import Ground
from tests.simulation.kafka.consumers import Read
from tests.simulation.kafka.group_members import PATIENCE_US, REST_US, UNKNOWN, Habits, Membership
from tests.simulation.kafka.group_requests import Offset, commit, commit_codes
from tests.simulation.kafka.group_watch import GroupWatch
from tests.simulation.kafka.wire import Brokers, Reply, answered
from tests.simulation.schedule import Process


@dataclass(frozen=True)
class _Open:
    """A commit without an answer so far."""

    reply: Reply
    sent: int
    """Entries of the log when it was sent."""
    offsets: Mapping[TopicPartition, Offset]


class GroupConsumer:
    """A member of a group until all senders have finished and the group has read everything."""

    inputs: Collection[str] | None = None

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
        _Consuming(self, process, self._random, self._brokers).live(self.is_over)


class _Consuming(Membership):
    """One process of a member."""

    def __init__(
        self, actor: GroupConsumer, process: Process, choices: random.Random, brokers: Brokers
    ) -> None:
        super().__init__(actor, process, choices, brokers)
        self._open: list[_Open] = []

    def go_on(self) -> None:
        """The next thing that a member does. Raises `Disconnected`."""
        self._hear()
        if not self._is_joined:
            self._join()
            return
        if not self._positions and self._places:
            self._begin()
            return
        drawn = self._random.random()
        if self._is_due:
            self._heartbeat()
        elif drawn < 0.03:
            self._hang()
        elif drawn < 0.05:
            self._leave()
        elif drawn < 0.06 and self._positions:
            place = self._random.choice(sorted(self._positions))
            self._positions[place] = self._random.randrange(self._positions[place] + 1)
            self._rewinds = True
        elif drawn < 0.65 and self._positions:
            self._read((1, 200, 1 << 20))
        elif self._positions:
            self._commit()
        else:
            self._process.sleep(self._random.randrange(1, 2 * REST_US))

    def _revoked(self) -> None:
        if self._random.random() < 0.5:
            self._commit()

    def _commit(self) -> None:
        """Commit the positions; the answer may be awaited, or come later."""
        connection = self._coordinator.connection()
        self._number += 1
        author = self._author().text()
        offsets = {place: Offset(offset, author) for place, offset in self._positions.items()}
        sent = len(self._member.ground.entries)
        reply = commit(connection, self._stated, offsets)
        self._open.append(_Open(reply, sent, {self._places[place]: one for place, one in offsets.items()}))
        if self._random.random() < 0.6:
            answered(reply, PATIENCE_US)
            self._hear()

    def _hear(self) -> None:
        """Learn from the answers to commits that have come."""
        for one in list(self._open):
            if one.reply.arrived:
                self._open.remove(one)
                self._hear_commit(one)
            elif one.reply.connection.closed:
                self._open.remove(one)
            elif self._process.schedule.now_us >= one.reply.sent_us + PATIENCE_US:
                one.reply.connection.close()

    def _hear_commit(self, one: _Open) -> None:
        assert one.reply.body is not None, "a commit is answered"
        member, stated = self._member, one.reply.request.body
        code = ErrorCode(next(iter(commit_codes(one.reply.body).values())))
        if code is ErrorCode.none:
            member.watch.committed(member.group, one.sent, one.offsets)
        elif code not in UNKNOWN:
            member.watch.refused(member.group, one.offsets)
        is_present = (stated.member_id, stated.generation_id_or_member_epoch) == (
            self._stated.member_id,
            self._stated.generation,
        )
        if not is_present or not self._is_joined:
            member.ground.met[f"group late commit {code.name}"] += 1
        elif code is ErrorCode.none:
            self._accepted()
        else:
            self._refused("commits", code)
