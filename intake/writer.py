"""The intake writer: collects records, stores them in intake files, names the files in the intake log, then acknowledges.

Promises: a record is acknowledged `ok` only after its file is stored *and* its entry is in the log; `failed` only if its entry is certainly
not there; else `unknown`. Records of one partition that one thread sends get offsets in the order of sending. One background thread
writes, so a flush of unknown outcome is settled (by the sequencer) before a later one is appended. Memory is bounded by
`queue_bytes_max`. A key is never used twice: an upload whose entry failed stays behind and is nobody's.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from archiver import failpoints
from archiver.clock import Clock
from archiver.errors import ArchiverError, NotFound, OutcomeUnknown, RetryLater
from archiver.ids import IdSource, new_ulid
from archiver.objects.once import create_once
from archiver.objects.paths import intake_key
from archiver.objects.store import ObjectStore
from intake.accept_clock import AcceptClock
from intake.acknowledgements import NO_OFFSET, OK, PendingBatch, PendingRecord, Verdict
from intake.batcher import ROW_COST_BYTES, BatchItem, FlushQueue, Item, Piece, RecordItem, cut_rows
from intake.encode import Part, SortedFlush
from intake.fold import TopicState
from intake.layout import Int64Array
from intake.placement import Placement
from intake.records import NormalBatch, Record, normalise_batch, validate, weight_of
from intake.sequencer import Sequencer

_log = logging.getLogger(__name__)


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
    def close_timeout(self) -> float:
        """How long closing, flushing, and a sender before a full queue wait."""

    @property
    def row_group_bytes(self) -> int:
        """Raw bytes at which a row group closes."""


class IntakeWriter:
    """Sends records of any topics and partitions. Thread-safe; close it, or use it as a context manager."""

    def __init__(self, objects: ObjectStore, sequencer: Sequencer, settings: WriterSettings, clock: Clock, ids: IdSource) -> None:
        self._objects = objects
        self._sequencer = sequencer
        self._settings = settings
        self._clock = clock
        self._ids = ids
        sequencer.refresh()
        self._accept_clock = AcceptClock(clock, settings.clock_skew_max)
        self._queue = FlushQueue(clock, settings.delay_max, settings.delay_max_bytes, settings.queue_bytes_max)
        self._placement = Placement(ids)
        self._in_work: Sequence[Item] = ()
        self._thread = threading.Thread(target=self._run, name="intake-writer", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, topic: str, record: Record, partition: int | None = None) -> PendingRecord:
        """Hand over one record; returns at once if there is room.

        Raises `NotFound` (topic or partition), `RecordRefused`, or `RetryLater` (no room within `close_timeout`, or a clock that runs
        ahead): then nothing was sent.
        """
        state = self._topic(topic)
        raw_bytes = validate(record, self._settings.record_bytes_max)
        cost = weight_of(record, raw_bytes) + ROW_COST_BYTES
        pending = PendingRecord(topic, self._placement.of_record(state, record, raw_bytes, partition), self._queue.changed)

        def make() -> RecordItem:
            return RecordItem(state, record, raw_bytes, cost, self._accept_us(), pending)

        self._queue.put(raw_bytes, cost, self._settings.close_timeout, make)
        return pending

    def send_batch(self, topic: str, batch: pa.Table | pa.RecordBatch, partition: int | None = None) -> PendingBatch:
        """Hand over many records at once; see `RECORD_SCHEMA` for the columns.

        `partition` holds for every row; else the batch's own column `partition`, else the key decides. Rows of one partition become one
        producer's batch. Raises as `send`; then nothing was sent. If the room ends halfway, the rows that found none are acknowledged
        as failed.
        """
        state = self._topic(topic)
        batches = batch.to_batches() if isinstance(batch, pa.Table) else [batch]
        normal = [normalise_batch(piece, self._settings.record_bytes_max) for piece in batches]
        placed = [self._placement.of_rows(state, piece, partition) for piece in normal]
        partitions = np.concatenate(placed) if placed else np.zeros(0, np.int32)
        pending = PendingBatch(topic, partitions, self._queue.changed)
        first_row = 0
        for piece, rows in zip(normal, placed, strict=True):
            if not self._send_pieces(state, piece, rows, first_row, pending):
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
        self._settle_all(abandoned, Verdict("failed", late))
        with self._queue.changed:
            in_work = self._in_work
        self._settle_all(in_work, Verdict("unknown", late))
        raise RetryLater(f"{late}; {len(abandoned)} sent items failed, {len(in_work)} are unknown")

    def _topic(self, name: str) -> TopicState:
        state = self._sequencer.fold.topics_by_name.get(name)
        if state is None:
            state = self._sequencer.refresh().topics_by_name.get(name)
        if state is None:
            raise NotFound(f"there is no topic {name!r}; add it to topics in the configuration")
        return state

    def _accept_us(self) -> int:
        return self._accept_clock.accept_us(self._sequencer.fold.newest_us)

    def _send_pieces(
        self, topic: TopicState, batch: NormalBatch, partitions: npt.NDArray[np.int32], first_row: int, pending: PendingBatch
    ) -> bool:
        """Queue one Arrow batch in pieces of a flush; False if it did not all go in (the rest is settled as failed)."""
        settings = self._settings
        for piece in cut_rows(batch.raw_bytes, batch.weights, settings.delay_max_bytes, settings.queue_bytes_max):
            row = first_row + piece.start

            def make(piece: Piece = piece, row: int = row) -> BatchItem:
                accept_us = self._accept_us()
                pending.expect(row)
                columns = batch.columns.slice(piece.start, piece.end - piece.start)
                rows = slice(piece.start, piece.end)
                return BatchItem(
                    topic, columns, batch.raw_bytes[rows], partitions[rows], piece.raw_bytes, piece.cost, accept_us, row, pending
                )

            try:
                self._queue.put(piece.raw_bytes, piece.cost, settings.close_timeout, make)
            except ArchiverError as error:
                if row == 0:
                    raise
                self._fail_rest(pending, row, error)
                return False
        return True

    def _fail_rest(self, pending: PendingBatch, row: int, error: ArchiverError) -> None:
        with self._queue.changed:
            rows = len(pending.partitions) - row
            pending.expect(row)
            pending.settle(row, np.full(rows, NO_OFFSET, np.int64), np.zeros(rows, np.int32), [Verdict("failed", str(error))])

    def _run(self) -> None:
        while items := self._queue.take():
            with self._queue.changed:
                self._in_work = items
            try:
                self._write(items)
            except Exception as error:  # noqa: BLE001
                # The head of the loop: whatever it was, its records are settled (as unknown, which is always true) and the writer goes on.
                _log.exception("a flush of %d items ended in an error nobody expected", len(items))
                self._settle_all(items, Verdict("unknown", f"{type(error).__name__}: {error}"))
            self._in_work = ()
            self._queue.done(items)

    def _write(self, items: Sequence[Item]) -> None:
        try:
            flush = SortedFlush(items)
            parts = flush.parts(self._sequencer.entry_bytes_max)
        except (pa.ArrowException, MemoryError) as error:
            self._settle_all(items, Verdict("failed", f"the records could not be laid out: {error}"))
            return
        offsets: Int64Array = np.full(flush.rows, NO_OFFSET, np.int64)
        verdict_of: npt.NDArray[np.int32] = np.zeros(flush.rows, np.int32)
        verdicts: list[Verdict] = []
        for part in parts:
            sorted_offsets, verdict = self._publish(flush, part)
            rows = flush.order[part.first_row : part.end_row]
            offsets[rows] = sorted_offsets
            verdict_of[rows] = len(verdicts)
            verdicts.append(verdict)
        self._settle(items, offsets, verdict_of, verdicts)

    def _publish(self, flush: SortedFlush, part: Part) -> tuple[Int64Array, Verdict]:
        """Upload one file and append its entry; the offsets of its rows in file order, and what became of it."""
        none: Int64Array = np.full(part.end_row - part.first_row, NO_OFFSET, np.int64)
        try:
            file = flush.encode(part, self._settings.row_group_bytes)
            failpoints.reach("writer.upload.before")
            written_us = self._accept_clock.check(self._sequencer.fold.newest_us)
            key = intake_key(written_us, new_ulid(self._ids, written_us))
            create_once(self._objects, key, file.data)
            failpoints.reach("writer.upload.after")
            failpoints.reach("writer.append.before")
        except Exception as error:  # noqa: BLE001
            # No entry was tried, so whatever it was, these records are certainly not in the log.
            return none, _verdict("failed", "the intake file could not be stored", error)
        try:
            landed = self._sequencer.append_file(key, len(file.data), file.footer_sha256, file.segments)
        except OutcomeUnknown as error:
            return none, _verdict("unknown", f"nobody knows whether {key} is in the intake log", error)
        except ArchiverError as error:
            return none, _verdict("failed", f"{key} could not be named in the intake log", error)
        try:
            failpoints.reach("writer.append.after")
        except ArchiverError as error:
            return none, _verdict("unknown", f"{key} was appended, and then", error)
        bases = np.array([one.runs[0][0] for one in landed], np.int64)
        rows = np.array([one.rows for one in landed], np.int64)
        firsts = flush.starts[part.first_segment : part.end_segment] - part.first_row
        return np.arange(len(none), dtype=np.int64) + np.repeat(bases - firsts, rows), OK

    def _settle_all(self, items: Sequence[Item], verdict: Verdict) -> None:
        rows = sum(item.rows for item in items)
        self._settle(items, np.full(rows, NO_OFFSET, np.int64), np.zeros(rows, np.int32), [verdict])

    def _settle(self, items: Sequence[Item], offsets: Int64Array, verdict_of: npt.NDArray[np.int32], verdicts: list[Verdict]) -> None:
        with self._queue.changed:
            row = 0
            for item in items:
                end = row + item.rows
                if isinstance(item, RecordItem):
                    item.pending.settle(int(offsets[row]), verdicts[verdict_of[row]])
                else:
                    item.pending.settle(item.first_row, offsets[row:end], verdict_of[row:end], verdicts)
                row = end
            self._queue.changed.notify_all()


def _verdict(outcome: str, what: str, error: Exception) -> Verdict:
    why = str(error) if isinstance(error, ArchiverError) else f"{type(error).__name__}: {error}"
    _log.warning("%s: %s", what, why)
    return Verdict("unknown" if outcome == "unknown" else "failed", f"{what}: {why}")
