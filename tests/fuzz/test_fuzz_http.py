"""Fuzz target: the head and the body of HTTP requests, over a real connection.

Any bytes, in any pieces, get an answer or a closed connection within a bound. The port then still answers,
and the log has no error.
"""

from __future__ import annotations

import contextlib
import http.client
import logging
import re
import socket
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from archiver.web import bodies, connection
from tests.support.builders.deployment import Deployment
from tests.support.fuzzing import fuzzing
from tests.support.process.processes import until
from tests.support.process.web import TOKEN, Daemon

BOUND_S = 0.2
"""For heads and for bodies, instead of ten seconds: much of what is sent is never complete."""
ANSWERED_S = 30.0
"""Nothing takes so long, however busy the machine is."""
STATUSES = {200, 400, 401, 403, 404, 405, 408, 409, 413, 415, 422, 429, 500, 503}

PATHS = st.sampled_from(
    [
        *(
            "/",
            "/healthz",
            "/readyz",
            "/metrics",
            "/openapi.json",
            "/nowhere",
            "*",
            "http://localhost/healthz",
            "/%00%ff",
            "//",
            "/?refresh=x",
        ),
        *(
            "/v1/topics/clicks/records",
            "/v1/topics/orders/records?text=true",
            "/v1/topics/../records",
            "/v1/admin/reload",
            "/v1/admin/status",
        ),
    ]
).map(str.encode) | st.binary(max_size=60)
METHODS = st.sampled_from(
    [b"GET", b"POST", b"HEAD", b"PUT", b"CONNECT", b"OPTIONS", b"get", b"PRI"]
) | st.binary(max_size=10)
VERSIONS = st.sampled_from(
    [b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/0.9", b"HTTP/1.1x"]
) | st.binary(max_size=10)
ENDS = st.sampled_from([b"\r\n"] * 8 + [b"\n", b"\r", b"\r\r\n", b""])
VALUES = st.sampled_from(
    [
        *(
            b"localhost",
            b"127.0.0.1:80",
            b"evil.example",
            b"0",
            b"3",
            b"18",
            b"+3",
            b"-1",
            b"3, 3",
            b"99999999999999999999",
            b"1" * 30,
        ),
        *(
            b"chunked",
            b"gzip, chunked",
            b"identity",
            b"close",
            b"keep-alive",
            b"upgrade",
            b"websocket",
            b"100-continue",
            b"gzip",
        ),
        *(
            b"application/x-ndjson",
            b"application/x-protobuf",
            b"application/json",
            b"text/plain; charset=latin-1",
        ),
        *(f"Bearer {TOKEN}".encode(), b"Bearer \xff", b" " * 5000 + b"\x00", b"a" * 40_000),
    ]
) | st.binary(max_size=40)
NAMES = st.sampled_from(
    [
        *(
            b"Host",
            b"Content-Length",
            b"Transfer-Encoding",
            b"Connection",
            b"Upgrade",
            b"Expect",
            b"Content-Type",
            b"Content-Encoding",
        ),
        *(b"Authorization", b"Origin", b"X", b" X", b"X "),
    ]
) | st.binary(max_size=10)
HEADERS = st.lists(
    st.tuples(NAMES, st.sampled_from([b": ", b":", b" : "]), VALUES, ENDS).map(b"".join), max_size=6
).map(b"".join)
BODIES = st.one_of(
    st.just(b""),
    st.binary(max_size=200),
    st.sampled_from(
        [b'{"value": "YQ=="}\n', b"{", b"[]", b'{"all": null}', b"\x00" * 18, b"\xff\xff\xff\xff\x0f"]
    ),
    st.sampled_from(
        [
            b"3\r\nabc\r\n0\r\n\r\n",
            b"0\r\nX: y\r\n\r\n",
            b"zz\r\n",
            b"ffffffffffffffffffff\r\n",
            b"1;" + b"x" * 2000 + b"\r\na\r\n",
        ]
    ),
)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """Something like a request; often one that gets past the parser."""
    if draw(st.booleans()):
        first = draw(METHODS) + b" " + draw(PATHS) + b" " + draw(VERSIONS) + draw(ENDS)
        return first + draw(HEADERS) + draw(ENDS) + draw(BODIES)
    body = draw(BODIES)
    kind, token = draw(st.sampled_from([b"x-ndjson", b"x-protobuf", b"json"])), f"Bearer {TOKEN}".encode()
    length = (
        b"Transfer-Encoding: chunked"
        if draw(st.booleans())
        else b"Content-Length: %d" % (len(body) + draw(st.sampled_from([0, 0, 0, -1, 7])))
    )
    target = draw(METHODS) + b" " + draw(PATHS) + b" HTTP/1.1\r\n"
    fixed = (
        b"Host: localhost\r\nContent-Type: application/"
        + kind
        + b"\r\nAuthorization: "
        + token
        + b"\r\n"
        + length
        + b"\r\n"
    )
    return target + fixed + draw(HEADERS) + b"\r\n" + body


INPUTS = st.lists(requests(), min_size=1, max_size=3).map(b"".join) | st.binary(min_size=1, max_size=300)
CUTS = st.lists(st.integers(0, 400), max_size=4)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, list[logging.LogRecord]]]:
    """A port with short bounds, and what is logged that should not be."""
    wrong: list[logging.LogRecord] = []

    class Collecting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info or record.levelno >= logging.ERROR:
                wrong.append(record)

    handler = Collecting()
    root: Path = tmp_path_factory.mktemp("fuzzed")
    logging.getLogger().addHandler(handler)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(connection, "HEAD_S", BOUND_S)
        patched.setattr(bodies, "WINDOW_S", BOUND_S)
        with Daemon(Deployment(root / "d"), request_timeout=5) as daemon:
            yield daemon, wrong
            until("every connection is let go", lambda: not open_connections(daemon))
    logging.getLogger().removeHandler(handler)


def open_connections(daemon: Daemon) -> set[Any]:
    """Those that the server has not let go."""
    server = daemon.server._server
    assert server is not None
    return server.server_state.connections


def replied(daemon: Daemon, data: bytes, cuts: list[int]) -> bytes:
    """What comes first: bytes of an answer, or nothing when the connection is closed."""
    with daemon.raw() as client, contextlib.suppress(ConnectionError):
        client.settimeout(ANSWERED_S)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        at = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
        for begin, end in pairwise(at):
            client.sendall(data[begin:end])
        return bytes(client.recv(65536))
    return b""


def is_answered(daemon: Daemon) -> bool:
    """Whether the port answers an ordinary request."""
    try:
        return daemon.call("GET", "/healthz").status == 200
    except (OSError, http.client.HTTPException):
        return False


@fuzzing()
# An answer to HEAD has no body, also if the request is refused behind its head.
@example(b"HEAD / HTTP/2.0\r\nHost: a\r\n\r\n", [])
@given(INPUTS, CUTS)
def test_any_bytes_get_an_answer_or_a_closed_connection(
    port: tuple[Daemon, list[logging.LogRecord]], data: bytes, cuts: list[int]
) -> None:
    daemon, wrong = port
    reply = replied(daemon, data, cuts)
    if reply and not reply.startswith(b"HTTP/1.1 100"):
        found = re.match(rb"HTTP/1\.1 (\d{3}) ", reply)
        assert found, reply
        assert int(found[1]) in STATUSES, reply
    # More than once: on a busy machine the bounds of this port cut off a client that keeps the rules.
    until("the port answers", lambda: is_answered(daemon))
    assert [record.getMessage() for record in wrong] == []
