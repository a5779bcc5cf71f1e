"""What a command says while Spark starts: on a terminal in place with the seconds so far, in a pipe once at each end."""

from __future__ import annotations

import io
import sys
import threading

import pytest

from archiver.cli import output
from archiver.runtime.clock import ManualClock

WORK = "starting Spark (JVM)"


class Screen(io.StringIO):
    """A terminal that lets another thread wait for what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = threading.Semaphore(0)

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        written = super().write(text)
        self.writes.release()
        return written


def test_two_lines_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, clock = io.StringIO(), ManualClock()
    monkeypatch.setattr(sys, "stderr", stream)
    with output.spark_starting(WORK, clock):
        assert stream.getvalue() == "starting Spark (JVM)...\n"
        clock.advance(6.4)
    assert stream.getvalue() == "starting Spark (JVM)...\nSpark is ready after 6 s\n"


def test_one_line_in_place_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, clock = Screen(), ManualClock()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(output, "TICK_S", 0.01)
    monkeypatch.setenv("TERM", "xterm")
    with output.spark_starting(WORK, clock):
        clock.advance(4.0)
        while "4 s" not in stream.getvalue():
            assert stream.writes.acquire(timeout=60)
    _, first, *ticks, last = stream.getvalue().split("\r")
    assert first == f"{WORK}...\x1b[K"
    assert ticks[-1] == f"{WORK}... 4 s\x1b[K"
    assert last == "\x1b[KSpark is ready after 4 s\n"


@pytest.mark.parametrize("screen", [Screen(), io.StringIO()], ids=["terminal", "pipe"])
def test_a_start_that_fails(screen: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    threads = threading.active_count()
    with pytest.raises(KeyboardInterrupt), output.spark_starting(WORK):
        raise KeyboardInterrupt
    assert threading.active_count() == threads
    assert "ready" not in screen.getvalue()
    assert screen.getvalue().endswith("\r\x1b[K" if screen.isatty() else "...\n")
