"""Is the arithmetic of offset ranges right, compared with counting offsets one by one?"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconcile.snapshot.offset_coverage import Range, cover, intersect, merge, subtract, total

_RANGES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8)


def _offsets(ranges: tuple[Range, ...]) -> set[int]:
    return {offset for low, high in ranges for offset in range(low, high)}


def _is_normal(ranges: tuple[Range, ...]) -> bool:
    return all(low < high for low, high in ranges) and all(one[1] < two[0] for one, two in pairwise(ranges))


@given(start=st.integers(0, 30), end=st.integers(0, 30), gaps=_RANGES, spans=_RANGES)
def test_cover_agrees_with_counting(start: int, end: int, gaps: list[Range], spans: list[Range]) -> None:
    counted = Counter(offset for low, high in spans for offset in range(low, high))
    expected = set(range(start, end)) - {offset for low, high in gaps for offset in range(low, high)}
    found = cover(start, end, gaps, spans)
    assert _offsets(found.once) == {offset for offset in expected if counted[offset] == 1}
    assert _offsets(found.missing) == {offset for offset in expected if counted[offset] == 0}
    assert _offsets(found.doubled) == {offset for offset, times in counted.items() if times > 1}
    assert _offsets(found.outside) == set(counted) - expected
    assert all(_is_normal(part) for part in (found.missing, found.doubled, found.outside, found.once))


@given(first=_RANGES, second=_RANGES)
def test_set_operations_agree_with_sets(first: list[Range], second: list[Range]) -> None:
    one, two = merge(first), merge(second)
    assert _is_normal(one)
    assert _offsets(subtract(one, two)) == _offsets(one) - _offsets(two)
    assert _offsets(intersect(one, two)) == _offsets(one) & _offsets(two)
    assert _is_normal(subtract(one, two))
    assert total(one) == len(_offsets(one))


@pytest.mark.parametrize(
    ("spans", "missing", "doubled", "outside"),
    [
        ([(0, 5), (5, 10)], (), (), ()),
        ([(0, 4), (5, 10)], ((4, 5),), (), ()),
        ([(0, 6), (5, 10)], (), ((5, 6),), ()),
        ([(0, 10), (0, 10)], (), ((0, 10),), ()),
        ([(0, 12)], (), (), ((10, 12),)),
        ([], ((0, 10),), (), ()),
    ],
)
def test_cover_of_ten_offsets(
    spans: list[Range], missing: tuple[Range, ...], doubled: tuple[Range, ...], outside: tuple[Range, ...]
) -> None:
    found = cover(0, 10, (), spans)
    assert (found.missing, found.doubled, found.outside) == (missing, doubled, outside)


def test_a_gap_is_neither_missing_nor_allowed_to_hold_rows() -> None:
    assert cover(0, 10, [(3, 5)], [(0, 3), (5, 10)]).missing == ()
    assert cover(0, 10, [(3, 5)], [(0, 10)]).outside == ((3, 5),)
