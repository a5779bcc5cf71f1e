"""The state of the model, and what can be read from it.

All of it is immutable and hashable. A file is (partition, base, end, epoch, first row): the epoch is 90 to 99
for somebody's compaction, and above 1000 for the second entry of one path; the first row is above the base
only if a refinement passed over intake that was gone. Log entries are tuples that begin with their kind:

    ('E', epoch, owner)   ('D', epoch, file, token)   ('C', epoch, watermarks, committed, killed, sight)   ('T', epoch, partition, start)

A token is (table uuid, last sequence number); a sight is that and our newest snapshot (without one, the
current). Intake holds the offsets of every partition from the start.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.model.switches import Config

File = tuple[int, int, int, int, int]
Files = frozenset[File]
Vector = tuple[int, ...]
Token = tuple[int, int]
Sight = tuple[int, int, int]
Entry = tuple[Any, ...]
Budget = tuple[int, ...]

NOTHING: Files = frozenset()
FOREIGN_FIRST, TWICE = 90, 1000


class Evidence(NamedTuple):
    """The table property: one copy per table, set with the snapshot that it names; a rollback leaves it as it
    is."""

    snapshot: int
    watermarks: Vector
    epoch: int


class Snapshot(NamedTuple):
    """One retained snapshot."""

    id: int
    """100 times the table's uuid, plus the sequence number."""
    parent: int
    files: Files
    said: Vector | None
    """What the property said of it when it was committed, for the invariants alone; None if it is somebody
    else's."""


class Table(NamedTuple):
    """What the catalog points to."""

    uuid: int
    current: int
    last: int
    """The last sequence number."""
    snapshots: tuple[Snapshot, ...]
    evidence: Evidence | None
    added: frozenset[tuple[File, int]] = frozenset()
    """Files of ours that some retained snapshot holds, with the sequence number that each came with."""


class Daemon(NamedTuple):
    """One of two. A pause is that it is not scheduled."""

    at: str
    """off, takeover, look, idle, upload, written, check, swap, property, told, held."""
    epoch: int
    view: int
    """Entries of the log that it has read."""
    own: tuple[Entry, ...]
    """Entries that it wrongly believes appended, into slots that were trimmed."""
    item: Any
    """The file in work; or what is to be told to the ledger."""
    seen: Any
    """What the last look found: a sight, or the swap that follows from it."""
    fence: int
    """-1, or the snapshot beyond which one of the own epoch is needed before a file that the ledger knows may
    be deleted."""
    condemned: File | None
    """What its cleaner has decided to delete; it deletes later, also when the leadership is lost."""


class Swap(NamedTuple):
    """A request to the catalog."""

    base: int
    sequence: int
    watermarks: Vector
    """All partitions, once it is applied."""
    epoch: int
    add: Files
    drop: Files
    committed: Files
    """Of the pending files, those that were in the table when it was looked at, and killed ones that are in
    it all the same."""
    killed: Files
    gone: frozenset[int]
    """Snapshots that the commit expires."""


class State(NamedTuple):
    """Everything."""

    log: tuple[Entry, ...]
    trimmed: int
    """Entries that are gone from the front of the log."""
    objects: Files
    """Archives that exist."""
    table: Table
    vacuumed: Vector
    """Per partition: intake below is gone."""
    doomed: Files
    """What an expirer will still delete."""
    daemons: tuple[Daemon, Daemon]
    late_swap: Swap | None
    """A request whose sender has given it up and that may still be applied."""
    late_append: tuple[int, Entry] | None
    budget: Budget


OFF = Daemon("off", 0, 0, (), None, None, 0, None)


def initial(config: Config) -> State:
    """Nothing archived yet, an empty table, nobody leads."""
    table = Table(0, 0, 0, (), None)
    return State(
        (), 0, NOTHING, table, (0,) * config.partitions, NOTHING, (OFF, OFF), None, None, config.budget
    )


def foreign(item: File) -> bool:
    """Whether somebody else made the file."""
    return FOREIGN_FIRST <= item[3] < TWICE


def sight(table: Table) -> Sight:
    """What is remembered of a look."""
    return table.uuid, table.last, table.current if table.evidence is None else table.evidence.snapshot


def rows(config: Config, item: File) -> list[int]:
    """The offsets of its records."""
    found: list[int] | None = config.memo.get(item)
    if found is None:
        found = config.memo[item] = [
            offset for offset in config.data if max(item[1], item[4]) <= offset < item[2]
        ]
    return found


def current_files(table: Table) -> Files:
    """Of the current snapshot."""
    return next((snapshot.files for snapshot in table.snapshots if snapshot.id == table.current), NOTHING)


def retained_files(table: Table) -> Files:
    """Of all retained snapshots."""
    return NOTHING.union(*(snapshot.files for snapshot in table.snapshots))


def lineage(table: Table) -> list[Snapshot]:
    """The current snapshot and its retained ancestors."""
    known = {snapshot.id: snapshot for snapshot in table.snapshots}
    found: list[Snapshot] = []
    at = known.get(table.current)
    while at is not None:
        found.append(at)
        at = known.get(at.parent)
    return found


def uppers(config: Config, files: Files) -> Vector:
    """Per partition: behind the last record, as the bounds of the files tell; they know nothing of gaps."""
    found: Vector | None = config.memo.get(files)
    if found is None:
        ends = [0] * config.partitions
        for item in files:
            inside = rows(config, item)
            if inside:
                ends[item[0]] = max(ends[item[0]], inside[-1] + 1)
        found = config.memo[files] = tuple(ends)
    return found


def committed(
    table: Table, add: Files, drop: Files, ours: tuple[Vector, int] | None, gone: frozenset[int] = frozenset()
) -> Table:
    """The table with one more snapshot. `ours`: the vector and epoch that our evidence says; None for
    somebody else's commit."""
    sequence = table.last + 1
    number = table.uuid * 100 + sequence
    before = current_files(table)
    # A set cannot show that a path was added twice: the second entry is marked.
    twice: Files = frozenset((p, base, end, epoch + TWICE, low) for p, base, end, epoch, low in add & before)
    snapshot = Snapshot(
        number, table.current, (before - drop) | add | twice, None if ours is None else ours[0]
    )
    kept = tuple(item for item in table.snapshots if item.id not in gone)
    evidence = table.evidence if ours is None else Evidence(number, *ours)
    added = table.added if ours is None else table.added | {(item, sequence) for item in add}
    return _pruned(Table(table.uuid, number, sequence, (*kept, snapshot), evidence, added))


def without(table: Table, gone: frozenset[int]) -> Table:
    """The table when those snapshots have been expired."""
    return _pruned(table._replace(snapshots=tuple(item for item in table.snapshots if item.id not in gone)))


def _pruned(table: Table) -> Table:
    held = retained_files(table)
    return table._replace(added=frozenset(item for item in table.added if item[0] in held))


def acceptable(config: Config, table: Table, swap: Swap) -> bool:
    """What the catalog checks (rule C5). As in pyiceberg, the sequence number is not asked for without a
    parent."""
    if not swap.gone <= {snapshot.id for snapshot in table.snapshots}:
        return False
    if not config.base:
        return True
    if (swap.base != table.current) if config.uuid else (swap.base % 100 != table.current % 100):
        return False
    return not config.seq or swap.sequence == table.last or swap.base % 100 == 0


def spend(budget: Budget, index: int) -> Budget | None:
    """One less; None if nothing is left."""
    return None if budget[index] < 1 else (*budget[:index], budget[index] - 1, *budget[index + 1 :])
