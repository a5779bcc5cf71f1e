"""What a leader concludes from one look at the table: archiver/catalog/{evidence,agree,choose,expiry}.py, on
the model's values."""

from __future__ import annotations

from typing import NamedTuple

from tests.model.ledger import Ledger
from tests.model.state import (
    Evidence,
    File,
    Files,
    Swap,
    Table,
    Token,
    Vector,
    current_files,
    foreign,
    lineage,
    uppers,
)
from tests.model.switches import Config


class Held(NamedTuple):
    """The topic waits for somebody."""

    why: str


def judge(config: Config, table: Table, start: Vector) -> Vector | Held:
    """Rule C1: the table's watermarks, from the table alone."""
    head = start if config.start else (0,) * config.partitions
    evidence = table.evidence
    if evidence is None:
        return tuple(map(max, uppers(config, current_files(table)), head))
    vector = tuple(map(max, evidence.watermarks, head))
    line = lineage(table)
    if not config.anc or evidence.snapshot in ancestors(table):
        return vector
    if not line or line[-1].id <= evidence.snapshot:
        return Held("rolled back")
    if config.agree and _disagree(config, table, evidence, head):
        return Held("the files do not confirm the evidence")
    return vector


def ancestors(table: Table) -> frozenset[int]:
    """The current snapshot, its retained ancestors, and the expired parent of the oldest."""
    line = lineage(table)
    return frozenset(snapshot.id for snapshot in line) | frozenset(snapshot.parent for snapshot in line)


def _disagree(config: Config, table: Table, evidence: Evidence, head: Vector) -> bool:
    have = map(max, uppers(config, current_files(table)), head)
    due = map(max, evidence.watermarks, head)
    return any(one > other or not config.same(one, other) for one, other in zip(have, due, strict=True))


def lowered(config: Config, table: Table, start: Vector) -> Vector:
    """What an operator's repair takes for the watermarks: the evidence where it counts, else what the files
    hold."""
    found = judge(config, table, start)
    if not isinstance(found, Held):
        return found
    return tuple(map(max, uppers(config, current_files(table)), start))


def unbroken_since(table: Table) -> int:
    """The lowest sequence number from which on every commit is a retained ancestor of the current
    snapshot."""
    have = {snapshot.id % 100 for snapshot in lineage(table)}
    at = table.last
    while at in have:
        at -= 1
    return at


def complete_since(config: Config, table: Table, token: Token) -> bool:
    """Rule C3: whether an absent path proves that the file was never in the table: every commit since is
    retained, ancestor or not."""
    retained = {snapshot.id % 100 for snapshot in table.snapshots}
    return not config.lineage or (
        token[0] == table.uuid and all(number in retained for number in range(token[1] + 1, table.last + 1))
    )


def aside(config: Config, table: Table, item: File, token: Token) -> bool:
    """Whether the file came since its token with a snapshot that is no ancestor."""
    inside = frozenset[File]().union(*(snapshot.files for snapshot in lineage(table)))
    return (
        config.aside
        and item not in inside
        and any(item == one and sequence > token[1] for one, sequence in table.added)
    )


def paths(config: Config, table: Table, ledger: Ledger) -> Files:
    """Files of ours in the lineage that came since the oldest token of a pending file; with killed ones,
    since the ledger last looked.

    If our newest snapshot of then is no ancestor now, killed files may have come back with older snapshots.
    """
    if not config.lineage:
        return frozenset(item for item in current_files(table) if not foreign(item))
    seen = not config.turn or ledger.snapshot in ancestors(table)
    since = [token[1] for _, token in ledger.pending if token[0] == table.uuid]
    since += [ledger.sequence if seen else 0] if ledger.killed else []
    if not since:
        return frozenset()
    inside = frozenset[File]().union(*(snapshot.files for snapshot in lineage(table)))
    return frozenset(item for item, sequence in table.added if sequence > min(since) and item in inside)


def contradiction(
    config: Config, table: Table, watermarks: Vector, ledger: Ledger, revived: Files
) -> Held | None:
    """Why table and ledger cannot both be the newest."""
    if ledger.table is not None and ledger.table != table.uuid:
        return Held("another table")
    if table.last < ledger.sequence:
        return Held("an older catalog")
    for partition, offset in enumerate(watermarks):
        recorded = ledger.watermarks[partition]
        if offset < recorded and not config.same(offset, recorded):
            return Held("below the ledger")
        if offset > recorded and not _accounted_for(config, table, ledger, partition, offset, revived):
            return Held("beyond the ledger")
    return None


def _accounted_for(
    config: Config, table: Table, ledger: Ledger, partition: int, offset: int, revived: Files
) -> bool:
    if offset <= ledger.planned_to(partition):
        return True
    lost_sight = config.sight and ledger.sequence < unbroken_since(table)
    killed = ledger.killed if lost_sight else revived
    return any(
        item[0] == partition and item[2] == offset for item in (*killed, *(one for one, _ in ledger.pending))
    )


class Choice(NamedTuple):
    """The verdicts on the pending files."""

    committed: Files
    offered: Files
    killed: Files
    reached: Vector
    retired: File | None
    """A file that is offered though retention has passed it: never right."""


def choose(config: Config, table: Table, watermarks: Vector, ledger: Ledger, live: Files) -> Choice:
    """Rule C3, in the order of the log. `live`: paths in the lineage."""
    at = list(watermarks)
    committed: set[File] = set()
    offered: set[File] = set()
    killed: set[File] = set()
    retired: File | None = None
    for item, token in ledger.pending:
        partition, base, end = item[:3]
        if item in live:
            committed.add(item)
            continue
        here = config.same(base, at[partition])
        if end <= ledger.start[partition]:
            if config.start:
                killed.add(item)
                continue
            retired = item if here else retired
        unseen = complete_since(config, table, token) and not aside(config, table, item, token)
        if (here or not config.wmcheck) and unseen:
            offered.add(item)
            at[partition] = max(at[partition], end)
        elif config.chain:
            killed.add(item)
    return Choice(frozenset(committed), frozenset(offered), frozenset(killed), tuple(at), retired)


def forgotten(table: Table, ledger: Ledger) -> frozenset[int]:
    """The snapshots that our own commit may expire, whatever their number and age."""
    needed = min((token[1] for _, token in ledger.pending if token[0] == table.uuid), default=table.last)
    return frozenset(snapshot.id for snapshot in lineage(table)[1:] if snapshot.id % 100 <= needed)


def prepared(
    config: Config,
    table: Table,
    epoch: int,
    choice: Choice,
    drop: Files,
    revived: Files,
    gone: frozenset[int],
) -> Swap:
    """The request that follows from a look."""
    reached = choice.reached
    if not config.merge:  # "assign": only what this commit moves
        reached = tuple(
            offset if any(item[0] == partition for item in choice.offered) else 0
            for partition, offset in enumerate(reached)
        )
    return Swap(
        table.current,
        table.last,
        reached,
        epoch,
        choice.offered,
        drop,
        choice.committed | choice.offered | revived,
        choice.killed,
        gone,
    )
