"""Tells the service manager how the daemon is: systemd's notification protocol, which is a datagram to a
socket it names.

Owns `NOTIFY_SOCKET` and `WATCHDOG_USEC`. Does nothing where nobody asked for it. Promises to raise nothing
and to block nothing: a manager that does not listen is no reason to stop.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping

from archiver.runtime.clock import Clock

_log = logging.getLogger(__name__)

_ATTITUDE = socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
EXTEND_S = 60.0
"""While the start waits for something, the manager is asked for so much more time, again and again."""


class Notifier:
    """Speaks to whoever started this process. Close it. Safe for several threads."""

    def __init__(self, environ: Mapping[str, str], clock: Clock, pid: int | None = None) -> None:
        """`pid` is this process's, unless a test says otherwise: a watchdog that was meant for another
        process is not fed.
        """
        self._clock = clock
        self._address = _address(environ.get("NOTIFY_SOCKET", ""))
        self._socket = (
            None if self._address is None else socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | _ATTITUDE)
        )
        self._status = ""
        self._watchdog_s = _watchdog_s(environ, os.getpid() if pid is None else pid)
        self._fed_s = self._extended_s = clock.monotonic_s()

    def close(self) -> None:
        """Let go of the socket."""
        if self._socket is not None:
            self._socket.close()

    def ready(self, status: str) -> None:
        """The start, or a reload, is over."""
        self._status = status
        self._send(f"READY=1\nSTATUS={_line(status)}")

    def reloading(self) -> None:
        """The configuration is being read again; `ready` follows."""
        self._send(
            f"RELOADING=1\nMONOTONIC_USEC={round(self._clock.monotonic_s() * 1e6)}\nSTATUS=reloading "
            "the configuration"
        )

    def stopping(self, status: str) -> None:
        """The end has begun."""
        self._send(f"STOPPING=1\nSTATUS={_line(status)}")

    def waiting(self, status: str) -> None:
        """The start is not over, which is no reason to end it. `status` is what `systemctl status` shows.
        Call it often.
        """
        now_s = self._clock.monotonic_s()
        if status != self._status or now_s - self._extended_s >= EXTEND_S / 3:
            self._status, self._extended_s = status, now_s
            self._send(f"EXTEND_TIMEOUT_USEC={round(EXTEND_S * 1e6)}\nSTATUS={_line(status)}")

    def longer(self, seconds: float) -> None:
        """What is under way may take so long from now on, whatever the unit allows."""
        self._send(f"EXTEND_TIMEOUT_USEC={round(seconds * 1e6)}")

    def feed(self) -> None:
        """A sign of life, if one is due. Call it only while everything that must be alive is."""
        if self._watchdog_s is not None and self._clock.monotonic_s() - self._fed_s >= self._watchdog_s:
            self._fed_s = self._clock.monotonic_s()
            self._send("WATCHDOG=1")

    def _send(self, text: str) -> None:
        if self._socket is None or self._address is None:
            return
        try:
            self._socket.sendto(text.encode(), self._address)
        except OSError as error:
            _log.debug("the service manager was not told %s: %s", text.splitlines()[0], error)


def _address(text: str) -> str | None:
    """A path, or an abstract name (written with @, sent with a zero byte); None for anything else."""
    if text.startswith("@") and len(text) > 1:
        return "\0" + text[1:]
    return text if text.startswith("/") else None


def _watchdog_s(environ: Mapping[str, str], pid: int) -> float | None:
    """How often a sign of life is due: half of what the manager allows. None if it wants none."""
    allowed = environ.get("WATCHDOG_USEC", "")
    meant_for = environ.get("WATCHDOG_PID", "")
    if not allowed.isdigit() or int(allowed) == 0 or (meant_for and meant_for != str(pid)):
        return None
    return int(allowed) / 2e6


def _line(text: str) -> str:
    return text.replace("\n", " ")
