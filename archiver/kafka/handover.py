"""Hands the connections of Kafka clients over to intake workers, and relays requests of them back (0095).

The daemon accepts every connection, so the port and its limit are as without workers. A worker gets the
socket of the client, and one end of a socket pair whose other end stays in the daemon. It answers requests
with records itself, and sends every other request through the pair as it came. So the daemon alone
coordinates groups and transactions, and clients see one broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from archiver.kafka.frames import FrameReader
from archiver.runtime.clock import uptime_s
from archiver.web.listener import CountedSocket, Listener, WriteWatch

PRINCIPAL_BYTES_MAX: Final = 64 * 1024
"""Longest name of an authenticated client between worker and daemon."""
_STAMP: Final = struct.Struct(">d")
_SIZE: Final = struct.Struct(">i")
_SOCKETS: Final = 2
"""Sockets of one connection: the client's, and the worker's end of the pair."""

Peer = tuple[str, int]


class Workers(Protocol):
    """The processes that serve connections."""

    def give(self, client: socket.socket, far: socket.socket) -> Callable[[], None] | None:
        """Send copies of both sockets to a worker; None if none can take them now. What is returned is
        called when the connection has ended.
        """


def send_connection(channel: socket.socket, client: socket.socket, far: socket.socket) -> None:
    """Send both sockets to the worker at the other end. Raises `OSError`, among others `BlockingIOError`."""
    socket.send_fds(channel, [_STAMP.pack(uptime_s())], [client.fileno(), far.fileno()])


class HandingOver(Listener):
    """The port of a daemon with workers. What it accepts for asyncio is the daemon's end of a pair."""

    def __init__(self, workers: Workers, may_accept: Callable[[], bool], *arguments: Any) -> None:
        """`may_accept` says whether a connection may be served that waited until now."""
        super().__init__(*arguments)
        self._workers = workers
        self._may_accept = may_accept

    def _accepted(self, plain: socket.socket) -> socket.socket:
        try:
            if not self._may_accept():
                raise _aborted()
            near, far = socket.socketpair()
            ended = None
            try:
                with far:
                    ended = self._workers.give(plain, far)
            finally:
                if ended is None:
                    near.close()
            if ended is None:
                raise _aborted()
        finally:
            # The worker has a descriptor of its own.
            plain.close()
        return _Near(self, near, ended)


class _Near(CountedSocket):
    """The daemon's end of a pair."""

    def __init__(self, listener: Listener, plain: socket.socket, ended: Callable[[], None]) -> None:
        super().__init__(listener, plain)
        self._ended: Callable[[], None] | None = ended

    def close(self) -> None:
        """Close; further calls do nothing."""
        if self._ended is not None:
            self._ended()
            self._ended = None
        super().close()


class ReceivedPeer(Peer):
    """Host and port of a client, with the worker's end of its pair."""

    far: socket.socket


class Received(Listener):
    """The connections that a worker receives, as a listening socket for asyncio."""

    def __init__(
        self,
        channel: socket.socket,
        connections_max: int,
        unsent_bytes_max: int,
        age_max_s: float,
        on_end: Callable[[], None],
    ) -> None:
        """The limits are as for `listening`. A connection that waited longer than `age_max_s` in the channel
        is closed (decision 0086). `on_end` is called when the daemon has closed the channel; it must lead to
        the close of this socket.
        """
        super().__init__(channel.family, channel.type, channel.proto, fileno=channel.detach())
        self.connections_max = connections_max
        self.watch = WriteWatch(unsent_bytes_max)
        self._age_max_s = age_max_s
        self._on_end = on_end

    def listen(self, backlog: int = 0, /) -> None:
        """The daemon listens."""

    def accept(self) -> tuple[socket.socket, Any]:
        """As `Listener.accept`."""
        data, descriptors, flags, _ = socket.recv_fds(self, _STAMP.size, _SOCKETS)
        if not data:
            self._on_end()
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        sockets = [socket.socket(fileno=one) for one in descriptors]
        try:
            # Without free descriptors the kernel leaves some out. The client connects again.
            if len(sockets) < _SOCKETS or flags & socket.MSG_CTRUNC:
                raise _aborted()
            (sent_s,) = _STAMP.unpack(data)
            if uptime_s() - sent_s > self._age_max_s or self.open_connections >= self.connections_max:
                raise _aborted()
            try:
                address = ReceivedPeer(sockets[0].getpeername()[:2])
            except OSError as error:
                raise _aborted() from error
        except ConnectionAbortedError:
            for one in sockets:
                one.close()
            raise
        for one in sockets:
            one.set_inheritable(False)
        client, address.far = sockets
        return _Client(self, client, address.far), address


class _Client(CountedSocket):
    """A client's connection in a worker."""

    def __init__(self, listener: Listener, plain: socket.socket, far: socket.socket) -> None:
        super().__init__(listener, plain)
        self._far = far

    def close(self) -> None:
        """Close, together with the end of the pair unless a relay has it; further calls do nothing."""
        self._far.close()
        super().close()


def _aborted() -> ConnectionAbortedError:
    """What asyncio ignores: it accepts the next connection."""
    return ConnectionAbortedError(errno.ECONNABORTED, os.strerror(errno.ECONNABORTED))


class Relay:
    """A worker's end of a pair: sends requests of one client to the daemon, and returns the answers in order.

    Without limit in time: a member of a group may wait for others. It ends with the client's connection, and
    with the daemon.
    """

    def __init__(self, far: socket.socket) -> None:
        """Takes over the descriptor of `far`."""
        self._socket = socket.socket(fileno=far.detach())
        self.on_lost: Callable[[], None] = lambda: None
        """Called when the daemon has closed its end."""
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._opening = False
        """asyncio has the socket, and closes it."""
        self._sending = asyncio.Lock()
        self._waiting: deque[asyncio.Future[bytes]] = deque()
        self._receiving: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._lost = False

    async def ask(self, principal: str, frame: bytes | memoryview, sent: Callable[[], None]) -> bytes:
        """The answer to one request, both as on the wire, the answer with its size in front. `sent` is called
        when the daemon has taken the request.

        Requests are sent in the order of the calls. Raises `ConnectionError` if the daemon has closed the
        connection.
        """
        # A lock that is free is taken without a wait, and others get it in order.
        async with self._sending:
            if self._lost:
                raise ConnectionResetError("the daemon has ended this connection")
            writer = await self._open(principal)
            answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            self._waiting.append(answer)
            writer.writelines((_SIZE.pack(len(frame)), frame))
            await writer.drain()
        # The budget of memory does not count it from here on.
        del frame
        sent()
        return await answer

    def end(self) -> None:
        """The client sends nothing more: the daemon sees that behind the requests so far, and can still
        answer.
        """
        if self._ending is None and not self._lost:
            self._ending = asyncio.create_task(self._send_end())

    def close(self) -> None:
        """End the relay: the daemon sees that the client has gone."""
        self._lost = True
        for task in (self._receiving, self._ending):
            if task is not None:
                task.cancel()
        if self._streams is not None:
            self._streams[1].transport.abort()
        elif not self._opening:
            # A descriptor that asyncio has must not be closed here: the next connection may get its number.
            self._socket.close()
        self._fail()

    async def _send_end(self) -> None:
        async with self._sending:
            if self._streams is not None and not self._lost:
                with contextlib.suppress(OSError):
                    self._streams[1].write_eof()

    async def _open(self, principal: str) -> asyncio.StreamWriter:
        if self._streams is None:
            self._opening = True
            streams = await asyncio.open_connection(sock=self._socket)
            if self._lost:
                streams[1].transport.abort()
                raise ConnectionResetError("the connection has ended")
            self._streams = streams
            name = principal.encode(errors="surrogatepass")
            self._streams[1].writelines((_SIZE.pack(len(name)), name))
            self._receiving = asyncio.create_task(self._receive(self._streams[0]))
        return self._streams[1]

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                head = await reader.readexactly(_SIZE.size)
                (size,) = _SIZE.unpack(head)
                answer = head + await reader.readexactly(size)
                waiting = self._waiting.popleft()
                # The request may have been cancelled; its answer has its place all the same.
                if not waiting.done():
                    waiting.set_result(answer)
        except (OSError, asyncio.IncompleteReadError):
            self._lost = True
            self._fail()
            self.on_lost()

    def _fail(self) -> None:
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_exception(ConnectionResetError("the daemon has ended this connection"))
                # The request may be cancelled before it sees this.
                waiting.exception()


async def read_principal(reader: FrameReader) -> str:
    """In the daemon: who a worker's client is, which comes before its first relayed request. Raises
    `IncompleteReadError` if the client sends none.
    """
    (size,) = _SIZE.unpack(await reader.take(_SIZE.size, math.inf))
    if not 0 <= size <= PRINCIPAL_BYTES_MAX:
        raise ConnectionAbortedError(f"a principal of {size} bytes")
    return bytes(await reader.take(size, math.inf)).decode(errors="surrogatepass")
