"""What other processes ask of the daemon by signals: SIGTERM and SIGINT stop it, SIGHUP reloads.

Owns the handlers, for as long as it is entered. They only write into a pipe that the main loop waits on, so
no signal meets anything half done. A second request to stop ends the process at once: nothing that was
acknowledged needs a clean end.
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
"""A shell says that a signal ended a process by this and the signal's number."""


class Signals:
    """Waits for what is asked. Enter it in the main thread; elsewhere it takes no signals, and only `ask`
    wakes it.
    """

    def __init__(self) -> None:
        self._wakes, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before: dict[int, Any] = {}
        self._stopping = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (*_STOPPING, signal.SIGHUP):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._wakes)
        os.close(self._wake)

    def ask(self, what: Asked) -> None:
        """As the signal of that meaning."""
        try:
            os.write(self._wake, b"s" if what == "stop" else b"r")
        except BlockingIOError:
            return  # so many are waiting that this one is among them

    def wait(self, timeout_s: float) -> set[Asked]:
        """What was asked since the last call; empty if nothing was within the time."""
        ready, _, _ = select.select([self._wakes], [], [], timeout_s)
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
        elif self._stopping:
            os.write(2, AT_ONCE)  # Not through Python's buffers, which the interrupted code may hold.
            os._exit(_EXIT_BASE + number)
        else:
            self._stopping = True
            self.ask("stop")
