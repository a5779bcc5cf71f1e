"""A proxy before the real REST catalog that rejects requests without valid credentials, and its token server.

It judges by other means than the client: tokens are its own, and botocore computes the signature again to
compare it. It can also vend credentials with each table. Faults of `HttpFaults` come before authentication. A
request of an unknown operation passes the same check.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

from tests.support.servers.http_faults import Answer, Asked, HttpFaults, Operation

TOKEN_PATH = "/idp/token"
CLIENT_ID = "archiver"
CLIENT_SECRET = "a-secret-that-nobody-may-see"
BEARER = "a-token-that-nobody-may-see"
ACCESS_KEY_ID = "AKIATESTOFSIGNATURES"
SECRET_ACCESS_KEY = "a-signing-key-that-nobody-may-see"
REGION = "eu-test-1"
SERVICE = "glue"


@dataclass
class Guard:
    """What it knows and what it has seen. `scheme` is `bearer`, `oauth2` or `sigv4`."""

    scheme: str
    lasts_s: float | None = 3600.0
    """How long a token is said to last; None: nothing is said."""
    uses: int | None = None
    """After so many requests a token is refused, even before its stated expiry."""
    forbidden: tuple[str, ...] = ()
    """Operations that are forbidden to all clients."""
    refusing: bool = False
    """Every token is refused, new ones as well."""
    vended: dict[str, str] = field(default_factory=dict)
    """Configuration that is handed out with each table."""
    credentials: list[dict[str, object]] = field(default_factory=list)
    """`storage-credentials`, likewise."""
    asked_for_tokens: list[dict[str, str]] = field(default_factory=list)
    """Forms that came to the token server."""
    delegation: set[str] = field(default_factory=set)
    """What was said under X-Iceberg-Access-Delegation."""
    headers: list[dict[str, str]] = field(default_factory=list)
    """Of every request to the catalog."""
    issued: str = ""
    """If set, the token server issues this as the token."""
    refusals: int = 0
    on_swap: Callable[[], None] | None = None
    """Called once, when the next swap has been passed on."""
    _left: dict[str, int | None] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def token(self, asked: Asked) -> Answer:
        """The token server: client credentials in the body."""
        form = {name: values[0] for name, values in parse_qs(asked.body.decode()).items()}
        with self._lock:
            self.asked_for_tokens.append(form)
            number = len(self.asked_for_tokens)
        if (form.get("client_id"), form.get("client_secret")) != (CLIENT_ID, CLIENT_SECRET):
            return _answer(401, {"error": "invalid_client", "error_description": "who is that"})
        if form.get("grant_type") != "client_credentials":
            return _answer(400, {"error": "unsupported_grant_type"})
        token = self.issued or f"issued-token-{number}"
        self._left[token] = self.uses
        said: dict[str, object] = {"access_token": token, "token_type": "bearer"}
        return _answer(200, said if self.lasts_s is None else {**said, "expires_in": self.lasts_s})

    def expire(self) -> None:
        """Every token that was given is refused from now on."""
        self._left.clear()

    def refusal(self, asked: Asked) -> Answer | None:
        """Why a request may not pass; None: it may."""
        headers = {name.lower(): value for name, value in asked.headers.items()}
        with self._lock:
            self.headers.append(headers)
            self.delegation.add(headers.get("x-iceberg-access-delegation", ""))
            if not self._known(asked, headers) or self.refusing:
                self.refusals += 1
                return _error(401, "NotAuthorizedException", "who are you")
        if asked.operation in self.forbidden:
            return _error(403, "ForbiddenException", "you may not")
        return None

    def _known(self, asked: Asked, headers: dict[str, str]) -> bool:
        said = headers.get("authorization", "")
        if self.scheme == "bearer":
            return said == f"Bearer {BEARER}"
        if self.scheme == "sigv4":
            return said == signature(asked, headers)
        token = said.removeprefix("Bearer ")
        if token not in self._left or self._left[token] == 0:
            return False
        left = self._left[token]
        self._left[token] = None if left is None else left - 1
        return True


class Guarded(HttpFaults):
    """The proxy; `uri` is the catalog's address, `token_uri` that of the token server."""

    def __init__(self, upstream: Callable[[], str], guard: Guard) -> None:
        self.guard = guard
        super().__init__(upstream)

    @property
    def token_uri(self) -> str:
        """Of the token server."""
        return f"{self.uri}{TOKEN_PATH}"

    def disarm(self) -> None:
        """No fault is left."""
        self._armed.clear()

    def said(self, status: int) -> Answer:
        """As the base class; a redirect leads to a path that does not exist."""
        plain = super().said(status)
        return (
            Answer(status, [*plain.headers, ("Location", f"{self.uri}/elsewhere")], plain.body)
            if 300 <= status < 400
            else plain
        )

    def operation_of(self, asked: Asked) -> Operation:
        """As the base class; `token` is asked of the token server."""
        return "token" if urlsplit(asked.path).path == TOKEN_PATH else asked.operation

    def _pass_on(self, asked: Asked) -> Answer:
        if self.operation_of(asked) == "token":
            return self.guard.token(asked)
        refusal = self.guard.refusal(asked)
        if refusal is not None:
            return refusal
        answer = super()._pass_on(asked)
        if asked.operation == "swap" and self.guard.on_swap is not None:
            then, self.guard.on_swap = self.guard.on_swap, None
            then()
        if (
            asked.operation in ("load", "create")
            and answer.status == 200
            and (self.guard.vended or self.guard.credentials)
        ):
            document = json.loads(answer.body)
            document["config"] = {**document.get("config", {}), **self.guard.vended}
            document["storage-credentials"] = self.guard.credentials
            return _answer(200, document)
        return answer


def properties(guarded: Guarded) -> dict[str, str]:
    """The catalog settings with which the archiver passes."""
    plain = {"type": "rest", "uri": guarded.uri}
    match guarded.guard.scheme:
        case "bearer":
            return {**plain, "token": BEARER}
        case "sigv4":
            signing = {
                "rest.sigv4-enabled": "true",
                "rest.signing-region": REGION,
                "rest.signing-name": SERVICE,
            }
            return {
                **plain,
                **signing,
                "client.access-key-id": ACCESS_KEY_ID,
                "client.secret-access-key": SECRET_ACCESS_KEY,
            }
        case _:
            return {
                **plain,
                "credential": f"{CLIENT_ID}:{CLIENT_SECRET}",
                "oauth2-server-uri": guarded.token_uri,
                "scope": "tables",
            }


def signature(asked: Asked, headers: dict[str, str]) -> str:
    """The `Authorization` that the request must have, made by botocore from what has come."""
    from botocore.auth import SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    parts = urlsplit(asked.path)
    said = headers.get("authorization", "")
    names = said.partition("SignedHeaders=")[2].partition(",")[0].split(";")
    if "host" not in names or "x-amz-date" not in names:
        return "nothing that is signed"
    if (
        headers.get("x-amz-content-sha256", hashlib.sha256(asked.body).hexdigest())
        != hashlib.sha256(asked.body).hexdigest()
    ):
        return "another body"
    request = AWSRequest(
        method=asked.method,
        url=f"http://{headers['host']}{parts.path}",
        params=dict(part.split("=", 1) for part in parts.query.split("&")) if parts.query else {},
        data=asked.body,
        headers={name: headers[name] for name in names if name in headers and name != "host"},
    )
    request.context["timestamp"] = headers.get("x-amz-date", "")
    signer = SigV4Auth(Credentials(ACCESS_KEY_ID, SECRET_ACCESS_KEY), SERVICE, REGION)
    canonical = signer.canonical_request(request)
    return (
        f"AWS4-HMAC-SHA256 Credential={signer.scope(request)}, "
        f"SignedHeaders={signer.signed_headers(signer.headers_to_sign(request))}, "
        f"Signature={signer.signature(signer.string_to_sign(request, canonical), request)}"
    )


def _answer(status: int, document: dict[str, object]) -> Answer:
    return Answer(status, [("Content-Type", "application/json")], json.dumps(document).encode())


def _error(status: int, kind: str, message: str) -> Answer:
    return _answer(status, {"error": {"message": message, "type": kind, "code": status}})
