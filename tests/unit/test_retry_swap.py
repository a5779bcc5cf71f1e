"""Rule C6 in the loop that all commits share: when a request of unknown outcome can no longer be applied."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest

from archiver.catalog.swap_retry import Attempt, CommitLimits, Done, NotApplied, Request, retry_swap
from archiver.catalog.tables import Prepared, SwapOutcome, Swapped, TableView
from archiver.runtime.clock import ManualClock
from archiver.runtime.errors import CatalogAway, Deposed, OutcomeUnknown, RetryLater

LIMITS = CommitLimits(attempts_max=3, timeout_s=100.0, backoff_s=1.0)
APPLIED, CONFLICT, UNKNOWN = SwapOutcome.APPLIED, SwapOutcome.CONFLICT, SwapOutcome.UNKNOWN


def view(sequence_number: int) -> TableView:
    return TableView(
        ("demo", "flights"), uuid.UUID(int=1), "", "", "{}", 0, 2, 0, "day", None, sequence_number, {}, ()
    )


def never_deposed() -> None:
    pass


def run(
    numbers: list[int],
    outcomes: list[SwapOutcome],
    *,
    check: Callable[[], None] = never_deposed,
    clock: ManualClock | None = None,
    load_after_last: bool = False,
    limits: CommitLimits = LIMITS,
) -> str | NotApplied:
    """Run the loop with these sequence numbers of the loaded table and these responses of the catalog."""
    loads, answers = iter(numbers), iter(outcomes)

    def prepare(attempt: Attempt) -> Done[str] | Request[str] | None:
        found = view(next(loads))
        attempt.loaded(found)
        if attempt.is_last:
            return None
        prepared = Prepared(found.identifier, 7, None, found.sequence_number)
        return Request(
            lambda: Swapped(next(answers), 7, "says the catalog"), "table.swap", prepared, lambda: None
        )

    return retry_swap(prepare, check, limits, clock or ManualClock(1), load_after_last=load_after_last)


@pytest.mark.parametrize(
    ("numbers", "outcomes", "is_open"),
    [
        ([5, 5, 5], [UNKNOWN, CONFLICT, CONFLICT], True),
        ([5, 6, 6], [UNKNOWN, CONFLICT, CONFLICT], False),
        ([5, 6, 7], [CONFLICT, CONFLICT, UNKNOWN], True),
        ([5, 5, 5], [CONFLICT, CONFLICT, CONFLICT], False),
        ([5, 6, 7], [CONFLICT, CONFLICT, APPLIED], True),
    ],
    ids=["base stands", "base is gone", "last answer", "conflicts alone", "applied and not seen"],
)
def test_a_request_is_open_until_a_load_shows_another_base(
    numbers: list[int], outcomes: list[SwapOutcome], is_open: bool
) -> None:
    found = run(numbers, outcomes)
    assert isinstance(found, NotApplied)
    assert (found.is_open, found.why) == (is_open, "says the catalog")
    assert isinstance(found.error("x"), OutcomeUnknown if is_open else RetryLater)


def test_one_more_load_shows_that_the_last_request_is_dead() -> None:
    found = run([5, 5, 5, 6], [UNKNOWN, UNKNOWN, UNKNOWN], load_after_last=True)
    assert isinstance(found, NotApplied) and not found.is_open


def test_the_log_is_read_before_each_request() -> None:
    asked = list[SwapOutcome]()

    def deposed() -> None:
        raise Deposed("a newer leader")

    with pytest.raises(Deposed):
        run([5], asked, check=deposed)


def test_an_outage_is_one_only_if_the_last_load_met_it() -> None:
    steps = iter([CatalogAway("down"), RetryLater("busy"), CatalogAway("down again")])
    found = retry_swap(lambda _: next(steps), never_deposed, LIMITS, ManualClock(1))
    assert found == NotApplied("down again", is_open=False, catalog_away=True)
    steps = iter([CatalogAway("down"), CatalogAway("down"), RetryLater("busy")])
    assert retry_swap(lambda _: next(steps), never_deposed, LIMITS, ManualClock(1)) == NotApplied(
        "busy", is_open=False, catalog_away=False
    )


def test_an_outage_after_an_unproven_reply_is_open_and_named() -> None:
    """The response reports success, but no load can confirm it. The commit stays open, and the catalog is
    unavailable."""
    prepared = Prepared(("demo", "flights"), 7, None, 5)
    steps: Iterator[Request[str] | RetryLater] = iter(
        [
            Request(lambda: Swapped(APPLIED, 7, ""), "table.swap", prepared, lambda: None),
            CatalogAway("down"),
            CatalogAway("down"),
        ]
    )
    found = retry_swap(lambda _: next(steps), never_deposed, LIMITS, ManualClock(1))
    assert found == NotApplied("down", is_open=True, catalog_away=True)


def test_the_wait_doubles() -> None:
    clock = ManualClock(1)
    before = clock.monotonic_s()
    run([5, 6, 7], [CONFLICT, CONFLICT, CONFLICT], clock=clock)
    assert clock.monotonic_s() - before == pytest.approx(1.0 + 2.0)


@pytest.mark.parametrize("load_after_last", [False, True])
def test_no_request_is_sent_after_the_time(*, load_after_last: bool) -> None:
    """With waits of 1, 2 and 4 s the fourth attempt would begin after 5 s."""
    limits = CommitLimits(attempts_max=1000, timeout_s=5.0, backoff_s=1.0)
    sent = [CONFLICT] * 3  # A fourth request would find no response and fail.
    found = run([5, 6, 7, 8], sent, limits=limits, load_after_last=load_after_last)
    assert isinstance(found, NotApplied)
