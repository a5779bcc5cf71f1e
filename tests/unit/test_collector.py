"""How often Python's garbage collector runs in a daemon."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from archiver.config.settings import load_settings
from archiver.daemon.daemon import Daemon
from archiver.daemon.limits import OBJECTS, collect_less_often
from archiver.daemon.signals import Signals
from intake.sources.kafka.client import PORTION_RECORDS
from tests.support.builders.deployment import Deployment


@pytest.fixture
def looks() -> Iterator[list[str]]:
    """The phases of the collector's runs during the test. The thresholds are restored afterwards."""
    before, reported = gc.get_threshold(), list[str]()

    def tell(phase: str, info: dict[str, int]) -> None:
        reported.append(phase)

    gc.callbacks.append(tell)
    yield reported
    gc.callbacks.remove(tell)
    gc.set_threshold(*before)


def test_what_is_taken_at_once_starts_no_look_and_circles_are_found_all_the_same(looks: list[str]) -> None:
    collect_less_often()
    for _ in range(3):  # a collection of all that other tests hold takes a second
        gc.collect()
        looks.clear()
        held: list[Any] = [[] for _ in range(2 * PORTION_RECORDS)]
        assert held and not looks
        del held
    circles: list[Any] = [[] for _ in range(2 * OBJECTS)]
    for circle in circles:
        circle.append(circle)
    assert looks


def test_a_daemon_does(tmp_path: Path, looks: list[str]) -> None:
    del looks  # the fixture is used only because it restores the thresholds
    deployment = Deployment(tmp_path, overrides={"http": {"listen": "127.0.0.1:0"}})
    environ = {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}
    daemon = Daemon(
        load_settings(deployment.config, environ), deployment.config, environ, frozenset({"intake"})
    )
    gc.set_threshold(700, 10, 10)
    mask = os.umask(0o022)
    try:
        with Signals() as signals:
            signals.ask("stop")
            assert daemon.run(signals) == 0
    finally:
        os.umask(mask)
    assert gc.get_threshold() == (OBJECTS, 10, 10)
