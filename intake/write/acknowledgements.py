"""What the writer tells whoever sent a record.

Promises: an outcome is given once and never changes; `ok` means that the record is in the intake log at that
offset for good, `failed` that it is certainly not there, `unknown` that it may be. An offset is there only
with `ok`; never a made-up number.
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
"""In the place of the number of a row that has none."""


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """What became of one record."""

    topic: str
    partition: int
    offset: int | None
    outcome: Outcome
    error: str | None = None
    """Why it is not `ok`, and what to do."""
    refusal: Refusal | None = None
    """The rule of idempotent producers by which the log refused it, for programs; None if it was no such
    rule."""
    refused: bool = False
    """The record itself is wrong, so sending it again cannot help."""


@dataclass(frozen=True, slots=True)
class FlushOutcome:
    """What became of records that share their fate."""

    outcome: Outcome
    error: str | None = None
    refusal: Refusal | None = None
    refused: bool = False
    """As in `Acknowledgement`."""


OK = FlushOutcome("ok")


class BatchAcknowledgement(Sequence[Acknowledgement]):
    """What became of a batch: a sequence in input order, with the columns behind it for whoever has no need
    of objects.
    """

    def __init__(self, topic: str, partitions: npt.NDArray[np.int32]) -> None:
        self.topic = topic
        self.partitions = partitions
        self.offsets: npt.NDArray[np.int64] = np.full(len(partitions), NO_OFFSET, np.int64)
        """-1 where the outcome is not `ok`."""
        self.verdicts: list[FlushOutcome] = []
        self.verdict_of: npt.NDArray[np.int32] = np.full(len(partitions), -1, np.int32)
        """Per row, the position in `verdicts`."""
        self.elsewhere: dict[int, str] = {}
        """The topics of rows that went into another one, because they do not decode."""

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

    def settle(
        self,
        first_row: int,
        offsets: npt.NDArray[np.int64],
        verdict_of: npt.NDArray[np.int32],
        verdicts: list[FlushOutcome],
    ) -> None:
        """Set the outcome of the rows from `first_row` on (the writer's part)."""
        rows = slice(first_row, first_row + len(offsets))
        self.offsets[rows] = offsets
        self.verdict_of[rows] = verdict_of + len(self.verdicts)
        self.verdicts.extend(verdicts)


class PendingRecord:
    """The acknowledgement of one record, to come."""

    __slots__ = ("_acknowledgement", "partition", "sequence", "settled", "told", "topic")

    def __init__(
        self, topic: str, partition: int, settled: threading.Condition, told: Callable[[], None] | None = None
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.sequence: int | None = None
        """Its sequence number, by which it can be sent again; None if no idempotent producer sent it."""
        self.settled = settled
        """Whoever settles holds it and wakes those who wait."""
        self.told = told
        """Called once, when the outcome is there, by the thread that settles: it must be quick and raise
        nothing."""
        self._acknowledgement: Acknowledgement | None = None

    def done(self) -> bool:
        """Is the outcome there?"""
        return self._acknowledgement is not None

    def result(self, timeout_s: float) -> Acknowledgement:
        """Wait for the outcome; `RetryLater` if it is not there after `timeout_s` (ask again)."""
        with self.settled:
            self.settled.wait_for(self.done, timeout_s)
        if self._acknowledgement is None:
            raise RetryLater(f"the record is not acknowledged after {timeout_s:g} s; ask again")
        return self._acknowledgement

    def settle(self, offset: int, verdict: FlushOutcome) -> bool:
        """Set the outcome; False if it was set before and stays (the writer's part; it holds the lock and
        wakes who waits).
        """
        if self._acknowledgement is not None:
            return False
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
        if self.told is not None:
            self.told()
        return True


class PendingBatch:
    """The acknowledgement of a batch, to come: all rows at once."""

    def __init__(self, topic: str, partitions: npt.NDArray[np.int32], settled: threading.Condition) -> None:
        self.topic = topic
        self.partitions = partitions
        self.sequences: npt.NDArray[np.int32] | None = None
        """Per row its sequence number, -1 where the row found no room, was refused, or went into another
        topic; None if no idempotent producer sent the batch."""
        self.settled = settled
        """Whoever settles holds it and wakes those who wait."""
        self._acknowledgement = BatchAcknowledgement(topic, partitions)
        self._waiting: set[int] = set()
        self._admitted = False

    def done(self) -> bool:
        """Are all outcomes there?"""
        return self._admitted and not self._waiting

    def result(self, timeout_s: float) -> BatchAcknowledgement:
        """Wait for the outcome of every row; `RetryLater` if some are missing after `timeout_s` (ask
        again).
        """
        with self.settled:
            done = self.settled.wait_for(self.done, timeout_s)
        if not done:
            raise RetryLater(f"the batch is not acknowledged after {timeout_s:g} s; ask again")
        return self._acknowledgement

    @property
    def answered(self) -> BatchAcknowledgement:
        """The outcomes as far as they are there (the writer's part, as what follows)."""
        return self._acknowledgement

    def expect(self, first_row: int) -> None:
        """A piece that begins at that row is on its way (the writer's part, as what follows; all under the
        lock).
        """
        self._waiting.add(first_row)

    def admitted(self) -> None:
        """No more pieces will come."""
        self._admitted = True

    def settle(
        self,
        first_row: int,
        offsets: npt.NDArray[np.int64],
        verdict_of: npt.NDArray[np.int32],
        verdicts: list[FlushOutcome],
    ) -> bool:
        """Set the outcome of one piece; False if it was set before and stays."""
        if first_row not in self._waiting:
            return False
        self._waiting.remove(first_row)
        self._acknowledgement.settle(first_row, offsets, verdict_of, verdicts)
        return True


class PendingParts(PendingBatch):
    """A `PendingBatch` of several. The writer's part is `refuse`, `fail`, `leave_out` and `add`, before
    anybody else has it.
    """

    def __init__(
        self, topic: str, partitions: npt.NDArray[np.int32], settled: threading.Condition, *, numbered: bool
    ) -> None:
        """`numbered`: an idempotent producer sends the batch."""
        super().__init__(topic, partitions.copy(), settled)
        if numbered:
            self.sequences = np.full(len(partitions), NO_SEQUENCE, np.int32)
        self.parts: list[tuple[Int64Array, PendingBatch]] = []
        """Rows of the whole, and what becomes of them."""
        self._taken_over = 0
        """So many of the parts stand in the acknowledgement."""

    def refuse(self, refused: Mapping[int, str]) -> None:
        """These rows are not stored."""
        for row, why in refused.items():
            self._set(
                np.array([row]),
                FlushOutcome("failed", f"row {row}: {why}", refused=True),
            )

    def fail(self, rows: Int64Array, why: str) -> None:
        """These rows could not be handed over."""
        self._set(rows, FlushOutcome("failed", why))

    def leave_out(self, rows: Int64Array, *, perhaps_elsewhere: bool) -> None:
        """These rows are sent again and had no number, so they are not sent. `perhaps_elsewhere`: some may
        have gone into another topic.
        """
        why = "the row had no sequence number when it was sent before, so it was left out now"
        if perhaps_elsewhere:
            error = (
                f"{why}; it may have gone into another topic then, of which only the acknowledgement of "
                "that time tells"
            )
            self._set(rows, FlushOutcome("unknown", error))
        else:
            error = (
                f"{why}: it was refused then, or found no room, and is not stored; to send it anew, state "
                "no number"
            )
            self._set(rows, FlushOutcome("failed", error))

    def add(self, rows: Int64Array, part: PendingBatch) -> None:
        """These rows are on their way as a batch of their own."""
        self.parts.append((rows, part))
        whole = self.answered
        if part.topic != self.topic:
            whole.partitions[rows] = part.answered.partitions
            whole.elsewhere.update(dict.fromkeys(rows.tolist(), part.topic))
        elif self.sequences is not None and part.sequences is not None:
            self.sequences[rows] = part.sequences

    def done(self) -> bool:
        """See `PendingBatch`."""
        return all(part.done() for _, part in self.parts)

    def result(self, timeout_s: float) -> BatchAcknowledgement:
        """See `PendingBatch`."""
        answer = super().result(timeout_s)
        with self.settled:
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
