"""The S3 client of a process, bounded retries of requests, and the mapping of errors to the error tree."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import boto3
from botocore.config import Config

from archiver.objects.location import S3Options
from archiver.objects.s3.errors import SDK_ERRORS, ErrorKind, S3Error, classify
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError, ConfigInvalid, Halt, NotFound, RetryLater
from archiver.runtime.ids import IdSource
from archiver.runtime.text import counted

CONNECTIONS_MAX: Final = 32
"""Connections that one client keeps open; further threads use connections that are closed after use."""

# --- The client.
# One per process and options: it owns the connections, and costs about 0.1 s to create.
_clients: dict[S3Options, Any] = {}
_lock = threading.Lock()


def _forget() -> None:
    """Reset in a forked child: the connections are the parent's, and one of its threads may have held the
    lock.
    """
    # A new lock, because the inherited one can stay locked forever.
    global _clients, _lock
    _clients, _lock = {}, threading.Lock()


os.register_at_fork(after_in_child=_forget)


def client_for(options: S3Options) -> Any:
    """The process's client with these options. Raises `ConfigInvalid` or errors of botocore for invalid
    options.
    """
    with _lock:
        if options not in _clients:
            _clients[options] = _made(options)
        return _clients[options]


def _made(options: S3Options) -> Any:
    # Checked here, because a Spark executor may run on a machine without the file.
    if options.ca_file is not None and not Path(options.ca_file).is_file():
        raise ConfigInvalid(
            f"there is no file {options.ca_file} on this machine; data.ca_file must be at the same "
            "path on each"
        )
    session = boto3.session.Session(
        aws_access_key_id=options.access_key_id,
        aws_secret_access_key=options.secret_access_key,
        aws_session_token=options.session_token,
        region_name=options.region,
    )
    # Other servers ignore the region, but the signature needs one.
    region = session.region_name or ("us-east-1" if options.endpoint else None)
    # "auto" addresses AWS buckets by host name, except names with a dot, which no certificate covers.
    style = "path" if options.path_style else "virtual" if options.endpoint else "auto"
    config = Config(
        # botocore repeats a PUT whose reply was lost, and reports only the 412 of the second attempt. The
        # success of the first would be hidden.
        retries={"total_max_attempts": 1},
        connect_timeout=options.connect_timeout_s,
        read_timeout=options.request_timeout_s,
        max_pool_connections=CONNECTIONS_MAX,
        tcp_keepalive=True,
        s3={"addressing_style": style},
        signature_version="s3v4",
        # Not every server supports trailing checksums. Content-MD5 is supported, and every request that
        # stores bytes has it.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        # The endpoint comes only from the configuration, which refuses http:// to other machines, and not
        # from a variable.
        ignore_configured_endpoint_urls=True,
        user_agent_extra="stream-archiver",
    )
    verify = options.ca_file  # None: the system's CAs; verification cannot be disabled
    return session.client(
        "s3", endpoint_url=options.endpoint, region_name=region, verify=verify, config=config
    )


# --- Requests and retries.
FIRST_WAIT_S: Final = 0.1
WAIT_MAX_S: Final = 5.0
# The kinds after which an idempotent request is repeated.
AGAIN: Final = (ErrorKind.NOT_APPLIED, ErrorKind.UNKNOWN)

_T = TypeVar("_T")


class S3Failed(Exception):
    """One attempt failed. This exception does not leave the S3 modules."""

    def __init__(self, failure: S3Error) -> None:
        super().__init__(failure.why)
        self.error = failure

    @property
    def kind(self) -> ErrorKind:
        """The outcome of the request."""
        return self.error.kind

    @property
    def why(self) -> str:
        """The text for messages."""
        return self.error.why


class S3Calls:
    """Sends requests with the client of this process. Safe to use from several threads and after a fork."""

    def __init__(self, options: S3Options, ids: IdSource, clock: Clock, trouble: Callable[[], None]) -> None:
        """`trouble` is called after a failure that may mean that another server replies from now on."""
        self._options = options
        self._ids = ids
        self._clock = clock
        self._trouble = trouble

    def once(self, call: Callable[[Any], _T]) -> _T:
        """Send one attempt; raises `S3Failed`."""
        try:
            # Per call, because a forked process has another client.
            return call(client_for(self._options))
        except SDK_ERRORS as error:
            found = classify(error)
            # Results such as "missing" are normal replies. The other kinds may mean that an address leads
            # elsewhere.
            if found.kind in (*AGAIN, ErrorKind.REFUSED, ErrorKind.MISCONFIGURED):
                self._trouble()
            raise S3Failed(found) from error

    def tries(self) -> Iterator[int]:
        """Iterate over the allowed attempts, with the waits between them."""
        for attempt in range(self._options.attempts_max):
            if attempt:
                full_s = min(WAIT_MAX_S, FIRST_WAIT_S * 2 ** (attempt - 1))
                share = int.from_bytes(self._ids.random_bytes(2)) / 65535
                # From half to the full wait: many writers then do not retry at the same moment.
                self._clock.sleep(full_s * (0.5 + share / 2))
            yield attempt

    def repeated(self, what: str, call: Callable[[Any], _T]) -> _T:
        """Send an idempotent request, with retries.

        Raises `S3Failed` for the kinds that are results (missing, taken, no range, no upload). Raises
        `RetryLater` if all attempts failed, `Halt` or `ConfigInvalid` if a retry cannot help.
        """
        last: S3Failed | None = None
        for _ in self.tries():
            try:
                return self.once(call)
            except S3Failed as error:
                if error.kind not in AGAIN:
                    self.refuse(what, error)
                    raise
                last = error
        assert last is not None, "there is at least one try"
        raise RetryLater(f"{what}: {self.given_up(last)}") from last

    def given_up(self, last: S3Failed) -> str:
        """The message after the last attempt."""
        tries = self._options.attempts_max
        return f"{last.why} ({counted(tries, 'try', 'tries')})"

    @staticmethod
    def refuse(what: str, error: S3Failed) -> None:
        """Raise `Halt` or `ConfigInvalid` if a retry cannot help."""
        kinds: dict[ErrorKind, type[ArchiverError]] = {
            ErrorKind.REFUSED: Halt,
            ErrorKind.MISCONFIGURED: ConfigInvalid,
        }
        kind = kinds.get(error.kind)
        if kind is not None:
            raise kind(f"{what}: {error.why}") from error

    def found(self, what: str, missing: str, call: Callable[[Any], _T]) -> _T:
        """As `repeated`, but raises `NotFound(missing)` for a missing object."""
        try:
            return self.repeated(what, call)
        except S3Failed as error:
            if error.kind is ErrorKind.MISSING:
                raise NotFound(missing) from error
            # The remaining kinds make no sense for a read or a listing, so a retry cannot help.
            raise Halt(f"{what}: {error.why}") from error
