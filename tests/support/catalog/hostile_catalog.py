"""A REST catalog that answers what a test says, over real HTTP on a loopback port: for answers that no real
catalog gives."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import urlsplit


class HostileCatalog:
    """Serves `config` at `/v1/config`, `table` for every table that is loaded, and a redirect where
    `redirect` names an address."""

    def __init__(self) -> None:
        self.config: Mapping[str, Any] | Iterable[bytes] = {"defaults": {}, "overrides": {}}
        self.table: Mapping[str, Any] | None = None
        self.redirect: str | None = None
        self.redirects_posts = False
        """Whether a POST is redirected with 302 to the same address, where a GET is then answered with
        `table`."""
        self.refusal: bytes | None = None
        """The body of a 404, in place of `table`."""
        self.content_type = "application/json"
        self.asked: list[tuple[str, dict[str, str]]] = []
        """Path and headers of every request."""
        self.sent = 0
        """Bytes of streamed answers that were written."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )

    @property
    def uri(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        catalog = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = urlsplit(self.path).path
                catalog.asked.append((path, {name.lower(): value for name, value in self.headers.items()}))
                if catalog.redirect is not None:
                    self.send_response(307)
                    self.send_header("Location", f"{catalog.redirect}{self.path}")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                elif catalog.redirects_posts and self.command == "POST":
                    self.send_response(302)
                    self.send_header("Location", self.path)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                elif path.endswith("/config"):
                    self._answer(catalog.config)
                elif catalog.refusal is not None:
                    self._answer([catalog.refusal], 404)
                else:
                    self._answer(catalog.table or {})

            do_HEAD = do_POST = do_GET  # noqa: N815 - the library's names

            def _answer(self, document: Mapping[str, Any] | Iterable[bytes], status: int = 200) -> None:
                self.send_response(status)
                self.send_header("Content-Type", catalog.content_type)
                self.send_header("Connection", "close")
                self.end_headers()
                for part in [json.dumps(document).encode()] if isinstance(document, Mapping) else document:
                    try:
                        self.wfile.write(part)
                    except OSError:
                        return
                    catalog.sent += len(part)

            def log_message(self, *_: object) -> None:
                pass

        return Handler


def endless(first: bytes, size: int) -> Iterator[bytes]:
    """An answer of `size` bytes, made as it is sent."""
    yield first
    for _ in range(size // 65_536):
        yield b" " * 65_536
