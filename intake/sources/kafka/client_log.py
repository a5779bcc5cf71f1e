"""Log the Kafka client library's reports about its connections, with few lines and without delay.

The library repeats one failed connection up to 50 times a second, once as a log line and once as an error.
One *kind* of line (the text without instance names, durations and counters) is logged once in `REPEAT_S`;
repetitions are counted and reported with the next line. An unreachable cluster thus costs few lines. The
mirror and the publisher log the state itself.

The library delivers its lines only during a poll, so they carry the time of the poll. A `ClientListener`
polls in its own thread where the client allows it. A line that may be older than `LATE_S` has its possible
age.
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
"""Seconds in which a kind of line is logged once."""
KINDS_MAX = 32
"""Kinds to remember; all further ones count as one kind, so that texts of a broker cannot fill the log."""
TEXT_MAX = 500
"""Characters of one line."""
LISTEN_EVERY_S = 0.2
LATE_S = 1.0
# Possessive and bounded quantifiers: a broker controls this text, and backtracking must not cost time.
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
        """The error's text."""


class ClientLog:
    """The log lines of all clients of one cluster. It survives reconnects, so a new client does not repeat
    lines. Thread-safe.
    """

    def __init__(self, source: str, clock: Clock, log: logging.Logger = _log) -> None:
        """`source` names the purpose of the clients at the beginning of every line."""
        self._source = source
        self._clock = clock
        self._log = log
        self._lock = threading.Lock()
        self._kinds: dict[str, _Kind] = {}
        self._said = set[str]()

    def callbacks(self) -> ClientCallbacks:
        """The callbacks for one client."""
        return ClientCallbacks(self, self._clock)

    def answered(self) -> None:
        """Record a reply of the cluster: later reports are logged again, unless they were logged moments
        ago.
        """
        if not self._kinds:  # called after every answer, so the common case takes no lock
            return
        now_s = self._clock.monotonic_s()
        with self._lock:
            self._kinds = {
                # A kind that was logged moments ago stays known, or a connection that comes and goes would
                # fill the log.
                text: one
                for text, one in self._kinds.items()
                if now_s - one.logged_s < REPEAT_S / 10
            }

    def debug(self, text: str) -> None:
        """Log one debug line of the library."""
        self._log.debug("%s: kafka client: %s", self._source, excerpt(text, TEXT_MAX))

    def once(self, level: int, text: str) -> None:
        """Log a line that follows from the settings: the first time only, also over later connections."""
        if text not in self._said:
            self._said.add(text)
            self.say(level, text)

    def say(self, level: int, text: str, late_s: float = 0.0) -> None:
        """Log one line, or count it if the same kind was logged recently."""
        # Shortened before matching, so the time is bounded as well.
        text = _PREFIX.sub("", excerpt(text, TEXT_MAX))
        now_s = self._clock.monotonic_s()
        with self._lock:
            kind = _VARIABLE.sub("", text)
            # All further kinds share one entry, so the memory is bounded.
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
        """The client properties that register these callbacks."""
        # The library only calls `log` of the object, so no `logging.Logger` is needed.
        return {"logger": self, "error_cb": self.error}

    def poll_of(self, client: Any) -> Callable[[], None]:
        """A function that polls the client, for a `ClientListener`."""

        def poll() -> None:
            client.poll(0)
            self.polled()

        return poll

    def polled(self) -> None:
        """Record a poll of the client: later lines happened after it."""
        self._polled_s = self._clock.monotonic_s()

    def log(self, level: int, text: str, *args: object) -> None:
        """As `logging.Logger.log`, at most at WARNING: an unreachable broker is no error of this process."""
        if level <= logging.DEBUG:  # only with the client property `debug`, which asks for every line
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
        """Stop polling."""
        self._stopping.set()
        # A thread cannot join itself, and a callback during a poll may close the client.
        if self._thread is not threading.current_thread():
            self._thread.join(LISTEN_EVERY_S * 10)

    def _run(self) -> None:
        while not self._stopping.wait(LISTEN_EVERY_S):
            for poll in self._polls:
                poll()
