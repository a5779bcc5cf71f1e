"""When a batch counts as done."""

from __future__ import annotations

import threading

import numpy as np

from intake.write.acknowledgements import OK, FlushOutcome, PendingBatch


def test_a_batch_is_not_done_before_its_outcome_is_stored() -> None:
    pending = PendingBatch("t", np.zeros(1, np.int32), threading.Condition())
    pending.expect(0)
    pending.admitted()
    seen: list[bool] = []

    class Verdicts(list[FlushOutcome]):
        def __getitem__(self, place: object) -> FlushOutcome:  # type: ignore[override]
            seen.append(pending.done())
            return OK

    assert pending.set_outcome(0, np.array([7]), np.zeros(1, np.int32), Verdicts([OK]))
    assert seen == [False]
    assert pending.done()
