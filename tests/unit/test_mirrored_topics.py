"""Mirrored topics in the log: offsets of an upstream, gaps, growth, entries that do not count, and what a
checkpoint keeps."""

from __future__ import annotations

import pytest

from archiver.config.groups import LogSettings
from archiver.proto import intake_log_pb2 as pb
from archiver.runtime.clock import SystemClock
from archiver.runtime.errors import ConfigInvalid, Corrupted, InvalidInput, RetryLater
from archiver.runtime.ids import SeededIds, TopicId
from intake.format import PlacedSegment
from intake.log.checkpoint import Checkpoint, decode, encode
from intake.log.entries import file_entry, format_of
from intake.log.fold import IntakeFold, TopicState, mirror_source
from intake.log.sequencer import Sequencer
from intake.log.source_positions import Move
from tests.support.log.memory_log import MemoryLog

KEY = "intake/2026-01-01/00/1767225600000-01AN4Z07BY79KA1307SR9X4MV3.parquet"
ID = b"u" * 16


class Bench:
    """A log and a process that appends to it."""

    def __init__(self) -> None:
        self.log = MemoryLog("intake", 512 * 1024)
        self.sequencer = self.process()

    def process(self) -> Sequencer:
        return Sequencer(
            self.log, SeededIds(self.log.tail()), SystemClock(), LogSettings(append_backoff=0.001)
        )

    def topic(self, partitions: int = 2) -> TopicState:
        return self.sequencer.declare_topic("orders", partitions, mirrored=True)

    def take(
        self,
        topic: TopicState,
        base: int,
        end: int,
        *runs: tuple[int, int],
        partition: int = 0,
        identity: bytes = ID,
    ) -> str | None:
        """Append an entry with these runs of offsets and a move to `end`. Returns why it does not count, or
        None."""
        segments = [
            PlacedSegment(topic.topic_id, partition, 0, 0, high - low, 10, 1000 + low, None, low)
            for low, high in runs
        ]
        move = Move(
            mirror_source(topic.topic_id),
            str(partition),
            base,
            end,
            False,
            identity,
            self.sequencer.fold.next_index,
            1,
        )
        file = (KEY, 100, bytes(32), segments) if runs else ()
        return self.sequencer.append_moves([move], *file)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_offsets_are_the_upstreams_and_what_lies_between_is_a_gap(bench: Bench) -> None:
    topic = bench.topic()
    tp = (topic.topic_id, 0)
    assert bench.take(topic, 0, 100) is None  # it begins there
    assert bench.take(topic, 100, 120, (103, 105), (105, 106), (110, 118)) is None
    assert bench.take(topic, 120, 121, (120, 121)) is None
    fold = bench.sequencer.fold
    assert [(one.base, one.end) for one in fold.segments(tp)] == [
        (103, 105),
        (105, 106),
        (110, 118),
        (120, 121),
    ]
    assert fold.gaps(tp, 0, 200) == [(0, 103), (106, 110), (118, 120)]
    assert (fold.next_offset(tp), fold.stable_offset(tp), fold.next_offset((topic.topic_id, 1))) == (
        121,
        121,
        0,
    )
    backlog = bench.sequencer.backlog()
    assert (backlog.waiting(tp, 0).records, backlog.summary(tp, 0).rows) == (12, 12)


def test_what_was_taken_in_is_not_taken_in_again(bench: Bench) -> None:
    topic = bench.topic()
    assert bench.take(topic, 0, 10, (0, 10)) is None
    for base, end, run in ((0, 10, (0, 10)), (5, 15, (5, 15)), (10, 15, (9, 15))):
        assert bench.take(topic, base, end, run) == "position"
    assert bench.take(topic, 10, 20, (10, 20), identity=b"v" * 16) == "position"
    assert bench.take(topic, 10, 20, (10, 20)) is None
    assert bench.sequencer.fold.next_offset((topic.topic_id, 0)) == 20


def test_records_outside_of_what_was_read_of_their_partition_do_not_count(bench: Bench) -> None:
    topic = bench.topic()
    assert bench.take(topic, 0, 10, (0, 10)) is None
    for base, end, run in ((10, 20, (15, 21)), (10, 20, (20, 25)), (10, 10, (10, 11))):
        assert bench.take(topic, base, end, run) == "position"
    moved = Move(mirror_source(topic.topic_id), "0", 10, 20, False, ID, 9, 1)
    assert (
        bench.sequencer.append_moves(
            [moved], KEY, 1, bytes(32), [PlacedSegment(topic.topic_id, 1, 0, 0, 5, 1, 1, None, 10)]
        )
        == "position"
    )
    fold = bench.sequencer.fold
    assert [fold.next_offset((topic.topic_id, number)) for number in (0, 1)] == [10, 0]
    assert fold.positions.source(mirror_source(topic.topic_id)).begun["0"].end == 10


def test_what_no_reader_would_take_is_never_appended(bench: Bench) -> None:
    topic, plain = bench.topic(), bench.sequencer.declare_topic("plain", 2)
    for one, partition, why in ((topic, 2, "which has 2"), (plain, 0, "not mirrored")):
        tail = bench.log.tail()
        with pytest.raises(InvalidInput, match=why):
            bench.take(one, 0, 10, (0, 10), partition=partition)
        assert bench.log.tail() == tail
    with pytest.raises(InvalidInput, match="behind a later one"):
        bench.take(topic, 0, 10, (5, 9), (8, 10))
    assert bench.process().refresh().next_index == bench.log.tail()


def test_records_that_state_no_offset_do_not_count(bench: Bench) -> None:
    topic = bench.topic()
    (landed,) = bench.sequencer.append_file(
        KEY, 100, bytes(32), [PlacedSegment(topic.topic_id, 0, 0, 0, 5, 10, 1000)]
    )
    assert (landed.refusal, bench.sequencer.fold.next_offset((topic.topic_id, 0))) == ("mirrored", 0)


@pytest.mark.parametrize(
    ("runs", "mirrored", "moves", "why"),
    [
        ([(0, 5)], False, True, "which is not mirrored"),
        ([(0, 5)], True, False, "without the positions"),
        ([(5, 9), (8, 12)], True, True, "behind a later one"),
        ([(2**63 - 4, 2**63)], True, True, "larger than there can be"),
    ],
)
def test_an_entry_that_cannot_be_is_reported(
    runs: list[tuple[int, int]], mirrored: bool, moves: bool, why: str
) -> None:
    fold, topic_id = IntakeFold(), TopicId("a" * 32)
    declared = pb.TopicDeclared(topic_id=bytes.fromhex(topic_id), name="t", partitions=1, mirrored=mirrored)
    fold.apply(0, pb.IntakeEntry(format=4, id=b"1" * 16, topic=declared).SerializeToString())
    segments = [PlacedSegment(topic_id, 0, 0, 0, high - low, 1, 1, None, low) for low, high in runs]
    file = file_entry(
        KEY,
        1,
        bytes(32),
        segments,
        [Move(mirror_source(topic_id), "0", 0, 20, False, ID, 0, 0)] if moves else [],
    )
    with pytest.raises(Corrupted, match=why):
        fold.apply(1, pb.IntakeEntry(format=4, id=b"2" * 16, file=file).SerializeToString())
    assert fold.next_index == 1


def test_a_mirrored_topic_grows_and_never_shrinks(bench: Bench) -> None:
    topic = bench.topic(2)
    other = bench.process()
    assert other.declare_topic("orders", 5, mirrored=True).partitions == 5
    assert bench.topic(3).partitions == 5
    assert bench.sequencer.fold.topics_by_id[topic.topic_id].partitions == 5
    grown = bench.topic(5)
    assert bench.take(grown, 0, 3, (0, 3), partition=4) is None
    assert bench.log.tail() == 3, "nothing is appended that changes nothing"


def test_kinds_of_topics_are_not_mixed(bench: Bench) -> None:
    bench.topic(2)
    bench.sequencer.declare_topic("plain", 2)
    with pytest.raises(ConfigInvalid, match="only its Kafka source writes"):
        bench.sequencer.declare_topic("orders", 2)
    with pytest.raises(ConfigInvalid, match="is not mirrored"):
        bench.sequencer.declare_topic("plain", 2, mirrored=True)
    with pytest.raises(ConfigInvalid, match="is not mirrored"):
        bench.sequencer.declare_topic("plain", 0)
    with pytest.raises(RetryLater, match="not mirrored yet"):
        bench.sequencer.declare_topic("unknown", 0)
    with pytest.raises(InvalidInput):
        bench.sequencer.declare_topic("negative", -1)
    assert bench.sequencer.declare_topic("orders", 0).partitions == 2


def test_a_checkpoint_keeps_all_of_it(bench: Bench) -> None:
    topic = bench.topic()
    bench.take(topic, 0, 20, (3, 5), (9, 20))
    state = bench.sequencer.fold.state()
    fold = decode(encode(Checkpoint(state, ())), "here").fold()
    assert fold.topics_by_id[topic.topic_id] == topic and fold.topics_by_id[topic.topic_id].mirrored
    assert fold.gaps((topic.topic_id, 0), 0, 20) == [(0, 3), (5, 9)]
    assert fold.positions.source(mirror_source(topic.topic_id)).begun["0"].end == 20


def test_only_what_needs_it_has_the_newest_format() -> None:
    plain = file_entry(KEY, 1, bytes(32), [PlacedSegment(TopicId("a" * 32), 0, 0, 0, 1, 1, 1)])
    stated = file_entry(KEY, 1, bytes(32), [PlacedSegment(TopicId("a" * 32), 0, 0, 0, 1, 1, 1, None, 0)])
    assert [format_of(pb.IntakeEntry(file=one)) for one in (plain, stated)] == [1, 4]
    assert format_of(pb.IntakeEntry(topic=pb.TopicDeclared(name="t"))) == 1
    assert format_of(pb.IntakeEntry(topic=pb.TopicDeclared(name="t", mirrored=True))) == 4
    assert format_of(pb.IntakeEntry(grown=pb.TopicGrown(partitions=1))) == 4
