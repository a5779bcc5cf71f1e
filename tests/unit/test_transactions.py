"""Transactions in the fold agree with a list of records and their states."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from archiver.proto import intake_log_pb2 as pb
from archiver.runtime.ids import TopicId
from intake.log.fold import Applied, IntakeFold

TOPIC = TopicId("b" * 32)
PARTITIONS, PRODUCERS = 3, 3
TIMEOUT_US = 100


@dataclass
class OneRecord:
    """The naive model's data of one record."""

    producer: int | None
    state: Literal["committed", "open", "aborted"]


class Model:
    """The log as a list of records per partition, together with the fold under test."""

    def __init__(self) -> None:
        self.fold = IntakeFold()
        self.now_us = 0
        self.records: list[list[OneRecord]] = [[] for _ in range(PARTITIONS)]
        self.epochs = [-1] * PRODUCERS
        self.sequences: dict[tuple[int, int], int] = {}
        self.ids = [-1] * PRODUCERS
        self.deadlines: dict[int, int] = {}
        self.apply(
            topic=pb.TopicDeclared(
                topic_id=bytes.fromhex(TOPIC), name="t", partitions=PARTITIONS, created_us=1
            )
        )
        for producer in range(PRODUCERS):
            self.open(producer)

    def apply(self, **body: object) -> Applied:
        self.now_us += 1
        index = self.fold.next_index
        entry = pb.IntakeEntry(format=2, id=index.to_bytes(16, "big"), **body)  # type: ignore[arg-type]
        return self.fold.apply(index, entry.SerializeToString())

    def open(self, producer: int) -> None:
        opened = pb.ProducerOpened(
            transactional_id=f"x{producer}", transaction_timeout_us=TIMEOUT_US, time_us=self.now_us
        )
        self.end(producer, "aborted")
        given_id = self.apply(producer=opened).producer
        assert given_id is not None
        self.ids[producer], self.epochs[producer] = given_id
        self.forget_sequences(producer)

    def forget_sequences(self, producer: int) -> None:
        self.sequences = {key: value for key, value in self.sequences.items() if key[0] != producer}

    def end(self, producer: int, state: Literal["committed", "aborted"]) -> None:
        self.deadlines.pop(producer, None)
        for partition in self.records:
            for record in partition:
                if record.producer == producer and record.state == "open":
                    record.state = state

    def write(self, batches: list[tuple[int | None, int, int, int]]) -> None:
        """Append one file of (producer, partition, rows, difference from the true epoch). Producer None: no
        producer."""
        segments = []
        for producer, partition, rows, wrong in batches:
            if producer is None:
                segments.append(
                    pb.Segment(partition=partition, rows=rows, raw_bytes=1, accept_max_us=self.now_us)
                )
                self.records[partition] += [OneRecord(None, "committed") for _ in range(rows)]
                continue
            epoch = max(0, self.epochs[producer] + wrong)
            sequence = self.sequences.get((producer, partition), 0)
            batch = pb.ProducerBatch(
                producer_id=self.ids[producer], epoch=epoch, sequence=sequence, transactional=True
            )
            segments.append(
                pb.Segment(
                    partition=partition, rows=rows, raw_bytes=1, accept_max_us=self.now_us, producer=batch
                )
            )
            if epoch == self.epochs[producer]:
                self.sequences[producer, partition] = sequence + rows
                self.records[partition] += [OneRecord(producer, "open") for _ in range(rows)]
                self.deadlines.setdefault(producer, self.now_us + TIMEOUT_US)
        topics = [pb.TopicSegments(topic_id=bytes.fromhex(TOPIC), segments=segments)]
        file = pb.IntakeFile(key=f"k{self.fold.next_index}", size=1, footer_sha256=b"d" * 32, topics=topics)
        self.apply(file=file)

    def mark(self, producer: int, commit: bool, wrong: int, fence: bool = False) -> None:
        epoch = max(0, self.epochs[producer] + wrong)
        marker = pb.TransactionEnded(
            producer_id=self.ids[producer], epoch=epoch, commit=commit, fence=fence, time_us=self.now_us
        )
        refusal = self.apply(transaction=marker).refusal
        if epoch != self.epochs[producer]:
            assert refusal == ("fenced" if epoch < self.epochs[producer] else "unknown_producer")
            return
        assert refusal is None
        self.end(producer, "committed" if commit else "aborted")
        if fence:
            self.epochs[producer] += 1
            self.forget_sequences(producer)

    def check(self) -> None:
        """Everything that the fold states about offsets follows from the list."""
        for partition, records in enumerate(self.records):
            tp = (TOPIC, partition)
            stable = next(
                (offset for offset, record in enumerate(records) if record.state == "open"), len(records)
            )
            assert self.fold.next_offset(tp) == len(records)
            assert self.fold.stable_offset(tp) == stable
            blocking = self.fold.blocking(tp)
            if stable == len(records):
                assert blocking is None
            else:
                assert blocking is not None
                assert blocking.transactional_id == f"x{records[stable].producer}"
            places = [(offset, record.state == "aborted") for offset, record in enumerate(records)]
            runs = [
                (gone, [offset for offset, _ in run])
                for gone, run in groupby(places, key=lambda place: place[1])
            ]
            assert self.fold.gaps(tp, 0, len(records)) == [
                (run[0], run[-1] + 1) for gone, run in runs if gone
            ]
            segments = self.fold.segments(tp)
            assert [offset for one in segments for offset in range(one.base, one.end)] == [
                at for at, gone in places if not gone
            ]
            third = len(records) // 3
            inside = [
                (max(low, third), high) for low, high in self.fold.gaps(tp, 0, len(records)) if high > third
            ]
            assert self.fold.gaps(tp, third, len(records)) == inside
        open_now = {f"x{producer}": deadline for producer, deadline in self.deadlines.items()}
        assert {one.transactional_id: one.deadline_us for one in self.fold.transactions} == open_now
        for one in self.fold.transactions:
            for (_, partition), ranges in one.ranges.items():
                mine = [
                    at
                    for at, record in enumerate(self.records[partition])
                    if f"x{record.producer}" == one.transactional_id
                ]
                held = [at for low, high in ranges for at in range(low, high)]
                assert held == [at for at in mine if self.records[partition][at].state == "open"]


_WRONG = st.sampled_from([0, 0, 0, 0, -1, 1])
_BATCH = st.tuples(
    st.one_of(st.none(), st.integers(0, PRODUCERS - 1)),
    st.integers(0, PARTITIONS - 1),
    st.integers(1, 4),
    _WRONG,
)
_STEPS = st.lists(
    st.one_of(
        st.lists(_BATCH, min_size=1, max_size=5).map(lambda batches: ("write", batches)),
        st.tuples(st.just("end"), st.integers(0, PRODUCERS - 1), st.booleans(), _WRONG),
        st.tuples(st.just("time out"), st.integers(0, PRODUCERS - 1)),
        st.tuples(st.just("open"), st.integers(0, PRODUCERS - 1)),
        st.tuples(st.just("wait"), st.integers(1, 80)),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(_STEPS)
def test_the_fold_agrees_with_a_list_of_records(steps: list[tuple[object, ...]]) -> None:
    model = Model()
    for step in steps:
        match step:
            case ("write", list(batches)):
                model.write(batches)
            case ("end", int(producer), bool(commit), int(wrong)):
                model.mark(producer, commit, wrong)
            case ("time out", int(producer)):
                model.mark(producer, commit=False, wrong=0, fence=True)
            case ("open", int(producer)):
                model.open(producer)
            case ("wait", int(passed)):
                model.now_us += passed
        model.check()


def test_a_marker_without_a_transaction_touches_nothing() -> None:
    model = Model()
    model.write([(None, 0, 2, 0)])
    model.mark(0, commit=False, wrong=0)
    model.mark(0, commit=True, wrong=0)
    model.check()
    assert model.fold.stable_offset((TOPIC, 0)) == 2
