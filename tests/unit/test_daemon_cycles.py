"""The head of every job writes one line and one journal entry, and no error ends the daemon."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NoReturn

import pytest

from archiver.daemon.cycles import REPEAT_S, Cycles, Summary
from archiver.runtime.clock import ManualClock
from archiver.runtime.errors import (
    ConfigInvalid,
    Deposed,
    Halt,
    InvalidInput,
    LeaseHeld,
    NotFound,
    OutcomeUnknown,
    RetryLater,
)
from archiver.status.journal import Journal, Outcome


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def journal() -> Journal:
    return Journal(100)


@pytest.fixture
def cycles(journal: Journal, clock: ManualClock) -> Cycles:
    return Cycles(journal, clock)


def levels(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    found = [(record.levelno, record.getMessage()) for record in caplog.records]
    caplog.clear()
    return found


def raising(error: Exception) -> Callable[[], Summary]:
    def work() -> NoReturn:
        raise error

    return work


def test_what_was_done_is_one_line_and_one_cycle(
    cycles: Cycles, journal: Journal, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    def work() -> Summary:
        clock.advance(1.5)
        return Summary("fine", "7 records archived", {"rounds": 1})

    with caplog.at_level(logging.DEBUG):
        began_us = clock.now_us()
        cycles.run("tick", work)
    assert levels(caplog) == [(logging.INFO, "tick: 7 records archived")]
    (cycle,) = journal.cycles()
    assert (cycle.job, cycle.began_us, cycle.seconds, cycle.outcome) == ("tick", began_us, 1.5, "fine")
    newest = journal.newest("tick")
    assert newest is not None
    assert (cycle.line, newest.document) == ("7 records archived", {"rounds": 1})


def test_idle_is_no_line_for_people(
    cycles: Cycles, journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        cycles.run("tick", lambda: Summary("fine", "nothing was due", idle=True))
    assert levels(caplog) == [(logging.DEBUG, "tick: nothing was due")]
    assert journal.counts() == {("tick", "fine"): 1}


@pytest.mark.parametrize(
    ("error", "outcome", "level", "line"),
    [
        (LeaseHeld("host:7"), "skipped", logging.INFO, "tick: host:7 leads"),
        (RetryLater("the disk is full"), "untold", logging.WARNING, "tick: the disk is full"),
        (OutcomeUnknown("no answer"), "untold", logging.WARNING, "tick: no answer"),
        (Deposed("step down"), "untold", logging.WARNING, "tick: step down"),
        (Halt("no java"), "wrong", logging.ERROR, "tick: no java"),
        (ConfigInvalid("no catalog"), "wrong", logging.ERROR, "tick: no catalog"),
        (
            ZeroDivisionError("oh"),
            "wrong",
            logging.ERROR,
            "tick: an unexpected error: ZeroDivisionError: oh",
        ),
    ],
)
def test_an_error_is_classified_by_what_must_be_done_next(
    error: Exception,
    outcome: Outcome,
    level: int,
    line: str,
    cycles: Cycles,
    journal: Journal,
    clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG):
        cycles.run("tick", raising(error))
        assert (caplog.records[0].exc_info is not None) == isinstance(error, ZeroDivisionError), (
            "a traceback for an unexpected error"
        )
        assert levels(caplog) == [(level, line)]
        for _ in range(5):
            cycles.run("tick", raising(error))
        assert levels(caplog) == [(logging.DEBUG, line)] * 5, "said once"
        clock.advance(REPEAT_S)
        cycles.run("tick", raising(error))
        assert levels(caplog) == [(level, line)], "and once an hour"
    assert journal.counts() == {("tick", outcome): 7}


def test_a_new_reason_is_said_at_once_and_so_is_an_old_one_that_is_back(
    cycles: Cycles, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        cycles.run("tick", raising(RetryLater("one")))
        cycles.run("audit", raising(RetryLater("one")))
        cycles.run("tick", raising(RetryLater("two")))
        cycles.run("tick", raising(RetryLater("two")))
        cycles.run("tick", lambda: Summary("fine", "archived"))
        cycles.run("tick", raising(RetryLater("two")))
    assert [line for _, line in levels(caplog)] == [
        "tick: one",
        "audit: one",
        "tick: two",
        "tick: archived",
        "tick: two",
    ]


def test_the_caller_gets_the_error_and_it_is_noted_all_the_same(cycles: Cycles, journal: Journal) -> None:
    with pytest.raises(RetryLater, match="later"):
        cycles.attempt("audit", raising(RetryLater("later")))
    newest = journal.newest("audit")
    assert newest is not None
    assert newest.outcome == "untold"


@pytest.mark.parametrize(
    ("error", "noted"),
    [(NotFound("no topic"), 0), (InvalidInput("no scope"), 0), (ConfigInvalid("no catalog"), 1)],
)
def test_what_was_asked_wrongly_is_no_cycle_of_the_daemon(
    error: Exception, noted: int, cycles: Cycles, journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO), pytest.raises(type(error)):
        cycles.attempt("tick", raising(error), asked=True)
    assert len(journal.cycles()) == noted
    assert [level for level, _ in levels(caplog)] == [logging.ERROR if noted else logging.INFO]
    with pytest.raises(type(error)):
        cycles.attempt("tick", raising(error))
    assert len(journal.cycles()) == noted + 1, "the daemon's own"
