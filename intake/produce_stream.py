"""Sends records through an intake writer and reports the outcome of each, in input order.

Every record read gets one acknowledgement. A record that was read but could not be queued is `failed`. The
writer's queue and `outstanding_max` bound the number of records on their way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from queue import Queue
from typing import Literal, Protocol

from archiver.runtime.errors import (
    ArchiverError,
    Halt,
    InvalidInput,
    OutcomeUnknown,
    ProducerFenced,
    RetryLater,
    TransactionFailed,
)
from intake.record_json import Input
from intake.records import Record
from intake.write.acknowledgements import Outcome, PendingRecord
from intake.write.producer import Producer
from intake.write.writer import IntakeWriter

POLL_S = 0.2
"""Interval at which a waiting thread checks whether the writer was closed."""

MARKER_ATTEMPTS_MAX = 3
"""Attempts to end a transaction, in addition to the retries of the log."""


@dataclass(frozen=True, slots=True)
class Sent:
    """The outcome of one record."""

    topic: str
    partition: int | None
    """None if the record was refused before it had one."""
    offset: int | None
    """Only with the outcome `ok`."""
    outcome: Outcome
    error: str | None = None
    refused: bool = False
    """The record itself is invalid (too large, an unknown topic): sending it again cannot succeed."""

    def to_json(self) -> dict[str, object]:
        """The acknowledgement line of `produce --output json`."""
        if self.outcome == "ok":
            return {"topic": self.topic, "partition": self.partition, "offset": self.offset}
        return {
            "topic": self.topic,
            "partition": self.partition,
            "offset": None,
            "outcome": self.outcome,
            "error": self.error,
        }


class Sends(Protocol):
    """An intake writer, or an idempotent producer over it."""

    def send(self, topic: str, record: Record, partition: int | None) -> PendingRecord:
        """Queue one record."""


class SendsAndCloses(Sends, Protocol):
    """An intake writer."""

    def close(self) -> None:
        """Write what was sent, then stop."""


class Sending:
    """One run over an input. A separate thread reports the outcomes, so a caller that waits for one before it
    sends the next record gets it.
    """

    def __init__(
        self,
        writer: SendsAndCloses,
        report: Callable[[Sent], None],
        timeout_s: float,
        outstanding_max: int = 100_000,
        through: Sends | None = None,
    ) -> None:
        """`report` is called from that thread, once per record in input order. `timeout_s` bounds the wait
        for an outcome after the end.

        Records go `through` a producer over the writer if there is one. The writer is closed at the end.
        """
        self._writer = writer
        self._through: Sends = through or writer
        self.elsewhere = 0
        """Number of records that went to a DLQ topic because they do not decode."""
        self._broken: str | None = None
        """The first reason why the input as a whole cannot be stored."""
        self._report = report
        self._timeout_s = timeout_s
        self._waiting: Queue[PendingRecord | Sent | None] = Queue(outstanding_max)
        self._closed = threading.Event()
        self._report_failed: BaseException | None = None

    def run(self, inputs: Iterable[Input], finish: Callable[[str | None], None] = lambda _: None) -> None:
        """Send every record, call `finish`, close the writer, and report the outcome of each. All of this
        also happens if the input ends in an error or the run is interrupted.

        `finish` gets None if the whole input was queued without an error or a refused record, else the
        reason. Raises what reading the input, `finish` or `report` raises, and `RetryLater` if the queue
        stays full or the writer does not finish.
        """
        # A thread of its own: the outcomes of earlier records are known while later ones are read.
        reporter = threading.Thread(target=self._report_all, name="acknowledgements", daemon=True)
        reporter.start()
        ended: str | None = "interrupted"
        try:
            for item in inputs:
                # Blocks while the queue of the writer or the list of unreported outcomes is full.
                self._send(item)
                if self._report_failed is not None:
                    break
            ended = None if self._report_failed is None else "the acknowledgements could not be reported"
        except ArchiverError as error:
            ended = str(error)
            raise
        finally:
            try:
                # Before the writer is closed, because ending a transaction appends a marker through it.
                finish(self._broken or ended)
            finally:
                self._close(reporter)
        if self._report_failed is not None:
            raise self._report_failed

    def _close(self, reporter: threading.Thread) -> None:
        try:
            self._writer.close()
        finally:
            # After the close no more outcomes come, so a last bounded wait is enough for the reporter.
            self._closed.set()
            # The end mark comes last, so every outcome before it is reported.
            self._waiting.put(None)
            reporter.join()

    def _send(self, item: Input) -> None:
        try:
            pending = self._through.send(item.topic, item.record, item.partition)
            self.elsewhere += pending.topic != item.topic
            self._waiting.put(pending)
        except InvalidInput as error:
            # A refused record does not stop the run, but its transaction must not be committed.
            self._broken = self._broken or f"{item.where} was refused: {error}"
            self._waiting.put(
                Sent(item.topic, item.partition, None, "failed", f"{item.where}: {error}", refused=True)
            )
        except RetryLater as error:
            self._waiting.put(Sent(item.topic, item.partition, None, "failed", f"{item.where}: {error}"))
            raise RetryLater(
                f"stopped at {item.where}, which was not sent, nor any record after it: {error}"
            ) from error
        except Halt as error:
            self._broken = self._broken or f"{item.where} was not sent: {error}"
            self._waiting.put(Sent(item.topic, item.partition, None, "failed", f"{item.where}: {error}"))
            raise

    def _report_all(self) -> None:
        while (item := self._waiting.get()) is not None:
            sent = item if isinstance(item, Sent) else self._outcome(item)
            if self._report_failed is not None:
                # Reporting has failed. Empty the queue all the same, or the sender would block on it.
                continue
            try:
                self._report(sent)
            except BaseException as error:  # noqa: BLE001 - `run` raises it in the caller's thread
                self._report_failed = error

    def _outcome(self, item: PendingRecord) -> Sent:
        """Wait for the outcome while the writer works, and `timeout_s` longer."""
        while True:
            # Read before the wait: if the writer is closed during it, one more full wait is due.
            last_wait = self._closed.is_set()
            try:
                # A short wait, so that the end of the writer is noticed soon.
                sent = item.result(self._timeout_s if last_wait else min(self._timeout_s, POLL_S))
            except RetryLater as error:
                if last_wait:
                    return Sent(item.topic, item.partition, None, "unknown", str(error))
                continue
            return Sent(sent.topic, sent.partition, sent.offset, sent.outcome, sent.error, sent.refused)


@dataclass(frozen=True, slots=True)
class EndedTransaction:
    """The outcome of a transaction."""

    transactional_id: str
    outcome: Literal["committed", "aborted", "unknown"]
    """unknown: its records may or may not count; sending them again may duplicate them."""
    error: str | None = None
    """Why it is not committed."""

    def to_json(self) -> dict[str, object]:
        """The last line of `produce --transactional-id --output json`."""
        return {"transaction": self.transactional_id, "outcome": self.outcome, "error": self.error}


class WholeInput:
    """The producer of one run, if it has one, and its transaction: committed if the whole input is stored,
    else aborted.
    """

    def __init__(
        self,
        writer: IntakeWriter,
        transactional_id: str | None,
        idempotent: bool,
        transaction_timeout_s: float,
    ) -> None:
        """Opens the requested producer and begins its transaction. Raises as `Producer.open`."""
        self.ended: EndedTransaction | None = None
        """The outcome of the transaction; None before it was ended."""
        self.producer: Producer | None = None
        if transactional_id is not None or idempotent:
            self.producer = Producer.open(
                writer, transactional_id, transaction_timeout_s=transaction_timeout_s
            )
        if transactional_id is not None and self.producer is not None:
            self.producer.begin()

    def end(self, broken: str | None) -> None:
        """Commit, or abort if the input is `broken`. Raises `ProducerFenced`, or `OutcomeUnknown` if the
        outcome stays unknown.
        """
        producer = self.producer
        if producer is None or producer.transactional_id is None:
            return
        name, why = producer.transactional_id, broken
        if why is None:
            try:
                until_resolved(producer.commit)
            except (TransactionFailed, RetryLater) as error:
                why = str(error)
            except ProducerFenced as error:
                self.ended = EndedTransaction(name, "aborted", str(error))
                raise
            # For Ctrl-C as well: the marker may be in the log by now.
            except BaseException as error:
                self.ended = EndedTransaction(name, "unknown", str(error) or "interrupted")
                raise
            else:
                self.ended = EndedTransaction(name, "committed")
                return
        # Before the abort: without its marker the transaction is aborted by its time-out.
        self.ended = EndedTransaction(name, "aborted", why)
        try:
            until_resolved(producer.abort)
        except ArchiverError as error:
            self.ended = EndedTransaction(name, "aborted", f"{why} (its time-out will abort it: {error})")


def until_resolved(end: Callable[[], None]) -> None:
    """Commit or abort; repeat if the outcome is unknown or nothing was decided. An unknown outcome stays
    unknown until it is resolved.
    """
    doubt: OutcomeUnknown | None = None
    undecided: RetryLater | None = None
    for _ in range(MARKER_ATTEMPTS_MAX):
        try:
            return end()
        except OutcomeUnknown as error:
            doubt = error
        except RetryLater as error:
            undecided = error
    # A later `RetryLater` says nothing about the marker whose outcome is unknown.
    raise doubt or undecided or AssertionError("unreachable")
