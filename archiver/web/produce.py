"""Takes records over HTTP and answers with the outcome of each, as `archiver produce --output json` does.

A request is handed over whole or not at all. It is refused before anything of it is parsed if it is too
large, too slow or one too many, and an unknown outcome is never reported as a failure. Bodies that arrive or
are worked on hold at most `http.body_bytes_max` times `http.requests_max` bytes together. A request takes one
of the `http.requests_max` places when its body is complete, so that slow senders do not keep others out.
Records are bounded by `http.records_max` for each of `PARSERS` requests that are parsed at a time; what was
handed over counts in the writer's queue. Must never block the event loop, and never parse records by rules of
its own.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator, Sequence

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from archiver.runtime.errors import ArchiverError, InvalidInput, NotFound, RetryLater
from archiver.runtime.redaction import excerpt
from archiver.web.app_context import AppContext
from archiver.web.bearer import require_bearer
from archiver.web.bodies import BodyBudget, media_type, read_body
from archiver.web.error_responses import refusal, retry_after
from archiver.web.fair_threads import FairThreads
from archiver.web.openapi import NDJSON, PROTOBUF
from intake.inputs import read_inputs, read_messages
from intake.produce_stream import Sent
from intake.record_json import Input
from intake.write.acknowledgements import PendingRecord
from intake.write.writer import IntakeWriter

PARSERS, TOPIC_PARSERS = 4, 2
"""Threads that parse and check bodies, and how many of them work for one topic; more would only wait for each
other."""


class Producing:
    """The one way for records through the port."""

    def __init__(self, face: AppContext) -> None:
        self._face = face
        self._under_way = 0
        """Requests whose body is complete."""
        self._budget = BodyBudget(face.http.requests_max * face.http.body_bytes_max, face.http.retry_after)
        self._parsers = FairThreads(PARSERS, TOPIC_PARSERS, "http-records")

    def close(self) -> None:
        """Let go of the threads."""
        self._parsers.close()

    async def answer(self, request: Request) -> Response:
        """Take the records of one request and wait for what becomes of them."""
        http = self._face.http
        if http.produce_token is not None:
            token = http.produce_token.get_secret_value()
            require_bearer(
                request,
                token,
                "records ask for the token (http.produce_token); nothing was sent",
                "not the token; nothing was sent",
            )
        writer = self._open_writer()
        self._refuse_if_busy()
        text = _text_asked(request.query_params)
        kind = media_type(request)
        if kind != NDJSON and kind not in PROTOBUF:
            why = (
                f"the content type {excerpt(kind)!r} is not taken; nothing was sent, send {NDJSON} (one "
                f"record a line) or {PROTOBUF[0]}"
            )
            raise refusal(415, why)
        if text and kind != NDJSON:
            raise refusal(400, "text=true is for JSON lines; Protobuf carries bytes already")
        with self._budget.share() as share:
            body = await read_body(
                request, http.body_bytes_max, "http.body_bytes_max", http.request_timeout, share
            )
            self._refuse_if_busy()
            self._under_way += 1
            try:
                return await self._send(writer, body, request.path_params["topic"], kind, text)
            finally:
                self._under_way -= 1

    def _refuse_if_busy(self) -> None:
        http = self._face.http
        if self._under_way >= http.requests_max:
            why = (
                f"http.requests_max = {http.requests_max} requests with records are under way; nothing was "
                "sent"
            )
            raise refusal(429, why, retry_after_s=http.retry_after)

    def _open_writer(self) -> IntakeWriter:
        face = self._face
        writer = face.writer()
        if "intake" not in face.roles:
            raise refusal(
                503,
                "this daemon has not the role intake; send to one that has",
                retry_after_s=face.http.retry_after,
            )
        if face.journal.state == "stopping":
            raise refusal(
                503, "the daemon is stopping; nothing was sent", retry_after_s=face.http.retry_after
            )
        if writer is None:
            raise refusal(
                429,
                "intake is not open yet; nothing was sent, /readyz says why",
                retry_after_s=face.http.retry_after,
            )
        return writer

    async def _send(self, writer: IntakeWriter, body: bytes, topic: str, kind: str, text: bool) -> Response:
        loop = asyncio.get_running_loop()
        countdown = _Countdown(loop)

        def hand_over() -> list[PendingRecord]:
            inputs = self._parsed(writer, body, topic, kind, text)
            return self._handed_over(writer, inputs, countdown)

        pending = await asyncio.wrap_future(self._parsers.submit(topic, hand_over))
        timeout_s = self._face.http.request_timeout
        if pending:
            try:
                await asyncio.wait_for(countdown.over.wait(), timeout_s)
            except TimeoutError:
                pass  # What has no outcome yet is of unknown outcome.
            except asyncio.CancelledError:
                return self._told(pending, timeout_s)  # The server stops: say what is known, at once.
        return await asyncio.wrap_future(self._parsers.submit(topic, lambda: self._told(pending, timeout_s)))

    def _parsed(self, writer: IntakeWriter, body: bytes, topic: str, kind: str, text: bool) -> list[Input]:
        """Every record of the body, or a refusal."""
        records_max = self._face.http.records_max
        try:
            writer.check_topic(topic)
        except NotFound as error:
            raise refusal(404, f"{error}; nothing was sent") from error
        except InvalidInput as error:
            raise refusal(400, f"{error}; nothing was sent") from error
        except ArchiverError as error:
            raise self._unavailable(error) from error
        inputs: list[Input] = []
        try:
            for item in _read(body, topic, kind, text, writer.settings.record_bytes_max):
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
        """All of them in the writer's queue, or a refusal and none."""
        countdown.left = len(inputs)
        try:
            pending = writer.try_send(inputs, countdown.one_less)
        except InvalidInput as error:
            raise refusal(400, f"{error}; nothing was sent") from error
        except ArchiverError as error:
            raise self._unavailable(error) from error
        if pending is None:
            raise refusal(
                429,
                "there is no room for these records in the intake queue; nothing was sent",
                retry_after_s=self._face.http.retry_after,
            )
        return pending

    def _unavailable(self, error: ArchiverError) -> Exception:
        again_s = self._face.http.retry_after if isinstance(error, RetryLater) else None
        return refusal(503, f"{error}; nothing was sent", retry_after_s=again_s)

    def _told(self, pending: Sequence[PendingRecord], timeout_s: float) -> Response:
        """The acknowledgements, and the status that goes with all of them together."""
        told = [_outcome(one, timeout_s) for one in pending]
        outcomes = {one.outcome for one in told}
        lines = "".join(
            json.dumps(one.to_json(), ensure_ascii=False, separators=(",", ":")) + "\n" for one in told
        )
        if outcomes <= {"ok"}:
            return Response(lines, 200, media_type=NDJSON)
        if all(one.outcome == "ok" or one.refused for one in told):
            return Response(lines, 422, media_type=NDJSON)
        if outcomes == {"failed"}:
            return Response(lines, 503, retry_after(self._face.http.retry_after), NDJSON)
        return Response(lines, 500, media_type=NDJSON)


class _Countdown:
    """Wakes the event loop when the last outcome is there; told by the writer's thread, under its lock."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.left = 0
        self.over = asyncio.Event()
        self._loop = loop

    def one_less(self) -> None:
        """One outcome is there."""
        self.left -= 1
        if self.left == 0:
            try:
                self._loop.call_soon_threadsafe(self.over.set)
            except RuntimeError:
                pass  # The server has stopped, and with it whoever waited.


def _outcome(pending: PendingRecord, timeout_s: float) -> Sent:
    """What became of it by now."""
    if not pending.done():
        why = (
            f"not acknowledged within http.request_timeout = {timeout_s:g} s; it may be stored, look "
            "before sending it again"
        )
        return Sent(pending.topic, pending.partition, None, "unknown", why)
    told = pending.result(0)
    return Sent(told.topic, told.partition, told.offset, told.outcome, told.error, told.refused)


def _read(body: bytes, topic: str, kind: str, text: bool, record_bytes_max: int) -> Iterator[Input]:
    source = io.BytesIO(body)
    if kind == NDJSON:
        return read_inputs(source, "jsonl", topic, text, record_bytes_max)
    return read_messages(source, topic, record_bytes_max)


def _text_asked(query: QueryParams) -> bool:
    """Of `?text=true`; refuses any other parameter, so that a misspelt one is not passed over."""
    values = {"true": True, "false": False}
    for name, value in query.multi_items():
        if name != "text":
            raise refusal(400, f"there is no parameter {excerpt(name)!r}; the only one is text=true")
        if value not in values or len(query.getlist("text")) > 1:
            raise refusal(
                400, f"text={excerpt(value)} is not understood; it is text=true or text=false, once"
            )
    return values[query.get("text", "false")]
