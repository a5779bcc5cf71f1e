"""Append times (`message.timestamp.type=LogAppendTime`) in the intake log: which records have them, the formats,
checkpoints, and repeated batches.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from archiver.log.checkpoints import unseal
from archiver.proto import intake_log_pb2 as pb
from archiver.proto import intake_state_pb2 as state_pb
from archiver.runtime.errors import Halt
from archiver.runtime.ids import TopicId
from intake.format import PlacedSegment
from intake.log.checkpoint import MAGIC, Checkpoint, decode, encode, same
from intake.log.entries import format_of, parse_entry
from intake.log.fold import IntakeFold, Landed, TopicState
from intake.producers import Stamp
from tests.support.log.log_bench import NOW_US, LogBench, read_by

LOG_APPEND_TIME = (("message.timestamp.type", "LogAppendTime"),)


class Topic:
    """One topic of one process."""

    def __init__(self) -> None:
        self.bench = LogBench()
        self.sequencer = self.bench.process()
        self.topic = self.sequencer.declare_topic("orders", 2)
        self._files = 0

    def append(
        self, append_time: bool, rows: int = 1, stamp: Stamp | None = None, accept_us: int = NOW_US
    ) -> Landed:
        self._files += 1
        segment = PlacedSegment(
            self.topic.topic_id, 1, 0, 0, rows, 10, accept_us, stamp, log_append_time=append_time
        )
        return self.sequencer.append_file(f"intake/{self._files}", 100, b"d" * 32, [segment])[0]

    def types(self, fold: IntakeFold) -> list[bool]:
        """Of every record."""
        held = fold.partition((self.topic.topic_id, 1))
        found = held.have_append_time(np.arange(held.next_offset))
        return [False] * held.next_offset if found is None else found.tolist()


def test_each_record_keeps_the_type_with_which_it_was_stored() -> None:
    given = Topic()
    rows = [(False, 2), (True, 3), (True, 1), (False, 1), (True, 2)]
    for append_time, count in rows:
        given.append(append_time, count)
    expected = [append_time for append_time, count in rows for _ in range(count)]
    fold = read_by(given.bench.entries())
    assert given.types(fold) == given.types(given.sequencer.fold) == expected
    held = fold.partition((given.topic.topic_id, 1))
    assert held.append_time_changes == [2, 6, 7]
    assert fold.partition((given.topic.topic_id, 0)).append_time_changes == []
    assert held.have_append_time(np.array([0, 1, 6])) is None
    # It outlives the segments, which go to history files.
    fold.release_history({(given.topic.topic_id, 1): 9})
    assert given.types(fold) == expected


def test_only_these_segments_and_states_need_the_newest_format(monkeypatch: pytest.MonkeyPatch) -> None:
    given = Topic()

    def state_format() -> int:
        sealed = encode(Checkpoint(given.sequencer.fold.state(), ()))
        found = decode(sealed, "here")
        assert same(found.state, given.sequencer.fold.state())
        assert given.types(found.fold()) == given.types(given.sequencer.fold)
        return state_pb.IntakeState.FromString(unseal(MAGIC, sealed, "here")).format

    given.append(False)
    assert state_format() == 1
    given.append(True)
    given.append(False)
    assert state_format() == 5
    entries = given.bench.entries()
    assert [parse_entry(0, data).format for data in entries] == [1, 1, 6, 1]
    # As an older version reads it.
    monkeypatch.setattr("intake.log.entries.ENTRY_FORMATS", (1, 2, 3, 4, 5))
    with pytest.raises(Halt, match="entry 2 has the format 6, this version knows 5; upgrade"):
        read_by(entries)


def test_the_stored_bytes() -> None:
    """Golden bytes: field 9 of a segment, field 7 of a partition in a checkpoint, field 8 of its batches."""
    segment = pb.Segment(rows=1, log_append_time=True)
    assert segment.SerializeToString().hex() == "20014801"
    assert state_pb.Partition(append_time_changes=[2, 300]).SerializeToString().hex() == "3a0302ac02"
    assert state_pb.Batches(append_us=[0, 1]).SerializeToString().hex() == "42020001"
    entry = pb.IntakeEntry(file=pb.IntakeFile(topics=[pb.TopicSegments(segments=[segment])]))
    assert format_of(entry) == 6


def test_states_of_other_types_are_not_the_same() -> None:
    given = Topic()
    given.append(True)
    state = given.sequencer.fold.state()
    tp = (given.topic.topic_id, 1)
    other = replace(state.partitions[tp], append_time_changes=[])
    assert not same(state, replace(state, partitions={**state.partitions, tp: other}))


def test_a_repeated_batch_has_the_append_time_of_the_original() -> None:
    given = Topic()
    producer, epoch = given.sequencer.open_producer("", 1)

    def sent(sequence: int, rows: int, append_time: bool, accept_us: int) -> Landed:
        return given.append(append_time, rows, Stamp(producer, epoch, sequence), accept_us)

    assert sent(0, 2, True, NOW_US).append_times == sent(2, 1, False, NOW_US + 1).append_times == ()
    assert sent(3, 2, True, NOW_US + 2).append_times == ()

    # The type of the topic may have changed since.
    assert sent(0, 2, False, NOW_US + 9).append_times == ((NOW_US, 2),)
    assert sent(2, 1, True, NOW_US + 9).append_times == ()
    assert sent(4, 1, False, NOW_US + 9).append_times == ((NOW_US + 2, 1),)
    # Several at once: a flush joins batches of the type CreateTime.
    assert sent(1, 4, False, NOW_US + 9).append_times == ((NOW_US, 1), (0, 1), (NOW_US + 2, 2))
    # Also after the segments are in history files and the state comes from a checkpoint.
    stored = decode(encode(Checkpoint(given.sequencer.fold.state(), ())), "here")
    assert same(stored.state, given.sequencer.fold.state())
    known = stored.fold().producers
    tp = (given.topic.topic_id, 1)
    for run, times in (((0, 2), ((NOW_US, 2),)), ((2, 1), ()), ((4, 1), ((NOW_US + 2, 1),))):
        assert known.append_times(tp, producer, [run]) == times
    assert known.append_times(tp, producer, []) == ()


@pytest.mark.parametrize(
    ("mirrored", "configs", "expected"),
    [
        (False, LOG_APPEND_TIME, True),
        (False, (("message.timestamp.type", "CreateTime"),), False),
        (False, (), False),
        (True, LOG_APPEND_TIME, False),
    ],
)
def test_the_type_of_new_records(
    mirrored: bool, configs: tuple[tuple[str, str], ...], expected: bool
) -> None:
    topic = TopicState(TopicId("a" * 32), "orders", 1, 0, mirrored, configs)
    assert topic.log_append_time is expected
