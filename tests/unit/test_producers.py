"""Idempotent producers in the fold agree with a dictionary of every sequence number."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archiver.proto import intake_log_pb2 as pb
from archiver.runtime.errors import Corrupted
from archiver.runtime.ids import TopicId
from intake.log.entries import format_of
from intake.log.fold import IntakeFold, Landed
from intake.producers import (
    BATCHES_REMEMBERED,
    EPOCH_MAX,
    SEQUENCE_COUNT,
    UNOPENED_IDS,
    KnownBatch,
    Producers,
    Stamp,
    ids_of_opening,
)

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
                    covered=stamp.covered,
                )
            )
            segments.append(
                pb.Segment(partition=partition, rows=rows, raw_bytes=rows, accept_max_us=5, producer=of)
            )
        topics = [pb.TopicSegments(topic_id=bytes.fromhex(TOPIC), segments=segments)]
        file = pb.IntakeFile(key="k", size=1, footer_sha256=b"d" * 32, topics=topics)
        return self.fold.apply(self.fold.next_index, self._entry(file=file)).landed

    def _entry(self, **body: object) -> bytes:
        entry = pb.IntakeEntry(id=self.fold.next_index.to_bytes(16, "big"), **body)  # type: ignore[arg-type]
        entry.format = format_of(entry)
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
            (0, Stamp(named, 1, 0, transactional=True), 1),
            (0, Stamp(plain, 1, 0, transactional=True), 1),
            (0, Stamp(plain, EPOCH_MAX + 1, 0), 1),
            (0, Stamp(plain, 0, 1), 1),
            (0, Stamp(plain, 0, 0), 1),
        )
    ]
    assert refusals == [
        "wrong_kind",
        "wrong_kind",
        "unknown_producer",
        "unknown_producer",
        "unknown_producer",
        "unknown_producer",
        "out_of_order",
        None,
    ]


def test_a_producer_without_transactions_raises_its_epoch_per_partition() -> None:
    log = Log()
    producer_id, _ = log.open()
    steps: list[tuple[int, int, int, int, str | int]] = [
        # Partition, epoch, sequence, rows; then the refusal, or the offset of the first record.
        (0, 0, 0, 3, 0),
        (1, 0, 0, 2, 0),
        (0, 1, 3, 2, "out_of_order"),  # a raised epoch begins at 0
        (0, 0, 3, 1, 3),  # a refused batch raises nothing
        (0, 1, 0, 2, 4),
        (0, 0, 4, 1, "fenced"),
        (0, 0, 3, 1, "fenced"),  # also a repetition of what is in the log
        (0, 1, 0, 2, 4),  # a repetition
        (0, 1, 1, 2, "out_of_order"),  # it repeats one record and brings another
        (0, 1, 2, 1, 6),
        (1, 0, 2, 1, 2),  # the other partition keeps its epoch
        (1, 3, 0, 1, 3),  # and may leave out some
        (1, 1, 0, 1, "fenced"),
        (0, 3, 1, 1, "out_of_order"),
        (0, EPOCH_MAX, 0, 1, 7),
        (0, EPOCH_MAX, 1, 1, 8),
        (0, EPOCH_MAX + 1, 0, 1, "unknown_producer"),
    ]
    for partition, epoch, sequence, rows, expected in steps:
        (landed,) = log.file((partition, Stamp(producer_id, epoch, sequence), rows))
        found = landed.refusal or landed.runs[0][0]
        assert found == expected, (partition, epoch, sequence, rows)
    known = log.fold.producers.get(producer_id)
    assert known is not None
    assert (known.epoch, known.newest_epoch) == (0, EPOCH_MAX)


def test_a_partition_begins_in_any_epoch_with_0() -> None:
    log = Log()
    producer_id, _ = log.open()
    above, first, older = log.file(
        (0, Stamp(producer_id, 7, 1), 1), (0, Stamp(producer_id, 7, 0), 2), (0, Stamp(producer_id, 6, 0), 1)
    )
    assert (above.refusal, first.runs, older.refusal) == ("out_of_order", ((0, 2),), "fenced")


def test_a_forgotten_producer_goes_on_with_a_raised_epoch() -> None:
    """A client of Kafka raises its epoch when it hears that its producer is unknown, and asks for no new id."""
    log = Log()
    producer_id, _ = log.open()
    log.file((0, Stamp(producer_id, 0, 0), 3), (1, Stamp(producer_id, 0, 0), 3))
    log.fold.producers.forget(2**62, frozenset())
    refused = (
        Stamp(producer_id, 0, 3),  # it does not begin
        Stamp(producer_id, 0, 0),  # a late repetition of the first batch, which is in the log
        Stamp(producer_id, 1, 1),
        Stamp(producer_id, 1, 0, transactional=True),
        Stamp(producer_id, EPOCH_MAX + 1, 0),
    )
    for stamp in refused:
        assert log.file((0, stamp, 1))[0].refusal == "unknown_producer"
    assert len(log.fold.producers) == 0
    steps: list[tuple[int, int, int, str | int]] = [
        (0, 1, 0, 3),
        (0, 1, 0, 3),  # a repetition
        (0, 1, 1, 4),
        (1, 0, 3, "unknown_producer"),  # still on its way with the old epoch
        (1, 0, 0, "unknown_producer"),  # a late repetition, which is in the log
        (1, 1, 0, 3),
        (1, 0, 0, "fenced"),
        (0, 0, 5, "fenced"),
    ]
    for partition, epoch, sequence, expected in steps:
        (landed,) = log.file((partition, Stamp(producer_id, epoch, sequence), 1))
        found = landed.refusal or landed.runs[0][0]
        assert found == expected, (partition, epoch, sequence)


def test_an_assigned_id_needs_no_entry_of_its_own() -> None:
    log = Log()
    # The last ids of an entry, and the first ones of the next.
    ids, others = ids_of_opening(log.open()[0], b"\x3f\xf0\x00\x00"), ids_of_opening(log.open()[0], bytes(8))
    assert ids.start >= UNOPENED_IDS
    assert ids.stop == others.start
    assert ids_of_opening(2**32 - 1, b"\x3f\xf0\x00\x00").stop == 2**63
    one, other = ids[0], ids[-1]
    assert len(log.fold.producers) == 2
    assert log.file((0, Stamp(one, 0, 1), 1))[0].refusal == "unknown_producer"
    assert log.file((0, Stamp(one, 0, 0, transactional=True), 1))[0].refusal == "unknown_producer"
    assert log.file((0, Stamp(UNOPENED_IDS - 1, 0, 0), 1))[0].refusal == "unknown_producer"
    assert len(log.fold.producers) == 2
    steps: list[tuple[int, int, int, str | int]] = [
        (one, 0, 0, 0),
        (other, 0, 0, 1),
        (one, 0, 0, 0),  # a repetition
        (one, 0, 1, 2),
        (one, 0, 3, "out_of_order"),
        (one, 1, 0, 3),
        (one, 0, 2, "fenced"),
    ]
    for producer_id, epoch, sequence, expected in steps:
        (landed,) = log.file((0, Stamp(producer_id, epoch, sequence), 1))
        found = landed.refusal or landed.runs[0][0]
        assert found == expected, (producer_id, epoch, sequence)
    assert len(log.fold.producers) == 4
    for producer_id, version in ((UNOPENED_IDS - 1, 2), (UNOPENED_IDS, 5)):
        segment = pb.Segment(rows=1, producer=pb.ProducerBatch(producer_id=producer_id))
        file = pb.IntakeFile(topics=[pb.TopicSegments(segments=[segment])])
        assert format_of(pb.IntakeEntry(file=file)) == version


def test_a_raised_epoch_forgets_the_batches_of_the_earlier_one() -> None:
    """Otherwise a new record would be answered with the offset of an older one with its number."""
    log = Log()
    producer_id, _ = log.open()
    for number in range(BATCHES_REMEMBERED):
        log.file((0, Stamp(producer_id, 0, number), 1))
    log.file((0, Stamp(producer_id, 1, 0), 1))
    (ahead,) = log.file((0, Stamp(producer_id, 1, 3), 1))
    assert ahead.refusal == "out_of_order"
    (following,) = log.file((0, Stamp(producer_id, 1, 1), 3))
    assert following.runs == ((BATCHES_REMEMBERED + 1, 3),)


@pytest.mark.parametrize("first", [0, SEQUENCE_COUNT - 4])
def test_a_batch_may_cover_more_numbers_than_it_has_records(first: int) -> None:
    log = Log()
    producer_id, _ = log.open()
    if first:
        known = log.fold.producers.get(producer_id)
        assert known is not None
        known.batches[TOPIC, 0] = deque([KnownBatch(first - 1, 1, 0)], maxlen=BATCHES_REMEMBERED)
    steps: list[tuple[int, int, int, str | list[tuple[int, int]]]] = [
        # Sequence, rows, covered numbers; then the refusal, or the offsets.
        (0, 2, 5, [(0, 2)]),
        (2, 1, 0, "forgotten"),  # which of its numbers have records is not known
        (5, 2, 0, [(2, 2)]),  # the next number follows the covered ones
        (0, 2, 5, [(0, 2)]),  # a repetition
        (0, 5, 0, [(0, 2)]),  # a repetition after the schema has changed: every row is valid now,
        (0, 0, 5, [(0, 2)]),  # or none
        (0, 7, 0, [(0, 2), (2, 2)]),  # both batches as one
        (0, 3, 0, "forgotten"),
        (4, 3, 0, "forgotten"),
        (5, 1, 2, [(2, 2)]),  # all was stored the first time
        (6, 1, 2, "out_of_order"),
        (7, 0, 3, []),  # numbers without records
        (7, 0, 3, []),
        (7, 3, 0, []),
        (5, 5, 0, [(2, 2)]),
        (10, 1, 0, [(4, 1)]),
        (12, 0, 1, "out_of_order"),
    ]
    for sequence, rows, covered, expected in steps:
        stamp = Stamp(producer_id, 0, (first + sequence) % SEQUENCE_COUNT, covered=covered)
        (landed,) = log.file((0, stamp, rows))
        assert (landed.refusal or list(landed.runs)) == expected, (sequence, rows, covered)
        assert (landed.rows, landed.tp) == (rows, (TOPIC, 0))
    assert log.fold.next_offset((TOPIC, 0)) == 5
    assert [(one.base, one.rows) for one in log.fold.segments((TOPIC, 0))] == [(0, 2), (2, 2), (4, 1)]
    expects = log.fold.producers.next_sequence((TOPIC, 0), producer_id, 0)
    assert expects == (first + 11) % SEQUENCE_COUNT


def test_numbers_without_records_leave_no_trace_but_the_numbers() -> None:
    log = Log()
    plain, _ = log.open()
    named, _ = log.open("x")
    log.file((0, Stamp(plain, 0, 0, covered=2), 0), (1, Stamp(named, 0, 0, transactional=True, covered=2), 0))
    assert [log.fold.next_offset((TOPIC, partition)) for partition in range(PARTITIONS)] == [0, 0]
    assert not list(log.fold.transactions), "there is nothing to commit"
    assert log.fold.producers.next_sequence((TOPIC, 0), plain, 0) == 2
    assert log.fold.producers.next_sequence((TOPIC, 1), named, 0) == 2


@pytest.mark.parametrize(
    ("rows", "covered"), [(0, 0), (3, 3), (3, 2), (1, SEQUENCE_COUNT // 2), (1, (1 << 32) - 1)]
)
def test_impossible_covered_numbers_are_damage(rows: int, covered: int) -> None:
    log = Log()
    producer_id, _ = log.open()
    before = log.fold.next_index
    with pytest.raises(Corrupted):
        log.file((0, Stamp(producer_id, 0, 0, covered=covered), rows))
    assert log.fold.next_index == before


_RAISED = st.tuples(
    st.integers(0, PRODUCERS - 1),
    st.integers(0, PARTITIONS - 1),
    st.sampled_from([*[0] * 16, -1, 1, 1, 2]),  # the difference from the partition's epoch
    st.sampled_from([*[0] * 16, *range(-12, 3), 1 - SEQUENCE_COUNT // 2]),
    st.integers(1, 6),
)


@settings(max_examples=200, deadline=None)
@given(
    steps=st.lists(_RAISED, min_size=20, max_size=60),
    starts=st.sampled_from([0, SEQUENCE_COUNT - 1, SEQUENCE_COUNT - 9]),
)
def test_raised_epochs_agree_with_a_dictionary_of_every_number(
    steps: list[tuple[int, int, int, int, int]], starts: int
) -> None:
    log = Log()
    ids = [log.open()[0] for _ in range(PRODUCERS)]
    epochs = {(producer_id, partition): 0 for producer_id in ids for partition in range(PARTITIONS)}
    naive = {key: Naive() for key in epochs}
    lengths = [0] * PARTITIONS
    if starts:
        for producer_id, partition in epochs:
            known = log.fold.producers.get(producer_id)
            assert known is not None
            known.batches[TOPIC, partition] = deque([KnownBatch(starts - 1, 1, 0)], maxlen=BATCHES_REMEMBERED)
            naive[producer_id, partition] = Naive(starts, {starts - 1: 0}, [[starts - 1]])
    for number, partition, higher, shift, rows in steps:
        key = ids[number], partition
        epoch = epochs[key] + higher
        if epoch < 0:
            continue
        expected = naive[key].expected if higher == 0 else 0
        sequence = (expected + shift) % SEQUENCE_COUNT
        (landed,) = log.file((partition, Stamp(ids[number], epoch, sequence), rows))
        model = naive[key] if higher == 0 else Naive()
        numbers = [(sequence + place) % SEQUENCE_COUNT for place in range(rows)]
        verdict = "fenced" if higher < 0 else model.judge(numbers)
        if verdict is None:
            model.append(numbers, lengths[partition])
            naive[key], epochs[key] = model, epoch
            assert landed.runs == ((lengths[partition], rows),)
            lengths[partition] += rows
        else:
            offsets = [offset for base, count in landed.runs for offset in range(base, base + count)]
            assert (landed.refusal, offsets) == (
                (verdict, []) if isinstance(verdict, str) else (None, verdict)
            )
        expects = log.fold.producers.next_sequence((TOPIC, partition), ids[number], epochs[key])
        assert expects == naive[key].expected
    assert [log.fold.next_offset((TOPIC, partition)) for partition in range(PARTITIONS)] == lengths


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


@pytest.mark.parametrize(
    ("idle_since_us", "known_max", "busy", "used_since_us", "expected", "kept"),
    [
        (10, 4, (), 99, None, [1, 2, 3, 4]),  # the first one was used at that time, not before it
        (11, 4, (), 99, 11, [2, 3, 4]),
        (0, 3, (), 99, 11, [2, 3, 4]),
        (0, 2, (), 99, 21, [4]),  # two of the same time go together
        (0, 1, (), 99, 21, [4]),
        (0, 0, (), 99, 31, []),
        (25, 3, (), 99, 25, [4]),  # the idle time is the later one
        (0, 3, (1,), 99, 21, [1, 4]),  # the excess is taken from the others
        (0, 0, (1, 2, 3, 4), 99, None, [1, 2, 3, 4]),
        (0, 1, (1, 4), 99, 21, [1, 4]),
        (0, 0, (), 20, 20, [2, 3, 4]),  # those used since then stay, regardless of their number
        (25, 0, (), 20, 20, [2, 3, 4]),
        (0, 0, (), 10, None, [1, 2, 3, 4]),
    ],
)
def test_too_many_producers_are_forgotten_from_the_least_recently_used_on(
    idle_since_us: int,
    known_max: int,
    busy: tuple[int, ...],
    used_since_us: int,
    expected: int | None,
    kept: list[int],
) -> None:
    producers = Producers()
    # Not in the order of their use.
    for producer_id, used_us in ((4, 30), (2, 20), (1, 10), (3, 20)):
        producers.open(producer_id, "", 1, used_us)
    time_us = producers.forgetting_time(idle_since_us, known_max, frozenset(busy), used_since_us)
    assert time_us == expected
    if time_us is not None:
        producers.forget(time_us, frozenset(busy))
    assert sorted(one.producer_id for one in producers) == kept


def test_a_deleted_topic_takes_the_batches_of_its_partitions_only() -> None:
    producers, other = Producers(), TopicId("b" * 32)
    written = {1: [(TOPIC, 0), (TOPIC, 7), (other, 0)], 2: [(other, 0)], 3: [(TOPIC, 1)], 4: []}
    for producer_id, tps in written.items():
        producers.open(producer_id, "", 1, 1)
        for tp in tps:
            producers.appended(tp, Stamp(producer_id, 0, 0), 1, 5, 1)
    producers.forget_partitions((TOPIC, number) for number in range(8))
    assert {one.producer_id: list(one.batches) for one in producers} == {
        1: [(other, 0)],
        2: [(other, 0)],
        3: [],
        4: [],
    }


def test_whether_a_batch_that_does_not_count_may_do_so_later() -> None:
    """Else its client raises its epoch, and sends earlier batches of unknown outcome again as new ones."""
    log, tp = Log(), (TOPIC, 0)
    log.open()
    opener = log.open()[0]
    producer_id = ids_of_opening(opener, b"\x3f\xf0\x00\x00")[-1]

    def is_ahead(sequence: int, epoch: int = 0, of: int = producer_id) -> bool:
        return log.fold.producers.is_ahead(tp, Stamp(of, epoch, sequence))

    # Its first batch may be on its way; number 0 is refused only if nothing can make it count.
    assert [is_ahead(number) for number in (0, 1, 5)] == [False, True, True]
    assert is_ahead(1, epoch=3)
    # Not of an id that no known entry gave out.
    assert not is_ahead(1, of=ids_of_opening(opener + 1, bytes(8))[0])
    assert not is_ahead(1, of=ids_of_opening(2**32 - 1, bytes(8))[0])
    assert not is_ahead(1, of=UNOPENED_IDS - 1)
    log.file((0, Stamp(producer_id, 0, 0), 2))
    # 2: the missing batches came in between.
    assert [is_ahead(number) for number in (0, 1, 2, 3, 2**30, 2**31 - 1)] == [
        False,
        False,
        *[True] * 3,
        False,
    ]
    # Of a raised epoch the first batch may be on its way, of an older one none.
    assert is_ahead(1, epoch=1)
    log.file((0, Stamp(producer_id, 2, 0), 1))
    assert [is_ahead(1, epoch=epoch) for epoch in (1, 2, EPOCH_MAX + 1)] == [False, True, False]
    # Forgotten with its opener: the client is to raise its epoch at once.
    log._apply(forgotten=pb.ProducersForgotten(idle_since_us=2**40))
    assert not is_ahead(1)


def test_the_opener_of_an_id_is_the_newest_entry_with_such_ids() -> None:
    producers = Producers()
    index = 3 * 2**32 + 17
    producers.open(17, "", 0, 1)
    producer_id = ids_of_opening(index, bytes(8))[0]
    assert producer_id == ids_of_opening(17, bytes(8))[0]
    found = [producers.opener(producer_id)]
    for opened in (index, index + 5):
        producers.open(opened, "", 0, 1)
        found.append(producers.opener(producer_id))
    assert [one and one.producer_id for one in found] == [17, index, index]
    producers.forget(2, frozenset())
    assert producers.opener(producer_id) is None


def test_a_producer_of_a_lost_log_and_one_with_its_id_again() -> None:
    """Behind a restore of an older log: the reason why such clients are ended first (decision 0089)."""
    lost, restored = Log(), Log()
    producer_id, _ = lost.open()
    for sequence in range(3):
        assert lost.file((0, Stamp(producer_id, 0, sequence), 1))[0].segment is not None
    assert restored.open()[0] == producer_id
    for sequence in range(4):
        assert restored.file((0, Stamp(producer_id, 0, sequence), 1))[0].segment is not None
    # Its next record counts as a repetition of another client's.
    again = restored.file((0, Stamp(producer_id, 0, 3), 1))[0]
    assert (again.segment, again.refusal, again.runs) == (None, None, ((3, 1),))
    # A client that was opened before the backup has a gap instead.
    assert restored.file((0, Stamp(producer_id, 0, 6), 1))[0].refusal == "out_of_order"
    # A Kafka client of the lost log is refused, and goes on with a raised epoch.
    assert restored.file((0, Stamp(ids_of_opening(1, bytes(8))[0], 0, 3), 1))[0].refusal == "unknown_producer"


def test_the_next_number_is_known_for_the_present_epoch_only() -> None:
    log = Log()
    producer_id, _ = log.open("x")
    tp = (TOPIC, 0)
    assert log.fold.producers.next_sequence(tp, producer_id, 0) == 0
    log.file((0, Stamp(producer_id, 0, 0, transactional=True), 3))
    assert log.fold.producers.next_sequence(tp, producer_id, 0) == 3
    assert log.fold.producers.next_sequence(tp, producer_id, 1) is None
    assert log.fold.producers.next_sequence(tp, producer_id + 1, 0) is None


def test_the_next_number_of_a_raised_epoch_is_0() -> None:
    log = Log()
    producer_id, _ = log.open()
    log.file((0, Stamp(producer_id, 2, 0), 3))
    expected = {
        (partition, epoch): log.fold.producers.next_sequence((TOPIC, partition), producer_id, epoch)
        for partition in (0, 1)
        for epoch in (1, 2, 3, EPOCH_MAX, EPOCH_MAX + 1)
    }
    assert expected == {
        (0, 1): None,
        (0, 2): 3,
        (0, 3): 0,
        (0, EPOCH_MAX): 0,
        (0, EPOCH_MAX + 1): None,
        (1, 1): 0,
        (1, 2): 0,
        (1, 3): 0,
        (1, EPOCH_MAX): 0,
        (1, EPOCH_MAX + 1): None,
    }


def test_only_raised_epochs_and_covered_numbers_need_the_newer_format() -> None:
    def entry(batch: pb.ProducerBatch | None) -> pb.IntakeEntry:
        segments = [pb.Segment(rows=1), pb.Segment(rows=1, producer=batch)]
        return pb.IntakeEntry(file=pb.IntakeFile(topics=[pb.TopicSegments(segments=segments)]))

    assert format_of(entry(None)) == 1
    assert format_of(entry(pb.ProducerBatch(producer_id=1))) == 2
    assert format_of(entry(pb.ProducerBatch(producer_id=1, epoch=1, transactional=True))) == 2
    assert format_of(entry(pb.ProducerBatch(producer_id=1, epoch=1))) == 5
    assert format_of(entry(pb.ProducerBatch(producer_id=1, covered=2))) == 5


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
