"""The start: try, wait, try again, until everything is open or the daemon is asked to stop.

Nearly every error is waited for, because what is absent may come: a folder that is not mounted yet, a
metadata store that is being restored. A reason is logged when it changes, and stands in the journal's checks
as long as it holds, under the name of the step that failed. Only a first start that may not write where it
must ends the daemon, once this has lasted for `DENIED_S`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError, NotPermitted
from archiver.status.journal import Journal

_log = logging.getLogger(__name__)

FIRST_WAIT_S = 0.1
DENIED_S = 5.0
"""What prepares a volume may still be setting its owner."""


@dataclass(frozen=True)
class Step:
    """One thing to be there."""

    name: str
    """Of the check."""
    take: Callable[[], object]
    """Raises while it cannot be done; is called again with the steps before it."""


class Opening:
    """Takes the steps in their order, all of them again after an error."""

    def __init__(
        self,
        steps: Sequence[Step],
        undo: Callable[[], None],
        journal: Journal,
        clock: Clock,
        retry_max_s: float,
    ) -> None:
        """`undo` gives back what the steps have opened, after one of them has failed."""
        self._steps = tuple(steps)
        self._undo = undo
        self._journal = journal
        self._clock = clock
        self._retry_max_s = retry_max_s
        self._said = ""

    def run(self, stop: threading.Event) -> bool:
        """True once every step was taken; False if `stop` was set before. Raises `NotPermitted` where that is
        what has lasted.
        """
        wait_s, denied_s = FIRST_WAIT_S, 0.0
        while not stop.is_set():
            error = self._once()
            if error is None:
                return True
            if not isinstance(error, NotPermitted):
                denied_s = 0.0
            elif denied_s >= DENIED_S:
                raise error
            stop.wait(wait_s)
            denied_s += wait_s
            wait_s = min(2 * wait_s, self._retry_max_s)
        return False

    def _once(self) -> Exception | None:
        """Take every step; the error of the first that could not be taken."""
        for step in self._steps:
            try:
                step.take()
            except Exception as error:  # noqa: BLE001 - the head of the start: nothing but a request ends it
                self._failed(step.name, error)
                self._undo()
                return error
            self._journal.checked(step.name, None, self._clock.now_us())
        if self._said:
            _log.info("what was missing at the start is there")
        return None

    def _failed(self, name: str, error: Exception) -> None:
        expected = isinstance(error, ArchiverError)
        why = str(error) if expected else f"an error nobody expected: {type(error).__name__}: {error}"
        self._journal.checked(name, why, self._clock.now_us())
        if why != self._said:
            self._said = why
            _log.warning("waiting for %s: %s", name, why, exc_info=None if expected else error)
