"""The schedule: one run at a time, no request is lost, no job delays another."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from apscheduler.events import EVENT_JOB_MAX_INSTANCES, EVENT_JOB_SUBMITTED
from apscheduler.executors.pool import ThreadPoolExecutor

from archiver.daemon.schedule import Schedule, ScheduledJob, _Run
from archiver.runtime.clock import SystemClock

WAIT_S = 120.0
LONG_S = 3600.0


class Counted:
    """A job that counts its runs. A test can block one run."""

    def __init__(self, count_to: int = 1, held: bool = False) -> None:
        self.runs = 0
        self.most_at_once = 0
        self.reached = threading.Event()
        self.go_on = threading.Event()
        self._now = 0
        self._count_to = count_to
        self._lock = threading.Lock()
        if not held:
            self.go_on.set()

    def __call__(self) -> None:
        with self._lock:
            self._now += 1
            self.runs += 1
            self.most_at_once = max(self.most_at_once, self._now)
            if self.runs == self._count_to:
                self.reached.set()
        assert self.go_on.wait(WAIT_S)
        with self._lock:
            self._now -= 1


@contextmanager
def scheduled(*jobs: ScheduledJob) -> Iterator[Schedule]:
    schedule = Schedule(jobs, SystemClock())
    schedule.start()
    try:
        yield schedule
    finally:
        schedule.stop()
        assert schedule.wait(WAIT_S)


def test_a_job_runs_again_and_again() -> None:
    job = Counted(count_to=3)
    with scheduled(ScheduledJob("tick", 0.05, job)) as schedule:
        assert job.reached.wait(WAIT_S)
        assert schedule.alive


def test_a_job_that_takes_long_never_runs_twice_at_a_time(caplog: pytest.LogCaptureFixture) -> None:
    slow, other = Counted(held=True), Counted(count_to=10)
    with (
        caplog.at_level(logging.WARNING),
        scheduled(ScheduledJob("tick", 0.05, slow), ScheduledJob("watch", 0.05, other)) as schedule,
    ):
        assert other.reached.wait(WAIT_S), "others go on"
        assert slow.runs == 1
        assert "tick" in schedule.busy
        slow.go_on.set()
    assert slow.most_at_once == other.most_at_once == 1
    assert not caplog.records, "it needs no log line"


def test_what_was_missed_is_made_up_for_by_one_run() -> None:
    slow, other = Counted(held=True), Counted(count_to=20)
    with scheduled(ScheduledJob("tick", 0.5, slow), ScheduledJob("watch", 0.1, other)):
        assert other.reached.wait(WAIT_S), "two seconds: the other should have run four times"
        slow.go_on.set()
        assert slow.runs <= 2


def test_a_job_can_be_asked_to_run_soon() -> None:
    job = Counted()
    with scheduled(ScheduledJob("cleanup", LONG_S, job, first_s=LONG_S)) as schedule:
        assert not job.reached.wait(0.2)
        schedule.soon("cleanup")
        assert job.reached.wait(WAIT_S)
        schedule.soon("nothing of that name")


def test_one_that_runs_already_runs_once_more() -> None:
    job = Counted(count_to=2, held=True)
    with scheduled(ScheduledJob("cleanup", LONG_S, job)) as schedule:
        wait_for(lambda: job.runs == 1)
        for _ in range(5):
            schedule.soon("cleanup")
        job.go_on.set()
        assert job.reached.wait(WAIT_S)
        assert schedule.wait(WAIT_S)
        assert job.runs == 2


def test_what_was_asked_for_is_not_forgotten_if_asked_again_as_the_run_ends() -> None:
    """A job without an interval runs only on request."""
    runs = 0

    def job() -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            assert run.again()

    run = _Run(ScheduledJob("reconcile", None, job))
    asking: list[threading.Thread] = []

    class Ended(threading.Event):
        def set(self) -> None:
            super().set()
            if runs == 1:
                asking.append(threading.Thread(target=run.again))
                asking[0].start()
                asking[0].join(0.2)

    run.idle = Ended()
    run.once()
    asking[0].join(WAIT_S)
    assert runs >= 2, "three if the second one had begun when it was asked again"


def test_a_request_between_the_end_of_a_run_and_its_release_by_apscheduler_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """apscheduler skips a run until it has counted the previous one as done."""
    job, skipped = Counted(count_to=2, held=True), threading.Event()
    release = ThreadPoolExecutor._run_job_success

    def request_first(executor: ThreadPoolExecutor, *ended: object) -> None:
        if not skipped.is_set():
            schedule.soon("reconcile")
            assert skipped.wait(WAIT_S)
        release(executor, *ended)

    monkeypatch.setattr(ThreadPoolExecutor, "_run_job_success", request_first)
    with scheduled(ScheduledJob("reconcile", None, job)) as schedule:
        # Before the submission is complete, the scheduler's own thread would release the run.
        schedule._scheduler.add_listener(lambda _: job.go_on.set(), EVENT_JOB_SUBMITTED)
        schedule._scheduler.add_listener(lambda _: skipped.set(), EVENT_JOB_MAX_INSTANCES)
        schedule.soon("reconcile")
        assert skipped.wait(WAIT_S)
        assert job.reached.wait(WAIT_S), "the request is lost"
    assert job.runs == 2
    assert job.most_at_once == 1


def test_an_interval_can_be_changed() -> None:
    before, running = Counted(count_to=2), Counted(count_to=2)
    schedule = Schedule(
        [ScheduledJob("early", LONG_S, before), ScheduledJob("late", LONG_S, running)], SystemClock()
    )
    schedule.every("early", 0.05)
    schedule.start()
    schedule.every("late", 0.05)
    schedule.every("nothing of that name", 1.0)
    assert before.reached.wait(WAIT_S)
    assert running.reached.wait(WAIT_S)
    schedule.stop()
    assert schedule.wait(WAIT_S)


def test_when_each_job_runs_next_is_known() -> None:
    job, begun, held = Counted(), threading.Event(), threading.Event()

    def busy() -> None:
        begun.set()
        held.wait(WAIT_S)

    jobs = (
        ScheduledJob("later", LONG_S, job, first_s=60.0),
        ScheduledJob("busy", LONG_S, busy),
        ScheduledJob("asked", None, job),
    )
    assert Schedule(jobs, SystemClock()).due_us() == {}, "not before the start"
    with scheduled(*jobs) as schedule:
        assert begun.wait(WAIT_S)
        due = schedule.due_us()
        assert due.keys() == {"later", "busy"}, "a job without interval has no time"
        assert due["busy"] is None, "it runs now"
        assert due["later"] is not None
        assert 30e6 < due["later"] - SystemClock().now_us() <= 60e6
        held.set()
    assert schedule.due_us() == {}


def test_stopping_starts_nothing_more_and_waits_within_its_bound() -> None:
    job = Counted(held=True)
    schedule = Schedule([ScheduledJob("tick", 0.05, job)], SystemClock())
    schedule.start()
    wait_for(lambda: job.runs == 1)
    schedule.soon("tick")
    schedule.stop()
    schedule.stop()
    assert not schedule.wait(0.1)
    assert schedule.alive, "it was stopped on purpose"
    job.go_on.set()
    assert schedule.wait(WAIT_S)
    schedule.soon("tick")
    schedule.every("tick", 0.01)
    assert job.runs == 1, "also not the run that was requested in between"


def test_it_is_alive_before_its_start_and_not_when_its_thread_has_ended() -> None:
    schedule = Schedule([ScheduledJob("tick", LONG_S, Counted())], SystemClock())
    assert schedule.alive
    schedule.soon("tick")
    schedule.start()
    schedule._scheduler.shutdown(wait=True)
    schedule._thread.join(WAIT_S)
    ended = schedule.alive
    assert not ended


def test_a_scheduler_that_starts_nothing_is_not_alive() -> None:
    class Late(SystemClock):
        ahead_s = 0.0

        def now_us(self) -> int:
            return super().now_us() + round(self.ahead_s * 1e6)

    clock = Late()
    schedule = Schedule([ScheduledJob("tick", LONG_S, Counted())], clock)
    schedule.start()
    clock.ahead_s = LONG_S
    assert schedule.alive, "due, but not for long"
    clock.ahead_s = LONG_S + 120
    stuck = not schedule.alive
    assert stuck, "a job is overdue for two minutes"
    schedule.stop()
    assert schedule.wait(WAIT_S)


def wait_for(holds: object) -> None:
    clock = SystemClock()
    until_s = clock.monotonic_s() + WAIT_S
    while not holds():  # type: ignore[operator]
        assert clock.monotonic_s() < until_s
        clock.sleep(0.01)
