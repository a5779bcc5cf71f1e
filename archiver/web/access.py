"""Who reads through the port, and what that reader may see.

On loopback every reader may see everything, unless `http.read_token` is set or a proxy passed the request
on. Any other reader gives a token or logs in as a user of the Kafka listener, and `kafka.acls` decide.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request

from archiver.config.types import host_of, is_loopback
from archiver.runtime.errors import ArchiverError
from archiver.runtime.ids import SystemIds
from archiver.runtime.logging import LogLimit
from archiver.web.app_context import AppContext, Logins, Operation, Resource
from archiver.web.error_responses import refusal

_log = logging.getLogger(__name__)

LOGINS_OPEN_MAX: Final = 32
"""Maximum of logins that wait for the check of their password."""
FAILED_WAIT_S: Final = 0.2
"""Wait before a login is refused, as on the Kafka listener: it slows down guesses at a password."""
KEPT_MAX: Final = 256
KEPT_S: Final = 60.0
"""Time for which a checked password is not checked again: a browser sends it with each request, and a check
takes milliseconds of CPU. A changed password or a deleted user counts after this time."""
_FORWARDED: Final = (
    "forwarded",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-proto",
    "x-real-ip",
    "x-client-ip",
    "true-client-ip",
    "cf-connecting-ip",
)
_HEADER_MAX: Final = 4096
_REALM: Final = 'Basic realm="Stream Archiver", charset="UTF-8"'


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader whose token or password was right, or who needed none."""

    principal: str | None
    """None: may see everything."""
    _allows: Callable[[str, Operation, Resource, str], bool]

    @property
    def sees_all(self) -> bool:
        """Whether no rule limits what it may see."""
        return self.principal is None

    def may(self, operation: Operation, resource: Resource, name: str) -> bool:
        """Whether it may do this with a topic or a group."""
        return self.principal is None or self._allows(self.principal, operation, resource, name)

    def require(
        self, operation: Operation, resource: Resource, name: str, parameter: str | None = None
    ) -> None:
        """Refuse with 403 what it may not do; the name is that of a `parameter`. Call it before anything is
        looked up: the answer must be the same whether or not the name exists.
        """
        if not self.may(operation, resource, name):
            raise refusal(
                403,
                f"{self.principal} may not {operation} this {resource}; a rule in kafka.acls can allow it",
                parameter=parameter,
            )

    def visible(self, operation: Operation, resource: Resource, names: Iterable[str]) -> set[str]:
        """Those of the names with which it may do this."""
        return {name for name in names if self.may(operation, resource, name)}


class Access:
    """Finds the reader of a request. Its methods run in the event loop."""

    def __init__(self, context: AppContext) -> None:
        self._context = context
        self._open = is_loopback(host_of(context.http.listen)) and context.http.read_token is None
        self._waiting = 0
        self._log_limit = LogLimit(_log)
        # One thread: readers that are not known yet must not take the processors.
        self._thread = ThreadPoolExecutor(1, "http-login")
        self._kept: OrderedDict[bytes, tuple[str, float]] = OrderedDict()
        # A key of this process: what is kept says nothing about a password to a reader of the memory alone.
        self._key = SystemIds().random_bytes(32)

    def close(self) -> None:
        """Release the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def reader(self, request: Request) -> Reader:
        """The reader; refuses with 401 without a valid token or password, and with 429 or 503 where that
        cannot be checked now.
        """
        # A proxy on this machine may be open to others, who must not read what it was not set up to show.
        # Most proxies that add no header ask by HTTP/1.0.
        proxied = request.scope.get("http_version") == "1.0" or any(
            name in request.headers for name in _FORWARDED
        )
        if self._open and not proxied:
            return Reader(None, _none)
        given = request.headers.get("authorization", "")
        scheme, _, rest = given.partition(" ")
        if len(given) > _HEADER_MAX:
            raise _unknown("the header Authorization is too long")
        if scheme.lower() == "bearer":
            if self._is_token(rest.strip()):
                return Reader(None, _none)
        elif scheme.lower() == "basic":
            return await self._login(rest.strip())
        else:
            raise _unknown(
                "reading asks for a login: a user of the Kafka listener with its password, or any name with "
                "http.read_token as the password; programs send Authorization: Bearer TOKEN"
            )
        await asyncio.sleep(FAILED_WAIT_S)
        raise _unknown("the token is wrong")

    async def _login(self, encoded: str) -> Reader:
        name, password = _decoded(encoded)
        # A browser can only log in with a name and a password, so a token may be the password.
        if self._is_token(password):
            return Reader(None, _none)
        logins = self._context.logins()
        principal = None if logins is None else await self._principal(logins, encoded, name, password)
        if logins is None or principal is None:
            await asyncio.sleep(FAILED_WAIT_S)
            raise _unknown("the name or the password is wrong")
        return Reader(principal, logins.allows)

    async def _principal(self, logins: Logins, encoded: str, name: str, password: str) -> str | None:
        digest = hmac.digest(self._key, encoded.encode(), "sha256")
        now_s = self._context.clock.monotonic_s()
        kept = self._kept.get(digest)
        if kept is not None and now_s - kept[1] < KEPT_S:
            return kept[0]
        if self._waiting >= LOGINS_OPEN_MAX:
            raise refusal(
                429, f"{LOGINS_OPEN_MAX} logins are open", retry_after_s=self._context.http.retry_after
            )
        self._waiting += 1
        try:
            found = await asyncio.get_running_loop().run_in_executor(
                self._thread, logins.principal, name, password
            )
        except ArchiverError as error:
            # The message names the file of the users, which an unknown reader need not know.
            self._log_limit.log(now_s, logging.ERROR, "no reader can log in: %s", error)
            raise refusal(
                503,
                "the users cannot be read; the daemon's log says why",
                retry_after_s=self._context.http.retry_after,
            ) from None
        finally:
            self._waiting -= 1
        if found is not None:
            self._kept[digest] = (found, now_s)
            while len(self._kept) > KEPT_MAX:
                self._kept.popitem(last=False)
        return found

    def _is_token(self, given: str) -> bool:
        setting = self._context.http.read_token
        tokens = [self._context.token(), None if setting is None else setting.get_secret_value()]
        data = given.encode("utf-8", "surrogateescape")
        # In constant time, so that the time of an answer says nothing about a token.
        found = [hmac.compare_digest(data, token.encode()) for token in tokens if token is not None]
        return any(found)


def _none(_principal: str, _operation: Operation, _resource: Resource, _name: str) -> bool:
    return False


def _decoded(encoded: str) -> tuple[str, str]:
    try:
        name, found, password = base64.b64decode(encoded, validate=True).decode().partition(":")
    # Also for characters that are not ASCII, and for bytes that are not UTF-8.
    except ValueError:
        raise _unknown("the header Authorization is no Basic login in UTF-8") from None
    if not found:
        raise _unknown("the header Authorization has no password")
    return name, password


def _unknown(message: str) -> Exception:
    refused = refusal(401, message)
    refused.headers = {"WWW-Authenticate": _REALM}
    return refused
