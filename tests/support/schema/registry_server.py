"""A schema registry that does what the real one cannot be made to do: it is slow, cuts answers off,
redirects, contradicts itself.

It serves Confluent's protocol from a dictionary over real HTTP (or HTTPS) on a loopback port. It counts
requests, and lets a test put any behaviour in the place of an answer.
"""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit

Odd = Callable[[BaseHTTPRequestHandler], bool]
"""Answers a request itself (True), or leaves it to the server."""


@dataclass
class Version:
    """One version of a subject."""

    id: int
    schema: str
    references: Sequence[Mapping[str, Any]] = ()
    kind: str | None = "PROTOBUF"
    deleted: bool = False


@dataclass
class RegistryServer:
    """A context manager; `url` is set inside of it."""

    subjects: dict[str, dict[int, Version]] = field(default_factory=dict)
    odd: Odd | None = None
    tls: ssl.SSLContext | None = None
    asked: list[str] = field(default_factory=list)
    """Every path, in order."""
    headers: list[Mapping[str, str]] = field(default_factory=list)

    def __enter__(self) -> Self:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                outer.headers.append(dict(self.headers))
                try:
                    if outer.odd is None or not outer.odd(self):
                        answer(self, *outer.found(self.path))
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            def log_message(self, *_: Any) -> None:
                pass

        self.released = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = False
        if self.tls is not None:
            self._server.socket = self.tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        """Its address."""
        return f"{'http' if self.tls is None else 'https'}://127.0.0.1:{self._server.server_address[1]}"

    def add(
        self,
        subject: str,
        version: int,
        number: int,
        schema: str,
        *references: tuple[str, str, int],
        **more: Any,
    ) -> None:
        """Have a version. References: name in the import, subject, version."""
        named = [dict(zip(("name", "subject", "version"), one, strict=True)) for one in references]
        self.subjects.setdefault(subject, {})[version] = Version(number, schema, named, **more)

    def found(self, path: str) -> tuple[int, Any]:
        """Status and document."""
        parts = urlsplit(path)
        steps = [unquote(step) for step in parts.path.strip("/").split("/")]
        versions = self.subjects.get(steps[1], {}) if len(steps) > 1 else {}
        seen = {
            number: one
            for number, one in versions.items()
            if "deleted=true" in parts.query or not one.deleted
        }
        if not seen:
            return 404, {"error_code": 40401, "message": f"Subject '{steps[1]}' not found."}
        if len(steps) == 3:
            return 200, sorted(seen)
        number = max(seen) if steps[3] == "latest" else int(steps[3])
        if number not in seen:
            return 404, {"error_code": 40402, "message": f"Version {number} not found."}
        one = seen[number]
        document: dict[str, Any] = {
            "subject": steps[1],
            "version": number,
            "id": one.id,
            "schema": one.schema,
        }
        if one.kind is not None:
            document["schemaType"] = one.kind
        if one.references:
            document["references"] = list(one.references)
        return 200, document


def answer(
    handler: BaseHTTPRequestHandler, status: int, document: Any, headers: Mapping[str, str] | None = None
) -> None:
    """Send a whole answer: bytes as they are, anything else as JSON."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(body)))
    for name, value in (headers or {}).items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body)
