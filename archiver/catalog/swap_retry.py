"""Requests that change a table's metadata: each is sent once, and a bounded loop tries again from a new load.

Owns rule C4: the log's tail is read between load and request. Owns the end of rule C6: a request of unknown
outcome stays open until a load shows that the base it asserted is gone. Must never send a request twice: only
the table shows whether the first one was applied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from archiver.catalog.tables import Evolved, Prepared, SwapOutcome, Swapped, TableView
from archiver.runtime import failpoints
from archiver.runtime.clock import Clock
from archiver.runtime.errors import CatalogAway, OutcomeUnknown, RetryLater

T = TypeVar("T")

BACKOFF_GROWTH_MAX = 16
"""The longest wait between two attempts, as a multiple of `backoff_s`."""


@dataclass(frozen=True, slots=True)
class CommitLimits:
    """Bounds of the commit loop, from the settings (`archive:`)."""

    attempts_max: int = 20
    timeout_s: float = 120.0
    """No new attempt begins after so many seconds."""
    backoff_s: float = 0.05
    """Wait after the first conflict; doubled each time, up to `BACKOFF_GROWTH_MAX` times as long."""
    snapshots_max: int = 100
    """Snapshots that our own commits keep however old they are."""
    snapshots_age_s: float = 900.0
    """Age below which our own commits keep snapshots however many there are."""
    merge_every: int = 25
    """Every so many commits the manifests are merged."""


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """Nothing is left to request."""

    result: T


@dataclass(frozen=True, slots=True)
class Request(Generic[T]):
    """One change of a table, ready to be sent."""

    send: Callable[[], Swapped | Evolved]
    point: str
    """Name of the failpoints around the request, without `.before` and `.after`."""
    prepared: Prepared | None = None
    """The requested commit. None for a change of schema or partition spec, which asserts no number."""
    confirm: Callable[[], T | None] | None = None
    """Called after the catalog reported the change as applied: the result, or None if the table does not show
    it. If there is no `confirm`, the next attempt begins at once and its load shows the change."""


@dataclass(slots=True)
class Attempt:
    """One turn of the loop, as `prepare` sees it."""

    number: int
    """From 0."""
    is_last: bool = False
    """The bounds are reached. The table may be loaded once more, but no request is sent."""
    open_request: Prepared | None = None
    """The last commit whose outcome is not known."""

    def loaded(self, view: TableView) -> None:
        """Report the loaded view. Rule C6: a request of unknown outcome can be applied only while the base it
        asserted stands.
        """
        # Not the snapshot id: a base that was rolled back from may become current again. A sequence number
        # never comes back.
        if self.open_request is not None and self.open_request.base_sequence_number != view.sequence_number:
            self.open_request = None


@dataclass(frozen=True, slots=True)
class NotApplied:
    """The bounds were reached without a result."""

    why: str
    """The last reason of the catalog; empty without one."""
    is_open: bool
    """A request may still be applied: raise `OutcomeUnknown`, never treat it as a failure."""
    catalog_away: bool
    """The last load failed because the catalog cannot be reached."""

    def error(self, message: str) -> RetryLater | OutcomeUnknown:
        """What the caller raises, without regard to an outage."""
        return OutcomeUnknown(message) if self.is_open else RetryLater(message)


def retry_swap(
    prepare: Callable[[Attempt], Done[T] | Request[T] | RetryLater | None],
    check: Callable[[], None],
    limits: CommitLimits,
    clock: Clock,
    *,
    load_after_last: bool = False,
) -> T | NotApplied:
    """Load, decide, send, and start again, within `attempts_max` requests and `timeout_s`.

    `prepare` loads the table, reports the view by `Attempt.loaded`, and returns the result or the next
    request. It returns the `RetryLater` that stopped it if another attempt may pass, and raises what ends the
    loop. On the last attempt it returns None instead of a request. `check` reads the log and raises `Deposed`
    if a newer leader is in it. With `load_after_last` the table is loaded once more after the last request.
    """
    deadline = clock.monotonic_s() + limits.timeout_s
    attempt = Attempt(0)
    # The first text is reported if the time ends before the first attempt has a reason of its own.
    why, away, unknown, pause = "the time ran out", False, False, False
    # With `load_after_last` there is one more turn, which loads and sends nothing.
    for number in range(limits.attempts_max + load_after_last):
        if pause:
            clock.sleep(limits.backoff_s * min(2 ** (number - 1), BACKOFF_GROWTH_MAX))
        attempt.number = number
        # The first attempt always runs, so a short time limit cannot block every commit.
        attempt.is_last = number == limits.attempts_max or (number > 0 and clock.monotonic_s() > deadline)
        # Without a request this load would change nothing, so it is saved.
        if attempt.is_last and not load_after_last:
            break
        # A load that failed waits as well: a catalog under load must not be asked in a tight loop.
        pause = True
        step = prepare(attempt)
        if isinstance(step, Done):
            return step.result
        if isinstance(step, RetryLater):
            why, away = str(step), isinstance(step, CatalogAway)
        elif step is not None and not attempt.is_last:
            # Rule C4: the check reads the log after the load and before the request.
            answer = send_once(step.send, check, step.point)
            why, away = answer.why, False
            # A result of `confirm` ends the loop. Otherwise the next load decides.
            applied = answer.outcome is SwapOutcome.APPLIED
            if applied and step.confirm is not None and (result := step.confirm()) is not None:
                return result
            if step.prepared is None:
                # A change of schema or spec asserts no sequence number, so no load can close it. Only the
                # last one counts.
                unknown = answer.outcome is SwapOutcome.UNKNOWN
            elif answer.outcome is not SwapOutcome.CONFLICT:
                # Applied counts as well: until a load shows the commit, the reply alone proves nothing.
                attempt.open_request = step.prepared
            # An applied change without `confirm` is read back at once: there is no conflict to wait for.
            pause = not applied or step.confirm is not None
        if attempt.is_last:
            break
    return NotApplied(why, unknown or attempt.open_request is not None, away)


def send_once(
    request: Callable[[], Swapped | Evolved], check: Callable[[], None], point: str
) -> Swapped | Evolved:
    """Ask the catalog once (rules C4, C5). A lost reply becomes an answer."""
    # Outside of the `try`: `Deposed` must end the loop and never count as the catalog's answer.
    check()
    try:
        failpoints.reach(f"{point}.before")
        answer = request()
        failpoints.reach(f"{point}.after")
    # Raised by a failpoint that drops the reply. It must count like a reply that a network lost.
    except OutcomeUnknown as error:
        return Evolved(SwapOutcome.UNKNOWN, str(error))
    return answer
