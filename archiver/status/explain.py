"""Decides where one record is, and why it is not further.

Pure: from the facts about one offset in logs, store and table to a state, an exit code and a reason. A fault
is reported only if it was observed, and a correct state only if it was observed. Anything that could not be
read is `unknown`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from archiver.publish.progress import HeldBack
from archiver.runtime.exit_codes import FINE, UNKNOWN, USAGE, WRONG
from archiver.runtime.rfc3339 import format_time
from archiver.runtime.text import counted, moment
from intake.log.aborted import Aborted


# --- Output
def document_of(found: Explanation) -> dict[str, object]:
    """Document of `archiver explain --output json`; a value that does not apply or was not seen is null."""
    facts = found.facts
    return {
        "topic": facts.topic,
        "topic_id": facts.topic_id,
        "partition": facts.partition,
        "offset": facts.offset,
        "state": found.state,
        "why": found.why,
        "kind": facts.kind,
        "next": facts.next,
        "stable": facts.stable,
        # Programs read the keys of this document, so they keep their names.
        "archived_to": facts.written,
        "watermark": facts.watermark,
        "transaction": None
        if facts.transaction is None
        else {"own": facts.own, **facts.transaction.to_json()},
        "aborted_by": _aborted(facts),
        "intake": None if facts.intake is None else _intake(facts.intake),
        "archive": None if facts.archive is None else _archive(facts.archive),
        "table": None if facts.table is None else _table(facts.table),
        "no_table": facts.no_table,
        "reason": facts.reason,
        "halted": facts.halted,
    }


def _time(time_us: int | None) -> str | None:
    return None if time_us is None else format_time(time_us)


def _aborted(facts: Facts) -> dict[str, object] | None:
    by = facts.aborted
    if by is None:
        return None
    return {
        "transactional_id": by.transactional_id,
        "producer_id": by.producer_id,
        "epoch": by.epoch,
        "since": _time(by.started_us),
        "ended": _time(by.ended_us),
        "log_index": by.log_index,
        "how": by.how,
    }


def _intake(sight: IntakeSight) -> dict[str, object]:
    return {
        "log_index": sight.log_index,
        "shelf": sight.shelf,
        "key": sight.key,
        "row_group": sight.row_group,
        "row": sight.row,
        "deleted": sight.gone,
        "condemned": _time(sight.condemned_us),
        "accepted": _time(sight.accept_us),
        "ingested": _time(sight.ingest_us),
        "damage": sight.damage,
        "producer": None
        if sight.producer is None
        else {"producer_id": sight.producer.producer_id, "epoch": sight.producer.epoch},
    }


def _archive(sight: ArchiveSight) -> dict[str, object]:
    return {
        "key": sight.key,
        "base": sight.base,
        "end": sight.end,
        "epoch": sight.epoch,
        "stored": _time(sight.stored_us),
        "pending": sight.pending,
        "control_index": sight.control_index,
        "damage": sight.damage,
    }


def _table(sight: TableSight) -> dict[str, object]:
    return {
        "table": sight.name,
        "catalog": sight.catalog,
        "snapshot_id": sight.snapshot_id,
        "files": [asdict(file) for file in sight.files],
        "added_by": _snapshot(sight.added),
        "removed_by": _snapshot(sight.removed),
        "visible_rows": sight.visible,
    }


def _snapshot(sight: SnapshotSight | None) -> dict[str, object] | None:
    if sight is None:
        return None
    return {"snapshot_id": sight.snapshot_id, "time": _time(sight.time_us), "operation": sight.operation}


def lines_of(found: Explanation) -> Iterator[str]:
    """Lines of the text output, the most important first."""
    facts = found.facts
    yield (
        f"{facts.topic}:{facts.partition}:{facts.offset} ({facts.topic_id}): {found.state.replace('_', ' ')}"
    )
    yield f"  {found.why}"
    if facts.intake is not None:
        yield from _intake_lines(facts.intake, needed=facts.offset >= facts.watermark)
    if facts.archive is not None:
        archive = facts.archive
        when = "gone" if archive.stored_us is None else f"stored {moment(archive.stored_us)}"
        yield f"  archive    {archive.key}"
        yield f"             offsets {archive.base} to {archive.end - 1}, epoch {archive.epoch}, {when}"
        if archive.pending:
            yield f"             not in the table yet; entry {archive.control_index} of the control log"
    if facts.table is not None:
        yield from _table_lines(facts.table)
    elif facts.no_table is not None:
        yield f"  table      {facts.no_table}"
    yield (
        f"  partition  next {facts.next}, stable {facts.stable}, archived to {facts.written}, committed to "
        f"{facts.watermark}"
    )


def _intake_lines(sight: IntakeSight, *, needed: bool) -> Iterator[str]:
    where = "" if sight.shelf is None else f", kept in {sight.shelf}"
    yield f"  log        entry {sight.log_index}{where}"
    state = ""
    # An intake file is deleted once every retained snapshot has its records, so this is often normal.
    if sight.gone:
        state = (
            "; gone before the ledger counted it as committed" if needed else "; deleted, no longer required"
        )
    elif sight.condemned_us is not None:
        state = f"; marked {moment(sight.condemned_us)}, deleted after cleanup.grace"
    yield f"  intake     {sight.key}, row group {sight.row_group}, row {sight.row}{state}"
    if sight.accept_us is not None:
        ingest = "unknown" if sight.ingest_us is None else moment(sight.ingest_us)
        yield f"             accepted {moment(sight.accept_us)}, ingest time {ingest}"
    if sight.producer is not None:
        yield f"             sent by producer {sight.producer.producer_id} (epoch {sight.producer.epoch})"


def _table_lines(sight: TableSight) -> Iterator[str]:
    yield f"  table      {sight.name} in catalog {sight.catalog}, snapshot {sight.snapshot_id or 'none'}"
    for file in sight.files:
        rows = file.why if file.rows is None else f"{counted(file.rows, 'row')} with this offset"
        remade = (
            ", rewritten by a replay in place of the archive that added the record" if file.remade else ""
        )
        yield f"             {file.path}: {rows}; the file came with snapshot {file.snapshot_id}{remade}"
    if sight.added is not None:
        yield (
            f"             the record was added by snapshot {sight.added.snapshot_id} of "
            f"{moment(sight.added.time_us)}"
        )
    # The snapshot expired, or another writer rewrote the file.
    elif sight.files:
        yield "             the snapshot that added it is not known any more"


# --- Facts
State = Literal[
    "beyond_end",
    "in_transaction",
    "behind_transaction",
    "aborted",
    "waiting",
    "pending",
    "committed",
    "archived",
    "retired",
    "removed",
    "missing",
    "doubled",
    "damaged",
    "unknown",
]
"""beyond_end: the offset does not exist yet · in_transaction: part of an open one · behind_transaction:
stable only after an open one has ended · aborted: a gap, no record · waiting: in intake, not archived ·
pending: in an archive that is not in the table yet · committed: once in the table · archived: in an archive,
and the topic has no table · retired: older than the retention, or deleted by a client · removed: another
program deleted it from the table · missing, doubled, damaged: a fault · unknown: not decidable."""

# A record that another program deleted is no fault of the archiver: its exit code is 0.
CODES: dict[State, int] = {
    "beyond_end": USAGE,
    "missing": WRONG,
    "doubled": WRONG,
    "damaged": WRONG,
    "unknown": UNKNOWN,
}
"""Exit codes; 0 for all others."""


@dataclass(frozen=True, slots=True)
class ProducerSight:
    """The producer that numbered the batch of the record."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class IntakeSight:
    """The record in the intake log and in its intake file."""

    log_index: int
    shelf: str | None
    """History file that has the entry's data, if the log was trimmed."""
    key: str
    row_group: int
    row: int
    """Inside the row group."""
    gone: bool
    """The intake file does not exist any more."""
    condemned_us: int | None
    """When it was marked for deletion; None if it was not."""
    damage: str | None
    """Why the record cannot be read from the existing file."""
    accept_us: int | None
    """None if the file cannot be read."""
    ingest_us: int | None
    producer: ProducerSight | None = None
    """None for records without a producer id, and if the entry was trimmed."""


@dataclass(frozen=True, slots=True)
class ArchiveSight:
    """The archive that holds it, by its key."""

    key: str
    base: int
    end: int
    epoch: int
    stored_us: int | None
    """When it was stored, by the store's clock; None if it does not exist."""
    pending: bool
    """By the ledger, it is not in the table yet."""
    control_index: int | None
    """Index of its entry in the control log, while it is pending."""
    damage: str | None
    """Why its content differs from what was written."""


@dataclass(frozen=True, slots=True)
class FileSight:
    """A live data file of the table that may have the record."""

    path: str
    rows: int | None
    """Rows with its coordinates; None if the file could not be read."""
    snapshot_id: int
    """Snapshot that added the file."""
    why: str | None
    """Why it could not be read."""
    gone: bool = False
    remade: bool = False
    """A replay rewrote the archive, so the file has a later snapshot than the record."""


@dataclass(frozen=True, slots=True)
class SnapshotSight:
    """One snapshot of the table."""

    snapshot_id: int
    time_us: int
    operation: str


@dataclass(frozen=True, slots=True)
class TableSight:
    """The topic's table as far as it concerns the offset."""

    name: str
    catalog: str
    snapshot_id: int | None
    files: tuple[FileSight, ...]
    added: SnapshotSight | None
    """The archiver's commit that added it; None if that snapshot expired or does not say."""
    removed: SnapshotSight | None
    """The external snapshot that removed it."""
    visible: int | None
    """With delete files applied, rows with its coordinates; None where there are no delete files."""
    undeletable: str | None = None
    """Why delete files could not be applied."""
    suspects: tuple[int, ...] = ()
    """External snapshots that may have removed it, the newest first; some or all have expired. Empty if
    `removed` is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that was observed."""

    topic: str
    topic_id: str
    partition: int
    offset: int
    kind: Literal["none", "parquet", "iceberg", "unconfigured"]
    next: int
    stable: int
    watermark: int
    """By the ledger."""
    written: int
    """Archives are in the ledger up to here."""
    start: int = 0
    """First offset that is within retention."""
    deleted_below: int = 0
    """Clients deleted the records below this offset."""
    transaction: HeldBack | None = None
    """The open transaction that it is part of, or waits for."""
    own: bool = False
    """It is part of that transaction."""
    gap: bool = False
    aborted: Aborted | None = None
    unread: str | None = None
    """Why the intake log has no answer: a damaged history file."""
    intake: IntakeSight | None = None
    archive: ArchiveSight | None = None
    table: TableSight | None = None
    no_table: str | None = None
    """Why there is no table, or why it could not be read."""
    reason: str | None = None
    """What holds it back in intake or before the table."""
    halted: str | None = None
    """What an operator must correct before the topic continues."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Facts and decision."""

    facts: Facts
    state: State
    why: str
    """One sentence or a few, for people."""

    @property
    def exit_code(self) -> int:
        """0 found and correct, or a gap; 1 a fault; 2 unknown; 3 no such offset."""
        return CODES.get(self.state, FINE)


# --- Decision
def explain(facts: Facts) -> Explanation:
    """Decide the state of the offset."""
    state, why = _state(facts)
    return Explanation(facts, state, why)


def _state(facts: Facts) -> tuple[State, str]:
    # The order decides: each test assumes that the ones before it did not apply.
    if facts.offset >= facts.next:
        there = (
            f"has {counted(facts.next, 'offset')}, 0 to {facts.next - 1}"
            if facts.next
            else "has no offset yet"
        )
        return "beyond_end", f"partition {facts.partition} {there}; the next record gets offset {facts.next}"
    # Before the table: a row that was removed on purpose may still be there, and is no fault.
    still = "; its table still has the row" if _seen(facts.table) else ""
    # Before retention, whose start follows what clients deleted.
    if facts.offset < facts.deleted_below:
        why = f"a client deleted the records below offset {facts.deleted_below} of the partition"
        return "retired", why + still
    if facts.offset < facts.start:
        why = f"it is older than the topic's retention, which keeps records from offset {facts.start} on"
        return "retired", why + still
    if facts.gap:
        return _gap(facts)
    if facts.offset >= facts.stable:
        return _open(facts)
    table = facts.table
    seen = _seen(table)
    # The table before the ledger: a commit may be in the table and not yet in the ledger.
    if seen and table is not None:
        return _in_table(facts, table, seen)
    # The ledger counts it as committed, and no row was seen.
    if facts.offset < facts.watermark:
        return _below(facts)
    if facts.offset < facts.written:
        return _pending(facts)
    return _in_intake(
        facts,
        "waiting",
        f"it is accepted and not archived: {facts.reason or facts.halted or 'nothing archives it'}",
    )


def _seen(table: TableSight | None) -> int:
    """Rows in the table, as its readers see them."""
    if table is None:
        return 0
    # Delete files hide rows that the data files still have.
    return table.visible if table.visible is not None else sum(file.rows or 0 for file in table.files)


def _gap(facts: Facts) -> tuple[State, str]:
    # Readers of the table would see a record that its producer aborted.
    if _seen(facts.table):
        return "damaged", "it belongs to an aborted transaction, but the table has a row of it"
    if facts.aborted is None:
        return (
            "aborted",
            (
                "it belongs to an aborted transaction, so no reader ever sees it; which one is not "
                "known any more"
            ),
        )
    by = facts.aborted
    who = f"transaction {by.transactional_id} of producer {by.producer_id} (epoch {by.epoch})"
    ended = f"entry {by.log_index} of the intake log ended it at {moment(by.ended_us)}"
    return (
        "aborted",
        f"it belongs to an aborted transaction, so no reader ever sees it: {who}; {by.how}, {ended}",
    )


def _open(facts: Facts) -> tuple[State, str]:
    held = facts.transaction
    # The transaction ended between reading the offset and reading the transactions.
    if held is None:
        return (
            "unknown",
            (
                f"it is not stable (the stable offset is {facts.stable}), and no open transaction was "
                "seen; try again"
            ),
        )
    who = (
        f"transaction {held.transactional_id or held.producer_id} of producer {held.producer_id} (epoch "
        f"{held.epoch})"
    )
    times = (
        f"open since {moment(held.since_us)}; it times out at {moment(held.deadline_us)} and is then aborted"
    )
    if facts.own:
        return _in_intake(
            facts, "in_transaction", f"it is part of {who}, {times}, unless its producer commits it before"
        )
    # Records after the start of an open transaction wait, so that readers see offsets in order.
    behind = (
        f"it is after offset {facts.stable}, where {who} begins, {times}; later records are not archived "
        "or shown before"
    )
    return _in_intake(facts, "behind_transaction", behind)


def _in_intake(facts: Facts, state: State, why: str) -> tuple[State, str]:
    """A record that is only in intake must be readable there."""
    # A damaged history file hides where the record is; it does not prove that it is lost.
    if facts.unread is not None:
        return "unknown", f"{why}; its place in the intake log is unknown: {facts.unread}"
    # Accepted offsets without an entry: the log itself lacks something.
    if facts.intake is None:
        return "missing", "no intake file holds it: the intake log is damaged; restore it"
    # No archive has the record yet, so the deletion lost it.
    if facts.intake.gone:
        return (
            "missing",
            (
                f"no archive holds it, and its intake file {facts.intake.key} is gone; restore that file "
                "from a copy"
            ),
        )
    if facts.intake.damage is not None:
        return "damaged", f"no archive holds it, and it cannot be read from intake: {facts.intake.damage}"
    return state, why


def _in_table(facts: Facts, table: TableSight, seen: int) -> tuple[State, str]:
    # Files that may have the record, but were read and have no row of it, are left out.
    holding = [file for file in table.files if file.rows]
    if seen > 1:
        where = ", ".join(file.path for file in holding)
        return "doubled", f"table {table.name} has it {counted(seen, 'time')}: {where}"
    if (
        facts.archive is not None
        and facts.archive.damage is not None
        # The damage counts only if the row comes from that archive; a replay may have replaced it.
        and any(file.path.endswith(facts.archive.key) for file in holding)
    ):
        return (
            "damaged",
            (
                f"table {table.name} has it, in an archive that differs from what was written: "
                f"{facts.archive.damage}"
            ),
        )
    # The entry follows the swap, so a failure in between leaves it to the next round.
    late = "" if facts.offset < facts.watermark else ", and the next round records it in the ledger"
    halted = "" if facts.halted is None else f"; but the topic is halted: {facts.halted}"
    return "committed", f"table {table.name} has it once{late}{halted}"


def _below(facts: Facts) -> tuple[State, str]:
    """State of a record that the ledger counts as committed, but of which no row was seen."""
    # Without a table the archive is the final place.
    if facts.kind == "parquet":
        if facts.archive is None:
            return (
                "missing",
                "the ledger counts it as archived, and no archive holds it; restore the archive from a copy",
            )
        if facts.archive.damage is not None:
            return "damaged", f"its archive differs from what was written: {facts.archive.damage}"
        return "archived", "an archive holds it; the topic has no table"
    if facts.table is None:
        what = facts.no_table or "the configuration names no table of the topic"
        return "unknown", f"the ledger counts it as committed, and the table could not be read: {what}"
    table = facts.table
    # A missing file is a fault that was observed, so it comes before what is merely unknown.
    gone = [file.path for file in table.files if file.gone]
    if gone:
        return (
            "damaged",
            f"table {table.name} refers to {', '.join(gone)}, which is gone; restore it from a copy",
        )
    # One unread file is enough: the row may be in it.
    unread = [f"{file.path}: {file.why}" for file in table.files if file.rows is None]
    if table.undeletable is not None or unread:
        return (
            "unknown",
            (
                f"some of table {table.name} could not be read: "
                f"{'; '.join(filter(None, [table.undeletable, *unread]))}"
            ),
        )
    # Every candidate was read from here on, so the row is certainly absent.
    if table.removed is not None:
        by = table.removed
        return (
            "removed",
            (
                f"another program removed it from table {table.name}: snapshot {by.snapshot_id} "
                f"({by.operation}) "
                f"of {moment(by.time_us)}"
            ),
        )
    # Their snapshots expired, so none can be compared with the one before it.
    if table.suspects:
        return "removed", f"another program removed it from table {table.name}: {_suspected(table.suspects)}"
    # The row is in a data file, but a delete file without a retained snapshot hides it.
    if table.visible is not None:
        return "removed", f"a delete file of table {table.name} hides it; by which snapshot is not known"
    halted = "" if facts.halted is None else f" The topic is halted: {facts.halted}"
    return (
        "missing",
        f"the ledger counts it as committed, and no live file of table {table.name} has it.{halted}",
    )


def _suspected(snapshots: Sequence[int]) -> str:
    """Snapshots that may have removed it. Only the number of all missing rows separates removed from lost."""
    check = "`archiver audit` says whether as many rows are missing as were removed"
    if len(snapshots) == 1:
        return f"snapshot {snapshots[0]}, which has expired; {check}"
    return (
        f"one of the snapshots {', '.join(map(str, snapshots))}, of which some or all have expired; {check}"
    )


def _pending(facts: Facts) -> tuple[State, str]:
    archive = facts.archive
    if archive is None:
        return (
            "unknown",
            "the ledger has a pending archive of it, and the archive was not found; try again",
        )
    # Without the object, the commit that waits for it cannot succeed.
    if archive.stored_us is None:
        return (
            "damaged",
            f"its archive {archive.key} waits for its commit, and is gone; the next round cannot commit it",
        )
    if archive.damage is not None:
        return (
            "damaged",
            f"its archive waits for its commit, and differs from what was written: {archive.damage}",
        )
    # A table that cannot be read cannot be committed to either.
    waits = facts.halted or facts.no_table or facts.reason or "the next round commits it"
    return "pending", f"it is archived, and not in the table yet: {waits}"
