"""Reads the body of a request within limits of size and time, before parsing.

The size is limited per request, announced or not, and for all requests together. The time is limited as a
whole and by a rate.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self

from starlette.requests import ClientDisconnect, Request

from archiver.runtime.redaction import excerpt
from archiver.web.error_responses import refusal
from intake.record_json import whole_number

_TYPES = {"text": "string", "truth value": "boolean", "whole number": "integer"}


@dataclass(frozen=True, slots=True)
class BodyField:
    """Field; null is the same as absent."""

    kind: Literal["text", "truth value", "whole number"]
    description: str
    default: bool | None = None
    minimum: int | None = None
    maximum: int | None = None
    required: bool = False
    """Refused if it is absent; only a text, which must not be empty."""

    def schema(self) -> dict[str, Any]:
        """JSON Schema of the field."""
        if self.required:
            return {"type": _TYPES[self.kind], "minLength": 1, "description": self.description}
        found: dict[str, Any] = {"type": [_TYPES[self.kind], "null"], "description": self.description}
        if self.default is not None:
            found["default"] = self.default
        if self.minimum is not None:
            found["minimum"] = self.minimum
        if self.maximum is not None:
            found["maximum"] = self.maximum
        return found

    def value(self, name: str, given: object) -> str | bool | int | None:
        """Validated value; refuses with 400 what the schema does not allow."""
        if given is None:
            return None
        found: str | bool | int | None = None
        if self.kind == "text":
            found = given if isinstance(given, str) else None
        elif self.kind == "truth value":
            found = given if isinstance(given, bool) else None
        else:
            # Not `isinstance(given, int)`: a truth value is an int in Python.
            found = whole_number(given)
        if found is None:
            raise refusal(400, f"{name!r} is no {self.kind}; nothing was done")
        if self.minimum is not None and found < self.minimum:  # type: ignore[operator]  # only whole numbers have one
            raise refusal(400, f"{name!r} is less than {self.minimum}; nothing was done")
        if self.maximum is not None and found > self.maximum:  # type: ignore[operator]
            raise refusal(400, f"{name!r} is more than {self.maximum}; nothing was done")
        return found


def body_schema(fields: Mapping[str, BodyField]) -> dict[str, Any]:
    """Schema of an object with only these fields."""
    schema = {
        "type": "object",
        "properties": {name: field.schema() for name, field in fields.items()},
        "additionalProperties": False,
    }
    required = [name for name, field in fields.items() if field.required]
    return {**schema, "required": required} if required else schema


def parse_body(body: bytes, fields: Mapping[str, BodyField]) -> dict[str, Any]:
    """Values of the fields in a JSON object; refuses anything else with 400."""
    try:
        # Deep nesting raises `RecursionError`, which is an error of the sender too.
        found = json.loads(body, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise refusal(400, f"the body is no JSON: {error}; nothing was done") from error
    if not isinstance(found, dict):
        raise refusal(400, "the body is not a JSON object; nothing was done")
    unknown = next((name for name in found if name not in fields), None)
    if unknown is not None:
        raise refusal(
            400, f"unknown field {excerpt(unknown)!r}; the fields are {', '.join(fields) or 'none'}"
        )
    values = {name: fields[name].value(name, value) for name, value in found.items()}
    missing = next((name for name, field in fields.items() if field.required and not values.get(name)), None)
    if missing is not None:
        raise refusal(400, f"the field {missing!r} is missing; nothing was done")
    return values


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    # `json` would keep the last value, and the sender may have meant the first.
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a field is there twice")
    return dict(pairs)


WINDOW_S = 10.0
"""Time in which `WINDOW_BYTES_MIN` of a body must arrive."""
WINDOW_BYTES_MIN = 4 * 1024
"""About 400 bytes a second: Apache's reqtimeout asks for 500."""


class BodyBudget:
    """Limit of body bytes that all open requests hold together."""

    def __init__(self, bytes_max: int, retry_after_s: float) -> None:
        """`retry_after_s` is the wait that the refusal asks of the sender."""
        self.bytes_max = bytes_max
        self.held = 0
        self.retry_after_s = retry_after_s

    def share(self) -> BodyShare:
        """Context manager of one request; gives its bytes back at the end."""
        return BodyShare(self)


class BodyShare:
    """Bytes of the budget that one request holds."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._held = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        # Also after an error, or the budget would shrink with each refused body.
        self._budget.held -= self._held
        self._held = 0

    def take(self, count: int) -> None:
        """Take bytes; refuses with 429 beyond the budget."""
        budget = self._budget
        # Bytes count as they arrive: an announced length that is never sent holds nothing.
        if budget.held + count > budget.bytes_max:
            why = (
                f"bodies of {budget.bytes_max} bytes are open (http.requests_max x "
                "http.body_bytes_max); nothing was sent"
            )
            raise refusal(429, why, retry_after_s=budget.retry_after_s)
        budget.held += count
        self._held += count


async def read_body(
    request: Request, bytes_max: int, setting: str, timeout_s: float, share: BodyShare | None = None
) -> bytes:
    """Read the whole body.

    Refuses with 413 (naming the `setting` of the limit), 408 or 415. Refuses with 503 when the server stops,
    and with 429 when `share` has no room.
    """
    # The size of a compressed body is unknown until it is unpacked.
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", ""):
        raise refusal(
            415,
            f"the content encoding {excerpt(encoding)!r} is not accepted; nothing was done, send the body "
            "uncompressed",
        )
    too_large = f"the body is larger than {setting} = {bytes_max} bytes; nothing was sent, split it"
    announced = request.headers.get("content-length")
    # The server refuses a value that is no number.
    if announced is not None and int(announced) > bytes_max:
        raise refusal(413, too_large)
    body, counted = bytearray(), 0
    loop = asyncio.get_running_loop()
    # Two limits: the whole time, and a window that moves with each `WINDOW_BYTES_MIN`.
    end_s = loop.time() + timeout_s
    try:
        async with asyncio.timeout_at(min(end_s, loop.time() + WINDOW_S)) as limit:
            async for piece in request.stream():
                # Again, because a chunked body announces no length.
                if len(body) + len(piece) > bytes_max:
                    raise refusal(413, too_large)
                if share is not None:
                    # Before the bytes are kept.
                    share.take(len(piece))
                body += piece
                if len(body) - counted >= WINDOW_BYTES_MIN:
                    # Moved only by progress of some size: single bytes would keep the window open for ever.
                    counted = len(body)
                    limit.reschedule(min(end_s, loop.time() + WINDOW_S))
    except TimeoutError:
        bound = f"within http.request_timeout = {timeout_s:g} s"
        if loop.time() < end_s:
            bound = f"and fewer than {WINDOW_BYTES_MIN} of them in the last {WINDOW_S:g} s"
        raise refusal(
            408, f"only {len(body)} bytes of the body arrived {bound}; nothing was sent", close=True
        ) from None
    except asyncio.CancelledError:
        raise refusal(
            503, "the daemon stops, and the body has not arrived; nothing was sent", close=True
        ) from None
    except ClientDisconnect:
        raise refusal(400, "the connection ended inside the body; nothing was sent", close=True) from None
    return bytes(body)


def media_type(request: Request) -> str:
    """Media type of the body without parameters; refuses a charset other than UTF-8 with 415."""
    kind, *parameters = request.headers.get("content-type", "").split(";")
    for parameter in parameters:
        name, _, value = parameter.strip().partition("=")
        if name.lower() == "charset" and value.strip('"').lower() not in ("utf-8", "utf8"):
            raise refusal(
                415, f"the charset {excerpt(value)} is not accepted; nothing was done, text is UTF-8"
            )
    return kind.strip().lower()
