"""Signals of the daemon: SIGTERM and SIGINT stop it, SIGHUP reloads the configuration.

The handlers only write into a pipe that the main loop reads, so a signal interrupts no operation.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from types import FrameType
from typing import Any, Literal, Self

Asked = Literal["stop", "reload"]

_STOPPING = (signal.SIGINT, signal.SIGTERM)
AT_ONCE = b"stopped at once; the round under way is done again by the next leader\n"
_EXIT_BASE = 128
"""Exit code of a process ended by a signal, as shells report it: this plus the number of the signal."""


class Signals:
    """Waits for requests. Enter it in the main thread; in another thread only `ask` wakes it."""

    def __init__(self) -> None:
        # Non-blocking: a handler must not wait for the main loop. Close-on-exec: the JVM must not inherit
        # it.
        self._wakes, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before: dict[int, Any] = {}
        self._stopping = False

    def __enter__(self) -> Self:
        # Python installs handlers in the main thread only. Tests run a daemon in another one.
        if threading.current_thread() is threading.main_thread():
            for number in (*_STOPPING, signal.SIGHUP):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        # After the old handlers are back: a handler must not write to a closed descriptor.
        os.close(self._wakes)
        os.close(self._wake)

    def ask(self, what: Asked) -> None:
        """Request the same as the signal does."""
        try:
            os.write(self._wake, b"s" if what == "stop" else b"r")
        except BlockingIOError:
            return  # the pipe is full, so a request of each kind is surely in it

    def wait(self, timeout_s: float) -> set[Asked]:
        """Requests since the last call; empty if none came within the time."""
        ready, _, _ = select.select([self._wakes], [], [], timeout_s)
        # One read drains all requests, so several of one kind count once.
        asked = os.read(self._wakes, 4096) if ready else b""
        found: set[Asked] = set()
        if b"s" in asked:
            found.add("stop")
        if b"r" in asked:
            found.add("reload")
        return found

    def _handle(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGHUP:
            self.ask("reload")
        # A second stop signal ends the process at once: acknowledged records do not depend on a clean end.
        elif self._stopping:
            os.write(2, AT_ONCE)  # Not through Python's buffers, which the interrupted code may hold.
            os._exit(_EXIT_BASE + number)
        else:
            self._stopping = True
            self.ask("stop")
