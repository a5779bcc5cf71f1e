"""Job `watch`: asks every dependency of this daemon whether it answers, then polls the status.

Each dependency has a thread of its own, so one that hangs delays neither the others nor the daemon. It is
reported as not answering and is asked again once its thread is free. A run ends within the time-outs of one
question and of the follow-up.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from queue import SimpleQueue

from archiver.app.application import Application
from archiver.catalog.tables import parse_identifier
from archiver.config.settings import Settings
from archiver.daemon.cycles import Summary
from archiver.objects.cluster import read_cluster
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError, Halt, RetryLater
from archiver.runtime.text import counted
from archiver.spark.java import require_java
from archiver.status.journal import Journal

_log = logging.getLogger(__name__)

# The check starts a JVM.
JAVA_AGAIN_S = 60.0
"""Time for which a found Java is not checked again; the check takes 0.1 s of a core."""

Question = Callable[[], object]
"""One quick request; raises if the dependency does not answer."""


class Dependencies:
    """Builds the questions for the roles of this daemon.

    Questions change nothing, with one exception: the question `clock` aborts transactions whose time-out has
    passed.
    """

    def __init__(self, clock: Clock, environ: Mapping[str, str], roles: frozenset[str]) -> None:
        self._clock = clock
        self._environ = environ
        self._roles = roles
        self._java_until_s = 0.0

    def questions(self, application: Application) -> dict[str, Question]:
        """Questions by the name of the dependency."""
        found: dict[str, Question] = {
            # The smallest request to the metadata store: reading a number.
            "metadata": application.intake_log.tail,
            "objects": lambda: _check_objects(application),
            # Must run also while no records arrive: an open transaction holds archiving back.
            "clock": application.intake.end_overdue,
        }
        if self._roles & {"archive", "reconcile"}:
            for name, table in _catalogs(application.settings).items():
                # The defaults bind the values of this iteration; the loop variables change.
                found[f"catalog {name}"] = lambda name=name, table=table: _check_catalog(
                    application, name, table
                )  # type: ignore[misc]
        if "archive" in self._roles and application.settings.spark.remote is None:
            found["java"] = lambda: self._check_java(application)
            # Asking must not start a JVM, so an absent session has no question.
            if application.archiving.spark_runs:
                found["spark"] = application.archiving.ask_spark
        return found

    def _check_java(self, application: Application) -> None:
        # A running JVM proves that Java is there.
        if application.archiving.spark_runs or self._clock.monotonic_s() < self._java_until_s:
            return
        require_java(self._environ)
        self._java_until_s = self._clock.monotonic_s() + JAVA_AGAIN_S


def _check_objects(application: Application) -> None:
    # An unmounted mount point is an empty folder that can be read, so only the identity proves the place.
    found = read_cluster(application.objects)
    if found is None:
        raise RetryLater(
            f"the data folder {application.settings.data.uri} has lost its identity (cluster.json): "
            "is it mounted?"
        )
    if found.cluster_id != application.cluster.cluster_id:
        raise RetryLater(
            f"the data folder {application.settings.data.uri} is another one now: its cluster id is "
            f"{found.cluster_id}"
        )


def _catalogs(settings: Settings) -> dict[str, str]:
    """One table of each catalog that a topic uses."""
    found: dict[str, str] = {}
    for topic in settings.topics:
        if topic.archive.catalog is not None and topic.archive.table is not None:
            # One table is enough: the question is whether the catalog answers, not whether its tables are
            # right.
            found.setdefault(topic.archive.catalog, topic.archive.table)
    return found


def _check_catalog(application: Application, name: str, table: str) -> None:
    try:
        application.tables(name).load(parse_identifier(table))
    except Halt:
        return  # the catalog answered; a fault of this table is reported for its topic


@dataclass(frozen=True)
class FollowUp:
    """Step after the questions of each run. It is skipped while an earlier step has not ended."""

    what: str
    """Its name in messages."""
    step: Callable[[], None]
    """The run raises what it raises."""
    within_s: float
    late: Callable[[], None]
    """Called in each run in whose time the step does not end."""


class Watch:
    """Asks, and records the answers in the journal. Close it."""

    def __init__(
        self,
        questions: Callable[[], Mapping[str, Question]],
        journal: Journal,
        clock: Clock,
        timeout_s: float,
        follow_up: FollowUp | None = None,
    ) -> None:
        """`questions` is called in each run, because a reload may change the configuration."""
        self._questions = questions
        self._journal = journal
        self._clock = clock
        self._timeout_s = timeout_s
        self._follow_up = follow_up
        self._follow_up_thread = None if follow_up is None else _Asker("follow-up")
        self._raised: Exception | None = None
        """Error of the newest follow-up."""
        self._askers: dict[str, _Asker] = {}

    def run(self) -> Summary:
        """One run."""
        # Before the answers are recorded, to report which dependencies are back.
        before = {check.name: check.ok for check in self._journal.checks()}
        answers = self._ask()
        now_us = self._clock.now_us()
        for name, why in answers.items():
            self._journal.checked(name, why, now_us)
        missing = [
            f"{name} does not answer: {why}" for name, why in answers.items() if why is not None
        ] + self._run_follow_up()
        # All of them are asked again by the next run, so no operator is needed yet.
        if missing:
            return Summary("untold", "; ".join(missing))
        back = sorted(name for name in answers if before.get(name) is False)
        if back:
            return Summary("fine", f"{', '.join(back)} {'answers' if len(back) == 1 else 'answer'} again")
        return Summary("fine", counted(len(answers), "dependency answers", "dependencies answer"), idle=True)

    def close(self) -> None:
        """Stop asking. A thread whose dependency hangs ends with the process."""
        askers = [*self._askers.values()]
        if self._follow_up_thread is not None:
            askers.append(self._follow_up_thread)
        for asker in askers:
            asker.close()

    def _run_follow_up(self) -> list[str]:
        """Problems to report."""
        if self._follow_up is None or self._follow_up_thread is None:
            return []
        # Ignored while an earlier step runs; then this run waits for that step.
        self._follow_up_thread.begin(self._step)
        if not self._follow_up_thread.ended(self._follow_up.within_s):
            self._follow_up.late()
            return [f"{self._follow_up.what} has not ended within {self._follow_up.within_s:g} s"]
        # The step has ended, so its thread does not write this field at the moment.
        error, self._raised = self._raised, None
        if error is not None:
            raise error
        return []

    def _step(self) -> None:
        assert self._follow_up is not None
        # Drops the error of a step that ended too late for its run.
        self._raised = None
        try:
            self._follow_up.step()
        except Exception as error:  # noqa: BLE001 - the thread of the run raises it
            self._raised = error

    def _ask(self) -> dict[str, str | None]:
        """Per dependency why it does not answer, None if it does."""
        questions = self._questions()
        # After a reload, or when the Spark session ended; a stale failure would keep `/readyz` red.
        for name in self._askers.keys() - questions.keys():
            self._askers.pop(name).close()
            self._journal.unchecked(name)
        for name, question in questions.items():
            if name not in self._askers:
                self._askers[name] = _Asker(name)
            self._askers[name].begin(question)
        # One deadline for all: the questions run at the same time.
        deadline_s = self._clock.monotonic_s() + self._timeout_s
        return {
            name: self._askers[name].answer(max(0.0, deadline_s - self._clock.monotonic_s()), self._timeout_s)
            for name in questions
        }


class _Asker:
    """Thread that asks one dependency."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[Question | None] = SimpleQueue()
        self._answered = threading.Event()
        # Free at the beginning, so that the first question is accepted.
        self._answered.set()
        self._why: str | None = None
        self._thread = threading.Thread(target=self._run, name=f"watch-{name}", daemon=True)
        self._thread.start()

    def begin(self, question: Question) -> None:
        """Ask, unless the last question is still open."""
        # A dependency that hangs must not collect questions: each would run after it answers.
        if self._answered.is_set():
            self._answered.clear()
            self._queue.put(question)

    def answer(self, wait_s: float, timeout_s: float) -> str | None:
        """Why the dependency does not answer; None if it does."""
        if not self.ended(wait_s):
            return f"no answer within {timeout_s:g} s"
        return self._why

    def ended(self, wait_s: float) -> bool:
        """Whether the answer arrives within that time."""
        return self._answered.wait(wait_s)

    def close(self) -> None:
        """End the thread; waits for it unless its question is still open."""
        # A hanging thread reads this later, or ends with the process.
        self._queue.put(None)
        if self._answered.is_set():
            self._thread.join()

    def _run(self) -> None:
        # The event is set last, so a reader that sees it also sees the answer.
        while (question := self._queue.get()) is not None:
            try:
                question()
                self._why = None
            except ArchiverError as error:
                self._why = str(error)
            except Exception as error:  # noqa: BLE001 - any error means that the dependency does not answer
                _log.debug("%s: an unexpected error", self._name, exc_info=error)
                self._why = f"{type(error).__name__}: {error}"
            self._answered.set()
