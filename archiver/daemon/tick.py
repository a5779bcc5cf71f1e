"""The tick: one archiving round of what is due.

Owns what a round needs to know of the ones before it, which is nothing that must survive: when each topic was
looked at, and the newest report of each, so that a topic that is stuck stays in the document of the ticks
that did not look at it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from archiver.config.settings import Settings
from archiver.daemon.cycles import Summary
from archiver.daemon.summaries import summarize_archiving
from archiver.publish.report import ArchiveReport, TopicReport
from archiver.refine.schedule import PollState
from archiver.runtime.clock import Clock
from archiver.runtime.errors import Deposed, LeaseHeld, RetryLater

_log = logging.getLogger(__name__)


class Pace:
    """Notices a round that makes no progress. Safe for several threads; rounds may overlap, while one waits
    for its turn.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._under_way = 0
        self._moved_s = 0.0

    @contextmanager
    def round(self) -> Iterator[Callable[[str], None]]:
        """A round; gives what takes its lines of progress."""
        self._moves(1)
        try:
            yield self._line
        finally:
            self._moves(-1)

    def check(self, silence_max_s: float) -> None:
        """Raise `RetryLater` if a round is under way and nothing was heard of one for so long."""
        with self._lock:
            silent_s = self._clock.monotonic_s() - self._moved_s
            if self._under_way and silent_s > silence_max_s:
                raise RetryLater(
                    f"the round under way has made no progress for {silent_s:,.0f} s; the checks and "
                    "the log may say on what"
                )

    def _line(self, line: str) -> None:
        self._moves(0)
        _log.debug("%s", line)  # at the end the job says in one line what it came to

    def _moves(self, begun: int) -> None:
        with self._lock:
            self._under_way += begun
            self._moved_s = self._clock.monotonic_s()


class Tick:
    """Archives what is due. Safe for several threads; a round of its own and one that was asked for wait for
    each other.
    """

    def __init__(
        self, archive: Callable[[PollState], ArchiveReport], settings: Callable[[], Settings]
    ) -> None:
        """`archive` carries out a round; `settings` is the configuration as it is now."""
        self._archive = archive
        self._settings = settings
        self._commits_s = 0.0
        """What the commits of the last round of its own took together."""
        self._looks = PollState()
        self._reports: dict[str, TopicReport] = {}
        self._lock = threading.Lock()

    def run(self) -> Summary:
        """One tick. Raises as `ArchiveRun.run`."""
        with self._lock:
            looks = self._looks
        try:
            report = self._archive(looks)
            self._commits_s = sum(tried.seconds for tried in report.commits)
            return self.note(report)
        except (LeaseHeld, Deposed):
            self.forget()  # whoever leads knows better from here on
            raise

    def note(self, report: ArchiveReport) -> Summary:
        """What a run did, this one or one that was asked for; the topics it did not look at keep their last
        report.
        """
        topics = [topic.name for topic in self._settings().topics]
        with self._lock:
            self._reports |= report.topics
            known = [self._reports[name] for name in sorted(topics) if name in self._reports]
        return summarize_archiving(report, known)

    def stuck(self) -> dict[str, str]:
        """Per topic that its newest round left halted or deferred, why."""
        with self._lock:
            return {
                name: item.why or item.state
                for name, item in self._reports.items()
                if item.state in ("halted", "deferred")
            }

    def notes(self) -> list[str]:
        """What an operator should know of topics that go on all the same."""
        return [*self._outgrown(), *self._of_topics()]

    def _outgrown(self) -> list[str]:
        """Rounds follow each other, so each waits for the commits of the last one: delays grow by themselves,
        and here it is said.
        """
        tick_s, took_s = self._settings().archive.tick, self._commits_s
        if took_s <= tick_s:
            return []
        told = (
            f"the commits of the last round took {took_s:,.0f} s, longer than archive.tick = "
            f"{tick_s:g} s: no table gets the next one "
            "sooner; longer archive delays (complete_delay_max) make fewer and larger commits"
        )
        return [told]

    def _of_topics(self) -> list[str]:
        with self._lock:
            return [
                f"topic {name}: {note}"
                for name, item in sorted(self._reports.items())
                for note in dict.fromkeys(item.notes)
            ]

    def forget(self) -> None:
        """The configuration or the leader has changed: the next tick looks at every topic."""
        with self._lock:
            self._looks = PollState()
            self._reports.clear()
            self._commits_s = 0.0
