"""Checks which manifests are merged, and how often an entry is rewritten."""

from __future__ import annotations

import pytest

from archiver.catalog.iceberg.producers import (
    LARGE_BYTES,
    SMALL_BYTES,
    TARGET_BYTES,
    TOGETHER_MIN,
    ManifestSize,
    groups,
)

MERGE_EVERY = 25


def sizes(*lengths: int, spec_id: int = 0) -> list[ManifestSize]:
    return [ManifestSize(length, spec_id) for length in lengths]


def test_small_manifests_become_one() -> None:
    assert groups(sizes(10, 20, 30)) == [[0, 1, 2]]


def test_one_alone_stays() -> None:
    assert groups(sizes(10)) == []
    assert groups([]) == []


def test_partition_specs_are_kept_apart() -> None:
    assert groups([*sizes(10, 10), *sizes(10, spec_id=1), *sizes(10)]) == [[0, 1, 3]]


def test_grown_ones_wait_for_each_other() -> None:
    assert groups(sizes(*[SMALL_BYTES] * (TOGETHER_MIN - 1), 10, 10)) == [[TOGETHER_MIN - 1, TOGETHER_MIN]]
    assert groups(sizes(*[SMALL_BYTES] * TOGETHER_MIN)) == [list(range(TOGETHER_MIN))]


def test_large_ones_are_left_alone() -> None:
    assert groups(sizes(*[LARGE_BYTES] * 100, 10)) == []


def test_the_oldest_grown_ones_go_first_and_no_more_than_the_target() -> None:
    each = TARGET_BYTES // 5
    oldest, next_ones = groups(sizes(*[each] * (TOGETHER_MIN + 5)))
    assert oldest == list(range(TOGETHER_MIN, TOGETHER_MIN + 5))
    assert next_ones == list(range(TOGETHER_MIN - 5, TOGETHER_MIN))


def test_no_more_small_ones_than_the_target() -> None:
    count = 2 * TARGET_BYTES // (SMALL_BYTES - 1)
    (group,) = groups(sizes(*[SMALL_BYTES - 1] * count))
    assert group == list(range(TARGET_BYTES // (SMALL_BYTES - 1)))


HEADER_BYTES = 4634
"""Size of the header of a manifest of a table of orders."""
ENTRY_BYTES = 194
"""Compressed size of each of its entries. Both sizes are as pyiceberg writes them."""


@pytest.mark.parametrize(
    ("entries", "entry_bytes", "written_max"),
    [(1, ENTRY_BYTES, 15), (10, ENTRY_BYTES, 4), (200, ENTRY_BYTES, 3), (1, 1000, 6), (600, 1000, 2)],
)
def test_what_a_merge_costs_does_not_grow_with_the_table(
    entries: int, entry_bytes: int, written_max: int
) -> None:
    """Covers commits 100 to 10,000. Each adds a manifest of the same number of entries, with a merge every 25
    commits."""
    manifests: list[dict[int, int]] = []
    """Newest first: commit → how often its entries were written."""
    merged_bytes_max = 0

    def size(manifest: dict[int, int]) -> int:
        return HEADER_BYTES + len(manifest) * entries * entry_bytes

    for commit in range(1, 10_001):
        manifests.insert(0, {commit: 1})
        if commit % MERGE_EVERY:
            continue
        chosen = groups([ManifestSize(size(one), 0) for one in manifests])
        merged_bytes_max = max(
            merged_bytes_max, sum(size(manifests[position]) for group in chosen for position in group)
        )
        replaced = dict(enumerate(manifests))
        for group in chosen:
            parts = [replaced.pop(position) for position in group]
            replaced[group[0]] = {number: written + 1 for more in parts for number, written in more.items()}
        manifests = [replaced[position] for position in sorted(replaced)]
    written = [times for one in manifests for times in one.values()]
    assert len(written) == 10_000, "an entry is lost or doubled"
    assert max(written) == written_max, "the pages say how often: decision 0032, performance.md"
    assert merged_bytes_max <= 3 * TARGET_BYTES
    # With many entries, manifests of the target's size are the fewest possible.
    assert len(manifests) <= 2 * TOGETHER_MIN + MERGE_EVERY + 10_000 * entries * entry_bytes // LARGE_BYTES
