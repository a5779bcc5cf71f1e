"""Segments as columns of numbers behave like a list of segments under every operation."""

from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intake.segments import HeldSegments, SegmentRef, Segments
from tests.support.builders.segments import file_ref, segment

PLACED = st.lists(
    st.tuples(st.integers(1, 2**31), st.integers(0, 2**40), st.integers(0, 5), st.integers(0, 2**50)),
    max_size=8,
)


def made(lines: list[tuple[int, int, int, int]], start: int = 0) -> list[SegmentRef]:
    """Consecutive segments, in the order of the files in the log."""
    bases = [start, *accumulate((rows for rows, *_ in lines), initial=start)][1:]
    return [
        SegmentRef(file_ref(number // 2 + file), file, rows % 7, rows, base, raw_bytes, time_us, time_us // 2)
        for number, ((rows, raw_bytes, file, time_us), base) in enumerate(zip(lines, bases, strict=False))
    ]


@given(lines=PLACED, low=st.integers(0, 8), high=st.integers(0, 8))
def test_they_are_the_same_as_a_list(lines: list[tuple[int, int, int, int]], low: int, high: int) -> None:
    listed = made(lines)
    found = Segments.of(listed)
    assert list(found) == listed
    assert (len(found), bool(found)) == (len(listed), bool(listed))
    assert [found[place] for place in range(-len(listed), len(listed))] == [
        listed[place] for place in range(-len(listed), len(listed))
    ]
    assert found[low:high] == listed[low:high]
    assert found.bases.tolist() == [one.base for one in listed]
    assert found.ends.tolist() == [one.end for one in listed]
    assert found.raw_bytes.tolist() == [one.raw_bytes for one in listed]
    even = np.array([number % 2 == 0 for number in range(len(listed))], bool)
    assert found.where(even) == listed[::2]
    assert pickle.loads(pickle.dumps(found)) == listed
    if listed:
        assert (found.first_index, found.last_index) == (listed[0].file.log_index, listed[-1].file.log_index)


@given(lines=st.lists(PLACED, max_size=4))
def test_joined_they_follow_each_other(lines: list[list[tuple[int, int, int, int]]]) -> None:
    groups = [made(one, 2**33 * number) for number, one in enumerate(lines)]
    whole = Segments.joined([Segments.of(group) for group in groups])
    assert whole == [one for group in groups for one in group]
    assert pickle.loads(pickle.dumps(whole)) == whole


@given(lines=PLACED, places=st.lists(st.integers(0, 8), max_size=6).map(sorted), offset=st.integers(0, 2**34))
def test_held_ones_grow_and_are_cut(
    lines: list[tuple[int, int, int, int]], places: list[int], offset: int
) -> None:
    listed = made(lines)
    held = HeldSegments.of(listed[:3])
    early = held[:]
    for one in listed[3:]:
        held.append(one)
    assert early == listed[:3], "what was taken out does not grow"
    assert (list(held), len(held), bool(held)) == (listed, len(listed), bool(listed))
    assert [held[place] for place in range(-len(listed), len(listed))] == [
        listed[place] for place in range(-len(listed), len(listed))
    ]
    assert [held.end_of(place) for place in range(len(listed))] == [one.end for one in listed]
    assert [one.log_index for one in held.files] == [one.file.log_index for one in listed]
    for low in range(len(listed) + 1):
        assert held.first_beyond(offset, low) == low + sum(one.end <= offset for one in listed[low:])
    pairs = [
        (min(low, len(listed)), min(high, len(listed)))
        for low, high in zip(places[::2], places[1::2], strict=False)
    ]
    left = held.parts(pairs)
    assert left == [one for low, high in pairs for one in listed[low:high]]
    assert left == HeldSegments.of(left)
    assert (left == held) is (list(left) == listed)
    if left:
        assert left != HeldSegments.of([*left[:-1], left[-1]._replace(floor_us=-5)])
        assert left != HeldSegments.of([*left[:-1], left[-1]._replace(file=replace(left[-1].file, size=99))])


def test_what_is_sent_names_just_the_files_it_needs() -> None:
    files = {number: file_ref(number) for number in range(1000)}
    many = Segments(Segments.of([segment(0, 1, log_index=3), segment(1, 1, log_index=5)]).numbers, files)
    more = Segments.joined([many, Segments.of([segment(2, 1, log_index=2000)])])
    sent = Segments.sharing([many, more, Segments.of(())])
    assert sent == [many, more, []]
    assert [sorted(one.files) for one in sent] == [[3, 5, 2000]] * 3
    assert len({id(one.files) for one in sent}) == 1, "once, however many there are"


def test_what_differs_is_not_equal() -> None:
    one = segment(0, 5)
    found = Segments.of([one])
    assert found == [one]
    assert found == (one,)
    assert found != [one, one]
    assert found != [one._replace(raw_bytes=7)]
    assert found != [one._replace(file=file_ref(9))]
    assert found != 5
    with pytest.raises(TypeError):
        hash(found)
