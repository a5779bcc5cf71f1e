"""The publishing rig under faults and external writers: no invariant breaks in the shares of today."""

from __future__ import annotations

import pytest

from tests.simulation.publish.shares import play_share, shares_of_today


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", shares_of_today())
def test_no_invariant_breaks_in_the_shares_of_today(number: int) -> None:
    play_share(number)
