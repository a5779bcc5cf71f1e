"""A proxy in front of a real server that loses, delays and falsifies what passes through it, request by
request.

It classifies the requests of a REST catalog by operation, so that a test can give each kind its fault.
`s3_faults.py` does so for those of S3. It also plays the whole server being away: connections refused, or
accepted and never answered.
"""

from __future__ import annotations

import enum
import http.client
import re
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase
from typing import Any, Self
from urllib.parse import urlsplit

from tests.support.process.processes import until

Operation = str
"""`config`, `load`, `namespace`, `create`, `swap`, `evolve`, `other` of a catalog."""

DRIP_S = 0.05
UPSTREAM_TIMEOUT_S = 60
ENDS_S = 30.0


class Play(enum.Enum):
    """What becomes of one request."""

    ANSWER_BEFORE = "answered without passing it on"
    ANSWER_AFTER = "passed on, answered otherwise"
    RESET_BEFORE = "connection reset without passing it on"
    RESET_AFTER = "passed on, connection reset"
    SILENT_BEFORE = "not passed on, never answered"
    SILENT_AFTER = "passed on, never answered"
    LATE = "never answered, passed on when the test says so"
    DRIP = "passed on, the answer comes a few bytes at a time"
    DRIP_HEADER = "passed on, and so does a header of the answer, without an end"
    GARBAGE_BEFORE = "not passed on, answered with success and nonsense"
    GARBAGE_AFTER = "passed on, answered with success and nonsense"
    SLOW = "passed on, answered late but in time"


@dataclass(frozen=True)
class Fault:
    """A kind of fault; `status` is what is answered."""

    play: Play
    status: int = 0

    def __str__(self) -> str:
        return f"{self.play.name.lower()}{f'-{self.status}' if self.status else ''}"


@dataclass
class _Armed:
    fault: Fault
    operation: Operation
    after: Operation | None
    """It waits until a request of this kind has been seen."""


@dataclass(frozen=True)
class Asked:
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def operation(self) -> Operation:
        """What it asks of a catalog."""
        path = urlsplit(self.path).path
        if path.endswith("/v1/config"):
            return "config"
        if re.fullmatch(r".*/namespaces", path) and self.method == "POST":
            return "namespace"
        if re.fullmatch(r".*/namespaces/[^/]+/tables", path) and self.method == "POST":
            return "create"
        if re.fullmatch(r".*/namespaces/[^/]+/tables/[^/]+", path):
            if self.method == "GET":
                return "load"
            if self.method == "POST":
                return (
                    "evolve"
                    if b'"set-current-schema"' in self.body and b'"add-snapshot"' not in self.body
                    else "swap"
                )
        return "other"


@dataclass(frozen=True)
class Answer:
    """One answer."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


class HttpFaults:
    """The proxy, on a loopback port of its own that it keeps until it is closed. `upstream` gives the
    catalog's address when asked."""

    def __init__(self, upstream: Callable[[], str]) -> None:
        self._upstream = upstream
        self._armed: list[_Armed] = []
        self._lock = threading.Lock()
        self._seen: list[Operation] = []
        self._late: list[Asked] = []
        self._sockets: set[socket.socket] = set()
        self._over = threading.Event()
        self._silent = False
        self._held: socket.socket | None = None
        self._server = self._listening(0)
        self.port = int(self._server.server_address[1])

    @property
    def uri(self) -> str:
        """What is configured as the catalog's address."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._stop_listening()
        if self._held is not None:
            self._held.close()

    def arm(self, fault: Fault, operation: Operation, after: Operation | None = None) -> None:
        """The next request of that kind (with `after`: once one of that other kind has come) meets the
        fault."""
        with self._lock:
            self._armed.append(_Armed(fault, operation, after))

    @property
    def unmet(self) -> int:
        """Faults that no request has met."""
        return len(self._armed)

    def seen(self, operation: Operation) -> int:
        """How many requests of that kind came."""
        return self._seen.count(operation)

    def deliver(self) -> list[tuple[Operation, int]]:
        """Pass on the late requests; what each was, and the status of its answer."""
        with self._lock:
            late, self._late = self._late, []
        return [(self.operation_of(asked), self._pass_on(asked).status) for asked in late]

    def refuse(self) -> None:
        """From now on connections are refused; existing ones end."""
        self._stop_listening()
        # Bound and not listening: connections are refused, and no other process gets the port.
        self._held = socket.socket()
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._held.bind(("127.0.0.1", self.port))

    def be_silent(self) -> None:
        """From now on connections are accepted, and nothing is answered: half-open."""
        self._silent = True

    def recover(self) -> None:
        """All is well again."""
        self._silent = False
        if self._held is not None:
            self._held.close()
            self._held = None
            self._server = self._listening(self.port)

    # what a test of another kind of server says otherwise

    def operation_of(self, asked: Asked) -> Operation:
        """What a request is for."""
        return asked.operation

    def headers_on(self, asked: Asked) -> dict[str, str]:
        """The headers with which a request is passed on."""
        return {name: value for name, value in asked.headers.items() if name.lower() != "host"}

    def said(self, status: int) -> Answer:
        """The proxy's own answer."""
        return Answer(status, [("Content-Type", "text/plain")], f"the proxy says {status}".encode())

    # the server

    def _listening(self, port: int) -> ThreadingHTTPServer:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _take(self) -> None:
                chunked = self.headers.get("Transfer-Encoding", "").lower() == "chunked"
                body = (
                    _in_chunks(self.rfile)
                    if chunked
                    else self.rfile.read(int(self.headers.get("Content-Length") or 0))
                )
                headers = {
                    name: value
                    for name, value in self.headers.items()
                    if name.lower() not in ("connection", "transfer-encoding")
                }
                proxy._serve(self, Asked(self.command, self.path, headers, body))

            do_GET = do_POST = do_PUT = do_HEAD = do_DELETE = _take  # noqa: N815 - http.server's own names

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's own name
                """Nothing on standard error."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def process_request(self, request: Any, client_address: Any) -> None:
                proxy._sockets.add(request)
                super().process_request(request, client_address)

            def shutdown_request(self, request: Any) -> None:
                super().shutdown_request(request)
                proxy._sockets.discard(request)

            def handle_error(self, request: object, client_address: object) -> None:
                """A client that gave up is no error."""

        server = Server(("127.0.0.1", port), Handler)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return server

    def _stop_listening(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        for connection in list(self._sockets):
            _reset(connection)
        # A thread that has not noticed would still take a request, and answer it.
        until("the connections have ended", lambda: not self._sockets, ENDS_S)

    def _fault_for(self, operation: Operation) -> Fault | None:
        with self._lock:
            found = next(
                (one for one in self._armed if one.operation == operation and one.after is None), None
            )
            if found is not None:
                self._armed.remove(found)
            for one in self._armed:
                if one.after == operation:
                    one.after = None
            self._seen.append(operation)
            return None if found is None else found.fault

    def _serve(self, handler: BaseHTTPRequestHandler, asked: Asked) -> None:
        fault = self._fault_for(self.operation_of(asked))
        if self._silent:
            self._hang(handler)
            return
        if fault is None:
            _answer(handler, self._pass_on(asked))
            return
        play = fault.play
        answer = None
        if play in (
            Play.ANSWER_AFTER,
            Play.RESET_AFTER,
            Play.SILENT_AFTER,
            Play.DRIP,
            Play.DRIP_HEADER,
            Play.GARBAGE_AFTER,
            Play.SLOW,
        ):
            answer = self._pass_on(asked)
        if play is Play.LATE:
            with self._lock:
                self._late.append(asked)
        if play in (Play.ANSWER_BEFORE, Play.ANSWER_AFTER):
            _answer(handler, self.said(fault.status))
        elif play in (Play.RESET_BEFORE, Play.RESET_AFTER):
            handler.close_connection = True
            _reset(handler.connection)
        elif play in (Play.SILENT_BEFORE, Play.SILENT_AFTER, Play.LATE):
            self._hang(handler)
        elif play in (Play.GARBAGE_BEFORE, Play.GARBAGE_AFTER):
            _answer(
                handler,
                Answer(
                    200,
                    [("Content-Type", "text/html")],
                    b"<html>sequence number: welcome to this network</html>",
                ),
            )
        elif answer is not None and play is Play.DRIP:
            self._drip(handler, answer)
        elif play is Play.DRIP_HEADER:
            self._drip_header(handler)
        elif answer is not None:
            self._over.wait(DRIP_S)
            _answer(handler, answer)

    def _hang(self, handler: BaseHTTPRequestHandler) -> None:
        """Until the other side gives up."""
        handler.close_connection = True
        handler.connection.settimeout(0.05)
        while not self._over.is_set():
            try:
                if not handler.connection.recv(1):
                    return
            except TimeoutError:
                continue
            except OSError:
                return

    def _drip(self, handler: BaseHTTPRequestHandler, answer: Answer) -> None:
        handler.close_connection = True
        handler.send_response(answer.status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(answer.body)))
        handler.end_headers()
        for at in range(0, len(answer.body), 2):
            handler.wfile.write(answer.body[at : at + 2])
            if self._over.wait(DRIP_S):
                return

    def _drip_header(self, handler: BaseHTTPRequestHandler) -> None:
        """Until the other side gives up: a header may have 64 KiB, and an answer a hundred of them."""
        handler.close_connection = True
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Drip: ")
        try:
            while not self._over.wait(DRIP_S):
                handler.wfile.write(b"x")
        except OSError:
            return

    def _pass_on(self, asked: Asked) -> Answer:
        parts = urlsplit(self._upstream())
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=UPSTREAM_TIMEOUT_S)
        try:
            connection.request(asked.method, asked.path, asked.body or None, self.headers_on(asked))
            answer = connection.getresponse()
            return Answer(answer.status, answer.getheaders(), answer.read())
        finally:
            connection.close()


def _in_chunks(stream: BufferedIOBase) -> bytes:
    """A body whose length its sender did not know."""
    pieces: list[bytes] = []
    while size := int(stream.readline().partition(b";")[0] or b"0", 16):
        pieces.append(stream.read(size))
        stream.readline()
    while stream.readline().strip():
        """What comes behind the last chunk."""
    return b"".join(pieces)


def _answer(handler: BaseHTTPRequestHandler, answer: Answer) -> None:
    handler.send_response(answer.status)
    for name, value in answer.headers:
        if name.lower() not in ("content-length", "transfer-encoding", "connection", "server", "date"):
            handler.send_header(name, value)
    of_head = next((value for name, value in answer.headers if name.lower() == "content-length"), "0")
    handler.send_header("Content-Length", of_head if handler.command == "HEAD" else str(len(answer.body)))
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(answer.body)


def _reset(connection: socket.socket) -> None:
    """End a connection with RST instead of FIN."""
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.shutdown(socket.SHUT_RD)
        connection.close()
    except OSError:
        pass
