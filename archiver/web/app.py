"""The web application: every path, and what holds for all of them.

Promises that each answer names the cluster, that nothing is cached or framed, and that a web page which an
operator's browser has open cannot use the port: a request of another origin is refused, and so is one whose
Host is a name that somebody else could point here. Must never wait in the event loop.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
from collections.abc import AsyncIterator, Callable
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

from archiver.runtime.redaction import excerpt, redacted
from archiver.web.admin import Administration
from archiver.web.app_context import AppContext
from archiver.web.error_responses import error_document, refusal, refused
from archiver.web.health import Health
from archiver.web.openapi import ENDPOINTS, document
from archiver.web.page import HEADERS as PAGE_HEADERS
from archiver.web.produce import Producing

_log = logging.getLogger(__name__)

CLUSTER_HEADER = "Archiver-Cluster-Id"
LOOKERS = 2
LOOKS_MAX = 32
"""Requests for the page or the metrics that are under way; each is rendered anew."""
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


def create_app(face: AppContext) -> ASGIApp:
    """The application over what the daemon shows of itself."""
    health, looks, producing, administration = (
        Health(face),
        _Looks(face),
        Producing(face),
        Administration(face),
    )
    handlers = {
        "healthz": health.alive,
        "readyz": health.ready,
        "metrics": looks.metrics,
        "page": looks.page,
        "openapi": looks.openapi,
        "produce": producing.answer,
        "admin_status": administration.status,
        "admin_archive": administration.archive,
        "admin_reconcile": administration.reconcile,
        "admin_clean": administration.clean,
        "admin_replay": administration.replay,
        "admin_audit": administration.audit,
        "admin_reload": administration.reload,
    }

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        producing.close()
        looks.close()

    app = Starlette(
        routes=[
            Route(one.path, handlers[one.name], methods=[one.method], name=one.name) for one in ENDPOINTS
        ],
        exception_handlers={HTTPException: refused, Exception: refused},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return _Guarded(app, face)


class _Looks:
    """What is rendered for looking at: in threads of its own, so that it holds up nothing else."""

    def __init__(self, face: AppContext) -> None:
        self._face = face
        self._under_way = 0
        self._threads = ThreadPoolExecutor(LOOKERS, "http-looks")
        self._document = document()

    def close(self) -> None:
        """Let go of the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def page(self, request: Request) -> Response:
        """The status page."""
        asked = dict(request.query_params)
        return HTMLResponse(
            await self._rendered(lambda: redacted(self._face.page(asked))), headers=dict(PAGE_HEADERS)
        )

    async def metrics(self, _: Request) -> Response:
        """Prometheus' text format."""
        return Response(await self._rendered(self._face.metrics), media_type=PROMETHEUS)

    async def openapi(self, _: Request) -> Response:
        """What this port can do."""
        return JSONResponse(self._document)

    async def _rendered(self, render: Callable[[], Any]) -> Any:
        if self._under_way >= LOOKS_MAX:
            raise refusal(
                429,
                f"{LOOKS_MAX} requests like this are under way",
                retry_after_s=self._face.http.retry_after,
            )
        self._under_way += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, render)
        finally:
            self._under_way -= 1


class _Guarded:
    """Around everything: who may ask, and what every answer carries."""

    def __init__(self, app: ASGIApp, face: AppContext) -> None:
        self._app = app
        self._cluster_id = face.cluster_id
        self._ours = {
            "localhost",
            _host_of(face.http.listen),
            *(name.lower() for name in face.http.allowed_hosts),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                if (cluster_id := self._cluster_id()) is not None:
                    headers[CLUSTER_HEADER] = cluster_id
            await send(message)

        stranger = self._stranger(Headers(scope=scope))
        app: ASGIApp = (
            self._app if stranger is None else JSONResponse(error_document("InvalidInput", stranger), 403)
        )
        try:
            await app(scope, receive, send_with_headers)
        except Exception:  # noqa: BLE001
            # The head of the request: it was answered with 500, and the daemon goes on.
            request = {"method": excerpt(scope["method"]), "path": excerpt(scope["path"])}
            _log.exception("a request ended in an unexpected error", extra=request)

    def _stranger(self, headers: Headers) -> str | None:
        """Why a request may come from somebody else's web page; None if it does not."""
        host, origin = headers.get("host"), headers.get("origin")
        if host is not None and not self._is_ours(host):
            name = repr(excerpt(host))
            return (
                f"the Host {name} is not this port's: call it by its address or as localhost, or list the "
                "name in http.allowed_hosts"
            )
        if origin is not None and origin.partition("://")[2] != host:
            return f"the Origin {excerpt(origin)!r} is not this port's; web pages of others may not use it"
        return None

    def _is_ours(self, host: str) -> bool:
        """No name that somebody else can point at this machine: an address, localhost, or a name in
        http.listen or http.allowed_hosts.
        """
        name = _host_of(host)
        return name in self._ours or _is_address(name)


def _host_of(text: str) -> str:
    """The host of `host:port`, `[::1]:port` or `host`, in lower case; empty if it is none."""
    match = _HOST.fullmatch(text)
    return "" if match is None else (match["address"] or match["name"]).lower()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
