"""pyiceberg's REST catalog with bounds: it has no time-out of its own and would wait for a silent server for ever.

Promises that a connection is made, and each part of an answer comes, within the bound, and that the body of an answer is whole within it
too, however slowly it drips. What is late is `requests.ReadTimeout`: whether the request was applied is unknown then. Sends nothing again.
"""

from __future__ import annotations

import io
from typing import Any

import requests
import urllib3.exceptions
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.rest.auth import AuthManager
from requests.adapters import BaseAdapter

from archiver.clock import Clock, SystemClock

IMPLEMENTATION = f"{__name__}.BoundedRestCatalog"
"""For pyiceberg's property `py-catalog-impl`."""

TIMEOUT = "archiver.request-timeout"
"""The property that holds the bound, in seconds."""

_PART_BYTES = 64 * 1024


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
                session.mount(prefix, _Bounded(adapter, timeout_s, SystemClock()))


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
        response = self._inner.send(request, stream=True, timeout=bound, verify=verify, cert=cert, proxies=proxies)
        response.raw = io.BytesIO(self._body(response, deadline_s))
        return response

    def _body(self, response: requests.Response, deadline_s: float) -> bytes:
        """Everything that is left of the answer. A read returns what has come, so that the clock is looked at between two of them."""
        parts: list[bytes] = []
        try:
            while part := response.raw.read1(_PART_BYTES, decode_content=True):
                parts.append(part)
                if self._clock.monotonic_s() > deadline_s:
                    raise requests.ReadTimeout(f"the answer was not whole after {self._timeout_s:g} s", request=response.request)
        except urllib3.exceptions.HTTPError as error:
            raise requests.ConnectionError(error, request=response.request) from error
        finally:
            response.raw.close()
        return b"".join(parts)

    def close(self) -> None:
        """Let go of connections."""
        self._inner.close()
