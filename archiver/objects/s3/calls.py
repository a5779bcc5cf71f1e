"""Requests to a bucket, repeated within bounds, and their errors as ours.

Owns how often and after which waits a request is repeated. Promises that no request is repeated without a
bound, and that a caller who must know whether something may have been applied is told after each try
(`tries`). Knows nothing of keys and objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from archiver.objects.location import S3Options
from archiver.objects.s3.client import client_for
from archiver.objects.s3.errors import SDK_ERRORS, ErrorKind, Judged, judged
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError, ConfigInvalid, Halt, NotFound, RetryLater
from archiver.runtime.ids import IdSource
from archiver.runtime.text import counted

FIRST_WAIT_S: Final = 0.1
WAIT_MAX_S: Final = 5.0
AGAIN: Final = (ErrorKind.NOT_APPLIED, ErrorKind.UNKNOWN)

_T = TypeVar("_T")


class S3Failed(Exception):
    """One try has failed; does not leave this package's S3 modules."""

    def __init__(self, verdict: Judged) -> None:
        super().__init__(verdict.why)
        self.judged = verdict

    @property
    def verdict(self) -> ErrorKind:
        """What became of the request."""
        return self.judged.verdict

    @property
    def why(self) -> str:
        """For people."""
        return self.judged.why


class S3Calls:
    """Sends requests with the client of this process. Safe to use from several threads and after a fork."""

    def __init__(self, options: S3Options, ids: IdSource, clock: Clock, trouble: Callable[[], None]) -> None:
        """`trouble` is called when a request failed in a way that may mean that another server answers from
        now on.
        """
        self._options = options
        self._ids = ids
        self._clock = clock
        self._trouble = trouble

    def once(self, call: Callable[[Any], _T]) -> _T:
        """One try; raises `S3Failed`."""
        try:
            return call(client_for(self._options))
        except SDK_ERRORS as error:
            found = judged(error)
            if found.verdict in (*AGAIN, ErrorKind.REFUSED, ErrorKind.MISCONFIGURED):
                self._trouble()
            raise S3Failed(found) from error

    def tries(self) -> Iterator[int]:
        """As many numbers as there may be tries, with the waits between them."""
        for attempt in range(self._options.attempts_max):
            if attempt:
                full_s = min(WAIT_MAX_S, FIRST_WAIT_S * 2 ** (attempt - 1))
                share = int.from_bytes(self._ids.random_bytes(2)) / 65535
                self._clock.sleep(full_s * (0.5 + share / 2))
            yield attempt

    def repeated(self, what: str, call: Callable[[Any], _T]) -> _T:
        """A request that may be sent any number of times, because it changes nothing, or the same each time.

        Raises `S3Failed` for the verdicts that are answers (missing, taken, no range, no upload);
        `RetryLater` if all tries came to nothing, `Halt` and `ConfigInvalid` if more of them cannot help.
        """
        last: S3Failed | None = None
        for _ in self.tries():
            try:
                return self.once(call)
            except S3Failed as error:
                if error.verdict not in AGAIN:
                    self.refuse(what, error)
                    raise
                last = error
        assert last is not None, "there is at least one try"
        raise RetryLater(f"{what}: {self.given_up(last)}") from last

    def given_up(self, last: S3Failed) -> str:
        """The sentence after the last try."""
        tries = self._options.attempts_max
        return f"{last.why} ({counted(tries, 'try', 'tries')})"

    @staticmethod
    def refuse(what: str, error: S3Failed) -> None:
        """Raise `Halt` or `ConfigInvalid` if more tries cannot help."""
        kinds: dict[ErrorKind, type[ArchiverError]] = {
            ErrorKind.REFUSED: Halt,
            ErrorKind.MISCONFIGURED: ConfigInvalid,
        }
        kind = kinds.get(error.verdict)
        if kind is not None:
            raise kind(f"{what}: {error.why}") from error

    def found(self, what: str, missing: str, call: Callable[[Any], _T]) -> _T:
        """`repeated`, with `NotFound(missing)` for what is not there."""
        try:
            return self.repeated(what, call)
        except S3Failed as error:
            if error.verdict is ErrorKind.MISSING:
                raise NotFound(missing) from error
            raise Halt(f"{what}: {error.why}") from error
