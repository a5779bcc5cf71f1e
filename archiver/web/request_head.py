"""Strict framing of requests: an exact limit of the head, and no request whose end is ambiguous.

h11 bounds only heads that are incomplete, so a long head that arrives in one read passes it. It also accepts
bare line feeds, folded lines and a Content-Length together with a Transfer-Encoding, where RFC 9112 lets a
server refuse them. A proxy may read such a request in another way and take the rest of a body for the next
request (request smuggling). Here they are refused before a request reaches the application.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NoReturn

import h11

# h11 has no public way to replace its buffer. The version is locked by digest, and
# tests/unit/test_request_head.py fails if it changes.
from h11._receivebuffer import ReceiveBuffer

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

    def next_event(self) -> h11.Event | type[h11.NEED_DATA | h11.PAUSED]:
        """As h11's; keeps the reason of a refusal, without the text that was refused."""
        try:
            event = super().next_event()
            if isinstance(event, h11.Request):
                self._check_version(event)
        except h11.RemoteProtocolError as error:
            self.refusal = str(error).partition(": ")[0]
            raise
        return event

    def _check_version(self, request: h11.Request) -> None:
        if request.http_version not in (b"1.0", b"1.1"):
            self._refuse("the version is neither HTTP/1.1 nor HTTP/1.0")
        if request.http_version == b"1.0" and any(
            name == b"transfer-encoding" for name, _ in request.headers
        ):
            self._refuse("Transfer-Encoding needs HTTP/1.1")

    def _refuse(self, why: str) -> NoReturn:
        self._process_error(self.their_role)
        raise h11.RemoteProtocolError(why)


class _StrictBuffer(ReceiveBuffer):
    """The bytes that have arrived and are not parsed yet."""

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """The lines of a head or of trailers once they are complete; None while they are not."""
        if self._data[:2] == b"\r\n":
            self._extract(2)
            return []
        # Bytes before this index were searched by an earlier call.
        searched = self._multiple_lines_search
        found = self._data.find(_END, max(0, searched - len(_END) + 1))
        length = len(self._data) if found < 0 else found + len(_END)
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
    if any(line.startswith(_FOLD) for line in lines):
        raise h11.LocalProtocolError("a header goes on in the next line; it must be on one line")
    names = [bytes(line.partition(b":")[0]).lower() for line in lines]
    lengths, codings = names.count(b"content-length"), names.count(b"transfer-encoding")
    if lengths > 1 or codings > 1 or (lengths and codings):
        raise h11.LocalProtocolError(
            "the body has more than one length; send one Content-Length or one Transfer-Encoding"
        )
    if lengths and b"," in lines[names.index(b"content-length")]:
        raise h11.LocalProtocolError("Content-Length has more than one value")


def _trimmed(line: bytearray) -> bytearray:
    """Header without white space around its value.

    h11's regular expression takes quadratic time on it: 3.5 s for 32 KB of spaces.
    """
    name, colon, value = line.partition(b":")
    return name + colon + value.strip(b" \t") if colon and b" " not in name else line
