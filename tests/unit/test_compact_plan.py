"""Which archives are merged."""

from __future__ import annotations

import itertools
import random

import pytest

from archiver.catalog.tables import LiveFile
from archiver.objects.paths import Granularity, archive_key, parse_archive_key
from archiver.proto import control_log_pb2 as pb
from archiver.rewrite import verified_write
from archiver.rewrite.compact import TOGETHER_MAX, CompactTarget, runs, smalls
from archiver.rewrite.verified_write import Small
from archiver.runtime.errors import Corrupted
from archiver.stream.archives import FoundArchive, FoundFooter
from tests.support.catalog.tables import TOPIC_ID
from tests.support.objects.memory_store import MemoryObjectStore

OTHER_TOPIC = "ff" * 16
DAY_US = 86_400_000_000
TODAY = 20_000
TARGET = CompactTarget(TOPIC_ID, 1, "day", 1000, TODAY * DAY_US + 5, lambda partition: 0)


def file(
    base: int,
    end: int,
    size: int = 100,
    *,
    partition: int = 0,
    day: int = TODAY - 1,
    spec_id: int = 1,
    topic_id: str = TOPIC_ID,
    granularity: Granularity = "day",
) -> LiveFile:
    path = f"s3://b/{archive_key(topic_id, partition, granularity, day, base, end, 1)}"
    return LiveFile(path, end - base, size, spec_id, (day,), base, end - 1, partition, partition, 1, 1)


def key_of(path: str) -> str | None:
    return path.removeprefix("s3://b/") if path.startswith("s3://b/") else None


def chosen(
    *files: LiveFile, target: CompactTarget = TARGET, given_up: tuple[str, ...] = ()
) -> list[tuple[int, int]]:
    found = smalls(files, key_of, target, given_up)
    return [(one.archive.base, one.archive.end) for one in found]


def test_archives_come_in_the_order_of_partitions_days_and_offsets() -> None:
    files = [
        file(30, 40, partition=1),
        file(10, 20),
        file(20, 25, day=TODAY - 2, partition=1),
        file(0, 10),
        file(20, 30, day=TODAY - 2),
    ]
    assert chosen(*files) == [(20, 30), (0, 10), (10, 20), (20, 25), (30, 40)]


@pytest.mark.parametrize(
    "other",
    [
        file(10, 20, day=TODAY),
        file(10, 20, day=TODAY + 1),
        file(10, 20, spec_id=0),
        file(10, 20, 500),
        file(10, 20, topic_id=OTHER_TOPIC),
        file(10, 20, granularity="hour"),
        LiveFile("s3://b/data/part-0.parquet", 10, 100, 1, (TODAY - 1,), 10, 19, 0, 0, 1, 1),
        LiveFile(f"s3://elsewhere/{key_of(file(10, 20).path)}", 10, 100, 1, (TODAY - 1,), 10, 19, 0, 0, 1, 1),
    ],
    ids=[
        "today",
        "tomorrow",
        "another spec",
        "half of the target",
        "another topic",
        "another granularity",
        "somebody's",
        "elsewhere",
    ],
)
def test_what_does_not_fit_stays(other: LiveFile) -> None:
    assert chosen(file(0, 10), other, file(20, 30, 499)) == [(0, 10), (20, 30)]


def test_what_is_given_up_and_what_begins_below_the_start_stays() -> None:
    given_up = (str(key_of(file(10, 20).path)),)
    assert chosen(file(0, 10), file(10, 20), given_up=given_up) == [(0, 10)]
    started = CompactTarget(TOPIC_ID, 1, "day", 1000, TODAY * DAY_US + 5, lambda partition: 5)
    assert chosen(file(0, 10), file(10, 20), target=started) == [(10, 20)]


def test_a_day_is_closed_when_it_has_ended() -> None:
    before = CompactTarget(TOPIC_ID, 1, "day", 1000, TODAY * DAY_US - 1, lambda partition: 0)
    assert chosen(file(0, 10), target=before) == []
    assert chosen(file(0, 10, day=TODAY - 2), target=before) == [(0, 10)]


def small(base: int, end: int, size: int, *, partition: int = 0, day: int = TODAY - 1) -> Small:
    key = archive_key(TOPIC_ID, partition, "day", day, base, end, 1)
    parsed = parse_archive_key(key)
    assert parsed is not None
    return Small(f"s3://b/{key}", key, size, parsed)


def footers(monkeypatch: pytest.MonkeyPatch, *reported: tuple[int, int] | None) -> None:
    """Replace the footers of archives, in this order: schema version and number of gaps, or None for a
    damaged footer."""
    left = list(reported)

    def read(_objects: object, found: FoundArchive, _cluster_id: str) -> FoundFooter:
        one = left.pop(0)
        if one is None:
            raise Corrupted(f"{found.key} is damaged")
        return FoundFooter(tuple((number, number + 1) for number in range(one[1])), one[0], b"", 2)

    monkeypatch.setattr(verified_write, "read_footer", read)


def cut(found: list[Small], entry_bytes_max: int = 10_000) -> tuple[list[list[int]], list[str]]:
    """The pieces of a run, and the archives left out."""
    skipped: list[str] = []
    made = verified_write.split_run(
        MemoryObjectStore(), found, "c", entry_bytes_max, lambda name, _why: skipped.append(name)
    )
    return [[piece.small.archive.base for piece in one] for one in made], skipped


def test_a_run_is_cut_where_the_schema_changes_and_around_what_is_damaged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = [small(number, number + 1, 10) for number in range(6)]
    footers(monkeypatch, (1, 0), (1, 0), (2, 0), (2, 0), None, (2, 0))
    assert cut(run) == ([[0, 1], [2, 3], [5]], [run[4].key])


def test_a_run_is_cut_before_its_entry_in_the_ledger_would_be_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The size is that of the entry itself, which has every old key and every gap."""
    run = [small(number * 1000, (number + 1) * 1000, 10) for number in range(40)]
    footers(monkeypatch, *((1, number * 7) for number in range(40)))
    pieces_max = 4096
    made, skipped = cut(run, pieces_max)
    assert ([base for together in made for base in together], skipped) == (
        [one.archive.base for one in run],
        [],
    )
    by_base = {one.archive.base: (one, number * 7) for number, one in enumerate(run)}
    for together in made:
        olds = [by_base[base] for base in together]
        gaps = [pb.OffsetRange(base=2**62, end=2**62 + 1)] * sum(count for _, count in olds)
        item = pb.FilesRewritten.File(
            old_key=olds[0][0].key,
            old_size=2**40,
            archive=pb.ArchiveFile(gaps=gaps),
            more=[pb.FilesRewritten.OldFile(key=one.key, size=2**40) for one, _ in olds[1:]],
        )
        assert item.ByteSize() <= pieces_max or len(together) == 1
    assert len(made) < len(run)


def ranges(found: list[Small], bytes_wanted: int = 1000) -> list[list[int]]:
    return [[one.archive.base for one in run] for run in runs(found, bytes_wanted)]


def test_neighbours_become_one_up_to_the_size_that_is_wanted() -> None:
    assert ranges([small(0, 1, 400), small(1, 2, 400), small(2, 3, 400), small(3, 4, 400)]) == [
        [0, 1],
        [2, 3],
    ]
    assert ranges([small(0, 1, 500), small(1, 2, 500), small(2, 3, 1)]) == [[0, 1]]
    assert ranges([small(0, 1, 10)]) == []


@pytest.mark.parametrize(
    "after", [small(2, 3, 10), small(1, 2, 10, partition=1), small(1, 2, 10, day=TODAY - 2), small(0, 2, 10)],
    ids=["a hole", "another partition", "another day", "an overlap"],
)  # fmt: skip
def test_what_does_not_follow_is_not_merged(after: Small) -> None:
    assert ranges([small(0, 1, 10), after]) == []


def test_no_more_than_so_many_become_one() -> None:
    many = [small(number, number + 1, 1) for number in range(TOGETHER_MAX + 2)]
    assert [len(run) for run in runs(many, 10**9)] == [TOGETHER_MAX, 2]


def test_a_large_one_is_not_written_again_for_a_small_one() -> None:
    assert ranges([small(0, 1, 400), small(1, 2, 199)]) == []
    assert ranges([small(0, 1, 400), small(1, 2, 200)]) == [[0, 1]]
    assert ranges([small(0, 1, 300), small(1, 2, 100), small(2, 3, 200)]) == [[0, 1, 2]]


@pytest.mark.parametrize("seed", range(50))
def test_runs_of_random_tables(seed: int) -> None:
    """Each run is contiguous, within one partition and day, within the size limit, and at least 1.5 times
    each part. Repeated merging ends, also while more archives come late."""
    rng = random.Random(seed)
    found, at = [], 0
    for _ in range(rng.randint(2, 60)):
        at += rng.choice([0, 0, 0, 0, 3])
        end = at + rng.randint(1, 9)
        found.append(small(at, end, rng.randint(1, 499), partition=0, day=TODAY - 1))
        at = end
    looks = 0
    while (made := list(runs(found, 1000))) or looks < 5:
        looks += 1
        if looks < 5:
            found.append(small(at, at + 1, rng.randint(1, 499)))
            at += 1
        for run in made:
            assert len(run) > 1
            assert max(1.5 * one.size for one in run) <= sum(one.size for one in run) <= 1000
            assert all(one.archive.end == other.archive.base for one, other in itertools.pairwise(run))
        gone = {one.key for run in made for one in run}
        merged = [
            small(run[0].archive.base, run[-1].archive.end, sum(one.size for one in run)) for run in made
        ]
        kept = [one for one in found if one.key not in gone]
        found = sorted(
            [one for one in (*kept, *merged) if one.size * 2 < 1000], key=lambda one: one.archive.base
        )
    assert looks <= 15
