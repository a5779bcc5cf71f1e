"""pyiceberg's REST catalog with bounds and with a gate for what the catalog sends.

pyiceberg has no time-out, no bound on an answer's bytes, and accepts any setting that a catalog sends. Here
connection and answer, header and body, are complete within the bound (docs/protocols/outcomes.md). A late
answer is `requests.ReadTimeout`. An answer that is too large or redirects is `requests.ConnectionError`. In
both cases the outcome of the request is unknown. Only a request that was refused with 401 is sent again,
once. A request that could not be signed, or has no token, ends as an `ArchiverError` and was not sent.
"""

from __future__ import annotations

import http.client
import io
import logging
import socket
from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import requests
import urllib3
import urllib3.exceptions
from pydantic import ValidationError
from pyiceberg.catalog.rest import (
    DEFAULT_NAMESPACE_SEPARATOR,
    NAMESPACE_SEPARATOR_PROPERTY,
    RestCatalog,
    TableResponse,
)
from pyiceberg.catalog.rest.auth import AuthManager
from pyiceberg.exceptions import AuthorizationExpiredError, UnauthorizedError
from pyiceberg.io import load_file_io
from requests.adapters import BaseAdapter, HTTPAdapter
from requests.utils import prepend_scheme_if_needed, select_proxy
from urllib3 import connection
from urllib3.poolmanager import pool_classes_by_scheme

from archiver.catalog.iceberg.auth import CREDENTIAL, TOKEN, Client, ClientTokens, FixedToken, Tokens, signs
from archiver.catalog.iceberg.guard import GuardedTable
from archiver.catalog.iceberg.guarded_io import LIMITS
from archiver.catalog.iceberg.remote_limits import CONFIGURATION_BYTES_MAX, JsonValues, RemoteLimits
from archiver.catalog.iceberg.remote_properties import (
    Gated,
    catalog_settings,
    file_properties,
    origin_of,
    table_settings,
)
from archiver.runtime.clock import Clock, SystemClock
from archiver.runtime.errors import CatalogAway, ConfigInvalid, Halt
from archiver.runtime.redaction import excerpt

_log = logging.getLogger(__name__)

IMPLEMENTATION = f"{__name__}.BoundedRestCatalog"
"""For pyiceberg's property `py-catalog-impl`."""

_CONFIGURATION_PATH = "/v1/config"
_NOTES_MAX = 100
"""Sets of names of ignored settings that are logged. Bounds memory and log lines if a catalog varies them."""
_PART_BYTES = 64 * 1024
_TURNS_INTO_GET = frozenset({301, 302, 303})
_CLOCK = SystemClock()


class BoundedRestCatalog(RestCatalog):
    """A REST catalog whose requests, token requests included, end within a bound, and which replaces a
    refused token.
    """

    def __init__(self, name: str, **properties: Any) -> None:
        # All fields are set before the base class, whose constructor already sends a request.
        self._limits: RemoteLimits = properties[LIMITS]
        self._configured_uri = str(properties["uri"])
        self._authorities: str | None = (properties.get("ssl") or {}).get("cabundle")
        self._asking: requests.Session | None = None
        self._left_out: set[tuple[str, ...]] = set()
        self._tokens = self._tokens_of(name, properties)
        try:
            super().__init__(name, **properties)
        # Also for SIGINT: the token session exists already, and no caller can close this object.
        except BaseException:
            self._forget()
            raise

    def close(self) -> None:
        """Release connections."""
        super().close()
        self._forget()

    def _forget(self) -> None:
        if self._asking is not None:
            self._asking.close()

    def _tokens_of(self, name: str, properties: Mapping[str, Any]) -> Tokens:
        """By the configuration alone; settings that the catalog sends later do not count."""
        # A signature takes the place of a token, so a token that is configured as well is not sent.
        if signs(properties):
            return Tokens()
        if properties.get(TOKEN):
            return FixedToken(str(properties[TOKEN]))
        if not properties.get(CREDENTIAL):
            return Tokens()
        client = Client.of(properties)
        self._asking = requests.Session()
        self._bound(self._asking, client.server)
        return ClientTokens(name, client, self._asking, _CLOCK)

    def _fetch_config(self) -> None:
        """Ask the catalog for its settings, and keep those that the gate accepts."""
        # pyiceberg merges all remote settings first. Until the gate below, nothing is imported or requested
        # by them.
        configured = dict(self.properties)
        try:
            self._ask_for_config()
        except (UnauthorizedError, AuthorizationExpiredError):
            # pyiceberg repeats every other request that was refused with 401, but not this one.
            self._tokens.refused()
            self._ask_for_config()
        remote = {
            key: value
            for key, value in self.properties.items()
            if key not in configured or configured[key] != value
        }
        gated = catalog_settings(remote, self._configured_uri, allow_http=self._limits.allow_http)
        self._log_left_out("settings of the catalog that are not used", gated)
        self.properties = configured | gated.accepted
        # pyiceberg set both from the ungated settings, so they are computed again.
        self.uri = str(self.properties["uri"])
        self._namespace_separator = unquote(
            str(self.properties.get(NAMESPACE_SEPARATOR_PROPERTY, DEFAULT_NAMESPACE_SEPARATOR))
        )

    def _ask_for_config(self) -> None:
        """As pyiceberg's, with errors in the catalog's own settings raised as `CatalogAway`."""
        try:
            super()._fetch_config()
        # Some of these are a `ValueError` too. The adapter interprets them itself.
        except (requests.RequestException, ValidationError):
            raise
        # pyiceberg reads two of these settings before the gate. A wrong one is no mistake in our
        # configuration.
        except (ValueError, TypeError, AttributeError) as error:
            raise CatalogAway(
                f"catalog {self.name} cannot be reached: its settings cannot be read: {excerpt(str(error))}"
            ) from error

    def _log_left_out(self, what: str, gated: Gated) -> None:
        """Log ignored settings, once for each set of names."""
        if gated.left_out and gated.left_out not in self._left_out and len(self._left_out) < _NOTES_MAX:
            self._left_out.add(gated.left_out)
            _log.warning("catalog %s: %s: %s", self.name, what, ", ".join(gated.left_out))

    def _create_session(self) -> requests.Session:
        session = super()._create_session()
        # After pyiceberg mounted the adapter that signs requests, so that it is bounded as well.
        self._bound(session, self._configured_uri)
        return session

    def _create_legacy_oauth2_auth_manager(self, session: requests.Session) -> AuthManager:  # noqa: ARG002 - pyiceberg's own shape
        return self._tokens

    def _refresh_token(self) -> None:
        """Called by pyiceberg after a 401, before it sends the same request once more."""
        self._tokens.refused()

    def _init_sigv4(self, session: requests.Session) -> None:
        super()._init_sigv4(session)
        adapter: Any = session.adapters[self.uri]
        sign = adapter.add_headers

        def add_headers(request: requests.PreparedRequest, **named: Any) -> None:
            try:
                sign(request, **named)
            # boto3 signs before anything is sent, so any error of it is certain.
            except Exception as error:
                raise Halt(
                    f"catalog {self.name}: a request cannot be signed ({error}); check "
                    "client.access-key-id, the usual chain of AWS's "
                    "credentials, and rest.signing-region"
                ) from error

        adapter.add_headers = add_headers

    def _response_to_table(
        self, identifier_tuple: tuple[str, ...], table_response: TableResponse
    ) -> GuardedTable:
        """With the storage settings that the catalog sends for the table in place of ours, and without the
        table's own properties.
        """
        # A table property could send our keys to another server: any user who may alter the table can set it.
        found = self._resolve_storage_credentials(
            table_response.storage_credentials, table_response.metadata_location
        )
        gated = table_settings({**table_response.config, **found}, allow_http=self._limits.allow_http)
        self._log_left_out("settings for a table that are not used", gated)
        return GuardedTable(
            identifier=identifier_tuple,
            metadata_location=str(table_response.metadata_location),
            metadata=table_response.metadata,
            io=load_file_io(
                file_properties(self.properties, gated.accepted), table_response.metadata_location
            ),
            catalog=self,
            config=gated.accepted,
        )

    def _bound(self, session: requests.Session, uri: str) -> None:
        """Bound every request of the session, and restrict it to the origin of `uri`."""
        for prefix, adapter in list(session.adapters.items()):
            if not isinstance(adapter, _Bounded):
                session.mount(prefix, _Bounded(adapter, self._limits, _CLOCK, self._authorities, uri))


class _Bounded(BaseAdapter):
    """Bounds the requests of another adapter: their time, the bytes of an answer, and their origin."""

    def __init__(
        self, inner: BaseAdapter, limits: RemoteLimits, clock: Clock, authorities: str | None, uri: str
    ) -> None:
        """`authorities`: the file of certificate authorities for the server's certificate. `uri`: the
        configured address. A redirect to another origin is not followed.
        """
        super().__init__()
        self._authorities = authorities
        self._inner = inner
        self._timeout_s = limits.request_timeout_s
        self._bytes_max = limits.bytes_max
        self._clock = clock
        self._origin = origin_of(uri)
        if self._origin is None:
            raise ConfigInvalid(f"a catalog's address is no http:// or https:// address: {excerpt(uri)!r}")

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,  # noqa: ARG002 - what is asked for is read here, within the bound
        timeout: Any = None,
        verify: bool | str = True,
        cert: Any = None,
        proxies: dict[str, str] | None = None,
    ) -> requests.Response:
        """As the inner adapter, but the answer's body is read completely."""
        origin = origin_of(str(request.url))
        # Headers may hold a secret, and requests follows redirects by calling this method again.
        if origin != self._origin:
            other = "no HTTP address" if origin is None else f"{origin[0]}://{excerpt(origin[1])}:{origin[2]}"
            raise requests.ConnectionError(
                f"the catalog redirects to {other}, which is not followed", request=request
            )
        deadline_s = self._clock.monotonic_s() + self._timeout_s
        bound = self._timeout_s if timeout is None else timeout
        self._bound_pools(str(request.url), proxies)
        # Passed per request, because environment variables would override a session's file.
        trusted = verify if self._authorities is None else self._authorities
        response = self._inner.send(
            request, stream=True, timeout=bound, verify=trusted, cert=cert, proxies=proxies
        )
        response.raw = io.BytesIO(self._body(response, deadline_s))
        # JSON is UTF-8. A `charset` of the answer could choose any codec of Python, some of which take
        # quadratic time.
        response.encoding = "utf-8"
        if response.status_code in _TURNS_INTO_GET and request.method not in ("GET", "HEAD"):
            # The library would send a GET instead, and pyiceberg would treat its answer as the outcome of the
            # request.
            raise requests.ConnectionError(
                f"the catalog redirects a {request.method}, which is not followed", request=request
            )
        return response

    def _bound_pools(self, url: str, proxies: dict[str, str] | None) -> None:
        """Use the pools below for connections to `url`."""
        if not isinstance(self._inner, HTTPAdapter):
            return
        proxy = select_proxy(url, proxies)
        manager = (
            self._inner.proxy_manager_for(prepend_scheme_if_needed(proxy, "http"))
            if proxy
            else self._inner.poolmanager
        )
        # Only the default pools are replaced. An adapter with pools of another kind (SOCKS) keeps them.
        if manager.pool_classes_by_scheme is pool_classes_by_scheme:
            manager.pool_classes_by_scheme = {"http": HTTPConnectionPool, "https": HTTPSConnectionPool}

    def _body(self, response: requests.Response, deadline_s: float) -> bytes:
        """The rest of the answer."""
        parts: list[bytes] = []
        # By the path of the answer: this adapter does not see which pyiceberg call made the request.
        is_configuration = urlsplit(str(response.url)).path.endswith(_CONFIGURATION_PATH)
        left = min(CONFIGURATION_BYTES_MAX, self._bytes_max) if is_configuration else self._bytes_max
        values = JsonValues(left)
        try:
            # `read1` returns what has arrived, so the clock is checked between two reads. `read` would wait
            # for more.
            while part := response.raw.read1(_PART_BYTES, decode_content=True):
                parts.append(part)
                # Decoded bytes are counted, so a compressed answer cannot expand beyond the bound.
                left -= len(part)
                if left < 0:
                    raise requests.ConnectionError(
                        "the answer has more bytes than catalogs[].metadata_bytes_max",
                        request=response.request,
                    )
                # Before the JSON is parsed: small values cost many times their bytes as objects.
                if values.too_many(part):
                    why = (
                        f"the answer has more than {values.values_max} values (catalogs[].metadata_bytes_max)"
                    )
                    raise requests.ConnectionError(why, request=response.request)
                if self._clock.monotonic_s() > deadline_s:
                    raise self._late(response)
        except urllib3.exceptions.ReadTimeoutError as error:
            raise self._late(response) from error
        except urllib3.exceptions.HTTPError as error:
            raise requests.ConnectionError(error, request=response.request) from error
        finally:
            response.raw.close()
        return b"".join(parts)

    def _late(self, response: requests.Response) -> requests.ReadTimeout:
        return requests.ReadTimeout(
            f"the answer was not whole after {self._timeout_s:g} s", request=response.request
        )

    def close(self) -> None:
        """Release connections."""
        self._inner.close()


class _Timed(io.RawIOBase):
    """The input of a socket, as a whole within the socket's time-out."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        timeout_s = sock.gettimeout()
        # The time-out of a socket is one of each read. A server that sends single bytes would never reach it.
        self._until_s = None if timeout_s is None else _CLOCK.monotonic_s() + timeout_s
        self._socket = sock
        self._raw = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        """As a socket's own, within the remaining time."""
        if self._until_s is not None:
            left_s = self._until_s - _CLOCK.monotonic_s()
            if left_s <= 0:
                raise TimeoutError("timed out")
            self._socket.settimeout(left_s)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _TimedSocket:
    """The one method of a socket that `http.client` uses to read an answer."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Timed(self._socket))


class _TimedResponse(http.client.HTTPResponse):
    """An answer whose header is bounded as well: `http.client` applies the time-out to each read of it."""

    def __init__(self, sock: socket.socket, *arguments: Any, **named: Any) -> None:
        super().__init__(cast("socket.socket", _TimedSocket(sock)), *arguments, **named)


# These classes have the names of those that they replace, because error messages quote the names.


class HTTPConnection(connection.HTTPConnection):
    """urllib3's, with answers that are bounded."""

    response_class = _TimedResponse


class HTTPSConnection(connection.HTTPSConnection):
    """urllib3's, with answers that are bounded."""

    response_class = _TimedResponse


class HTTPConnectionPool(urllib3.HTTPConnectionPool):
    """urllib3's, of the connections above."""

    ConnectionCls = HTTPConnection


class HTTPSConnectionPool(urllib3.HTTPSConnectionPool):
    """urllib3's, of the connections above."""

    ConnectionCls = HTTPSConnection
