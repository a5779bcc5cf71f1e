"""Idempotent producers over a real log and a real store: a record sent twice is stored once, at the first
offset.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from archiver.config.groups import LogSettings
from archiver.log.store import Appended
from archiver.runtime import failpoints
from archiver.runtime.clock import ManualClock
from archiver.runtime.errors import InvalidInput, NotFound, ProducerFenced
from intake.format import LOG_INDEX_KEY
from intake.producers import SEQUENCE_COUNT, UNOPENED_IDS, KnownBatch
from intake.records import Record
from intake.write.acknowledgements import Acknowledgement
from intake.write.producer import Producer
from intake.write.writer import IntakeWriter
from tests.support.intake.intake_rig import WAIT_S, IntakeRig
from tests.support.intake.publishing import Publishing
from tests.support.log.faulty_log import AppendFault
from tests.support.objects.faulty_objects import ObjectFault


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[IntakeRig]:
    rig = IntakeRig(tmp_path)
    rig.topic("t", 3)
    yield rig
    failpoints.arm("")
    rig.close()


def record(value: bytes, key: bytes | None = None) -> Record:
    return Record(key, value)


def batch_of(values: list[bytes], partitions: list[int] | None = None) -> pa.RecordBatch:
    rows = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
    return rows if partitions is None else rows.append_column("partition", pa.array(partitions, pa.int32()))


def segments(rig: IntakeRig, partition: int = 0) -> list[int]:
    """Number of rows in each segment of a partition."""
    fold = rig.reread()
    return [one.rows for one in fold.segments((fold.topics_by_name["t"].topic_id, partition))]


def sent(
    writer: IntakeWriter, producer: Producer, *values: bytes, sequence: int | None = None
) -> list[Acknowledgement]:
    """Send one by one in one flush."""
    pending = [
        producer.send("t", record(value), 0, None if sequence is None else sequence + number)
        for number, value in enumerate(values)
    ]
    writer.flush()
    return [one.result(WAIT_S) for one in pending]


def test_numbers_count_per_partition_and_single_records_share_a_segment(rig: IntakeRig) -> None:
    with rig.writer(delay_max=60) as writer:
        producer = Producer.open(writer)
        pending = [producer.send("t", record(b"%d" % number), number % 2) for number in range(10)]
        other = writer.send("t", record(b"plain"), 0)
        more = [producer.send("t", record(b"%d" % number), 0) for number in range(10, 13)]
        writer.flush()
    assert [one.sequence for one in pending] == [number // 2 for number in range(10)]
    assert [one.sequence for one in more] == [5, 6, 7]
    assert [one.result(0).offset for one in [*pending[::2], other, *more]] == list(range(9))
    assert (segments(rig), segments(rig, 1)) == ([5, 1, 3], [5])
    assert other.sequence is None


def test_the_file_says_whose_records_they_are_and_how_long_the_log_was(rig: IntakeRig) -> None:
    with rig.writer(delay_max=60) as writer:
        producer = Producer.open(writer)
        producer.send_batch("t", batch_of([b"a", b"b", b"c"], [0, 1, 0]))
        writer.send("t", record(b"d"), 0)
        producer.send("t", record(b"e"), 0)
        writer.flush()
        index = rig.sequencer.fold.next_index - 1
    (key,) = rig.intake_keys()
    file = pq.ParquetFile(rig.objects.open_input(key))
    assert (file.metadata.metadata or {})[LOG_INDEX_KEY.encode()] == str(index).encode()
    rows = (
        file.read()
        .select(["value", "producer_id", "producer_epoch", "sequence", "transactional", "batch"])
        .to_pylist()
    )
    assert [tuple(row.values()) for row in rows] == [
        (b"a", producer.producer_id, 0, 0, False, 0),
        (b"c", producer.producer_id, 0, 1, False, 1),
        (b"d", None, None, None, None, 0),
        (b"e", producer.producer_id, 0, 2, False, 0),
        (b"b", producer.producer_id, 0, 0, False, 0),
    ]


@pytest.mark.parametrize("fault", [AppendFault.DROPPED, AppendFault.REPLY_LOST, AppendFault.LATE])
def test_what_is_unknown_is_settled_by_sending_it_again(rig: IntakeRig, fault: AppendFault) -> None:
    with rig.writer(delay_max=60) as writer:
        producer = Producer.open(writer)
        rig.log.script(*[AppendFault.DROPPED] * 2, fault)
        unknown = sent(writer, producer, b"a", b"b")
        assert [(one.outcome, one.offset) for one in unknown] == [("unknown", None)] * 2
        waiting = sent(writer, producer, b"c")
        assert waiting[0].outcome == "failed"
        assert "of unknown outcome; send those again" in (waiting[0].error or "")
        assert [one.offset for one in sent(writer, producer, b"a", b"b", sequence=0)] == [0, 1]
        assert [one.offset for one in sent(writer, producer, b"a", b"b", sequence=0)] == [0, 1]
        assert [one.offset for one in sent(writer, producer, b"c")] == [2]
    assert rig.values("t", 0) == [b"a", b"b", b"c"]


def test_what_failed_gives_its_numbers_back(rig: IntakeRig) -> None:
    with rig.writer(delay_max=60) as writer:
        producer = Producer.open(writer)
        rig.objects.fail("create", ObjectFault.REFUSED, "intake/")
        assert [one.outcome for one in sent(writer, producer, b"a", b"b")] == ["failed"] * 2
        again = producer.send("t", record(b"a"), 0)
        assert again.sequence == 0
        writer.flush()
        assert again.result(0).offset == 0
    assert rig.values("t", 0) == [b"a"]


def test_nothing_overtakes_a_record_that_failed(rig: IntakeRig) -> None:
    """A record that was numbered before the failure is not even written: its number may belong to another
    record by then."""
    held, begun = threading.Event(), threading.Event()
    create = rig.objects.create

    def refuse(key: str, data: bytes) -> None:
        begun.set()
        held.wait(WAIT_S)
        rig.objects.create = create  # type: ignore[method-assign]
        create(key, data)

    rig.objects.fail("create", ObjectFault.REFUSED, "intake/")
    rig.objects.create = refuse  # type: ignore[method-assign]
    with rig.writer(delay_max=0) as writer:
        producer = Producer.open(writer)
        first = producer.send("t", record(b"first"), 0)
        assert begun.wait(WAIT_S)
        behind = [producer.send("t", record(b"behind"), 0), producer.send("t", record(b"elsewhere"), 1)]
        held.set()
        assert first.result(WAIT_S).outcome == "failed"
        assert [one.result(WAIT_S).outcome for one in behind] == ["failed", "ok"]
        assert "must not come before it" in (behind[0].result(0).error or "")
        again = producer.send_batch("t", batch_of([b"first", b"behind"]), 0)
        assert again.result(WAIT_S).offsets.tolist() == [0, 1]
    assert again.sequences is not None
    assert again.sequences.tolist() == [0, 1]
    assert (rig.values("t", 0), rig.values("t", 1)) == ([b"first", b"behind"], [b"elsewhere"])


def test_a_batch_is_sent_again_cut_in_other_places(rig: IntakeRig) -> None:
    values = [b"%d" % number for number in range(12)]
    with rig.writer(delay_max=60) as writer:
        producer = Producer.open(writer)
        whole = producer.send_batch("t", batch_of(values[:7]), 0)
        writer.flush()
        assert sent(writer, producer, *values[2:5], sequence=2)[0].offset == 2
        # Known and new records in one batch: the known keep their offsets, the others are appended.
        mixed = producer.send_batch("t", batch_of(values[4:12]), 0, sequence=4)
        writer.flush()
        assert mixed.result(0).offsets.tolist() == [4, 5, 6, 7, 8, 9, 10, 11]
        over = producer.send_batch("t", batch_of(values), 0, sequence=np.arange(12, dtype=np.int32))
        writer.flush()
        assert over.result(0).offsets.tolist() == list(range(12))
        assert producer.send("t", record(b"next"), 0).sequence == 12
    assert whole.result(0).outcome == "ok"
    assert rig.values("t", 0) == [*values, b"next"]


def test_a_gap_is_out_of_order_and_what_is_forgotten_is_unknown(rig: IntakeRig) -> None:
    with rig.writer(delay_max=60) as writer:
        producer = Producer.open(writer)
        (gap,) = sent(writer, producer, b"x", sequence=5)
        assert (gap.outcome, gap.refusal, gap.offset) == ("failed", "out_of_order", None)
        assert "the log expects 0" in (gap.error or "")
        # The next automatic number fails for the same reason; after that all is well again.
        assert [sent(writer, producer, b"a")[0].outcome for _ in range(2)] == ["failed", "ok"]
        for number in range(6):
            assert sent(writer, producer, b"b%d" % number)[0].outcome == "ok"
        (forgotten,) = sent(writer, producer, b"a", sequence=0)
        assert (forgotten.outcome, forgotten.refusal, forgotten.offset) == ("unknown", "forgotten", None)
        # It is in the log, so it holds nothing back.
        assert sent(writer, producer, b"c")[0].outcome == "ok"
    assert rig.values("t", 0) == [b"a", *[b"b%d" % number for number in range(6)], b"c"]


def test_refusals_in_a_flush_touch_no_neighbour(rig: IntakeRig) -> None:
    with rig.writer(delay_max=60) as writer:
        one, two = Producer.open(writer), Producer.open(writer)
        batch = two.send_batch("t", batch_of([b"2a", b"2b", b"2c"], [0, 1, 0]))
        plain = writer.send("t", record(b"plain"), 0)
        refused = one.send("t", record(b"gap"), 0, sequence=7)
        good = one.send("t", record(b"1a"), 1, sequence=0)
        again = two.send_batch("t", batch_of([b"2a", b"2b", b"2c"], [0, 1, 0]), sequence=[0, 0, 1])
        writer.flush()
    assert batch.result(0).offsets.tolist() == [0, 0, 1]
    assert (batch.result(0).outcome, again.result(0).outcome) == ("ok", "ok")
    assert (plain.result(0).offset, good.result(0).offset) == (2, 1)
    assert (refused.result(0).outcome, refused.result(0).offset) == ("failed", None)
    assert again.result(0).offsets.tolist() == [0, 0, 1]
    assert (rig.values("t", 0), rig.values("t", 1)) == ([b"2a", b"2c", b"plain"], [b"2b", b"1a"])


def test_numbers_wrap(rig: IntakeRig) -> None:
    with rig.writer(delay_max=60) as writer:
        producer = Producer.open(writer)
        start = SEQUENCE_COUNT - 3
        known = rig.sequencer.fold.producers.get(producer.producer_id)
        assert known is not None
        tp = (rig.sequencer.fold.topics_by_name["t"].topic_id, 0)
        known.batches[tp] = deque(
            [KnownBatch(start - 1, 1, 0)], maxlen=5
        )  # as if two thousand million records were there
        pending = producer.send_batch("t", batch_of([b"%d" % number for number in range(5)]), 0)
        writer.flush()
        assert pending.sequences is not None
        assert pending.sequences.tolist() == [start, start + 1, start + 2, 0, 1]
        assert [one.sequence for one in [producer.send("t", record(b"next"), 0)]] == [2]
        again = producer.send_batch("t", batch_of([b"2", b"3"]), 0, sequence=SEQUENCE_COUNT - 1)
        writer.flush()
        assert again.result(0).offsets.tolist() == [2, 3]


def test_a_producer_is_resumed_behind_its_newest_record(rig: IntakeRig, tmp_path: Path) -> None:
    with rig.writer(delay_max=60) as writer:
        producer = Producer.open(writer)
        sent(writer, producer, b"a", b"b")
        rig.log.script(*[AppendFault.DROPPED] * 2, AppendFault.REPLY_LOST)
        assert sent(writer, producer, b"c")[0].outcome == "unknown"
    other = IntakeRig(tmp_path)
    with other.writer(delay_max=60) as writer:
        resumed = Producer.resume(writer, producer.producer_id, producer.epoch)
        assert sent(writer, resumed, b"c", sequence=2)[0].offset == 2
        assert sent(writer, resumed, b"d")[0].offset == 3
        with pytest.raises(NotFound, match="has no producer 99"):
            Producer.resume(writer, 99, 0)
        with pytest.raises(InvalidInput, match="no epoch 4"):
            Producer.resume(writer, producer.producer_id, 4)
    assert other.values("t", 0) == [b"a", b"b", b"c", b"d"]
    other.close()


def test_an_epoch_that_a_client_raised_holds_in_its_partition(rig: IntakeRig, tmp_path: Path) -> None:
    with rig.writer(delay_max=60) as writer:
        opened = Producer.open(writer)
        assert sent(writer, opened, b"a", b"b")[1].offset == 1
        other = opened.send("t", record(b"o"), 1)
        # As a Kafka client does by itself after an expired batch.
        raised = Producer(writer, opened.producer_id, 1, "")
        assert [one.offset for one in sent(writer, raised, b"c", b"d")] == [2, 3]
        assert sent(writer, raised, b"c", sequence=0)[0].offset == 2
        late = opened.send("t", record(b"p"), 1)
        writer.flush()
        assert (other.result(0).offset, late.result(0).offset) == (0, 1)
        (fenced,) = sent(writer, opened, b"late")
        assert (fenced.outcome, fenced.refusal) == ("failed", "fenced")
    other_process = IntakeRig(tmp_path)
    with other_process.writer(delay_max=60) as writer:
        with pytest.raises(ProducerFenced):
            Producer.resume(writer, opened.producer_id, 0)
        resumed = Producer.resume(writer, opened.producer_id, 1)
        assert sent(writer, resumed, b"e")[0].offset == 4
        begun = resumed.send("t", record(b"q"), 1)
        writer.flush()
        assert (begun.sequence, begun.result(0).offset) == (0, 2)
        with pytest.raises(InvalidInput, match="no epoch 2"):
            Producer.resume(writer, opened.producer_id, 2)
    assert other_process.values("t", 0) == [b"a", b"b", b"c", b"d", b"e"]
    assert other_process.values("t", 1) == [b"o", b"p", b"q"]
    other_process.close()


def test_what_cannot_be_sent_again_is_refused(rig: IntakeRig) -> None:
    with rig.writer(delay_max=60) as writer:
        producer = Producer.open(writer)
        with pytest.raises(InvalidInput, match="must go to the same partition"):
            producer.send("t", record(b"v"), sequence=0)
        # A key leads to another partition once the topic has more of them.
        with pytest.raises(InvalidInput, match="must go to the same partition"):
            producer.send("t", Record(b"key", b"v"), sequence=0)
        with pytest.raises(InvalidInput, match="must go to the same partitions"):
            producer.send_batch("t", batch_of([b"v"]), sequence=0)
        with pytest.raises(InvalidInput, match="must go to the same partitions"):
            producer.send_batch("t", pa.table({"key": [b"key"], "value": [b"v"]}), sequence=0)
        with pytest.raises(InvalidInput, match="state one for each row"):
            producer.send_batch("t", batch_of([b"v", b"w"], [0, 1]), sequence=0)
        with pytest.raises(InvalidInput, match="3 sequence numbers were stated for 2 rows"):
            producer.send_batch("t", batch_of([b"v", b"w"], [0, 1]), sequence=[0, 1, 2])
        for wrong in (-2, SEQUENCE_COUNT):
            with pytest.raises(InvalidInput, match="is not a sequence number"):
                producer.send("t", record(b"v"), 0, sequence=wrong)
            with pytest.raises(InvalidInput, match="is not a sequence number"):
                producer.send_batch("t", batch_of([b"v"]), 0, sequence=[wrong])
        with pytest.raises(InvalidInput, match="no transactions"):
            producer.begin()
        assert sent(writer, producer, b"v")[0].offset == 0


def test_a_forgotten_producer_is_refused_with_what_to_do(rig: IntakeRig) -> None:
    with rig.writer(delay_max=60) as writer:
        producer = Producer.open(writer)
        sent(writer, producer, b"a")
        later_us = rig.clock.now_us() + 1
        rig.sequencer.forget_producers(later_us, 1000, later_us)
        (failed,) = sent(writer, producer, b"b")
        assert (failed.outcome, failed.refusal) == ("failed", "unknown_producer")
        (unknown,) = sent(writer, producer, b"a", sequence=0)
        assert (unknown.outcome, unknown.refusal) == ("unknown", "unknown_producer")
        assert "open a new one" in (failed.error or "")


def test_too_many_producers_are_forgotten_by_one_entry(rig: IntakeRig) -> None:
    with rig.writer(delay_max=60) as writer:
        ids = [UNOPENED_IDS + number for number in range(5)]
        for producer_id in ids:  # as a client that takes a new id for each record
            assert sent(writer, Producer(writer, producer_id, 0, ""), b"v")[0].outcome == "ok"
        later_us = rig.clock.now_us() + 1
        assert rig.sequencer.forget_producers(0, 5, later_us) == 0
        assert rig.sequencer.forget_producers(0, 2, 0) == 0  # all of them were used a short time ago
        tail = rig.sequencer.refresh().next_index
        assert rig.sequencer.forget_producers(0, 2, later_us) == 3
        assert rig.sequencer.forget_producers(0, 2, later_us) == 0
        # Every reader forgets the same producers, by the one entry. The other one is the barrier.
        fold = rig.reread()
        assert fold.next_index == tail + 2
        assert [one.producer_id for one in fold.producers] == ids[3:]
        # A Kafka client then raises its epoch and goes on.
        (refused,) = sent(writer, Producer(writer, ids[0], 0, ""), b"w", sequence=1)
        assert refused.refusal == "unknown_producer"
        assert sent(writer, Producer(writer, ids[0], 1, ""), b"w")[0].outcome == "ok"
        assert sent(writer, Producer(writer, ids[4], 0, ""), b"w", sequence=1)[0].outcome == "ok"


def test_of_too_many_producers_one_with_an_open_transaction_stays(rig: IntakeRig) -> None:
    with rig.writer(delay_max=60) as writer:
        transactional = Producer.open(writer, "x")
        transactional.begin()
        sent(writer, transactional, b"first")
        for number in range(3):
            sent(writer, Producer(writer, UNOPENED_IDS + number, 0, ""), b"v")
        assert rig.sequencer.forget_producers(0, 1, rig.clock.now_us() + 1) == 3
        assert [one.transactional_id for one in rig.reread().producers] == ["x"]
        transactional.commit()
        fold = rig.reread()
        assert fold.stable_offset((fold.topics_by_name["t"].topic_id, 0)) == 4


@pytest.mark.parametrize("suspended", ["in its queue", "before its append"])
@pytest.mark.parametrize("stamp", [(UNOPENED_IDS, 0), (3, 1)], ids=["new id", "raised epoch"])
def test_a_late_batch_of_a_forgotten_producer_is_not_stored_again(
    tmp_path: Path, suspended: str, stamp: tuple[int, int]
) -> None:
    """A suspended process holds it while another one stores it, and the log forgets its producer."""
    clock, kept_s = ManualClock(), 1800
    rig = IntakeRig(tmp_path, clock=clock)
    rig.topic("t", 1)
    writer, slow = (Publishing(rig, clock, seed, held_max_s=kept_s / 4) for seed in (1, 5))
    late = slow.send("t", 0, b"v", slow.session(*stamp))
    first = writer.send("t", 0, b"v", writer.session(*stamp))
    writer.publish()
    assert first.result(0).offset == 0

    def forget() -> None:
        clock.advance(kept_s + 1)
        assert writer.sequencer.forget_producers(0, 0, clock.now_us() - kept_s * 1_000_000) == 1

    real = rig.log.append

    def forget_first(index: int, data: bytes) -> Appended:
        rig.log.append = real  # type: ignore[method-assign]
        forget()
        return real(index, data)

    if suspended == "in its queue":
        forget()
    else:
        rig.log.append = forget_first  # type: ignore[method-assign]
    slow.publish()
    refused = late.result(0)
    expected = None if suspended == "in its queue" else "barrier"
    assert (refused.outcome, refused.refusal) == ("failed", expected)
    assert rig.values("t", 0) == [b"v"]
    rig.close()


def test_a_barrier_refuses_what_was_written_before_it(rig: IntakeRig, tmp_path: Path) -> None:
    with rig.writer(delay_max=60) as writer:
        producer = Producer.open(writer)
        real = rig.log.append
        raised: list[bool] = []

        def raise_barrier_first(index: int, data: bytes) -> Appended:
            if not raised:
                raised.append(True)
                other = IntakeRig(tmp_path)
                other.sequencer.raise_barrier(rig.clock.now_us() // 1000 + 60_000)
                other.close()
            return real(index, data)

        rig.log.append = raise_barrier_first  # type: ignore[method-assign]
        (refused,) = sent(writer, producer, b"a")
        assert (refused.outcome, refused.refusal) == ("failed", "barrier")
        # From here on the writer has the barrier, and its clock, which is behind it, does not stop it.
        assert sent(writer, producer, b"a")[0].offset == 0
    assert rig.values("t", 0) == [b"a"]


def test_ten_thousand_partitions_of_a_producer_fit_into_entries(tmp_path: Path) -> None:
    rig = IntakeRig(tmp_path, LogSettings(entry_bytes_max=64 * 1024))
    rig.topic("wide", 10_000)
    partitions = [number % 10_000 for number in range(30_000)]
    values = [b"%d" % number for number in range(30_000)]
    with rig.writer(delay_max=60) as writer:
        producer = Producer.open(writer, "t", transaction_timeout_s=600)
        producer.begin()
        pending = producer.send_batch("wide", batch_of(values, partitions))
        writer.flush()
        assert pending.result(WAIT_S).offsets.tolist() == [number // 10_000 for number in range(30_000)]
        again = producer.send_batch("wide", batch_of(values, partitions), sequence=pending.sequences)
        writer.flush()
        assert again.result(WAIT_S).offsets.tolist() == pending.result(0).offsets.tolist()
        producer.commit()
    assert max(len(data) for _, data in rig.log.appends) <= 64 * 1024
    assert rig.values("wide", 9_999) == [b"9999", b"19999", b"29999"]
    rig.close()


def test_a_fenced_producer_says_so(rig: IntakeRig) -> None:
    with rig.writer(delay_max=60) as writer:
        old = Producer.open(writer, "x")
        old.begin()
        assert Producer.open(writer, "x").epoch == 1
        (fenced,) = sent(writer, old, b"a")
        assert (fenced.outcome, fenced.refusal) == ("failed", "fenced")
        with pytest.raises(ProducerFenced, match="open the producer again"):
            old.send("t", record(b"b"), 0)
        with pytest.raises(ProducerFenced):
            Producer.resume(writer, old.producer_id, 0)
    assert rig.values("t", 0) == []
