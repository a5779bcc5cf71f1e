"""pyiceberg's REST catalog with bounds: it has no time-out of its own and would wait for a silent server for ever.

Promises that a connection is made within the bound, and that an answer is whole within it, header and body, however slowly it drips. What
is late is `requests.ReadTimeout`: whether the request was applied is unknown then. Sends nothing again.
"""

from __future__ import annotations

import http.client
import io
import socket
from typing import Any, cast

import requests
import urllib3
import urllib3.exceptions
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.rest.auth import AuthManager
from requests.adapters import BaseAdapter, HTTPAdapter
from requests.utils import prepend_scheme_if_needed, select_proxy
from urllib3 import connection
from urllib3.poolmanager import pool_classes_by_scheme

from archiver.clock import Clock, SystemClock

IMPLEMENTATION = f"{__name__}.BoundedRestCatalog"
"""For pyiceberg's property `py-catalog-impl`."""

TIMEOUT = "archiver.request-timeout"
"""The property that holds the bound, in seconds."""

_PART_BYTES = 64 * 1024
_CLOCK = SystemClock()


class BoundedRestCatalog(RestCatalog):
    """A REST catalog whose requests end."""

    def _create_session(self) -> requests.Session:
        session = super()._create_session()
        self._bound(session)  # what signs requests was mounted meanwhile
        return session

    def _create_legacy_oauth2_auth_manager(self, session: requests.Session) -> AuthManager:
        self._bound(session)  # with a credential it asks for a token at once, before anybody else has the session
        return super()._create_legacy_oauth2_auth_manager(session)

    def _bound(self, session: requests.Session) -> None:
        timeout_s = float(self.properties[TIMEOUT])
        for prefix, adapter in list(session.adapters.items()):
            if not isinstance(adapter, _Bounded):
                session.mount(prefix, _Bounded(adapter, timeout_s, _CLOCK))


class _Bounded(BaseAdapter):
    """Puts the bound on whatever another adapter sends."""

    def __init__(self, inner: BaseAdapter, timeout_s: float, clock: Clock) -> None:
        super().__init__()
        self._inner = inner
        self._timeout_s = timeout_s
        self._clock = clock

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,  # noqa: ARG002 - what is asked for is read here, within the bound
        timeout: Any = None,
        verify: bool | str = True,
        cert: Any = None,
        proxies: dict[str, str] | None = None,
    ) -> requests.Response:
        """As the other does; the answer's body is there."""
        deadline_s = self._clock.monotonic_s() + self._timeout_s
        bound = self._timeout_s if timeout is None else timeout
        self._bound_pools(str(request.url), proxies)
        response = self._inner.send(request, stream=True, timeout=bound, verify=verify, cert=cert, proxies=proxies)
        response.raw = io.BytesIO(self._body(response, deadline_s))
        return response

    def _bound_pools(self, url: str, proxies: dict[str, str] | None) -> None:
        """Have connections to `url` made by the pools below. Whoever makes them by other means (SOCKS) keeps those."""
        if not isinstance(self._inner, HTTPAdapter):
            return
        proxy = select_proxy(url, proxies)
        manager = self._inner.proxy_manager_for(prepend_scheme_if_needed(proxy, "http")) if proxy else self._inner.poolmanager
        if manager.pool_classes_by_scheme is pool_classes_by_scheme:
            manager.pool_classes_by_scheme = {"http": HTTPConnectionPool, "https": HTTPSConnectionPool}

    def _body(self, response: requests.Response, deadline_s: float) -> bytes:
        """Everything that is left of the answer. A read returns what has come, so that the clock is looked at between two of them."""
        parts: list[bytes] = []
        try:
            while part := response.raw.read1(_PART_BYTES, decode_content=True):
                parts.append(part)
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
        return requests.ReadTimeout(f"the answer was not whole after {self._timeout_s:g} s", request=response.request)

    def close(self) -> None:
        """Let go of connections."""
        self._inner.close()


class _Timed(io.RawIOBase):
    """What comes from a socket, all of it within the socket's time-out, which by itself is that of each read, however little comes."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        timeout_s = sock.gettimeout()
        self._until_s = None if timeout_s is None else _CLOCK.monotonic_s() + timeout_s
        self._socket = sock
        self._raw = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        """As a socket's own, within what is left of the time."""
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
    """The one thing of a socket that an answer is read through."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Timed(self._socket))


class _TimedResponse(http.client.HTTPResponse):
    """An answer whose header counts as well: `http.client` waits for each byte of it by itself."""

    def __init__(self, sock: socket.socket, *arguments: Any, **named: Any) -> None:
        super().__init__(cast("socket.socket", _TimedSocket(sock)), *arguments, **named)


# They bear the names of those in whose place they are: messages of errors quote them.


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
