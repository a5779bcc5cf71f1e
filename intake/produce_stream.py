"""Sends records through an intake writer and tells, in input order, what became of each.

Promises one acknowledgement per record that was read, whatever happens in between, and that what was read but
could not be handed over is `failed`. What may be under way at a time is bounded by the writer's queue and by
`outstanding_max`.
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

LOOK_S = 0.2
"""While the writer works, time between two looks at whether it was closed."""

MARKER_ATTEMPTS_MAX = 3
"""How often a transaction is ended; each time the log's own retries come to it."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of one record."""

    topic: str
    partition: int | None
    """None if the record was refused before it had one."""
    offset: int | None
    """Only with the outcome `ok`."""
    outcome: Outcome
    error: str | None = None
    refused: bool = False
    """The record itself is wrong (too large, an unknown topic): sending it again cannot help."""

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
    """What takes records: an intake writer, or an idempotent producer over it."""

    def send(self, topic: str, record: Record, partition: int | None) -> PendingRecord:
        """Hand over one record."""


class SendsAndCloses(Sends, Protocol):
    """An intake writer."""

    def close(self) -> None:
        """Write what was sent, then stop."""


class Sending:
    """One run over an input. A thread of its own tells the outcomes, so that whoever waits for one before
    sending more is answered.
    """

    def __init__(
        self,
        writer: SendsAndCloses,
        tell: Callable[[Sent], None],
        timeout_s: float,
        outstanding_max: int = 100_000,
        through: Sends | None = None,
    ) -> None:
        """`tell` is called from that thread, once per record in input order; `timeout_s` bounds the wait for
        an outcome after the end.

        Records go `through` a producer over the writer if there is one. The writer is closed at the end.
        """
        self._writer = writer
        self._through: Sends = through or writer
        self.elsewhere = 0
        """Records that were handed over for another topic than their own, because they do not decode."""
        self._broken: str | None = None
        """Why the input as a whole cannot be stored: the first reason."""
        self._tell = tell
        self._timeout_s = timeout_s
        self._waiting: Queue[PendingRecord | Sent | None] = Queue(outstanding_max)
        self._closed = threading.Event()
        self._telling_failed: BaseException | None = None

    def run(self, inputs: Iterable[Input], finish: Callable[[str | None], None] = lambda _: None) -> None:
        """Send every record, call `finish`, close the writer, and tell the outcome of each, also if the input
        ends in an error or the run is interrupted. `finish` is told why not the whole input was handed over,
        or None if it was, without an error or a refused record.

        Raises what reading the input, `finish` or `tell` raises, and `RetryLater` if the writer has no room
        for long or does not finish.
        """
        teller = threading.Thread(target=self._tell_all, name="acknowledgements", daemon=True)
        teller.start()
        ended: str | None = "interrupted"
        try:
            for item in inputs:
                self._send(item)
                if self._telling_failed is not None:
                    break
            ended = None if self._telling_failed is None else "the acknowledgements could not be told"
        except ArchiverError as error:
            ended = str(error)
            raise
        finally:
            try:
                finish(self._broken or ended)
            finally:
                self._close(teller)
        if self._telling_failed is not None:
            raise self._telling_failed

    def _close(self, teller: threading.Thread) -> None:
        try:
            self._writer.close()
        finally:
            self._closed.set()
            self._waiting.put(None)
            teller.join()

    def _send(self, item: Input) -> None:
        try:
            pending = self._through.send(item.topic, item.record, item.partition)
            self.elsewhere += pending.topic != item.topic
            self._waiting.put(pending)
        except InvalidInput as error:
            self._broken = self._broken or f"{item.where} was refused: {error}"
            self._waiting.put(
                Sent(item.topic, item.partition, None, "failed", f"{item.where}: {error}", refused=True)
            )
        except RetryLater as error:
            self._waiting.put(Sent(item.topic, item.partition, None, "failed", f"{item.where}: {error}"))
            raise RetryLater(
                f"stopped at {item.where}, which was not sent, nor anything behind it: {error}"
            ) from error
        except Halt as error:
            self._broken = self._broken or f"{item.where} was not sent: {error}"
            self._waiting.put(Sent(item.topic, item.partition, None, "failed", f"{item.where}: {error}"))
            raise

    def _tell_all(self) -> None:
        while (item := self._waiting.get()) is not None:
            told = item if isinstance(item, Sent) else self._outcome(item)
            if self._telling_failed is not None:
                # Nobody listens any more; the queue is still emptied, so that sending comes to its end.
                continue
            try:
                self._tell(told)
            except BaseException as error:  # noqa: BLE001 - handed to the thread that runs, whatever it is
                self._telling_failed = error

    def _outcome(self, item: PendingRecord) -> Sent:
        """Wait for it as long as the writer works, and `timeout_s` longer."""
        while True:
            last_wait = self._closed.is_set()
            try:
                told = item.result(self._timeout_s if last_wait else min(self._timeout_s, LOOK_S))
            except RetryLater as error:
                if last_wait:
                    return Sent(item.topic, item.partition, None, "unknown", str(error))
                continue
            return Sent(told.topic, told.partition, told.offset, told.outcome, told.error, told.refused)


@dataclass(frozen=True, slots=True)
class EndedTransaction:
    """What became of a transaction."""

    transactional_id: str
    outcome: Literal["committed", "aborted", "unknown"]
    """unknown: nobody can tell whether its records count; sending them again may double them."""
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
        """Opens what is asked for, and begins. Raises as `Producer.open`."""
        self.ended: EndedTransaction | None = None
        """What became of the transaction, once it was ended."""
        self.producer: Producer | None = None
        if transactional_id is not None or idempotent:
            self.producer = Producer.open(
                writer, transactional_id, transaction_timeout_s=transaction_timeout_s
            )
        if transactional_id is not None and self.producer is not None:
            self.producer.begin()

    def end(self, broken: str | None) -> None:
        """Commit, or abort if the input is `broken`. Raises `ProducerFenced`, or `OutcomeUnknown` if nobody
        can tell.
        """
        producer = self.producer
        if producer is None or producer.transactional_id is None:
            return
        name, why = producer.transactional_id, broken
        if why is None:
            try:
                settled(producer.commit)
            except (TransactionFailed, RetryLater) as error:
                why = str(error)
            except ProducerFenced as error:
                self.ended = EndedTransaction(name, "aborted", str(error))
                raise
            except BaseException as error:
                self.ended = EndedTransaction(name, "unknown", str(error) or "interrupted")
                raise
            else:
                self.ended = EndedTransaction(name, "committed")
                return
        self.ended = EndedTransaction(name, "aborted", why)
        try:
            settled(producer.abort)
        except ArchiverError as error:
            self.ended = EndedTransaction(name, "aborted", f"{why} (its time-out will abort it: {error})")


def settled(end: Callable[[], None]) -> None:
    """Commit or abort, again if the outcome is unknown or nothing was decided. What became unknown once stays
    so until it is settled.
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
    raise doubt or undecided or AssertionError("unreachable")
