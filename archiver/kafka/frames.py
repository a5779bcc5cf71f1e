"""Receives what a client sends: a stated number of bytes, until a stated time.

asyncio's stream copies every request twice, and makes a timer for each wait. Here the bytes of a large
request are received where they stay, and a connection has one timer, which is moved only when it fires.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Final

import numpy as np

RECEIVE_BYTES: Final = 16 * 1024
"""Bytes that may be received before `take` asks for them, and the most in one step. A connection that has so
many is not read."""

Serve = Callable[["FrameReader", asyncio.StreamWriter], Awaitable[None]]


class FrameReader(asyncio.StreamReader):
    """What one connection receives. Only `take` reads from it, in one task."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._clock = loop
        self._connection: asyncio.Transport | None = None
        self._early = b""
        """Received and not taken yet, from `_early_at` on."""
        self._early_at = 0
        self._frame: memoryview | None = None
        """Room of a large request that is being received."""
        self._filled = 0
        """Bytes of it that are there."""
        self._whole: memoryview | None = None
        """The same once all of it is there."""
        self._requested = 0
        self._waiting: asyncio.Future[None] | None = None
        """Of the `take` that waits for `_requested` bytes."""
        self._until_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        """Fires at or before `_until_s` while a `take` waits."""
        self._resting = False
        """The transport does not read."""

    def set_transport(self, transport: asyncio.BaseTransport) -> None:
        """Overrides the method of the base class."""
        super().set_transport(transport)
        assert isinstance(transport, asyncio.Transport), "it is of a server"
        self._connection = transport

    async def take(self, count: int, until_s: float) -> bytes | memoryview:
        """The next bytes. Raises `TimeoutError` if they are not there at that time of the loop; another call
        may then wait on for them, unless they are many. Raises `asyncio.IncompleteReadError` if the client
        ends before, and what the transport failed with.
        """
        if (error := self.exception()) is not None:
            raise error
        early = len(self._early) - self._early_at
        if early >= count:
            at = self._early_at
            self._early_at = at + count
            return self._early[at : at + count]
        if count > RECEIVE_BYTES:
            # Not filled with zeros first: no byte of it is read before it arrived.
            self._frame = np.empty(count, np.uint8).data
            self._frame[:early] = memoryview(self._early)[self._early_at :]
            self._early, self._early_at, self._filled = b"", 0, early
        self._requested = count
        await self._arrival(until_s)
        if self._whole is not None:
            frame, self._whole = self._whole, None
            return frame
        self._early_at = count
        return self._early[:count]

    async def _arrival(self, until_s: float) -> None:
        """Wait until the requested bytes have arrived. What came early is the beginning of them."""
        self._early, self._early_at = self._early[self._early_at :], 0
        if self.at_eof():
            raise self._incomplete()
        self._waiting = self._clock.create_future()
        self._until_s = until_s
        if self._timer is None or self._timer.when() > until_s:
            self._set_timer()
        if self._resting and self._connection is not None:
            self._resting = False
            self._connection.resume_reading()
        try:
            await self._waiting
        finally:
            self._waiting = None

    def _incomplete(self) -> asyncio.IncompleteReadError:
        partial = self._early if self._frame is None else bytes(self._frame[: self._filled])
        return asyncio.IncompleteReadError(partial, self._requested)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._clock.call_at(self._until_s, self._fired)

    def _fired(self) -> None:
        self._timer = None
        if self._waiting is None or self._waiting.done():
            return
        if self._clock.time() < self._until_s:
            self._set_timer()
        else:
            self._waiting.set_exception(TimeoutError())

    # --- From the transport

    def room(self, shared: memoryview) -> memoryview:
        """Where the next bytes go: the room of a large request, or `shared`, which every connection uses."""
        return shared if self._frame is None else self._frame[self._filled :]

    def received(self, count: int, shared: memoryview) -> None:
        """So many bytes are there."""
        if self._frame is not None:
            self._filled += count
            if self._filled == self._requested:
                self._frame, self._whole = None, self._frame
                self._arrived()
            return
        self._early = self._early[self._early_at :] + shared[:count]
        self._early_at = 0
        if self._waiting is None or self._waiting.done():
            if len(self._early) >= RECEIVE_BYTES and self._connection is not None:
                # The client waits in its own send buffer.
                self._resting = True
                self._connection.pause_reading()
        elif len(self._early) >= self._requested:
            self._arrived()

    def _arrived(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def feed_eof(self) -> None:
        """Overrides the method of the base class."""
        super().feed_eof()
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(self._incomplete())

    def set_exception(self, exc: Exception) -> None:
        """Overrides the method of the base class."""
        super().set_exception(exc)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(exc)

    def stop(self) -> None:
        """The connection is closed."""
        self._connection = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _FrameProtocol(asyncio.StreamReaderProtocol, asyncio.BufferedProtocol):
    """As asyncio's protocol of streams, with a `FrameReader`."""

    def __init__(
        self, reader: FrameReader, serve: Serve, loop: asyncio.AbstractEventLoop, shared: memoryview
    ) -> None:
        super().__init__(reader, serve, loop=loop)  # type: ignore[arg-type]  # it gets this reader
        self._frames = reader
        self._shared = shared

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Overrides the method of the base class."""
        return self._frames.room(self._shared)

    def buffer_updated(self, nbytes: int) -> None:
        """Overrides the method of the base class."""
        self._frames.received(nbytes, self._shared)

    def connection_lost(self, exc: Exception | None) -> None:
        """Overrides the method of the base class."""
        super().connection_lost(exc)
        self._frames.stop()


async def start_server(
    serve: Serve, listener: socket.socket, context: ssl.SSLContext | None, handshake_s: float | None
) -> asyncio.Server:
    """As `asyncio.start_server`, with a `FrameReader` for each connection."""
    loop = asyncio.get_running_loop()
    # The loop receives for one connection at a time.
    shared = memoryview(bytearray(RECEIVE_BYTES))
    return await loop.create_server(
        lambda: _FrameProtocol(FrameReader(loop), serve, loop, shared),
        sock=listener,
        ssl=context,
        ssl_handshake_timeout=handshake_s,
    )
