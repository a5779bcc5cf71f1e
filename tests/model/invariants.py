"""What must hold in every state, and what must have come about when everything is quiet."""

from __future__ import annotations

from typing import NamedTuple

from tests.model.ledger import fold
from tests.model.state import (
    TWICE,
    Budget,
    File,
    Snapshot,
    State,
    Vector,
    current_files,
    foreign,
    retained_files,
    rows,
    uppers,
)
from tests.model.switches import INDEX, Config


class Past(NamedTuple):
    """What somebody else has done to the table so far."""

    rolled_back: bool
    """Or dropped."""
    reshaped: bool
    """Any of that; or compacted, or parted from rows by retention."""


def past(config: Config, budget: Budget) -> Past:
    """As what is left of the budget tells."""

    def happened(*faults: str) -> bool:
        return any(budget[INDEX[name]] < config.budget[INDEX[name]] for name in faults)

    rolled_back = happened("rollback", "forward", "drop")
    return Past(rolled_back, rolled_back or happened("compact", "retain"))


def violation(config: Config, state: State, before: Past) -> str | None:
    """In any state, in every retained snapshot: nothing dangles, nothing is twice or missing, and what is
    said is true."""
    start = fold(config, state.log).start
    for snapshot in state.table.snapshots:
        why = _of_snapshot(config, state, snapshot, start)
        if why is not None:
            return why
    if not state.table.snapshots and any(
        gone > head for gone, head in zip(state.vacuumed, start, strict=True)
    ):
        return "LOSS: intake is vacuumed, the table is empty"
    return None if before.rolled_back else _undisturbed(config, state)


def _of_snapshot(config: Config, state: State, snapshot: Snapshot, start: Vector) -> str | None:
    if not snapshot.files <= state.objects:
        for item in snapshot.files:
            stored: File = item if item[3] < TWICE else (*item[:3], item[3] - TWICE, item[4])
            if stored not in state.objects:
                return f"DANGLING file {stored} in snapshot {snapshot.id}"
    gone = state.vacuumed if snapshot.id == state.table.current else start
    key = (snapshot.files, snapshot.said, start, gone)
    if key not in config.memo:
        config.memo[key] = _of_rows(config, snapshot, start, gone)
    why: str | None = config.memo[key]
    return why and f"{why}, snapshot {snapshot.id}"


def _of_rows(config: Config, snapshot: Snapshot, start: Vector, gone: Vector) -> str | None:
    seen: list[set[int]] = [set() for _ in range(config.partitions)]
    for item in snapshot.files:
        for offset in rows(config, item):
            if offset in seen[item[0]]:
                return f"DOUBLED offset {item[0]}:{offset}"
            seen[item[0]].add(offset)
    for partition, have in enumerate(seen):
        top, head = max(have, default=-1), start[partition]
        missing = min(
            (offset for offset in config.data if offset >= head and offset not in have),
            default=config.offsets,
        )
        if missing < top:
            return f"GAP in {partition} at {missing}, rows reach {top}"
        if snapshot.said is not None and (
            missing < snapshot.said[partition] or top >= snapshot.said[partition]
        ):
            return f"EVIDENCE of {partition} says {snapshot.said[partition]}, rows reach {top}"
        if missing < gone[partition]:
            return (
                f"LOSS in {partition}: intake is vacuumed below {gone[partition]}, the rows are not in the "
                "table"
            )
    return None


def _undisturbed(config: Config, state: State) -> str | None:
    """While nobody rolled back or dropped anything."""
    ledger = fold(config, state.log)
    true = uppers(config, current_files(state.table))
    place = config.place
    if any(
        place(one) > max(place(two), place(head))
        for one, two, head in zip(ledger.watermarks, true, ledger.start, strict=True)
    ):
        return f"LEDGER says {ledger.watermarks}, the table has {true}"
    for daemon in state.daemons:
        if daemon.at == "held":
            return f"FALSE ALARM: held ({daemon.item}), without an external cause"
    return None


def unfinished(config: Config, state: State, before: Past) -> str | None:
    """When one daemon has worked alone until it had nothing left to do: it leads, everything is in the table
    once, and all agree."""
    ledger, files = fold(config, state.log), current_files(state.table)
    deposed = [daemon for daemon in state.daemons if daemon.at != "off" and daemon.epoch < ledger.epoch]
    if deposed:
        return f"DEPOSED for ever: rests in epoch {deposed[0].epoch}, the log is in epoch {ledger.epoch}"
    for partition in range(config.partitions):
        head = ledger.start[partition]
        have = sorted(
            offset
            for item in files
            if item[0] == partition
            for offset in rows(config, item)
            if offset >= head
        )
        if have != [offset for offset in config.data if offset >= head]:
            return f"INCOMPLETE: {partition} has {have}"
        if config.place(ledger.watermarks[partition]) != config.offsets:
            return f"LEDGER ends at {ledger.watermarks}"
    if ledger.pending:
        return f"PENDING for ever: {ledger.pending}"
    wrong = ledger.killed & files
    if wrong:
        return f"KILLED, and in the table: {sorted(wrong)}"
    orphans = {
        item for item in state.objects - retained_files(state.table) - state.doomed if not foreign(item)
    }
    if orphans:
        return f"ORPHANS {sorted(orphans)}"
    if not before.reshaped:
        if not ledger.done <= files:
            return f"LEDGER says committed, the table lacks {sorted(ledger.done - files)}"
        if not files <= ledger.done:
            return f"UNKNOWN to the ledger: {sorted(files - ledger.done)}"
    return None
