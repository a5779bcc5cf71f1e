"""Produce over HTTP: accepts records and answers with the outcome of each, as `archiver produce --output
json`.

A request enters the writer's queue whole or not at all. It is refused before parsing if it is too large, too
slow or one too many. An unknown outcome is never reported as a failure.
"""

from __future__ import annotations

import asyncio
import io
import json
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from archiver.config.daemon import HttpSettings
from archiver.runtime.errors import ArchiverError, InvalidInput, NotFound, RetryLater
from archiver.runtime.redaction import excerpt
from archiver.web.app_context import AppContext, Records
from archiver.web.bodies import BodyBudget, media_type, read_body
from archiver.web.endpoint import NDJSON
from archiver.web.error_responses import refusal, require_bearer, retry_after
from archiver.web.openapi import PROTOBUF
from intake.inputs import read_inputs, read_messages
from intake.produce_stream import Sent
from intake.record_json import Input
from intake.write.acknowledgements import PendingRecord
from intake.write.writer import IntakeWriter

# More threads would only wait for the GIL.
PARSERS, TOPIC_PARSERS = 4, 2
"""Threads that parse bodies, and their maximum for one topic."""


T = TypeVar("T")
_Work = tuple["Future[T]", Callable[[], T]]


class FairThreads:
    """Threads shared fairly between topics. Thread-safe.

    A topic never has all threads, and topics with waiting work take turns. So a topic with slow requests
    delays only its own. The caller bounds the number of waiting requests.
    """

    def __init__(self, threads: int, topic_threads: int, name: str) -> None:
        """`topic_threads` is the maximum that work for one topic at a time."""
        # One topic must never occupy all threads.
        assert 0 < topic_threads < threads
        self._free = threads
        self._topic_threads = topic_threads
        self._lock = threading.Lock()
        self._waiting: OrderedDict[str, deque[_Work[object]]] = OrderedDict()
        """Waiting work by topic; the topic with the next turn is first."""
        self._running: Counter[str] = Counter()
        self._pool = ThreadPoolExecutor(threads, name)

    def submit(self, topic: str, work: Callable[[], T]) -> Future[T]:
        """Run the work at the turn of the topic."""
        future: Future[T] = Future()
        with self._lock:
            self._waiting.setdefault(topic, deque()).append((future, work))  # type: ignore[arg-type]
            self._start()
        return future

    def close(self) -> None:
        """Cancel waiting work; running work ends by itself."""
        with self._lock:
            given_up = [future for works in self._waiting.values() for future, _ in works]
            self._waiting.clear()
        for future in given_up:
            # Outside the lock: the callbacks of a future run in this thread.
            future.cancel()
        # The pool itself has no waiting work: `_start` gives it no more than it has threads.
        self._pool.shutdown(wait=False)

    def _start(self) -> None:
        """Start work of the next topics on free threads; the caller holds the lock."""
        while self._free:
            topic = next((name for name in self._waiting if self._running[name] < self._topic_threads), None)
            if topic is None:
                return
            works = self._waiting.pop(topic)
            future, work = works.popleft()
            if works:
                # At the end, after all other topics.
                self._waiting[topic] = works
            self._free -= 1
            self._running[topic] += 1
            self._pool.submit(self._run, topic, future, work)

    def _run(self, topic: str, future: Future[object], work: Callable[[], object]) -> None:
        result: object = None
        raised: BaseException | None = None
        # False if the request was cancelled while it waited: its records are then not parsed.
        is_active = future.set_running_or_notify_cancel()
        if is_active:
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - the future carries it to the caller
                raised = error
        # Free the thread first: the caller may submit its next work as soon as the future is set.
        with self._lock:
            self._free += 1
            self._running[topic] -= 1
            if not self._running[topic]:
                del self._running[topic]
            self._start()
        if raised is not None:
            future.set_exception(raised)
        elif is_active:
            future.set_result(result)


class RecordRequests:
    """Sends the records of whole requests, and answers with their outcomes."""

    def __init__(self, http: HttpSettings) -> None:
        self._http = http
        self._parsers = FairThreads(PARSERS, TOPIC_PARSERS, "http-records")

    def close(self) -> None:
        """Release the threads."""
        self._parsers.close()

    async def answer(self, writer: IntakeWriter, records: Records) -> Response:
        """Send the records of one request and wait for their outcomes. Raises a refusal."""
        loop = asyncio.get_running_loop()
        # One wake-up per request instead of one for each record.
        countdown = _Countdown(loop)

        def hand_over() -> list[PendingRecord]:
            return self._handed_over(writer, self._parsed(writer, records), countdown)

        topic = records.topic
        pending = await asyncio.wrap_future(self._parsers.submit(topic, hand_over))
        timeout_s = self._http.request_timeout
        if pending:
            try:
                await asyncio.wait_for(countdown.over.wait(), timeout_s)
            except TimeoutError:
                # Records without an outcome by now are reported as unknown.
                pass
            except asyncio.CancelledError:
                # The server stops: report the known outcomes at once, without a turn of the parsers.
                return self._acknowledgements(pending, timeout_s)
        # Thousands of lines take time to encode, so this happens outside the event loop.
        return await asyncio.wrap_future(
            self._parsers.submit(topic, lambda: self._acknowledgements(pending, timeout_s))
        )

    def _parsed(self, writer: IntakeWriter, records: Records) -> list[Input]:
        """Records of the body; raises a refusal."""
        records_max = self._http.records_max
        try:
            writer.check_topic(records.topic)
        except NotFound as error:
            raise refusal(404, f"{error}; nothing was sent") from error
        except InvalidInput as error:
            raise refusal(400, f"{error}; nothing was sent") from error
        except ArchiverError as error:
            raise self._unavailable(error) from error
        inputs: list[Input] = []
        try:
            for item in _read(records, writer.settings.record_bytes_max):
                # Checked while parsing, so that a body of tiny records cannot take memory first.
                if len(inputs) == records_max:
                    raise refusal(
                        413,
                        f"more than http.records_max = {records_max} records in one request; nothing "
                        "was sent, split it",
                    )
                inputs.append(item)
        except InvalidInput as error:
            raise refusal(400, f"{error}; nothing was sent") from error
        return inputs

    def _handed_over(
        self, writer: IntakeWriter, inputs: Sequence[Input], countdown: _Countdown
    ) -> list[PendingRecord]:
        """Put all records into the queue of the writer, or none and raise a refusal."""
        # Before sending: outcomes may come before `try_send` returns.
        countdown.left = len(inputs)
        try:
            pending = writer.try_send(inputs, countdown.one_less)
        except InvalidInput as error:
            raise refusal(400, f"{error}; nothing was sent") from error
        except ArchiverError as error:
            raise self._unavailable(error) from error
        # Does not wait for room: a full queue must not occupy the parsers.
        if pending is None:
            raise refusal(
                429,
                "there is no room for these records in the intake queue; nothing was sent",
                retry_after_s=self._http.retry_after,
            )
        return pending

    def _unavailable(self, error: ArchiverError) -> Exception:
        # A `Halt` needs an operator, so no time for a retry is named.
        again_s = self._http.retry_after if isinstance(error, RetryLater) else None
        return refusal(503, f"{error}; nothing was sent", retry_after_s=again_s)

    def _acknowledgements(self, pending: Sequence[PendingRecord], timeout_s: float) -> Response:
        """Answer with a line per record; the status follows from all outcomes together."""
        outcomes_of = [_outcome(one, timeout_s) for one in pending]
        outcomes = {one.outcome for one in outcomes_of}
        lines = "".join(
            json.dumps(one.to_json(), ensure_ascii=False, separators=(",", ":")) + "\n" for one in outcomes_of
        )
        # Also for a body without records.
        if outcomes <= {"ok"}:
            return Response(lines, 200, media_type=NDJSON)
        # Resending refused records cannot help, unlike after a failure.
        if all(one.outcome == "ok" or one.refused for one in outcomes_of):
            return Response(lines, 422, media_type=NDJSON)
        # Nothing is stored, so the whole request may be sent again.
        if outcomes == {"failed"}:
            return Response(lines, 503, retry_after(self._http.retry_after), NDJSON)
        # Mixed or unknown: the client must read the lines before it sends anything again.
        return Response(lines, 500, media_type=NDJSON)


class Producing:
    """Handler of produce requests."""

    def __init__(self, context: AppContext) -> None:
        self._context = context
        self._records = RecordRequests(context.http)
        self._under_way = 0
        """Open requests with a complete body."""
        # All bodies together hold no more than the requests that may be open at once.
        self._budget = BodyBudget(
            context.http.requests_max * context.http.body_bytes_max, context.http.retry_after
        )

    def close(self) -> None:
        """Release the threads."""
        self._records.close()

    async def answer(self, request: Request) -> Response:
        """Send the records of one request and wait for their outcomes."""
        http = self._context.http
        if http.produce_token is not None:
            token = http.produce_token.get_secret_value()
            require_bearer(
                request,
                token,
                "records ask for the token (http.produce_token); nothing was sent",
                "not the token; nothing was sent",
            )
        # All checks that need no body come first: a refused sender need not send it.
        writer = self._open_writer()
        self._refuse_if_busy()
        text = _is_text(request.query_params)
        kind = media_type(request)
        if kind != NDJSON and kind not in PROTOBUF:
            why = (
                f"the content type {excerpt(kind)!r} is not accepted; nothing was sent, send {NDJSON} (one "
                f"record a line) or {PROTOBUF[0]}"
            )
            raise refusal(415, why)
        if text and kind != NDJSON:
            raise refusal(400, "text=true is for JSON lines; Protobuf carries bytes already")
        with self._budget.share() as share:
            body = await read_body(
                request, http.body_bytes_max, "http.body_bytes_max", http.request_timeout, share
            )
            # Again, because other bodies may be complete by now.
            self._refuse_if_busy()
            # Counted from here, so that slow senders block no others.
            self._under_way += 1
            try:
                records = Records(request.path_params["topic"], kind, text, body)
                # A worker if one serves, because parsing takes most of the time.
                forwarded = await self._context.forward(records)
                return forwarded or await self._records.answer(writer, records)
            finally:
                self._under_way -= 1

    def _refuse_if_busy(self) -> None:
        http = self._context.http
        if self._under_way >= http.requests_max:
            why = f"http.requests_max = {http.requests_max} requests with records are open; nothing was sent"
            raise refusal(429, why, retry_after_s=http.retry_after)

    def _open_writer(self) -> IntakeWriter:
        context = self._context
        writer = context.writer()
        if "intake" not in context.roles:
            raise refusal(
                503,
                "this daemon has not the role intake; send to one that has",
                retry_after_s=context.http.retry_after,
            )
        if context.journal.state == "stopping":
            raise refusal(
                503, "the daemon is stopping; nothing was sent", retry_after_s=context.http.retry_after
            )
        if writer is None:
            raise refusal(
                429,
                "intake is not open yet; nothing was sent, /readyz says why",
                retry_after_s=context.http.retry_after,
            )
        return writer


class _Countdown:
    """Wakes the event loop at the last outcome. The writer's thread calls it under its lock."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.left = 0
        self.over = asyncio.Event()
        self._loop = loop

    def one_less(self) -> None:
        """Count one outcome."""
        # Without a lock of its own: the writer calls it under its lock.
        self.left -= 1
        if self.left == 0:
            try:
                self._loop.call_soon_threadsafe(self.over.set)
            except RuntimeError:
                # The server has stopped, so no handler waits.
                pass


def _outcome(pending: PendingRecord, timeout_s: float) -> Sent:
    """Outcome by now."""
    # Not acknowledged is not failed: the flush may still succeed.
    if not pending.done():
        why = (
            f"not acknowledged within http.request_timeout = {timeout_s:g} s; it may be stored, check "
            "before sending it again"
        )
        return Sent(pending.topic, pending.partition, None, "unknown", why)
    done = pending.result(0)
    return Sent(done.topic, done.partition, done.offset, done.outcome, done.error, done.refused)


def _read(records: Records, record_bytes_max: int) -> Iterator[Input]:
    source = io.BytesIO(records.body)
    if records.kind == NDJSON:
        return read_inputs(source, "jsonl", records.topic, records.text, record_bytes_max)
    return read_messages(source, records.topic, record_bytes_max)


def _is_text(query: QueryParams) -> bool:
    """Value of `?text=`; refuses any other parameter."""
    # A misspelt parameter would otherwise be ignored, and the bytes stored would be wrong.
    values = {"true": True, "false": False}
    for name, value in query.multi_items():
        if name != "text":
            raise refusal(400, f"there is no parameter {excerpt(name)!r}; the only one is text=true")
        if value not in values or len(query.getlist("text")) > 1:
            raise refusal(
                400, f"text={excerpt(value)} is not understood; it is text=true or text=false, once"
            )
    return values[query.get("text", "false")]
