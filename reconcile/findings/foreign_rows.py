"""foreign-rows: another writer added rows to the table, or rewrote rows of the table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from archiver.runtime.text import counted
from reconcile.audit.rules import PartitionFinding
from reconcile.findings.finding import Finding
from reconcile.snapshot.topic_snapshot import TopicSnapshot

ID = "foreign-rows"

_ADDED = (
    "nothing, if this is intended: archiving continues. Rows with the topic's own kafka.partition and "
    "kafka.offset make the audit invalid; remove them with the engine that added them, or keep them in a "
    "separate table"
)
_REWRITTEN = (
    "run `archiver audit --deep`: it compares the rows with the archives and lists the altered ones. If "
    "rows were altered without permission, roll the table back to the previous snapshot with the engine "
    "that wrote it, or restore it"
)


def find(snapshot: TopicSnapshot, judged: Sequence[PartitionFinding]) -> Iterator[Finding]:
    """One per snapshot that added or rewrote rows; none for a table that is not the topic's."""
    state = snapshot.view.table
    if snapshot.table is None or state is None:
        return
    # Rows of expired snapshots may have been removed since; unexpected rows show that some are left.
    has_unexpected_rows = any(found.outside or found.doubled for found in judged)
    expired = [
        (f"snapshot {number}, which has expired,", "no longer known", added)
        for number, added in state.added_by
        if has_unexpected_rows
    ]
    retained = [
        (f"snapshot {one.snapshot_id}", one.operation, one.added)
        for one in snapshot.table.external
        if one.added
    ]
    for origin, operation, added in (*retained, *expired):
        what = (
            f"{origin} of table {snapshot.table_name} ({operation}) added {counted(added, 'row')} and is "
            "not the archiver's"
        )
        yield Finding(ID, "warning", snapshot.topic, None, what, _ADDED)
    for one in snapshot.table.external:
        # `rows-removed` reports rows that a snapshot rewrote while it removed others.
        if one.rewritten and not one.added and not one.removes:
            what = (
                f"snapshot {one.snapshot_id} of table {snapshot.table_name} ({one.operation}) rewrote "
                f"{counted(one.rewritten, 'row')}, perhaps with other content, and is not the archiver's"
            )
            yield Finding(ID, "warning", snapshot.topic, None, what, _REWRITTEN)
