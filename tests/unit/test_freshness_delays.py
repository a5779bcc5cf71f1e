"""The delays that bench/freshness.py computes from batches and snapshots."""

from __future__ import annotations

import pytest

from bench.freshness import Seen, delays, reaches
from bench.steady import Batch

NOTHING = Seen(0.0, 0, {}, 0)


def seen(at_s: float, number: int, **ends: int) -> Seen:
    return Seen(at_s, number, {int(name[1:]): end for name, end in ends.items()}, 0)


def test_a_batch_is_visible_when_the_last_of_its_partitions_is() -> None:
    batches = [Batch(0.9, 1.0, {0: 10, 1: 10}), Batch(1.9, 2.0, {0: 20})]
    found = delays(batches, [NOTHING, seen(5.0, 1, p0=20, p1=9), seen(9.0, 2, p0=20, p1=10)])
    assert found.of_batch == [8.0, 3.0]
    assert found.oldest == [(5.0, 3.0), (9.0, 8.0)]


def test_a_delayed_commit_shows() -> None:
    batches = [Batch(at, at, {0: 10 * at}) for at in range(1, 11)]
    prompt = delays(batches, [NOTHING, seen(6.0, 1, p0=50), seen(11.0, 2, p0=100)])
    late = delays(batches, [NOTHING, seen(6.0, 1, p0=50), seen(18.0, 2, p0=100)])
    assert (max(prompt.of_batch), max(late.of_batch)) == (5.0, 12.0)
    assert [waited_s for _, waited_s in late.oldest] == [5.0, 12.0], (
        "the second snapshot is the one that was late"
    )


def test_what_is_seen_before_its_acknowledgement_has_waited_for_nothing() -> None:
    assert delays([Batch(1.0, 2.0, {0: 5})], [NOTHING, seen(1.5, 1, p0=5)]).of_batch == [0.0]


@pytest.mark.parametrize(
    ("ends", "wanted", "there"), [({}, {0: 1}, False), ({0: 1}, {0: 1}, True), ({0: 9}, {0: 1, 1: 1}, False)]
)
def test_every_partition_must_have_got_there(
    ends: dict[int, int], wanted: dict[int, int], there: bool
) -> None:
    assert reaches(ends, wanted) is there
