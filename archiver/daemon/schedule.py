"""When the daemon's jobs run: the only place that knows apscheduler.

Owns the times and nothing else; a job keeps what it must know in the logs. Promises that a job never runs
twice at a time, that runs which were missed are made up for by one, however late it is, and that stopping
waits no longer than it is told to. All times are UTC, and an interval is counted from start to start.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.blocking import BlockingScheduler

from archiver.runtime.clock import Clock

OVERDUE_S = 60.0
"""A scheduler that has not even tried to start a job so long after its time is stuck."""
UNASKED_S = 100 * 365 * 86400.0
"""When a job without an interval would run again, if nobody asked for it."""


@dataclass(frozen=True)
class ScheduledJob:
    """A job and its times."""

    name: str
    interval_s: float | None
    """Seconds from start to start; None: it only runs when it is asked for (`Schedule.soon`)."""
    run: Callable[[], object]
    """Does the work of one run. Raises nothing."""
    first_s: float = 0.0
    """Seconds from the start of the schedule to its first run; no more than the interval counts."""


class Schedule:
    """Runs the jobs until it is stopped. Safe for several threads."""

    def __init__(self, jobs: Sequence[ScheduledJob], clock: Clock) -> None:
        # A run that is still under way when the next is due is no news: the jobs say themselves how long they
        # took.
        logging.getLogger("apscheduler").setLevel(logging.ERROR)
        self._clock = clock
        self._runs = {job.name: _Run(job) for job in jobs}
        self._intervals = {job.name: job.interval_s for job in jobs}
        self._scheduler = BlockingScheduler(
            executors={"default": ThreadPoolExecutor(max(1, len(jobs)))},
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
            timezone=UTC,
        )
        self._thread = threading.Thread(target=self._scheduler.start, name="schedule", daemon=True)
        self._stopped = False

    def start(self) -> None:
        """Begin; each job's first run comes after its `first_s`."""
        now = self._now()
        for run in self._runs.values():
            job, interval_s = run.job, self._intervals[run.job.name]
            first = None if interval_s is None else now + timedelta(seconds=min(job.first_s, interval_s))
            seconds = UNASKED_S if interval_s is None else interval_s
            self._scheduler.add_job(
                run.once, "interval", seconds=seconds, id=job.name, name=job.name, next_run_time=first
            )
        self._thread.start()

    def soon(self, name: str) -> None:
        """Let the job run at once, or once more as soon as the run that is under way has ended. A name that
        has no job is passed over.
        """
        run = self._runs.get(name)
        if run is None or self._stopped or self._thread.ident is None or run.again():
            return
        try:
            self._scheduler.modify_job(name, next_run_time=self._now())
        except JobLookupError:
            return  # stopped meanwhile

    def every(self, name: str, interval_s: float) -> None:
        """Give the job another interval, from now on. A name that has no job is passed over."""
        if self._intervals.get(name) is None or self._stopped:
            return
        self._intervals[name] = interval_s
        if self._thread.ident is None:
            return
        try:
            self._scheduler.reschedule_job(name, trigger="interval", seconds=interval_s)
        except JobLookupError:
            return

    @property
    def alive(self) -> bool:
        """Whether it starts jobs when their time has come; true also before its start, and after it was
        stopped on purpose.
        """
        if self._stopped or self._thread.ident is None:
            return True
        latest = self._now() - timedelta(seconds=OVERDUE_S)
        due = (job.next_run_time for job in self._scheduler.get_jobs())
        return self._thread.is_alive() and not any(time is not None and time < latest for time in due)

    @property
    def busy(self) -> list[str]:
        """The jobs that run now."""
        return [name for name, run in self._runs.items() if run.running]

    def stop(self) -> None:
        """Start no further run. What is under way goes on: see `wait`. Stopping twice is no error."""
        if self._stopped:
            return
        self._stopped = True
        for run in self._runs.values():
            run.end()
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)

    def wait(self, timeout_s: float) -> bool:
        """Wait until nothing runs any more; False if that takes longer."""
        deadline_s = self._clock.monotonic_s() + timeout_s
        return all(
            run.idle.wait(max(0.0, deadline_s - self._clock.monotonic_s())) for run in self._runs.values()
        )

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.now_us() / 1e6, UTC)


class _Run:
    """One job: whether it runs, and whether somebody asked for one more run meanwhile."""

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

    def again(self) -> bool:
        """Ask for one more run after the one under way; False if none is."""
        with self._lock:
            self._again = self.running
            return self._again

    def end(self) -> None:
        """No run begins from here on."""
        with self._lock:
            self._ended = True

    def once(self) -> None:
        """A run, and further ones while they are asked for."""
        while self._begins():
            try:
                self.job.run()
            finally:
                once_more = self._ends()
            if not once_more:
                return

    def _begins(self) -> bool:
        with self._lock:
            self._again = False
            if self._ended:
                return False
            self.idle.clear()
            return True

    def _ends(self) -> bool:
        """The run is over; whether one more was asked for. One step: who asks in between would take back what
        was asked before.
        """
        with self._lock:
            self.idle.set()
            return self._again
