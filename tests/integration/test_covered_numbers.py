"""Batches that cover more sequence numbers than they have records: from the queue to the log, the intake files
and the acknowledgements."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from archiver.proto import intake_log_pb2 as pb
from archiver.runtime.clock import ManualClock
from intake.log.entries import parse_entry
from intake.producers import SEQUENCE_COUNT, Stamp
from intake.records import normalise_batch
from intake.write.acknowledgements import PendingBatch
from intake.write.queue import BatchItem
from tests.support.intake.intake_rig import IntakeRig
from tests.support.intake.publishing import Publishing
from tests.support.log.faulty_log import AppendFault


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[IntakeRig]:
    rig = IntakeRig(tmp_path, clock=ManualClock())
    rig.topic("t", 2)
    yield rig
    rig.close()


class Client:
    """A client whose batches are queued as they came, without the records that are stored elsewhere."""

    def __init__(self, publishing: Publishing) -> None:
        self._publishing = publishing
        self.producer_id, _ = publishing.sequencer.open_producer("", 0)
        self._lock = threading.Condition()

    def batch(
        self, first: int, kept: Sequence[int], covered: int, partition: int = 0, epoch: int = 0
    ) -> PendingBatch:
        """Queue a batch of `covered` numbers from `first` on; `kept`: the places of its records."""
        numbers = [(first + place) % SEQUENCE_COUNT for place in kept or [0]]
        values = [b"%d" % number for number in numbers] if kept else [None]
        normal = normalise_batch(
            pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())}), 1 << 20
        )
        partitions = np.full(len(values), partition, np.int32)
        pending = PendingBatch("t", partitions, self._lock)
        pending.expect(0)
        pending.admitted()
        size = int(normal.raw_bytes.sum())
        stamp = Stamp(self.producer_id, epoch, first, covered=covered if covered > len(kept) else 0)
        item = BatchItem(
            self._publishing.topic("t"), normal.columns, normal.raw_bytes, partitions, size, size, 1, 0, pending, stamp,
            np.array(numbers, np.int32), True, numbers_only=not kept,
        )  # fmt: skip
        self._publishing.queue.append(item)
        return pending


def outcomes(pending: PendingBatch) -> set[tuple[str, str | None]]:
    """Outcomes and refusals of its rows."""
    answer = pending.result(0)
    verdicts = [answer.verdicts[number] for number in answer.verdict_of.tolist()]
    return {(verdict.outcome, verdict.refusal) for verdict in verdicts}


def offsets(pending: PendingBatch) -> list[int]:
    """Offsets of its rows, which are all acknowledged."""
    assert outcomes(pending) == {("ok", None)}
    found: list[int] = pending.result(0).offsets.tolist()
    return found


def segments(rig: IntakeRig) -> list[pb.Segment]:
    entries = [parse_entry(entry.index, entry.data) for entry in rig.log.read(0)]
    return [segment for entry in entries for group in entry.file.topics for segment in group.segments]


def test_a_batch_without_some_records_is_one_segment(rig: IntakeRig) -> None:
    publishing = Publishing(rig, ManualClock(), 1)
    client = Client(publishing)
    sent = [
        client.batch(0, [1, 3], 5),  # neither the first record nor the last
        client.batch(5, [0, 1], 2),
        client.batch(7, [0], 2),
        client.batch(9, [0], 2),
        client.batch(0, [0], 3, partition=1),
    ]
    publishing.publish()
    assert [offsets(one) for one in sent] == [[0, 1], [2, 3], [4], [5], [0]]
    found = [(one.partition, one.rows, one.producer.sequence, one.producer.covered) for one in segments(rig)]
    assert found == [(0, 2, 0, 5), (0, 2, 5, 0), (0, 1, 7, 2), (0, 1, 9, 2), (1, 1, 0, 3)]
    assert rig.values("t", 0) == [b"1", b"3", b"5", b"6", b"7", b"9"]
    (key,) = rig.intake_keys()
    table = pq.read_table(pa.BufferReader(rig.objects.read(key)))
    # The file has the true number of each record.
    assert table.column("sequence").to_pylist() == [1, 3, 5, 6, 7, 9, 0]
    assert table.column("batch").to_pylist() == [0, 1, 0, 1, 0, 0, 0]
    again = [client.batch(0, [1, 3], 5), client.batch(7, [0], 2), client.batch(11, [0], 1)]
    publishing.publish()
    assert [offsets(one) for one in again] == [[0, 1], [4], [6]]


def test_numbers_without_records(rig: IntakeRig) -> None:
    publishing = Publishing(rig, ManualClock(), 1)
    client = Client(publishing)
    sent = [client.batch(0, [0, 1], 2), client.batch(2, [], 3), client.batch(5, [0], 1)]
    plain = publishing.send("t", 1, b"plain")
    publishing.publish()
    # A batch without records has no offset.
    assert [offsets(one) for one in sent] == [[0, 1], [-1], [2]]
    assert plain.result(0).offset == 0
    assert [(one.rows, one.producer.covered) for one in segments(rig)] == [(2, 0), (0, 3), (1, 0), (1, 0)]
    again = [client.batch(2, [], 3), client.batch(2, [0, 2], 3), client.batch(0, [], 2)]
    publishing.publish()
    # Each is answered as a repetition, also if validation decided otherwise this time.
    assert [offsets(one) for one in again] == [[-1], [-1, -1], [0]]
    assert rig.values("t", 0) == [b"0", b"1", b"5"]
    assert publishing.counts.acknowledged_ok == 3 + 1 + 2


def test_a_flush_of_numbers_alone(rig: IntakeRig) -> None:
    publishing = Publishing(rig, ManualClock(), 1)
    client = Client(publishing)
    sent = [client.batch(0, [], 3), client.batch(3, [], 1), client.batch(0, [], 1, partition=1)]
    publishing.publish()
    assert [offsets(one) for one in sent] == [[-1], [-1], [-1]]
    fold = rig.reread()
    topic = fold.topics_by_name["t"].topic_id
    expects = [
        fold.producers.next_sequence((topic, partition), client.producer_id, 0) for partition in (0, 1)
    ]
    assert expects == [4, 1]
    assert rig.values("t", 0) == []
    (key,) = rig.intake_keys()
    assert pq.read_table(pa.BufferReader(rig.objects.read(key))).num_rows == 0
    after = client.batch(4, [0], 1)
    publishing.publish()
    assert offsets(after) == [0]


def test_numbers_wrap_inside_of_a_batch(rig: IntakeRig) -> None:
    publishing = Publishing(rig, ManualClock(), 1)
    client = Client(publishing)
    start = SEQUENCE_COUNT - 3
    # In steps that the log can tell from a repetition.
    first = 0
    while first < start:
        count = min(SEQUENCE_COUNT // 2 - 1, start - first)
        client.batch(first, [], count)
        first += count
    publishing.publish()
    sent = [client.batch(start, [0, 4], 6), client.batch(3, [0], 1)]
    publishing.publish()
    assert [offsets(one) for one in sent] == [[0, 1], [2]]
    again = client.batch(start, [0, 4], 6)
    publishing.publish()
    assert offsets(again) == [0, 1]
    assert rig.values("t", 0) == [b"%d" % start, b"1", b"3"]


def test_an_unknown_outcome_is_resolved_by_sending_the_batch_again(rig: IntakeRig) -> None:
    publishing = Publishing(rig, ManualClock(), 1)
    client = Client(publishing)
    rig.log.script(*[AppendFault.DROPPED] * 2, AppendFault.REPLY_LOST)
    lost = client.batch(0, [0, 2], 4)
    publishing.publish()
    assert outcomes(lost) == {("unknown", None)}
    again, following = client.batch(0, [0, 2], 4), client.batch(4, [], 1)
    publishing.publish()
    assert (offsets(again), offsets(following)) == ([0, 1], [-1])
    assert rig.values("t", 0) == [b"0", b"2"]


def test_a_batch_of_covered_numbers_is_never_stored_in_part(rig: IntakeRig) -> None:
    """Its first numbers are in the log and its last are not: a cut between them has no place."""
    publishing = Publishing(rig, ManualClock(), 1)
    client = Client(publishing)
    client.batch(0, [0, 1], 2)
    publishing.publish()
    wrong = client.batch(0, [0, 1, 2], 4)
    publishing.publish()
    assert outcomes(wrong) == {("unknown", "out_of_order")}
    assert rig.values("t", 0) == [b"0", b"1"]
