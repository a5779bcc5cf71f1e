"""Checks that a rebuilt table gets each offset once."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa

from archiver.objects.paths import archive_key
from archiver.runtime.errors import Corrupted
from archiver.runtime.ids import TopicId
from archiver.stream.archives import DescribedArchive, FoundArchive, FoundFooter
from reconcile.repair.rebuild import Chain, chain_of_all, chain_to, described

TOPIC = TopicId("ab" * 16)


def archive(base: int, end: int, epoch: int = 1) -> FoundArchive:
    return FoundArchive(
        archive_key(TOPIC, 0, "day", 20_000, base, end, epoch), 100, TOPIC, 0, base, end, epoch
    )


def ranges(chain: Chain) -> list[tuple[int, int, int]]:
    assert chain.why is None, chain.why
    return [(one.base, one.end, one.epoch) for one in chain.archives]


def test_archives_follow_each_other() -> None:
    assert ranges(chain_to([archive(4, 9), archive(0, 4)], 0, 9)) == [(0, 4, 1), (4, 9, 1)]


def test_nothing_to_cover_needs_nothing() -> None:
    assert ranges(chain_to([archive(0, 4)], 0, 0)) == []


def test_what_lies_beyond_the_end_is_left() -> None:
    assert ranges(chain_to([archive(0, 4), archive(4, 9), archive(2, 8, 3)], 0, 4)) == [(0, 4, 1)]


def test_an_abandoned_attempt_never_overlaps() -> None:
    found = [archive(0, 10), archive(0, 6, 2), archive(6, 13, 2), archive(10, 12, 1)]
    assert ranges(chain_to(found, 0, 13)) == [(0, 6, 2), (6, 13, 2)]


def test_of_one_range_the_newest_epoch_with_the_others_to_compare() -> None:
    chain = chain_to([archive(0, 4, 1), archive(0, 4, 3), archive(0, 4, 2)], 0, 4)
    assert ranges(chain) == [(0, 4, 3)]
    assert [one.epoch for one in chain.twins[chain.archives[0].key]] == [2, 1]


def test_ranges_of_gaps_have_no_archive() -> None:
    assert ranges(chain_to([archive(3, 5), archive(7, 9)], 0, 12, [(0, 3), (5, 7), (9, 12)])) == [
        (3, 5, 1),
        (7, 9, 1),
    ]


def test_a_missing_archive_is_named() -> None:
    chain = chain_to([archive(0, 4), archive(6, 9)], 0, 9)
    assert chain.archives == ()
    assert chain.why is not None
    assert "from 4 on, up to 9" in chain.why


def test_retention_may_have_come_into_the_middle_of_an_archive() -> None:
    assert ranges(chain_to([archive(2, 6), archive(6, 9)], 4, 9)) == [(2, 6, 1), (6, 9, 1)]
    assert ranges(chain_to([archive(4, 9), archive(2, 6)], 4, 9)) == [(4, 9, 1)]


def test_all_there_is_with_its_holes() -> None:
    chain = chain_of_all([archive(2, 4), archive(6, 8), archive(4, 5), archive(6, 8, 2)])
    assert ranges(chain) == [(2, 4, 1), (4, 5, 1), (6, 8, 2)]
    assert chain.holes == ((5, 6),)
    assert (chain.start, chain.end) == (2, 8)
    assert list(chain.twins) == [archive(6, 8, 2).key]
    assert ranges(chain_of_all([])) == []


def test_archives_that_fit_in_no_order_are_a_reason_to_stop() -> None:
    chain = chain_of_all([archive(0, 4), archive(3, 9)])
    assert chain.archives == ()
    assert chain.why is not None
    assert archive(3, 9).key in chain.why


def test_random_histories_against_a_search_of_everything() -> None:
    """Attempts of several epochs over the same log. A chain is found if one exists, and has each offset
    exactly once."""
    for seed in range(300):
        rng = random.Random(seed)
        found = [
            archive(base, rng.randint(base + 1, 9), epoch)
            for epoch in (1, 2)
            for base in rng.sample(range(8), 5)
        ]
        empty = [(low, low + 1) for low in rng.sample(range(9), 2)]
        chain = chain_to(found, 0, 9, empty)
        assert (chain.why is None) == possible(found, empty, 0, 9), seed
        if chain.why is None:
            covered = [offset for one in chain.archives for offset in range(one.base, one.end)]
            assert covered == sorted(set(covered)), seed
            assert set(range(9)) - set(covered) <= {low for low, _ in empty}, seed


def possible(found: list[FoundArchive], empty: list[tuple[int, int]], at: int, end: int) -> bool:
    if at == end:
        return True
    steps = [one.end for one in found if one.base == at] + [high for low, high in empty if low == at]
    return any(to <= end and possible(found, empty, to, end) for to in steps)


SCHEMA = pa.schema([])
FOOTER = FoundFooter(((1, 2),), 1, b"d" * 32, 2)


def agree(footer: FoundFooter, rows: int = 3, third: FoundFooter = FOOTER) -> bool:
    """Whether archives of one range are accepted: two of three records, and one with `footer` and `rows`."""
    newest, other, oldest = (archive(0, 4, epoch) for epoch in (3, 2, 1))
    described_as = {
        found.key: DescribedArchive(found, kept, SCHEMA, cast("Any", SimpleNamespace(record_count=count)))
        for found, kept, count in ((newest, FOOTER, 3), (other, footer, rows), (oldest, third, 3))
    }
    parts: Any = SimpleNamespace(describe=lambda found: described_as[found.key])
    try:
        (one,) = described(parts, {0: chain_to([newest, other, oldest], 0, 4)})
    except Corrupted as error:
        # The operator must know which two.
        named = [one.key in str(error) for one in (newest, other, oldest)]
        return named.count(True) != 2
    return one.found == newest


def test_archives_of_one_range_have_the_same_records() -> None:
    assert agree(FOOTER)
    assert not agree(replace(FOOTER, records_digest=b"e" * 32))


def test_digests_of_two_versions_are_not_compared() -> None:
    earlier = replace(FOOTER, digest_version=1, records_digest=b"e" * 32)
    assert agree(earlier)
    # Two of the earlier version are compared with each other.
    assert not agree(earlier, third=replace(earlier, records_digest=b"f" * 32))
    assert agree(earlier, third=earlier)
    assert not agree(earlier, rows=4)
    assert not agree(replace(earlier, gaps=((2, 3),)))
