"""No combination of faults and external changes gets the verdict valid, and no sound table the verdict
invalid.

A small world has two partitions. Its truth is computed row by row from what an engine would read,
independently of the judge.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations

import pytest

from archiver.objects.paths import ArchiveKey
from archiver.runtime.ids import TopicId
from reconcile.audit.rules import PartitionFinding, judge_topic
from reconcile.snapshot.topic_views import FileView, Lost, PartitionView, Removal, TableState, TopicView

TOPIC = TopicId("a" * 32)
STABLE = 40
WATERMARK = 30


def archive(partition: int, base: int, end: int) -> FileView:
    return FileView(
        path=f"{partition}/{base}-{end}",
        record_count=end - base,
        file_size=1000,
        object_size=1000,
        key=ArchiveKey(TOPIC, partition, "day", 20_000, base, end, 1),
        offset_min=base,
        offset_max=end - 1,
        partition_min=partition,
        partition_max=partition,
    )


def foreign(rows: dict[int, tuple[tuple[int, int], ...]], name: str) -> FileView:
    count = sum(high - low for ranges in rows.values() for low, high in ranges)
    return FileView(name, count, 500, 500, rows=rows, rows_in_file=count)


@dataclass(frozen=True)
class World:
    """The input of the judge."""

    files: tuple[FileView, ...]
    reported: int | None = WATERMARK
    watermark: int = WATERMARK
    pending: tuple[tuple[int, int], ...] = ()
    removals: tuple[Removal, ...] = ()
    has_deletes: bool = False
    lost: tuple[Lost, ...] = ()
    doubts: tuple[str, ...] = ()

    def judged(self) -> list[PartitionFinding]:
        """Judge the world. Partition 0 has the faults; partition 1 is sound."""
        places = (
            PartitionView(0, 0, STABLE, STABLE, self.watermark, self.pending, self.lost, self.doubts),
            PartitionView(1, 0, STABLE, STABLE, WATERMARK),
        )
        reported = None if self.reported is None else {0: self.reported, 1: WATERMARK}
        state = TableState(
            "t",
            7,
            reported,
            None if reported is not None else "rolled back",
            self.files,
            self.removals,
            has_deletes=self.has_deletes,
        )
        return judge_topic(TopicView("orders", TOPIC, "iceberg", places, state))


SOUND = World(tuple(archive(partition, base, base + 10) for partition in (0, 1) for base in (0, 10, 20)))


def changed(world: World, base: int, **changes: object) -> World:
    """The world with changed facts about partition 0's archive that begins at `base`."""
    name = f"0/{base}-{base + 10}"
    return replace(
        world,
        files=tuple(replace(file, **changes) if file.path == name else file for file in world.files),  # type: ignore[arg-type]
    )


def added(world: World, *files: FileView) -> World:
    return replace(world, files=(*world.files, *files))


Change = Callable[[World], World]

FAULTS: dict[str, Change] = {
    "file missing": lambda world: replace(world, files=world.files[1:]),
    "object missing": lambda world: changed(world, 10, object_size=None),
    "object of another size": lambda world: changed(world, 20, object_size=999),
    "file doubled": lambda world: added(world, replace(archive(0, 10, 20), path="again")),
    "range overlaps": lambda world: added(world, archive(0, 5, 8)),
    "too few rows": lambda world: changed(world, 10, record_count=9),
    "too many rows": lambda world: changed(world, 10, record_count=11),
    "bounds of another partition": lambda world: changed(world, 20, partition_min=1, partition_max=1),
    "bounds of other offsets": lambda world: changed(world, 20, offset_min=19),
    "rows of another partition": lambda world: changed(world, 20, rows={1: ((20, 30),)}, rows_in_file=10),
    "rows fewer than the name": lambda world: changed(world, 10, rows={0: ((10, 19),)}, rows_in_file=9),
    "rows doubled inside": lambda world: changed(world, 10, rows={0: ((10, 19), (18, 19))}, rows_in_file=10),
    "beyond stable": lambda world: added(world, archive(0, 40, 50)),
    "across stable": lambda world: added(world, archive(0, 35, 45)),
    "beyond the watermark, unwritten": lambda world: added(world, archive(0, 32, 34)),
    "watermark property behind": lambda world: replace(world, reported=20),
    "watermark property ahead": lambda world: replace(world, reported=35),
    "watermark property ahead, half pending": lambda world: replace(world, reported=35, pending=((30, 33),)),
    "no trust in the property": lambda world: replace(world, reported=None),
    "ledger ahead of the log": lambda world: replace(world, watermark=45),
    "foreign rows doubled": lambda world: added(world, foreign({0: ((7, 8),)}, "f1")),
    "foreign rows beyond": lambda world: added(world, foreign({0: ((60, 61),)}, "f2")),
    "foreign rows below zero": lambda world: added(world, foreign({0: ((-3, -1),)}, "f3")),
    "foreign rows of no partition": lambda world: added(world, foreign({2: ((0, 5),)}, "f4")),
    "foreign rows of a negative partition": lambda world: added(world, foreign({-1: ((0, 5),)}, "f5")),
    "archive of no partition": lambda world: added(world, archive(7, 0, 10)),
    "foreign file unread": lambda world: added(world, FileView("f6", 5, 10, 10, unread="no")),
    "foreign file unread, of no partition": lambda world: added(
        world, FileView("f7", 5, 10, 10, partition_min=9, partition_max=9, unread="no")
    ),
    "foreign file with another count": lambda world: added(
        world, replace(foreign({0: ()}, "f8"), record_count=3)
    ),
    "foreign file gone": lambda world: added(world, FileView("f9", 0, 10, None)),
    "delete files": lambda world: replace(world, has_deletes=True),
    "removal that nothing is missing of": lambda world: replace(world, removals=(Removal(9, 3),)),
    "intake lost": lambda world: replace(world, lost=(Lost(36, 38, "intake file x is gone"),)),
    "log and folder apart": lambda world: replace(world, doubts=("an old copy",)),
}
"""Each makes a sound world faulty. None cancels another, except where `mends` says so."""

PEACEFUL: dict[str, Change] = {
    "nothing": lambda world: world,
    "order": lambda world: replace(world, files=world.files[::-1]),
    "backlog pending": lambda world: replace(world, pending=((30, 40),)),
    "no bounds": lambda world: replace(
        world,
        files=tuple(
            replace(f, offset_min=None, offset_max=None, partition_min=None, partition_max=None)
            for f in world.files
        ),
    ),
    "foreign file without rows": lambda world: added(world, foreign({}, "empty")),
    "intake lost that is archived": lambda world: replace(
        world, lost=(Lost(3, 30, "intake file x is gone"),)
    ),
}


def mends(names: tuple[str, ...]) -> bool:
    """Combinations in which one fault explains another: the missing rows were removed by another program, or
    never promised."""
    return "removal that nothing is missing of" in names and any(
        "missing" in name or "rows" in name for name in names
    )


def test_sound_worlds_are_valid() -> None:
    for name, keep in PEACEFUL.items():
        assert {found.verdict for found in keep(SOUND).judged()} == {"valid"}, name


@pytest.mark.parametrize("count", [1, 2, 3])
def test_no_combination_of_faults_is_valid(count: int) -> None:
    for names in combinations(FAULTS, count):
        if count > 1 and mends(names):
            continue
        for other, keep in PEACEFUL.items():
            world = keep(SOUND)
            for name in names:
                world = FAULTS[name](world)
            assert any(found.verdict != "valid" for found in world.judged()), (names, other)


def test_faults_of_one_partition_leave_the_other_valid() -> None:
    elsewhere = {
        "rows of another partition",
        "delete files",
        "no trust in the property",
        "removal that nothing is missing of",
        "foreign file unread",
        "foreign file gone",
    }
    for name in FAULTS.keys() - elsewhere:
        assert FAULTS[name](SOUND).judged()[1].verdict == "valid", name


def runs(offsets: list[int]) -> tuple[tuple[int, int], ...]:
    return tuple((offset, offset + 1) for offset in sorted(offsets))


def random_worlds(seed: int) -> Iterator[World]:
    """Files of random ranges: ours by name, compacted ones by rows, with watermarks near the truth."""
    chance = random.Random(seed)
    for _ in range(1500):
        files: list[FileView] = []
        at = 0
        while at < 36 and chance.random() < 0.93:
            end = at + chance.randint(1, 12)
            kind = chance.random()
            if kind < 0.04:
                pass  # lost
            elif kind < 0.7:
                files.append(archive(0, at, end))
            else:
                rows = [offset for offset in range(at, end) if chance.random() > 0.01]
                rows += chance.choices(rows, k=1) if rows and chance.random() < 0.05 else []
                files.append(foreign({0: runs(rows)}, f"f{at}"))
            if files and chance.random() < 0.03:
                files.append(replace(files[-1], path=files[-1].path + "x"))
            at = end
        reached = max(0, at + chance.choice([0, 0, 0, 0, 0, -1, 1]))
        reported = max(0, reached + chance.choice([0, 0, 0, 0, -2, 2]))
        pending = ((reached, reported),) if reported > reached and chance.random() < 0.5 else ()
        yield World((*files, *SOUND.files[3:]), reported, reached, pending)


@pytest.mark.parametrize("seed", range(8))
def test_random_worlds_get_the_verdict_that_counting_rows_gives(seed: int) -> None:
    seen: Counter[str] = Counter()
    for world in random_worlds(seed):
        rows: Counter[int] = Counter()
        for file in world.files:
            if file.key is not None and file.key.partition == 0:
                rows.update(range(file.key.base, file.key.end))
            elif file.rows is not None:
                rows.update(low for low, _ in file.rows.get(0, ()))
        assert world.reported is not None
        end = max(world.reported, world.watermark)
        once = set(rows) == set(range(end)) and set(rows.values()) <= {1} and end <= STABLE
        agreed = world.reported == world.watermark or world.pending == ((world.watermark, world.reported),)
        found = world.judged()[0]
        assert (found.verdict == "valid") == (once and agreed), (world, found)
        if found.verdict == "valid":
            assert (found.rows, found.missing, found.doubled) == (end, (), ())
        else:
            assert found.why
        missing = {offset for low, high in found.missing for offset in range(low, high)}
        assert missing == set(range(end)) - set(rows)
        assert {offset for low, high in found.doubled for offset in range(low, high)} == {
            o for o, n in rows.items() if n > 1
        }
        seen[found.verdict] += 1
    assert min(seen[verdict] for verdict in ("valid", "invalid", "unknown")) > 20, seen
