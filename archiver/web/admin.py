"""Administration through the port: the work of `archive`, `reconcile`, `clean`, `dlq replay`, `audit`, and
the reload of the configuration.

Lets in whoever brings the token. Work runs in a thread of its own and ends by itself, whether its client
still listens or not; the client is told line by line. What may be under way at a time, waiting for its turn
included, is bounded by `UNDER_WAY_MAX`, for work, status and reloads apart, so that work which hangs locks
out neither of them; and what is kept of lines that nobody has read yet by `LINES_MAX`. Must never repeat the
token.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from archiver.runtime.errors import ArchiverError, LeaseHeld, OutcomeUnknown
from archiver.runtime.exit_codes import Done, exit_code
from archiver.runtime.redaction import MESSAGE_MAX, excerpt, redacted_document
from archiver.web.app_context import AppContext, Progress
from archiver.web.bearer import require_bearer
from archiver.web.bodies import media_type, read_body
from archiver.web.body_fields import parse_body
from archiver.web.error_responses import refusal
from archiver.web.openapi import ADMIN_FIELDS, JSON, NDJSON

_log = logging.getLogger(__name__)

ALIVE_S = 3.0
"""Time between two signs of life; the protocol promises one every five seconds."""
UNDER_WAY_MAX = 8
LINES_MAX = 1000
BODY_BYTES_MAX = 64 * 1024


class Administration:
    """The handlers below `/v1/admin/`."""

    def __init__(self, face: AppContext) -> None:
        self._face = face
        self._lock = threading.Lock()
        self._under_way: Counter[str] = Counter()

    async def status(self, request: Request) -> Response:
        """The document of `archiver status`."""
        self._let_in(request)
        told = self._begin("status", lambda _: Done(self._face.operations.status(), 0))
        try:
            line = await told.last()
        except asyncio.CancelledError:
            raise refusal(503, "the daemon stops", close=True) from None
        error = line.get("error")
        if error is not None:
            raise refusal(503, str(error["message"]), retry_after_s=self._face.http.retry_after)
        return JSONResponse(line["done"]["document"])

    async def archive(self, request: Request) -> Response:
        """A round now."""
        asked = await self._asked(request, "archive", "archive")
        return _Lines(
            self._begin(
                "archive",
                lambda tell: self._face.operations.archive(asked.get("topic"), bool(asked.get("all")), tell),
            )
        )

    async def clean(self, request: Request) -> Response:
        """The vacuum now."""
        asked = await self._asked(request, "clean", "reconcile")
        return _Lines(
            self._begin("clean", lambda tell: self._face.operations.clean(bool(asked.get("dry_run")), tell))
        )

    async def reconcile(self, request: Request) -> Response:
        """A comparison of all views, and repairs, now."""
        asked = await self._asked(request, "reconcile", "reconcile")
        operations = self._face.operations
        return _Lines(
            self._begin(
                "reconcile",
                lambda tell: operations.reconcile(bool(asked.get("fix")), asked.get("topic"), tell),
            )
        )

    async def replay(self, request: Request) -> Response:
        """Decoding again now."""
        asked = await self._asked(request, "replay", "archive")
        return _Lines(
            self._begin(
                "replay",
                lambda tell: self._face.operations.replay(asked.get("topic"), asked.get("max_files"), tell),
            )
        )

    async def audit(self, request: Request) -> Response:
        """A comparison now."""
        asked = await self._asked(request, "audit", None)
        deep = bool(asked.get("deep"))
        return _Lines(
            self._begin(
                "audit", lambda tell: self._face.operations.audit(asked.get("topic"), tell, deep=deep)
            )
        )

    async def reload(self, request: Request) -> Response:
        """The configuration again."""
        await self._asked(request, "reload", None)
        return _Lines(self._begin("reload", lambda _: self._face.operations.reload()))

    def _let_in(self, request: Request) -> None:
        token = self._face.token()
        if token is None:
            raise refusal(
                503,
                "the daemon does not know its token yet; try again",
                retry_after_s=self._face.http.retry_after,
            )
        require_bearer(request, token, "administration asks for the token", "the token is not this daemon's")

    async def _asked(self, request: Request, name: str, role: str | None) -> dict[str, Any]:
        """The values of the body's fields, all of them optional; refuses strangers and daemons without the
        role.
        """
        self._let_in(request)
        if role is not None and role not in self._face.roles:
            raise refusal(409, f"this daemon has not the role {role}")
        if (state := self._face.journal.state) != "serving":
            raise refusal(
                503, f"the daemon is {state}; /readyz says why", retry_after_s=self._face.http.retry_after
            )
        body = await read_body(
            request, BODY_BYTES_MAX, "the most that is taken here,", self._face.http.request_timeout
        )
        if not body.strip():
            return {}
        if (kind := media_type(request)) != JSON:
            raise refusal(
                415, f"the content type {excerpt(kind)!r} is not taken; nothing was done, send {JSON}"
            )
        return parse_body(body, ADMIN_FIELDS[name])

    def _begin(self, name: str, work: Callable[[Progress], Done]) -> _Told:
        kind = _kind(name)
        with self._lock:
            if self._under_way[kind] >= UNDER_WAY_MAX:
                raise refusal(
                    429,
                    f"{UNDER_WAY_MAX} requests of administration ({kind}) are under way",
                    retry_after_s=self._face.http.retry_after,
                )
            self._under_way[kind] += 1
        told = _Told(asyncio.get_running_loop())
        # As a daemon, so that long work does not hold up the end of the process: whoever leads next goes on.
        threading.Thread(
            target=self._work, args=(name, work, told), name=f"admin-{name}", daemon=True
        ).start()
        return told

    def _work(self, name: str, work: Callable[[Progress], Done], told: _Told) -> None:
        try:
            done = work(told.progress)
            told.end({"done": {"document": done.document, "exit_code": done.exit_code}})
        except ArchiverError as error:
            told.end(_error_line(error))
        except Exception as error:  # noqa: BLE001
            # The head of the thread: somebody waits for the last line, and the daemon goes on.
            _log.exception("%s through the port ended in an error nobody expected", name)
            told.end(
                _error_line(OutcomeUnknown(f"{type(error).__name__}: {error}; the daemon's log says more"))
            )
        finally:
            with self._lock:
                self._under_way[_kind(name)] -= 1


def _kind(name: str) -> str:
    """Whose places a request takes: what only looks, or reads the configuration, has its own."""
    return name if name in ("status", "reload") else "work"


class _Told:
    """Lines on their way from the thread that works to the client; the oldest go if nobody reads them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._lines: deque[str] = deque(maxlen=LINES_MAX)
        self._last: dict[str, Any] | None = None
        self._changed = asyncio.Event()

    def progress(self, text: str) -> None:
        """A line about work under way."""
        with self._lock:
            self._lines.append(excerpt(text, MESSAGE_MAX))
        self._wake()

    def end(self, last: dict[str, Any]) -> None:
        """The work has ended, with this."""
        with self._lock:
            self._last = redacted_document(last)
        self._wake()

    def _wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._changed.set)
        except RuntimeError:
            pass  # The server has stopped, and with it whoever listened.

    async def next(self) -> tuple[list[str], dict[str, Any] | None]:
        """What is new, after at most `ALIVE_S`: lines of progress, and the end if it has come."""
        try:
            await asyncio.wait_for(self._changed.wait(), ALIVE_S)
        except TimeoutError:
            pass
        self._changed.clear()
        with self._lock:
            lines = list(self._lines)
            self._lines.clear()
            return lines, self._last

    async def last(self) -> dict[str, Any]:
        """Wait for the end."""
        while True:
            _, last = await self.next()
            if last is not None:
                return last


class _Lines(Response):
    """The lines as they come, with signs of life between them."""

    media_type = NDJSON

    def __init__(self, told: _Told) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._told = told

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - the interface of a response
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        last: dict[str, Any] | None = None
        try:
            while last is None:
                lines, last = await self._told.next()
                documents: list[dict[str, Any]] = [{"progress": line} for line in lines]
                if last is None and not lines:
                    documents.append({"alive": True})
                await send(
                    {"type": "http.response.body", "body": b"".join(map(_line, documents)), "more_body": True}
                )
        except asyncio.CancelledError:
            last = _error_line(
                OutcomeUnknown("the daemon stops; whether the work was finished is told by `archiver status`")
            )
        await send({"type": "http.response.body", "body": _line(last), "more_body": False})


def _line(document: dict[str, Any]) -> bytes:
    return (
        json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")
        + b"\n"
    )


def _error_line(error: ArchiverError) -> dict[str, Any]:
    told: dict[str, Any] = {
        "type": type(error).__name__,
        "message": excerpt(str(error), MESSAGE_MAX),
        "exit_code": exit_code(error),
    }
    return {"error": {**told, "holder": error.holder} if isinstance(error, LeaseHeld) else told}
