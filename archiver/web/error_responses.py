"""What the port says when it does not do what it was asked: one JSON form for every refusal.

`{"error": {"type": "NotFound", "message": "..."}}`; `type` is the name of an error of
`archiver.runtime.errors`, so that a program knows what to do next. A refusal means that nothing was done.
"""

from __future__ import annotations

import math
from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from archiver.runtime.redaction import MESSAGE_MAX, excerpt

TYPES: dict[int, str] = {
    400: "InvalidInput",
    401: "InvalidInput",
    403: "InvalidInput",
    404: "NotFound",
    405: "InvalidInput",
    408: "RetryLater",
    409: "InvalidInput",
    413: "InvalidInput",
    415: "InvalidInput",
    429: "RetryLater",
    500: "OutcomeUnknown",
    503: "RetryLater",
}
"""By status, what the caller must do next; 500 is an error in the daemon itself, so what was done is not
known."""


def refusal(
    status: int, message: str, *, retry_after_s: float | None = None, close: bool = False
) -> HTTPException:
    """To be raised by a handler; `close` ends the connection, on which the rest of a body may still be on its
    way.
    """
    headers = {} if retry_after_s is None else retry_after(retry_after_s)
    if close:
        headers["Connection"] = "close"
    return HTTPException(status, message, headers)


def retry_after(seconds: float) -> dict[str, str]:
    """The header, in whole seconds, at least one."""
    return {"Retry-After": str(max(1, math.ceil(seconds)))}


def error_document(kind: str, message: str) -> dict[str, object]:
    """The body of every refusal. A message may repeat what was sent: not all of it, and also what cannot be
    written as UTF-8.
    """
    return {
        "error": {
            "type": kind,
            "message": excerpt(message, MESSAGE_MAX).encode("utf-8", "backslashreplace").decode(),
        }
    }


async def refused(_: Request, error: Exception) -> Response:
    """Turns what a handler raised into an answer; what nobody expected is not told outside, its log line
    is.
    """
    if not isinstance(error, HTTPException):
        status, message = 500, "an error in the daemon; its log says more"
        return JSONResponse(error_document(TYPES[status], message), status)
    kind = TYPES.get(error.status_code, "InvalidInput")
    return JSONResponse(error_document(kind, _plain(error)), error.status_code, error.headers)


def _plain(error: HTTPException) -> str:
    """The router's own refusals carry the status' phrase alone."""
    if error.detail != HTTPStatus(error.status_code).phrase:
        return error.detail
    allowed = (error.headers or {}).get("Allow", "")
    advice = {
        404: "there is nothing at this address; /openapi.json lists what there is",
        405: f"this address does not take that method, it takes {allowed}",
    }
    return advice.get(error.status_code, error.detail.lower())
