"""Sends records through an intake writer and tells, in input order, what became of each.

Promises one acknowledgement per record that was read, whatever happens in between, and that what was read but could not be handed over is
`failed`. What may be under way at a time is bounded by the writer's queue and by `outstanding_max`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from queue import Queue

from archiver.errors import InvalidInput, RetryLater
from intake.acknowledgements import Outcome, PendingRecord
from intake.record_json import Input
from intake.writer import IntakeWriter

LOOK_S = 0.2
"""While the writer works, time between two looks at whether it was closed."""


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
        return {"topic": self.topic, "partition": self.partition, "offset": None, "outcome": self.outcome, "error": self.error}


class Sending:
    """One run over an input. A thread of its own tells the outcomes, so that whoever waits for one before sending more is answered."""

    def __init__(self, writer: IntakeWriter, tell: Callable[[Sent], None], timeout_s: float, outstanding_max: int = 100_000) -> None:
        """`tell` is called from that thread, once per record in input order; `timeout_s` bounds the wait for an outcome after the end."""
        self._writer = writer
        self._tell = tell
        self._timeout_s = timeout_s
        self._waiting: Queue[PendingRecord | Sent | None] = Queue(outstanding_max)
        self._closed = threading.Event()
        self._telling_failed: BaseException | None = None

    def run(self, inputs: Iterable[Input]) -> None:
        """Send every record, close the writer, and tell the outcome of each, also if the input ends in an error or the run is interrupted.

        Raises what reading the input or `tell` raises, and `RetryLater` if the writer has no room for long or does not finish.
        """
        teller = threading.Thread(target=self._tell_all, name="acknowledgements", daemon=True)
        teller.start()
        try:
            for item in inputs:
                self._send(item)
                if self._telling_failed is not None:
                    break
        finally:
            try:
                self._writer.close()
            finally:
                self._closed.set()
                self._waiting.put(None)
                teller.join()
        if self._telling_failed is not None:
            raise self._telling_failed

    def _send(self, item: Input) -> None:
        try:
            self._waiting.put(self._writer.send(item.topic, item.record, item.partition))
        except InvalidInput as error:
            self._waiting.put(Sent(item.topic, item.partition, None, "failed", f"{item.where}: {error}", refused=True))
        except RetryLater as error:
            self._waiting.put(Sent(item.topic, item.partition, None, "failed", f"{item.where}: {error}"))
            raise RetryLater(f"stopped at {item.where}, which was not sent, nor anything behind it: {error}") from error

    def _tell_all(self) -> None:
        while (item := self._waiting.get()) is not None:
            told = item if isinstance(item, Sent) else self._outcome(item)
            if self._telling_failed is not None:
                continue  # Nobody listens any more; the queue is still emptied, so that sending comes to its end.
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
            return Sent(told.topic, told.partition, told.offset, told.outcome, told.error)
