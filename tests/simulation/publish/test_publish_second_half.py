"""The publishing rig under faults and foreign hands: the second half of the seeds; the first may run beside it, in another process."""

from __future__ import annotations

import pytest

from tests.simulation.publish.shares import SECOND_HALF, play_share


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", SECOND_HALF)
def test_no_invariant_breaks_in_the_second_half_of_the_schedules(number: int) -> None:
    play_share(number)
