"""A REST catalog that refuses everything and repeats, in the words of its error, all that it was sent:
headers, tokens, bodies."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class LoudCatalog:
    """On a port of loopback that the system chose. Use it as a context manager."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        """What it was sent, request by request."""
        heard = self.heard

        class Handler(BaseHTTPRequestHandler):
            def _refuse(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode("latin-1")
                said = f"{self.command} {self.path} {dict(self.headers)} {body}"
                heard.append(said)
                document: dict[str, Any] = {
                    "error": {"message": f"refused: {said}", "type": "Loud", "code": 418}
                }
                answer = json.dumps(document).encode()
                self.send_response(418)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_GET = do_POST = do_HEAD = _refuse  # noqa: N815 - http.server's own names

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's own name
                """Nothing on standard error: it would be taken for the command's."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
