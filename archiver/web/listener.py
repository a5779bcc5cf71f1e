"""The port's socket: how many it takes, and how long they may shake hands.

Counts a connection from when it is accepted until its socket is closed, whatever it is in between: one that has not shown itself by TLS,
which the server's protocol does not know of yet, takes a file descriptor like any other. All of it in the server's thread.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from typing import Any

from archiver.web.connection import HEAD_S

CONNECTIONS_MAX = 2000
"""Further ones are closed at once. Each takes a file descriptor."""


class Listener(socket.socket):
    """Listens, and closes what would be too many."""

    taken = 0
    """Connections that are open."""

    def accept(self) -> tuple[socket.socket, Any]:
        """As the server expects it: `ConnectionAbortedError` stands for a client that is gone again."""
        plain, address = super().accept()
        if self.taken >= CONNECTIONS_MAX:
            plain.close()
            raise ConnectionAbortedError(errno.ECONNABORTED, os.strerror(errno.ECONNABORTED))
        return _Taken(self, plain), address


class _Taken(socket.socket):
    """A connection that is counted until it is closed."""

    def __init__(self, listener: Listener, plain: socket.socket) -> None:
        super().__init__(plain.family, plain.type, plain.proto, fileno=plain.detach())
        self._listener: Listener | None = listener
        listener.taken += 1

    def close(self) -> None:
        if self._listener is not None:
            self._listener.taken -= 1
            self._listener = None
        super().close()


class PatientLoop(asyncio.SelectorEventLoop):
    """Waits for a handshake, and for a goodbye, as long as for a head, where the library would leave a minute and half a minute."""

    async def create_server(self, *arguments: Any, **named: Any) -> asyncio.Server:
        """As the class above."""
        if named.get("ssl") is not None:
            named |= {"ssl_handshake_timeout": HEAD_S, "ssl_shutdown_timeout": HEAD_S}
        return await super().create_server(*arguments, **named)


def listening(host: str, port: int, backlog: int) -> Listener:
    """A socket that listens on the first address of that name; raises `OSError`."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    listener = Listener(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(backlog)  # Here, so that a port that somebody else listens on is found out before it is served.
    except OSError:
        listener.close()
        raise
    return listener
