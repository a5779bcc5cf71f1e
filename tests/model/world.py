"""What everybody else may do: requests that land late, an expirer, a third party with rights on the table."""

from __future__ import annotations

from typing import Any

from tests.model.daemon import Step, applied
from tests.model.state import (
    State,
    Table,
    acceptable,
    committed,
    current_files,
    lineage,
    retained_files,
    rows,
    spend,
    without,
)
from tests.model.switches import INDEX, Config


def world(config: Config, state: State) -> list[Step]:
    """All next states that are nobody's of ours."""
    found: list[Step] = []
    late(config, state, found)
    third_party(config, state, found)
    return found


def late(config: Config, state: State, found: list[Step]) -> None:
    """Requests that were given up, and objects that an expirer still deletes."""
    swap = state.late_swap
    if swap is not None:
        if acceptable(config, state.table, swap):
            found.append(
                ("LATE swap lands", state._replace(table=applied(config, state.table, swap), late_swap=None))
            )
        else:
            found.append(("late swap is refused", state._replace(late_swap=None)))
    if state.late_append is not None:
        index, entry = state.late_append
        log = (*state.log, entry) if index == len(state.log) else state.log
        found.append((f"late append of {entry[0]}", state._replace(late_append=None, log=log)))
    if state.doomed:
        found.append(
            (
                "expirer deletes objects",
                state._replace(objects=state.objects - state.doomed, doomed=frozenset()),
            )
        )


def third_party(config: Config, state: State, found: list[Step]) -> None:
    """Compaction, expiry, rollback and its opposite, drop."""
    table = state.table

    def act(name: str, label: str, **changes: Any) -> None:
        budget = spend(state.budget, INDEX[name])
        if budget is not None:
            found.append((f"THIRD PARTY {label}", state._replace(budget=budget, **changes)))

    for partition in range(config.partitions):
        compact(config, state, partition, found)
    if len(table.snapshots) > 1:
        after = without(
            table, frozenset(snapshot.id for snapshot in table.snapshots if snapshot.id != table.current)
        )
        doomed = state.doomed | (retained_files(table) - current_files(after))
        act("expire", f"expires all but {table.current}", table=after, doomed=doomed)
    line = lineage(table)
    for snapshot in line[1:]:
        act("rollback", f"rolls back to {snapshot.id}", table=table._replace(current=snapshot.id))
    if table.snapshots:
        act(
            "branch",
            "commits to a branch",
            table=committed(table, frozenset(), frozenset(), None)._replace(current=table.current),
        )
    for snapshot in set(table.snapshots) - set(line):
        act("forward", f"goes to {snapshot.id}", table=table._replace(current=snapshot.id))
    if table.snapshots:
        again = Table(table.uuid + 1, (table.uuid + 1) * 100, 0, (), None)
        act(
            "drop",
            "drops the table (purge) and makes it anew",
            table=again,
            doomed=state.doomed | retained_files(table),
        )


def compact(config: Config, state: State, partition: int, found: list[Step]) -> None:
    """All files of a partition become one, of a name that was never used."""
    budget = spend(state.budget, INDEX["compact"])
    files = current_files(state.table)
    old = frozenset(item for item in files if item[0] == partition)
    offsets = sorted(offset for item in old for offset in rows(config, item))
    if budget is None or not offsets:
        return
    item = (partition, offsets[0], offsets[-1] + 1, 99 - budget[INDEX["compact"]], offsets[0])
    if item not in files:
        table = committed(state.table, frozenset([item]), old, None)
        found.append(
            (
                f"THIRD PARTY compacts {partition}",
                state._replace(objects=state.objects | {item}, table=table, budget=budget),
            )
        )
