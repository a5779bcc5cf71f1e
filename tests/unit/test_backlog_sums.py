"""Remembered sums of a backlog equal the sums of a view without a memory, from poll to poll."""

from __future__ import annotations

import sys

from hypothesis import given, settings
from hypothesis import strategies as st

from archiver.runtime.ids import TopicPartition
from intake.log.backlog import Backlog, Counted
from intake.log.fold import IntakeFold
from intake.segments import RAW_BYTES, HeldSegments
from tests.support.intake.intake_entries import Run, declared, named, topic_id_of
from tests.support.intake.unread_history import UnreadHistory

ONE = topic_id_of(1)
TP: TopicPartition = (ONE, 0)


def fold_of(*runs: Run) -> IntakeFold:
    fold = IntakeFold()
    fold.apply(0, declared(1, "one", 1))
    for run in runs:
        fold.apply(fold.next_index, named(f"intake/{fold.next_index}", [run]))
    return fold


steps = st.lists(
    st.tuples(st.sampled_from(["more", "look", "archive", "shelve", "replace"]), st.integers(1, 9)),
    max_size=30,
)


@settings(max_examples=300)
@given(steps)
def test_a_remembered_sum_is_the_sum(steps: list[tuple[str, int]]) -> None:
    fold, counted, start = fold_of(), dict[TopicPartition, Counted](), 0
    history = UnreadHistory()
    history.kept[TP] = []
    for number, (step, amount) in enumerate(steps):
        state = fold.partition(TP)
        if step == "more":
            run = Run(
                ONE, 0, rows=amount, raw_bytes=amount * 10 + number, accept_max_us=1000 * ((number * 7) % 11)
            )
            fold.apply(fold.next_index, named(f"intake/{fold.next_index}", [run]))
        elif step == "archive":
            # Up to 3 beyond the end: the ledger may be ahead of the log entries read so far.
            start = min(start + amount, state.next_offset + 3)
        elif step == "shelve" and state.segments:
            upto = state.segments[min(amount, len(state.segments)) - 1]
            history.kept[TP] += [one for one in state.segments if one.end <= upto.end]
            fold.release_history({TP: upto.end})
        elif step == "replace":
            state.segments = HeldSegments.of(state.segments)  # an abort, too, replaces the segments
        stable = state.next_offset - (amount if step == "look" else 0)
        asked = None if stable < min(start, state.next_offset) else stable
        remembering, plain = Backlog(fold, history, counted), Backlog(fold, history)
        assert remembering.summary(TP, start, asked) == plain.summary(TP, start, asked)
        assert remembering.summary(TP, start, asked) == plain.summary(TP, start, asked), (
            "and once more, from memory alone"
        )


def falsify(held: HeldSegments) -> None:
    """Alter a counted segment, which never happens in use. Only a sum that starts again from the beginning
    changes."""
    held._numbers[8 * RAW_BYTES : 8 * RAW_BYTES + 8] = (1_000_000).to_bytes(8, sys.byteorder)


def test_only_what_came_since_is_looked_at() -> None:
    fold, counted = fold_of(*[Run(ONE, 0, rows=1, raw_bytes=10)] * 5), dict[TopicPartition, Counted]()
    assert Backlog(fold, None, counted).summary(TP, 0).rows == 5
    falsify(fold.partition(TP).segments)
    fold.apply(fold.next_index, named("intake/more", [Run(ONE, 0, rows=2, raw_bytes=7)]))
    assert (
        Backlog(fold, None, counted).summary(TP, 0).rows,
        Backlog(fold, None, counted).summary(TP, 0).bytes,
    ) == (7, 57)
    assert Backlog(fold, None, counted).summary(TP, 1).bytes == 47, "another start is another sum"


def test_what_was_asked_beyond_the_end_is_not_remembered() -> None:
    fold, counted = fold_of(Run(ONE, 0, rows=5, raw_bytes=50)), dict[TopicPartition, Counted]()
    for rows, beyond in ((1, 0), (4, 3)):
        assert Backlog(fold, None, counted).summary(TP, 7).rows == 0
        fold.apply(fold.next_index, named(f"intake/{rows}", [Run(ONE, 0, rows=rows, raw_bytes=10 * rows)]))
        found = Backlog(fold, None, counted).summary(TP, 7)
        assert (found.rows, found.bytes) == (beyond, 10 * beyond)


def test_what_was_archived_of_a_shelf_does_not_begin_the_sum_of_what_is_held_again() -> None:
    fold, counted, history = (
        fold_of(*[Run(ONE, 0, rows=1, raw_bytes=10)] * 5),
        dict[TopicPartition, Counted](),
        UnreadHistory(),
    )
    history.kept[TP] = list(fold.partition(TP).segments[:3])
    fold.release_history({TP: 3})
    assert Backlog(fold, history, counted).summary(TP, 0).bytes == 50
    falsify(fold.partition(TP).segments)
    assert Backlog(fold, history, counted).summary(TP, 2).bytes == 30
    assert Backlog(fold, history, counted).summary(TP, 4).bytes == 10, "from inside of what is held it does"


def test_what_is_aborted_is_counted_no_more() -> None:
    fold, counted = fold_of(Run(ONE, 0, rows=3, raw_bytes=30)), dict[TopicPartition, Counted]()
    assert Backlog(fold, None, counted).summary(TP, 0).rows == 3
    fold.partition(TP).abort([(0, 3)])
    assert Backlog(fold, None, counted).summary(TP, 0).rows == 0


def test_what_is_being_shelved_is_counted_once() -> None:
    fold, counted, history = (
        fold_of(*[Run(ONE, 0, rows=1, raw_bytes=10)] * 5),
        dict[TopicPartition, Counted](),
        UnreadHistory(),
    )
    history.kept[TP] = list(fold.partition(TP).segments[:2])
    assert Backlog(fold, history, counted).summary(TP, 0).rows == 5
    fold.partition(TP).history_end = 2  # the first of two steps; the second one shortens the list
    assert Backlog(fold, history, counted).summary(TP, 0).rows == 5
