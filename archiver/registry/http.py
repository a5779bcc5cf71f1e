"""Asks a registry over HTTP, within bounds of time and size.

Owns the connection, who we are to the registry, and what an answer's status means. Promises that a question
ends by its deadline however slowly the registry speaks; that an answer is cut off at its bound; that user
name, password and token go to the configured scheme, host and port and nowhere else, whatever an answer says,
and stand in no message. Reads neither proxy variables nor `.netrc`.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import urljoin, urlsplit

from archiver.config.settings import ConfluentSettings
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ConfigInvalid, NotFound, RetryLater
from archiver.runtime.redaction import excerpt

_REDIRECTS_MAX = 3
_AGAIN = frozenset({408, 425, 429})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_CHUNK = 64 * 1024


@dataclass(frozen=True)
class _Answer:
    """What came, whatever it means."""

    status: int
    location: str
    body: bytes


@dataclass(frozen=True)
class _Trouble:
    """Why there is no answer; asking again can help."""

    why: str
    unreached: bool = False
    """Not even a connection: it concerns every question to the registry."""
    slow: bool = False
    """So much time is gone that it is not asked again now."""


class RegistryHttp:
    """Questions to one registry. Safe for several threads."""

    def __init__(self, settings: ConfluentSettings, clock: Clock) -> None:
        """Connects nowhere. Raises `ConfigInvalid` if a certificate or a secret cannot be used."""
        self._settings = settings
        self._clock = clock
        parts = urlsplit(settings.url)
        self._scheme, self._host, self._port = parts.scheme, parts.hostname or "", parts.port
        self._path = parts.path
        self._origin = _origin(settings.url)
        self._headers = {
            "Accept": "application/vnd.schemaregistry.v1+json, application/json",
            "Accept-Encoding": "identity",
            "User-Agent": "stream-archiver",
            "Connection": "close",
            **_authorization(settings),
        }
        self._secrets = _secrets(settings, self._headers)
        self._tls = _tls(settings) if parts.scheme == "https" else None
        self._down: tuple[float, str] | None = None

    def get(self, path: str, until_s: float) -> Any:
        """The JSON at a path below the registry's address. `until_s`: the clock's monotonic time at which the
        answer must be there.

        Raises `RetryLater` (not reached, too slow, overloaded, broken: asked several times; one that is not
        reached is not asked at all for `down_pause`), `NotFound` (404), `ConfigInvalid` (refused, sent
        elsewhere, too large, not what a registry says).
        """
        settings = self._settings
        if self._down is not None and self._clock.monotonic_s() < self._down[0]:
            raise RetryLater(self._down[1])
        trouble = _Trouble("there is no time left")
        for attempt in range(settings.attempts_max):
            if attempt:
                self._clock.sleep(
                    min(settings.backoff * 2 ** (attempt - 1), max(0.0, until_s - self._clock.monotonic_s()))
                )
            left_s = min(settings.timeout, until_s - self._clock.monotonic_s())
            if left_s <= 0:
                break
            answer = self._followed(path, left_s)
            if not isinstance(answer, _Trouble):
                self._down = None
                return self._judged(answer, path)
            trouble = answer
            if trouble.slow:
                break
        told = f"the schema registry {settings.url} cannot be asked: {trouble.why}"
        if trouble.unreached:
            self._down = (self._clock.monotonic_s() + settings.down_pause, told)
        raise RetryLater(told)

    def _followed(self, path: str, left_s: float) -> _Answer | _Trouble:
        """The answer, which may be at another path of the same registry."""
        target, until_s = self._path + path, self._clock.monotonic_s() + left_s
        for _ in range(_REDIRECTS_MAX + 1):
            answer = self._asked(target, until_s - self._clock.monotonic_s())
            if isinstance(answer, _Trouble) or answer.status not in _REDIRECTS:
                return answer
            found = _led_to(
                f"{self._scheme}://{urlsplit(self._settings.url).netloc}{target}", answer.location
            )
            if _origin(found) != self._origin:
                raise ConfigInvalid(
                    f"the schema registry {self._settings.url} sends us to "
                    f"{excerpt(_origin(found))!r}, another host; nothing is asked "
                    "there; write the registry's own address as schema_registry.confluent.url"
                )
            parts = urlsplit(found)
            target = parts.path + (f"?{parts.query}" if parts.query else "")
        raise ConfigInvalid(
            f"the schema registry {self._settings.url} sends us from one path to the next, more than "
            f"{_REDIRECTS_MAX} times"
        )

    def _asked(self, target: str, left_s: float) -> _Answer | _Trouble:
        """One question. Raises `ConfigInvalid` if the answer is too large, or the certificate is not
        trusted.
        """
        if left_s <= 0:
            return _Trouble("it took too long", slow=True)
        late = threading.Event()
        opened: list[socket.socket] = []
        reached = False
        try:
            with self._connection(left_s, late, opened) as connection:
                self._connect(connection, left_s, late, opened)
                reached = True
                connection.request("GET", target, headers=self._headers)
                with connection.getresponse() as response:
                    body = self._body(response)
                    if late.is_set():  # what looks like its end is where we cut it
                        return _Trouble(f"it took longer than {left_s:.3g} s", slow=True)
                    if response.length:
                        return _Trouble(f"its answer was cut off, {response.length:,} bytes before its end")
                    answer = _Answer(response.status, response.getheader("Location") or "", body)
        except ssl.SSLCertVerificationError as error:
            raise ConfigInvalid(
                f"the schema registry {self._settings.url} has a certificate that is not trusted: "
                f"{error.verify_message}; "
                "correct schema_registry.confluent.tls.ca"
            ) from error
        except (
            OSError,
            http.client.HTTPException,
            UnicodeError,
        ) as error:  # the last: a host or a path that cannot be asked for
            if late.is_set() or isinstance(error, TimeoutError):
                return _Trouble(f"it took longer than {left_s:.3g} s", slow=reached, unreached=not reached)
            return _Trouble(f"{type(error).__name__}: {excerpt(str(error))}", unreached=not reached)
        if answer.status in _AGAIN or answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return _Trouble(f"it answers with status {answer.status}{self._said(answer.body)}")
        return answer

    @contextlib.contextmanager
    def _connection(
        self, left_s: float, late: threading.Event, opened: list[socket.socket]
    ) -> Iterator[http.client.HTTPConnection]:
        """A connection that is cut when its time is over: the time-out of a socket alone begins anew with
        every byte.

        `opened` are its sockets: the library forgets its own while an answer that ends with the connection is
        still being read.
        """
        kind = http.client.HTTPConnection if self._tls is None else http.client.HTTPSConnection
        connection = kind(self._host, self._port)

        def cut() -> None:
            late.set()
            for one in opened:
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(one, socket.SHUT_RDWR)

        timer = threading.Timer(left_s, cut)
        timer.daemon = True
        timer.start()
        try:
            yield connection
        finally:
            timer.cancel()
            connection.close()
            timer.join()

    def _connect(
        self,
        connection: http.client.HTTPConnection,
        left_s: float,
        late: threading.Event,
        opened: list[socket.socket],
    ) -> None:
        """Reach the registry; the socket is the connection's from its first byte on, so that it can be cut
        while it shakes hands.

        Whoever cuts sets `late` before it looks for the socket. So either it finds the socket, or `late` is
        found set behind it.
        """
        port = self._port or (http.client.HTTP_PORT if self._tls is None else http.client.HTTPS_PORT)
        connection.sock = socket.create_connection((self._host, port), left_s)
        opened.append(connection.sock)
        _not_late(late)
        if self._tls is not None:
            protected = self._tls.wrap_socket(
                connection.sock, server_hostname=self._host, do_handshake_on_connect=False
            )
            connection.sock = protected
            opened.append(protected)
            _not_late(late)
            protected.do_handshake()

    def _body(self, response: http.client.HTTPResponse) -> bytes:
        bound = self._settings.answer_bytes_max
        body = bytearray()
        while chunk := response.read1(_CHUNK):
            body += chunk
            if len(body) > bound:
                raise ConfigInvalid(
                    f"the schema registry {self._settings.url} answers with more than {bound:,} bytes "
                    "(schema_registry.confluent.answer_bytes_max)"
                )
        return bytes(body)

    def _judged(self, answer: _Answer, path: str) -> Any:
        """What an answer means."""
        url, status, body = self._settings.url, answer.status, answer.body
        if status == HTTPStatus.NOT_FOUND:
            raise NotFound(f"the schema registry {url} has nothing at {excerpt(path)}{self._said(body)}")
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise ConfigInvalid(
                f"the schema registry {url} refuses us with status {status}{self._said(body)}; correct "
                "schema_registry.confluent.auth"
            )
        if status != HTTPStatus.OK:
            raise ConfigInvalid(
                f"the schema registry {url} answers {excerpt(path)} with status {status}{self._said(body)}"
            )
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:
            raise ConfigInvalid(
                f"the schema registry {url} answers {excerpt(path)} with what is no JSON; is the "
                "address right?"
            ) from error

    def _said(self, body: bytes) -> str:
        """The registry's own reason, if it gives one; without our secrets, should it repeat them."""
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            return ""
        message = found.get("message") if isinstance(found, dict) else None
        if not isinstance(message, str) or not message:
            return ""
        for secret in self._secrets:
            message = message.replace(secret, "***")
        return f": {excerpt(message)!r}"


def _not_late(late: threading.Event) -> None:
    if late.is_set():
        raise TimeoutError


def _led_to(url: str, location: str) -> str:
    """Where a redirect leads; what is no address stays as it is, and is the registry's own then as little."""
    try:
        return urljoin(url, location)
    except ValueError:
        return location


def _origin(url: str) -> str:
    """Scheme, host and port; whatever cannot be read is an origin of its own."""
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return url
    return f"{parts.scheme}://{parts.hostname}:{port}"


def _authorization(settings: ConfluentSettings) -> dict[str, str]:
    auth = settings.auth
    if auth is None:
        return {}
    if auth.bearer is not None:
        token = auth.bearer.get_secret_value()
        if not token.isascii() or not token.isprintable() or not token:
            raise ConfigInvalid(
                "schema_registry.confluent.auth.bearer holds no token: it is empty, or has characters "
                "that no token has"
            )
        return {"Authorization": f"Bearer {token}"}
    password = "" if auth.password is None else auth.password.get_secret_value()
    pair = f"{auth.username}:{password}".encode()
    return {"Authorization": f"Basic {base64.b64encode(pair).decode('ascii')}"}


def _secrets(settings: ConfluentSettings, headers: Mapping[str, str]) -> tuple[str, ...]:
    """What must stand in no message: the password or token, and how it is sent."""
    auth = settings.auth
    if auth is None:
        return ()
    secret = auth.password if auth.bearer is None else auth.bearer
    sent = headers["Authorization"].partition(" ")[2]
    return tuple(one for one in (sent, "" if secret is None else secret.get_secret_value()) if one)


def _tls(settings: ConfluentSettings) -> ssl.SSLContext:
    tls = settings.tls
    try:
        context = ssl.create_default_context(cafile=None if tls is None or tls.ca is None else str(tls.ca))
    except (OSError, ssl.SSLError) as error:
        raise ConfigInvalid(f"schema_registry.confluent.tls.ca cannot be used: {error}") from error
    if tls is not None and tls.certificate is not None:
        try:
            context.load_cert_chain(
                str(tls.certificate), None if tls.key is None else str(tls.key), password=lambda: b""
            )
        except (OSError, ssl.SSLError) as error:
            raise ConfigInvalid(
                f"schema_registry.confluent.tls.certificate and key cannot be used: {error}"
            ) from error
    return context
