"""Whether the process lives, and whether it is ready: two different questions.

Alive never depends on anything outside of the process, so that nobody kills a daemon because a store is away.
Ready says what is missing.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from archiver.runtime.admin_proof import PROOF_HEADER, proof
from archiver.runtime.rfc3339 import format_time
from archiver.web.app_context import AppContext
from archiver.web.error_responses import refusal
from archiver.web.openapi import CHALLENGE


class Health:
    """The two answers; neither waits for anything."""

    def __init__(self, face: AppContext) -> None:
        self._face = face

    async def alive(self, request: Request) -> Response:
        """200 while the daemon's own threads run; with a `challenge`, the proof that the daemon knows the
        token.
        """
        challenge, token = request.query_params.get("challenge"), self._face.token()
        if challenge is not None and not CHALLENGE.fullmatch(challenge):
            raise refusal(400, "a challenge is 32 to 64 hex digits, in lower case")
        here = request.scope.get("server")
        headers = (
            {}
            if challenge is None or token is None or here is None
            else {PROOF_HEADER: proof(token, challenge, here[0], here[1])}
        )
        alive = self._face.alive()
        document = {"alive": alive, "version": self._face.version, "roles": sorted(self._face.roles)}
        return JSONResponse(document, 200 if alive else 503, headers)

    async def ready(self, _: Request) -> Response:
        """200 while it serves and every dependency answers; each check with why and since when."""
        journal = self._face.journal
        ready = journal.ready
        document = {
            "ready": ready,
            "state": journal.state,
            "checks": [
                {"name": check.name, "ok": check.ok, "why": check.why, "since": format_time(check.since_us)}
                for check in journal.checks()
            ],
        }
        return JSONResponse(document, 200 if ready else 503)
