"""The framing of requests: an exact bound on heads and trailers, and a refusal of all that two parsers could
read differently."""

from __future__ import annotations

import h11
import pytest

from archiver.runtime.clock import SystemClock
from archiver.web.connection import CHUNK_LINE_BYTES_MAX, HEAD_BYTES_MAX, StrictConnection

HOST = b"Host: localhost\r\n"
_CLOCK = SystemClock()


def head_of(length: int, headers: int = 1) -> bytes:
    """A request head of exactly `length` bytes, spread over this number of headers."""
    begin, end = b"GET / HTTP/1.1\r\n" + HOST, b"\r\n"
    size, more = divmod(length - len(begin) - len(end), headers)
    made = (
        begin
        + b"".join(b"X: " + b"x" * (size - 5 + (more if n == 0 else 0)) + b"\r\n" for n in range(headers))
        + end
    )
    assert len(made) == length
    return made


def parsed(*pieces: bytes) -> list[h11.Event]:
    """What h11 makes of bytes that arrive in these pieces; raises `h11.RemoteProtocolError`."""
    connection, events = StrictConnection(), []
    for piece in pieces:
        connection.receive_data(piece)
        while (event := connection.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
            assert isinstance(event, h11.Event)
            events.append(event)
    return events


def refusal(*pieces: bytes) -> str:
    """The reason of the refusal."""
    with pytest.raises(h11.RemoteProtocolError) as raised:
        parsed(*pieces)
    return str(raised.value)


def in_bytes(data: bytes) -> list[bytes]:
    return [bytes([one]) for one in data]


@pytest.mark.parametrize("headers", [1, 100, 3000])
def test_the_bound_on_a_head_is_exact_however_it_arrives(headers: int) -> None:
    fits, passes = head_of(HEAD_BYTES_MAX, headers), head_of(HEAD_BYTES_MAX + 1, headers)
    for pieces in ([fits], [fits[:-1], fits[-1:]], [fits[:20_000], fits[20_000:]]):
        assert isinstance(parsed(*pieces)[0], h11.Request)
    for pieces in ([passes], [passes[:-1], passes[-1:]], [passes[:20_000], passes[20_000:]]):
        assert "longer than 32768 bytes" in refusal(*pieces)


def test_a_request_line_counts_and_an_incomplete_head_is_refused_at_the_bound() -> None:
    assert "longer than" in refusal(b"GET /" + b"x" * 120_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n")
    assert parsed(b"GET /" + b"x" * (HEAD_BYTES_MAX - 5)) == []
    assert "longer than" in refusal(b"GET /" + b"x" * (HEAD_BYTES_MAX - 5), b"x")


def test_the_second_of_two_requests_has_the_same_bound() -> None:
    for first in (
        b"GET / HTTP/1.1\r\n" + HOST + b"\r\n",
        b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\nabc",
    ):
        for length, fits in ((HEAD_BYTES_MAX, True), (HEAD_BYTES_MAX + 1, False)):
            connection = StrictConnection()
            connection.receive_data(first + head_of(length))
            while not isinstance(connection.next_event(), h11.EndOfMessage):
                pass
            assert connection.next_event() is h11.PAUSED
            for event in (
                h11.Response(status_code=200, headers=[("Content-Length", "0")]),
                h11.EndOfMessage(),
            ):
                connection.send(event)
            connection.start_next_cycle()
            if fits:
                assert isinstance(connection.next_event(), h11.Request)
                continue
            with pytest.raises(h11.RemoteProtocolError, match="longer than"):
                connection.next_event()


def test_trailers_have_the_bound_of_a_head() -> None:
    begin = b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n"
    assert isinstance(parsed(begin, b"X: " + b"x" * (HEAD_BYTES_MAX - 7) + b"\r\n\r\n")[-1], h11.EndOfMessage)
    assert "longer than" in refusal(begin, b"X: " + b"x" * (HEAD_BYTES_MAX - 6) + b"\r\n\r\n")
    assert "longer than" in refusal(begin, b"X: y\r\n" * 6000 + b"\r\n")


def test_the_line_before_a_chunk_is_bounded() -> None:
    begin = b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
    assert isinstance(parsed(begin, b"3;" + b"x" * (CHUNK_LINE_BYTES_MAX - 4) + b"\r\nabc")[-1], h11.Data)
    assert "before a chunk" in refusal(begin, b"3;" + b"x" * (CHUNK_LINE_BYTES_MAX - 3) + b"\r\nabc")
    assert "before a chunk" in refusal(begin, b"3;" + b"x" * CHUNK_LINE_BYTES_MAX)


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", "more than one length"),
        (b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n", "more than one length"),
        (b"Content-Length: 3\r\nContent-Length: 3\r\n", "more than one length"),
        (b"Content-Length: 3\r\ncontent-LENGTH: 4\r\n", "more than one length"),
        (b"Content-Length: 3, 3\r\n", "more than one value"),
        (b"Content-Length: +3\r\n", "bad Content-Length"),
        (b"Content-Length: -3\r\n", "bad Content-Length"),
        (b"Content-Length: 0x3\r\n", "bad Content-Length"),
        (b"Content-Length: 3 3\r\n", "bad Content-Length"),
        (b"Content-Length:\r\n", "bad Content-Length"),
        (b"Content-Length : 3\r\n", "illegal header line"),
        (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "more than one length"),
        (b"Transfer-Encoding: gzip, chunked\r\n", "Only Transfer-Encoding: chunked"),
        (b"Transfer-Encoding: identity\r\n", "Only Transfer-Encoding: chunked"),
        (b"Transfer-Encoding: xchunked\r\n", "Only Transfer-Encoding: chunked"),
        (b"Transfer-Encoding: \x0bchunked\r\n", "illegal header line"),
        (b"Transfer-Encoding\r\n : chunked\r\n", "goes on in the next line"),
        (b"X: y\r\n Content-Length: 3\r\n", "goes on in the next line"),
        (b"X: y\nContent-Length: 3\r\n", "line feed alone"),
        (b"X: y\r\n\nContent-Length: 3\r\n", "line feed alone"),
        (b"X: y\rContent-Length: 3\r\n", "illegal header line"),
        (b"X: \x00\r\n", "illegal header line"),
        (b": y\r\n", "illegal header line"),
    ],
)
def test_a_length_in_doubt_is_refused_before_a_request_is_seen(lines: bytes, why: str) -> None:
    whole = b"POST / HTTP/1.1\r\n" + HOST + lines + b"\r\n3\r\nabc\r\n0\r\n\r\n"
    assert why in refusal(whole)
    assert why in refusal(*in_bytes(whole))


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", "needs HTTP/1.1"),
        (b"POST / HTTP/2.0\r\nHost: a\r\n\r\n", "neither HTTP/1.1 nor HTTP/1.0"),
        (b"POST / HTTP/0.9\r\nHost: a\r\n\r\n", "neither HTTP/1.1 nor HTTP/1.0"),
        (b"POST / HTTP/1.1 \r\nHost: a\r\n\r\n", "illegal request line"),
        (b"POST  / HTTP/1.1\r\nHost: a\r\n\r\n", "illegal request line"),
        (b"POST / HTTP/1.1\nHost: a\r\n\r\n", "line feed alone"),
        (b" POST / HTTP/1.1\r\nHost: a\r\n\r\n", "goes on in the next line"),
        (b"POST / HTTP/1.1\r\n\r\n", "Missing mandatory Host"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "multiple Host"),
    ],
)
def test_a_first_line_in_doubt_is_refused(first: bytes, why: str) -> None:
    assert why in refusal(first)


def test_what_is_usual_is_accepted() -> None:
    accepted = parsed(
        b"POST /a?b=c HTTP/1.1\r\nhost: a\r\nX-Empty:\r\nX-Spaces: \t a b \t \r\nContent-Length: 3\r\n\r\nabc"
    )
    assert isinstance(accepted[0], h11.Request)
    assert dict(accepted[0].headers) == {
        b"host": b"a",
        b"x-empty": b"",
        b"x-spaces": b"a b",
        b"content-length": b"3",
    }
    assert [type(event) for event in accepted] == [h11.Request, h11.Data, h11.EndOfMessage]
    assert isinstance(parsed(b"GET / HTTP/1.0\r\n\r\n")[0], h11.Request)
    chunked = (
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n3;name=value\r\nabc\r\n0\r\nX: "
        b"y\r\n\r\n"
    )
    assert isinstance(parsed(*in_bytes(chunked))[-1], h11.EndOfMessage)


def test_white_space_costs_no_more_than_other_bytes() -> None:
    """h11's expression backtracks over white space before an illegal byte: 32 KB of it held the whole port
    for seconds."""

    def seconds(filling: bytes) -> float:
        began_s = _CLOCK.monotonic_s()
        for _ in range(3):
            refusal(b"GET / HTTP/1.1\r\n" + HOST + b"X: " + filling + b"\x00\r\n\r\n")
        return _CLOCK.monotonic_s() - began_s

    spaces, letters = (
        min(seconds(b" " * 20_000) for _ in range(2)),
        max(seconds(b"a" * 20_000) for _ in range(2)),
    )
    assert spaces < 100 * letters, "quadratic time would be thousands of times as much"
