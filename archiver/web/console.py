"""The pages of the console: the documents of the read API as HTML, without scripts.

Every text is escaped, and invisible characters are made visible. A page loads only the style sheet of this
port, and forms lead only to this port.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from markupsafe import Markup, escape
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from archiver.config.types import value_in_file
from archiver.query.json_values import NUMBERS, Kind, kind_of, restored
from archiver.query.values import readable
from archiver.runtime.errors import ArchiverError
from archiver.runtime.redaction import redacted
from archiver.runtime.rfc3339 import parse_time
from archiver.runtime.text import counted, moment, printable_text
from archiver.status.ages import age_at, numbers
from archiver.web.app_context import AppContext
from archiver.web.endpoint import CSS
from archiver.web.error_responses import Refusal, refused
from archiver.web.markdown import blocks, plain
from archiver.web.page import environment, refresh_of, style
from archiver.web.read_api import Handler, ReadApi, refusal_of
from archiver.web.read_endpoints import View
from archiver.web.runbook import page_of

HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    # With `no-referrer` a browser sends `Origin: null` with a form, which is refused as that of another page.
    "Referrer-Policy": "same-origin",
}
"""Additional headers of a page: no script, no style in the page, nothing from elsewhere."""
SHOWN_MAX: Final = 4_000
"""Maximum of characters of a key, value or message in a list; the page of one record shows more."""
WHOLE_MAX: Final = 200_000
LINE_MAX: Final = 200
"""Characters of a value in the line that stands for its message; a window has room for fewer."""
ONE_LINE_MAX: Final = 100
"""Characters of JSON that stay in one line."""
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_WEIGHT: Final = re.compile(r"q=([01](?:\.[0-9]{0,3})?)(?![0-9.])", re.ASCII)
"""A weight of `Accept`."""
_STATES: Final[Mapping[str, tuple[str, str]]] = {
    "beyond_end": ("note", "There is no such offset yet"),
    "in_transaction": ("note", "In an open transaction"),
    "behind_transaction": ("note", "Waits for an open transaction"),
    "aborted": ("note", "Aborted, so there is no record"),
    "waiting": ("note", "In intake, not archived yet"),
    "pending": ("note", "Archived, not in the table yet"),
    "committed": ("ok", "In the table"),
    "archived": ("ok", "Archived"),
    "retired": ("note", "Deleted by the retention or by a client"),
    "removed": ("note", "Removed from the table by another program"),
    "missing": ("act", "Missing"),
    "doubled": ("act", "More than once in the table"),
    "damaged": ("act", "Damaged"),
    "unknown": ("watch", "Not known"),
}
"""States of `archiver explain` as badge and words; documents keep the state itself."""
_CAUSES: Final[Mapping[str, tuple[str, str]]] = {
    "malformed": ("that is no message of the type", "that are no messages of the type"),
    "not_utf8": ("with a text that is not UTF-8",) * 2,
    "time_range": ("with a time outside the years 1 to 9999",) * 2,
    "unknown_schema": ("with an unknown schema id",) * 2,
    "other_message": ("of another message",) * 2,
    "too_many_values": ("with too many values",) * 2,
}
"""Causes of undecoded records in words, for one and for several."""
_TITLES: Final = {401: "Log in", 403: "Not allowed", 404: "Not found", 429: "Too many requests"}


class Console:
    """The handlers of the pages."""

    def __init__(self, context: AppContext, api: ReadApi) -> None:
        self._context = context
        self._api = api
        # Rendering is Python code under the GIL, so more threads would not make it faster.
        self._threads = ThreadPoolExecutor(1, "http-console")

    def close(self) -> None:
        """Release the thread."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def handler(self, view: View) -> Handler:
        """Handler of a view's page."""
        load, template = self._api.views[view.name], view.template or f"{view.name}.html"

        async def answer(request: Request) -> Response:
            with self._api.place():
                document = await load(request)
                return await self._page(request, template, {"document": document})

        return self.refusing(answer, view.form)

    def refusing(self, handler: Handler, form: str = "") -> Handler:
        """The handler, whose errors and refusals become pages that say why something is not shown. With a
        `form` it is shown again if a value is wrong.
        """

        async def answer(request: Request) -> Response:
            try:
                return await handler(request)
            except (ArchiverError, HTTPException) as error:
                refused = self._refusal(error)
            if form and (_parameter(refused) or refused.status_code == 400):
                return await self.form(request, form, refused, request.path_params)
            return self._refused(request, refused)

        return answer

    async def form(
        self,
        request: Request,
        template: str,
        error: ArchiverError | HTTPException,
        values: Mapping[str, Any],
        otherwise: str | None = None,
    ) -> Response:
        """The form again, with what was typed and the message at the field of the parameter. If the error is
        of no parameter, `otherwise` is the field for a wrong value.
        """
        refused = self._refusal(error)
        parameter = _parameter(refused) or (otherwise if refused.status_code == 400 else None)
        problem = {"parameter": parameter, "message": refused.detail}
        return await self._page(request, template, {**values, "problem": problem}, refused)

    def _refusal(self, error: ArchiverError | HTTPException) -> HTTPException:
        if isinstance(error, ArchiverError):
            return refusal_of(error, self._context.http.retry_after)
        return error

    def _refused(self, request: Request, error: HTTPException) -> Response:
        values = {"title": _TITLES.get(error.status_code, "This cannot be shown"), "message": error.detail}
        # Here and not in the thread: it is small, and a reader without a login must not wait for others.
        html = self._rendered(request, "refused.html", values)
        return HTMLResponse(html, error.status_code, {**(error.headers or {}), **HEADERS})

    async def unknown(self, request: Request, error: Exception) -> Response:
        """Answer an exception of a handler or of the router: an address that is not there has a page for
        browsers, everything else is JSON.
        """
        # The detail of the router is the bare phrase.
        unrouted = isinstance(error, HTTPException) and (error.status_code, error.detail) == (
            404,
            "Not Found",
        )
        if not unrouted or request.url.path.startswith("/v1/") or not _prefers_html(request):
            return await refused(request, error)
        values = {"title": "Not found", "message": "There is nothing at this address."}
        return HTMLResponse(self._rendered(request, "not_found.html", values), 404, dict(HEADERS))

    async def style(self, _: Request) -> Response:
        """The style sheet of the pages."""
        return Response(style(), media_type=CSS)

    async def _page(
        self, request: Request, template: str, values: Mapping[str, Any], error: HTTPException | None = None
    ) -> Response:
        html = await asyncio.get_running_loop().run_in_executor(
            self._threads, lambda: self._rendered(request, template, values)
        )
        if error is not None:
            return HTMLResponse(html, error.status_code, {**(error.headers or {}), **HEADERS})
        return HTMLResponse(html, 200, dict(HEADERS))

    def _rendered(self, request: Request, template: str, values: Mapping[str, Any]) -> str:
        asked = dict(request.query_params)
        # Redacted as a whole, because messages of any library may carry a secret.
        return redacted(
            _template(template).render(
                **values,
                asked=asked,
                path=request.url.path,
                cluster=self._context.cluster,
                now_us=self._context.clock.now_us(),
                refresh=refresh_of(asked),
            )
        )


def _prefers_html(request: Request) -> bool:
    """Whether `Accept` has HTML and puts it before JSON, as that of a browser does."""
    weights: dict[str, float] = {}
    for one in request.headers.get("accept", "").lower().split(","):
        kind, _, rest = one.partition(";")
        found = _WEIGHT.search(rest)
        weights[kind.strip()] = float(found[1]) if found else 1.0
    return weights.get("text/html", 0.0) > weights.get("application/json", 0.0)


def _parameter(error: HTTPException) -> str | None:
    return error.parameter if isinstance(error, Refusal) else None


def shown(side: Mapping[str, Any] | None, most: int = SHOWN_MAX) -> Markup:
    """A key, value or header as text, or its bytes in base64, with what is left out."""
    if side is None:
        return Markup('<span class="soft">null</span>')
    if side["bytes"] == 0:
        return Markup('<span class="soft">empty</span>')
    # Binary formats are often UTF-8 by chance; what has control characters is not text to read.
    is_text = side["text"] is not None and not _CONTROL.search(side["text"])
    text, kind = (side["text"], "") if is_text else (side["base64"], "base64")
    cut = side["cut"] or len(text) > most
    # Line ends are kept; every other character that is not seen is escaped.
    visible = "\n".join(printable_text(line) for line in text[:most].split("\n"))
    notes = [kind] if kind else []
    notes += [f"cut, {side['bytes']:,} bytes in all"] if cut else []
    note = Markup(' <span class="soft">({})</span>').format("; ".join(notes)) if notes else Markup("")
    return Markup("<code>{}</code>").format(visible) + note


def line(side: Mapping[str, Any] | None, most: int = LINE_MAX) -> Markup:
    """The beginning of a key or value on one line."""
    if side is None or side["bytes"] == 0:
        return shown(side)
    is_text = side["text"] is not None and not _CONTROL.search(side["text"])
    return _line(side["text"] if is_text else side["base64"], most, side["cut"])


def json_line(document: object, most: int = LINE_MAX) -> Markup:
    """The beginning of a document as JSON on one line."""
    return _line(json.dumps(document, ensure_ascii=False, default=str), most)


def _line(text: str, most: int, cut: bool = False) -> Markup:
    more = "…" if cut or len(text) > most else ""
    return Markup("<code>{}</code>").format(printable_text(text[:most], kept="") + more)


def as_json(document: object, most: int = SHOWN_MAX) -> Markup:
    """A document as JSON, indented if it is not short."""
    text = json.dumps(document, ensure_ascii=False, default=str)
    if len(text) > ONE_LINE_MAX:
        text = json.dumps(document, ensure_ascii=False, indent=2, default=str)
    visible = "\n".join(printable_text(line) for line in text[:most].split("\n"))
    note = Markup(' <span class="soft">(cut)</span>') if len(text) > most else Markup("")
    return Markup('<code class="json">{}</code>').format(visible) + note


def without_nulls(document: object) -> object:
    """The same document without the fields that are null, at any depth."""
    if isinstance(document, dict):
        return {name: without_nulls(value) for name, value in document.items() if value is not None}
    return [without_nulls(value) for value in document] if isinstance(document, list) else document


def whole(text: str, most: int = WHOLE_MAX) -> Markup:
    """A long text of the daemon, such as a command to copy."""
    note = Markup(' <span class="soft">(cut)</span>') if len(text) > most else Markup("")
    return escape(printable_text(text[:most])) + note


def value(found: object, most: int = SHOWN_MAX, kind: Kind | None = None) -> Markup:
    """A value of a query's result, in the form of `archiver query`; one of an unknown type is JSON."""
    if found is None:
        return Markup('<span class="soft">NULL</span>')
    if found == "":
        return Markup('<span class="soft">empty</span>')
    if kind is not None and kind.name != "VARCHAR":
        # Another type than the column states: as in the document.
        with contextlib.suppress(ValueError):
            found = readable(restored(found, kind))
    text = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
    visible = "\n".join(printable_text(line) for line in text[:most].split("\n"))
    cut = f"(cut, {len(text):,} characters in all)"
    note = Markup(' <span class="soft">{}</span>').format(cut) if len(text) > most else Markup("")
    return Markup("<code>{}</code>").format(visible) + note


def source(text: str) -> Markup:
    """A whole text to edit: line ends and tabs are kept."""
    return escape(printable_text(text, kept="\n\t"))


def ago(time: str, now_us: int) -> str:
    """A time of a document for people, with its age or with the time until it."""
    time_us = parse_time(time)
    between = f"in {age_at(now_us, time_us)}" if time_us > now_us else f"{age_at(time_us, now_us)} ago"
    return f"{moment(time_us)} ({between})"


def time(text: str | None, unknown: str = "unknown") -> Markup:
    """A time of a document for people; the whole of it is the title."""
    if text is None:
        return escape(unknown)
    shown_as = moment(parse_time(text))
    return Markup('<time datetime="{0}" title="{0}">{1}</time>').format(text, shown_as)


def in_file(settings: object, name: str = "") -> object:
    """Settings of a document with values as archiver.yaml has them: durations and sizes with units."""
    if isinstance(settings, dict):
        return {key: in_file(found, key) for key, found in settings.items()}
    if isinstance(settings, list):
        return [in_file(found, name) for found in settings]
    return value_in_file(name, settings)


def cause_words(cause: str, number: int) -> str:
    """A count of undecoded keys or values in words; `cause` is a side and a cause, as `value:malformed`."""
    side, _, name = cause.partition(":")
    one, many = _CAUSES.get(name, (name.replace("_", " "),) * 2)
    return f"{counted(number, side)} {one if number == 1 else many}"


def state_words(state: str) -> tuple[str, str]:
    """Badge and words of a state of `archiver explain`."""
    return _STATES[state]


def is_number(kind: str) -> bool:
    """Whether values of a type of DuckDB are numbers, which are aligned on the right."""
    return kind.partition("(")[0] in NUMBERS and not kind.endswith("]")


def _template(name: str) -> Any:
    found = environment()
    if "shown" not in found.filters:
        found.filters |= {
            "shown": shown,
            "as_json": as_json,
            "line": line,
            "json_line": json_line,
            "without_nulls": without_nulls,
            "runs": numbers,
            "blocks": blocks,
            "whole": whole,
            "value": value,
            "kind_of": kind_of,
            "source": source,
            "page_of": page_of,
            "plain": plain,
            "ago": ago,
            "state_words": state_words,
            "time": time,
            "in_file": in_file,
            "cause_words": cause_words,
        }
        found.tests["number_type"] = is_number
    return found.get_template(f"console/{name}")
