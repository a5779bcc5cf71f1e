"""The acknowledgement of a batch whose rows go different ways: into their topic, into another one, or
nowhere.

Promises one answer per row in the order of the input, given once all rows have theirs.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from intake.arrow_arrays import Int64Array
from intake.write.acknowledgements import NO_OFFSET, BatchAcknowledgement, FlushOutcome, PendingBatch
from intake.write.batch_sending import NO_SEQUENCE
from intake.write.validation import Violation, refusal


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

    def refuse(self, refused: Mapping[int, Violation]) -> None:
        """These rows are not stored."""
        for row, finding in refused.items():
            self._set(
                np.array([row]),
                FlushOutcome("failed", f"row {row}: {refusal(self.topic, finding)}", refused=True),
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
