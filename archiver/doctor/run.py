"""Runs the checks of `archiver doctor`, each in a thread of its own, within one time limit for all."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from archiver.doctor.report import Finding, Outcome, Result, unknown
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError, OutcomeUnknown, RetryLater
from archiver.runtime.redaction import MESSAGE_MAX, excerpt
from archiver.runtime.text import first_line


@dataclass(frozen=True, slots=True)
class Check:
    """One check, not made yet."""

    name: str
    find: Callable[[], Finding]
    """Changes nothing. May raise, and may wait for a server."""
    remedy: str
    """What to do if it raises or does not end in time."""


def run_checks(checks: Sequence[Check], timeout_s: float, clock: Clock) -> list[Result]:
    """The results in the order of the checks. One without a result after `timeout_s` is unknown, and its
    thread is left behind.
    """
    answers: queue.SimpleQueue[tuple[int, Finding]] = queue.SimpleQueue()

    def run(position: int, check: Check) -> None:
        answers.put((position, _found(check)))

    deadline_s = clock.monotonic_s() + timeout_s
    for position, check in enumerate(checks):
        # Daemon threads: one that hangs on a dead mount must not keep the process alive.
        threading.Thread(target=run, args=(position, check), name=check.name, daemon=True).start()
    found: dict[int, Finding] = {}
    while len(found) < len(checks) and (left_s := deadline_s - clock.monotonic_s()) > 0:
        try:
            position, finding = answers.get(timeout=left_s)
        except queue.Empty:
            break
        found[position] = finding
    late = f"no result within {timeout_s:g} s"
    return [
        Result(check.name, found.get(position) or unknown(late, check.remedy))
        for position, check in enumerate(checks)
    ]


def _found(check: Check) -> Finding:
    try:
        return check.find()
    except ArchiverError as error:
        # An absent server proves nothing about the configuration.
        outcome = Outcome.UNKNOWN if isinstance(error, RetryLater | OutcomeUnknown) else Outcome.PROBLEM
        return Finding(outcome, excerpt(str(error), MESSAGE_MAX), check.remedy)
    except Exception as error:  # noqa: BLE001 - the head of a thread: one failing check must not stop the others
        return unknown(
            f"the check failed unexpectedly: {type(error).__name__}: {first_line(error)}", check.remedy
        )
