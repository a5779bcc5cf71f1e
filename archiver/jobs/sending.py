"""Sends records through an intake writer and tells, in input order, what became of each.

Promises one acknowledgement per record that was read, whatever happens in between, and that what was read but could not be handed over is
`failed`. What may be under way at a time is bounded by the writer's queue and by `outstanding_max`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from archiver.errors import InvalidInput, RetryLater
from intake.acknowledgements import Outcome, PendingRecord
from intake.record_json import Input
from intake.writer import IntakeWriter


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
    """One run over an input."""

    def __init__(self, writer: IntakeWriter, tell: Callable[[Sent], None], timeout_s: float, outstanding_max: int = 100_000) -> None:
        self._writer = writer
        self._tell = tell
        self._timeout_s = timeout_s
        self._outstanding_max = outstanding_max
        self._waiting: deque[PendingRecord | Sent] = deque()

    def run(self, inputs: Iterable[Input]) -> None:
        """Send every record, close the writer, and tell the outcome of each, also if the input ends in an error or the run is interrupted.

        Raises what reading the input raises, and `RetryLater` if the writer has no room for long or does not finish.
        """
        try:
            for item in inputs:
                self._send(item)
                self._tell_done(len(self._waiting) > self._outstanding_max)
        finally:
            try:
                self._writer.close()
            finally:
                while self._waiting:
                    self._tell_first()

    def _send(self, item: Input) -> None:
        try:
            self._waiting.append(self._writer.send(item.topic, item.record, item.partition))
        except InvalidInput as error:
            self._waiting.append(Sent(item.topic, item.partition, None, "failed", f"{item.where}: {error}", refused=True))
        except RetryLater as error:
            self._waiting.append(Sent(item.topic, item.partition, None, "failed", f"{item.where}: {error}"))
            raise RetryLater(f"stopped at {item.where}, which was not sent, nor anything behind it: {error}") from error

    def _tell_done(self, wait: bool) -> None:
        while self._waiting and (wait or self._is_done(self._waiting[0])):
            self._tell_first()
            wait = False

    def _is_done(self, item: PendingRecord | Sent) -> bool:
        return isinstance(item, Sent) or item.done()

    def _tell_first(self) -> None:
        item = self._waiting.popleft()
        if isinstance(item, Sent):
            self._tell(item)
            return
        try:
            told = item.result(self._timeout_s)
        except RetryLater as error:
            self._tell(Sent(item.topic, item.partition, None, "unknown", str(error)))
            return
        self._tell(Sent(told.topic, told.partition, told.offset, told.outcome, told.error))
