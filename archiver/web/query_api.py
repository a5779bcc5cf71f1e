"""Starts and cancels queries: for programs as JSON, and for the forms of the pages.

The SQL is in the body of a POST, not in an address: addresses are kept in histories and in the logs of
proxies, and are limited in length. A page of another origin cannot send the body: JSON needs its permission,
and forms need an `Origin` header.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from archiver.runtime.errors import ArchiverError
from archiver.web.access import Access, Reader
from archiver.web.app_context import AppContext
from archiver.web.bodies import media_type, parse_body, read_body
from archiver.web.console import Console
from archiver.web.endpoint import JSON
from archiver.web.error_responses import refusal
from archiver.web.page import link
from archiver.web.query_endpoints import FORM, QUERY_FIELDS, ROWS, ROWS_MAX
from archiver.web.read_api import Handler, readable_topics, refusing

BODY_BYTES_MAX: Final = 256 * 1024
"""Of a request: a query, whose characters a form writes as up to nine bytes."""
FIELDS_MAX: Final = 10


class QueryApi:
    """The handlers of queries that are not views."""

    def __init__(self, context: AppContext, access: Access, console: Console) -> None:
        self._context = context
        self._queries = context.queries
        self._access = access
        self._console = console

    def close(self) -> None:
        """Cancel all queries."""
        self._queries.close()

    def handlers(self) -> dict[str, Handler]:
        """Handlers by the name of their endpoint."""
        return {
            "read_query": refusing(self._result, self._context),
            "query_run": refusing(self._run, self._context),
            "query_cancel": refusing(self._cancel, self._context),
            "page_query_run": self._console.refusing(self._page_run),
            "page_query_cancel": self._console.refusing(self._page_cancel),
        }

    # --- For programs
    async def _result(self, request: Request) -> Response:
        reader = await self._access.reader(request)
        return self._document(reader, request.path_params["query"], 200)

    async def _run(self, request: Request) -> Response:
        reader = await self._access.reader(request)
        if media_type(request) != JSON:
            raise refusal(415, f"a query is sent as {JSON}; nothing was done")
        given = parse_body(await self._body(request), QUERY_FIELDS)
        query_id = self._start(reader, given["sql"], given.get("limit"))
        if given.get("wait") is False:
            return self._document(reader, query_id, 202)
        await self._wait(request, reader, query_id)
        error = self._queries.error(reader.principal, query_id)
        if error is not None:
            raise error
        return self._document(reader, query_id, 200)

    async def _cancel(self, request: Request) -> Response:
        reader, query_id = await self._access.reader(request), request.path_params["query"]
        self._queries.cancel(reader.principal, query_id)
        return self._document(reader, query_id, 200)

    async def _wait(self, request: Request, reader: Reader, query_id: str) -> None:
        """Wait for the end of the query; cancel it if the client leaves or the server stops."""
        ended = asyncio.wrap_future(self._queries.ended(reader.principal, query_id))
        left = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait({ended, left}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            raise refusal(503, "the daemon stops, and the query is cancelled", close=True) from None
        finally:
            left.cancel()
            if not ended.done():
                self._queries.cancel(reader.principal, query_id)
        if not ended.done():
            raise refusal(503, "the client has left, and the query is cancelled", close=True)

    # --- For pages
    async def _page_run(self, request: Request) -> Response:
        reader = await self._access.reader(request)
        _require_origin(request)
        if media_type(request) != FORM:
            raise refusal(415, f"the form is sent as {FORM}; nothing was done")
        given = _form(await self._body(request))
        limit = given.get("limit", "").strip()
        # `isdecimal` accepts digits of other scripts, so ASCII is checked first.
        number = int(limit) if limit.isascii() and limit.isdecimal() and len(limit) < 10 else 0
        # A text area has the line ends of the network.
        sql = given.get("sql", "").replace("\r\n", "\n")
        try:
            query_id = self._start(reader, sql, number if limit else None)
        # The text of a query is work, so it comes back also if there is no place for it now.
        except (ArchiverError, HTTPException) as error:
            typed = {"sql": sql, "limit": limit}
            return await self._console.form(request, "query_refused.html", error, typed, otherwise="sql")
        return HTMLResponse("", 303, {"Location": link("/query/{}", query_id)})

    async def _page_cancel(self, request: Request) -> Response:
        reader, query_id = await self._access.reader(request), request.path_params["query"]
        _require_origin(request)
        self._queries.cancel(reader.principal, query_id)
        return HTMLResponse("", 303, {"Location": link("/query/{}", query_id)})

    # --- Shared
    def _start(self, reader: Reader, sql: str, limit: int | None) -> str:
        rows_max = ROWS if limit is None else limit
        if not 1 <= rows_max <= ROWS_MAX:
            raise refusal(
                400, f"the limit of rows is no whole number from 1 to {ROWS_MAX}", parameter="limit"
            )
        topics = readable_topics(reader, self._queries)
        query_id = self._queries.start(reader.principal, sql, rows_max, topics)
        if query_id is None:
            raise refusal(
                429,
                "too many queries are open; cancel one, or wait for its end",
                retry_after_s=self._context.http.retry_after,
            )
        return query_id

    async def _body(self, request: Request) -> bytes:
        timeout_s = self._context.http.request_timeout
        return await read_body(request, BODY_BYTES_MAX, "the limit of a query", timeout_s)

    def _document(self, reader: Reader, query_id: str, status: int) -> Response:
        content = self._queries.encoded(
            reader.principal, query_id, lambda name: reader.may("read", "topic", name)
        )
        return Response(content, status, media_type=JSON)


def _require_origin(request: Request) -> None:
    # The check of all requests lets those without the header pass, because programs send none. A browser
    # sends it with every form, so that check has compared it.
    if "origin" not in request.headers:
        raise refusal(403, "there is no Origin header: a form is sent by a browser; programs use /v1/query")


def _form(body: bytes) -> dict[str, Any]:
    try:
        fields = parse_qsl(
            body.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=True,
            errors="strict",
            max_num_fields=FIELDS_MAX,
        )
    except ValueError:
        raise refusal(400, "the body is no form in UTF-8; nothing was done") from None
    return dict(fields)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
