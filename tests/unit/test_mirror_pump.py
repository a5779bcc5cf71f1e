"""Mirrors are stopped together. One that hangs costs the others no time, and its name is returned."""

from __future__ import annotations

import threading
import time
from typing import Any, cast

from archiver.runtime.clock import SystemClock
from intake.sources.kafka.mirror import Mirror
from intake.sources.kafka.pump import MirrorPump, stop_all


class Hanging:
    """A mirror whose cluster does not answer until `let_go` is set."""

    def __init__(self) -> None:
        self.entered, self.let_go, self.closed = threading.Event(), threading.Event(), threading.Event()

    def step(self) -> None:
        self.entered.set()
        self.let_go.wait(120)

    def close(self) -> None:
        self.closed.set()


def test_those_that_do_not_end_share_one_time_and_are_named() -> None:
    mirrors = [Hanging() for _ in range(9)]
    pumps = [MirrorPump(str(number), cast(Mirror, cast(Any, one)), 2.0) for number, one in enumerate(mirrors)]
    for pump in pumps:
        pump.start()
    assert all(one.entered.wait(60) for one in mirrors)
    # The last one needs the time that the first ones must not use up.
    threading.Timer(0.1, mirrors[-1].let_go.set).start()
    began_s = time.monotonic()
    assert stop_all(pumps, 2.0, SystemClock()) == [str(number) for number in range(8)]
    # In turn it would be 16 s.
    assert time.monotonic() - began_s < 12
    for one in mirrors:
        one.let_go.set()
    assert stop_all(pumps, 60.0, SystemClock()) == []
    assert all(one.closed.is_set() for one in mirrors)
