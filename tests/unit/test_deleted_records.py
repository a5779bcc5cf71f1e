"""Records that clients delete: the fold, checkpoints, formats, races, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from archiver.kafka.log_view import Bounds, LogView
from archiver.ledger.fold import LedgerFold
from archiver.proto import intake_log_pb2 as pb
from archiver.runtime.errors import Corrupted, Halt, InvalidInput, NotFound, OutcomeUnknown
from archiver.runtime.ids import TopicId
from intake.format import PlacedSegment
from intake.log.checkpoint import Checkpoint, decode, encode, same
from intake.log.entries import format_of, parse_entry
from intake.log.fold import IntakeFold, TopicState
from intake.log.sequencer import DELETIONS_PER_ENTRY, PARTITIONS_MAX, Sequencer
from intake.producers import Stamp
from tests.support.log.faulty_log import AppendFault
from tests.support.log.log_bench import NOW_US, SETTINGS, LogBench, read_by


@pytest.fixture
def bench() -> LogBench:
    return LogBench()


def append(
    sequencer: Sequencer, topic: TopicState, partition: int, rows: int, stamp: Stamp | None = None
) -> None:
    segment = PlacedSegment(topic.topic_id, partition, 0, 0, rows, 10, NOW_US, stamp)
    (landed,) = sequencer.append_file("intake/f", 100, b"d" * 32, [segment])
    assert landed.refusal is None


def deleted_below(fold: IntakeFold, topic: TopicState) -> list[int]:
    return [fold.partition((topic.topic_id, number)).deleted_below for number in range(topic.partitions)]


def entry(topic_id: str, *parts: tuple[int, int]) -> bytes:
    stated = [pb.DeletedBelow(partition=number, below=below) for number, below in parts]
    body = pb.RecordsDeleted(topic_id=bytes.fromhex(topic_id), partitions=stated)
    return pb.IntakeEntry(format=5, id=b"2" * 16, records_deleted=body).SerializeToString()


def test_the_greatest_offset_of_a_partition_counts(bench: LogBench) -> None:
    one, two = bench.process(), bench.process()
    topic = one.declare_topic("orders", 3)
    append(one, topic, 0, 10)
    append(one, topic, 1, 5)
    one.delete_records(topic.topic_id, {0: 4, 1: 5})
    tail = bench.log.tail()
    # The same again, by this process and by another one, and less: nothing is appended.
    one.delete_records(topic.topic_id, {0: 4, 1: 5})
    two.delete_records(topic.topic_id, {0: 4, 1: 5})
    two.delete_records(topic.topic_id, {0: 1, 2: 0})
    assert bench.log.tail() == tail
    two.delete_records(topic.topic_id, {0: 7, 1: 2})
    assert bench.log.tail() == tail + 1
    fold = one.refresh()
    assert deleted_below(fold, topic) == deleted_below(two.fold, topic) == [7, 5, 0]
    # Offsets, segments and gaps stay, so that every offset is archived once.
    assert [len(fold.segments((topic.topic_id, number))) for number in range(3)] == [1, 1, 0]
    append(one, topic, 0, 1)
    assert fold.next_offset((topic.topic_id, 0)) == 11


def test_of_two_that_delete_at_once_the_greater_offset_holds(
    bench: LogBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, fast = bench.process(), bench.process()
    topic = slow.declare_topic("orders", 1)
    append(slow, topic, 0, 10)
    append_to = bench.log.append
    theirs = [9, 3]

    def overtaken(index: int, data: bytes) -> object:
        if theirs and parse_entry(index, data).WhichOneof("body") == "records_deleted":
            monkeypatch.setattr(bench.log, "append", append_to)
            fast.delete_records(topic.topic_id, {0: theirs.pop()})
            monkeypatch.setattr(bench.log, "append", overtaken)
        return append_to(index, data)

    monkeypatch.setattr(bench.log, "append", overtaken)
    # The other process is faster twice: with less, and then with more. The second makes this entry needless.
    slow.delete_records(topic.topic_id, {0: 6})
    assert deleted_below(slow.fold, topic) == [9]
    assert bench.log.tail() == 4


def test_two_entries_in_either_order_give_the_same_state(bench: LogBench) -> None:
    one = bench.process()
    topic = one.declare_topic("orders", 1)
    append(one, topic, 0, 10)
    entries = bench.entries()
    less, more = entry(topic.topic_id, (0, 3)), entry(topic.topic_id, (0, 8))
    found = [read_by([*entries, *order]) for order in ((less, more), (more, less), (more, less, more))]
    assert [deleted_below(fold, topic) for fold in found] == [[8], [8], [8]]


def test_it_is_in_every_checkpoint(bench: LogBench) -> None:
    one = bench.process()
    topic = one.declare_topic("orders", 2)
    append(one, topic, 1, 10)
    plain = decode(encode(Checkpoint(one.fold.state(), ())), "checkpoint")
    one.delete_records(topic.topic_id, {1: 6})
    fresh = read_by(bench.entries())
    restored = decode(encode(Checkpoint(fresh.state(), ())), "checkpoint")
    assert same(restored.state, fresh.state())
    assert deleted_below(restored.fold(), topic) == [0, 6]
    assert not same(plain.state, fresh.state())


def test_formats_of_entries_and_checkpoints(bench: LogBench, monkeypatch: pytest.MonkeyPatch) -> None:
    one = bench.process()
    topic = one.declare_topic("orders", 1)
    append(one, topic, 0, 10)
    plain = encode(Checkpoint(one.fold.state(), ()))
    one.delete_records(topic.topic_id, {0: 6})
    assert [format_of(pb.IntakeEntry.FromString(data)) for data in bench.entries()] == [1, 1, 5]
    deleted = encode(Checkpoint(one.fold.state(), ()))
    # An older version would give the records, so it stops.
    monkeypatch.setattr("intake.log.entries.ENTRY_FORMATS", (1, 2, 3, 4))
    monkeypatch.setattr("intake.log.checkpoint.STATE_FORMATS", (1, 2, 3))
    with pytest.raises(Halt, match=r"format 5.*upgrade"):
        parse_entry(2, bench.entries()[2])
    with pytest.raises(Halt, match=r"format 4.*upgrade"):
        decode(deleted, "checkpoint")
    decode(plain, "checkpoint")


def test_nothing_beyond_the_end_and_of_no_other_partition_is_deleted(bench: LogBench) -> None:
    one = bench.process()
    topic = one.declare_topic("orders", 2)
    append(one, topic, 0, 10)
    tail = bench.log.tail()
    for below in ({0: 11}, {0: -1}, {0: 5, 1: 1}):
        with pytest.raises(InvalidInput, match="has the offsets below"):
            one.delete_records(topic.topic_id, below)
    with pytest.raises(NotFound, match="has no partition 2"):
        one.delete_records(topic.topic_id, {0: 5, 2: 0})
    with pytest.raises(NotFound):
        one.delete_records(TopicId("0" * 32), {0: 0})
    assert bench.log.tail() == tail
    one.delete_records(topic.topic_id, {0: 10, 1: 0})
    assert deleted_below(one.fold, topic) == [10, 0]


@pytest.mark.parametrize("parts", [[(0, 11)], [(0, 5), (1, 1)], [(0, 5), (2, 0)]])
def test_an_impossible_entry_is_damage_and_changes_nothing(
    bench: LogBench, parts: list[tuple[int, int]]
) -> None:
    one = bench.process()
    topic = one.declare_topic("orders", 2)
    append(one, topic, 0, 10)
    fold = one.fold
    with pytest.raises(Corrupted, match="that never were"):
        fold.apply(fold.next_index, entry(topic.topic_id, *parts))
    assert deleted_below(fold, topic) == [0, 0]
    with pytest.raises(Corrupted, match="that never were"):
        fold.apply(fold.next_index, entry("0" * 32, (0, 0)))


def test_of_a_deleted_topic_a_late_entry_changes_nothing(bench: LogBench) -> None:
    one, two = bench.process(), bench.process()
    topic = one.declare_topic("orders", 1)
    append(one, topic, 0, 10)
    two.delete_topic(topic.topic_id)
    with pytest.raises(NotFound, match="was deleted"):
        one.delete_records(topic.topic_id, {0: 5})
    fold = one.refresh()
    fold.apply(fold.next_index, entry(topic.topic_id, (0, 99)))
    assert topic.topic_id in fold.deleted_topics


def test_a_topic_that_is_deleted_during_the_append_needs_no_entry(
    bench: LogBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, fast = bench.process(), bench.process()
    topic = slow.declare_topic("orders", 1)
    append(slow, topic, 0, 10)
    append_to = bench.log.append

    def overtaken(index: int, data: bytes) -> object:
        monkeypatch.setattr(bench.log, "append", append_to)
        fast.delete_topic(topic.topic_id)
        return append_to(index, data)

    monkeypatch.setattr(bench.log, "append", overtaken)
    slow.delete_records(topic.topic_id, {0: 5})
    assert bench.log.tail() == 3


def test_an_unknown_outcome_is_resolved_by_the_same_call(bench: LogBench) -> None:
    one = bench.process()
    topic = one.declare_topic("orders", 1)
    append(one, topic, 0, 10)
    bench.log.script(*[AppendFault.LATE] * SETTINGS.append_attempts_max)
    with pytest.raises(OutcomeUnknown):
        one.delete_records(topic.topic_id, {0: 5})
    tail = bench.log.tail()
    one.delete_records(topic.topic_id, {0: 5})
    assert (bench.log.tail(), deleted_below(one.fold, topic)) == (tail, [5])


def test_many_partitions_take_several_entries_of_a_bounded_size(bench: LogBench) -> None:
    count = 2 * DELETIONS_PER_ENTRY + 1
    one = bench.process()
    topic = one.declare_topic("orders", count)
    segments = [
        PlacedSegment(topic.topic_id, number, 0, number, 1, 10, NOW_US, None) for number in range(count)
    ]
    one.append_file("intake/f", 100, b"d" * 32, segments)
    before = bench.log.tail()
    one.delete_records(topic.topic_id, dict.fromkeys(range(count), 1))
    assert bench.log.tail() == before + 3
    assert deleted_below(one.fold, topic) == [1] * count
    # With the largest numbers that there can be, an entry fits into the smallest limit of a log.
    largest = [(PARTITIONS_MAX - 1, 2**63 - 1)] * DELETIONS_PER_ENTRY
    assert len(entry(topic.topic_id, *largest)) < 16 * 2**10


def test_bounds_of_a_partition_whose_open_transaction_is_deleted(bench: LogBench) -> None:
    one = bench.process()
    topic = one.declare_topic("orders", 1)
    append(one, topic, 0, 10)
    producer_id, epoch = one.open_producer("t", 60_000_000)
    append(one, topic, 0, 5, Stamp(producer_id, epoch, 0, transactional=True))
    ledger = cast("LedgerFold", SimpleNamespace(topics={topic.topic_id: SimpleNamespace(start=lambda _: 3)}))
    view = LogView(lambda: one.view, one.refresh, lambda: ledger, bench.clock)
    view.ledger()
    found: list[Any] = [view.bounds(topic.topic_id, 0)]
    for below in (2, 6, 12):
        one.delete_records(topic.topic_id, {0: below})
        found.append(view.bounds(topic.topic_id, 0))
    # Retention's start counts until clients delete more. Nothing is stable below the start.
    assert found == [Bounds(3, 10, 15), Bounds(3, 10, 15), Bounds(6, 10, 15), Bounds(12, 12, 15)]
    one.end_transaction(producer_id, epoch, commit=True)
    assert view.bounds(topic.topic_id, 0) == Bounds(12, 15, 15)
