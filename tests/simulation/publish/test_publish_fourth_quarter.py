"""The publishing rig under faults and foreign hands: the fourth quarter of the seeds; the others may run
beside it, in other processes."""

from __future__ import annotations

import pytest

from tests.simulation.publish.shares import FOURTH, play_share


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", FOURTH)
def test_no_invariant_breaks_in_the_fourth_quarter_of_the_schedules(number: int) -> None:
    play_share(number)
