"""Disconnects clients that do not read their answers, and limits the bytes of all unread answers.

It counts at the socket, not at asyncio's transport: over TLS the transport reports an empty buffer while the
encrypted answer still waits. A client must read `WINDOW_BYTES_MIN` in each window of `UNREAD_S`, and
everything within `BACKLOG_S`. All of it runs in the server's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from dataclasses import dataclass

UNREAD_S = 60.0
"""Length of a window: a client that takes less than `WINDOW_BYTES_MIN` in it is cut off."""
WINDOW_BYTES_MIN = 64 * 1024
"""About 1 KB/s. Less shows nothing: the kernel's own buffers take some bytes whether the client reads or
not."""
BACKLOG_S = 600.0
"""Longest time for which bytes of a connection may wait without a moment in which everything was taken."""
UNSENT_BYTES_MAX = 64 * 1024 * 1024
"""Bytes that wait for all clients together. Beyond it the connections that have waited longest are cut off;
the last one never is."""
INTERVALS = 8
"""Inspections in one window."""


@dataclass(slots=True)
class _Backlog:
    """A connection whose client has not taken everything."""

    unsent: int
    taken: int = 0
    """Bytes taken since the window began."""
    window_from_s: float | None = None
    """None until the first inspection."""
    since_s: float = 0.0


class WriteWatch:
    """Gets every send from the sockets."""

    def __init__(self) -> None:
        self._waiting: dict[socket.socket, _Backlog] = {}
        """In the order in which they began to wait."""
        self._unsent = 0

    @property
    def unsent(self) -> int:
        """Bytes that wait for all clients together, as of the newest attempt of each."""
        return self._unsent

    def sent(self, connection: socket.socket, offered: int, taken: int) -> None:
        """A send was tried: so many bytes were offered to the kernel, so many it took."""
        backlog = self._waiting.get(connection)
        if taken == offered:
            if backlog is not None:
                self.forget(connection)
            return
        if backlog is None:
            backlog = self._waiting[connection] = _Backlog(0)
        self._unsent += offered - taken - backlog.unsent
        backlog.unsent = offered - taken
        backlog.taken += taken
        while self._unsent > UNSENT_BYTES_MAX and len(self._waiting) > 1:
            self._cut_off(next(iter(self._waiting)))

    def forget(self, connection: socket.socket) -> None:
        """Everything was taken, or the connection is closed."""
        backlog = self._waiting.pop(connection, None)
        if backlog is not None:
            self._unsent -= backlog.unsent

    def inspect(self, now_s: float) -> None:
        """Cut off those that are too slow."""
        for connection, backlog in list(self._waiting.items()):
            if backlog.window_from_s is None:
                backlog.window_from_s = backlog.since_s = now_s
            elif now_s - backlog.since_s >= BACKLOG_S:
                self._cut_off(connection)
            elif now_s - backlog.window_from_s >= UNREAD_S:
                if backlog.taken < WINDOW_BYTES_MIN:
                    self._cut_off(connection)
                backlog.window_from_s, backlog.taken = now_s, 0

    async def run(self) -> None:
        """Inspect until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(UNREAD_S, BACKLOG_S) / INTERVALS)
            self.inspect(loop.time())

    def _cut_off(self, connection: socket.socket) -> None:
        """Break the connection; plain and TLS transports then release their buffers."""
        self.forget(connection)
        with contextlib.suppress(OSError):
            # What the kernel holds of the answer goes as well when the socket is closed.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.shutdown(socket.SHUT_RDWR)
