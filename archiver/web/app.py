"""Web application of the port: routes, health, status page and metrics, and the checks of all requests.

Each answer names the cluster and forbids caching and framing. No handler blocks the event loop.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from archiver.runtime.admin_proof import PROOF_HEADER, proof
from archiver.runtime.redaction import excerpt, redacted
from archiver.runtime.rfc3339 import format_time
from archiver.web.access import Access
from archiver.web.admin import Administration
from archiver.web.app_context import AppContext
from archiver.web.console import Console
from archiver.web.error_responses import error_document, refusal, refused
from archiver.web.openapi import CHALLENGE, ENDPOINTS, document
from archiver.web.page import HEADERS as PAGE_HEADERS
from archiver.web.produce import Producing
from archiver.web.query_api import QueryApi
from archiver.web.read_api import ReadApi
from archiver.web.read_endpoints import VIEWS

_log = logging.getLogger(__name__)

Handler = Callable[[Request], Awaitable[Response]]

CLUSTER_HEADER = "Archiver-Cluster-Id"
# Rendering is Python code under the GIL, so more threads would not make it faster.
RENDER_THREADS = 2
RENDERINGS_MAX = 32
"""Maximum of open requests for the page or the metrics; each is rendered separately."""
# Strict: what is not exactly a host with an optional port counts as no host, and is refused.
_HOST = re.compile(r"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[^\s:\[\]/@?#]+))(?::\d{0,5})?", re.ASCII)
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src 'self' "
    "data:; base-uri 'none'; form-action "
    "'none'; "
    "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def create_app(context: AppContext) -> ASGIApp:
    """ASGI application for a daemon."""
    health, producing, administration = Health(context), Producing(context), Administration(context)
    access = Access(context)
    reading = ReadApi(context, access)
    console = Console(context, reading)
    querying = QueryApi(context, access, console)
    rendered = _Rendered(context, access)
    handlers = {
        "healthz": health.alive,
        "readyz": health.ready,
        "metrics": rendered.metrics,
        "page": rendered.page,
        "openapi": rendered.openapi,
        "produce": producing.answer,
        "admin_status": administration.status,
        "admin_archive": administration.archive,
        "admin_reconcile": administration.reconcile,
        "admin_clean": administration.clean,
        "admin_replay": administration.replay,
        "admin_audit": administration.audit,
        "admin_reload": administration.reload,
        "admin_reset_offsets": administration.reset_offsets,
        "style": console.style,
        **{f"read_{view.name}": reading.handler(view.name) for view in VIEWS},
        **{f"page_{view.name}": console.handler(view) for view in VIEWS},
        **querying.handlers(),
    }

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        for one in (producing, rendered, querying, console, access):
            one.close()

    app = Starlette(
        routes=_routes(handlers),
        exception_handlers={HTTPException: console.unknown, Exception: refused},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return _Guarded(app, context)


def _routes(handlers: Mapping[str, Handler]) -> list[Route]:
    """One route for each path: with one for each method, a refusal would name the methods of the first."""
    paths: dict[str, dict[str, Handler]] = {}
    for one in ENDPOINTS:
        paths.setdefault(one.path, {})[one.method] = handlers[one.name]
    return [Route(path, _by_method(methods), methods=list(methods)) for path, methods in paths.items()]


def _by_method(methods: Mapping[str, Handler]) -> Handler:
    async def answer(request: Request) -> Response:
        # HEAD is answered as GET, and the server leaves out the body.
        return await methods["GET" if request.method == "HEAD" else request.method](request)

    return answer


class Health:
    """Liveness and readiness."""

    def __init__(self, context: AppContext) -> None:
        self._context = context

    async def alive(self, request: Request) -> Response:
        """200 while the threads of the daemon run; with a `challenge`, also the proof that it knows the
        token.
        """
        # The proof comes before any token is sent: a client must not give its token to another program.
        challenge, token = request.query_params.get("challenge"), self._context.token()
        # A bounded form, because the daemon signs it: free text could be a message of another protocol.
        if challenge is not None and not CHALLENGE.fullmatch(challenge):
            raise refusal(400, "a challenge is 32 to 64 hex digits, in lower case")
        here = request.scope.get("server")
        headers = (
            {}
            if challenge is None or token is None or here is None
            # With address and port, so that a proof cannot be forwarded from another port.
            else {PROOF_HEADER: proof(token, challenge, here[0], here[1])}
        )
        # Independent of any store: no supervisor may kill a daemon because a store is unavailable.
        alive = self._context.alive()
        document = {"alive": alive, "version": self._context.version, "roles": sorted(self._context.roles)}
        return JSONResponse(document, 200 if alive else 503, headers)

    async def ready(self, _: Request) -> Response:
        """200 while it serves and every dependency answers; lists each check with its reason and start."""
        journal = self._context.journal
        # From the journal, so a request never waits for a dependency.
        ready = journal.ready
        document = {
            "ready": ready,
            "state": journal.state,
            "checks": [
                {"name": check.name, "ok": check.ok, "why": check.why, "since": format_time(check.since_us)}
                for check in journal.checks()
            ],
        }
        return JSONResponse(document, 200 if ready else 503)


class _Rendered:
    """Status page, metrics and OpenAPI document, rendered in threads of their own so that other requests do
    not wait.
    """

    def __init__(self, context: AppContext, access: Access) -> None:
        self._context = context
        self._access = access
        self._active = 0
        self._threads = ThreadPoolExecutor(RENDER_THREADS, "http-render")
        # It never changes, so it is built once.
        self._document = document()

    def close(self) -> None:
        """Release the threads."""
        # Without waiting: this runs in the event loop, which must still answer other requests.
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def page(self, request: Request) -> Response:
        """The overview page; the list of topics for a reader who may not see everything."""
        if not (await self._access.reader(request)).sees_all:
            return HTMLResponse("", 303, {"Location": "/topics"})
        asked = dict(request.query_params)
        # Redacted as a whole, because messages of any library may carry a secret.
        return HTMLResponse(
            await self._rendered(lambda: redacted(self._context.page(asked))), headers=dict(PAGE_HEADERS)
        )

    async def metrics(self, _: Request) -> Response:
        """Prometheus' text format."""
        return Response(await self._rendered(self._context.metrics), media_type=PROMETHEUS)

    async def openapi(self, _: Request) -> Response:
        """OpenAPI document."""
        return JSONResponse(self._document)

    async def _rendered(self, render: Callable[[], Any]) -> Any:
        # Counted without a lock: all handlers run in the one thread of the event loop.
        if self._active >= RENDERINGS_MAX:
            raise refusal(
                429,
                f"{RENDERINGS_MAX} requests like this are open",
                retry_after_s=self._context.http.retry_after,
            )
        self._active += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, render)
        finally:
            self._active -= 1


class _Guarded:
    """Wrapper of the application: checks Host and Origin, and adds the common headers."""

    def __init__(self, app: ASGIApp, context: AppContext) -> None:
        self._app = app
        self._cluster_id = context.cluster_id
        self._own_hosts = {
            "localhost",
            _host_of(context.http.listen),
            *(name.lower() for name in context.http.allowed_hosts),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            # The start and stop of the application have no headers.
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    # An answer may have a stricter policy of its own, as the page has.
                    headers.setdefault(name, value)
                if (cluster_id := self._cluster_id()) is not None:
                    headers[CLUSTER_HEADER] = cluster_id
            await send(message)

        # Before the application: a refused request must not reach a handler, nor its body be read.
        reason = self._cross_origin(Headers(scope=scope))
        app: ASGIApp = (
            self._app if reason is None else JSONResponse(error_document("InvalidInput", reason), 403)
        )
        try:
            await app(scope, receive, send_with_headers)
        except Exception:  # noqa: BLE001
            # The head of the request: it was answered with 500, and the daemon continues.
            request = {"method": excerpt(scope["method"]), "path": excerpt(scope["path"])}
            _log.exception("a request ended in an unexpected error", extra=request)

    def _cross_origin(self, headers: Headers) -> str | None:
        """Why the request may come from another web page; None if it does not."""
        # In a browser, a page cannot change either header.
        host, origin = headers.get("host"), headers.get("origin")
        if host is not None and not self._is_ours(host):
            name = repr(excerpt(host))
            return (
                f"the Host {name} is not this port's: call it by its address or as localhost, or list the "
                "name in http.allowed_hosts"
            )
        # Without the scheme: a proxy in front may end TLS.
        if origin is not None and origin.partition("://")[2] != host:
            return f"the Origin {excerpt(origin)!r} is not this port's; other web pages may not use it"
        return None

    def _is_ours(self, host: str) -> bool:
        """Whether the host is an address, localhost, or a name in http.listen or http.allowed_hosts."""
        # An attacker can let any other name resolve to this machine (DNS rebinding).
        name = _host_of(host)
        return name in self._own_hosts or _is_address(name)


def _host_of(text: str) -> str:
    """Host of `host:port`, `[::1]:port` or `host` in lower case; empty if the text is none of these."""
    match = _HOST.fullmatch(text)
    return "" if match is None else (match["address"] or match["name"]).lower()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
