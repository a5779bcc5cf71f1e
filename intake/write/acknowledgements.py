"""Acknowledgements of sent records.

An outcome is set once and never changes. `ok`: the record is in the intake log at that offset, for good.
`failed`: it is certainly not in the log. `unknown`: it may be. Only `ok` has an offset.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from archiver.runtime.errors import RetryLater
from intake.arrow_arrays import Int64Array
from intake.producers import Refusal

Outcome = Literal["ok", "failed", "unknown"]
NO_OFFSET = -1
NO_SEQUENCE = -1
"""Marks a row without a sequence number."""


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """The outcome of one record."""

    topic: str
    partition: int
    offset: int | None
    outcome: Outcome
    error: str | None = None
    """Why it is not `ok`, and what to do."""
    refusal: Refusal | None = None
    """The rule of idempotent producers by which the log refused it; None if another reason applies."""
    refused: bool = False
    """The record itself is invalid, so sending it again cannot succeed."""


@dataclass(frozen=True, slots=True)
class FlushOutcome:
    """The outcome that several records share."""

    outcome: Outcome
    error: str | None = None
    refusal: Refusal | None = None
    refused: bool = False
    """As in `Acknowledgement`."""
    append_us: int = 0
    """The append time, which replaced the event times of the records; 0: they kept their own."""


OK = FlushOutcome("ok")
_SEVERITY: Mapping[Outcome, int] = {"ok": 0, "failed": 1, "unknown": 2}


class BatchAcknowledgement(Sequence[Acknowledgement]):
    """The outcomes of a batch: a sequence in input order, and the same as columns for callers that need no
    objects.
    """

    def __init__(self, topic: str, partitions: npt.NDArray[np.int32]) -> None:
        self.topic = topic
        self.partitions = partitions
        self.offsets: npt.NDArray[np.int64] = np.full(len(partitions), NO_OFFSET, np.int64)
        """-1 where the outcome is not `ok`."""
        self.verdicts: list[FlushOutcome] = []
        self.verdict_of: npt.NDArray[np.int32] = np.full(len(partitions), -1, np.int32)
        """Per row, the index into `verdicts`."""
        self.elsewhere: dict[int, str] = {}
        """Rows that went to another topic because they do not decode, with its name."""

    @property
    def outcome(self) -> Outcome:
        """The worst of all: `unknown`, else `failed`, else `ok`."""
        outcomes = {verdict.outcome for verdict in self.verdicts}
        return "unknown" if "unknown" in outcomes else "failed" if "failed" in outcomes else "ok"

    def __len__(self) -> int:
        return len(self.partitions)

    def __iter__(self) -> Iterator[Acknowledgement]:
        return (self._row(row) for row in range(len(self)))

    def __getitem__(self, row: int) -> Acknowledgement:  # type: ignore[override]
        return self._row(row)

    def _row(self, row: int) -> Acknowledgement:
        verdict = self.verdicts[self.verdict_of[row]]
        offset = int(self.offsets[row]) if verdict.outcome == "ok" else None
        # A negative index counts from the end, and `elsewhere` has only real row numbers.
        row = range(len(self))[row]
        topic = self.elsewhere.get(row, self.topic)
        return Acknowledgement(
            topic,
            int(self.partitions[row]),
            offset,
            verdict.outcome,
            verdict.error,
            verdict.refusal,
            verdict.refused,
        )

    def set_outcome(
        self,
        first_row: int,
        offsets: npt.NDArray[np.int64],
        verdict_of: npt.NDArray[np.int32],
        verdicts: list[FlushOutcome],
    ) -> None:
        """Set the outcome of the rows from `first_row` on. Called by the writer."""
        rows = slice(first_row, first_row + len(offsets))
        self.offsets[rows] = offsets
        # Each piece has its own list of outcomes, so its indexes move behind those already here.
        if len(verdict_of) == 1:
            # A batch of a Kafka client, of which a flush may have many.
            self.verdict_of[rows] = len(self.verdicts)
            self.verdicts.append(verdicts[verdict_of[0]])
            return
        # `verdicts` are those of a whole flush. The outcomes of other items in it must not count here.
        used, places = np.unique(verdict_of, return_inverse=True)
        self.verdict_of[rows] = places + len(self.verdicts)
        self.verdicts.extend(verdicts[number] for number in used.tolist())


class PendingRecord:
    """The future acknowledgement of one record."""

    __slots__ = ("_acknowledgement", "condition", "on_done", "partition", "sequence", "topic")

    def __init__(
        self,
        topic: str,
        partition: int,
        condition: threading.Condition,
        on_done: Callable[[], None] | None = None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.sequence: int | None = None
        """Its sequence number, which a retry must state; None if no idempotent producer sent it."""
        self.condition = condition
        """The condition under which outcomes are set; waiting threads are notified through it."""
        self.on_done = on_done
        """Called once by the thread that sets the outcome, under the lock. It must be quick and must not
        raise."""
        self._acknowledgement: Acknowledgement | None = None

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._acknowledgement is not None

    def result(self, timeout_s: float) -> Acknowledgement:
        """Wait for the outcome; `RetryLater` if it is not known after `timeout_s` (call it again)."""
        with self.condition:
            self.condition.wait_for(self.done, timeout_s)
        if self._acknowledgement is None:
            raise RetryLater(f"the record is not acknowledged after {timeout_s:g} s; ask again")
        return self._acknowledgement

    def set_outcome(self, offset: int, verdict: FlushOutcome) -> bool:
        """Set the outcome; False if it was set before, which stays. Called by the writer, under the lock."""
        # `close` may have set `unknown` while the flush was still running; the first outcome stays.
        if self._acknowledgement is not None:
            return False
        # An offset is a promise, so only a stored record gets one.
        known = offset if verdict.outcome == "ok" else None
        self._acknowledgement = Acknowledgement(
            self.topic,
            self.partition,
            known,
            verdict.outcome,
            verdict.error,
            verdict.refusal,
            verdict.refused,
        )
        # Under the lock, so the callback runs exactly once and before any waiting thread continues.
        if self.on_done is not None:
            self.on_done()
        return True


class PendingBatch:
    """The future acknowledgement of a batch: all rows at once."""

    def __init__(
        self,
        topic: str,
        partitions: npt.NDArray[np.int32],
        condition: threading.Condition,
        on_done: Callable[[], None] | None = None,
    ) -> None:
        """`on_done` is called as that of `PendingRecord`, once all outcomes are known."""
        self.topic = topic
        self.partitions = partitions
        self.sequences: npt.NDArray[np.int32] | None = None
        """Per row its sequence number, or -1 where the row was not queued, was refused, or went to another
        topic. None if no idempotent producer sent the batch."""
        self.condition = condition
        """The condition under which outcomes are set; waiting threads are notified through it."""
        self._on_done = on_done
        self._acknowledgement = BatchAcknowledgement(topic, partitions)
        self._waiting: set[int] = set()
        self._admitted = False

    def done(self) -> bool:
        """Whether all outcomes are known."""
        # While pieces are still being queued, none may be waiting although more will come.
        return self._admitted and not self._waiting

    def result(self, timeout_s: float) -> BatchAcknowledgement:
        """Wait for the outcome of every row; `RetryLater` if some are missing after `timeout_s` (call it
        again).
        """
        with self.condition:
            done = self.condition.wait_for(self.done, timeout_s)
        if not done:
            raise RetryLater(f"the batch is not acknowledged after {timeout_s:g} s; ask again")
        return self._acknowledgement

    @property
    def answered(self) -> BatchAcknowledgement:
        """The outcomes known so far. This and the following methods are for the writer, under the lock."""
        return self._acknowledgement

    def expect(self, first_row: int) -> None:
        """Register a piece that begins at that row."""
        self._waiting.add(first_row)

    def admitted(self) -> None:
        """All pieces are registered."""
        self._admitted = True

    def set_outcome(
        self,
        first_row: int,
        offsets: npt.NDArray[np.int64],
        verdict_of: npt.NDArray[np.int32],
        verdicts: list[FlushOutcome],
    ) -> bool:
        """Set the outcome of one piece; False if it was set before, which stays."""
        # `close` may have set `unknown` for this piece before its flush ended.
        if first_row not in self._waiting:
            return False
        self._acknowledgement.set_outcome(first_row, offsets, verdict_of, verdicts)
        # Last: `done` is also read without the lock, and must not be true before the outcome is stored.
        self._waiting.remove(first_row)
        if self._on_done is not None and self.done():
            self._on_done()
        return True


class PendingReceived:
    """The future outcome of a batch of a client, which learns one offset and one outcome for all of it."""

    def __init__(self, own: PendingBatch | None, elsewhere: Sequence[PendingBatch]) -> None:
        """`own`: in the topic it was sent to; None if no record is. `elsewhere`: in DLQ topics."""
        self._own = own
        self._parts = [*elsewhere] if own is None else [own, *elsewhere]

    def done(self) -> bool:
        """Whether all outcomes are known."""
        return all(part.done() for part in self._parts)

    def outcome(self) -> tuple[int, FlushOutcome]:
        """The offset of the first record in the topic it was sent to, `NO_OFFSET` if there is none; and the
        worst outcome of any record. Only once it is `done`.
        """
        verdicts = [verdict for part in self._parts for verdict in part.answered.verdicts]
        offset = NO_OFFSET if self._own is None else int(self._own.answered.offsets[0])
        return offset, max(verdicts, key=lambda verdict: _SEVERITY[verdict.outcome])

    def append_us(self) -> int:
        """The append time of the first record in the topic it was sent to. 0: there is none, or it kept its
        own time. Only once it is `done`.
        """
        if self._own is None:
            return 0
        own = self._own.answered
        verdict: FlushOutcome = own.verdicts[int(own.verdict_of[0])]
        return verdict.append_us


class PendingParts(PendingBatch):
    """A `PendingBatch` whose rows go to several topics, or are refused.

    It gives one acknowledgement per row in input order, once all rows have theirs. The writer calls `refuse`,
    `fail`, `leave_out` and `add` before it returns the object.
    """

    def __init__(
        self, topic: str, partitions: npt.NDArray[np.int32], condition: threading.Condition, *, numbered: bool
    ) -> None:
        """`numbered`: an idempotent producer sends the batch."""
        # A copy, because rows that go elsewhere get a partition of the other topic.
        super().__init__(topic, partitions.copy(), condition)
        if numbered:
            # Rows that get no number keep this mark, and a retry states it.
            self.sequences = np.full(len(partitions), NO_SEQUENCE, np.int32)
        self.parts: list[tuple[Int64Array, PendingBatch]] = []
        """Rows of the whole batch, and the pending batch that carries them."""
        self._taken_over = 0
        """Number of parts whose outcomes are copied into the acknowledgement."""

    def refuse(self, refused: Mapping[int, str]) -> None:
        """Fail rows that validation refused, each with its reason."""
        for row, why in refused.items():
            self._set(
                np.array([row]),
                FlushOutcome("failed", f"row {row}: {why}", refused=True),
            )

    def fail(self, rows: Int64Array, why: str) -> None:
        """Fail rows that could not be queued."""
        self._set(rows, FlushOutcome("failed", why))

    def leave_out(self, rows: Int64Array, *, perhaps_elsewhere: bool) -> None:
        """Rows that are sent again and had no number are not sent. `perhaps_elsewhere`: some may be in a DLQ
        topic.
        """
        why = "the row had no sequence number when it was sent before, so it was left out now"
        # Where such a row went the first time is not stored, so its absence cannot be proved.
        if perhaps_elsewhere:
            error = (
                f"{why}; it may have gone to another topic then, which only the first acknowledgement shows"
            )
            self._set(rows, FlushOutcome("unknown", error))
        else:
            error = (
                f"{why}: it was refused then, or the queue was full, and it is not stored; to send it now, "
                "state no number"
            )
            self._set(rows, FlushOutcome("failed", error))

    def add(self, rows: Int64Array, part: PendingBatch) -> None:
        """Register rows that were queued as a batch of their own."""
        self.parts.append((rows, part))
        whole = self.answered
        # The sequence numbers of the other topic mean nothing in this one, so none are copied from it.
        if part.topic != self.topic:
            whole.partitions[rows] = part.answered.partitions
            # The acknowledgement names the topic where the record really is.
            whole.elsewhere.update(dict.fromkeys(rows.tolist(), part.topic))
        elif self.sequences is not None and part.sequences is not None:
            self.sequences[rows] = part.sequences

    def done(self) -> bool:
        """See `PendingBatch`."""
        # The rows that are refused or left out have their outcomes from the start.
        return all(part.done() for _, part in self.parts)

    def result(self, timeout_s: float) -> BatchAcknowledgement:
        """See `PendingBatch`."""
        answer = super().result(timeout_s)
        with self.condition:
            # Several threads may wait for the result; each part is copied once.
            parts, self._taken_over = self.parts[self._taken_over :], len(self.parts)
            for rows, part in parts:
                self._take_over(rows, part.answered)
        return answer

    def _take_over(self, rows: Int64Array, part: BatchAcknowledgement) -> None:
        whole = self.answered
        whole.offsets[rows] = part.offsets
        whole.verdict_of[rows] = part.verdict_of + len(whole.verdicts)
        whole.verdicts.extend(part.verdicts)

    def _set(self, rows: Int64Array, verdict: FlushOutcome) -> None:
        whole = self.answered
        whole.offsets[rows] = NO_OFFSET
        whole.verdict_of[rows] = len(whole.verdicts)
        whole.verdicts.append(verdict)
