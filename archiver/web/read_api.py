"""The read API: each view as a JSON document, for readers that may see it.

The pages of the console get their documents here, so a page never shows what the API would not.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import json
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from archiver.runtime.errors import (
    ArchiverError,
    InvalidInput,
    LimitReached,
    NotAllowed,
    NotFound,
    OutcomeUnknown,
    RetryLater,
)
from archiver.runtime.redaction import MESSAGE_MAX, excerpt, redacted_document
from archiver.web.access import Access, Reader
from archiver.web.app_context import AppContext, May, Queries
from archiver.web.endpoint import JSON
from archiver.web.error_responses import error_document, refusal, refused
from archiver.web.read_endpoints import OFFSET_MAX, RECORDS, RECORDS_MAX, ROWS_SHOWN, TOPICS, TOPICS_MAX
from archiver.web.runbook import runbook

_log = logging.getLogger(__name__)

THREADS: Final = 4
OUTSIDE_THREADS: Final = 4
"""Reads of catalogs and registries at a time. One that does not answer must not hold up the other reads."""
PARTS_OPEN_MAX: Final = 16
"""Maximum of open reads of parts of a document; further parts are left out."""
SUMMARY_S: Final = 2.0
"""Time after which a topic is shown without the summary of its table."""
PLAN_S: Final = 20.0
"""Time after which a schema is shown without the plan of the newest one."""
UNDECODED_S: Final = 5.0
"""Time after which a schema is shown without the number of undecoded records."""
OPEN_MAX: Final = 32
"""Maximum of open reads; further ones are refused with 429."""
ANSWER_S: Final = 60.0
"""Time after which a reader gets 503. The read continues, and counts as open until it ends."""
KEY_BYTES_MAX: Final = 64 * 1024

Document = dict[str, Any]
Handler = Callable[[Request], Awaitable[Response]]


class ReadApi:
    """The handlers of the views."""

    def __init__(self, context: AppContext, access: Access) -> None:
        self._context = context
        self._access = access
        self._answers = 0
        self._open = 0
        # Decoding is Python code under the GIL, so more reads at a time would only slow down each other.
        self._turns = threading.BoundedSemaphore(THREADS)
        self._outside_turns = threading.BoundedSemaphore(OUTSIDE_THREADS)
        self._parts_open = 0
        self.views: dict[str, Callable[[Request], Awaitable[Document]]] = {
            "topics": self._topics,
            "topic": self._topic,
            "messages": self._messages,
            "message": self._message,
            "groups": self._groups,
            "group": self._group,
            "dead_letters": self._dead_letters,
            "dead_letter_replay": self._dead_letter_replay,
            "audit": self._audit,
            "runbook": self._runbook,
            "table": self._table,
            "schema": self._schema,
            "queries": self._queries,
            "query": self._query,
        }
        """The function that answers each view; it raises a refusal."""

    def handler(self, name: str) -> Handler:
        """Handler of a view's document."""
        view = self.views[name]

        async def answer(request: Request) -> Response:
            with self.place():
                document = await view(request)
                # In a thread: a large document would hold up health checks and records.
                content = await _in_thread(lambda: _encoded(document), self._turns)
                return Response(content, media_type=JSON)

        return refusing(answer, self._context)

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        """A place for an answer, from before its document is read until its bytes exist: so many documents
        are in memory. Raises a refusal.
        """
        # Counted without a lock: all handlers run in the one thread of the event loop.
        if self._answers >= OPEN_MAX:
            raise refusal(429, f"{OPEN_MAX} reads are open", retry_after_s=self._context.http.retry_after)
        self._answers += 1
        try:
            yield
        finally:
            self._answers -= 1

    async def _topics(self, request: Request) -> Document:
        reader = await self._access.reader(request)
        given = request.query_params
        limit = _number(given.get("limit"), "limit", TOPICS, 1, TOPICS_MAX)
        after = given.get("after") or ""

        def found() -> Document:
            document = self._context.reads.topics()
            later = sorted(one["topic"] for one in document["topics"] if one["topic"] > after)
            names = reader.visible("describe", "topic", later)
            topics = [one for one in document["topics"] if one["topic"] in names]
            reads = self._context.reads
            return document | {
                # Only for those that are shown: there may be thousands.
                "topics": [{**one, "traffic": reads.traffic(one["topic"])} for one in topics[:limit]],
                "left": max(0, len(topics) - limit),
                "next": topics[limit - 1]["topic"] if len(topics) > limit else None,
            }

        return await self._read(found)

    async def _topic(self, request: Request) -> Document:
        name, _ = await self._of_topic(request, "describe")
        document = await self._read(lambda: self._context.reads.topic(name))
        summary = None
        if document["table"] is not None:
            # Without it, the page of the table says why.
            summary, _ = await self._part(lambda: self._context.reads.table_summary(name), SUMMARY_S)
        return document | {"table_summary": summary}

    async def _table(self, request: Request) -> Document:
        name, _ = await self._of_topic(request, "describe")
        return await self._read(lambda: self._context.reads.table(name), self._outside_turns)

    async def _schema(self, request: Request) -> Document:
        name, _ = await self._of_topic(request, "describe")
        reads = self._context.reads
        document = await self._read(lambda: reads.schema(name))
        (plan, plan_why), (undecoded, undecoded_why) = await asyncio.gather(
            self._part(lambda: reads.schema_plan(name), PLAN_S),
            self._part(lambda: reads.undecoded(name), UNDECODED_S),
        )
        return document | {
            "plan": plan,
            "plan_why": plan_why,
            "undecoded": undecoded,
            "undecoded_why": undecoded_why,
        }

    async def _messages(self, request: Request) -> Document:
        name, _ = await self._of_topic(request, "read")
        given = request.query_params
        partition = _number(given.get("partition"), "partition", 0, 0, OFFSET_MAX)
        limit = _number(given.get("limit"), "limit", RECORDS, 1, RECORDS_MAX)
        key, start = _key(given.get("key"), given.get("key_base64")), given.get("from") or "latest"
        return await self._read(lambda: self._context.reads.messages(name, partition, start, limit, key))

    async def _message(self, request: Request) -> Document:
        name, _ = await self._of_topic(request, "read")
        partition, offset = (
            _number(request.path_params[part], part, 0, 0, OFFSET_MAX) for part in ("partition", "offset")
        )
        return await self._read(lambda: self._context.reads.message(name, partition, offset))

    async def _groups(self, request: Request) -> Document:
        reader = await self._access.reader(request)
        given = request.query_params
        limit = _number(given.get("limit"), "limit", RECORDS, 1, RECORDS_MAX)
        after = given.get("after")
        return await self._read(lambda: self._context.reads.groups(_may(reader), after, limit))

    async def _group(self, request: Request) -> Document:
        reader = await self._access.reader(request)
        name = request.query_params.get("group")
        if name is None:
            raise refusal(400, "group is missing; it is the id of a consumer group")
        reader.require("describe", "group", name)
        return await self._read(lambda: self._context.reads.group(_may(reader), name))

    async def _dead_letters(self, request: Request) -> Document:
        topic, may_read = await self._of_readable(request)
        limit = _number(request.query_params.get("limit"), "limit", RECORDS, 1, RECORDS_MAX)
        return await self._read(lambda: self._context.reads.dead_letters(may_read, topic, limit))

    async def _dead_letter_replay(self, request: Request) -> Document:
        topic, may_read = await self._of_readable(request)
        return await self._read(lambda: self._context.reads.dead_letter_replay(may_read, topic))

    async def _of_readable(self, request: Request) -> tuple[str | None, Callable[[str], bool]]:
        """The topic of the query, which the reader may read, and which others it may."""
        reader = await self._access.reader(request)
        topic = request.query_params.get("topic") or None
        if topic is not None:
            reader.require("read", "topic", topic, "topic")
        return topic, lambda name: reader.may("read", "topic", name)

    async def _audit(self, request: Request) -> Document:
        reader = await self._access.reader(request)
        topic = request.query_params.get("topic") or None
        if topic is not None:
            reader.require("describe", "topic", topic)
        return await self._read(
            lambda: self._context.reads.audit(_may(reader), topic, sees_all=reader.sees_all)
        )

    async def _runbook(self, request: Request) -> Document:
        # Any reader: it is the same in every deployment.
        await self._access.reader(request)
        return await self._read(runbook)

    async def _queries(self, request: Request) -> Document:
        reader, queries = await self._access.reader(request), self._context.queries

        def found() -> Document:
            return {
                "limits": queries.limits(),
                "tables": queries.tables(readable_topics(reader, queries)),
                "queries": queries.list(reader.principal),
            }

        return await self._read(found)

    async def _query(self, request: Request) -> Document:
        reader, query_id = await self._access.reader(request), request.path_params["query"]
        first = _number(request.query_params.get("from"), "from", 0, 0, OFFSET_MAX)
        return await self._read(
            lambda: self._context.queries.document(
                reader.principal, query_id, lambda name: reader.may("read", "topic", name), first, ROWS_SHOWN
            )
        )

    async def _of_topic(self, request: Request, operation: Any) -> tuple[str, Reader]:
        """The topic of the address, which the reader may see."""
        reader = await self._access.reader(request)
        name = request.path_params["topic"]
        reader.require(operation, "topic", name)
        return name, reader

    async def _read(
        self, read: Callable[[], Document], turns: threading.BoundedSemaphore | None = None
    ) -> Document:
        """A document from a thread."""
        # Counted without a lock: all handlers run in the one thread of the event loop.
        if self._open >= OPEN_MAX:
            raise refusal(429, f"{OPEN_MAX} reads are open", retry_after_s=self._context.http.retry_after)
        reading = _in_thread(read, turns or self._turns)
        self._open += 1
        reading.add_done_callback(self._ended)
        try:
            # Shielded, because the thread cannot be stopped, and its end must be counted.
            found: Document = await asyncio.wait_for(asyncio.shield(reading), ANSWER_S)
        except TimeoutError:
            raise refusal(
                503,
                f"no answer within {ANSWER_S:g} s; /readyz shows whether a dependency is away",
                retry_after_s=self._context.http.retry_after,
            ) from None

        return found

    async def _part(
        self, read: Callable[[], Document | None], wait_s: float
    ) -> tuple[Document | None, str | None]:
        """A part of a document that asks a catalog or a registry, or why it is left out."""
        if self._parts_open >= PARTS_OPEN_MAX:
            return None, f"{PARTS_OPEN_MAX} reads of catalogs and registries are open"
        reading = _in_thread(read, self._outside_turns)
        self._parts_open += 1
        reading.add_done_callback(self._part_ended)
        try:
            return await asyncio.wait_for(asyncio.shield(reading), wait_s), None
        except TimeoutError:
            return None, f"no answer within {wait_s:g} s"
        except ArchiverError as error:
            return None, excerpt(str(error), MESSAGE_MAX)

    def _part_ended(self, reading: asyncio.Future[Any]) -> None:
        self._parts_open -= 1
        _log_error(reading)

    def _ended(self, reading: asyncio.Future[Any]) -> None:
        self._open -= 1
        _log_error(reading)


def _in_thread(read: Callable[[], Any], turns: threading.BoundedSemaphore) -> asyncio.Future[Any]:
    """What the function returns, without secrets; it is called in a thread when it is its turn. Raises
    `RetryLater` if no thread can be started.
    """
    loop = asyncio.get_running_loop()
    reading: asyncio.Future[Any] = loop.create_future()

    def work() -> None:
        with turns:
            try:
                # Errors of libraries and settings may carry a secret.
                found = read()
                end = partial(
                    _end, reading, found if isinstance(found, bytes) else redacted_document(found), None
                )
            except Exception as error:  # noqa: BLE001 - the head of the thread; the handler gets the error
                end = partial(_end, reading, None, error)
        # The loop may have stopped; then no reader is left.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(end)

    # A daemon thread: a read that hangs on a store must not delay the end of the process.
    try:
        threading.Thread(target=work, name="http-read", daemon=True).start()
    except RuntimeError as error:
        raise RetryLater(f"no thread can be started: {error}") from error
    return reading


def _encoded(document: Document) -> bytes:
    # A lone surrogate in a name cannot be encoded in UTF-8; the answer must not fail for it.
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")


def _end(reading: asyncio.Future[Any], document: object, error: Exception | None) -> None:
    if reading.cancelled():
        return
    if error is not None:
        reading.set_exception(error)
    else:
        reading.set_result(document)


def _log_error(reading: asyncio.Future[Any]) -> None:
    """Also of a read whose reader has left: otherwise asyncio would complain about it."""
    if not reading.cancelled() and (error := reading.exception()) is not None:
        _log.debug("a read ended in an error: %s", excerpt(str(error)))


def _may(reader: Reader) -> May:
    return lambda resource, name: reader.may("describe", resource, name)


def readable_topics(reader: Reader, queries: Queries) -> frozenset[str] | None:
    """Topics whose tables a query of this reader can reach; None: all."""
    return None if reader.sees_all else frozenset(reader.visible("read", "topic", queries.topics()))


def refusal_of(error: ArchiverError, retry_after_s: float) -> HTTPException:
    """The refusal that states an error of a read."""
    message = excerpt(str(error), MESSAGE_MAX)
    parameter = error.parameter if isinstance(error, InvalidInput) else None
    if isinstance(error, NotFound):
        # Without the names of other topics: a rule may hide them from this reader.
        topic = error.unknown_topic
        return refusal(
            404, message if topic is None else f"there is no topic {excerpt(topic)}", parameter=parameter
        )
    if isinstance(error, NotAllowed):
        return refusal(403, message)
    if isinstance(error, InvalidInput | LimitReached):
        return refusal(400, message, parameter=parameter)
    if isinstance(error, RetryLater | OutcomeUnknown):
        return refusal(503, message, retry_after_s=retry_after_s)
    # Damaged data, or a state that needs a person: it will not pass by itself.
    return refusal(500, message)


def refusing(handler: Handler, context: AppContext) -> Handler:
    """The handler, whose errors of reads become answers in JSON."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except ArchiverError as error:
            found = refusal_of(error, context.http.retry_after)
        if found.status_code == 500:
            return JSONResponse(error_document("Halt", found.detail), 500)
        return await refused(None, found)

    return answer


def _number(text: str | None, what: str, default: int, least: int, most: int) -> int:
    if text is None or text == "":
        return default
    # `isdecimal` accepts digits of other scripts, so ASCII is checked first.
    found = int(text) if text.isascii() and text.isdecimal() and len(text) <= 19 else -1
    if not least <= found <= most:
        raise refusal(
            400, f"{what} {excerpt(text, 40)!r} is no whole number from {least} to {most}", parameter=what
        )
    return found


def _key(text: str | None, encoded: str | None) -> bytes | None:
    if text and encoded:
        raise refusal(400, "key and key_base64 are both given; leave one of them out")
    if encoded:
        try:
            key = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            raise refusal(400, "key_base64 is no base64", parameter="key_base64") from None
    elif text:
        key = text.encode("utf-8", "surrogateescape")
    else:
        return None
    if len(key) > KEY_BYTES_MAX:
        given_as = "key_base64" if encoded else "key"
        raise refusal(400, f"the key has more than {KEY_BYTES_MAX} bytes", parameter=given_as)
    return key
