"""The intake writer: a queue that takes records from any number of threads, and one thread that publishes them.

Promises: every record that was handed over is acknowledged, with what `intake.publisher` says became of it. Records of one partition that
one thread sends get offsets in the order of sending. Because one thread writes, a flush of unknown outcome is settled (by the sequencer)
before a later one is appended. Memory is bounded by `queue_bytes_max`: a sender that finds no room waits.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from archiver.clock import Clock
from archiver.errors import ArchiverError, InvalidInput, NotFound, RetryLater
from archiver.ids import IdSource, TopicId, TopicPartition
from archiver.objects.store import ObjectStore
from intake.accept_clock import AcceptClock
from intake.acknowledgements import NO_OFFSET, PendingBatch, PendingRecord, Verdict
from intake.batcher import ROW_COST_BYTES, BatchItem, FlushQueue, Item, ItemSource, Piece, RecordItem, cut_rows
from intake.fold import TopicState
from intake.placement import Placement
from intake.producers import SEQUENCE_COUNT, Stamp
from intake.publisher import FlushPublisher
from intake.records import NormalBatch, Record, normalise_batch, validate, weight_of
from intake.sequencer import Sequencer

_log = logging.getLogger(__name__)

NO_SEQUENCE = -1


class WriterSettings(Protocol):
    """What the writer needs of the `intake` settings; durations in seconds, sizes in bytes."""

    @property
    def delay_max(self) -> float:
        """How long a record may wait for company."""

    @property
    def delay_max_bytes(self) -> int:
        """Raw bytes at which a flush begins early."""

    @property
    def queue_bytes_max(self) -> int:
        """What may wait or be on its way, counted as weights and `ROW_COST_BYTES` per record; a sender that would exceed it waits."""

    @property
    def record_bytes_max(self) -> int:
        """Weight of the largest record: its raw bytes and `HEADER_COST_BYTES` per header."""

    @property
    def clock_skew_max(self) -> float:
        """How far the clock may be ahead of its reference."""

    @property
    def clock_settle(self) -> float:
        """How long the clock must run evenly before the reference is taken anew."""

    @property
    def close_timeout(self) -> float:
        """How long closing, flushing, and a sender before a full queue wait."""

    @property
    def transaction_timeout_max(self) -> float:
        """The longest time-out that a transactional producer may ask for."""

    @property
    def row_group_bytes(self) -> int:
        """Raw bytes at which a row group closes."""


@dataclass(frozen=True, slots=True)
class WriterMetrics:
    """What a writer has done since it was opened, and what it holds now. `archiver.telemetry.METRICS` says what each number means."""

    queue_bytes: int
    queue_bytes_max: int
    records_accepted: int
    bytes_accepted: int
    records_ok: int
    records_failed: int
    records_unknown: int
    flushes: int
    producer_waits: int
    producer_wait_seconds: float
    upload_seconds: float
    append_seconds: float
    clock_refusals: int


class Stamper(ItemSource, Protocol):
    """An idempotent producer, as the writer sees it: numbers its records in the order of the queue. Called under the queue's lock."""

    @property
    def generation(self) -> int:
        """Of the numbers that it gives now."""

    def stamp(self, tp: TopicPartition, stated: int | None) -> Stamp:
        """Of the next record, or of the one with the sequence number that its sender states; raises if it must not be sent."""

    def stamp_rows(
        self, topic_id: TopicId, partitions: npt.NDArray[np.int32], stated: npt.NDArray[np.int32] | None
    ) -> tuple[Stamp, npt.NDArray[np.int32]]:
        """Of the next rows: the stamp of the first, and the sequence number of each."""

    def queued(self, item: Item) -> None:
        """The item that was numbered last goes into the queue."""

    def left_out(self) -> None:
        """Rows behind the last piece found no room."""


class IntakeWriter:
    """Sends records of any topics and partitions. Thread-safe; close it, or use it as a context manager."""

    def __init__(self, objects: ObjectStore, sequencer: Sequencer, settings: WriterSettings, clock: Clock, ids: IdSource) -> None:
        self._sequencer = sequencer
        self._settings = settings
        sequencer.refresh()
        self._accept_clock = AcceptClock(clock, settings.clock_skew_max, settings.clock_settle)
        self._queue = FlushQueue(clock, settings.delay_max, settings.delay_max_bytes, settings.queue_bytes_max)
        self._placement = Placement(ids)
        self._publisher = FlushPublisher(objects, sequencer, settings, clock, ids, self._accept_clock)
        self._in_work: Sequence[Item] = ()
        self._thread = threading.Thread(target=self._run, name="intake-writer", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(
        self, topic: str, record: Record, partition: int | None = None, *, stamper: Stamper | None = None, sequence: int | None = None
    ) -> PendingRecord:
        """Hand over one record; returns at once if there is room.

        `stamper` is the idempotent producer that sends it, `sequence` its number if it is sent again. Raises `NotFound` (topic or
        partition), `RecordRefused`, or `RetryLater` (no room within `close_timeout`, or a clock that runs ahead): then nothing was sent.
        """
        state = self._topic(topic)
        raw_bytes = validate(record, self._settings.record_bytes_max)
        cost = weight_of(record, raw_bytes) + ROW_COST_BYTES
        pending = PendingRecord(topic, self._placement.of_record(state, record, raw_bytes, partition), self._queue.changed)

        def make() -> RecordItem:
            accept_us = self._accept_us()
            if stamper is None:
                return RecordItem(state, record, raw_bytes, cost, accept_us, pending)
            stamp = stamper.stamp((state.topic_id, pending.partition), sequence)
            pending.sequence = stamp.sequence
            item = RecordItem(state, record, raw_bytes, cost, accept_us, pending, stamp, sequence is not None, stamper, stamper.generation)
            stamper.queued(item)
            return item

        self._queue.put(raw_bytes, cost, self._settings.close_timeout, make)
        return pending

    def send_batch(
        self,
        topic: str,
        batch: pa.Table | pa.RecordBatch,
        partition: int | None = None,
        *,
        stamper: Stamper | None = None,
        sequence: int | Sequence[int] | npt.NDArray[np.int32] | None = None,
    ) -> PendingBatch:
        """Hand over many records at once; see `RECORD_SCHEMA` for the columns.

        `partition` holds for every row; else the batch's own column `partition`, else the key decides. Rows of one partition become one
        producer's batch. `sequence` is that of the first row, if all rows are of one partition, or one per row. Raises as `send`; then
        nothing was sent. If the room ends halfway, the rows that found none are acknowledged as failed.
        """
        state = self._topic(topic)
        batches = batch.to_batches() if isinstance(batch, pa.Table) else [batch]
        normal = [normalise_batch(piece, self._settings.record_bytes_max) for piece in batches]
        placed = [self._placement.of_rows(state, piece, partition) for piece in normal]
        partitions = np.concatenate(placed) if placed else np.zeros(0, np.int32)
        pending = PendingBatch(topic, partitions, self._queue.changed)
        stated = None if sequence is None else stated_sequences(sequence, partitions)
        if stamper is not None:
            pending.sequences = np.full(len(partitions), NO_SEQUENCE, np.int32)
        sending = _BatchSending(state, pending, stamper, stated)
        first_row = 0
        for piece, rows in zip(normal, placed, strict=True):
            if not self._send_pieces(sending, piece, rows, first_row):
                break
            first_row += len(rows)
        with self._queue.changed:
            pending.admitted()
            self._queue.changed.notify_all()
        return pending

    def flush(self) -> None:
        """Write what was sent up to now and wait for its outcome; `RetryLater` if that takes longer than `close_timeout`."""
        if not self._queue.flush(self._settings.close_timeout):
            raise RetryLater(f"the writer has not finished within intake.close_timeout = {self._settings.close_timeout:g} s; flush again")

    def metrics(self) -> WriterMetrics:
        """The numbers to watch, as of now."""
        queue, published = self._queue.counts(), self._publisher.counts
        return WriterMetrics(
            queue_bytes=queue.held_bytes,
            queue_bytes_max=self._settings.queue_bytes_max,
            records_accepted=queue.records,
            bytes_accepted=queue.raw_bytes,
            records_ok=published.acknowledged_ok,
            records_failed=published.acknowledged_failed,
            records_unknown=published.acknowledged_unknown,
            flushes=published.flushes,
            producer_waits=queue.waits,
            producer_wait_seconds=queue.waited_s,
            upload_seconds=published.upload_s,
            append_seconds=published.append_s,
            clock_refusals=self._accept_clock.refusals,
        )

    def close(self) -> None:
        """Write what was sent, then stop; closing twice is no error.

        What nobody has begun to write after `close_timeout` is acknowledged as failed, what is being written as unknown; then
        `RetryLater` is raised.
        """
        self._queue.close()
        self._thread.join(self._settings.close_timeout)
        if not self._thread.is_alive():
            return
        late = f"the writer was closed and did not finish within {self._settings.close_timeout:g} s"
        abandoned = self._queue.abandon()
        self._publisher.settle_all(abandoned, Verdict("failed", late))
        with self._queue.changed:
            in_work = self._in_work
        self._publisher.settle_all(in_work, Verdict("unknown", late))
        raise RetryLater(f"{late}; {len(abandoned)} sent items failed, {len(in_work)} are unknown")

    @property
    def sequencer(self) -> Sequencer:
        """The way into the log that this writer uses."""
        return self._sequencer

    @property
    def settings(self) -> WriterSettings:
        """What it was made with."""
        return self._settings

    @property
    def lock(self) -> threading.Condition:
        """Under which producers are asked and told."""
        return self._queue.changed

    def _topic(self, name: str) -> TopicState:
        state = self._sequencer.fold.topics_by_name.get(name)
        if state is None:
            state = self._sequencer.refresh().topics_by_name.get(name)
        if state is None:
            raise NotFound(f"there is no topic {name!r}; add it to topics in the configuration")
        return state

    def _accept_us(self) -> int:
        return self._accept_clock.accept_us(self._sequencer.fold.newest_us)

    def _send_pieces(self, sending: _BatchSending, batch: NormalBatch, partitions: npt.NDArray[np.int32], first_row: int) -> bool:
        """Queue one Arrow batch in pieces of a flush; False if it did not all go in (the rest is settled as failed)."""
        settings = self._settings
        for piece in cut_rows(batch.raw_bytes, batch.weights, settings.delay_max_bytes, settings.queue_bytes_max):

            def make(piece: Piece = piece) -> BatchItem:
                return sending.item(batch, partitions, piece, first_row, self._accept_us())

            row = first_row + piece.start
            try:
                self._queue.put(piece.raw_bytes, piece.cost, settings.close_timeout, make)
            except ArchiverError as error:
                if row == 0:
                    raise
                self._fail_rest(sending, row, error)
                return False
        return True

    def _fail_rest(self, sending: _BatchSending, row: int, error: ArchiverError) -> None:
        with self._queue.changed:
            pending = sending.pending
            rows = len(pending.partitions) - row
            pending.expect(row)
            pending.settle(row, np.full(rows, NO_OFFSET, np.int64), np.zeros(rows, np.int32), [Verdict("failed", str(error))])
            if sending.stamper is not None:
                sending.stamper.left_out()

    def _run(self) -> None:
        while items := self._queue.take():
            with self._queue.changed:
                self._in_work = items
            try:
                self._publisher.publish(items)
            except Exception as error:  # noqa: BLE001
                # The head of the loop: whatever it was, its records are settled (as unknown, which is always true) and the writer goes on.
                _log.exception("a flush of %d items ended in an error nobody expected", len(items))
                self._publisher.settle_all(items, Verdict("unknown", f"{type(error).__name__}: {error}"))
            self._in_work = ()
            self._queue.done(items)


@dataclass(frozen=True, slots=True)
class _BatchSending:
    """A batch on its way into the queue."""

    topic: TopicState
    pending: PendingBatch
    stamper: Stamper | None
    stated: npt.NDArray[np.int32] | None
    """Per row of the call."""

    def item(self, batch: NormalBatch, partitions: npt.NDArray[np.int32], piece: Piece, first_row: int, accept_us: int) -> BatchItem:
        """The piece of one Arrow batch, which begins at `first_row` of the call; made under the queue's lock."""
        rows = slice(piece.start, piece.end)
        row = first_row + piece.start
        stamp = sequences = None
        if self.stamper is not None:
            of_call = slice(row, first_row + piece.end)
            stated = None if self.stated is None else self.stated[of_call]
            stamp, sequences = self.stamper.stamp_rows(self.topic.topic_id, partitions[rows], stated)
            assert self.pending.sequences is not None, "made with the stamper"
            self.pending.sequences[of_call] = sequences
        self.pending.expect(row)
        item = BatchItem(
            topic=self.topic,
            columns=batch.columns.slice(piece.start, piece.end - piece.start),
            row_bytes=batch.raw_bytes[rows],
            partitions=partitions[rows],
            raw_bytes=piece.raw_bytes,
            cost=piece.cost,
            accept_us=accept_us,
            first_row=row,
            pending=self.pending,
            stamp=stamp,
            sequences=sequences,
            stated=self.stated is not None,
            source=self.stamper,
            generation=0 if self.stamper is None else self.stamper.generation,
        )
        if self.stamper is not None:
            self.stamper.queued(item)
        return item


def stated_sequences(sequence: int | Sequence[int] | npt.NDArray[np.int32], partitions: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """The sequence numbers that a caller states, per row; raises `InvalidInput`."""
    if isinstance(sequence, int):
        if len(np.unique(partitions)) > 1:
            raise InvalidInput("the rows go to several partitions, and sequence numbers count per partition: state one for each row")
        return ((check_sequence(sequence) + np.arange(len(partitions), dtype=np.int64)) % SEQUENCE_COUNT).astype(np.int32)
    numbers = np.asarray(sequence)
    if numbers.shape != partitions.shape or not np.issubdtype(numbers.dtype, np.integer):
        raise InvalidInput(f"{len(numbers)} sequence numbers were stated for {len(partitions)} rows; one whole number per row is needed")
    for number in (numbers.min(), numbers.max()) if len(numbers) else ():
        check_sequence(int(number))
    return numbers.astype(np.int32)


def check_sequence(sequence: int) -> int:
    """The number, if it can be one; raises `InvalidInput`."""
    if not 0 <= sequence < SEQUENCE_COUNT:
        raise InvalidInput(f"{sequence} is no sequence number; they go from 0 to {SEQUENCE_COUNT - 1}")
    return sequence
