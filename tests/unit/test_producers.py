"""Idempotent producers in the fold agree with a dictionary of every sequence number."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archiver.proto import intake_log_pb2 as pb
from archiver.runtime.ids import TopicId
from intake.log.fold import IntakeFold, Landed
from intake.producers import BATCHES_REMEMBERED, EPOCH_MAX, SEQUENCE_COUNT, KnownBatch, Producers, Stamp

TOPIC = TopicId("a" * 32)
PARTITIONS = 2
PRODUCERS = 2
REMEMBERED = 5


class Log:
    """A fold with methods that append one entry each."""

    def __init__(self) -> None:
        self.fold = IntakeFold()
        self._apply(
            topic=pb.TopicDeclared(
                topic_id=bytes.fromhex(TOPIC), name="t", partitions=PARTITIONS, created_us=1
            )
        )

    def open(self, transactional_id: str = "") -> tuple[int, int]:
        """Open a producer; returns its id and epoch."""
        entry = pb.ProducerOpened(transactional_id=transactional_id, transaction_timeout_us=1, time_us=1)
        opened = self.fold.apply(self.fold.next_index, self._entry(producer=entry)).producer
        assert opened is not None
        return opened

    def file(self, *batches: tuple[int, Stamp | None, int]) -> tuple[Landed, ...]:
        """Append an intake file with segments (partition, stamp, rows)."""
        segments = []
        for partition, stamp, rows in batches:
            of = (
                None
                if stamp is None
                else pb.ProducerBatch(
                    producer_id=stamp.producer_id,
                    epoch=stamp.epoch,
                    sequence=stamp.sequence,
                    transactional=stamp.transactional,
                )
            )
            segments.append(
                pb.Segment(partition=partition, rows=rows, raw_bytes=rows, accept_max_us=5, producer=of)
            )
        topics = [pb.TopicSegments(topic_id=bytes.fromhex(TOPIC), segments=segments)]
        file = pb.IntakeFile(key="k", size=1, footer_sha256=b"d" * 32, topics=topics)
        return self.fold.apply(self.fold.next_index, self._entry(file=file)).landed

    def _entry(self, **body: object) -> bytes:
        entry = pb.IntakeEntry(format=2, id=self.fold.next_index.to_bytes(16, "big"), **body)  # type: ignore[arg-type]
        return entry.SerializeToString()

    def _apply(self, **body: object) -> None:
        self.fold.apply(self.fold.next_index, self._entry(**body))


@dataclass
class Naive:
    """One epoch of one producer in one partition: every sequence number in the log, with its offset."""

    expected: int = 0
    offsets: dict[int, int] = field(default_factory=dict)
    batches: list[list[int]] = field(default_factory=list)

    def judge(self, numbers: list[int]) -> str | list[int] | None:
        """None: append; a list: the offsets of the original records; otherwise the refusal."""
        if numbers[0] == self.expected:
            return None
        behind = (self.expected - numbers[0]) % SEQUENCE_COUNT
        if not self.batches or behind > SEQUENCE_COUNT // 2 or len(numbers) > behind:
            return "out_of_order"
        remembered = {number for batch in self.batches[-REMEMBERED:] for number in batch}
        return [self.offsets[number] for number in numbers] if remembered.issuperset(numbers) else "forgotten"

    def append(self, numbers: list[int], base: int) -> None:
        self.offsets.update(zip(numbers, range(base, base + len(numbers)), strict=True))
        self.batches.append(numbers)
        self.expected = (numbers[-1] + 1) % SEQUENCE_COUNT


# Mostly the next batch, then repetitions cut anywhere, then gaps.
_SHIFTS = st.sampled_from([*[0] * 20, *range(-24, 3), -SEQUENCE_COUNT // 2, SEQUENCE_COUNT // 2 - 1])
_BATCH = st.tuples(
    st.just("batch"),
    st.integers(0, PRODUCERS - 1),
    st.integers(0, PARTITIONS - 1),
    _SHIFTS,
    st.integers(1, 6),
    st.sampled_from([*[0] * 12, -1, 1]),  # the difference from the true epoch
)
_OPEN = st.tuples(st.just("open"), st.integers(0, PRODUCERS - 1))
_PLAIN = st.tuples(st.just("plain"), st.integers(0, PARTITIONS - 1))
_STEPS = st.lists(
    st.sampled_from([*[_BATCH] * 12, _OPEN, _PLAIN]).flatmap(lambda step: step), min_size=20, max_size=60
)


@settings(max_examples=200, deadline=None)
@given(
    steps=_STEPS,
    starts=st.sampled_from([0, SEQUENCE_COUNT - 1, SEQUENCE_COUNT - 9]),
    together=st.integers(1, 4),
)
def test_the_fold_agrees_with_a_dictionary_of_every_number(
    steps: list[tuple[object, ...]], starts: int, together: int
) -> None:
    log = Log()
    names = [f"p{number}" for number in range(PRODUCERS)]
    ids = [log.open(name) for name in names]
    naive: dict[tuple[int, int, int], Naive] = {}
    lengths = [0] * PARTITIONS
    if starts:  # as if the log had two thousand million records, and only the newest batch were remembered
        for producer_id, _ in ids:
            known = log.fold.producers.get(producer_id)
            assert known is not None
            for partition in range(PARTITIONS):
                known.batches[TOPIC, partition] = deque(
                    [KnownBatch(starts - 1, 1, 0)], maxlen=BATCHES_REMEMBERED
                )
                naive[producer_id, 0, partition] = Naive(starts, {starts - 1: 0}, [[starts - 1]])
    waiting: list[tuple[int, Stamp | None, int]] = []

    def flush() -> None:
        """Several batches in one entry are judged one after the other."""
        if not waiting:
            return
        for (partition, stamp, rows), landed in zip(waiting, log.file(*waiting), strict=True):
            assert (landed.tp, landed.rows) == ((TOPIC, partition), rows)
            offsets = [offset for base, count in landed.runs for offset in range(base, base + count)]
            verdict: str | list[int] | None = None
            if stamp is not None:
                producer_id, epoch = ids[[one[0] for one in ids].index(stamp.producer_id)]
                model = naive.setdefault((producer_id, epoch, partition), Naive())
                numbers = [(stamp.sequence + number) % SEQUENCE_COUNT for number in range(rows)]
                epochs = {-1: "fenced", 0: model.judge(numbers), 1: "unknown_producer"}
                verdict = epochs[stamp.epoch - epoch]
                if verdict is None:
                    model.append(numbers, lengths[partition])
            if verdict is None:
                assert offsets == list(range(lengths[partition], lengths[partition] + rows))
                assert landed.segment is not None
                lengths[partition] += rows
            else:
                assert landed.segment is None
                assert (landed.refusal, offsets) == (
                    (verdict, []) if isinstance(verdict, str) else (None, verdict)
                )
            assert log.fold.next_offset((TOPIC, partition)) >= lengths[partition]
        waiting.clear()

    for step in steps:
        if step[0] == "open":
            flush()
            number = int(str(step[1]))
            ids[number] = log.open(names[number])
            assert ids[number][1] > 0, "the same id, the next epoch"
        elif step[0] == "plain":
            waiting.append((int(str(step[1])), None, 2))
        else:
            _, number, partition, shift, rows, wrong = (
                int(str(one)) if one != "batch" else 0 for one in step
            )
            producer_id, epoch = ids[number]
            if epoch + wrong < 0:
                continue
            behind = naive.get((producer_id, epoch, partition), Naive()).expected
            stamp = Stamp(producer_id, epoch + wrong, (behind + shift) % SEQUENCE_COUNT, transactional=True)
            waiting.append((partition, stamp, rows))
        if len(waiting) >= together:
            flush()
    flush()
    assert [log.fold.next_offset((TOPIC, partition)) for partition in range(PARTITIONS)] == lengths


def test_what_a_producer_may_not_do() -> None:
    log = Log()
    plain, _ = log.open()
    named, _ = log.open("x")
    refusals = [
        landed.refusal
        for landed in log.file(
            (0, Stamp(plain, 0, 0, transactional=True), 1),
            (0, Stamp(named, 0, 0, transactional=False), 1),
            (0, Stamp(99, 0, 0), 1),
            (0, Stamp(plain, 1, 0), 1),
            (0, Stamp(plain, 0, 1), 1),
            (0, Stamp(plain, 0, 0), 1),
        )
    ]
    assert refusals == [
        "wrong_kind",
        "wrong_kind",
        "unknown_producer",
        "unknown_producer",
        "out_of_order",
        None,
    ]


def test_epochs_are_used_up_and_then_there_is_a_new_id() -> None:
    producers = Producers()
    first = producers.open(7, "x", 1, 1)
    first.epoch = EPOCH_MAX
    second = producers.open(8, "x", 1, 1)
    assert (second.producer_id, second.epoch) == (8, 0)
    assert producers.get(7) is None
    assert producers.judge((TOPIC, 0), Stamp(7, EPOCH_MAX, 0, transactional=True), 1) == "unknown_producer"


@pytest.mark.parametrize("busy", [True, False])
def test_idle_producers_are_forgotten_unless_they_have_a_transaction(busy: bool) -> None:
    producers = Producers()
    old, new = producers.open(1, "old", 1, 10), producers.open(2, "", 1, 20)
    producers.forget(20, frozenset([old.producer_id]) if busy else frozenset())
    assert [one.producer_id for one in producers] == ([1, 2] if busy else [2])
    assert (producers.named("old") is None) is not busy
    assert producers.get(new.producer_id) is new


def test_the_next_number_is_known_for_the_present_epoch_only() -> None:
    log = Log()
    producer_id, _ = log.open("x")
    tp = (TOPIC, 0)
    assert log.fold.producers.next_sequence(tp, producer_id, 0) == 0
    log.file((0, Stamp(producer_id, 0, 0, transactional=True), 3))
    assert log.fold.producers.next_sequence(tp, producer_id, 0) == 3
    assert log.fold.producers.next_sequence(tp, producer_id, 1) is None
    assert log.fold.producers.next_sequence(tp, producer_id + 1, 0) is None


def test_five_batches_are_remembered() -> None:
    log = Log()
    producer_id, _ = log.open()
    for number in range(6):
        log.file((0, Stamp(producer_id, 0, 2 * number), 2))
    oldest, next_oldest, across = log.file(
        (0, Stamp(producer_id, 0, 0), 2), (0, Stamp(producer_id, 0, 2), 2), (0, Stamp(producer_id, 0, 1), 2)
    )
    assert (oldest.refusal, oldest.runs) == ("forgotten", ())
    assert (next_oldest.refusal, next_oldest.runs) == (None, ((2, 2),))
    assert across.refusal == "forgotten"
