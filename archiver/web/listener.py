"""Listening socket of the port, with limits of connections, of unread answers and of TLS handshakes.

All of it runs in the server's thread, so it has no locks.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from archiver.web.connection import HEAD_S

# --- Answers that the client does not read
UNREAD_S = 60.0
"""Length of a window: a client that takes less than `WINDOW_BYTES_MIN` in it is cut off."""
# Less shows nothing: the kernel's own buffers take some bytes whether the client reads or not.
WINDOW_BYTES_MIN = 64 * 1024
"""About 1 KB/s."""
BACKLOG_S = 600.0
"""Longest time for which bytes of a connection may wait without a moment in which everything was taken."""
UNSENT_BYTES_MAX = 64 * 1024 * 1024
"""Bytes that wait for all clients together, unless a port states another limit. Beyond it the connections
that have waited longest are cut off; the last one never is."""
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

    def __init__(self, unsent_bytes_max: int = UNSENT_BYTES_MAX) -> None:
        self._unsent_max = unsent_bytes_max
        # A dict keeps the order of insertion, so the first has waited longest.
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
        # One client may have a larger answer than that; alone it is only held to its rate.
        while self._unsent > self._unsent_max and len(self._waiting) > 1:
            self._cut_off(next(iter(self._waiting)))

    def forget(self, connection: socket.socket) -> None:
        """Everything was taken, or the connection is closed."""
        backlog = self._waiting.pop(connection, None)
        if backlog is not None:
            self._unsent -= backlog.unsent

    def inspect(self, now_s: float) -> None:
        """Cut off those that are too slow."""
        # A copy, because cutting off removes entries.
        for connection, backlog in list(self._waiting.items()):
            # The time begins at an inspection: `sent` is called often and reads no clock.
            if backlog.window_from_s is None:
                backlog.window_from_s = backlog.since_s = now_s
            # A client at the minimum rate could otherwise hold a large answer for hours.
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
            # Not closed here: the transport owns the descriptor and closes it when it reads the end.
            connection.shutdown(socket.SHUT_RDWR)


# --- Connections
_log = logging.getLogger(__name__)

CONNECTIONS_MAX = 2000
"""Maximum of connections; further ones are closed at once. Each takes a file descriptor."""
LOG_INTERVAL_S = 60.0
"""Minimum time between two log lines on one condition, which may change many times a second."""
_LACKING = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
"""Errors that asyncio's accept loop treats as a lack of resources: it stops accepting for a second."""


class Listener(socket.socket):
    """Listens, and closes connections beyond the limit."""

    open_connections = 0
    connections_max = CONNECTIONS_MAX

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.watch = WriteWatch()
        self._full = _Condition(
            "all {} connections of the port are in use; further ones are closed at once until one ends",
            "the port accepts connections again; {} were closed",
        )
        self._lacking = _Condition(
            "the port cannot accept a connection ({}); it tries again every second. Raise the limit of "
            "open files (LimitNOFILE, ulimit -n)",
            "the port accepts connections again after {} attempts without a descriptor",
        )
        self._resting = False

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept for asyncio: `ConnectionAbortedError` means that the client has gone."""
        if self._resting:
            # The last call reported that resources are lacking. The loop of asyncio would try, and report,
            # `backlog` times more.
            self._resting = False
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        try:
            plain, address = super().accept()
        except OSError as error:
            if error.errno in _LACKING:
                self._resting = True
                self._lacking.begins(error.strerror)
            raise
        self._lacking.ends()
        if self.open_connections >= self.connections_max:
            self._full.begins(self.connections_max)
            # Accepted and closed: left in the backlog, clients would wait without an answer.
            plain.close()
            raise ConnectionAbortedError(errno.ECONNABORTED, os.strerror(errno.ECONNABORTED))
        self._full.ends()
        return self._accepted(plain), address

    def _accepted(self, plain: socket.socket) -> socket.socket:
        """The socket that asyncio serves. Raises `ConnectionAbortedError` if the connection is closed."""
        return CountedSocket(self, plain)


class CountedSocket(socket.socket):
    """Connection that counts until it is closed, and reports its sends."""

    def __init__(self, listener: Listener, plain: socket.socket) -> None:
        # Takes over the descriptor; `plain` must not close it.
        super().__init__(plain.family, plain.type, plain.proto, fileno=plain.detach())
        self._listener: Listener | None = listener
        self._watch = listener.watch
        # From accept on: a TLS handshake takes a descriptor before any protocol object exists.
        listener.open_connections += 1

    def send(self, data: Any, flags: int = 0, /) -> int:
        """Overrides the method of the base class."""
        try:
            taken = super().send(data, flags)
        except BlockingIOError:
            self._watch.sent(self, len(data), 0)
            raise
        # Other errors end the connection. Counted as waiting, one that was cut off would cut off the next.
        self._watch.sent(self, len(data), taken)
        return taken

    def sendmsg(self, buffers: Iterable[Any], *rest: Any) -> int:
        """As `send`, which later versions of asyncio call only for the first bytes of an answer."""
        parts = list(buffers)
        try:
            taken = super().sendmsg(parts, *rest)
        except BlockingIOError:
            self._watch.sent(self, sum(map(len, parts)), 0)
            raise
        self._watch.sent(self, sum(map(len, parts)), taken)
        return taken

    def close(self) -> None:
        """Close; further calls do nothing."""
        self._watch.forget(self)
        # asyncio may close a socket twice; it must count once.
        if self._listener is not None:
            self._listener.open_connections -= 1
            self._listener = None
        super().close()


class _Condition:
    """Logs a lasting condition: one line at its begin and one at its end, each at most every
    `LOG_INTERVAL_S`.
    """

    def __init__(self, begun: str, over: str) -> None:
        self._begun, self._over = begun, over
        self._count = 0
        self._logged = False
        self._silent_until_s = 0.0

    def begins(self, value: object) -> None:
        """The condition holds; called for each affected connection."""
        self._count += 1
        now_s = asyncio.get_running_loop().time()
        # The pair of lines appears at most once per interval, also if the state changes many times a second.
        if not self._logged and now_s >= self._silent_until_s:
            self._logged, self._silent_until_s = True, now_s + LOG_INTERVAL_S
            _log.warning(self._begun.format(value))

    def ends(self) -> None:
        """The condition does not hold."""
        if self._logged and asyncio.get_running_loop().time() >= self._silent_until_s:
            _log.info(self._over.format(self._count))
            self._logged, self._count = False, 0


class PatientLoop(asyncio.SelectorEventLoop):
    """Limits TLS handshake and TLS shutdown to the time of a head; asyncio allows 60 s and 30 s."""

    async def create_server(self, *arguments: Any, **named: Any) -> asyncio.Server:
        """Overrides the method of the base class."""
        if named.get("ssl") is not None:
            # A port may state its own time for the handshake.
            named["ssl_handshake_timeout"] = named.get("ssl_handshake_timeout") or HEAD_S
            named["ssl_shutdown_timeout"] = HEAD_S
        return await super().create_server(*arguments, **named)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Skip the traceback for a lack of descriptors, which the listener has logged."""
        error = context.get("exception")
        if not (
            isinstance(error, OSError)
            and error.errno in _LACKING
            and "accept" in str(context.get("message", ""))
        ):
            super().call_exception_handler(context)


_Socket = TypeVar("_Socket", bound=socket.socket)


def check_address(host: str, port: int) -> None:
    """Raise `OSError` unless `listening` could open that address now. It does not listen, so no client
    connects to it.
    """
    with _bound(host, port, socket.socket):
        pass


def listening_process(port: int) -> int | None:
    """Id of the process that listens on that port of this machine; None if it is not known, for example
    because it is of another user, or not on Linux.
    """
    try:
        lines = [
            line.split()
            for name in ("tcp", "tcp6")
            for line in Path(f"/proc/net/{name}").read_text("ascii").splitlines()[1:]
        ]
        # 0A is the state LISTEN; the fields are the local address and the inode of the socket.
        inodes = {
            line[9] for line in lines if line[3] == "0A" and int(line[1].rpartition(":")[2], 16) == port
        }
        # Several addresses of one port may be of different processes.
        if len(inodes) != 1:
            return None
        link = f"socket:[{inodes.pop()}]"
        # Children have larger ids mostly, and may have inherited the socket.
        for process in sorted(int(one.name) for one in Path("/proc").iterdir() if one.name.isdecimal()):
            with contextlib.suppress(OSError):
                if any(str(one.readlink()) == link for one in Path(f"/proc/{process}/fd").iterdir()):
                    return process
    except (OSError, ValueError, IndexError):
        pass
    return None


def address_trouble(error: Exception, setting: str) -> tuple[str, str] | None:
    """Why an address cannot be opened, and the remedy; None for an error without a known one. `setting` is
    the key that names the address.
    """
    return {
        errno.EADDRINUSE: ("another program listens there", f"stop it, or set {setting} to another port"),
        errno.EADDRNOTAVAIL: ("this machine lacks that address", f"set {setting} to one that it has"),
        errno.EACCES: ("this user may not open that port", f"set {setting} to a port above 1023"),
    }.get(getattr(error, "errno", None) or 0)


def _bound(host: str, port: int, create: Callable[..., _Socket]) -> _Socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    made = create(family, kind, protocol)
    try:
        # After a restart, connections in TIME_WAIT would otherwise hold the port for a minute.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except OSError:
        made.close()
        raise
    return made


def listening(
    host: str,
    port: int,
    backlog: int,
    connections_max: int | None = None,
    unsent_bytes_max: int = UNSENT_BYTES_MAX,
    create: Callable[..., Listener] = Listener,
) -> Listener:
    """Socket that listens on the first address of the name, made by `create`; raises `OSError`."""
    listener = _bound(host, port, create)
    listener.watch = WriteWatch(unsent_bytes_max)
    if connections_max is not None:
        listener.connections_max = connections_max
    try:
        # Listen here: a port that another program uses must fail before the server starts.
        listener.listen(backlog)
    except OSError:
        listener.close()
        raise
    return listener
