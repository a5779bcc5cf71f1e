"""Connection of the port: refuses ambiguous heads, and limits the time of the client.

uvicorn limits only the pause between two requests. `archiver.web.bodies` limits bodies,
`archiver.web.listener` answers.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from typing import Any, NoReturn

import h11
from h11._receivebuffer import ReceiveBuffer
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from archiver.web.error_responses import error_document

# h11 has no public way to replace its buffer. The version is locked by digest, and
# tests/unit/test_request_head.py fails if it changes.

# --- Strict heads
HEAD_BYTES_MAX = 32 * 1024
"""Of a request: its first line and its headers, with the empty line at their end. Trailers have the same
bound."""
CHUNK_LINE_BYTES_MAX = 1024
"""Of the line that begins a chunk: its size in hexadecimal digits, and extensions."""

_BARE_LINE_FEED = re.compile(rb"(?<!\r)\n")
_END = b"\r\n\r\n"
_FOLD = (b" ", b"\t")


class StrictConnection(h11.Connection):
    """h11's server over a buffer that refuses long or ambiguous heads with `h11.RemoteProtocolError`."""

    refusal = ""
    """Why the last request was refused, for the answer."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER, HEAD_BYTES_MAX)
        self._receive_buffer = _StrictBuffer()

    @property
    def answers_head(self) -> bool:
        """Whether the newest request is a HEAD request, so that its answer has no body."""
        return self._request_method == b"HEAD"

    def next_event(self) -> h11.Event | type[h11.NEED_DATA | h11.PAUSED]:
        """As h11's; keeps the reason of a refusal, without the text that was refused."""
        try:
            event = super().next_event()
            if isinstance(event, h11.Request):
                self._check_version(event)
        except h11.RemoteProtocolError as error:
            # Behind the colon h11 quotes the request, which must not be repeated in an answer.
            self.refusal = str(error).partition(": ")[0]
            raise
        return event

    def _check_version(self, request: h11.Request) -> None:
        if request.http_version not in (b"1.0", b"1.1"):
            self._refuse("the version is neither HTTP/1.1 nor HTTP/1.0")
        # A proxy may ignore the header there and see another end of the body (request smuggling).
        if request.http_version == b"1.0" and any(
            name == b"transfer-encoding" for name, _ in request.headers
        ):
            self._refuse("Transfer-Encoding needs HTTP/1.1")

    def _refuse(self, why: str) -> NoReturn:
        # h11 must know that its peer failed, or it would parse the rest as a request.
        self._process_error(self.their_role)
        raise h11.RemoteProtocolError(why)


class _StrictBuffer(ReceiveBuffer):
    """The bytes that have arrived and are not parsed yet."""

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """The lines of a head or of trailers once they are complete; None while they are not."""
        # An empty head, or the end of a chunked body without trailers.
        if self._data[:2] == b"\r\n":
            self._extract(2)
            return []
        # Bytes before this index were searched by an earlier call.
        searched = self._multiple_lines_search
        found = self._data.find(_END, max(0, searched - len(_END) + 1))
        length = len(self._data) if found < 0 else found + len(_END)
        # Also of an incomplete head, so that it cannot grow without end.
        if length > HEAD_BYTES_MAX:
            raise h11.LocalProtocolError(
                f"the request line and the headers are longer than {HEAD_BYTES_MAX} bytes"
            )
        # One byte back, because the expression looks behind.
        if _BARE_LINE_FEED.search(self._data, max(0, searched - 1), length):
            raise h11.LocalProtocolError("a line ends with a line feed alone; lines end with CR LF")
        if found < 0:
            self._multiple_lines_search = len(self._data)
            return None
        lines = self._extract(length)[: -len(_END)].split(b"\r\n")
        _check_lines(lines)
        return [_trimmed(line) for line in lines]

    def maybe_extract_next_line(self) -> bytearray | None:
        """The line that begins a chunk."""
        line: bytearray | None = super().maybe_extract_next_line()
        if len(self._data if line is None else line) > CHUNK_LINE_BYTES_MAX:
            raise h11.LocalProtocolError(
                f"the line before a chunk is longer than {CHUNK_LINE_BYTES_MAX} bytes"
            )
        return line


def _check_lines(lines: Sequence[bytearray]) -> None:
    """Refuse what leaves the end of the request in doubt; raises `h11.LocalProtocolError`."""
    # A folded header has two readings: one value, or two headers.
    if any(line.startswith(_FOLD) for line in lines):
        raise h11.LocalProtocolError("a header goes on in the next line; it must be on one line")
    names = [bytes(line.partition(b":")[0]).lower() for line in lines]
    lengths, codings = names.count(b"content-length"), names.count(b"transfer-encoding")
    # A proxy in front may use the other length and see a second request in the body.
    if lengths > 1 or codings > 1 or (lengths and codings):
        raise h11.LocalProtocolError(
            "the body has more than one length; send one Content-Length or one Transfer-Encoding"
        )
    if lengths and b"," in lines[names.index(b"content-length")]:
        raise h11.LocalProtocolError("Content-Length has more than one value")


def _trimmed(line: bytearray) -> bytearray:
    """Header without white space around its value."""
    # h11's regular expression takes quadratic time on it: 3.5 s for 32 KB of spaces.
    name, colon, value = line.partition(b":")
    return name + colon + value.strip(b" \t") if colon and b" " not in name else line


# --- Time limits
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
        # The base class has created its own; nothing was read by it yet.
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
        # The first byte of a further request starts its time.
        if self._head is None and not self._is_answering():
            self._await_head()
        super().data_received(data)
        # The head is complete: from here the limits of the body apply.
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
            h11.Data(data=b"" if self.conn.answers_head else body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def shutdown(self) -> None:
        """The server stops: abort idle connections."""
        super().shutdown()
        # Over TLS an idle client would not answer a regular close.
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
        # A request may have become complete at the same moment.
        if not self._is_answering():
            self.transport.abort()
