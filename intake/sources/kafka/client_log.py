"""What the Kafka client library reports about its connections, on the way to our log: bounded in lines, and
on time.

The library repeats one failed connection up to 50 times a second, once as a log line and once as an error.
One *kind* of line (the text without instance names, durations and counters) is logged once in `REPEAT_S`; the
repetitions are counted and reported with the next line. So a cluster that is away costs a few lines, and the
line about the state itself is written by the mirror and the publisher.

The library hands its lines over only while a client is polled, so they carry the time of the poll. A
`ClientListener` polls in a thread of its own where the client allows it. A line that may have waited longer
than `LATE_S` says for how long.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from archiver.runtime.clock import Clock
from archiver.runtime.redaction import excerpt

REPEAT_S = 600.0
"""A kind of line is logged once in this time."""
KINDS_MAX = 32
"""Kinds that are remembered; further kinds count as one, so that no text of a broker can fill the log."""
TEXT_MAX = 500
"""Characters of one line."""
LISTEN_EVERY_S = 0.2
LATE_S = 1.0
_PREFIX = re.compile(r"^(?:\[thrd:[^\]]{0,200}+\]: |[\w.-]{1,100}+#(?:producer|consumer)-\d++: )++")
_VARIABLE = re.compile(
    r"\(after \d++ms in state \w++[^)]{0,100}+\)|(?<!\d)\d++ms|#(?:producer|consumer)-\d++"
    r"|\(\d++ identical[^)]{0,100}+\)|:\d++ identical|(?<!\d)\d++/\d++ (?=brokers)"
)
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Kind:
    logged_s: float
    repeated: int = 0


class ClientError(Protocol):
    """An error of the library, which this module does not import."""

    def str(self) -> str:
        """Its text."""


class ClientLog:
    """The lines of all clients of one cluster; survives reconnects, so that each new client does not begin
    again. Thread-safe.
    """

    def __init__(self, source: str, clock: Clock, log: logging.Logger = _log) -> None:
        """`source`: what the clients are for, at the beginning of every line."""
        self._source = source
        self._clock = clock
        self._log = log
        self._lock = threading.Lock()
        self._kinds: dict[str, _Kind] = {}

    def callbacks(self) -> ClientCallbacks:
        """What one client reports to."""
        return ClientCallbacks(self, self._clock)

    def answered(self) -> None:
        """The cluster answers: what is reported from here on is news, unless it was logged moments ago."""
        if not self._kinds:  # called after every answer, so the common case takes no lock
            return
        now_s = self._clock.monotonic_s()
        with self._lock:
            self._kinds = {
                text: one for text, one in self._kinds.items() if now_s - one.logged_s < REPEAT_S / 10
            }

    def debug(self, text: str) -> None:
        """Log one line of the library's own debugging."""
        self._log.debug("%s: kafka client: %s", self._source, excerpt(text, TEXT_MAX))

    def say(self, level: int, text: str, late_s: float = 0.0) -> None:
        """Log one line, or count it if the same kind was logged lately."""
        text = _PREFIX.sub("", excerpt(text, TEXT_MAX))
        now_s = self._clock.monotonic_s()
        with self._lock:
            kind = _VARIABLE.sub("", text)
            if kind not in self._kinds and len(self._kinds) >= KINDS_MAX:
                kind = ""
            known = self._kinds.get(kind)
            if known is not None and now_s - known.logged_s < REPEAT_S:
                known.repeated += 1
                self._log.debug("%s: kafka client: %s", self._source, text)
                return
            more = (
                f" ({known.repeated} more like it since the last one)"
                if known is not None and known.repeated
                else ""
            )
            self._kinds[kind] = _Kind(now_s)
        late = f" (within the last {late_s:.0f} s)" if late_s > LATE_S else ""
        self._log.log(level, "%s: kafka client: %s%s%s", self._source, text, more, late)


class ClientCallbacks:
    """The callbacks of one client."""

    def __init__(self, log: ClientLog, clock: Clock) -> None:
        self._to = log
        self._clock = clock
        self._polled_s = clock.monotonic_s()

    def properties(self) -> dict[str, Any]:
        """The properties of the client that make it report here."""
        return {"logger": self, "error_cb": self.error}

    def poll_of(self, client: Any) -> Callable[[], None]:
        """A poll of that client, for a `ClientListener`."""

        def poll() -> None:
            client.poll(0)
            self.polled()

        return poll

    def polled(self) -> None:
        """The client was polled just now: what comes later happened later."""
        self._polled_s = self._clock.monotonic_s()

    def log(self, level: int, text: str, *args: object) -> None:
        """As `logging.Logger.log`. The library's level is not ours: that a broker cannot be reached is no
        error of this process.
        """
        if level <= logging.DEBUG:  # only with the property `debug`: then every line is wanted
            self._to.debug(text % args if args else text)
            return
        facility, _, rest = (text % args if args else text).partition("] ")
        self._to.say(
            min(level, logging.WARNING), rest or facility, self._clock.monotonic_s() - self._polled_s
        )

    def error(self, error: ClientError) -> None:
        """As `error_cb`."""
        self._to.say(logging.WARNING, error.str(), self._clock.monotonic_s() - self._polled_s)


class ClientListener:
    """Polls clients in a thread, so that their lines do not wait until the client is used again."""

    def __init__(self, name: str, polls: Sequence[Callable[[], object]]) -> None:
        self._polls = polls
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"kafka-log-{name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Poll no more."""
        self._stopping.set()
        if self._thread is not threading.current_thread():
            self._thread.join(LISTEN_EVERY_S * 10)

    def _run(self) -> None:
        while not self._stopping.wait(LISTEN_EVERY_S):
            for poll in self._polls:
                poll()
