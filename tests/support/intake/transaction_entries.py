"""Entries of a transactional producer, built by hand, for tests of pure planning: there is no intake file
behind them."""

from __future__ import annotations

from archiver.proto import intake_log_pb2 as pb
from archiver.runtime.ids import TopicPartition
from intake.log.fold import IntakeFold
from tests.support.intake.intake_entries import Run

HOUR_US = 3600 * 1_000_000


class TransactionEntries:
    """One producer of one log."""

    def __init__(self, fold: IntakeFold, transactional_id: str) -> None:
        self._fold = fold
        self._sequences: dict[TopicPartition, int] = {}
        opened = pb.ProducerOpened(
            transactional_id=transactional_id, transaction_timeout_us=HOUR_US, time_us=1
        )
        producer = fold.apply(fold.next_index, _entry(producer=opened)).producer
        assert producer is not None
        self.producer_id, self.epoch = producer

    def send(self, *runs: Run) -> None:
        """An intake file with these segments, in the order of topics and partitions."""
        topics = [
            pb.TopicSegments(topic_id=bytes.fromhex(run.topic_id), segments=[self._segment(run)])
            for run in runs
        ]
        file = pb.IntakeFile(
            key=f"intake/{self._fold.next_index}", size=1, footer_sha256=b"d" * 32, topics=topics
        )
        applied = self._fold.apply(self._fold.next_index, _entry(file=file))
        assert all(landed.segment is not None for landed in applied.landed)

    def _segment(self, run: Run) -> pb.Segment:
        tp = (run.topic_id, run.partition)
        sequence = self._sequences.get(tp, 0)
        self._sequences[tp] = sequence + run.rows
        batch = pb.ProducerBatch(
            producer_id=self.producer_id, epoch=self.epoch, sequence=sequence, transactional=True
        )
        return pb.Segment(
            partition=run.partition,
            rows=run.rows,
            raw_bytes=run.raw_bytes,
            accept_max_us=run.accept_max_us,
            producer=batch,
        )

    def end(self, *, commit: bool) -> None:
        """Commit or abort what is open."""
        ended = pb.TransactionEnded(producer_id=self.producer_id, epoch=self.epoch, commit=commit, time_us=1)
        assert self._fold.apply(self._fold.next_index, _entry(transaction=ended)).refusal is None


def _entry(**body: object) -> bytes:
    return pb.IntakeEntry(format=2, id=b"i" * 16, **body).SerializeToString()  # type: ignore[arg-type]
