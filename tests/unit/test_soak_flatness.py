"""Checks that the soak's rule finds a leak of the stated size in every kind of noise, and none in flat
series."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.harness.flatness import SURE, Finding, Rule, Sample, judge_series, theil_sen

RULE = Rule("daemon memory", "MB", allowance=12.0, ceiling=1500.0)
BEGIN_S = 100.0
HOUR_S = 45 * 60.0
"""The steady phase of a run of an hour, and of five minutes."""
SHARE_S = 180.0
SEEDS = range(12)
Noise = Callable[[random.Random, float], float]


def quiet(rng: random.Random, at: float) -> float:
    return rng.gauss(0, 1.5)


def sawtooth(rng: random.Random, at: float) -> float:
    """Memory that is freed every few rounds."""
    return 10 * (at / 7 % 1) + rng.gauss(0, 1)


def spikes(rng: random.Random, at: float) -> float:
    """One sample in ten is taken during a round that needs much memory."""
    return rng.uniform(50, 300) if rng.random() < 0.1 else rng.gauss(0, 2)


def warming(rng: random.Random, at: float) -> float:
    """Memory that is loaded in the first minute."""
    return 150 * (1 - math.exp(-(at - BEGIN_S) / 15)) + rng.gauss(0, 2)


NOISES = (quiet, sawtooth, spikes, warming)


def series(
    seconds: float, seed: int, noise: Noise, *, per_hour: float = 0.0, shape: Noise | None = None
) -> list[Sample]:
    rng = random.Random(f"{seed}/{noise.__name__}")
    found: list[Sample] = []
    at = BEGIN_S
    while at < BEGIN_S + seconds:
        found.append(
            (at, 300 + per_hour * (at - BEGIN_S) / 3600 + noise(rng, at) + (shape(rng, at) if shape else 0.0))
        )
        at += rng.uniform(0.9, 1.3)
    return found


def found(samples: list[Sample], seconds: float, rule: Rule = RULE) -> Finding:
    return judge_series(rule, samples, BEGIN_S, BEGIN_S + seconds)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("seconds", [HOUR_S, SHARE_S])
def test_what_is_flat_is_flat(noise: Noise, seconds: float) -> None:
    for seed in SEEDS:
        finding = found(series(seconds, seed, noise), seconds)
        assert finding.state == "flat", finding


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(("seconds", "per_hour"), [(HOUR_S, 60.0), (SHARE_S, 1080.0)])
def test_a_leak_of_the_stated_size_is_found(noise: Noise, seconds: float, per_hour: float) -> None:
    """With an allowance of 12 MB, an hour's run detects 60 MB/h and one of five minutes 1080 MB/h. The
    finding states it."""
    for seed in SEEDS:
        finding = found(series(seconds, seed, noise, per_hour=per_hour), seconds)
        assert finding.state == "grows", finding
        assert finding.detects_per_hour is not None
        assert finding.detects_per_hour == pytest.approx(per_hour)
        assert finding.slope_per_day == pytest.approx(24 * per_hour, rel=0.6)


def test_a_leak_in_steps_is_found() -> None:
    for seed in SEEDS:
        samples = series(HOUR_S, seed, quiet, shape=lambda _, at: 8.0 * int((at - BEGIN_S) / 400))
        assert found(samples, HOUR_S).state == "grows"


def test_descriptors_that_leak_are_found() -> None:
    rule = Rule("daemon descriptors", "", allowance=8.0, ceiling=500.0)

    def open_requests(rng: random.Random, at: float) -> float:
        return float(rng.randrange(6)) - 260

    for seed in SEEDS:
        assert found(series(SHARE_S, seed, open_requests), SHARE_S, rule).state == "flat"
        assert (
            found(
                series(SHARE_S, seed, open_requests, shape=lambda _, at: float(int((at - BEGIN_S) / 4))),
                SHARE_S,
                rule,
            ).state
            == "grows"
        )


def early_step(rng: random.Random, at: float) -> float:
    return 80.0 if at > BEGIN_S + 0.5 * HOUR_S else 0.0


def late_step(rng: random.Random, at: float) -> float:
    return 80.0 if at > BEGIN_S + 0.72 * HOUR_S else 0.0


def late_plateau(rng: random.Random, at: float) -> float:
    return min(60.0, 60 * (at - BEGIN_S) / (0.45 * HOUR_S))


def wave(rng: random.Random, at: float) -> float:
    return 5 * math.sin((at - BEGIN_S) / HOUR_S * 2.5 * math.pi)


def falling(rng: random.Random, at: float) -> float:
    return -60 * (at - BEGIN_S) / HOUR_S


@pytest.mark.parametrize("shape", [early_step, late_step, late_plateau, wave, falling])
def test_what_happens_once_is_no_leak(shape: Noise) -> None:
    for seed in SEEDS:
        assert found(series(HOUR_S, seed, quiet, shape=shape), HOUR_S).state == "flat"


def test_what_cannot_be_measured_is_never_flat() -> None:
    good = series(HOUR_S, 1, quiet)
    assert found([], HOUR_S).state == "unmeasured"
    assert found([(at, None) for at, _ in good], HOUR_S).state == "unmeasured"
    assert (
        found([(at, value if number % 3 else None) for number, (at, value) in enumerate(good)], HOUR_S).state
        == "unmeasured"
    )
    assert found(good[: len(good) // 2], HOUR_S).state == "unmeasured", "sampling that broke off"
    assert (
        found([sample for number, sample in enumerate(good) if number % 250 == 0], HOUR_S).state
        == "unmeasured"
    )
    wild = found(series(HOUR_S, 1, lambda rng, _: rng.gauss(0, 100)), HOUR_S)
    assert wild.state == "unmeasured"
    assert "scatters" in wild.why


def test_a_short_run_says_that_it_is_short() -> None:
    assert found(series(70, 1, quiet), 70).state == "unmeasured"
    slow = replace(RULE, lasts_s=900.0)
    assert found(series(SHARE_S, 1, quiet), SHARE_S, slow).state == "below its ceiling"
    assert found(series(HOUR_S, 1, quiet), HOUR_S, slow).state == "flat"


def test_the_ceiling_holds_from_the_first_sample() -> None:
    high = [(BEGIN_S + 1, 1501.0), *series(HOUR_S, 1, quiet)]
    assert found(high, HOUR_S).state == "too high"
    assert found([(BEGIN_S - 1, 1501.0), *series(HOUR_S, 1, quiet)], HOUR_S).state == "flat", (
        "before the phase nothing is judged"
    )


def test_the_longer_the_smaller() -> None:
    hour, share = found(series(HOUR_S, 1, quiet), HOUR_S), found(series(SHARE_S, 1, quiet), SHARE_S)
    assert hour.detects_per_hour == pytest.approx(SURE * RULE.allowance / (HOUR_S * 0.8 / 2) * 3600)
    assert share.detects_per_hour is not None
    assert hour.detects_per_hour is not None
    assert share.detects_per_hour > 15 * hour.detects_per_hour


def test_the_slope_bears_wild_values() -> None:
    points = [(float(number), 2.0 * number) for number in range(40)]
    wild = [(at, 1e6 if number % 5 == 0 else value) for number, (at, value) in enumerate(points)]
    assert theil_sen(points) == 2.0
    assert theil_sen(wild) == pytest.approx(2.0, rel=0.2)
    assert theil_sen([(1.0, 5.0)]) == 0.0
