"""HTTP client of a schema registry, with bounds of time and size.

A request ends by its deadline however slowly the registry sends, and a response is cut off at its bound. Only
the lookup of the host name can outlast the deadline: the system's resolver has its own limit of time. User
name, password and token go only to the configured scheme, host and port, also after a redirect, and appear in
no message. Proxy variables and `.netrc` are ignored.
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
# Request timeout, too early, too many requests.
_AGAIN = frozenset({408, 425, 429})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_CHUNK = 64 * 1024
_ATTEMPT_MIN_S = 1.0
"""An attempt to connect may take this long, if the deadline allows."""


@dataclass(frozen=True)
class _Response:
    """A complete response of any status."""

    status: int
    location: str
    body: bytes


@dataclass(frozen=True)
class _Failure:
    """The reason for a missing response; a retry can help."""

    why: str
    unreached: bool = False
    """No connection was made, so every request to the registry is affected."""
    slow: bool = False
    """The attempt used so much time that it is not retried now."""


class RegistryHttp:
    """Requests to one registry. Safe for several threads."""

    def __init__(self, settings: ConfluentSettings, clock: Clock) -> None:
        """Opens no connection. Raises `ConfigInvalid` if a certificate or a secret is unusable."""
        self._settings = settings
        self._clock = clock
        parts = urlsplit(settings.url)
        self._scheme, self._host, self._port = parts.scheme, parts.hostname or "", parts.port
        self._path = parts.path
        self._origin = _origin(settings.url)
        self._headers = {
            "Accept": "application/vnd.schemaregistry.v1+json, application/json",
            # A compressed response could be far larger than the bound on its bytes.
            "Accept-Encoding": "identity",
            "User-Agent": "stream-archiver",
            # Each request has its own connection, which is cut at its own deadline.
            "Connection": "close",
            **_authorization(settings),
        }
        self._secrets = _secrets(settings, self._headers)
        self._tls = _tls(settings) if parts.scheme == "https" else None
        # Time until which no request is sent, and the message. Replaced as a whole, so it needs no lock.
        self._down: tuple[float, str] | None = None

    def get(self, path: str, until_s: float) -> Any:
        """The JSON at a path below the registry's URL. `until_s` is the deadline on the clock's monotonic
        time.

        Raises `RetryLater` after all attempts if the registry is unreachable, too slow, overloaded or broken.
        An unreachable one is not asked again for `down_pause`. Raises `NotFound` for 404, and `ConfigInvalid`
        for a refusal, an external redirect, a response that is too large, or no JSON.
        """
        settings = self._settings
        # An outage costs a round one wait, and not one for each topic.
        if self._down is not None and self._clock.monotonic_s() < self._down[0]:
            raise RetryLater(self._down[1])
        trouble = _Failure("there is no time left")
        for attempt in range(settings.attempts_max):
            if attempt:
                # Exponential backoff, but never beyond the caller's deadline.
                self._clock.sleep(
                    min(settings.backoff * 2 ** (attempt - 1), max(0.0, until_s - self._clock.monotonic_s()))
                )
            left_s = min(settings.timeout, until_s - self._clock.monotonic_s())
            if left_s <= 0:
                break
            answer = self._follow_redirects(path, left_s)
            if not isinstance(answer, _Failure):
                self._down = None
                return self._parsed(answer, path)
            trouble = answer
            # Another attempt would need as much time again.
            if trouble.slow:
                break
        message = f"the schema registry {settings.url} cannot be asked: {trouble.why}"
        if trouble.unreached:
            self._down = (self._clock.monotonic_s() + settings.down_pause, message)
        raise RetryLater(message)

    def _follow_redirects(self, path: str, left_s: float) -> _Response | _Failure:
        """Send a request and follow redirects within the same registry."""
        target, until_s = self._path + path, self._clock.monotonic_s() + left_s
        for _ in range(_REDIRECTS_MAX + 1):
            answer = self._request(target, until_s - self._clock.monotonic_s())
            if isinstance(answer, _Failure) or answer.status not in _REDIRECTS:
                return answer
            found = _redirect_target(
                f"{self._scheme}://{urlsplit(self._settings.url).netloc}{target}", answer.location
            )
            # The headers hold secrets, which must not be sent to another origin.
            if _origin(found) != self._origin:
                raise ConfigInvalid(
                    f"the schema registry {self._settings.url} redirects to "
                    f"{excerpt(_origin(found))!r}, another host; nothing is sent "
                    "there; set schema_registry.confluent.url to the registry's own address"
                )
            parts = urlsplit(found)
            target = parts.path + (f"?{parts.query}" if parts.query else "")
        raise ConfigInvalid(
            f"the schema registry {self._settings.url} redirects more than {_REDIRECTS_MAX} times"
        )

    def _request(self, target: str, left_s: float) -> _Response | _Failure:
        """Send one request. Raises `ConfigInvalid` if the response is too large or the certificate is not
        trusted.
        """
        if left_s <= 0:
            return _Failure("it took too long", slow=True)
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
                    # The timer cut the connection, which the library reports as the end of the response.
                    if late.is_set():
                        return _Failure(f"it took longer than {left_s:.3g} s", slow=True)
                    # `read1` reports no early end, but the library still counts the missing bytes.
                    if response.length:
                        return _Failure(f"its answer was cut off, {response.length:,} bytes before its end")
                    answer = _Response(response.status, response.getheader("Location") or "", body)
        except ssl.SSLCertVerificationError as error:
            raise ConfigInvalid(
                f"the schema registry {self._settings.url} has a certificate that is not trusted: "
                f"{error.verify_message}; "
                "correct schema_registry.confluent.tls.ca"
            ) from error
        # UnicodeError: a host or a path that cannot be encoded.
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            if late.is_set() or isinstance(error, TimeoutError):
                return _Failure(f"it took longer than {left_s:.3g} s", slow=reached, unreached=not reached)
            return _Failure(f"{type(error).__name__}: {excerpt(str(error))}", unreached=not reached)
        # The registry or a proxy before it is overloaded or restarting.
        if answer.status in _AGAIN or answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return _Failure(f"it answers with status {answer.status}{self._reason(answer.body)}")
        return answer

    @contextlib.contextmanager
    def _connection(
        self, left_s: float, late: threading.Event, opened: list[socket.socket]
    ) -> Iterator[http.client.HTTPConnection]:
        """A connection that is cut at its deadline. `opened` collects its sockets."""
        kind = http.client.HTTPConnection if self._tls is None else http.client.HTTPSConnection
        connection = kind(self._host, self._port)

        def cut() -> None:
            late.set()
            # The library drops its own reference while a response without a length is still being read.
            for one in opened:
                with contextlib.suppress(OSError):
                    # Wakes a blocked read, which close() would not. SSLSocket.shutdown would drop its TLS
                    # state during use.
                    socket.socket.shutdown(one, socket.SHUT_RDWR)

        # A socket's own timeout restarts with every byte.
        timer = threading.Timer(left_s, cut)
        timer.daemon = True
        timer.start()
        try:
            yield connection
        finally:
            timer.cancel()
            connection.close()
            # `cut` may be running, and must not outlive the connection.
            timer.join()

    def _connect(
        self,
        connection: http.client.HTTPConnection,
        left_s: float,
        late: threading.Event,
        opened: list[socket.socket],
    ) -> None:
        """Connect, and register the socket before its first byte, so that a TLS handshake can be cut too."""
        port = self._port or (http.client.HTTP_PORT if self._tls is None else http.client.HTTPS_PORT)
        connection.sock = self._open_socket(port, self._clock.monotonic_s() + left_s)
        # The timer sets `late`, then reads `opened`. So it finds the socket, or this thread finds `late` set.
        opened.append(connection.sock)
        _not_late(late)
        if self._tls is not None:
            protected = self._tls.wrap_socket(
                connection.sock, server_hostname=self._host, do_handshake_on_connect=False
            )
            connection.sock = protected
            # wrap_socket detaches the plain socket, so the new one is registered too.
            opened.append(protected)
            _not_late(late)
            protected.do_handshake()

    def _open_socket(self, port: int, until_s: float) -> socket.socket:
        """Connect to the first address that accepts in its time. Raises the error of the last one.

        An address may use its share of the time that is left, so that a silent one leaves time for the next.
        All addresses together end by the deadline. The lookup of the host name cannot be interrupted.
        """
        trouble = OSError("the host has no address")
        # Not `create_connection`, which gives the whole timeout to each address.
        addresses = socket.getaddrinfo(self._host, port, type=socket.SOCK_STREAM)
        for tried, (family, kind, protocol, _, address) in enumerate(addresses):
            left_s = until_s - self._clock.monotonic_s()
            # A timeout of 0 would make the socket non-blocking.
            if left_s <= 0:
                raise TimeoutError
            opened: socket.socket | None = None
            try:
                opened = socket.socket(family, kind, protocol)
                # A host with many addresses must not get a share too short for a far server.
                opened.settimeout(min(left_s, max(_ATTEMPT_MIN_S, left_s / (len(addresses) - tried))))
                opened.connect(address)
            except OSError as error:
                trouble = error
                if opened is not None:
                    opened.close()
            else:
                return opened
        raise trouble

    def _body(self, response: http.client.HTTPResponse) -> bytes:
        bound = self._settings.answer_bytes_max
        body = bytearray()
        # `read1` returns bytes as they arrive, so that the bound is checked early.
        while chunk := response.read1(_CHUNK):
            body += chunk
            if len(body) > bound:
                raise ConfigInvalid(
                    f"the schema registry {self._settings.url} answers with more than {bound:,} bytes "
                    "(schema_registry.confluent.answer_bytes_max)"
                )
        return bytes(body)

    def _parsed(self, answer: _Response, path: str) -> Any:
        """Map a response to its JSON or to an error."""
        url, status, body = self._settings.url, answer.status, answer.body
        if status == HTTPStatus.NOT_FOUND:
            raise NotFound(f"the schema registry {url} has nothing at {excerpt(path)}{self._reason(body)}")
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise ConfigInvalid(
                f"the schema registry {url} denies access with status {status}{self._reason(body)}; correct "
                "schema_registry.confluent.auth"
            )
        if status != HTTPStatus.OK:
            raise ConfigInvalid(
                f"the schema registry {url} answers {excerpt(path)} with status {status}{self._reason(body)}"
            )
        try:
            return json.loads(body)
        # Deeply nested JSON raises RecursionError.
        except (ValueError, RecursionError) as error:
            raise ConfigInvalid(
                f"the schema registry {url} answers {excerpt(path)} with a body that is no JSON; is the "
                "address right?"
            ) from error

    def _reason(self, body: bytes) -> str:
        """The registry's own message, with our secrets masked; empty if it has none."""
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            return ""
        message = found.get("message") if isinstance(found, dict) else None
        if not isinstance(message, str) or not message:
            return ""
        # A registry or proxy may repeat the request in its message.
        for secret in self._secrets:
            message = message.replace(secret, "***")
        return f": {excerpt(message)!r}"


def _not_late(late: threading.Event) -> None:
    if late.is_set():
        raise TimeoutError


def _redirect_target(url: str, location: str) -> str:
    """The target of a redirect. An invalid URL is returned as it is; its origin then differs from the
    registry's.
    """
    try:
        return urljoin(url, location)
    except ValueError:
        return location


def _origin(url: str) -> str:
    """Scheme, host and port; an invalid URL is its own origin, equal to no other."""
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
        # http.client would refuse such a header with an error that quotes it.
        if not token.isascii() or not token.isprintable() or not token:
            raise ConfigInvalid(
                "schema_registry.confluent.auth.bearer is no valid token: it is empty, or has characters "
                "that no token has"
            )
        return {"Authorization": f"Bearer {token}"}
    password = "" if auth.password is None else auth.password.get_secret_value()
    pair = f"{auth.username}:{password}".encode()
    return {"Authorization": f"Basic {base64.b64encode(pair).decode('ascii')}"}


def _secrets(settings: ConfluentSettings, headers: Mapping[str, str]) -> tuple[str, ...]:
    """Texts that messages must not contain: the password or token, and its encoded form."""
    auth = settings.auth
    if auth is None:
        return ()
    secret = auth.password if auth.bearer is None else auth.bearer
    sent = headers["Authorization"].partition(" ")[2]
    return tuple(one for one in (sent, "" if secret is None else secret.get_secret_value()) if one)


def _tls(settings: ConfluentSettings) -> ssl.SSLContext:
    tls = settings.tls
    try:
        # With a configured authority, the system's own are not loaded: it is the only trusted one.
        context = ssl.create_default_context(cafile=None if tls is None or tls.ca is None else str(tls.ca))
    except (OSError, ssl.SSLError) as error:
        raise ConfigInvalid(f"schema_registry.confluent.tls.ca cannot be used: {error}") from error
    if tls is not None and tls.certificate is not None:
        try:
            # Without a password, OpenSSL would ask for one on the terminal.
            context.load_cert_chain(
                str(tls.certificate), None if tls.key is None else str(tls.key), password=lambda: b""
            )
        except (OSError, ssl.SSLError) as error:
            raise ConfigInvalid(
                f"schema_registry.confluent.tls.certificate and key cannot be used: {error}"
            ) from error
    return context
