"""Schedule of the daemon's jobs; the only module that uses apscheduler.

A job never runs twice at a time. One run makes up for all missed runs. Times are UTC, and intervals count
from start to start.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_EXECUTED, JobExecutionEvent
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.blocking import BlockingScheduler

from archiver.runtime.clock import Clock

OVERDUE_S = 60.0
"""The scheduler is stuck if it did not try to start a job for this time after it was due."""
UNASKED_S = 100 * 365 * 86400.0
"""Interval of a job that only runs on request: 100 years."""


@dataclass(frozen=True)
class ScheduledJob:
    """A job with its times."""

    name: str
    interval_s: float | None
    """Seconds from start to start; None: it runs only on request (`Schedule.soon`)."""
    run: Callable[[], object]
    """One run; must not raise."""
    first_s: float = 0.0
    """Seconds from the start of the schedule to the first run, limited to the interval."""


class Schedule:
    """Runs the jobs until it is stopped. Safe for several threads."""

    def __init__(self, jobs: Sequence[ScheduledJob], clock: Clock) -> None:
        # apscheduler warns when a run is still active at the next due time; jobs log their duration
        # themselves.
        logging.getLogger("apscheduler").setLevel(logging.ERROR)
        self._clock = clock
        self._runs = {job.name: _Run(job) for job in jobs}
        self._intervals = {job.name: job.interval_s for job in jobs}
        self._scheduler = BlockingScheduler(
            # One thread per job: a long cleaning must not delay a tick or the watch.
            executors={"default": ThreadPoolExecutor(max(1, len(jobs)))},
            # One run for all missed ones, never two at a time, and a late run is not dropped.
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
            # Otherwise apscheduler needs the local time zone, and a change of daylight saving shifts runs.
            timezone=UTC,
        )
        self._scheduler.add_listener(self._released, EVENT_JOB_EXECUTED | EVENT_JOB_ERROR)
        self._thread = threading.Thread(target=self._scheduler.start, name="schedule", daemon=True)
        self._stopped = False

    def start(self) -> None:
        """Start; the first run of each job comes after its `first_s`."""
        now = self._now()
        for run in self._runs.values():
            job, interval_s = run.job, self._intervals[run.job.name]
            # None pauses the job in apscheduler until `soon` sets a time.
            first = None if interval_s is None else now + timedelta(seconds=min(job.first_s, interval_s))
            seconds = UNASKED_S if interval_s is None else interval_s
            self._scheduler.add_job(
                run.once, "interval", seconds=seconds, id=job.name, name=job.name, next_run_time=first
            )
        self._thread.start()

    def soon(self, name: str) -> None:
        """Run the job at once, or once more after its current run. Ignores a name without a job."""
        run = self._runs.get(name)
        # `again` under the lock of the run: it repeats, or it has ended and is scheduled here. If apscheduler
        # still counts it as running, `_released` schedules it.
        if run is None or self._stopped or self._thread.ident is None or run.again():
            return
        self._submit(name)

    def _released(self, event: JobExecutionEvent) -> None:
        # apscheduler skips a run until it has counted the previous one as done, which is after `_Run.once`.
        # A request in between is submitted here.
        if self._runs[event.job_id].requested and not self._stopped:
            self._submit(event.job_id)

    def _submit(self, name: str) -> None:
        try:
            self._scheduler.modify_job(name, next_run_time=self._now())
        except JobLookupError:
            return  # the schedule was stopped

    def every(self, name: str, interval_s: float) -> None:
        """Change the interval of the job. Ignores a name without a job."""
        # A reload names the jobs of all roles. A job without interval runs only on request.
        if self._intervals.get(name) is None or self._stopped:
            return
        self._intervals[name] = interval_s
        if self._thread.ident is None:
            return
        try:
            self._scheduler.reschedule_job(name, trigger="interval", seconds=interval_s)
        except JobLookupError:
            return

    def due_us(self) -> dict[str, int | None]:
        """Wall time of the next run of each job with an interval; None if it runs now. Empty while the
        schedule does not run.
        """
        if self._stopped or self._thread.ident is None:
            return {}
        times = {job.name: job.next_run_time for job in self._scheduler.get_jobs()}
        return {
            name: None if self._runs[name].running else round(time.timestamp() * 1e6)
            for name, time in times.items()
            if time is not None and self._intervals[name] is not None
        }

    @property
    def alive(self) -> bool:
        """Whether jobs start when they are due; true also before the start and after a stop."""
        if self._stopped or self._thread.ident is None:
            return True
        # apscheduler moves the due time when it submits a job, so an old due time means that it is stuck.
        latest = self._now() - timedelta(seconds=OVERDUE_S)
        due = (job.next_run_time for job in self._scheduler.get_jobs())
        return self._thread.is_alive() and not any(time is not None and time < latest for time in due)

    @property
    def busy(self) -> list[str]:
        """Names of the jobs that run now."""
        return [name for name, run in self._runs.items() if run.running]

    def stop(self) -> None:
        """Start no further run; current runs continue, see `wait`. May be called twice."""
        if self._stopped:
            return
        self._stopped = True
        # First the runs: a job that apscheduler submits at this moment must not begin.
        for run in self._runs.values():
            run.end()
        if self._scheduler.running:
            # Without waiting: `wait` has a time limit, the scheduler has none.
            self._scheduler.shutdown(wait=False)

    def wait(self, timeout_s: float) -> bool:
        """Wait until no job runs; False if that takes longer."""
        deadline_s = self._clock.monotonic_s() + timeout_s
        return all(
            run.idle.wait(max(0.0, deadline_s - self._clock.monotonic_s())) for run in self._runs.values()
        )

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.now_us() / 1e6, UTC)


class _Run:
    """State of one job: whether it runs, and whether a run was requested since the last one began."""

    def __init__(self, job: ScheduledJob) -> None:
        self.job = job
        self.idle = threading.Event()
        self.idle.set()
        self._lock = threading.Lock()
        self._again = False
        self._ended = False

    @property
    def running(self) -> bool:
        return not self.idle.is_set()

    @property
    def requested(self) -> bool:
        """Whether a run was requested that has not begun."""
        with self._lock:
            return self._again

    def again(self) -> bool:
        """Request one run, after the current one if it is active; False if none is active."""
        with self._lock:
            # Read and set under one lock: the run cannot end in between and lose the request.
            self._again = True
            return self.running

    def end(self) -> None:
        """Let no further run begin."""
        with self._lock:
            self._ended = True

    def once(self) -> None:
        """Run, and repeat while further runs are requested."""
        while self._begins():
            try:
                self.job.run()
            finally:
                once_more = self._ends()
            if not once_more:
                return

    def _begins(self) -> bool:
        with self._lock:
            # What was requested before the begin is served by this run.
            self._again = False
            if self._ended:
                return False
            self.idle.clear()
            return True

    def _ends(self) -> bool:
        """End the run; whether one more was requested."""
        with self._lock:
            # Both under one lock: a request between the two steps would be lost.
            self.idle.set()
            return self._again
