"""Measures how the time of some work grows with the length of its input."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

MEGABYTE = 1 << 20
START = 1 << 10
_SPAN = 8
GROWTH_MAX = 24.0
"""For `_SPAN` times the length. Linear work takes 8 times as long, quadratic work 64 times: both are a factor
of three away, because caches, page faults and other processes disturb each measurement.
"""
_MEASURABLE_S = 0.004
"""Shorter times say nothing: the clock and the caches are most of them."""
_TRIES = 30
"""Each takes a few milliseconds more than `_MEASURABLE_S`, because the first length that takes too long fails."""


def assert_linear(work: Callable[[str], object], text_of: Callable[[int], str], top: int = MEGABYTE) -> None:
    """`work` on texts of ever twice the length, up to `top` characters. Fails at the first that takes too
    long, so that quadratic work fails after milliseconds and not after hours. The time is that of this thread
    on the processor.
    """
    times: dict[int, float] = {}
    length = START
    while length <= top:
        times[length] = _time(work, text_of(length))
        shorter = length // _SPAN
        if times[length] > _MEASURABLE_S and shorter in times:
            for _ in range(_TRIES):
                if times[length] <= GROWTH_MAX * times[shorter]:
                    break
                # What disturbs a measurement lengthens it: the shortest of several tries counts for each
                # length.
                for one in (shorter, length):
                    times[one] = min(times[one], _time(work, text_of(one)))
            growth = times[length] / max(times[shorter], 1e-9)
            assert growth <= GROWTH_MAX, (
                f"{length} characters take {growth:.1f} times what an eighth of them takes"
            )
        length *= 2


def _time(work: Callable[[str], object], text: str) -> float:
    # A collection of garbage goes through every object of the process: its time is not that of the work.
    gc.disable()
    try:
        began = time.thread_time()
        work(text)
        return time.thread_time() - began
    finally:
        gc.enable()
