"""The publishing rig under faults and foreign hands: the third quarter of the seeds; the others may run
beside it, in other processes."""

from __future__ import annotations

import pytest

from tests.simulation.publish.shares import THIRD, play_share


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", THIRD)
def test_no_invariant_breaks_in_the_third_quarter_of_the_schedules(number: int) -> None:
    play_share(number)
