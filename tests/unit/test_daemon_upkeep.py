"""When the daemon starts the vacuum again at once."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from archiver.daemon.operations import RUNS_MAX, Upkeep
from archiver.rewrite.compact import TopicCompaction
from archiver.runtime.errors import RetryLater
from reconcile.vacuum.report import CleanReport

NOTHING = SimpleNamespace(run_if_due=lambda: None)


def report(**said: Any) -> CleanReport:
    return CleanReport(False, 0, **said)


def runs_of(*reports: CleanReport) -> int:
    """The number of vacuum runs in one cycle of the schedule, given these reports. The last report repeats."""
    left = list(reports)
    seen: list[CleanReport] = []

    def run() -> CleanReport:
        seen.append(left.pop(0) if len(left) > 1 else left[0])
        return seen[-1]

    maintenance = SimpleNamespace(cleaning=lambda _: SimpleNamespace(run=run))
    application: Any = SimpleNamespace(maintenance=maintenance, checkpointer=NOTHING)
    cycles: Any = SimpleNamespace(run=lambda job, work: work() if job == "cleanup" else None)
    numbers: Any = SimpleNamespace(cleaned=lambda _: None)
    poller: Any = SimpleNamespace(set_oldest_required=lambda _: None)
    again: Any = SimpleNamespace()
    Upkeep(lambda: application, cycles, numbers, poller, again, nullcontext).clean_up()
    return len(seen)


def test_a_run_that_ended_at_a_limit_is_followed_by_another() -> None:
    """Otherwise a writer of five files a second would outrun 10,000 deletions every six hours."""
    assert runs_of(report(condemned=["a"])) == 1
    assert (
        runs_of(report(condemned=["a"], over=1), report(condemned=["b"], over=1), report(deleted=["c"])) == 3
    )
    assert runs_of(report(deleted=["a"], cut=True), report()) == 2
    assert runs_of(report(compacted=[TopicCompaction("t", merged=1, more=True)]), report()) == 2


@pytest.mark.parametrize(
    "stuck",
    [
        report(over=5),
        report(condemned=["a"], over=5, error=RetryLater("the store is away")),
        report(condemned=["a"], over=5, findings=["something"]),
        report(compacted=[TopicCompaction("t", why="because", more=True)]),
    ],
    ids=["it got nowhere", "it failed", "it found something", "nothing could be merged"],
)
def test_one_that_got_nowhere_is_not(stuck: CleanReport) -> None:
    assert runs_of(stuck) == 1


def test_it_ends_with_any_input() -> None:
    assert runs_of(report(deleted=["a"], over=1)) == RUNS_MAX
