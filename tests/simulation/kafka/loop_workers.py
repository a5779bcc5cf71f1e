"""Loops that read, process and write exactly once: members of a group with a transactional id.

A worker reads committed records of the input, writes one record for each to the output, commits its offsets in the
same transaction, and ends it. A transaction that does not commit is done again from the committed offsets. Now and
then it tries to commit under its former generation, which must be refused.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from archiver.runtime.ids import TopicPartition
from tests.simulation.book import Sent, Transaction
from tests.simulation.kafka.consumers import Read
from tests.simulation.kafka.group_members import REST_US, UNKNOWN, Habits, Membership
from tests.simulation.kafka.group_requests import Offset, Stated
from tests.simulation.kafka.group_watch import Author, GroupWatch
from tests.simulation.kafka.loop_watch import LoopWatch, Source
from tests.simulation.kafka.requests import Place
from tests.simulation.kafka.transactional_clients import Fenced, GaveUp, TransactionalProcess
from tests.simulation.kafka.wire import Brokers, Disconnected
from tests.simulation.schedule import Process
from tests.simulation.station import World

_FRESH_MAX = 8
"""From so many records on, a worker reads no more before it has written them."""


@dataclass(frozen=True)
class Loop:
    """What all workers of a loop share."""

    group: str
    inputs: Collection[str]
    outputs: Collection[str]
    watch: GroupWatch
    judge: LoopWatch


class LoopWorker:
    """A worker until all senders have finished and the loop has committed the end of its input."""

    def __init__(
        self,
        name: str,
        loop: Loop,
        transactional_id: str,
        instance_id: str | None,
        world: World,
        choices: random.Random,
        brokers: Brokers,
        senders_finished: Callable[[], bool],
        habits: Habits,
    ) -> None:
        self.name = name
        self.loop = loop
        self.group = loop.group
        self.inputs: Collection[str] | None = loop.inputs
        self.transactional_id = transactional_id
        self.instance_id = instance_id
        self.world = world
        self.ground = world.ground
        self.watch = loop.watch
        self.brokers = brokers
        self.habits = habits
        self._random = choices
        self._senders_finished = senders_finished
        self.stored: list[tuple[TopicPartition, int, int]] = []
        self.committed = True
        self.ends = 0
        self.reads: list[Read] = []
        self.batches: set[tuple[TopicPartition, int, int]] = set()

    def is_over(self) -> bool:
        """Whether nothing is left to do."""
        return self._senders_finished() and self.watch.is_read(self.group)

    def live(self, process: Process) -> None:
        _Working(self, process, self._random, self.brokers).live(self.is_over)


class _Working(Membership):
    """One process of a worker."""

    def __init__(self, actor: LoopWorker, process: Process, choices: random.Random, brokers: Brokers) -> None:
        super().__init__(actor, process, choices, brokers)
        self._worker = actor
        self._producer = TransactionalProcess(actor, process, choices)
        self._fresh: list[tuple[Place, int, bytes]] = []
        """Records of the next transaction, in the order in which they were read."""
        self._is_behind = False
        """The positions are not committed."""
        self._former: tuple[Stated, str] | None = None
        """What it stated in its former generation, and the leader of that."""

    def go_on(self) -> None:
        """The next thing that a worker does. Raises `Disconnected`."""
        if not self._is_joined:
            self._forget()
            if self._stated.generation >= 0:
                self._former = self._stated, self._leader
            self._join()
            return
        if not self._positions and self._places:
            self._begin()
            return
        drawn, calm = self._random.random(), self._process.schedule.calm
        if self._is_due:
            self._heartbeat()
        elif drawn < 0.01 and not calm:
            self._hang()
        elif drawn < 0.015 and not calm:
            self._leave()
        elif self._is_behind and (drawn < 0.7 or len(self._fresh) >= _FRESH_MAX):
            self._transact()
        elif self._positions:
            self._read((1, 1, 200))
        else:
            self._process.sleep(self._random.randrange(1, 2 * REST_US))

    def _forget(self) -> None:
        """What was read is read again from the committed offsets on."""
        self._positions, self._fresh, self._is_behind = {}, [], False

    def _process_records(self, place: Place, records: Mapping[int, bytes]) -> None:
        self._fresh += [(place, offset, value) for offset, value in records.items()]
        # Also without a record: the offsets behind aborted records are committed as well.
        self._is_behind = True

    # --- The transaction

    def _transact(self) -> None:
        """One transaction. Raises `Disconnected` if it cannot begin."""
        producer, met = self._producer, self._member.ground.met
        producer.open(self._random.randrange(300, 8_000))
        transaction = producer.begin()
        try:
            is_committed = self._attempt(transaction)
        except (Fenced, GaveUp, Disconnected) as error:
            met[f"loop {type(error).__name__}"] += 1
            # A process that was replaced and fenced ends, as a client with a fatal error does.
            self._process.require_current()
            producer.close()
            # Another worker may have the same id.
            self._process.sleep(self._random.randrange(1, 10 * REST_US))
            is_committed = False
        met["loop committed" if is_committed else "loop not committed"] += 1
        if is_committed:
            self._fresh, self._is_behind = [], False
        else:
            self._forget()

    def _attempt(self, transaction: Transaction) -> bool:
        """Write, send the offsets, and end it; whether it was committed. Raises `Disconnected`, `Fenced` and
        `GaveUp`.
        """
        # Those under which it has read, also if a heartbeat is refused from here on.
        producer, stated, leader = self._producer, self._stated, self._leader
        # In one request, or in two, one after the other.
        middle = self._random.choice((0, 0, len(self._fresh) // 2))
        for piece in (self._fresh[:middle], self._fresh[middle:]):
            if piece:
                producer.write(self._made(transaction, piece))
        if self._random.random() < 0.1 and not self._process.schedule.calm:
            self._process.sleep(self._random.randrange(4_000_000))
        if self._is_due:
            self._heartbeat()
        if self._former is not None and self._random.random() < 0.5:
            self._try_former(*self._former)
        # Also if the heartbeat was refused: the coordinator of the group decides.
        is_held = producer.send_offsets(
            self._member.group, self._coordinator, lambda: self._send_offsets(stated, leader)
        )
        if not is_held:
            self._is_joined = False
        is_committed = is_held and self._random.random() < 0.85
        self._member.ground.met["loop aborted behind its offsets"] += is_held and not is_committed
        producer.end(transaction, commit=is_committed)
        return is_committed

    def _made(
        self, transaction: Transaction, piece: list[tuple[Place, int, bytes]]
    ) -> dict[Place, list[Sent]]:
        """The records of the output, by their places. A record goes where its offset says."""
        known = self._producer.places()
        places = sorted(place for place in known if place[0] in self._worker.loop.outputs)
        made: dict[Place, list[Sent]] = {}
        for place, offset, value in piece:
            target = places[offset % len(places)]
            (sent,) = self._producer.records(transaction, known[target], 1)
            source = Source(self._member.group, self._places[place], offset, value)
            self._worker.loop.judge.made(sent.value, source)
            made.setdefault(target, []).append(sent)
        return made

    def _send_offsets(self, stated: Stated, leader: str) -> ErrorCode:
        """Send the positions once, with a number of their own."""
        self._number += 1
        author = Author(leader, stated.generation, stated.member_id, self._number).text()
        offsets = {place: Offset(offset, author) for place, offset in self._positions.items()}
        code = self._producer.commit_offsets(stated, self._coordinator, offsets)
        if code is not ErrorCode.none and code not in UNKNOWN:
            refused = {self._places[place]: one for place, one in offsets.items()}
            self._member.watch.refused(self._member.group, refused)
        return code

    def _try_former(self, stated: Stated, leader: str) -> None:
        """Try to commit as in the former generation. If that is accepted, `GroupWatch` notices the entry."""
        self._former = None
        with suppress(Disconnected):
            code = self._send_offsets(stated, leader)
            self._member.ground.met[f"loop in its former generation: {code.name}"] += 1
