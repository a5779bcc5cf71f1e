"""One connection of the port, with an end to everybody's patience.

Adds to the server's protocol what it lacks: a bound on the time that the head of a request may take, also if its bytes
trickle in, and on the time that an answer may lie unread. Between two requests a connection may rest for as long as the server's
keep-alive says: a sender that finds its connection closed cannot know what became of its records.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

HEAD_S = 10.0
"""For the head of a request, from its first byte on (the first one of a connection: from its beginning on); and for the rest of a body that
was refused."""
UNREAD_S = 60.0
"""For a client that does not read its answer."""


class PatientConnection(H11Protocol):
    """A connection that is closed when its client takes too long."""

    _head: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the class above
        """A client is there."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes of a head, or of a body."""
        if self._head is None and not self._works():
            self._await_head()
        super().data_received(data)
        if self._works():
            self._stop_waiting()

    def on_response_complete(self) -> None:
        """An answer is written, though perhaps not read."""
        self._stop_waiting()
        self._unread = self.loop.call_later(UNREAD_S, self._unread_is_late)
        super().on_response_complete()

    def shutdown(self) -> None:
        """The server stops: a connection that rests is closed at once, over TLS too, where a client that rests would not say goodbye."""
        super().shutdown()
        if not self._works() and not self.transport.get_write_buffer_size():
            self.transport.abort()

    def _works(self) -> bool:
        """A request is being answered; how long that takes is its own affair."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def _await_head(self) -> None:
        self._head = self.loop.call_later(HEAD_S, self._head_is_late)

    def _stop_waiting(self) -> None:
        for timer in (self._head, self._unread):
            if timer is not None:
                timer.cancel()
        self._head = self._unread = None

    def _head_is_late(self) -> None:
        self._head = None
        if not self._works():
            self.transport.abort()

    def _unread_is_late(self) -> None:
        self._unread = None
        if self.transport.get_write_buffer_size():
            self.transport.abort()
