"""Job `tick`: one archiving round of due topics.

Keeps when each topic was checked and its newest report, so that a stuck topic stays in the documents of later
rounds. None of it must survive a restart.
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
from archiver.refine.triggers import PollState
from archiver.runtime.clock import Clock
from archiver.runtime.errors import Deposed, LeaseHeld, RetryLater

_log = logging.getLogger(__name__)


class Pace:
    """Detects a round without progress. Safe for several threads; rounds overlap while one waits for its
    turn.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._running = 0
        self._moved_s = 0.0

    @contextmanager
    def round(self) -> Iterator[Callable[[str], None]]:
        """Context of one round; yields the function that takes its lines of progress."""
        self._moves(1)
        try:
            yield self._line
        finally:
            self._moves(-1)

    def check(self, silence_max_s: float) -> None:
        """Raise `RetryLater` if a round runs and no round reported progress for `silence_max_s`."""
        with self._lock:
            silent_s = self._clock.monotonic_s() - self._moved_s
            if self._running and silent_s > silence_max_s:
                raise RetryLater(
                    f"the round under way has made no progress for {silent_s:,.0f} s; see the checks and "
                    "the log for what it waits for"
                )

    def _line(self, line: str) -> None:
        self._moves(0)
        _log.debug("%s", line)  # the summary of the job has its own line

    def _moves(self, begun: int) -> None:
        with self._lock:
            self._running += begun
            self._moved_s = self._clock.monotonic_s()


class Tick:
    """Archives due topics. Safe for several threads; scheduled and requested rounds wait for each other."""

    def __init__(
        self, archive: Callable[[PollState], ArchiveReport], settings: Callable[[], Settings]
    ) -> None:
        """`archive` runs a round; `settings` returns the configuration in force."""
        self._archive = archive
        self._settings = settings
        self._commits_s = 0.0
        """Total time of the commits of the last scheduled round."""
        self._polls = PollState()
        self._reports: dict[str, TopicReport] = {}
        self._lock = threading.Lock()

    def run(self) -> Summary:
        """Run one round. Raises as `ArchiveRun.run`."""
        with self._lock:
            polls = self._polls
        try:
            report = self._archive(polls)
            self._commits_s = sum(tried.seconds for tried in report.commits)
            return self.note(report)
        except (LeaseHeld, Deposed):
            self.forget()  # the new leader changes the state that the reports describe
            raise

    def note(self, report: ArchiveReport) -> Summary:
        """Record the report of a scheduled or requested round; topics that it did not check keep their last
        one.
        """
        topics = [topic.name for topic in self._settings().topics]
        with self._lock:
            self._reports |= report.topics
            known = [self._reports[name] for name in sorted(topics) if name in self._reports]
        return summarize_archiving(report, known)

    def stuck(self) -> dict[str, str]:
        """Why the newest round halted or deferred a topic, by topic."""
        with self._lock:
            return {
                name: item.why or item.state
                for name, item in self._reports.items()
                if item.state in ("halted", "deferred")
            }

    def notes(self) -> list[str]:
        """Notes for the operator on topics that continue."""
        return [*self._slow_commits(), *self._of_topics()]

    def _slow_commits(self) -> list[str]:
        """Note that commits take longer than a tick: each round waits for the commits of the last one."""
        tick_s, took_s = self._settings().archive.tick, self._commits_s
        if took_s <= tick_s:
            return []
        note = (
            f"the commits of the last round took {took_s:,.0f} s, longer than archive.tick = "
            f"{tick_s:g} s: no table gets the next one "
            "sooner; longer archive delays (complete_delay_max) make fewer and larger commits"
        )
        return [note]

    def _of_topics(self) -> list[str]:
        with self._lock:
            return [
                f"topic {name}: {note}"
                for name, item in sorted(self._reports.items())
                for note in dict.fromkeys(item.notes)
            ]

    def forget(self) -> None:
        """After a change of configuration or leader: the next round checks every topic."""
        with self._lock:
            self._polls = PollState()
            self._reports.clear()
            self._commits_s = 0.0
