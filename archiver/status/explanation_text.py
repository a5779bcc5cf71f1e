"""Formats an explanation as a document for programs and as lines for people."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from archiver.runtime.rfc3339 import format_time
from archiver.runtime.text import counted, moment
from archiver.status.explain import ArchiveSight, Explanation, Facts, IntakeSight, SnapshotSight, TableSight


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
    elif sight.files:
        yield "             the snapshot that added it is not known any more"
