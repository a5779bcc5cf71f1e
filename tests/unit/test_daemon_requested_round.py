"""A requested round reports commits and silence as a scheduled one does."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from archiver.daemon.cycles import Cycles
from archiver.daemon.operations import Backoff, DaemonOperations, Pace, Tick
from archiver.publish.report import ArchiveReport, CommitEnd, CommitTry
from archiver.runtime.clock import ManualClock
from archiver.runtime.errors import RetryLater
from archiver.runtime.exit_codes import Done
from archiver.status.journal import Journal

FIRST_S, LONGEST_S = 30.0, 100.0
SILENCE_S = 10.0


class Requested:
    """A daemon whose requested rounds try one commit with the result `end`."""

    def __init__(self, end: CommitEnd | None, during: Callable[[], None] = lambda: None) -> None:
        self.clock = ManualClock(0)
        self.backoff = Backoff(self.clock, lambda: FIRST_S, lambda: LONGEST_S)
        self.pace = Pace(self.clock)
        self.lines: list[str] = []
        self.receive: Callable[[str], None] = self.lines.append
        self._end = end
        self._during = during

    def archive(self, topic: str | None = None) -> Done:
        application: Any = SimpleNamespace(archiving=SimpleNamespace(round=self._round))
        settings: Any = SimpleNamespace(topics=[])
        numbers: Any = SimpleNamespace(archived=lambda _: None)
        unused: Any = None
        journal = Journal(10)
        operations = DaemonOperations(
            lambda: application,
            unused,
            unused,
            unused,
            unused,
            frozenset({"archive"}),
            Cycles(journal, self.clock),
            Tick(unused, lambda: settings),
            numbers,
            journal,
            self.pace,
            self.backoff,
        )
        return operations.archive(topic, False, self.receive)

    def _round(self, progress: Callable[[str], None]) -> Any:
        report = ArchiveReport()

        def run(_: object, *, everything: bool) -> ArchiveReport:
            if self._end is not None:
                report.commits.append(CommitTry("t", 1.0, 1, self._end))
            self._during()
            progress("committed")
            return report

        return SimpleNamespace(run=run, report=report)

    def retries(self) -> bool:
        """Whether a reconciliation is due after the first wait."""
        self.clock.advance(FIRST_S)
        return self.backoff.due()


def fail() -> None:
    raise RetryLater("the catalog is away")


@pytest.mark.parametrize("end", ["retry", "unknown", "halted"])
def test_a_failed_commit_of_a_requested_round_schedules_a_reconciliation(end: CommitEnd) -> None:
    daemon = Requested(end)
    daemon.archive()
    assert daemon.retries()


def test_a_failed_commit_counts_also_if_the_round_raises() -> None:
    daemon = Requested("unknown", fail)
    with pytest.raises(RetryLater, match="away"):
        daemon.archive()
    assert daemon.retries()


@pytest.mark.parametrize(("end", "retries"), [("committed", False), (None, True)])
def test_only_a_commit_that_succeeded_cancels_the_reconciliation(
    end: CommitEnd | None, retries: bool
) -> None:
    daemon = Requested(end)
    daemon.backoff.failed()
    daemon.archive()
    assert daemon.retries() == retries


def test_a_requested_round_without_progress_is_detected() -> None:
    def hang() -> None:
        daemon.clock.advance(SILENCE_S + 1)
        daemon.pace.check(SILENCE_S)

    daemon = Requested(None, hang)
    with pytest.raises(RetryLater, match="no progress for 11 s"):
        daemon.archive()
    daemon.pace.check(SILENCE_S)


def test_the_caller_and_the_silence_check_both_receive_the_progress() -> None:
    daemon = Requested(None)
    receive = daemon.lines.append

    def receive_and_check(line: str) -> None:
        receive(line)
        # Within the round: its end counts as progress too.
        daemon.pace.check(SILENCE_S)

    daemon.receive = receive_and_check
    with daemon.pace.round():
        daemon.clock.advance(SILENCE_S + 1)
        daemon.archive()
    assert daemon.lines == ["committed"]


def test_a_round_of_one_topic_cancels_no_reconciliation() -> None:
    daemon = Requested("committed")
    daemon.backoff.failed()
    daemon.archive("t")
    assert daemon.retries(), "another topic's commit may have failed"


def test_a_requested_round_that_waits_in_vain_does_not_hide_a_hanging_one() -> None:
    daemon = Requested(None, fail)
    with daemon.pace.round():
        daemon.clock.advance(SILENCE_S + 1)
        with pytest.raises(RetryLater, match="away"):
            daemon.archive()
        with pytest.raises(RetryLater, match="no progress"):
            daemon.pace.check(SILENCE_S)
