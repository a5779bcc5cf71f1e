"""Are the right manifests merged, and how often is an entry written again?"""

from __future__ import annotations

import pytest

from archiver.catalog.merging import LARGE_BYTES, SMALL_BYTES, TARGET_BYTES, TOGETHER_MIN, ManifestSize, groups

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


@pytest.mark.parametrize("commit_bytes", [5_000, 11_000, 140_000, 600_000])
def test_what_a_merge_costs_does_not_grow_with_the_table(commit_bytes: int) -> None:
    """From commits 100 to 10,000, with a merge every 25 commits and entries that take as much room merged as before."""
    manifests: list[tuple[int, dict[int, int]]] = []
    """Newest first: (bytes, commit → how often its entries were written)."""
    merged_bytes_max = 0
    for commit in range(1, 10_001):
        manifests.insert(0, (commit_bytes, {commit: 1}))
        if commit % MERGE_EVERY:
            continue
        chosen = groups([ManifestSize(length, 0) for length, _ in manifests])
        merged_bytes_max = max(merged_bytes_max, sum(manifests[position][0] for group in chosen for position in group))
        replaced = dict(enumerate(manifests))
        for group in chosen:
            parts = [replaced.pop(position) for position in group]
            entries = {number: written + 1 for _, more in parts for number, written in more.items()}
            replaced[group[0]] = (sum(length for length, _ in parts), entries)
        manifests = [replaced[position] for position in sorted(replaced)]
    written = [times for _, entries in manifests for times in entries.values()]
    assert len(written) == 10_000, "an entry is lost or doubled"
    assert max(written) <= 2 + SMALL_BYTES // commit_bytes // MERGE_EVERY + 2
    assert merged_bytes_max <= 3 * TARGET_BYTES
    # Of entries that are large in number, manifests of the target's size are the fewest there can be.
    assert len(manifests) <= 2 * TOGETHER_MIN + MERGE_EVERY + 10_000 * commit_bytes // LARGE_BYTES
