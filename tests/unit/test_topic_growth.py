"""Partitions that a topic gets after its declaration: the fold, the formats, races, and what is refused."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from archiver.proto import intake_log_pb2 as pb
from archiver.runtime.errors import Corrupted, Halt, InvalidInput, NotFound, OutcomeUnknown
from intake.format import PlacedSegment
from intake.log.checkpoint import Checkpoint, decode, encode, same
from intake.log.entries import format_of, parse_entry
from intake.log.fold import Landed, TopicState
from intake.log.sequencer import PARTITIONS_MAX, Sequencer
from intake.producers import Stamp
from tests.support.log.faulty_log import AppendFault
from tests.support.log.log_bench import NOW_US, LogBench, read_by


@pytest.fixture
def bench() -> LogBench:
    return LogBench()


def append(sequencer: Sequencer, topic: TopicState, partition: int, stamp: Stamp | None = None) -> Landed:
    segment = PlacedSegment(topic.topic_id, partition, 0, 0, 1, 10, NOW_US, stamp)
    return sequencer.append_file("intake/f", 100, b"d" * 32, [segment])[0]


def grown(topic_id: str, partitions: int, *, own_offsets: bool = True, number: int = 5) -> bytes:
    body = pb.TopicGrown(topic_id=bytes.fromhex(topic_id), partitions=partitions, own_offsets=own_offsets)
    return pb.IntakeEntry(format=number, id=b"2" * 16, grown=body).SerializeToString()


def test_new_partitions_begin_at_zero_and_the_others_go_on(bench: LogBench) -> None:
    one = bench.process()
    topic = one.declare_topic("orders", 2)
    append(one, topic, 0)
    larger = one.grow_topic("orders", 4)
    assert (larger.partitions, larger.topic_id, larger.created_us) == (4, topic.topic_id, topic.created_us)
    assert [append(one, topic, partition).runs for partition in range(4)] == [
        ((1, 1),),
        ((0, 1),),
        ((0, 1),),
        ((0, 1),),
    ]
    fold = bench.process().refresh()
    assert fold.topics_by_name["orders"] == fold.topics_by_id[topic.topic_id] == larger
    assert [fold.next_offset((topic.topic_id, partition)) for partition in range(4)] == [2, 1, 1, 1]
    with pytest.raises(NotFound, match="has no partition 4; it has 4"):
        fold.next_offset((topic.topic_id, 4))


def test_a_declaration_with_more_partitions_adds_them_and_one_with_fewer_changes_nothing(
    bench: LogBench,
) -> None:
    one, other = bench.process(), bench.process()
    one.declare_topic("orders", 2)
    assert other.declare_topic("orders", 5).partitions == 5
    assert one.declare_topic("orders", 3).partitions == 5
    assert bench.log.tail() == 2


def test_of_two_that_add_at_once_the_larger_number_holds(
    bench: LogBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, fast = bench.process(), bench.process()
    slow.declare_topic("orders", 2)
    append_to = bench.log.append
    theirs = [4, 9]

    def overtaken(index: int, data: bytes) -> object:
        if theirs and parse_entry(index, data).WhichOneof("body") == "grown":
            monkeypatch.setattr(bench.log, "append", append_to)
            fast.grow_topic("orders", theirs.pop(0))
            monkeypatch.setattr(bench.log, "append", overtaken)
        return append_to(index, data)

    monkeypatch.setattr(bench.log, "append", overtaken)
    # First another process comes first with fewer, then one with more: its own entry is not needed any more.
    assert slow.grow_topic("orders", 6).partitions == 9
    assert [parse_entry(0, data).grown.partitions for data in bench.entries()[1:]] == [4, 9]


def test_a_late_entry_with_fewer_or_as_many_changes_nothing(bench: LogBench) -> None:
    topic = bench.process().declare_topic("orders", 2)
    fold = read_by([*bench.entries(), grown(topic.topic_id, 6), grown(topic.topic_id, 4)])
    assert fold.topics_by_name["orders"].partitions == 6
    fold.apply(3, grown(topic.topic_id, 6))
    assert [fold.next_offset((topic.topic_id, partition)) for partition in range(6)] == [0] * 6


def test_what_cannot_be_is_refused_by_name(bench: LogBench) -> None:
    one = bench.process()
    one.declare_topic("orders", 4)
    one.declare_topic("mirror", 2, mirrored=True)
    tail = bench.log.tail()
    with pytest.raises(
        InvalidInput, match="topic orders has 4 partitions, and their number is never lowered"
    ):
        one.grow_topic("orders", 3)
    with pytest.raises(InvalidInput, match=f"topic orders cannot have .*between 1 and {PARTITIONS_MAX}"):
        one.grow_topic("orders", PARTITIONS_MAX + 1)
    with pytest.raises(InvalidInput, match="topic mirror is mirrored: it has the partitions of its topic"):
        one.grow_topic("mirror", 3)
    with pytest.raises(NotFound, match="there is no topic other"):
        one.grow_topic("other", 3)
    assert one.grow_topic("orders", 4).partitions == 4
    assert bench.log.tail() == tail, "nothing is appended that changes nothing"


def test_a_deleted_topic_gets_none_and_neither_does_the_next_of_its_name(bench: LogBench) -> None:
    one = bench.process()
    topic = one.declare_topic("orders", 2)
    one.delete_topic(topic.topic_id)
    with pytest.raises(NotFound, match="there is no topic orders"):
        one.grow_topic("orders", 3)
    again = one.declare_topic("orders", 1, again=True)
    fold = read_by([*bench.entries(), grown(topic.topic_id, 6)])
    assert fold.topics_by_name["orders"] == again
    assert fold.deleted_topics[topic.topic_id].partitions == 2


def test_a_topic_that_is_created_again_in_between_gets_none(
    bench: LogBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, fast = bench.process(), bench.process()
    topic = slow.declare_topic("orders", 2)
    append_to = bench.log.append

    def overtaken(index: int, data: bytes) -> object:
        monkeypatch.setattr(bench.log, "append", append_to)
        fast.delete_topic(topic.topic_id)
        fast.declare_topic("orders", 1, again=True)
        return append_to(index, data)

    monkeypatch.setattr(bench.log, "append", overtaken)
    with pytest.raises(NotFound, match="topic orders was deleted while"):
        slow.grow_topic("orders", 4)
    assert slow.fold.topics_by_name["orders"].partitions == 1
    assert bench.log.tail() == 3, "nothing is appended for a topic that is gone"


def test_an_unknown_outcome_is_resolved(bench: LogBench) -> None:
    one = bench.process()
    one.declare_topic("orders", 2)
    bench.log.script(*[AppendFault.REPLY_LOST] * 3)
    with pytest.raises(OutcomeUnknown):
        one.grow_topic("orders", 4)
    assert one.grow_topic("orders", 4).partitions == 4
    assert bench.log.tail() == 2


def test_a_producer_and_a_transaction_go_on_in_new_partitions(bench: LogBench) -> None:
    one = bench.process()
    topic = one.declare_topic("orders", 1)
    producer = one.open_producer("shop", 60_000_000)
    assert append(one, topic, 0, Stamp(*producer, 0, True)).refusal is None
    one.grow_topic("orders", 3)
    assert append(one, topic, 2, Stamp(*producer, 0, True)).runs == ((0, 1),)
    assert append(one, topic, 2, Stamp(*producer, 0, True)).segment is None, "it repeats a batch"
    places = [(topic.topic_id, partition) for partition in range(3)]
    assert [one.fold.stable_offset(tp) for tp in places] == [0, 0, 0]
    one.end_transaction(*producer, commit=True)
    assert [one.fold.stable_offset(tp) for tp in places] == [1, 0, 1]
    one.delete_topic(topic.topic_id)
    assert one.fold.producers.next_sequence((topic.topic_id, 2), *producer) in (None, 0)


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (lambda plain, mirror: grown("f" * 32, 3), "that was never declared"),
        (lambda plain, mirror: grown(plain, 3, own_offsets=False, number=4), "orders as if it were mirrored"),
        (lambda plain, mirror: grown(mirror, 3), "mirror as if it were not mirrored"),
    ],
)
def test_a_growth_that_contradicts_the_log_is_damage(bench: LogBench, entry: object, why: str) -> None:
    one = bench.process()
    plain, mirror = one.declare_topic("orders", 1), one.declare_topic("mirror", 1, mirrored=True)
    assert callable(entry)
    with pytest.raises(Corrupted, match=why):
        read_by([*bench.entries(), entry(plain.topic_id, mirror.topic_id)])


def test_only_growth_of_a_plain_topic_has_the_newest_format(bench: LogBench) -> None:
    one = bench.process()
    one.declare_topic("orders", 1)
    one.declare_topic("mirror", 1, mirrored=True)
    one.declare_topic("mirror", 2, mirrored=True)
    one.grow_topic("orders", 2)
    assert [parse_entry(0, data).format for data in bench.entries()] == [1, 4, 4, 5]
    assert format_of(pb.IntakeEntry(grown=pb.TopicGrown(partitions=1))) == 4


def test_an_older_version_says_that_it_must_be_upgraded(
    bench: LogBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = bench.process()
    one.declare_topic("orders", 1)
    one.grow_topic("orders", 2)
    monkeypatch.setattr("intake.log.entries.ENTRY_FORMATS", (1, 2, 3, 4))
    with pytest.raises(Halt, match="entry 1 has the format 5, this version knows 4; upgrade"):
        read_by(bench.entries())


@pytest.mark.parametrize("seed", range(20))
def test_every_reader_and_every_checkpoint_has_the_same_state(bench: LogBench, seed: int) -> None:
    """Processes declare, add, delete and append, each behind the others' backs."""
    choices = random.Random(seed)
    processes = [bench.process() for _ in range(3)]
    for _ in range(60):
        one, name = choices.choice(processes), choices.choice("ab")
        topic = one.fold.topics_by_name.get(name)
        act = choices.random()
        if topic is None or act < 0.15:
            one.declare_topic(name, choices.randrange(1, 5), again=True)
        elif act < 0.4:
            with_more = topic.partitions + choices.randrange(3)
            # Refused if another process added more, or deleted the topic.
            with suppress(InvalidInput):
                assert one.grow_topic(name, with_more).partitions >= with_more
        elif act < 0.45:
            one.delete_topic(topic.topic_id)
        else:
            append(one, topic, choices.randrange(topic.partitions))
    entries = bench.entries()
    whole = read_by(entries)
    for topic in whole.topics_by_id.values():
        assert [whole.next_offset((topic.topic_id, number)) >= 0 for number in range(topic.partitions)]
    at = choices.randrange(len(entries))
    before = read_by(entries[:at])
    data = encode(Checkpoint(before.state(), ()))
    restored = decode(data, "here").fold()
    assert encode(Checkpoint(restored.state(), ())) == data
    for index in range(at, len(entries)):
        restored.apply(index, entries[index])
    assert same(restored.state(), whole.state())
    for process in processes:
        assert same(process.refresh().state(), whole.state())
