"""Authentication to a REST catalog: none, bearer token, or OAuth2 client credentials.

Owns the token request (RFC 6749, client credentials). It has the bounds of every other request. It is sent
before a token expires, and once after the catalog refused one, by one thread for all that wait. Its errors
are raised before anything is sent to the catalog: `CatalogAway` if the token server cannot be reached, `Halt`
if it refuses. So a request that failed here is certainly not applied. Must never show a secret or a token.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import requests
from pyiceberg.catalog.rest.auth import AuthManager

from archiver.config.groups import SIGNED_TRUE
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError, CatalogAway, Halt
from archiver.runtime.redaction import excerpt

TOKEN = "token"  # noqa: S105 - the name of a property
CREDENTIAL = "credential"
TOKEN_SERVER = "oauth2-server-uri"  # noqa: S105 - likewise
SIGNED = "rest.sigv4-enabled"
SCOPE_DEFAULT = "catalog"
"""What Iceberg's clients ask for if nothing is configured."""

MARGIN_S = 60.0
"""How long before its end a token is replaced …"""
MARGIN_SHARE = 0.25
"""… unless that is more than this share of its life."""

_TOKEN = re.compile(r"[!-~]+")
"""Characters of a token in a header: the printable ASCII of RFC 6749, without a space, which would end it."""
_BUSY = frozenset({408, 425, 429})
"""Client errors that may pass by themselves: time-out, too early, rate limit."""


def advice(properties: Mapping[str, Any]) -> str:
    """What an operator can do if a catalog with these properties keeps answering 401."""
    if signs(properties):
        return (
            "it does not accept the signature: check the keys, rest.signing-region, rest.signing-name and "
            "this machine's clock"
        )
    if properties.get(TOKEN):
        return (
            "the token has expired or was never good: put a new one where the catalog's token is "
            "configured, and restart"
        )
    if properties.get(CREDENTIAL):
        return (
            f"it refuses a token that {Client.of(properties).server} has just given: check credential, "
            "scope and audience"
        )
    return "configure credential, token or rest.sigv4-enabled for it"


def signs(properties: Mapping[str, Any]) -> bool:
    """Whether requests are signed for AWS, without a token."""
    return str(properties.get(SIGNED, "")).lower() in SIGNED_TRUE


class Tokens(AuthManager):
    """The source of the `Authorization` header of each request. This base class sends none, while pyiceberg's
    own would send `Bearer None`.
    """

    def auth_header(self) -> str | None:
        """The header's value; None if the request has no such header. Raises `CatalogAway` or `Halt`."""
        return None

    def refused(self) -> None:
        """The catalog answered 401: the next header must have another token if there is one. Here is none."""


class FixedToken(Tokens):
    """A token from the configuration."""

    def __init__(self, token: str) -> None:
        self._token = token

    def auth_header(self) -> str:
        """As the base class says."""
        return f"Bearer {self._token}"


@dataclass(frozen=True, slots=True)
class Client:
    """An OAuth2 client."""

    server: str
    """Address of the token endpoint."""
    client_id: str | None
    secret: str = field(repr=False)
    more: Mapping[str, str] = field(default_factory=dict)
    """`scope`, and further parameters of the token request."""

    @classmethod
    def of(cls, properties: Mapping[str, Any]) -> Client:
        """The client of a catalog's properties; without `oauth2-server-uri` it uses the catalog's own,
        deprecated endpoint.
        """
        # These are the configured properties: a token server that the catalog names would receive the secret.
        client_id, colon, secret = str(properties[CREDENTIAL]).partition(":")
        own = f"{str(properties['uri']).rstrip('/')}/v1/oauth/tokens"
        more = {name: str(properties[name]) for name in ("audience", "resource") if properties.get(name)}
        more["scope"] = str(properties.get("scope") or SCOPE_DEFAULT)
        return cls(
            str(properties.get(TOKEN_SERVER) or own),
            # Without a colon the whole text is the secret, as in other Iceberg clients.
            client_id if colon else None,
            secret if colon else client_id,
            more,
        )


class _Mine(threading.local):
    """The state of one thread's last request."""

    sent: str | None = None
    """Its token."""
    refused_s: float | None = None
    """The time at which the catalog refused it; None if it did not."""


class ClientTokens(Tokens):
    """Tokens of a client, replaced in time. Safe for several threads."""

    def __init__(self, name: str, client: Client, session: requests.Session, clock: Clock) -> None:
        """`name` is the catalog's, for messages; requests of `session` must be bounded."""
        self._name = name
        self._client = client
        self._session = session
        self._clock = clock
        self._lock = threading.Lock()
        self._token: str | None = None
        self._mine = _Mine()
        self._ends_s = math.inf
        self._refresh_s = math.inf
        self._failure: ArchiverError | None = None
        self._failed_s = -math.inf

    def auth_header(self) -> str:
        """As the base class says; requests a token first if there is none that lasts."""
        mine = self._mine
        refused = None if mine.refused_s is None else mine.sent
        began_s = self._clock.monotonic_s() if mine.refused_s is None else mine.refused_s
        # Cleared first: if no token can be fetched, the next call must not repeat this state.
        mine.sent = mine.refused_s = None
        mine.sent = self._current(refused, began_s)
        return f"Bearer {mine.sent}"

    def refused(self) -> None:
        """Note that this thread's last token was refused. Takes no lock, so it never waits for a fetch."""
        self._mine.refused_s = self._clock.monotonic_s()

    def _current(self, refused: str | None, began_s: float) -> str:
        """A token other than the refused one, for a thread that waits for it since `began_s`."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            # Another thread may have replaced the refused token already. Then the new one is used.
            if self._token == refused:
                self._token = None
            if self._token is not None and now_s < self._refresh_s:
                return self._token
            usable = self._token is not None and now_s < self._ends_s
            if self._failure is not None and self._failed_s >= began_s and not usable:
                # The request failed while this thread waited for it: a second request would fail as well.
                raise self._failure
            try:
                self._fetch()
            except ArchiverError as error:
                now_s = self._clock.monotonic_s()
                self._failure, self._failed_s = error, now_s
                if self._token is None or now_s >= self._ends_s:
                    raise
                # The old token is still valid, so requests go on. The next attempt is at half of its rest.
                self._refresh_s = now_s + (self._ends_s - now_s) / 2
            assert self._token is not None
            return self._token

    def _fetch(self) -> None:
        client = self._client
        # Id and secret are in the body, not in a header, as Iceberg's own clients send them.
        asked = {"grant_type": "client_credentials", "client_secret": client.secret, **client.more}
        if client.client_id is not None:
            asked["client_id"] = client.client_id
        # The lifetime counts from before the request, so a slow answer never makes a token last too long.
        began_s = self._clock.monotonic_s()
        try:
            # Not redirected: the secret goes only to the configured server. `auth` is set, because requests
            # would otherwise read a .netrc file.
            answer = self._session.post(
                client.server, data=asked, auth=lambda request: request, allow_redirects=False
            )
        except requests.RequestException as error:
            raise CatalogAway(
                f"catalog {self._name} cannot be reached: its token server {client.server} does not "
                f"answer: {error}"
            ) from None
        token, lasts_s = self._read(answer)
        self._token = token
        self._ends_s = began_s + lasts_s
        self._refresh_s = (
            # For a short-lived token the share applies, or it would be replaced at every request.
            self._ends_s - min(MARGIN_S, lasts_s * MARGIN_SHARE) if lasts_s < math.inf else math.inf
        )
        self._failure = None

    def _read(self, answer: requests.Response) -> tuple[str, float]:
        """The token, and how many seconds it lasts."""
        status, where = answer.status_code, self._client.server
        document = _document(answer)
        if status >= 500 or status in _BUSY:
            raise CatalogAway(
                f"catalog {self._name} cannot be reached: its token server {where} answers {status}"
            )
        # Some servers report bad credentials as 400 with an `error` field (RFC 6749, section 5.2).
        if status in (401, 403) or (status >= 400 and document.get("error")):
            why = (
                f"the token server {where} refuses us ({status}{_explanation(document)}): check credential, "
                "scope and audience"
            )
            raise Halt(f"catalog {self._name}: {why}")
        token = document.get("access_token")
        # A malformed token could split the header, so it is not sent.
        if status != 200 or not isinstance(token, str) or not _TOKEN.fullmatch(token):
            raise CatalogAway(
                f"catalog {self._name} cannot be reached: {where} answers ({status}) as no token "
                "server does; is oauth2-server-uri right?"
            )
        return token, _seconds(document.get("expires_in"))


def _document(answer: requests.Response) -> dict[str, Any]:
    try:
        found = answer.json()
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _explanation(document: Mapping[str, Any]) -> str:
    """The explanation of a token server, in OAuth2's form or in that of an Iceberg catalog."""
    error = document.get("error")
    words = (
        [error.get("type"), error.get("message")]
        if isinstance(error, dict)
        else [error, document.get("error_description")]
    )
    said = " ".join(str(word) for word in words if word)
    return f": {excerpt(said)}" if said else ""


def _seconds(value: object) -> float:
    """How many seconds a token lasts; infinite if the server does not say, so until it is refused."""
    try:
        # Some servers write the number as text.
        found = float(str(value))
    except ValueError:
        return math.inf
    # Also for NaN, which no comparison accepts.
    return found if found > 0 else math.inf
