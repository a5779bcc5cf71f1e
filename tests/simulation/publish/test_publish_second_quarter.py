"""The publishing rig under faults and foreign hands: the second quarter of the seeds; the others may run
beside it, in other processes."""

from __future__ import annotations

import pytest

from tests.simulation.publish.shares import SECOND, play_share


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", SECOND)
def test_no_invariant_breaks_in_the_second_quarter_of_the_schedules(number: int) -> None:
    play_share(number)
