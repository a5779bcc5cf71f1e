"""The proxy of `http_faults.py` in front of the S3 server: it classifies S3's requests, counts them, and
answers as S3 does.

Requests pass with the host name they were signed for. It also plays a server that ignores conditional
creates, by taking their header away.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.objects.s3_server import S3Server
from tests.support.servers.http_faults import Answer, Asked, HttpFaults, Operation

CODES: Final = {
    403: "AccessDenied",
    404: "NoSuchBucket",
    409: "ConditionalRequestConflict",
    412: "PreconditionFailed",
    503: "SlowDown",
}
"""What each status is called; any other 5xx is an `InternalError`."""
OPERATIONS: Final = (
    "put",
    "begin",
    "part",
    "complete",
    "abort",
    "get",
    "identity",
    "head",
    "list",
    "uploads",
    "delete",
)


class S3Faults(HttpFaults):
    """The proxy. Reads of `cluster.json` are counted apart from other gets, as `identity`."""

    def __init__(self, server: S3Server) -> None:
        super().__init__(lambda: server.uri)
        self.ignoring: Collection[Operation] = ()
        """Requests of these kinds lose their `If-None-Match` on the way."""
        self.without: Collection[str] = ()
        """Headers, in small letters, that no request brings to the server."""
        self.codes = dict(CODES)

    def counts(self) -> dict[str, int]:
        """How many requests of each kind came since the last call."""
        with self._lock:
            seen, self._seen = self._seen, []
        return {name: seen.count(name) for name in sorted(set(seen))}

    def operation_of(self, asked: Asked) -> Operation:
        """What a request is for."""
        parts = urlsplit(asked.path)
        query = parse_qs(parts.query, keep_blank_values=True)
        if asked.method == "GET":
            in_bucket = "uploads" if "uploads" in query else "list" if "list-type" in query else None
            return in_bucket or ("identity" if unquote(parts.path).endswith("/cluster.json") else "get")
        if asked.method == "POST":
            return "begin" if "uploads" in query else "complete"
        if asked.method == "PUT":
            return "part" if "partNumber" in query else "put"
        if asked.method == "DELETE":
            return "abort" if "uploadId" in query else "delete"
        return "head"

    def headers_on(self, asked: Asked) -> dict[str, str]:
        """All of them, but for a condition that is ignored."""
        gone = {*self.without, *(("if-none-match",) if self.operation_of(asked) in self.ignoring else ())}
        return {name: value for name, value in asked.headers.items() if name.lower() not in gone}

    def said(self, status: int) -> Answer:
        """An error as S3 answers it."""
        code = self.codes.get(status, "InternalError")
        text = (
            f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>the proxy says "
            f"{status}</Message></Error>"
        )
        return Answer(status, [("Content-Type", "application/xml")], text.encode())
