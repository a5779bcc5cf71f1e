"""The token in a request, compared in constant time; never repeated in an answer."""

from __future__ import annotations

import hmac

from starlette.requests import Request

from archiver.web.error_responses import refusal


def require_bearer(request: Request, token: str, missing: str, wrong: str) -> None:
    """Refuses, in these words, a request without `Authorization: Bearer TOKEN` (401), or with another token
    (403).
    """
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not given.strip():
        refused = refusal(401, f"{missing}: Authorization: Bearer TOKEN")
        refused.headers = {"WWW-Authenticate": "Bearer"}
        raise refused
    if not hmac.compare_digest(given.strip().encode("utf-8", "surrogateescape"), token.encode("utf-8")):
        raise refusal(403, wrong)
