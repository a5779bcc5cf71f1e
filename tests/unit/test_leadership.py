"""How long a daemon keeps its lease and its epoch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from archiver.ledger.leader import Leader
from archiver.ledger.leadership import EPOCH_KEYS_MAX, Leadership
from archiver.ledger.views import TopicLedger
from archiver.log.store import Appended, Entry, Log
from archiver.proto import control_log_pb2 as pb
from archiver.runtime.clock import ManualClock
from archiver.runtime.errors import Deposed, LeaseHeld, RetryLater
from archiver.runtime.ids import SeededIds, TopicId
from tests.support.catalog.tables import log_limits
from tests.support.log.memory_log import LeasePlace, MemoryLease, MemoryLogStore
from tests.support.process.processes import until


class Ground:
    """A control log and a lease for which several daemons compete."""

    def __init__(self) -> None:
        self.log: Log = MemoryLogStore(1 << 16).log("control")
        self.place = LeasePlace()
        self._seed = 0

    def leadership(self, name: str, *, lasting: bool = False, holding: bool | None = None) -> Leadership:
        self._seed += 1
        leader = Leader(self.log, SeededIds(self._seed), ManualClock(), name, log_limits())
        return Leadership(leader, MemoryLease(name, self.place), lasting=lasting, holding=holding)


@pytest.fixture
def ground() -> Ground:
    return Ground()


def turn(leadership: Leadership) -> int:
    with leadership.turn():
        return leadership.lead()


def test_a_command_leads_for_one_turn(ground: Ground) -> None:
    one, two = ground.leadership("a:1"), ground.leadership("b:1")
    assert [turn(one), turn(two), turn(one)] == [1, 2, 3]
    assert one.holder() is None


def test_a_daemon_keeps_lease_and_epoch_until_it_resigns(ground: Ground) -> None:
    daemon, other = ground.leadership("a:1", lasting=True), ground.leadership("b:1")
    assert [turn(daemon) for _ in range(3)] == [1, 1, 1]
    assert ground.log.tail() == 1
    with pytest.raises(LeaseHeld, match="a:1"):
        turn(other)
    daemon.resign()
    assert turn(other) == 2
    assert turn(daemon) == 3, "another daemon has led"


def test_one_that_does_not_hold_keeps_its_epoch_unless_others_lead(ground: Ground) -> None:
    daemon, other = (
        ground.leadership("a:1", lasting=True, holding=False),
        ground.leadership("b:1", lasting=True, holding=False),
    )
    assert [turn(daemon), turn(daemon)] == [1, 1]
    with other.turn():
        pass  # an empty turn: it appends nothing, so it does not lead
    assert turn(daemon) == 1
    assert [turn(other), turn(other), turn(daemon)] == [2, 2, 3]


def test_a_deposed_daemon_gives_the_lease_back(ground: Ground) -> None:
    daemon, other = ground.leadership("a:1", lasting=True), ground.leadership("b:1")
    turn(daemon)
    other.leader.take_over()
    with pytest.raises(Deposed), daemon.turn():
        daemon.leader.check()
    assert turn(other) == 3
    assert turn(daemon) == 4


def test_a_daemon_whose_lease_was_worth_nothing_steps_down(ground: Ground) -> None:
    """It was suspended, and another daemon got its lease. It does not take the leadership back from that one."""
    daemon, successor = ground.leadership("a:1", lasting=True), ground.leadership("b:1", lasting=True)
    assert turn(daemon) == 1
    assert successor.leader.take_over() == 2
    with pytest.raises(Deposed, match="epoch 2 of b:1 follows epoch 1"):
        turn(daemon)
    assert daemon.holder() is None
    assert turn(successor) == 2, "nothing came after it"
    with pytest.raises(LeaseHeld, match="b:1"):
        turn(daemon)
    successor.resign()
    assert turn(daemon) == 3


def test_an_epoch_ends_when_it_has_used_many_paths(ground: Ground) -> None:
    daemon = ground.leadership("a:1", lasting=True)
    turn(daemon)
    topics = daemon.leader.fold.topics
    for number in range(2):
        topic_id = TopicId(f"{number:032x}")
        topics[topic_id] = TopicLedger(topic_id)
        topics[topic_id].epoch_keys.update(f"key {count}" for count in range(EPOCH_KEYS_MAX // 2 - number))
    assert turn(daemon) == 1
    topics[TopicId(f"{1:032x}")].epoch_keys.add("one more")
    assert turn(daemon) == 2
    assert not any(topic.epoch_keys for topic in topics.values())
    assert turn(daemon) == 2


def test_turns_of_one_process_wait_for_each_other(ground: Ground) -> None:
    daemon = ground.leadership("a:1", lasting=True)
    inside, leave = threading.Event(), threading.Event()
    second: list[int] = []

    def hold() -> None:
        with daemon.turn():
            inside.set()
            assert leave.wait(30)

    first = threading.Thread(target=hold)
    first.start()
    assert inside.wait(30)
    waiting = threading.Thread(target=lambda: second.append(turn(daemon)))
    waiting.start()
    waiting.join(0.1)
    assert second == []
    leave.set()
    first.join(30)
    waiting.join(30)
    assert second == [1]


def test_a_turn_waits_only_so_long_for_another(ground: Ground) -> None:
    leader = Leader(ground.log, SeededIds(7), ManualClock(), "a:1", log_limits())
    daemon = Leadership(leader, MemoryLease("a:1", ground.place), lasting=True, wait_s=0.05)
    found: list[str] = []

    def clean() -> None:
        try:
            with daemon.turn("cleaning"):
                found.append("had its turn")
        except RetryLater as error:
            found.append(str(error))

    for _ in range(2):
        with daemon.turn("archiving"):
            other = threading.Thread(target=clean)
            other.start()
            other.join(30)
    clean()
    assert found == [
        "archiving is under way here and has not ended within 0.05 s; cleaning waits no longer"
    ] * 2 + ["had its turn"]


# giving way within a turn


def started(work: Callable[[], object], daemon: Leadership) -> threading.Thread:
    """A thread that waits for its turn."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    until("it waits", lambda: daemon._queue.contended)
    return thread


def test_a_long_turn_gives_way_to_those_that_wait(ground: Ground) -> None:
    daemon, order = ground.leadership("a:1", lasting=True), list[str]()

    def round_() -> None:
        with daemon.turn("archiving"):
            order.append("round")

    with daemon.turn("cleaning"):
        order.append("step")
        assert not daemon.give_way(), "no turn waits"
        thread = started(round_, daemon)
        order.append("step")
        assert daemon.give_way()
        order.append("step")
    thread.join(30)
    assert order == ["step", "step", "round", "step"]


def test_turns_come_in_the_order_of_asking(ground: Ground) -> None:
    """A job that asks again at once, as the vacuum does, comes after a waiting round."""
    daemon, order = ground.leadership("a:1", lasting=True), list[str]()

    def round_() -> None:
        with daemon.turn("archiving"):
            order.append("round")

    with daemon.turn("cleaning"):
        thread = started(round_, daemon)
    with daemon.turn("cleaning"):
        order.append("cleaning")
    thread.join(30)
    assert order == ["round", "cleaning"]


def test_a_command_gives_no_way_because_other_processes_would_take_it(ground: Ground) -> None:
    command, other = ground.leadership("a:1"), ground.leadership("b:1")
    with command.turn(), command.aside():
        assert not command.give_way()
        with pytest.raises(LeaseHeld, match="a:1"):
            turn(other)


def test_a_turn_that_comes_back_to_a_newer_leader_ends(ground: Ground) -> None:
    daemon = ground.leadership("a:1", lasting=True)
    turn(daemon)

    def clean() -> None:
        with daemon.turn("cleaning"), daemon.aside():
            ground.leadership("b:1").leader.take_over()

    with pytest.raises(Deposed, match="epoch 2"):
        clean()
    assert daemon.holder() is None
    daemon.resign()


def test_a_turn_that_does_not_come_back_in_time_ends_without_taking_that_of_another(ground: Ground) -> None:
    leader = Leader(ground.log, SeededIds(7), ManualClock(), "a:1", log_limits())
    daemon = Leadership(leader, MemoryLease("a:1", ground.place), lasting=True, wait_s=0.05)
    inside, leave, found = threading.Event(), threading.Event(), list[str]()

    def round_() -> None:
        with daemon.turn("archiving"):
            inside.set()
            assert leave.wait(30)
            found.append("round")

    def clean() -> None:
        with daemon.turn("cleaning"), daemon.aside():
            thread = threading.Thread(target=round_, daemon=True)
            thread.start()
            threads.append(thread)
            assert inside.wait(30)

    threads: list[threading.Thread] = []
    with pytest.raises(RetryLater, match=r"archiving is under way here .*; cleaning waits no longer"):
        clean()
    with pytest.raises(RetryLater, match="archiving is under way here"):
        turn(daemon)
    leave.set()
    threads[0].join(30)
    assert (found, turn(daemon)) == (["round"], 1)


# standing down by one's own clock


class DeafLog:
    """A log that can be made unreadable for one process."""

    def __init__(self, log: Log) -> None:
        self.name = log.name
        self.deaf = False
        self._log = log

    def read(self, start: int, limit: int = 1000) -> list[Entry]:
        if self.deaf:
            raise RetryLater("the metadata store does not answer")
        return self._log.read(start, limit)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


class Timed:
    """A daemon with a clock of its own, and a lease that no other daemon ever takes."""

    def __init__(self, ground: Ground, name: str, seed: int) -> None:
        self.clock, self.log = ManualClock(), DeafLog(ground.log)
        self.lease = MemoryLease(name)
        leader = Leader(self.log, SeededIds(seed), self.clock, name, log_limits())
        self.leadership = Leadership(leader, self.lease, lasting=True, confirm_max_s=60, clock=self.clock)


def test_l4_a_daemon_with_nothing_to_do_stands_down_when_its_turn_comes(ground: Ground) -> None:
    stale, newer = Timed(ground, "a:1", 11), Timed(ground, "b:1", 12)
    assert turn(stale.leadership) == 1
    with stale.leadership.turn():
        pass  # idle: nothing is led, nothing appended
    assert stale.leadership.holder() == "a:1"
    assert turn(newer.leadership) == 2
    assert stale.leadership.holder() == "a:1", "its lease says that it leads"
    with pytest.raises(Deposed, match="epoch 2 of b:1 follows epoch 1"), stale.leadership.turn():
        raise AssertionError("a deposed leader has no turn")
    assert stale.leadership.holder() is None


def test_l4_who_watches_the_log_ends_a_leadership_in_the_middle_of_a_turn(ground: Ground) -> None:
    stale, newer = Timed(ground, "a:1", 11), Timed(ground, "b:1", 12)
    turn(stale.leadership)
    with stale.leadership.turn():
        stale.leadership.heard(1)
        assert stale.leadership.holder() == "a:1"
        stale.leadership.heard(turn(newer.leadership))
        assert stale.leadership.holder() is None, "at once, not when a round of hours has ended"
        with pytest.raises(Deposed):
            stale.leadership.leader.append(pb.RoundStarted(commit_id=bytes(16)))
    assert turn(newer.leadership) == 2


def test_l4_an_own_epoch_that_is_seen_before_its_append_has_returned_is_no_other_leaders(
    ground: Ground,
) -> None:
    """The watch reads the log in parallel with the leader, which may still wait for the response to its
    EPOCH."""
    daemon = Timed(ground, "a:1", 11)
    turn(daemon.leadership)
    watching: list[threading.Thread] = []

    class Watched(DeafLog):
        def append(self, index: int, data: bytes) -> Appended:
            appended = self._log.append(index, data)
            watching.append(threading.Thread(target=daemon.leadership.heard, args=(2,)))
            watching[0].start()
            watching[0].join(0.2)
            return appended

    daemon.leadership.leader._log = Watched(ground.log)
    with daemon.leadership.turn():
        assert daemon.leadership.leader.take_over() == 2
        watching[0].join(30)
        assert not watching[0].is_alive()
        assert daemon.leadership.holder() == "a:1", "it stood down for nothing"


def test_l4_a_leader_that_cannot_read_the_log_stands_down_by_its_own_clock(ground: Ground) -> None:
    daemon = Timed(ground, "a:1", 11)
    turn(daemon.leadership)
    daemon.log.deaf = True
    for ahead_s, holder in ((30, "a:1"), (30, "a:1"), (1, None)):
        daemon.clock.advance(ahead_s)
        with pytest.raises(RetryLater, match="does not answer"), daemon.leadership.turn():
            raise AssertionError("it is not known whether this one leads")
        assert daemon.leadership.holder() == holder
    daemon.log.deaf = False
    assert turn(daemon.leadership) == 1, "no other leader came after it"


def test_l4_a_leader_that_learns_nothing_in_a_long_turn_stands_down_by_its_own_clock(ground: Ground) -> None:
    daemon = Timed(ground, "a:1", 11)
    turn(daemon.leadership)
    with daemon.leadership.turn():
        daemon.clock.advance(50)
        daemon.leadership.heard(1)
        daemon.clock.advance(60)
        daemon.leadership.unheard()
        assert daemon.leadership.holder() == "a:1", "60 s since it last heard"
        daemon.clock.advance(0.1)
        daemon.leadership.unheard()
        assert daemon.leadership.holder() is None


def test_l4_a_leader_that_took_its_lease_again_still_learns_of_a_newer_one(ground: Ground) -> None:
    daemon = Timed(ground, "a:1", 11)
    turn(daemon.leadership)
    with daemon.leadership.turn():
        daemon.clock.advance(120)
        daemon.leadership.unheard()
        assert daemon.leadership.holder() is None
    assert turn(daemon.leadership) == 1, "no other leader came after it"
    with daemon.leadership.turn():
        newer = Leader(ground.log, SeededIds(12), ManualClock(), "b:1", log_limits()).take_over()
        daemon.leadership.heard(newer)
        assert daemon.leadership.holder() is None


def test_two_that_both_believe_in_their_lease_do_not_end_each_others_rounds_for_ever(ground: Ground) -> None:
    one, two = Timed(ground, "a:1", 11), Timed(ground, "b:1", 12)
    turn(one.leadership)
    assert turn(two.leadership) == 2
    for _ in range(6):  # a tick every 10 s: the first leader is refused, and the second works
        with pytest.raises(Deposed):
            turn(one.leadership)
        assert turn(two.leadership) == 2
        one.clock.advance(10)
        two.clock.advance(10)
    assert turn(one.leadership) == 3, "the time is over"
    with pytest.raises(Deposed):
        turn(two.leadership)


def test_one_that_yields_says_who_holds_the_lease(ground: Ground) -> None:
    """The error names the holder if another one holds the lease. Yielding is for daemons that could acquire
    it."""
    stale = Timed(ground, "a:1", 11)
    place = LeasePlace()
    stale.lease._place = place
    turn(stale.leadership)
    place.held_by = None
    rival = MemoryLease("b:1", place)
    Leader(ground.log, SeededIds(12), ManualClock(), "b:1", log_limits()).take_over()
    with pytest.raises(Deposed):
        turn(stale.leadership)
    rival.acquire()
    with pytest.raises(LeaseHeld, match="b:1"):
        turn(stale.leadership)
