"""Signals request actions, and the main loop receives the requests. Each test starts its own process, because
signals are per process."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from signal import SIGHUP, SIGINT, SIGTERM, Signals

import pytest

from archiver.daemon.signals import Signals as Asking
from tests.support.builders.deployment import ROOT

WAIT_S = 120.0

PROGRAM = """
from archiver.daemon.signals import Signals
with Signals() as signals:
    print("ready", flush=True)
    while True:
        asked = signals.wait(60)
        print(",".join(sorted(asked)), flush=True)
        if "last" in asked:
            break
"""


@pytest.fixture
def waiting() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("number", [SIGTERM, SIGINT])
def test_the_first_asks_and_the_second_ends(number: Signals, waiting: subprocess.Popen[str]) -> None:
    for _ in range(3):
        waiting.send_signal(SIGHUP)
        assert said(waiting) == "reload"
    waiting.send_signal(number)
    assert said(waiting) == "stop"
    waiting.send_signal(SIGHUP)
    assert said(waiting) == "reload"
    waiting.send_signal(SIGTERM)
    assert waiting.wait(WAIT_S) == 128 + SIGTERM
    assert waiting.stderr is not None
    assert waiting.stderr.read() == "stopped at once; the round under way is done again by the next leader\n"


def test_elsewhere_than_in_the_main_thread_only_asking_wakes() -> None:
    found: list[set[str]] = []

    def loop(signals: Asking) -> None:
        with signals:
            found.append({*signals.wait(0.01)})
            found.append({*signals.wait(WAIT_S)})

    signals = Asking()
    thread = threading.Thread(target=loop, args=(signals,))
    thread.start()
    while not found:
        thread.join(0.01)
    signals.ask("stop")
    thread.join(WAIT_S)
    assert found == [set(), {"stop"}]


def test_any_number_of_requests_blocks_no_one() -> None:
    with Asking() as signals:
        for _ in range(100_000):
            signals.ask("reload")
        assert signals.wait(0) == {"reload"}
