"""Notifications to the service manager by systemd's protocol: datagrams to the socket in `NOTIFY_SOCKET`.

Does nothing without that variable. It never raises and never blocks: a manager that does not listen must not
stop the daemon.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping

from archiver.runtime.clock import Clock

_log = logging.getLogger(__name__)

# Non-blocking: a service manager with a full queue must not stop the main loop.
_FLAGS = socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
EXTEND_S = 60.0
"""Extension of the start time-out, requested repeatedly while the start waits."""


class Notifier:
    """Sends notifications to the service manager. Close it. Safe for several threads."""

    def __init__(self, environ: Mapping[str, str], clock: Clock, pid: int | None = None) -> None:
        """`pid` is this process unless a test sets it: a watchdog meant for another process is not fed."""
        self._clock = clock
        self._address = _address(environ.get("NOTIFY_SOCKET", ""))
        self._socket = (
            None if self._address is None else socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | _FLAGS)
        )
        self._status = ""
        self._watchdog_s = _watchdog_s(environ, os.getpid() if pid is None else pid)
        self._fed_s = self._extended_s = clock.monotonic_s()

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()

    def ready(self, status: str) -> None:
        """The start or a reload has ended."""
        self._status = status
        self._send(f"READY=1\nSTATUS={_line(status)}")

    def reloading(self) -> None:
        """The configuration is being read again; `ready` follows."""
        self._send(
            # systemd needs the time to match the reload with the `READY=1` that ends it.
            f"RELOADING=1\nMONOTONIC_USEC={round(self._clock.monotonic_s() * 1e6)}\nSTATUS=reloading "
            "the configuration"
        )

    def stopping(self, status: str) -> None:
        """The shutdown has begun."""
        self._send(f"STOPPING=1\nSTATUS={_line(status)}")

    def waiting(self, status: str) -> None:
        """The start still waits; extends its time-out. `systemctl status` shows `status`. Call it often."""
        now_s = self._clock.monotonic_s()
        # Each extension counts from its arrival, so a third of it leaves room for two lost ones.
        if status != self._status or now_s - self._extended_s >= EXTEND_S / 3:
            self._status, self._extended_s = status, now_s
            self._send(f"EXTEND_TIMEOUT_USEC={round(EXTEND_S * 1e6)}\nSTATUS={_line(status)}")

    def longer(self, seconds: float) -> None:
        """Ask for that many seconds from now on, beyond the time-out of the unit."""
        self._send(f"EXTEND_TIMEOUT_USEC={round(seconds * 1e6)}")

    def feed(self) -> None:
        """Feed the watchdog if due. Call it only while every required thread is alive."""
        # The main loop calls this twice a second; the manager needs far fewer.
        if self._watchdog_s is not None and self._clock.monotonic_s() - self._fed_s >= self._watchdog_s:
            self._fed_s = self._clock.monotonic_s()
            self._send("WATCHDOG=1")

    def _send(self, text: str) -> None:
        if self._socket is None or self._address is None:
            return
        try:
            self._socket.sendto(text.encode(), self._address)
        # Lost on purpose: without the manager the daemon works the same.
        except OSError as error:
            _log.debug("the service manager did not get %s: %s", text.splitlines()[0], error)


def _address(text: str) -> str | None:
    """Address of a path or an abstract name (written with @, sent with a zero byte); None for other text."""
    if text.startswith("@") and len(text) > 1:
        return "\0" + text[1:]
    return text if text.startswith("/") else None


def _watchdog_s(environ: Mapping[str, str], pid: int) -> float | None:
    """Interval of feeding: half of what the manager allows. None without a watchdog."""
    allowed = environ.get("WATCHDOG_USEC", "")
    meant_for = environ.get("WATCHDOG_PID", "")
    # A forked helper inherits the variables; only the process named by the pid may feed.
    if not allowed.isdigit() or int(allowed) == 0 or (meant_for and meant_for != str(pid)):
        return None
    # Microseconds, halved as sd_watchdog_enabled(3) recommends.
    return int(allowed) / 2e6


def _line(text: str) -> str:
    # A line break would begin another assignment of the protocol.
    return text.replace("\n", " ")
