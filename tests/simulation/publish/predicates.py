"""What must hold of a table and its ledger, each rule once and by name.

Pure: from what is seen to what is wrong with it, None if nothing is. `data` are, per partition, the offsets
that hold a committed and stable record, ascending. Rows that were removed on purpose count as held. Must know
nothing of the product's code but its words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Data = Sequence[Sequence[int]]
"""Per partition, ascending."""


@dataclass(frozen=True)
class SnapshotSeen:
    """One snapshot of a table, with the rows that its files really hold."""

    snapshot_id: int
    ours: bool
    """Committed by the archiver."""
    paths: tuple[str, ...]
    added: tuple[str, ...]
    """Paths that its parent does not have."""
    held: tuple[tuple[int, ...], ...]
    """Per partition the offsets of all rows, sorted; one that is there twice stands there twice."""
    removed: frozenset[tuple[int, int]] = frozenset()
    """(partition, offset) of rows that were removed on purpose, in this snapshot or before."""

    def reached(self, partition: int) -> tuple[int, ...]:
        """Held or removed on purpose; nothing in a partition that is younger than the snapshot."""
        held = self.held[partition] if partition < len(self.held) else ()
        gone = [offset for number, offset in self.removed if number == partition]
        return tuple(sorted({*held, *gone})) if gone else held


def no_offset_twice(seen: SnapshotSeen) -> str | None:
    """No record is in the table twice."""
    for partition, offsets in enumerate(seen.held):
        if len(set(offsets)) != len(offsets):
            doubled = [offset for offset, count in Counter(offsets).items() if count > 1]
            return f"partition {partition} holds {doubled} more than once"
    return None


def no_path_twice(seen: SnapshotSeen) -> str | None:
    """No file is in a snapshot twice."""
    doubled = [path for path, count in Counter(seen.paths).items() if count > 1]
    return f"{doubled} more than once" if doubled else None


def no_path_again(seen: SnapshotSeen, ever: frozenset[str] | set[str]) -> str | None:
    """A path that was once in any snapshot is never added again (rule P2)."""
    again = [path for path in seen.added if path in ever]
    return f"{again} were in the table before" if again and seen.ours else None


def no_hole(seen: SnapshotSeen, data: Data) -> str | None:
    """Below the last row of a partition nothing is missing, and nothing is there that is no stable record."""
    for partition, offsets in enumerate(data):
        reached = seen.reached(partition)
        if reached and tuple(offsets[: len(reached)]) != reached:
            return f"partition {partition} holds {list(reached)}, its records are {list(offsets)}"
    return None


def evidence_is_rows(seen: SnapshotSeen, watermarks: Sequence[int], data: Data) -> str | None:
    """What a commit of ours says of itself is what it holds: every record below the watermark, none at or
    beyond."""
    for partition, offsets in enumerate(data):
        told = watermarks[partition] if partition < len(watermarks) else 0
        expected = tuple(offset for offset in offsets if offset < told)
        if seen.reached(partition) != expected:
            return (
                f"partition {partition} is said to be complete up to {told}, and holds "
                f"{list(seen.reached(partition))}"
            )
    return None


def ledger_within_table(watermark: Callable[[int], int], seen: SnapshotSeen | None, data: Data) -> str | None:
    """The ledger is never ahead of the table."""
    for partition, offsets in enumerate(data):
        told = watermark(partition)
        have = () if seen is None else seen.reached(partition)
        lacking = sorted({offset for offset in offsets if offset < told}.difference(have))
        if lacking:
            return f"the ledger is at {told} of partition {partition}, the table lacks {lacking}"
    return None


def referenced_exist(seen: SnapshotSeen, exists: Callable[[str], bool]) -> str | None:
    """Every object that a retained snapshot names is there."""
    gone = [path for path in seen.paths if not exists(path)]
    return f"{gone} are gone" if gone else None


def vacuumed_is_in_table(seen: Sequence[SnapshotSeen], partition: int, offsets: Sequence[int]) -> str | None:
    """What is vacuumed from intake is in every retained snapshot (rule D3)."""
    if not seen:
        return f"offsets {list(offsets)} of partition {partition} were vacuumed, and there is no table"
    for one in seen:
        lacking = sorted(set(offsets).difference(one.reached(partition)))
        if lacking:
            return (
                f"offsets {lacking} of partition {partition} were vacuumed, and snapshot {one.snapshot_id} "
                "lacks them"
            )
    return None


def streams_find(data: Sequence[int], start: int, holds: Callable[[int], bool]) -> str | None:
    """Every stable record of a partition that retention has left stands in an archive that readers take, or
    in intake."""
    lost = [offset for offset in data if offset >= start and not holds(offset)]
    return f"offsets {lost} stand in no archive that readers take, and not in intake" if lost else None


def complete_once(seen: SnapshotSeen | None, data: Data) -> str | None:
    """In the end every stable record is in the table exactly once."""
    for partition, offsets in enumerate(data):
        have = () if seen is None else seen.reached(partition)
        if have != tuple(offsets):
            return f"partition {partition} holds {list(have)}, its records are {list(offsets)}"
    return None


def times_never_step_back(times: Mapping[int, int]) -> str | None:
    """Ingest times of a partition, by offset."""
    last = 0
    for offset in sorted(times):
        if times[offset] < last:
            return f"offset {offset} has ingest time {times[offset]}, the one before {last}"
        last = times[offset]
    return None
