"""Requests whose end is ambiguous, over real connections: refused with 400 and closed before routing, on
every route.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from archiver.web.connection import HEAD_BYTES_MAX
from tests.integration.test_http_limits import GOOD, answer, head, receive
from tests.support.builders.deployment import Deployment
from tests.support.process.processes import until
from tests.support.process.web import Daemon, read_all

BOTH = b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n"
NDJSON_LINE = b"Content-Type: application/x-ndjson\r\n"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(Deployment(tmp_path / "d")) as daemon:
        yield daemon


def statuses(replies: bytes) -> list[bytes]:
    return re.findall(rb"HTTP/1\.1 (\d+)", replies)


def exchanged(daemon: Daemon, *pieces: bytes) -> bytes:
    """The bytes that arrive until the server closes."""
    with daemon.raw() as client:
        try:
            for piece in pieces:
                client.sendall(piece)
            return read_all(client)
        except ConnectionError:
            return b""  # It was refused while it was still being sent.


@pytest.mark.parametrize(
    "path", ["/healthz", "/", "/nowhere", "/v1/admin/archive", "/v1/topics/clicks/records", "/metrics"]
)
def test_a_body_with_two_lengths_ends_the_connection_on_every_route(daemon: Daemon, path: str) -> None:
    for method in (b"GET", b"POST"):
        request = method + f" {path} HTTP/1.1\r\nHost: localhost\r\n".encode() + BOTH + b"\r\n0\r\n\r\n"
        replies = exchanged(daemon, request + SMUGGLED)
        assert statuses(replies) == [b"400"], replies
        body = answer(replies)[1]
        assert json.loads(body)["error"]["type"] == "InvalidInput"
        assert "more than one length" in body
        assert "nothing was done" in body
        assert b"connection: close" in replies.lower()


@pytest.mark.parametrize(
    "lines",
    [
        b"Content-Length: 0\r\nContent-Length: 0\r\n",
        b"Transfer-Encoding: gzip\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        b"X: y\r\n folded\r\n",
        b"X: y\nZ: z\r\n",
    ],
)
def test_a_head_in_doubt_ends_the_connection(daemon: Daemon, lines: bytes) -> None:
    assert statuses(
        exchanged(daemon, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + lines + b"\r\n" + SMUGGLED)
    ) == [b"400"]


def test_chunks_in_a_request_of_http_1_0_end_the_connection(daemon: Daemon) -> None:
    request = b"POST /healthz HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    assert statuses(exchanged(daemon, request + SMUGGLED)) == [b"400"]


def test_a_head_over_the_bound_is_refused_also_when_it_arrives_at_once(daemon: Daemon) -> None:
    begin, end = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX: ", b"\r\n\r\n"
    fitting = begin + b"x" * (HEAD_BYTES_MAX - len(begin) - len(end)) + end
    assert statuses(exchanged(daemon, fitting)) == [b"200"]
    for request in (
        fitting.replace(b"X: ", b"X: x"),
        begin + b"x" * 120_000 + end,
        begin + b"y\r\nX: " * 20_000 + end,
    ):
        assert statuses(exchanged(daemon, request)) in ([b"400"], [])
    first = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert statuses(exchanged(daemon, first + fitting)) == [b"200", b"200"]
    assert statuses(exchanged(daemon, first + fitting.replace(b"X: ", b"X: x"))) == [b"200", b"400"]
    assert daemon.call("GET", "/healthz").status == 200


def test_trailers_over_the_bound_store_nothing(daemon: Daemon) -> None:
    chunks = head() + b"%x\r\n%s\r\n0\r\n" % (len(GOOD), GOOD)
    assert statuses(exchanged(daemon, chunks + b"X: " + b"x" * 40_000 + b"\r\n\r\n")) in ([b"400"], [])
    assert daemon.stored("clicks") == {}
    closing = chunks.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)
    assert statuses(exchanged(daemon, closing + b"X: y\r\n\r\n")) == [b"200"]


def test_bytes_behind_a_whole_request_do_not_turn_its_answer_into_a_refusal(
    daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    """Its records may be stored by then. A 400 with "nothing was done" would have them sent again, and stored
    twice."""
    assert daemon.writer is not None
    writer = daemon.writer
    handed_over: set[int] = {writer.metrics().records_accepted}
    for version, more in ((b"1.1", b"Connection: close\r\n"), (b"1.0", b"")):
        request = head(len(GOOD)).replace(b"HTTP/1.1\r\n", b"HTTP/" + version + b"\r\n" + more) + GOOD
        with daemon.raw() as client:
            client.sendall(request)
            until("it is handed over", lambda: writer.metrics().records_accepted not in handed_over)
            handed_over.add(writer.metrics().records_accepted)
            client.sendall(b"\r\n" + SMUGGLED)
            assert statuses(received(client)) == [b"200"]
    assert len(daemon.stored("clicks")) == 2
    assert "Traceback" not in caplog.text


def received(client: socket.socket) -> bytes:
    """What arrives until the server closes, or resets because it did not read what followed."""
    pieces = []
    try:
        while piece := client.recv(65536):
            pieces.append(piece)
    except ConnectionError:
        pass
    return b"".join(pieces)


def test_a_broken_chunk_behind_an_answer_closes_the_connection_quietly(
    daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    with daemon.raw() as client:
        client.sendall(
            head().replace(b"/clicks/", b"/nowhere/").replace(NDJSON_LINE, b"Content-Type: text/x\r\n")
        )
        assert receive(client).startswith(b"HTTP/1.1 415")
        client.sendall(b"zz\r\n\r\n")
        assert received(client) == b""
    assert daemon.call("GET", "/healthz").status == 200
    assert [record for record in caplog.records if record.exc_info] == []
