"""Random clients of both protocols in one group: they lose answers, pause, die and are replaced.

At any time each partition is read by at most one client whose session goes on, no committed offset goes
backwards, and no epoch of a member does. Once it is quiet, all partitions are read.
"""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from archiver.kafka.consumer_members import LEAVE, Beat
from archiver.kafka.embedded_protocol import read_assignment, read_subscription, write_assignment
from archiver.kafka.group import Join, Joined, State, Sync, Synced
from archiver.kafka.topic_configs import Refused
from archiver.runtime.ids import TopicPartition
from tests.support.kafka.migrating import SESSION_S, Migrating, metadata, named, text

PARTITIONS = 6
# Longer than a session, which then ends first: a member that is removed earlier may read on for a moment.
REBALANCE_S = 300.0
TIMEOUT_S = 20.0
"""After this, a client gives up a request whose answer was lost."""
NOTHING: frozenset[TopicPartition] = frozenset()


class Client:
    """What is the same in both protocols."""

    member_id = ""
    epoch = 0
    newest_epoch = -1
    alive_s = 0.0
    """When its last answered request was sent."""
    paused_until_s = 0.0

    def __init__(self, name: str) -> None:
        self.name = name
        self.owned = NOTHING
        self.positions: dict[TopicPartition, int] = {}

    def step(self, random_: random.Random, ground: Migrating) -> None:
        raise NotImplementedError

    def leave(self, ground: Migrating) -> None:
        raise NotImplementedError

    def got(self, epoch: int) -> None:
        assert epoch >= self.newest_epoch, (self.name, epoch, self.newest_epoch)
        self.newest_epoch = self.epoch = epoch

    def follow(self, committed: dict[TopicPartition, int]) -> None:
        """Begin at the committed offset of each partition that is new."""
        for one in self.positions.keys() - self.owned:
            del self.positions[one]
        for one in self.owned - self.positions.keys():
            self.positions[one] = committed.get(one, 0)

    def commit(self, ground: Migrating, committed: dict[TopicPartition, int]) -> None:
        if not self.positions:
            return
        try:
            ground.commit(self.member_id, self.epoch)
        except Refused:
            return
        for one, position in self.positions.items():
            assert position >= committed.get(one, 0), (self.name, one, position, committed)
            committed[one] = position


class NewClient(Client):
    """A client of the consumer protocol."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.member_id = name
        self.to_own: frozenset[TopicPartition] | None = None
        self.repeats = True
        self.acknowledges = False

    def step(self, random_: random.Random, ground: Migrating) -> None:
        if self.to_own is not None and random_.random() < 0.5:
            self.owned, self.to_own = self.to_own, None
            self.acknowledges = True
        if random_.random() < 0.3:
            self._beat(random_, ground)

    def _beat(self, random_: random.Random, ground: Migrating) -> None:
        full = self.repeats or self.epoch == 0
        request = Beat(
            member_id=self.member_id,
            epoch=self.epoch,
            owned=self.owned if full or self.acknowledges else None,
            rebalance_timeout_s=REBALANCE_S if full else None,
            names=frozenset("a") if full else None,
        )
        if random_.random() < 0.05:
            self.repeats = True
            return
        try:
            answer = ground.beat(request)
        except Refused as error:
            if error.code not in (ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch):
                raise
            self.repeats = True
            self.epoch, self.owned, self.to_own = 0, NOTHING, None
            return
        if random_.random() < 0.05:
            self.repeats = True
            return
        self.alive_s = ground.now_s
        self.repeats = self.acknowledges = False
        self.got(answer.epoch)
        if answer.assignment is not None:
            # What it must give up ends at once; what it gets takes a while.
            self.owned &= answer.assignment
            self.to_own = answer.assignment

    def leave(self, ground: Migrating) -> None:
        self.owned = NOTHING
        if self.epoch > 0:
            # Its session may have ended.
            with contextlib.suppress(Refused):
                ground.beat(Beat(member_id=self.member_id, epoch=LEAVE))


class ClassicClient(Client):
    """A client of the classic protocol with an eager or a cooperative assignor."""

    def __init__(self, name: str, *, is_cooperative: bool) -> None:
        super().__init__(name)
        self.is_cooperative = is_cooperative
        self.epoch = -1
        self.phase = "out"
        self.answers: list[tuple[Any, float]] = []
        """With the time at which the answer was given."""
        self.gives_up_s = 0.0
        self.led: list[tuple[str, bytes]] = []
        self.to_own: frozenset[TopicPartition] | None = None

    @property
    def assignor(self) -> str:
        return "cooperative-sticky" if self.is_cooperative else "range"

    def step(self, random_: random.Random, ground: Migrating) -> None:
        if self.phase in ("joining", "syncing"):
            self._receive(random_, ground)
        elif random_.random() < 0.5:
            match self.phase:
                case "out":
                    self._join(random_, ground)
                case "joined":
                    self._sync(random_, ground)
                case "assigned":
                    self._reach()
                case "stable":
                    self._beat(random_, ground)

    def _send(self, random_: random.Random, ground: Migrating, phase: str, request: Any) -> None:
        self.phase, self.answers = phase, []
        self.gives_up_s = ground.now_s + (REBALANCE_S + TIMEOUT_S if phase == "joining" else TIMEOUT_S)
        answers = self.answers
        if random_.random() < 0.03:
            # The request is lost.
            self.gives_up_s = ground.now_s + TIMEOUT_S
            return
        is_lost = random_.random() < 0.03
        if is_lost:
            self.gives_up_s = ground.now_s + TIMEOUT_S

        def reply(answer: Any) -> None:
            if not is_lost:
                answers.append((answer, ground.now_s))

        try:
            if phase == "joining":
                ground.join(request, reply)
            else:
                ground.sync(request, reply)
        except Refused as error:
            reply((Joined if phase == "joining" else Synced)(code=error.code))

    def _join(self, random_: random.Random, ground: Migrating) -> None:
        if not self.is_cooperative:
            self.owned = NOTHING
        join = Join(
            member_id=self.member_id,
            client_id=self.name,
            protocols=((self.assignor, metadata("a", text(self.owned), self.epoch)),),
            session_timeout_s=SESSION_S,
            rebalance_timeout_s=REBALANCE_S,
        )
        self._send(random_, ground, "joining", join)

    def _sync(self, random_: random.Random, ground: Migrating) -> None:
        sync = Sync(member_id=self.member_id, generation=self.epoch, assignments=self.led)
        self._send(random_, ground, "syncing", sync)

    def _receive(self, random_: random.Random, ground: Migrating) -> None:
        if not self.answers:
            if ground.now_s >= self.gives_up_s:
                self.phase = "out"
            return
        ((answer, answered_s),) = self.answers
        if answer.code is not ErrorCode.none:
            self._failed(answer)
            return
        # It may have waited, and its member counts as alive until then.
        self.alive_s = answered_s
        if self.phase == "syncing":
            self.to_own = named(read_assignment(answer.assignment).assigned)
            self.phase = "assigned"
            return
        self.member_id = answer.member_id
        self.got(answer.generation)
        self.led = self._assignments(answer) if answer.leader == self.member_id else []
        self.phase = "joined"

    def _failed(self, answer: Any) -> None:
        self.phase = "out"
        match answer.code:
            case ErrorCode.member_id_required:
                self.member_id = answer.member_id
            case ErrorCode.unknown_member_id:
                self.member_id, self.epoch, self.owned, self.newest_epoch = "", -1, NOTHING, -1
            case ErrorCode.illegal_generation:
                self.epoch, self.owned = -1, NOTHING
            case code:
                assert code is ErrorCode.rebalance_in_progress, code

    def _reach(self) -> None:
        assert self.to_own is not None
        given_up = self.owned - self.to_own
        self.owned, self.to_own = self.to_own, None
        # Others may get what it gave up only now.
        self.phase = "out" if given_up and self.is_cooperative else "stable"

    def _beat(self, random_: random.Random, ground: Migrating) -> None:
        if random_.random() < 0.05:
            return
        try:
            code = ground.alive(self.member_id, self.epoch)
        except Refused as error:
            self._failed(Joined(code=error.code))
            return
        if random_.random() < 0.05:
            return
        self.alive_s = ground.now_s
        if code is ErrorCode.rebalance_in_progress:
            self.phase = "out"

    def _assignments(self, joined: Joined) -> list[tuple[str, bytes]]:
        """As the leader: equal shares; a cooperative one takes nothing from an owner and gives it away at once."""
        ids = sorted(one.member_id for one in joined.members)
        owners = {
            partition: one.member_id
            for one in joined.members
            for partition in named(read_subscription(one.metadata).owned)
        }
        found: dict[str, list[tuple[str, int]]] = {one: [] for one in ids}
        for number in range(PARTITIONS):
            target = ids[number * len(ids) // PARTITIONS]
            owner = owners.get(next(iter(named({"a": [number]}))), target)
            if owner == target:
                found[target].append(("a", number))
        return [(one, write_assignment(mine, 2)) for one, mine in found.items()]

    def leave(self, ground: Migrating) -> None:
        self.owned = NOTHING
        if self.member_id and ground.group is not None:
            ground.leave([(self.member_id, None)])


class Walk:
    """Clients in one group, from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.ground = Migrating(100, self.random.choice([0, 1000]), PARTITIONS)
        self.is_cooperative = self.random.random() < 0.5
        self.replaced = self.random.choice([0.005, 0.03])
        self.made = 0
        self.clients = [self.new() for _ in range(4)]
        self.committed: dict[TopicPartition, int] = {}

    def new(self) -> Client:
        self.made += 1
        name = f"c{self.made}"
        if self.random.random() < 0.5:
            return NewClient(name)
        return ClassicClient(name, is_cooperative=self.is_cooperative)

    def second(self, *, quiet: bool) -> None:
        ground, random_ = self.ground, self.random
        ground.tick(1.0)
        for client in list(self.clients):
            if ground.now_s < client.paused_until_s:
                continue
            chance = 1.0 if quiet else random_.random()
            if chance < 0.003:
                client.paused_until_s = ground.now_s + random_.randrange(1, 90)
                continue
            if chance < 0.003 + self.replaced:
                # It is replaced, as in a rolling restart, and may not say that it leaves.
                if random_.random() < 0.7:
                    client.leave(ground)
                self.clients[self.clients.index(client)] = self.new()
                continue
            client.step(random_, ground)
            client.follow(self.committed)
            for one in client.positions:
                client.positions[one] += random_.randrange(3)
            if random_.random() < 0.3:
                client.commit(ground, self.committed)
            self.check()

    def check(self) -> None:
        owners: dict[TopicPartition, str] = {}
        for client in self.clients:
            if self.ground.now_s - client.alive_s < SESSION_S:
                for one in client.owned:
                    assert one not in owners, (one, client.name, owners[one], self.ground.now_s)
                    owners[one] = client.name
        group = self.ground.consumer_group
        if group is not None:
            known = [one for member in group.members for one in (*member.assigned, *member.revoking)]
            assert len(known) == len(set(known)) == len(group._owners)

    def play(self) -> None:
        for _ in range(600):
            self.second(quiet=False)
        for _ in range(900):
            self.second(quiet=True)
        owned = sorted(one for client in self.clients for one in client.owned)
        assert owned == [("a" * 32, number) for number in range(PARTITIONS)]
        group, is_new = self.ground.group, any(isinstance(one, NewClient) for one in self.clients)
        assert group is not None
        assert (group.state, self.ground.consumer_group is not None) == (State.STABLE, is_new)


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_a_group_is_migrated_while_its_members_consume(first: int) -> None:
    moves = 0
    for seed in range(first, first + 20):
        walk = Walk(seed)
        try:
            walk.play()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        moves += min(walk.ground.upgrades, walk.ground.downgrades)
    assert moves >= 5, "groups move in both directions"
