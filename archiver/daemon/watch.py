"""The job that looks: does everything this daemon depends on answer?

Owns a thread per dependency, so that one that hangs holds back neither the others nor the daemon: it is noted
as not answering, and asked again when it has come back. What is done beside the questions has a thread of its
own as well. Promises to end within the time-out of one question, however many there are, and that of what is
done beside.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from queue import SimpleQueue

from archiver.daemon.cycles import Summary
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError
from archiver.runtime.text import counted
from archiver.status.journal import Journal

_log = logging.getLogger(__name__)

Question = Callable[[], object]
"""Raises if the dependency does not answer."""


@dataclass(frozen=True)
class Beside:
    """What is done after the questions of each look, unless it has not ended since an earlier one."""

    what: str
    """For people."""
    step: Callable[[], None]
    """What it raises is raised by the look."""
    within_s: float
    late: Callable[[], None]
    """Called at each look within whose time the step has not ended."""


class Watch:
    """Asks and notes. Close it."""

    def __init__(
        self,
        questions: Callable[[], Mapping[str, Question]],
        journal: Journal,
        clock: Clock,
        timeout_s: float,
        beside: Beside | None = None,
    ) -> None:
        """`questions` are asked for at each look, because the configuration may have changed."""
        self._questions = questions
        self._journal = journal
        self._clock = clock
        self._timeout_s = timeout_s
        self._beside = beside
        self._doing = None if beside is None else _Asker("beside")
        self._raised: Exception | None = None
        """By the newest step that was done beside."""
        self._askers: dict[str, _Asker] = {}

    def run(self) -> Summary:
        """One look."""
        before = {check.name: check.ok for check in self._journal.checks()}
        answers = self._ask()
        now_us = self._clock.now_us()
        for name, why in answers.items():
            self._journal.checked(name, why, now_us)
        missing = [
            f"{name} does not answer: {why}" for name, why in answers.items() if why is not None
        ] + self._do_beside()
        if missing:
            return Summary("untold", "; ".join(missing))
        back = sorted(name for name in answers if before.get(name) is False)
        if back:
            return Summary("fine", f"{', '.join(back)} {'answers' if len(back) == 1 else 'answer'} again")
        return Summary("fine", counted(len(answers), "dependency answers", "dependencies answer"), idle=True)

    def close(self) -> None:
        """Ask no more. A thread whose dependency hangs is left behind; it ends with the process."""
        for asker in [*self._askers.values(), *([] if self._doing is None else [self._doing])]:
            asker.close()

    def _do_beside(self) -> list[str]:
        """What is to be told of it."""
        if self._beside is None or self._doing is None:
            return []
        self._doing.begin(self._step)
        if not self._doing.ended(self._beside.within_s):
            self._beside.late()
            return [f"{self._beside.what} has not ended within {self._beside.within_s:g} s"]
        error, self._raised = self._raised, None
        if error is not None:
            raise error
        return []

    def _step(self) -> None:
        assert self._beside is not None
        self._raised = None  # of a step that ended late: nobody took it, and this one is another
        try:
            self._beside.step()
        except Exception as error:  # noqa: BLE001 - the thread of the look raises it
            self._raised = error

    def _ask(self) -> dict[str, str | None]:
        """Per dependency why it does not answer, None if it does."""
        questions = self._questions()
        for name in self._askers.keys() - questions.keys():
            self._askers.pop(name).close()
            self._journal.unchecked(name)
        for name, question in questions.items():
            if name not in self._askers:
                self._askers[name] = _Asker(name)
            self._askers[name].begin(question)
        deadline_s = self._clock.monotonic_s() + self._timeout_s
        return {
            name: self._askers[name].answer(max(0.0, deadline_s - self._clock.monotonic_s()), self._timeout_s)
            for name in questions
        }


class _Asker:
    """A thread that asks one dependency."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[Question | None] = SimpleQueue()
        self._answered = threading.Event()
        self._answered.set()
        self._why: str | None = None
        self._thread = threading.Thread(target=self._run, name=f"watch-{name}", daemon=True)
        self._thread.start()

    def begin(self, question: Question) -> None:
        """Ask, unless the last question is not answered yet."""
        if self._answered.is_set():
            self._answered.clear()
            self._queue.put(question)

    def answer(self, wait_s: float, timeout_s: float) -> str | None:
        """Why it does not answer; None if it does."""
        if not self.ended(wait_s):
            return f"no answer within {timeout_s:g} s"
        return self._why

    def ended(self, wait_s: float) -> bool:
        """Whether it is answered within that time."""
        return self._answered.wait(wait_s)

    def close(self) -> None:
        """End, once the question under way is answered."""
        self._queue.put(None)
        if self._answered.is_set():
            self._thread.join()

    def _run(self) -> None:
        while (question := self._queue.get()) is not None:
            try:
                question()
                self._why = None
            except ArchiverError as error:
                self._why = str(error)
            except Exception as error:  # noqa: BLE001 - whatever it is, the dependency does not answer
                _log.debug("%s: an error nobody expected", self._name, exc_info=error)
                self._why = f"{type(error).__name__}: {error}"
            self._answered.set()
