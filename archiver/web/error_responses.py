"""JSON error responses: `{"error": {"type": "NotFound", "message": "..."}}`.

`type` is the name of an error in `archiver.runtime.errors`, so a program knows what to do next. A refusal
means that nothing was done.
"""

from __future__ import annotations

import hmac
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
"""Error type by status. 500 is an error in the daemon itself, so the outcome is unknown."""


class Refusal(HTTPException):
    """Exception of a handler that answers with its status and message."""

    parameter: str | None = None
    """Name of the parameter that is wrong, if only one can be."""


def refusal(
    status: int,
    message: str,
    *,
    retry_after_s: float | None = None,
    close: bool = False,
    parameter: str | None = None,
) -> Refusal:
    """Exception for a handler to raise. `close` ends the connection, which may still carry the rest of a
    body.
    """
    headers = {} if retry_after_s is None else retry_after(retry_after_s)
    if close:
        # The rest of a body would be read as the next request.
        headers["Connection"] = "close"
    refused = Refusal(status, message, headers)
    refused.parameter = parameter
    return refused


def require_bearer(request: Request, token: str, missing: str, wrong: str) -> None:
    """Refuse a request without `Authorization: Bearer TOKEN` (401, with `missing`) or with another token
    (403). No answer repeats the token.
    """
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not given.strip():
        refused = refusal(401, f"{missing}: Authorization: Bearer TOKEN")
        refused.headers = {"WWW-Authenticate": "Bearer"}
        raise refused
    # In constant time, so that the time of an answer says nothing about the token.
    if not hmac.compare_digest(given.strip().encode("utf-8", "surrogateescape"), token.encode("utf-8")):
        raise refusal(403, wrong)


def retry_after(seconds: float) -> dict[str, str]:
    """Header `Retry-After` in whole seconds, at least one."""
    # The header has whole seconds, and 0 would ask for a retry at once.
    return {"Retry-After": str(max(1, math.ceil(seconds)))}


def error_document(kind: str, message: str) -> dict[str, object]:
    """Body of every refusal. Input repeated in the message is cut and made valid UTF-8."""
    return {
        "error": {
            "type": kind,
            # A message may repeat input with lone surrogates, which UTF-8 cannot encode.
            "message": excerpt(message, MESSAGE_MAX).encode("utf-8", "backslashreplace").decode(),
        }
    }


async def refused(_: Request | None, error: Exception) -> Response:
    """Turn an exception of a handler into an answer."""
    if not isinstance(error, HTTPException):
        # Details may carry paths or secrets, so they go to the log only.
        status, message = 500, "an error in the daemon; its log says more"
        return JSONResponse(error_document(TYPES[status], message), status)
    kind = TYPES.get(error.status_code, "InvalidInput")
    return JSONResponse(error_document(kind, _plain(error)), error.status_code, error.headers)


def _plain(error: HTTPException) -> str:
    """Message of a refusal; adds advice to those of the router."""
    # Starlette's router raises with the bare phrase of the status.
    if error.detail != HTTPStatus(error.status_code).phrase:
        return error.detail
    allowed = (error.headers or {}).get("Allow", "")
    advice = {
        404: "there is nothing at this address; /openapi.json lists what there is",
        405: f"this address does not take that method, it takes {allowed}",
    }
    return advice.get(error.status_code, error.detail.lower())
