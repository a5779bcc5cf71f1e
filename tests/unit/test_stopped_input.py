"""A request to stop wakes a reader that waits, even if the signal arrives right before the wait."""

from __future__ import annotations

import os
import select
import signal
import termios
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from archiver.cli.produce import Stop, StoppableInput, stopped_by_signals


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_a_signal_right_before_the_wait_ends_it(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The C handler has run, Python's has not. Only the descriptor that C writes to can end the wait."""
    real = select.select
    met: list[bool] = []

    def select_later(*arguments: Any) -> Any:
        if not met:
            met.append(True)
            written = os.write(stop.wake, bytes([signal.SIGTERM]))  # as the interpreter's C handler does
            assert written == 1
            ready = real(*arguments)
            os.kill(os.getpid(), signal.SIGTERM)
            return ready
        return real(*arguments)

    with stopped_by_signals() as stop:
        monkeypatch.setattr(select, "select", select_later)
        assert signal.set_wakeup_fd(stop.wake, warn_on_full_buffer=False) == stop.wake, "C writes there"
        assert StoppableInput(pipe[0], stop).readinto(bytearray(10)) == 0
        assert (stop.name, stop.cut) == ("SIGTERM", True)
    assert signal.set_wakeup_fd(-1) == -1, "it is given back"


def test_another_signal_does_not_end_the_input(pipe: tuple[int, int]) -> None:
    stop = Stop()
    os.write(stop.wake, bytes([signal.SIGUSR1]))
    os.write(pipe[1], b"abc")
    buffer = bytearray(10)
    assert StoppableInput(pipe[0], stop).readinto(buffer) == 3
    assert (bytes(buffer[:3]), stop.cut) == (b"abc", False)
    stop.close()


def test_the_end_stays_the_end(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal gives more after a Ctrl-D; a reader that asks again must not wait for it."""
    stop, pieces = Stop(), [b"", b"more"]
    os.write(pipe[1], b"ready")
    monkeypatch.setattr(os, "read", lambda _descriptor, _count: pieces.pop(0))
    source = StoppableInput(pipe[0], stop)
    assert (source.readinto(bytearray(10)), source.readinto(bytearray(10))) == (0, 0)
    assert pieces == [b"more"]
    stop.close()


def test_what_a_terminal_drops_at_ctrl_c_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line is ready and no signal has come; both change right before the line is read."""
    keyboard, terminal = os.openpty()
    stop, real, dropped = Stop(), os.read, list[bool]()
    more = threading.Timer(10, os.write, (keyboard, b"more\n"))  # ends a read that waits

    def read_later(descriptor: int, count: int) -> bytes:
        if not dropped:
            dropped.append(True)
            termios.tcflush(terminal, termios.TCIFLUSH)
            stop.ask(signal.SIGINT)
            more.start()
        return real(descriptor, count)

    os.write(keyboard, b"half\n")
    monkeypatch.setattr(os, "read", read_later)
    with StoppableInput(terminal, stop) as source:
        assert source.readinto(bytearray(10)) == 0
    more.cancel()
    assert (dropped, stop.cut) == ([True], True)
    assert os.isatty(terminal), "its own descriptor is closed, not this one"
    assert os.get_blocking(terminal)
    for descriptor in (keyboard, terminal):
        os.close(descriptor)
    stop.close()


def test_an_input_at_its_end_is_not_cut(pipe: tuple[int, int]) -> None:
    stop, (read, write) = Stop(), os.pipe()
    os.close(write)
    stop.ask(signal.SIGINT)
    assert StoppableInput(read, stop).readinto(bytearray(10)) == 0
    assert not stop.cut
    os.close(read)
    stop.close()
