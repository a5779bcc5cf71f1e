"""The intake writer: senders put records into a bounded queue from any thread, and one thread flushes them.

Every record that `send` accepted is acknowledged, with the outcome that `intake.write.flush` determined.
Records of one partition that one thread sends get offsets in the order of sending. Because one thread
flushes, the sequencer resolves a flush of unknown outcome before it appends a later one. `queue_bytes_max`
bounds the memory: a sender waits while the queue is full.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from archiver.config.groups import IntakeSettings
from archiver.objects.store import ObjectStore
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError, InvalidInput, NotFound, RecordRefused, RetryLater, no_topic
from archiver.runtime.ids import IdSource
from intake.log.fold import TopicState
from intake.log.sequencer import Sequencer
from intake.record_json import Input
from intake.records import NormalBatch, Record, normalise_batch, raw_bytes_of, validate, weight_of
from intake.write.accept_clock import AcceptClock
from intake.write.acknowledgements import (
    NO_OFFSET,
    NO_SEQUENCE,
    FlushOutcome,
    PendingBatch,
    PendingParts,
    PendingReceived,
    PendingRecord,
)
from intake.write.flush import FlushWriter
from intake.write.metrics import WriterMetrics
from intake.write.partitioner import Placement
from intake.write.queue import (
    ROW_COST_BYTES,
    BatchItem,
    FlushQueue,
    Item,
    Piece,
    ReceivedBatch,
    RecordItem,
    cut_rows,
)
from intake.write.received import MeasuredBatch, ReceivedPart, has_passed, kept
from intake.write.sequences import ProducerSession, stated_sequences
from intake.write.topic_lookup import TopicLookup
from intake.write.validation import (
    Admitted,
    Divided,
    Judge,
    Rows,
    SentAgain,
    admit,
    admit_all,
    divide,
    refusal,
    refuse_rows,
    refuse_whole,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _BatchSending:
    """A batch on its way into the queue."""

    topic: TopicState
    pending: PendingBatch
    stamper: ProducerSession | None
    stated: npt.NDArray[np.int32] | None
    """Per row of the call."""

    def item(
        self,
        batch: NormalBatch,
        partitions: npt.NDArray[np.int32],
        piece: Piece,
        first_row: int,
        accept_us: int,
    ) -> BatchItem:
        """One piece of an Arrow batch that begins at row `first_row` of the call. Call it under the queue's
        lock.
        """
        rows = slice(piece.start, piece.end)
        row = first_row + piece.start
        stamp = sequences = None
        if self.stamper is not None:
            of_call = slice(row, first_row + piece.end)
            stated = None if self.stated is None else self.stated[of_call]
            stamp, sequences = self.stamper.stamp_rows(self.topic.topic_id, partitions[rows], stated)
            assert self.pending.sequences is not None, "made with the stamper"
            self.pending.sequences[of_call] = sequences
        # Under the lock that also guards the queue, so no outcome can come before this.
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


class IntakeWriter:
    """Sends records to any topic and partition. Thread-safe. Close it, or use it as a context manager."""

    def __init__(
        self,
        objects: ObjectStore,
        sequencer: Sequencer,
        settings: IntakeSettings,
        clock: Clock,
        ids: IdSource,
        judge: Judge | None = None,
    ) -> None:
        """`judge` checks whether records decode; without one, no record is checked."""
        self._sequencer = sequencer
        self._judge = judge
        self._topic_lookup = TopicLookup(sequencer, clock)
        self._settings = settings
        # Read the log now, so that an unreadable log stops the start and not the first record.
        sequencer.refresh()
        self._accept_clock = AcceptClock(clock, settings.clock_skew_max, settings.clock_settle)
        self._queue = FlushQueue(
            clock, settings.delay_max, settings.delay_max_bytes, settings.queue_bytes_max
        )
        self._placement = Placement(ids)
        self._publisher = FlushWriter(
            objects,
            sequencer,
            settings.row_group_bytes,
            clock,
            ids,
            self._accept_clock,
            held_max_s=settings.producer_idle_min / 8,
        )
        self._in_work: Sequence[Item] = ()
        self._stored_encoded: dict[str, bool] = {}
        """How the last batch of a client was stored, by topic."""
        # Last: the thread uses everything above.
        self._thread = threading.Thread(target=self._run, name="intake-writer", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(
        self,
        topic: str,
        record: Record,
        partition: int | None = None,
        *,
        stamper: ProducerSession | None = None,
        sequence: int | None = None,
    ) -> PendingRecord:
        """Queue one record; returns at once if the queue has room.

        `stamper` is the idempotent producer that sends it; `sequence` is its number if it is sent again.
        Raises `NotFound` (topic or partition), `RecordRefused`, or `RetryLater` (no room within
        `close_timeout`, a clock that runs ahead, or an unknown schema). After an error nothing was sent. A
        record that goes to a DLQ topic carries no producer, unless it is in a transaction.
        """
        state = self._topic(topic)
        raw_bytes = validate(record, self._settings.record_bytes_max)
        state, place = self._placed(state, record, raw_bytes, partition)
        # Before the record is numbered or takes room: a refused one must leave no hole in the sequence
        # numbers.
        if self._judge is not None and self._judge.checks(topic):
            admitted = self._admitted(self._judge, state, record, place, stamper, sequence)
            if admitted.topic != topic:
                # A sequence number counts only in the topic that the record was sent to.
                state, sequence = self._topic(admitted.topic), None
                # Outside a transaction it carries no producer: its sender could not state a number of the DLQ
                # topic in a retry.
                stamper = stamper if stamper is not None and stamper.transactional_id else None
            record, place = admitted.record, admitted.partition
            # Again, because validation may have added an envelope or headers.
            raw_bytes = raw_bytes_of(record)
        cost = weight_of(record, raw_bytes) + ROW_COST_BYTES
        pending = PendingRecord(state.name, place, self._queue.changed)

        # Runs under the queue's lock: accept times and sequence numbers must follow the order of the queue.
        def make() -> RecordItem:
            accept_us = self._accept_us()
            if stamper is None:
                return RecordItem(state, record, raw_bytes, cost, accept_us, pending)
            stamp = stamper.stamp((state.topic_id, pending.partition), sequence)
            pending.sequence = stamp.sequence
            item = RecordItem(
                state,
                record,
                raw_bytes,
                cost,
                accept_us,
                pending,
                stamp,
                sequence is not None,
                stamper,
                stamper.generation,
            )
            stamper.queued(item)
            return item

        self._queue.put(raw_bytes, cost, self._settings.close_timeout, make)
        return pending

    def try_send(self, inputs: Sequence[Input], on_done: Callable[[], None]) -> list[PendingRecord] | None:
        """Queue all of these records or none, without waiting; None if the queue has no room for all of them
        now.

        `on_done` is called once per record when its outcome is known, under the writer's lock. A record that
        fails validation with `reject` fails by itself; the others are queued. After an error nothing was
        sent. Raises `NotFound` or `RecordRefused` that names the place in the input. Raises `InvalidInput` if
        the records can never fit into the queue. Raises `RetryLater` for a clock that runs ahead or an
        unknown schema, `Halt` if the writer is closed.
        """
        admitted: list[Admitted] = []
        for item in inputs:
            state = self._topic(item.topic)
            try:
                raw_bytes = validate(item.record, self._settings.record_bytes_max)
                _, partition = self._placed(state, item.record, raw_bytes, item.partition)
            except InvalidInput as error:
                raise type(error)(f"{item.where}: {error}") from error
            admitted.append(Admitted(item.topic, partition, item.record))
        if self._judge is not None:
            # Do not wait for a schema: the callers are HTTP requests, and they get `RetryLater` instead.
            admitted = admit_all(self._judge, admitted, 0.0, self._partitions_elsewhere)
        sized: list[tuple[TopicState, Record, int, int, PendingRecord]] = []
        answers: list[PendingRecord] = []
        refused: list[tuple[PendingRecord, FlushOutcome]] = []
        for item, one in zip(inputs, admitted, strict=True):
            pending = PendingRecord(one.topic, one.partition, self._queue.changed, on_done)
            answers.append(pending)
            if one.refused is not None:
                refused.append(
                    (pending, FlushOutcome("failed", f"{item.where}: {one.refused}", refused=True))
                )
                continue
            raw_bytes = raw_bytes_of(one.record)
            cost = weight_of(one.record, raw_bytes) + ROW_COST_BYTES
            sized.append((self._topic(one.topic), one.record, raw_bytes, cost, pending))
        cost = sum(one[3] for one in sized)
        # The records are queued together, so a larger request would exceed the memory bound.
        if cost > self._settings.queue_bytes_max:
            raise InvalidInput(
                f"{len(sized)} records at once take {cost} bytes of the queue's room, more than "
                f"intake.queue_bytes_max = {self._settings.queue_bytes_max}; send fewer at a time"
            )

        def make() -> list[RecordItem]:
            accept_us = self._accept_us()
            return [
                RecordItem(state, record, raw, cost, accept_us, pending)
                for state, record, raw, cost, pending in sized
            ]

        if sized and not self._queue.try_put_all(sum(one[2] for one in sized), cost, make):
            return None
        with self._queue.changed:
            # Only once the others are queued: without room for them, the caller sends all of it again.
            for pending, verdict in refused:
                pending.set_outcome(NO_OFFSET, verdict)
        return answers

    def send_batch(
        self,
        topic: str,
        batch: pa.Table | pa.RecordBatch,
        partition: int | None = None,
        *,
        stamper: ProducerSession | None = None,
        sequence: int | Sequence[int] | npt.NDArray[np.int32] | None = None,
    ) -> PendingBatch:
        """Queue many records at once; `RECORD_SCHEMA` lists the columns.

        `partition` holds for every row; else the batch's own column `partition`, else the key decides. Rows
        of one partition become one producer batch.

        `sequence` is the number of the first row, or one number per row. The first form requires that all
        rows are of one partition and that each decodes, because rows that do not decode have no number
        (`InvalidInput`). In the second form -1 marks a row that had no number; it is left out.

        Raises as `send`; then nothing was sent. If the queue fills up halfway, the remaining rows are
        acknowledged as failed. A row that fails validation with `reject` fails by itself and the others are
        queued; in a transaction the whole batch is refused.
        """
        state = self._topic(topic)
        batches = batch.to_batches() if isinstance(batch, pa.Table) else [batch]
        normal = [normalise_batch(piece, self._settings.record_bytes_max) for piece in batches]
        try:
            placed = [self._placement.of_rows(state, piece, partition) for piece in normal]
        except NotFound:
            state = self._grown(topic)
            placed = [self._placement.of_rows(state, piece, partition) for piece in normal]
        partitions = np.concatenate(placed) if placed else np.zeros(0, np.int32)
        stated = None if sequence is None else stated_sequences(sequence, partitions)
        everything = Rows(np.arange(len(partitions)), normal, placed)
        divided = self._divided(state, everything, stamper, stated, counted=isinstance(sequence, int))
        if divided is not None:
            return self._send_divided(state, partitions, divided, stamper, stated)
        return self._send_rows(state, partitions, everything, stamper, stated)

    def send_received(
        self, batch: ReceivedBatch, on_done: Callable[[], None], waited_s: float = 0.0
    ) -> PendingReceived:
        """Queue a client's batch as a whole: its records get consecutive offsets, or none of them is stored.

        Records that validation sends to a DLQ topic are stored there first, and the others have consecutive
        offsets without them. Of a batch whose sequence numbers the log has passed, nothing goes there again.

        Waits for room in the queue, at most `close_timeout`. `on_done` is called once when the outcome of all
        rows is known, under the writer's lock. The client's sequence numbers may have been sent before.
        `delay_max` includes the `waited_s` for which the batch waited before.
        Raises `RowsRefused`, or `RecordRefused` for a batch that can never be stored; `NotFound`,
        `RetryLater`, `Halt` as `send`. After an error nothing was sent.
        """
        state = self._known_topic(batch.topic.name)
        self._finish_other_kind(state.name, encoded=False)
        try:
            normal = normalise_batch(batch.columns, self._settings.record_bytes_max)
        except InvalidInput as error:
            raise RecordRefused(str(error)) from error
        partitions = np.full(batch.columns.num_rows, batch.partition, np.int32)
        divided = None
        if self._judge is not None and self._judge.checks(state.name):
            divided = self._divided_received(self._judge, batch, normal, partitions)
        parts = [ReceivedPart(state, normal, partitions, batch.stamp)]
        if divided is not None:
            # Those for DLQ topics come first: what a client repeats is not sent there again once the log has
            # passed its numbers.
            parts = [
                ReceivedPart(self._topic(name), rows.batches[0], rows.partitions, None)
                for name, rows in divided.elsewhere.items()
            ]
            parts += kept(state, batch, divided.here)
        raw_bytes = sum(part.raw_bytes for part in parts)
        cost = sum(part.cost for part in parts)
        if cost > self._settings.queue_bytes_max:
            raise RecordRefused(
                f"a batch of {len(partitions)} records takes {cost} bytes of the queue's room, more than "
                f"intake.queue_bytes_max = {self._settings.queue_bytes_max}; send smaller batches"
            )
        left = len(parts)

        def part_done() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                on_done()

        pending = [
            PendingBatch(part.topic.name, part.partitions, self._queue.changed, part_done) for part in parts
        ]
        elsewhere = [one for one, part in zip(pending, parts, strict=True) if part.topic is not state]
        own = pending[-1] if parts[-1].topic is state else None

        def make() -> list[BatchItem]:
            # Each part is one piece: a flush between two pieces would let other records in between.
            accept_us = self._accept_us()
            return [
                part.item(one, accept_us, elsewhere if one is own else ())
                for part, one in zip(parts, pending, strict=True)
            ]

        self._queue.put_all(raw_bytes, cost, self._settings.close_timeout, make, waited_s)
        return PendingReceived(own, elsewhere)

    def stores_encoded(self, topic: str) -> bool:
        """Whether record batches of the topic are stored as they came: no validation needs their records."""
        return self._judge is None or not self._judge.checks(topic)

    def send_encoded(
        self, batch: MeasuredBatch, on_done: Callable[[], None], waited_s: float = 0.0
    ) -> PendingReceived:
        """Queue a client's record batch, to be stored as it came; only of a topic that `stores_encoded`.

        Its records get consecutive offsets, or none of them is stored. All else is as for `send_received`.
        """
        state = self._known_topic(batch.topic.name)
        self._finish_other_kind(state.name, encoded=True)
        batch.check(self._settings.record_bytes_max, self._settings.queue_bytes_max)
        place = np.full(1, batch.partition, np.int32)
        pending = PendingBatch(state.name, place, self._queue.changed, on_done)
        self._queue.put(
            batch.sizes.raw_bytes,
            batch.cost,
            self._settings.close_timeout,
            lambda: batch.item(state, pending, self._accept_us()),
            waited_s,
        )
        return PendingReceived(pending, ())

    def _finish_other_kind(self, topic: str, *, encoded: bool) -> None:
        """Write what clients sent before, if it is stored in another way than what comes now: within a flush,
        a file has rows before batches. Raises `RetryLater` if it is not written in time.
        """
        # Only the thread of the listener sends batches, so no other batch comes in between.
        if self._stored_encoded.get(topic, encoded) != encoded:
            self.flush()
        self._stored_encoded[topic] = encoded

    def _divided_received(
        self, judge: Judge, batch: ReceivedBatch, normal: NormalBatch, partitions: npt.NDArray[np.int32]
    ) -> Divided | None:
        """The batch divided by validation, or None if it is queued unchanged; raises `RowsRefused`,
        `RetryLater`.
        """
        # A repetition: the log stores nothing of it again, so it needs no validation.
        if has_passed(batch, self._sequencer.fold.producers):
            return None
        name = batch.topic.name
        # Without a wait: one unknown schema must not hold back the batches of all other topics.
        divided = divide(judge, name, [normal], [partitions], 0.0, self._partitions_elsewhere)
        if divided is None or not len(divided.found):
            return divided
        if batch.stamp is not None:
            # An entry of unknown outcome, or of another process, may have the batch. Then it must not be
            # refused, and its records are in the DLQ topic.
            self._sequencer.resolve()
            if has_passed(batch, self._sequencer.fold.producers):
                return None
        refuse_rows(name, divided.refused)
        return divided

    def _divided(
        self,
        state: TopicState,
        rows: Rows,
        stamper: ProducerSession | None,
        stated: npt.NDArray[np.int32] | None,
        *,
        counted: bool,
    ) -> Divided | None:
        """The rows of a call divided by validation, or None if all are queued unchanged; raises as
        `send_batch`.

        `counted`: the caller stated the number of the first row only.
        """
        judge = self._judge if self._judge is not None and self._judge.checks(state.name) else None
        parts = (
            state.name,
            rows.batches,
            rows.placed,
            self._settings.close_timeout,
            self._partitions_elsewhere,
        )
        # Without stated numbers nothing was sent before, so every row is validated.
        if stated is None or stamper is None:
            return None if judge is None else divide(judge, *parts)
        partitions, unnumbered = rows.partitions, stated == NO_SEQUENCE
        if stamper.transactional_id and unnumbered.any():
            raise InvalidInput(
                f"row {int(unnumbered.argmax())} has no sequence number, and no row of a transaction "
                "may be left out; nothing was sent. "
                "Send the rows that have numbers, or abort and send all of them in another transaction"
            )
        # A number that the log has passed is a repetition: nothing of it is stored, so it is not validated.
        in_log = np.zeros(len(partitions), bool)
        # With only the first number stated, every row must decode: a refused row had no number.
        if judge is not None and not counted:
            in_log = self._in_log(state, partitions, stated, unnumbered, stamper)
        divided = divide(None if in_log.all() else judge, *parts, SentAgain(in_log, unnumbered))
        if divided is None:
            return None
        found = divided.found[~unnumbered[divided.found]]
        if counted and len(found):
            raise InvalidInput(
                f"row {found.min()} does not decode, so it may have had no sequence number, and the "
                "rows after it may have had other numbers; nothing was sent. "
                "State one number per row, from PendingBatch.sequences"
            )
        with self._queue.changed:
            # These rows are not in the log and are not sent with these numbers again: nothing waits for them.
            stamper.given_up(state.topic_id, partitions[found], stated[found])
        return divided

    def _in_log(
        self,
        state: TopicState,
        partitions: npt.NDArray[np.int32],
        stated: npt.NDArray[np.int32],
        unnumbered: npt.NDArray[np.bool_],
        stamper: ProducerSession,
    ) -> npt.NDArray[np.bool_]:
        """Which rows the log has passed, after an entry of unknown outcome is resolved. Raises `RetryLater`
        if it cannot be resolved.
        """
        in_log = stamper.in_log(state.topic_id, partitions, stated) & ~unnumbered
        if not (in_log | unnumbered).all():
            # An entry of unknown outcome may hold the other rows. Resolve it first: a row that is in the log
            # must not be reported as refused.
            self._sequencer.resolve()
            in_log = stamper.in_log(state.topic_id, partitions, stated) & ~unnumbered
        return in_log

    def _send_rows(
        self,
        state: TopicState,
        partitions: npt.NDArray[np.int32],
        rows: Rows,
        stamper: ProducerSession | None,
        stated: npt.NDArray[np.int32] | None,
    ) -> PendingBatch:
        """Queue rows unchanged; raises as `send_batch`."""
        pending = PendingBatch(state.name, partitions, self._queue.changed)
        if stamper is not None:
            pending.sequences = np.full(len(partitions), NO_SEQUENCE, np.int32)
        sending = _BatchSending(state, pending, stamper, stated)
        first_row = 0
        for piece, places in zip(rows.batches, rows.placed, strict=True):
            # The remaining rows have failed by now, and no later piece may follow them.
            if not self._send_pieces(sending, piece, places, first_row):
                break
            first_row += len(places)
        with self._queue.changed:
            # Wake waiting threads: the last piece may have been acknowledged before this.
            pending.admitted()
            self._queue.changed.notify_all()
        return pending

    def _send_divided(
        self,
        state: TopicState,
        partitions: npt.NDArray[np.int32],
        divided: Divided,
        stamper: ProducerSession | None,
        stated: npt.NDArray[np.int32] | None,
    ) -> PendingBatch:
        """Queue rows that go to several topics; raises as `send_batch`."""
        in_transaction = stamper is not None and bool(stamper.transactional_id)
        if in_transaction:
            # Without its refused rows the transaction could be committed in part.
            refuse_whole(state.name, divided.refused)
        whole = PendingParts(state.name, partitions, self._queue.changed, numbered=stamper is not None)
        whole.refuse({row: refusal(state.name, finding) for row, finding in divided.refused.items()})
        if len(divided.left_out):
            elsewhere = self._judge is not None and bool(self._judge.elsewhere(state.name))
            whole.leave_out(divided.left_out, perhaps_elsewhere=elsewhere)
        here = divided.here
        if len(here.rows):
            numbers = None if stated is None else stated[here.rows]
            whole.add(here.rows, self._send_rows(state, here.partitions, here, stamper, numbers))
        for topic, rows in divided.elsewhere.items():
            try:
                part = self._send_rows(
                    self._topic(topic), rows.partitions, rows, stamper if in_transaction else None, None
                )
            except ArchiverError as error:
                # Nothing is queued yet, so the whole call counts as not sent.
                if not whole.parts:
                    raise
                # Other rows are queued already, so the call returns and these rows fail by themselves.
                whole.fail(rows.rows, str(error))
                if in_transaction and stamper is not None:
                    with self._queue.changed:
                        stamper.left_out()
            else:
                whole.add(rows.rows, part)
        return whole

    def check_topic(self, name: str) -> None:
        """Raise `NotFound` if the topic accepts no records, `RetryLater` if that is unknown now.

        May read the log, but not on every call, and never waits for another thread that reads it.
        """
        if name not in self._sequencer.fold.topics_by_name:
            self._topic_lookup.refresh()
        self._known_topic(name)

    def flush(self) -> None:
        """Write what was sent so far and wait for its outcome; `RetryLater` if that takes longer than
        `close_timeout`.
        """
        if not self._queue.flush(self._settings.close_timeout):
            raise RetryLater(
                "the writer has not finished within intake.close_timeout = "
                f"{self._settings.close_timeout:g} s; flush again"
            )

    def metrics(self) -> WriterMetrics:
        """The current numbers."""
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

        After `close_timeout`, items that no flush has started are acknowledged as failed, and items in the
        current flush as unknown. Then `RetryLater` is raised.
        """
        self._queue.close()
        self._thread.join(self._settings.close_timeout)
        if not self._thread.is_alive():
            return
        late = f"the writer was closed and did not finish within {self._settings.close_timeout:g} s"
        # No flush has started with these, so they are certainly not in the log.
        abandoned = self._queue.abandon()
        self._publisher.acknowledge_all(abandoned, FlushOutcome("failed", late))
        with self._queue.changed:
            in_work = self._in_work
        # The flush may still append them. The first outcome stays, so a later one is ignored.
        self._publisher.acknowledge_all(in_work, FlushOutcome("unknown", late))
        raise RetryLater(f"{late}; {len(abandoned)} sent items failed, {len(in_work)} are unknown")

    @property
    def sequencer(self) -> Sequencer:
        """The sequencer that this writer appends through."""
        return self._sequencer

    @property
    def settings(self) -> IntakeSettings:
        """The settings it was opened with."""
        return self._settings

    @property
    def lock(self) -> threading.Condition:
        """The queue's lock; the state of producers is read and changed under it."""
        return self._queue.changed

    def _topic(self, name: str) -> TopicState:
        if name not in self._sequencer.fold.topics_by_name:
            # Another process may have declared it since the last read.
            self._sequencer.refresh()
        return self._known_topic(name)

    def _placed(
        self, state: TopicState, record: Record, raw_bytes: int, asked: int | None
    ) -> tuple[TopicState, int]:
        """The topic as of now, and the partition of a record; `NotFound` if the requested one is unknown."""
        try:
            return state, self._placement.of_record(state, record, raw_bytes, asked)
        except NotFound:
            state = self._grown(state.name)
            return state, self._placement.of_record(state, record, raw_bytes, asked)

    def _grown(self, name: str) -> TopicState:
        """The topic as of now: another process may have added partitions since the last read of the log."""
        self._topic_lookup.refresh()
        return self._known_topic(name)

    def _known_topic(self, name: str) -> TopicState:
        state = self._sequencer.fold.topics_by_name.get(name)
        if state is None and self._sequencer.fold.deleted_named(name) is not None:
            raise NotFound(
                f"topic {name} was deleted; `archiver topics create {name}` makes a new one of that name"
            )
        if state is None:
            raise no_topic(name, self._sequencer.fold.topics_by_name)
        if state.mirrored:
            raise InvalidInput(f"topic {name} is mirrored: only its Kafka source writes to it")
        return state

    def _admitted(
        self,
        judge: Judge,
        state: TopicState,
        record: Record,
        partition: int,
        stamper: ProducerSession | None,
        sequence: int | None,
    ) -> Admitted:
        """One record after validation; raises `RecordRefused`, or `RetryLater` if that is impossible now."""
        again = (
            None
            if sequence is None or stamper is None
            else (np.array([partition], np.int32), np.array([sequence], np.int32))
        )
        if (
            again is not None
            and stamper is not None
            and self._in_log(state, *again, np.zeros(1, bool), stamper).all()
        ):
            # A repetition: the log stores nothing of it again, so it needs no validation.
            return Admitted(state.name, partition, record)
        wait_s = self._settings.close_timeout
        (admitted,) = admit(judge, state.name, [record], [partition], wait_s, self._partitions_elsewhere)
        if (
            again is not None
            and stamper is not None
            and (admitted.refused is not None or admitted.topic != state.name)
        ):
            with self._queue.changed:
                stamper.given_up(state.topic_id, *again)
        if admitted.refused is not None:
            raise RecordRefused(admitted.refused)
        return admitted

    def _partitions_elsewhere(self, topic: str) -> int:
        """The number of partitions of a DLQ topic. `RetryLater` if the topic does not exist, because its
        records must not be lost.
        """
        try:
            return self._topic(topic).partitions
        except NotFound as error:
            raise RetryLater(
                f"a record does not decode, and its DLQ topic does not exist: {error}; nothing was sent"
            ) from error

    def _accept_us(self) -> int:
        return self._accept_clock.accept_us(self._sequencer.fold.newest_us)

    def _send_pieces(
        self, sending: _BatchSending, batch: NormalBatch, partitions: npt.NDArray[np.int32], first_row: int
    ) -> bool:
        """Queue one Arrow batch in pieces the size of a flush. False if not all of it was queued; the rest
        has failed.
        """
        settings = self._settings
        for piece in cut_rows(
            batch.raw_bytes, batch.weights, settings.delay_max_bytes, settings.queue_bytes_max
        ):

            def make(piece: Piece = piece) -> BatchItem:
                return sending.item(batch, partitions, piece, first_row, self._accept_us())

            row = first_row + piece.start
            try:
                self._queue.put(piece.raw_bytes, piece.cost, settings.close_timeout, make)
            except ArchiverError as error:
                # Nothing was queued yet, so the whole call counts as not sent.
                if row == 0:
                    raise
                self._fail_rest(sending, row, error)
                return False
        return True

    def _fail_rest(self, sending: _BatchSending, row: int, error: ArchiverError) -> None:
        with self._queue.changed:
            pending = sending.pending
            rows = len(pending.partitions) - row
            # All remaining rows count as one piece, which fails at once.
            pending.expect(row)
            pending.set_outcome(
                row,
                np.full(rows, NO_OFFSET, np.int64),
                np.zeros(rows, np.int32),
                [FlushOutcome("failed", str(error))],
            )
            if sending.stamper is not None:
                sending.stamper.left_out()

    def _run(self) -> None:
        while items := self._queue.take():
            self._write(items)

    def _write(self, items: list[Item]) -> None:
        """Publish the items of one flush, and acknowledge them after any error."""
        with self._queue.changed:
            # `close` reads it under the lock to acknowledge what a flush still holds.
            self._in_work = items
        try:
            self._publisher.publish(items)
        except Exception as error:  # noqa: BLE001
            # The writer must survive any error. `unknown` is a correct outcome for every record.
            _log.exception("unexpected error in a flush of %d items", len(items))
            self._publisher.acknowledge_all(
                items, FlushOutcome("unknown", f"{type(error).__name__}: {error}")
            )
        self._in_work = ()
        self._queue.done(items)
