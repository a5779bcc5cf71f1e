"""Every failpoint, and everything that can happen to a process that reaches it: nothing is lost or doubled,
and nothing is left over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from archiver.runtime import failpoints
from tests.fault.sweep.actors import Host
from tests.fault.sweep.cases import DAYS, THIRDS, Case, every_case, share, share_of_day, spark_cases
from tests.fault.sweep.playground import Ground
from tests.fault.sweep.playing import play
from tests.fault.sweep.scenes import SCENES
from tests.support.amount import DAY

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with Host() as made:
        yield made


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    return Ground(tmp_path_factory.mktemp("sweep"))


def test_every_point_has_every_action_and_every_share_has_every_point() -> None:
    everything = {(name, action) for name in failpoints.NAMES for action in failpoints.ACTIONS}
    assert {(case.point, case.action) for case in share(every_case(), "whole")} == everything
    for seed in range(3):
        found = share(every_case(), str(seed))
        assert len(found) == sum(len(scene.names) for scene in SCENES)
        assert {case.point for case in found} == set(failpoints.NAMES)
        assert {case.action for case in found} == set(THIRDS)


@pytest.mark.parametrize(("cases", "days"), [(every_case(), 36), (spark_cases(), 36)])
def test_the_shares_of_some_days_are_everything_but_lost_replies(cases: list[Case], days: int) -> None:
    expected = {str(case) for case in cases if case.action in THIRDS}
    for first in (0, DAY):
        played = {str(case) for day in range(first, first + days) for case in share_of_day(cases, day)}
        assert played == expected


def test_a_few_days_have_every_point_once() -> None:
    points = {case.point for case in every_case()}
    for first in (0, DAY):
        played = [
            case.point for day in range(first, first + DAYS) for case in share_of_day(every_case(), day)
        ]
        assert sorted(played) == sorted(points)


@pytest.mark.parametrize("action", THIRDS)
def test_a_point_that_is_never_reached_is_no_success(action: str, ground: Ground, host: Host) -> None:
    with pytest.raises(AssertionError, match=r"round\.start\.before was never reached"):
        play(ground, host, Case(SCENES[0], "round.start.before", action))


@pytest.mark.slow
@pytest.mark.parametrize("case", share(every_case()), ids=str)
def test_case(case: Case, ground: Ground, host: Host) -> None:
    play(ground, host, case)
