"""Connection of the port with time limits for the client.

uvicorn limits only the pause between two requests. Here the head of a request must arrive in time, and so
must the rest of a refused body. `archiver.web.bodies` limits bodies, `archiver.web.write_watch` answers.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from archiver.web.error_responses import error_document
from archiver.web.request_head import StrictConnection

HEAD_S = 10.0
"""Limit for the head of a request from its first byte, or from the start of the connection for the first
request. Also for the rest of a refused body."""
READ_BYTES_MAX = 64 * 1024
"""Bytes read in one step. They are parsed without a pause, so this bounds the wait of other connections."""


class TimeoutProtocol(H11Protocol):
    """Closes the connection of a client that is too slow or sends no valid request."""

    conn: StrictConnection
    _head: asyncio.TimerHandle | None = None

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.conn = StrictConnection()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the class above
        """A client has connected."""
        # Read by asyncio's plain transport (256 KiB without it). A TLS transport has a buffer of its own and
        # does not read it.
        transport.max_size = READ_BYTES_MAX  # type: ignore[attr-defined]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes of a head, or of a body."""
        if self._head is None and not self._is_answering():
            self._await_head()
        super().data_received(data)
        if self._is_answering():
            self._stop_waiting()

    def on_response_complete(self) -> None:
        """An answer is written; the client may not have read it."""
        self._stop_waiting()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse an invalid request and close, because the start of the next request is unknown."""
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            if not cycle.more_body:
                # Bytes behind a whole request that closes its connection. Its records may be stored: "nothing
                # was done" would be wrong.
                self.flow.pause_reading()
                return
            # The body of the request cannot be read. The application must not answer as well.
            cycle.disconnected = True
            cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            # The answer has begun or is complete: a second one would be taken for that of another request.
            self.transport.close()
            return
        reason = self.conn.refusal or msg
        body = json.dumps(
            error_document("InvalidInput", f"this is no valid HTTP request: {reason}; nothing was done")
        ).encode()
        headers = [
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
        ]
        for event in (
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def shutdown(self) -> None:
        """The server stops: abort idle connections. Over TLS an idle client would not answer a regular
        close.
        """
        super().shutdown()
        if not self._is_answering() and not self.transport.get_write_buffer_size():
            self.transport.abort()

    def _is_answering(self) -> bool:
        """Whether a request is being answered; that time has no limit here."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def _await_head(self) -> None:
        self._head = self.loop.call_later(HEAD_S, self._head_is_late)

    def _stop_waiting(self) -> None:
        if self._head is not None:
            self._head.cancel()
        self._head = None

    def _head_is_late(self) -> None:
        self._head = None
        if not self._is_answering():
            self.transport.abort()
