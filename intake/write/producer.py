"""An idempotent producer over an intake writer, with transactions if it has a transactional id.

The records of a transaction are all acknowledged before its marker is appended. A commit is appended only if
every record of the transaction is certainly stored. A marker of unknown outcome is resolved before any other
operation of the producer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from archiver.runtime.errors import (
    ArchiverError,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    ProducerFenced,
    RetryLater,
    TransactionFailed,
)
from archiver.runtime.ids import TopicPartition
from archiver.runtime.redaction import excerpt
from intake.producers import Refusal
from intake.records import Record
from intake.write.acknowledgements import PendingBatch, PendingRecord
from intake.write.sequences import ProducerSession, check_sequence
from intake.write.writer import IntakeWriter

_log = logging.getLogger(__name__)

TRANSACTIONAL_ID_BYTES_MAX = 1024
"""Every checkpoint stores the ids, so their length is bounded."""
ID_SHOWN_MAX = 40
"""Characters of a too long id in the error message."""


class Producer:
    """Sends records that are stored exactly once, however often they are sent. Thread-safe, but one thread
    handles a transaction.
    """

    def __init__(self, writer: IntakeWriter, producer_id: int, epoch: int, transactional_id: str) -> None:
        """For an id and epoch that are in the log; use `open` or `resume`."""
        self._writer = writer

        def log_expects(tp: TopicPartition) -> int | None:
            return writer.sequencer.fold.producers.next_sequence(tp, producer_id, epoch)

        self._session = ProducerSession(producer_id, epoch, transactional_id, log_expects)
        self._marker: bool | None = None
        """Whether a marker of unknown outcome was a commit; None if there is none."""

    @classmethod
    def open(
        cls, writer: IntakeWriter, transactional_id: str | None = None, *, transaction_timeout_s: float = 60.0
    ) -> Self:
        """A new producer, or the known one of that transactional id with its next epoch. The earlier epoch is
        fenced, and its open transaction is aborted.

        Raises `InvalidInput` for an unusable id or time-out, and `RetryLater` and `OutcomeUnknown` (open it
        again) from the log.
        """
        if transactional_id is not None:
            _check_transactional_id(transactional_id)
        longest = writer.settings.transaction_timeout_max
        if not 0 < transaction_timeout_s <= longest:
            raise InvalidInput(
                f"a transaction time-out of {transaction_timeout_s:g} s is not possible; it is more "
                "than 0 and at most "
                f"intake.transaction_timeout_max = {longest:g} s"
            )
        opened = writer.sequencer.open_producer(transactional_id or "", round(transaction_timeout_s * 1e6))
        return cls(writer, *opened, transactional_id or "")

    @classmethod
    def resume(cls, writer: IntakeWriter, producer_id: int, epoch: int) -> Self:
        """The producer that an earlier process opened; it continues after its newest record in the log.
        Writes nothing.

        Records that the earlier process sent without an acknowledgement must be sent again first, with their
        sequence numbers. Otherwise new records get the numbers of those that did not reach the log. An open
        transaction stays open: commit or abort it. The earlier process must not run any more. Raises
        `NotFound` for a producer that was forgotten or never opened, `ProducerFenced` if a newer epoch
        exists, `InvalidInput` for an epoch that never existed.
        """
        fold = writer.sequencer.refresh()
        known = fold.producers.get(producer_id)
        if known is None:
            raise NotFound(
                f"the intake log has no producer {producer_id}: it was never opened, or is "
                "forgotten; open a new one"
            )
        # A Kafka client raises its epoch by itself; the newest one of any partition is that of the client.
        newest = known.newest_epoch
        if epoch < newest:
            raise ProducerFenced(_fenced(producer_id, epoch))
        if epoch > newest:
            raise InvalidInput(
                f"producer {producer_id} has the epoch {newest}; there is no epoch {epoch} to resume"
            )
        producer = cls(writer, producer_id, epoch, known.transactional_id)
        if fold.transactions.get(producer_id) is not None:
            # Its records are not known here, so the transaction counts as written and gets a marker.
            producer._session.phase, producer._session.written = "open", True
        return producer

    @property
    def producer_id(self) -> int:
        """Its number; with `epoch` enough to resume it."""
        return self._session.producer_id

    @property
    def epoch(self) -> int:
        """Incremented whenever its transactional id is opened again."""
        return self._session.epoch

    @property
    def transactional_id(self) -> str | None:
        """None: it has no transactions."""
        return self._session.transactional_id or None

    def send(
        self, topic: str, record: Record, partition: int | None = None, sequence: int | None = None
    ) -> PendingRecord:
        """Queue one record, as `IntakeWriter.send`.

        `sequence` is for a record that was sent before with unknown outcome; take it from the earlier
        `PendingRecord.sequence`. The record is then stored once in any case. Send a record that failed again
        without it. Raises also `ProducerFenced` and `TransactionFailed`. `InvalidInput` outside of a
        transaction, or for a record that is sent again without its partition.
        """
        if sequence is not None:
            check_sequence(sequence)
            # A key decides for another partition once the topic has more of them, and the number of a record
            # means nothing there: the record could be stored twice.
            if partition is None:
                raise InvalidInput(
                    "a record that is sent again must go to the same partition; name the partition "
                    "(`PendingRecord.partition`), because its key may belong to another one by now"
                )
        return self._writer.send(topic, record, partition, stamper=self._session, sequence=sequence)

    def send_batch(
        self,
        topic: str,
        batch: pa.Table | pa.RecordBatch,
        partition: int | None = None,
        sequence: int | Sequence[int] | npt.NDArray[np.int32] | None = None,
    ) -> PendingBatch:
        """Queue many records, as `IntakeWriter.send_batch`.

        `sequence` as for `send`: one number per row, from `PendingBatch.sequences`; a row with -1 is left
        out. Or it is the number of the first row, if all rows are of one partition and each had a number.
        """
        if sequence is not None and partition is None and _undecided(batch):
            raise InvalidInput(
                "rows that are sent again must go to the same partitions; name the partition of each row in "
                "a column `partition`, because its key may belong to another one by now"
            )
        return self._writer.send_batch(topic, batch, partition, stamper=self._session, sequence=sequence)

    # --- transactions

    def begin(self) -> None:
        """Begin a transaction. Raises `InvalidInput` if one is open or without a transactional id,
        `ProducerFenced`.
        """
        with self._writer.lock:
            session = self._session
            if not session.transactional_id:
                raise InvalidInput(
                    "this producer has no transactional id, so it has no transactions; open one with an id"
                )
            if session.fenced is not None:
                raise ProducerFenced(session.fenced)
            if session.phase != "none":
                raise InvalidInput(
                    f"the transaction of {session.transactional_id!r} is not ended; commit or abort it first"
                )
            session.phase = "open"

    def commit(self) -> None:
        """Make the records of the transaction visible, all at once; returns when they are.

        Raises `TransactionFailed` if one of them is not certainly stored; then only `abort` is possible.
        `ProducerFenced` if the transactional id was opened again or the time-out is over; then the
        transaction is aborted. `OutcomeUnknown` if the commit may or may not be in the log, `RetryLater` if
        nothing was decided; after these two, commit again.
        """
        self._end(commit=True)

    def abort(self) -> None:
        """Drop the records of the transaction for good. Raises as `commit`, but for `TransactionFailed`."""
        self._end(commit=False)

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """Begin; commit at the end of the block, abort if it raises.

        If the outcome of the commit is unknown, nothing is aborted: the error says so, and another `commit`
        resolves it.
        """
        self.begin()
        try:
            yield self
        # For Ctrl-C as well: an open transaction holds back every reader of its partitions.
        except BaseException:
            self._abort_after_error()
            raise
        try:
            self.commit()
        except TransactionFailed:
            # Only here: after `OutcomeUnknown` or `RetryLater` the commit may still be resolved.
            self._abort_after_error()
            raise

    def _abort_after_error(self) -> None:
        try:
            self.abort()
        except ArchiverError as error:
            # Swallowed, because the caller must get the error that ended the block.
            _log.warning(
                "the transaction of %r could not be aborted; its time-out will abort it: %s",
                self.transactional_id,
                error,
            )

    def _end(self, *, commit: bool) -> None:
        session = self._session
        with self._writer.lock:
            if session.phase == "none":
                raise InvalidInput("there is no transaction to end; begin one first")
            if self._marker is not None and self._marker != commit:
                unresolved = "commit" if self._marker else "abort"
                raise InvalidInput(
                    f"the {unresolved} of the transaction is of unknown outcome; "
                    f"{unresolved} again to resolve it"
                )
            # `send` is refused from here on: a record after the marker would begin another transaction.
            session.phase = "ending"
        try:
            # A marker of unknown outcome was sent after all acknowledgements; only its outcome is missing.
            if self._marker is None:
                self._await_acknowledgements(commit=commit)
            # Without a record in the log there is no transaction to end there.
            refusal = self._append_marker(commit=commit) if session.written else None
        finally:
            with self._writer.lock:
                # After an error the transaction stays open, so that the caller can commit or abort again.
                session.phase = "open"
        with self._writer.lock:
            # Only after the marker: until then the numbers and the trouble of the transaction are needed.
            session.reset()
            if refusal is not None:
                session.fenced = _fenced(session.producer_id, session.epoch)
        if refusal is not None:
            raise ProducerFenced(
                f"the transaction of {session.transactional_id!r} was aborted before: {session.fenced}"
            )

    def _await_acknowledgements(self, *, commit: bool) -> None:
        """Records that are still queued would be appended after the marker, and begin a transaction of their
        own.
        """
        session = self._session
        self._writer.flush()
        with self._writer.lock:
            if session.outstanding:
                raise RetryLater(
                    f"{session.outstanding} sends of the transaction are not acknowledged yet; try again"
                )
            # An abort goes on in these cases: its marker states the outcome for good.
            if commit and session.fenced is not None:
                raise ProducerFenced(
                    f"the transaction of {session.transactional_id!r} is aborted: {session.fenced}"
                )
            if commit and session.trouble is not None:
                raise TransactionFailed(session.why())

    def _append_marker(self, *, commit: bool) -> Refusal | None:
        try:
            refusal = self._writer.sequencer.end_transaction(self.producer_id, self.epoch, commit=commit)
        except OutcomeUnknown as error:
            # A marker of the other kind is refused until this one is resolved, or both might be in the log.
            self._marker = commit
            what = "commit" if commit else "abort"
            raise OutcomeUnknown(
                f"the {what} may or may not be in the intake log; {what} again to resolve it: {error}"
            ) from error
        self._marker = None
        return refusal


def _fenced(producer_id: int, epoch: int) -> str:
    return (
        f"producer {producer_id} with epoch {epoch} is fenced by a newer epoch, or forgotten; open it again"
    )


def _check_transactional_id(found: object) -> None:
    if not isinstance(found, str):
        raise InvalidInput(f"a transactional id is text; {found!r:.60} is of type {type(found).__name__}")
    try:
        count = len(found.encode())
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"the transactional id {excerpt(found, ID_SHOWN_MAX)!r} cannot be written as UTF-8: "
            f"{error.reason}"
        ) from error
    if not 0 < count <= TRANSACTIONAL_ID_BYTES_MAX:
        raise InvalidInput(
            f"a transactional id has 1 to {TRANSACTIONAL_ID_BYTES_MAX} bytes of UTF-8; "
            f"{excerpt(found, ID_SHOWN_MAX)!r} has {count}"
        )


def _undecided(batch: pa.Table | pa.RecordBatch) -> bool:
    """Whether the batch does not name the partition of some row."""
    if "partition" in batch.schema.names and batch.column("partition").null_count == 0:
        return False
    return batch.num_rows > 0
