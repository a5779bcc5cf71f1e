"""Administration through the port: `archive`, `reconcile`, `clean`, `dlq replay`, `groups reset`, `audit`,
`status` and reload.

A request needs the token, which no answer repeats. Work runs in a thread of its own and continues if the
client leaves. The answer is a stream of lines.
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
from archiver.web.bodies import media_type, parse_body, read_body
from archiver.web.endpoint import JSON, NDJSON
from archiver.web.error_responses import refusal, require_bearer
from archiver.web.openapi import ADMIN_FIELDS

_log = logging.getLogger(__name__)

ALIVE_S = 3.0
"""Interval of `alive` lines; the protocol promises one every five seconds."""
# Open requests of each kind: work, status and reloads.
UNDER_WAY_MAX = 8
# Unread lines of progress of one request: a client that does not read must not cost memory.
LINES_MAX = 1000
# A body has a few short fields.
BODY_BYTES_MAX = 64 * 1024


class Administration:
    """The handlers below `/v1/admin/`."""

    def __init__(self, context: AppContext) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._under_way: Counter[str] = Counter()

    async def status(self, request: Request) -> Response:
        """The document of `archiver status`."""
        self._authorize(request)
        output = self._begin("status", lambda _: Done(self._context.operations.status(), 0))
        try:
            line = await output.last()
        except asyncio.CancelledError:
            # The server cancels open requests at the end of its grace.
            raise refusal(503, "the daemon stops", close=True) from None
        error = line.get("error")
        if error is not None:
            raise refusal(503, str(error["message"]), retry_after_s=self._context.http.retry_after)
        return JSONResponse(line["done"]["document"])

    async def archive(self, request: Request) -> Response:
        """Run a round now."""
        given = await self._parameters(request, "archive", "archive")
        return _Lines(
            self._begin(
                "archive",
                lambda tell: self._context.operations.archive(
                    given.get("topic"), bool(given.get("all")), tell
                ),
            )
        )

    async def clean(self, request: Request) -> Response:
        """Run the vacuum now."""
        given = await self._parameters(request, "clean", "reconcile")
        return _Lines(
            self._begin(
                "clean", lambda tell: self._context.operations.clean(bool(given.get("dry_run")), tell)
            )
        )

    async def reconcile(self, request: Request) -> Response:
        """Reconcile now."""
        given = await self._parameters(request, "reconcile", "reconcile")
        operations = self._context.operations
        return _Lines(
            self._begin(
                "reconcile",
                lambda tell: operations.reconcile(bool(given.get("fix")), given.get("topic"), tell),
            )
        )

    async def replay(self, request: Request) -> Response:
        """Replay undecoded records now."""
        given = await self._parameters(request, "replay", "archive")
        return _Lines(
            self._begin(
                "replay",
                lambda tell: self._context.operations.replay(
                    given.get("topic"), given.get("max_files"), tell
                ),
            )
        )

    async def audit(self, request: Request) -> Response:
        """Audit now."""
        given = await self._parameters(request, "audit", None)
        deep = bool(given.get("deep"))
        return _Lines(
            self._begin(
                "audit", lambda tell: self._context.operations.audit(given.get("topic"), tell, deep=deep)
            )
        )

    async def reload(self, request: Request) -> Response:
        """Reload the configuration."""
        await self._parameters(request, "reload", None)
        return _Lines(self._begin("reload", lambda _: self._context.operations.reload()))

    async def reset_offsets(self, request: Request) -> Response:
        """Change committed offsets of a consumer group."""
        given = await self._parameters(request, "reset_offsets", "intake")
        operations = self._context.operations
        return _Lines(
            self._begin(
                "reset_offsets",
                lambda _: operations.reset_offsets(given["group"], given["topic"], given["offsets"]),
            )
        )

    def _authorize(self, request: Request) -> None:
        token = self._context.token()
        if token is None:
            raise refusal(
                503,
                "the daemon does not know its token yet; try again",
                retry_after_s=self._context.http.retry_after,
            )
        require_bearer(request, token, "administration asks for the token", "the token is not this daemon's")

    async def _parameters(self, request: Request, name: str, role: str | None) -> dict[str, Any]:
        """Values of the fields of the body; refuses a missing token or role."""
        # First, so that nothing of the daemon is visible without the token.
        self._authorize(request)
        if role is not None and role not in self._context.roles:
            # A status of its own: the command then does the work itself.
            raise refusal(409, f"this daemon has not the role {role}")
        # Before the body is read; the operation checks again, because the state may change.
        if (state := self._context.journal.state) != "serving":
            raise refusal(
                503, f"the daemon is {state}; /readyz says why", retry_after_s=self._context.http.retry_after
            )
        body = await read_body(
            request, BODY_BYTES_MAX, "the limit of this request,", self._context.http.request_timeout
        )
        if not body.strip():
            return parse_body(b"{}", ADMIN_FIELDS[name])
        if (kind := media_type(request)) != JSON:
            raise refusal(
                415, f"the content type {excerpt(kind)!r} is not accepted; nothing was done, send {JSON}"
            )
        return parse_body(body, ADMIN_FIELDS[name])

    def _begin(self, name: str, work: Callable[[Progress], Done]) -> _Output:
        # Counted in the handler and released by the thread, which outlives the request.
        kind = _kind(name)
        with self._lock:
            if self._under_way[kind] >= UNDER_WAY_MAX:
                raise refusal(
                    429,
                    f"{UNDER_WAY_MAX} requests of administration ({kind}) are open",
                    retry_after_s=self._context.http.retry_after,
                )
            self._under_way[kind] += 1
        output = _Output(asyncio.get_running_loop())
        # A daemon thread: long work must not delay the end of the process, because the next leader continues
        # it.
        threading.Thread(
            target=self._work, args=(name, work, output), name=f"admin-{name}", daemon=True
        ).start()
        return output

    def _work(self, name: str, work: Callable[[Progress], Done], output: _Output) -> None:
        try:
            done = work(output.progress)
            output.end({"done": {"document": done.document, "exit_code": done.exit_code}})
        except ArchiverError as error:
            output.end(_error_line(error))
        except Exception as error:  # noqa: BLE001
            # The head of the thread: the client waits for the last line, and the daemon continues.
            _log.exception("%s through the port ended in an unexpected error", name)
            output.end(
                _error_line(OutcomeUnknown(f"{type(error).__name__}: {error}; the daemon's log says more"))
            )
        finally:
            with self._lock:
                self._under_way[_kind(name)] -= 1


def _kind(name: str) -> str:
    """Limit that counts a request: status and reload have limits of their own."""
    # Work that hangs on a catalog must not block the commands that show why.
    return name if name in ("status", "reload") else "work"


class _Output:
    """Lines from the working thread to the client; drops the oldest if the client does not read."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._lines: deque[str] = deque(maxlen=LINES_MAX)
        self._last: dict[str, Any] | None = None
        # Only the event loop may touch it; threads set it by `_wake`.
        self._changed = asyncio.Event()

    def progress(self, text: str) -> None:
        """Add a line of progress."""
        with self._lock:
            self._lines.append(excerpt(text, MESSAGE_MAX))
        self._wake()

    def end(self, last: dict[str, Any]) -> None:
        """End with this last line."""
        with self._lock:
            # Reports quote errors of libraries, which may carry a secret.
            self._last = redacted_document(last)
        self._wake()

    def _wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._changed.set)
        except RuntimeError:
            pass  # the server has stopped, so no client is left

    async def next(self) -> tuple[list[str], dict[str, Any] | None]:
        """New lines of progress and the last line if it is there, after at most `ALIVE_S`."""
        try:
            await asyncio.wait_for(self._changed.wait(), ALIVE_S)
        except TimeoutError:
            pass
        # Cleared before the lines are read: a line added in between wakes the next call.
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
    """Streams the lines, with `alive` lines between them."""

    media_type = NDJSON

    def __init__(self, output: _Output) -> None:
        super().__init__()
        # The base class sets it for an empty body; the length of a stream is unknown.
        del self.headers["content-length"]
        self._output = output

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - the interface of a response
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        last: dict[str, Any] | None = None
        try:
            while last is None:
                lines, last = await self._output.next()
                documents: list[dict[str, Any]] = [{"progress": line} for line in lines]
                # A proxy or a client may end a silent connection.
                if last is None and not lines:
                    documents.append({"alive": True})
                await send(
                    {"type": "http.response.body", "body": b"".join(map(_line, documents)), "more_body": True}
                )
        except asyncio.CancelledError:
            # The work continues in its thread, and its outcome is not known here.
            last = _error_line(
                OutcomeUnknown("the daemon stops; see `archiver status` for whether the work was finished")
            )
        await send({"type": "http.response.body", "body": _line(last), "more_body": False})


def _line(document: dict[str, Any]) -> bytes:
    return (
        # A lone surrogate in a name cannot be encoded in UTF-8; the line must not fail for it.
        json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")
        + b"\n"
    )


def _error_line(error: ArchiverError) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "type": type(error).__name__,
        "message": excerpt(str(error), MESSAGE_MAX),
        "exit_code": exit_code(error),
    }
    return {"error": {**fields, "holder": error.holder} if isinstance(error, LeaseHeld) else fields}
