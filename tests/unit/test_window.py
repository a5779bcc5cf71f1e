"""Reading a backlog window by window: no record twice and none left out, for any content of the windows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from intake.log.backlog import Backlog, read_window, windows
from intake.log.fold import IntakeFold
from tests.support.intake.intake_entries import Run, declared, named, topic_id_of
from tests.support.intake.transaction_entries import TransactionEntries

ONE = topic_id_of(1)
TP = (ONE, 0)
Step = tuple[int, int, str]
"""Rows, raw bytes, and their kind: plain, aborted or committed."""
STEPS = st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, 6), st.sampled_from(["plain", "aborted", "committed"])),
    max_size=10,
)


def log(steps: list[Step], *, last_open: bool = False) -> IntakeFold:
    fold = IntakeFold()
    fold.apply(0, declared(1, "one", 1))
    for number, (rows, raw_bytes, kind) in enumerate(steps):
        run = Run(ONE, 0, rows, raw_bytes)
        if kind == "plain":
            fold.apply(fold.next_index, named(f"intake/{fold.next_index}", [run]))
            continue
        producer = TransactionEntries(fold, f"p{number}")
        producer.send(run)
        if not (last_open and number == len(steps) - 1):
            producer.end(commit=kind == "committed")
    return fold


@given(steps=STEPS, last_open=st.booleans(), bytes_max=st.integers(1, 30), data=st.data())
def test_windows_together_are_the_whole(
    steps: list[Step], last_open: bool, bytes_max: int, data: st.DataObject
) -> None:
    fold = log(steps, last_open=last_open)
    stable = fold.stable_offset(TP)
    start = data.draw(st.integers(0, stable), label="start")
    stop = data.draw(st.integers(start, stable), label="stop")
    found = list(windows(Backlog(fold), TP, start, stop, bytes_max))
    assert [window.end for window in found] == sorted({window.end for window in found}), "always further"
    assert not found or found[-1].end == stop
    segments = [segment for window in found for segment in window.segments]
    assert segments == [segment for segment in fold.segments(TP, start) if segment.base < stop > start]
    gaps = [offset for window in found for low, high in window.gaps for offset in range(low, high)]
    assert gaps == [offset for low, high in fold.gaps(TP, start, stop) for offset in range(low, high)]
    for window in found:
        assert sum(segment.raw_bytes for segment in window.segments[:-1]) < bytes_max
    covered = {offset for segment in segments for offset in range(segment.base, segment.end)} | set(gaps)
    assert covered >= set(range(start, stop))


def test_gaps_behind_the_last_segment_are_in_its_window() -> None:
    backlog = Backlog(
        log([(2, 5, "plain"), (3, 5, "aborted"), (1, 5, "aborted"), (2, 5, "plain"), (4, 5, "aborted")])
    )
    ends = [(window.gaps, window.end) for window in windows(backlog, TP, 0, 12, 1)]
    assert ends == [([(2, 6)], 6), ([(8, 12)], 12)]
    only = read_window(backlog, TP, 8, 12, 1)
    assert (list(only.segments), only.gaps, only.end) == ([], [(8, 12)], 12)
