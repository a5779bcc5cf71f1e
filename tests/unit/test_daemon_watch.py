"""The watch and the start: a dependency that does not answer is reported and delays nothing."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from archiver.daemon.resources import DENIED_S, Opening, Step
from archiver.daemon.watch import FollowUp, Question, Watch
from archiver.runtime.clock import ManualClock, SystemClock
from archiver.runtime.errors import Halt, NotPermitted, RetryLater
from archiver.status.journal import Journal

WAIT_S = 120.0


class Asked:
    """Dependencies whose answers a test chooses."""

    def __init__(self) -> None:
        self.questions: dict[str, Question] = {"metadata": lambda: None, "objects": lambda: None}

    def fails(self, name: str, error: Exception) -> None:
        def question() -> None:
            raise error

        self.questions[name] = question


@pytest.fixture
def asked() -> Asked:
    return Asked()


@pytest.fixture
def journal() -> Journal:
    return Journal(10)


@pytest.fixture
def watch(asked: Asked, journal: Journal) -> Iterator[Watch]:
    made = Watch(lambda: asked.questions, journal, SystemClock(), WAIT_S)
    yield made
    made.close()


@pytest.fixture
def hasty(asked: Asked, journal: Journal) -> Iterator[Watch]:
    """A watch that waits a second for answers."""
    made = Watch(lambda: asked.questions, journal, SystemClock(), 1.0)
    yield made
    made.close()


def failing(journal: Journal) -> dict[str, str]:
    return {check.name: check.why for check in journal.checks() if not check.ok}


def test_what_answers_is_fine(watch: Watch, journal: Journal) -> None:
    reported = watch.run()
    assert reported.idle
    assert (reported.outcome, failing(journal)) == ("fine", {})
    assert [check.name for check in journal.checks()] == ["metadata", "objects"]


def test_what_does_not_answer_is_noted_with_its_reason_until_it_does(
    watch: Watch, asked: Asked, journal: Journal
) -> None:
    asked.fails("objects", RetryLater("no route to host"))
    asked.fails("catalog local", ZeroDivisionError("oh"))
    reported = watch.run()
    assert reported.outcome == "untold"
    assert "objects does not answer: no route to host" in reported.line
    assert failing(journal) == {"objects": "no route to host", "catalog local": "ZeroDivisionError: oh"}
    since_us = {check.name: check.since_us for check in journal.checks()}
    watch.run()
    assert {check.name: check.since_us for check in journal.checks()} == since_us
    asked.questions |= {"objects": lambda: None, "catalog local": lambda: None}
    reported = watch.run()
    assert (reported.outcome, reported.idle, reported.line) == (
        "fine",
        False,
        "catalog local, objects answer again",
    )
    assert watch.run().idle
    assert failing(journal) == {}


def test_one_that_hangs_blocks_no_one_and_is_asked_by_one_thread(
    hasty: Watch, asked: Asked, journal: Journal
) -> None:
    release, asked_times = threading.Event(), []

    def hangs() -> None:
        asked_times.append(1)
        assert release.wait(WAIT_S)

    asked.questions |= {f"catalog {number}": hangs for number in range(5)}
    began_s = SystemClock().monotonic_s()
    for _ in range(3):
        hasty.run()
    assert SystemClock().monotonic_s() - began_s < 12, "one time-out for all of them"
    assert failing(journal) == {f"catalog {number}": "no answer within 1 s" for number in range(5)}
    assert len(asked_times) == 5, "not asked again before it has answered"
    release.set()
    until_s = SystemClock().monotonic_s() + WAIT_S
    while failing(journal) and SystemClock().monotonic_s() < until_s:
        hasty.run()
    assert failing(journal) == {}


def test_what_is_done_in_parallel_is_done_each_time(asked: Asked, journal: Journal) -> None:
    done: list[int] = []
    alongside = FollowUp("the work", lambda: done.append(1), WAIT_S, lambda: done.append(-1))
    watch = Watch(lambda: asked.questions, journal, SystemClock(), 1.0, alongside)
    watch.run()
    watch.run()
    watch.close()
    assert done == [1, 1]


def test_what_is_done_in_parallel_and_hangs_holds_up_no_question(asked: Asked, journal: Journal) -> None:
    """Each run of the watch reports that the work is late. None starts it again before it has ended."""
    release, begun, late = threading.Event(), [], []

    def hangs() -> None:
        begun.append(1)
        assert release.wait(WAIT_S)

    watch = Watch(
        lambda: asked.questions,
        journal,
        SystemClock(),
        1.0,
        FollowUp("the work", hangs, 0.1, lambda: late.append(1)),
    )
    asked.fails("objects", RetryLater("no route to host"))
    reported = [watch.run() for _ in range(3)]
    assert {one.line for one in reported} == {
        "objects does not answer: no route to host; the work has not ended within 0.1 s"
    }
    assert failing(journal) == {"objects": "no route to host"}
    assert (len(begun), len(late)) == (1, 3)
    release.set()
    until_s = SystemClock().monotonic_s() + WAIT_S
    while len(begun) == 1 and SystemClock().monotonic_s() < until_s:
        watch.run()
    assert len(begun) > 1
    watch.close()


def test_what_is_done_in_parallel_and_fails_is_an_error_of_that_poll(asked: Asked, journal: Journal) -> None:
    errors: list[Exception] = [Halt("an entry of an unknown version"), ZeroDivisionError("oh")]

    def fails() -> None:
        if errors:
            raise errors.pop(0)

    watch = Watch(
        lambda: asked.questions, journal, SystemClock(), 1.0, FollowUp("the work", fails, WAIT_S, fails)
    )
    with pytest.raises(Halt, match="unknown version"):
        watch.run()
    with pytest.raises(ZeroDivisionError):
        watch.run()
    assert watch.run().idle
    watch.close()


def test_however_often_it_looks_each_dependency_has_one_thread(watch: Watch) -> None:
    for _ in range(20):
        watch.run()
    names = sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("watch-"))
    assert names == ["watch-metadata", "watch-objects"]


def test_a_dependency_that_is_no_longer_used_is_asked_no_more(watch: Watch, asked: Asked) -> None:
    asked.questions["catalog old"] = lambda: None
    watch.run()
    del asked.questions["catalog old"]
    watch.run()
    assert not [thread for thread in threading.enumerate() if thread.name == "watch-catalog old"]


# the start


class Counting:
    """Steps that fail a given number of times."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.undone = 0

    def take(self) -> None:
        if self.errors:
            raise self.errors.pop(0)

    def undo(self) -> None:
        self.undone += 1


def test_the_start_waits_for_everything_and_says_a_reason_once(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    steps = Counting(*[RetryLater("not mounted")] * 3, Halt("another cluster's"), ZeroDivisionError("oh"))
    opening = Opening(
        [Step("objects", lambda: None), Step("metadata", steps.take)],
        steps.undo,
        journal,
        ManualClock(),
        0.01,
    )
    with caplog.at_level(logging.INFO):
        assert opening.run(threading.Event())
    assert [record.getMessage() for record in caplog.records] == [
        "waiting for metadata: not mounted",
        "waiting for metadata: another cluster's",
        "waiting for metadata: an unexpected error: ZeroDivisionError: oh",
        "what was missing at the start is there",
    ]
    assert steps.undone == 5
    assert failing(journal) == {}


def test_the_start_that_fails_is_a_check_that_fails(journal: Journal) -> None:
    stop = threading.Event()

    def take() -> None:
        stop.set()
        raise RetryLater("not mounted")

    assert not Opening(
        [Step("objects", lambda: None), Step("metadata", take)], lambda: None, journal, ManualClock(), 60
    ).run(stop)
    assert failing(journal) == {"metadata": "not mounted"}
    assert not journal.ready


def test_a_start_that_may_not_write_ends_once_that_has_lasted(journal: Journal) -> None:
    denied = NotPermitted("may not write")
    clock = ManualClock()
    stop = Unhurried()
    steps = Counting(*[denied] * 10)
    with pytest.raises(NotPermitted, match="may not write"):
        Opening([Step("objects", steps.take)], steps.undo, journal, clock, 60).run(stop)
    assert sum(stop.waited) >= DENIED_S > sum(stop.waited[:-1]), (
        "not at once: what prepares a volume may be at work"
    )
    assert failing(journal) == {"objects": "may not write"}
    steps = Counting(denied, denied, RetryLater("not mounted"), denied, denied)
    assert Opening([Step("objects", steps.take)], steps.undo, journal, clock, 60).run(Unhurried())


class Unhurried(threading.Event):
    """An event whose `wait` returns at once."""

    def __init__(self) -> None:
        super().__init__()
        self.waited: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waited.append(timeout or 0.0)
        return False


def test_a_start_that_needs_nothing_says_nothing(journal: Journal, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert Opening([], lambda: None, journal, ManualClock(), 60).run(threading.Event())
    assert not caplog.records


def test_what_is_asked_no_more_is_no_check_any_more(watch: Watch, asked: Asked, journal: Journal) -> None:
    asked.fails("spark", RetryLater("it hangs"))
    watch.run()
    assert failing(journal) == {"spark": "it hangs"}
    del asked.questions["spark"]
    watch.run()
    assert [check.name for check in journal.checks()] == ["metadata", "objects"]


def test_a_check_that_is_not_required_leaves_the_daemon_ready(journal: Journal) -> None:
    journal.becomes("serving")
    journal.checked("Kafka port", "another program has it", 1, required=False)
    assert failing(journal) == {"Kafka port": "another program has it"}
    assert journal.ready
    journal.checked("metadata", "not mounted", 2)
    assert not journal.ready
