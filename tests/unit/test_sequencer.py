"""The only appender: topics, files and ticks are appended once, even if responses are lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from archiver.config.groups import LogSettings
from archiver.runtime import failpoints
from archiver.runtime.clock import ManualClock
from archiver.runtime.errors import Halt, InvalidInput, OutcomeUnknown, RetryLater
from archiver.runtime.ids import SeededIds, TopicId
from intake.format import PlacedSegment
from intake.log.fold import IntakeFold
from intake.log.sequencer import Sequencer
from tests.support.log.faulty_log import AppendFault, FaultyLog
from tests.support.log.memory_log import MemoryLogStore

NOW_US = 1_700_000_000_000_000
SETTINGS = LogSettings(append_attempts_max=3)


class Bench:
    """One log and any number of appenders."""

    def __init__(self) -> None:
        self.log = FaultyLog(MemoryLogStore(SETTINGS.entry_bytes_max).log("intake"))
        self.clock = ManualClock(NOW_US)
        self._seed = 0

    def sequencer(self) -> Sequencer:
        self._seed += 1
        return Sequencer(self.log, SeededIds(self._seed), self.clock, SETTINGS)

    def reread(self) -> IntakeFold:
        return self.sequencer().refresh()


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.arm("")


def segment(topic_id: TopicId, rows: int = 1, partition: int = 0) -> PlacedSegment:
    return PlacedSegment(topic_id, partition, 0, 0, rows, 10, NOW_US)


def append(sequencer: Sequencer, topic_id: TopicId, rows: int = 1) -> int:
    return sequencer.append_file("intake/f", 100, b"d" * 32, [segment(topic_id, rows)])[0].runs[0][0]


def test_a_topic_is_declared_once(bench: Bench) -> None:
    first = bench.sequencer().declare_topic("orders", 3)
    assert bench.sequencer().declare_topic("orders", 3) == first
    assert bench.log.tail() == 1
    assert first.created_us == NOW_US


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "ä", "a/b", "a" * 250, "a\n"])
def test_a_bad_topic_name_is_refused(bench: Bench, name: str) -> None:
    with pytest.raises(InvalidInput, match="is not a topic name"):
        bench.sequencer().declare_topic(name, 1)
    assert bench.log.tail() == 0


@pytest.mark.parametrize("partitions", [-1, 100_001])
def test_a_bad_number_of_partitions_is_refused(bench: Bench, partitions: int) -> None:
    with pytest.raises(InvalidInput, match="between 1 and 100000"):
        bench.sequencer().declare_topic("a", partitions)


def test_two_that_declare_at_once_agree(bench: Bench) -> None:
    one, two = bench.sequencer(), bench.sequencer()
    one.refresh()
    theirs = two.declare_topic("a", 1)
    assert one.declare_topic("a", 1) == theirs


def test_offsets_stand_behind_each_other_across_appenders(bench: Bench) -> None:
    one, two = bench.sequencer(), bench.sequencer()
    topic_id = one.declare_topic("a", 1).topic_id
    bases = [
        append(one, topic_id, 2),
        append(two, topic_id, 3),
        append(one, topic_id, 1),
        append(two, topic_id, 1),
    ]
    assert bases == [0, 2, 5, 6]
    assert bench.reread().next_offset((topic_id, 0)) == 7


@pytest.mark.parametrize("fault", [AppendFault.REPLY_LOST, AppendFault.DROPPED, AppendFault.LATE])
def test_a_lost_reply_is_settled_at_the_same_index(bench: Bench, fault: AppendFault) -> None:
    sequencer = bench.sequencer()
    topic_id = sequencer.declare_topic("a", 1).topic_id
    bench.log.script(fault)
    assert append(sequencer, topic_id) == 0
    assert append(sequencer, topic_id) == 1
    assert bench.log.tail() == 3
    assert bench.log.appends[1] == bench.log.appends[2]
    assert bench.reread().next_offset((topic_id, 0)) == 2


@pytest.mark.parametrize(
    ("last", "landed"),
    [(AppendFault.REPLY_LOST, True), (AppendFault.DROPPED, False), (AppendFault.LATE, True)],
)
def test_nothing_is_appended_before_an_unknown_entry_is_settled(
    bench: Bench, last: AppendFault, landed: bool
) -> None:
    sequencer = bench.sequencer()
    topic_id = sequencer.declare_topic("a", 1).topic_id
    bench.log.script(AppendFault.DROPPED, AppendFault.DROPPED, last)
    with pytest.raises(OutcomeUnknown):
        append(sequencer, topic_id, rows=5)
    bench.log.script(*[AppendFault.DROPPED] * 3)
    with pytest.raises(RetryLater, match="not resolved yet"):
        append(sequencer, topic_id)
    # The unknown entry is the only one that was ever sent to its index. It lands now, and the next one
    # follows it.
    assert append(sequencer, topic_id) == 5
    assert len({data for index, data in bench.log.appends if index == 1}) == 1
    assert bench.reread().next_offset((topic_id, 0)) == 6


def test_an_unknown_entry_whose_place_was_taken_is_not_there(bench: Bench) -> None:
    sequencer, other = bench.sequencer(), bench.sequencer()
    topic_id = sequencer.declare_topic("a", 1).topic_id
    bench.log.script(*[AppendFault.DROPPED] * 3)
    with pytest.raises(OutcomeUnknown):
        append(sequencer, topic_id, rows=5)
    assert append(other, topic_id, rows=2) == 0
    assert append(sequencer, topic_id) == 2
    assert bench.reread().next_offset((topic_id, 0)) == 3


def test_reading_on_settles_too(bench: Bench) -> None:
    sequencer = bench.sequencer()
    topic_id = sequencer.declare_topic("a", 1).topic_id
    bench.log.script(AppendFault.DROPPED, AppendFault.DROPPED, AppendFault.REPLY_LOST)
    with pytest.raises(OutcomeUnknown):
        append(sequencer, topic_id, rows=5)
    assert sequencer.refresh().next_offset((topic_id, 0)) == 5
    asked = len(bench.log.appends)
    assert append(sequencer, topic_id) == 5
    assert len(bench.log.appends) == asked + 1


def test_a_refused_append_did_nothing(bench: Bench) -> None:
    sequencer = bench.sequencer()
    topic_id = sequencer.declare_topic("a", 1).topic_id
    bench.log.script(AppendFault.REFUSED)
    with pytest.raises(RetryLater, match="refused by the test"):
        append(sequencer, topic_id)
    assert bench.log.tail() == 1
    assert append(sequencer, topic_id) == 0


def test_an_entry_that_is_too_large_is_refused(bench: Bench) -> None:
    sequencer = bench.sequencer()
    topic_id = sequencer.declare_topic("a", 1).topic_id
    with pytest.raises(InvalidInput, match=r"larger than log\.entry_bytes_max"):
        sequencer.append_file("k" * SETTINGS.entry_bytes_max, 100, b"d" * 32, [segment(topic_id)])
    assert bench.log.tail() == 1


def test_a_tick_never_goes_back(bench: Bench) -> None:
    sequencer, other = bench.sequencer(), bench.sequencer()
    assert sequencer.tick(NOW_US) == NOW_US
    assert other.tick(NOW_US - 1) == NOW_US
    assert bench.log.tail() == 1
    assert other.tick(NOW_US + 1) == NOW_US + 1
    assert sequencer.refresh().tick_us == NOW_US + 1


def test_everything_after_a_tick_has_its_floor(bench: Bench) -> None:
    sequencer = bench.sequencer()
    topic_id = sequencer.declare_topic("a", 1).topic_id
    sequencer.tick(NOW_US + 5_000_000)
    append(bench.sequencer(), topic_id)
    assert bench.reread().segments((topic_id, 0))[0].floor_us == NOW_US + 5_000_000


def test_a_log_of_a_newer_version_is_left_alone(bench: Bench) -> None:
    bench.log.append(0, b"\x08\x09")  # format 9
    with pytest.raises(Halt, match="upgrade"):
        bench.sequencer().declare_topic("a", 1)
    assert bench.log.tail() == 1


@pytest.mark.parametrize(
    ("point", "tail"),
    [
        ("topic.append.before", 0),
        ("topic.append.after", 1),
        ("tick.append.before", 1),
        ("tick.append.after", 2),
    ],
)
def test_failpoints(bench: Bench, point: str, tail: int) -> None:
    failpoints.arm(f"{point}=error")
    sequencer = bench.sequencer()

    def act() -> None:
        sequencer.declare_topic("a", 1)
        sequencer.tick(NOW_US)

    with pytest.raises(RetryLater, match=point):
        act()
    assert bench.log.tail() == tail
    act()
    assert bench.log.tail() == 2


def test_producer_ids_after_a_restore_are_not_those_of_the_lost_log() -> None:
    """Otherwise a new client's records would count as repetitions of those of a client with the same id."""
    lost, restored = Bench(), Bench()
    restored.sequencer()  # another process has other random bytes
    one, other = lost.sequencer().assign_producer_ids(), restored.sequencer().assign_producer_ids()
    assert lost.log.tail() == restored.log.tail()
    assert one.stop <= other.start or other.stop <= one.start
