"""Record batches that are stored as they came, and the same batches stored as rows: one log, one set of
outcomes, the same records."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from archiver.runtime.errors import RecordRefused
from archiver.stream.rebuild import from_intake
from intake.batches.decoding import BatchRefused, Measured, decode, measure, read_header
from intake.log.fold import TopicState
from intake.producers import SEQUENCE_COUNT, Stamp
from intake.read.reader import IntakeReader
from intake.records import Record
from intake.write.acknowledgements import PendingReceived, PendingRecord
from intake.write.queue import ReceivedBatch
from intake.write.received import MeasuredBatch
from intake.write.writer import IntakeWriter
from tests.support.intake.intake_rig import WAIT_S, IntakeRig
from tests.support.kafka.record_batches import CODECS, RawRecord, batch_bytes, records_bytes

UNCOMPRESSED_MAX = 1 << 24
TYPE = ("message.timestamp.type", "LogAppendTime")
Send = Callable[[IntakeWriter, TopicState, int, bytes, Stamp | None], PendingReceived]


def as_rows(
    writer: IntakeWriter, topic: TopicState, partition: int, data: bytes, stamp: Stamp | None
) -> PendingReceived:
    (columns,) = decode([(read_header(data), data)], uncompressed_max=UNCOMPRESSED_MAX)
    assert not isinstance(columns, BatchRefused)
    return writer.send_received(ReceivedBatch(topic, partition, columns, stamp), lambda: None)


def as_it_came(
    writer: IntakeWriter, topic: TopicState, partition: int, data: bytes, stamp: Stamp | None
) -> PendingReceived:
    header = read_header(data)
    return writer.send_encoded(
        MeasuredBatch(topic, partition, data, header.count, measured(data), stamp), lambda: None
    )


def measured(data: bytes) -> Measured:
    (sizes,) = measure([(read_header(data), data)], uncompressed_max=UNCOMPRESSED_MAX)
    assert isinstance(sizes, Measured)
    return sizes


def batch(rng: random.Random, count: int) -> bytes:
    records = [
        RawRecord(
            rng.choice([None, b"", b"key"]),
            rng.choice([None, b"", rng.randbytes(rng.choice([1, 30, 900]))]),
            tuple((f"h{number}", rng.choice([None, b"v"])) for number in range(rng.choice([0, 0, 0, 3]))),
            rng.randint(-50, 50),
        )
        for _ in range(count)
    ]
    return batch_bytes(records_bytes(records), codec=rng.choice(CODECS))


class Session:
    """What clients send, by chance: batches in order, again, and ahead of others; and rows among them."""

    def __init__(self, seed: int, rig: IntakeRig, send: Send) -> None:
        self.rng = random.Random(seed)
        self.rig = rig
        self.send = send
        self.topic = rig.topic("t", 3)
        self.appends = seed % 3 == 0
        self.mixed = seed % 2 == 0
        """Single records are sent as well. They are in segments of their own."""
        if self.appends:
            self.topic = rig.sequencer.configure_topic(self.topic.topic_id, lambda _: (TYPE,))
        self.producers = [None, *(rig.sequencer.open_producer("", 0) for _ in range(3))]
        start = SEQUENCE_COUNT - 5 if seed % 4 == 0 else 0
        self.next = {(number, partition): start for number in range(1, 4) for partition in range(3)}
        self.sent: list[tuple[int, bytes, Stamp | None]] = []
        self.pending: list[PendingReceived | PendingRecord] = []
        self.content: list[tuple[int, list[bytes | None]]] = []
        """Partition and values of each."""

    def play(self) -> list[Any]:
        """The outcomes of everything that was sent, in order."""
        with self.rig.writer(delay_max=600, row_group_bytes=self.rng.choice([4096, 1 << 20])) as writer:
            for _ in range(40):
                self._step(writer)
            writer.flush()
            return [self._outcome(one) for one in self.pending]

    def _step(self, writer: IntakeWriter) -> None:
        kind, partition = self.rng.random(), self.rng.randrange(3)
        if kind < 0.12:
            writer.flush()
        elif kind < 0.2 and self.mixed:
            record = Record(b"row", self.rng.randbytes(5), (), 1_700_000_000_000_000)
            self.pending.append(writer.send("t", record, partition))
            self.content.append((partition, [record.value]))
        elif kind < 0.4 and self.sent:
            # Again, perhaps in the same flush as the first time.
            self._send(writer, *self.rng.choice(self.sent[-12:]))
        else:
            number = self.rng.randrange(4)
            data = batch(self.rng, count := self.rng.choice([1, 1, 2, 5, 20]))
            producer = self.producers[number]
            if producer is None:
                self._send(writer, partition, data, None)
                return
            # One in ten leaves a batch out.
            ahead = 3 * (self.rng.random() < 0.1)
            sequence = (self.next[number, partition] + ahead) % SEQUENCE_COUNT
            self._send(writer, partition, data, Stamp(*producer, sequence))
            if not ahead:
                self.next[number, partition] = (sequence + count) % SEQUENCE_COUNT

    def _send(self, writer: IntakeWriter, partition: int, data: bytes, stamp: Stamp | None) -> None:
        self.sent.append((partition, data, stamp))
        self.pending.append(self.send(writer, self.topic, partition, data, stamp))
        (columns,) = decode([(read_header(data), data)], uncompressed_max=UNCOMPRESSED_MAX)
        assert not isinstance(columns, BatchRefused)
        self.content.append((partition, columns.column("value").to_pylist()))

    def check_offsets(self, outcomes: Sequence[Any]) -> None:
        """Each record is at the offset that its client learnt."""
        values = [self.rig.values("t", partition) for partition in range(3)]
        for (partition, sent), (offset, outcome, _) in zip(self.content, outcomes, strict=True):
            assert outcome != "ok" or values[partition][offset : offset + len(sent)] == sent

    def _outcome(self, pending: PendingReceived | PendingRecord) -> Any:
        if isinstance(pending, PendingReceived):
            offset, verdict = pending.outcome()
            # A defect of the writer becomes an outcome too.
            assert "Error" not in (verdict.error or ""), verdict.error
            assert pending.append_us() > 0 or not self.appends or verdict.outcome != "ok"
            return offset, verdict.outcome, verdict.refusal
        answer: Any = pending.result(WAIT_S)
        return answer.offset, answer.outcome, answer.refusal

    def stored(self) -> list[Any]:
        """Segments (of batches alone) and records of every partition, without what depends on the clock."""
        fold = self.rig.reread()
        found: list[Any] = []
        for partition in range(3):
            segments = fold.segments((self.topic.topic_id, partition))
            if not self.appends and not self.mixed:
                found += [(one.base, one.rows, one.raw_bytes) for one in segments]
            for row in self.rig.stored("t", partition):
                assert row["event_timestamp"] == row["accept_timestamp"] or not self.appends
                row.pop("accept_timestamp")
                row.pop("event_timestamp") if self.appends else None
                found.append(row)
            # As consumers and refinement read: file by file, in the order of the log.
            end = fold.partition((self.topic.topic_id, partition)).next_offset
            batches = list(from_intake(IntakeReader(self.rig.objects), segments, [], 0, end))
            assert [offset for one in batches for offset in one.column("offset").to_pylist()] == list(
                range(end)
            )
        return found


@pytest.fixture
def rigs(tmp_path: Path) -> Iterator[list[IntakeRig]]:
    made = [IntakeRig(tmp_path / name) for name in ("rows", "encoded")]
    yield made
    for rig in made:
        rig.close()


@pytest.mark.parametrize("seed", range(24))
def test_both_ways_give_the_same_log(seed: int, rigs: Sequence[IntakeRig]) -> None:
    rows, encoded = (Session(seed, rig, send) for rig, send in zip(rigs, (as_rows, as_it_came), strict=True))
    outcomes, others = rows.play(), encoded.play()
    for number, (one, other) in enumerate(zip(outcomes, others, strict=True)):
        # Other batches took the numbers at its beginning. Rows are divided at the next attempt, batches never.
        overtaken = other[1:] == ("failed", "out_of_order") and len(rows.content[number][1]) > 1
        assert one[1:] == other[1:] or (overtaken and one[1:] == ("unknown", "out_of_order"))
    rows.check_offsets(outcomes)
    encoded.check_offsets(others)
    stored = rows.stored(), encoded.stored()
    if not rows.mixed:
        assert [one[0] for one in others] == [one[0] for one in outcomes]
        assert stored[0] == stored[1]
    # Of a partition in a flush, rows come before batches, so offsets differ.
    assert len(stored[0]) == len(stored[1])


def test_the_seeds_meet_every_kind_of_outcome(rigs: Sequence[IntakeRig]) -> None:
    met: set[tuple[str, str | None]] = set()
    repeated = 0
    for seed, rig in zip((1, 4), rigs, strict=True):
        outcomes = Session(seed, rig, as_it_came).play()
        met |= {(outcome, refusal) for _, outcome, refusal in outcomes}
        offsets = [offset for offset, outcome, _ in outcomes if outcome == "ok"]
        repeated += len(offsets) - len(set(offsets))
    assert met >= {("ok", None), ("failed", "out_of_order")}
    assert repeated > 10


def test_a_record_that_is_too_large_is_named(rigs: Sequence[IntakeRig]) -> None:
    records = [
        RawRecord(b"k", b"v"),
        RawRecord(b"k", bytes(500), (("h", None),)),
        RawRecord(b"k", bytes(499)),
    ]
    data = batch_bytes(records_bytes(records))
    texts = []
    for rig, send in zip(rigs, (as_rows, as_it_came), strict=True):
        topic = rig.topic("t", 1)
        with rig.writer(record_bytes_max=500) as writer, pytest.raises(RecordRefused) as refused:
            send(writer, topic, 0, data, None)
        texts.append(str(refused.value))
    assert texts[0] == texts[1]
    assert texts[0].startswith("row 1: the record has 502 bytes and 1 headers")


def test_a_batch_beyond_the_queue_is_refused(rigs: Sequence[IntakeRig]) -> None:
    data = batch_bytes(records_bytes([RawRecord(b"k", bytes(3000))] * 10))
    topic = rigs[1].topic("t", 1)
    with rigs[1].writer(queue_bytes_max=20_000, delay_max_bytes=10_000, record_bytes_max=5000) as writer:
        with pytest.raises(RecordRefused, match=r"room, more than intake\.queue_bytes_max = 20000"):
            as_it_came(writer, topic, 0, data, None)
        assert writer.metrics().records_accepted == 0


def test_the_counters_count_records(rigs: Sequence[IntakeRig]) -> None:
    topic = rigs[1].topic("t", 1)
    with rigs[1].writer() as writer:
        for count in (3, 5):
            data = batch_bytes(records_bytes([RawRecord(b"k", b"value")] * count))
            as_it_came(writer, topic, 0, data, None)
        writer.flush()
        found = writer.metrics()
    assert (found.records_accepted, found.records_ok, found.bytes_accepted) == (8, 8, 8 * 6)


def test_batches_that_follow_each_other_share_a_segment(rigs: Sequence[IntakeRig]) -> None:
    """So a flush of many small batches takes no more of an entry than rows do."""
    rig = rigs[1]
    topic, (producer, epoch) = rig.topic("t", 1), rig.sequencer.open_producer("", 0)
    data = batch_bytes(records_bytes([RawRecord(b"k", b"value")] * 2))
    with rig.writer(delay_max=600) as writer:
        pending = [
            as_it_came(writer, topic, 0, data, Stamp(producer, epoch, 2 * number)) for number in range(50)
        ]
        writer.flush()
    assert [one.outcome()[0] for one in pending] == list(range(0, 100, 2))
    (segment,) = rig.reread().segments((topic.topic_id, 0))
    assert (segment.rows, segment.raw_bytes) == (100, 600)
    assert [row["batch"] for row in rig.stored("t", 0)] == [0, 1] * 50


def test_a_batch_that_is_in_the_log_in_part_is_not_divided(rigs: Sequence[IntakeRig]) -> None:
    """A client sends other batches under its numbers: no record of them is stored twice. Its neighbours in the flush
    are judged by themselves.
    """
    rig = rigs[1]
    topic, (producer, epoch) = rig.topic("t", 1), rig.sequencer.open_producer("", 0)
    small, large = (batch_bytes(records_bytes([RawRecord(b"k", b"v")] * count)) for count in (2, 5))
    with rig.writer(delay_max=600) as writer:
        as_it_came(writer, topic, 0, small, Stamp(producer, epoch, 0))
        writer.flush()
        over = as_it_came(writer, topic, 0, large, Stamp(producer, epoch, 0))
        behind = as_it_came(writer, topic, 0, small, Stamp(producer, epoch, 5))
        writer.flush()
        assert (behind.outcome()[1].outcome, behind.outcome()[1].refusal) == ("failed", "out_of_order")
        again = [
            as_it_came(writer, topic, 0, small, Stamp(producer, epoch, 0)),
            as_it_came(writer, topic, 0, large, Stamp(producer, epoch, 1)),
        ]
        writer.flush()
        assert again[0].outcome()[0] == 0
        assert again[1].outcome()[1].outcome == "failed"
        following = as_it_came(writer, topic, 0, small, Stamp(producer, epoch, 2))
        writer.flush()
    _, verdict = over.outcome()
    assert (verdict.outcome, verdict.refusal) == ("failed", "out_of_order")
    assert following.outcome()[0] == 2
    assert len(rig.stored("t", 0)) == 4


def test_a_repetition_of_several_batches_has_their_offsets(rigs: Sequence[IntakeRig]) -> None:
    """They are sent again together, and others came between them the first time."""
    rig = rigs[1]
    topic, (producer, epoch) = rig.topic("t", 1), rig.sequencer.open_producer("", 0)
    data = batch_bytes(records_bytes([RawRecord(b"k", b"v")] * 3))
    with rig.writer(delay_max=600) as writer:
        for number in range(3):
            as_it_came(writer, topic, 0, data, Stamp(producer, epoch, 3 * number))
            as_it_came(writer, topic, 0, data, None)
            writer.flush()
        again = [
            as_it_came(writer, topic, 0, data, Stamp(producer, epoch, 3 * number)) for number in range(4)
        ]
        writer.flush()
    assert [one.outcome()[0] for one in again] == [0, 6, 12, 18]
    assert len(rig.stored("t", 0)) == 21


def test_records_of_both_kinds_in_one_flush_are_read_in_order(rigs: Sequence[IntakeRig]) -> None:
    """Rows and batches come in turns: the records of a partition are found in the order of its offsets."""
    rig = rigs[1]
    topic = rig.topic("t", 2)
    data = batch_bytes(records_bytes([RawRecord(b"k", b"v")] * 3))
    with rig.writer(delay_max=600) as writer:
        batches, records = [], []
        for number in range(6):
            batches.append(as_it_came(writer, topic, number % 2, data, None))
            records.append(writer.send("t", Record(b"k", b"row %d" % number), number % 2))
        writer.flush()
    offsets: list[list[int | None]] = [[], []]
    for number in range(6):
        offsets[number % 2] += [batches[number].outcome()[0] + row for row in range(3)]
        offsets[number % 2].append(records[number].result(WAIT_S).offset)
    assert [sorted(one) for one in offsets if None not in one] == [list(range(12))] * 2  # type: ignore[type-var]
    fold = rig.reread()
    for partition in range(2):
        segments = fold.segments((topic.topic_id, partition))
        read = list(from_intake(IntakeReader(rig.objects), segments, [], 0, 12))
        assert [offset for one in read for offset in one.column("offset").to_pylist()] == list(range(12))
        places = [(one.file.log_index, one.row_group, one.first_row) for one in segments]
        assert places == sorted(places)


def test_what_was_sent_before_a_topic_changed_comes_first(rigs: Sequence[IntakeRig]) -> None:
    """Validation of a topic begins or ends: what a client sent before is stored before."""
    rig = rigs[1]
    topic = rig.topic("t", 1)
    with rig.writer(delay_max=600) as writer:
        pending = []
        for number, send in enumerate((as_it_came, as_rows, as_rows, as_it_came)):
            data = batch_bytes(records_bytes([RawRecord(b"k", b"%d" % number)]))
            pending.append(send(writer, topic, 0, data, None))
        writer.flush()
    assert [one.outcome()[0] for one in pending] == [0, 1, 2, 3]
    assert rig.values("t", 0) == [b"0", b"1", b"2", b"3"]


def test_a_batch_takes_the_room_of_its_records(rigs: Sequence[IntakeRig]) -> None:
    """What compresses well must not become large when it is read."""
    topic = rigs[1].topic("t", 1)
    headers = tuple(("", None) for _ in range(2000))
    data = batch_bytes(records_bytes([RawRecord(None, None, headers)] * 10), codec="zstd")
    assert len(data) < 1000
    limits = {"queue_bytes_max": 300_000, "delay_max_bytes": 10_000, "record_bytes_max": 100_000}
    with (
        rigs[1].writer(**limits) as writer,
        pytest.raises(RecordRefused, match="a batch of 10 records takes 32"),
    ):
        as_it_came(writer, topic, 0, data, None)
