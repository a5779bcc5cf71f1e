"""foreign-rows: another writer added rows to the table, or wrote rows of the table again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from archiver.runtime.text import counted
from reconcile.audit.rules import PartitionFinding
from reconcile.findings.finding import Finding
from reconcile.snapshot.topic_snapshot import TopicSnapshot

ID = "foreign-rows"

_ADDED = (
    "nothing, if this is intended: archiving goes on. Rows with kafka.partition and kafka.offset of "
    "the topic's own make the audit "
    "invalid; then take them out with the engine that added them, or keep them in a table of their own"
)
_REWRITTEN = (
    "run `archiver audit --deep`: it compares the rows with the archives and names those that were "
    "altered. If some were altered without "
    "permission, roll the table back to the snapshot before with the engine that wrote it, or restore it"
)


def find(sight: TopicSnapshot, judged: Sequence[PartitionFinding]) -> Iterator[Finding]:
    """One per snapshot of the table's history that brought rows or wrote rows again; none for a table that is
    not the topic's.

    Rows that a snapshot wrote again while it removed others are left to `rows-removed`. Rows that expired
    snapshots brought are reported as long as rows stand where none should: they may have been removed since.
    """
    state = sight.view.table
    if sight.table is None or state is None:
        return
    strange = any(found.outside or found.doubled for found in judged)
    expired = [
        (f"snapshot {number}, which has expired,", "no longer known", added)
        for number, added in state.added_by
        if strange
    ]
    retained = [
        (f"snapshot {one.snapshot_id}", one.operation, one.added) for one in sight.table.foreign if one.added
    ]
    for snapshot, operation, added in (*retained, *expired):
        what = (
            f"{snapshot} of table {sight.table_name} ({operation}) added {counted(added, 'row')} and is "
            "not the archiver's"
        )
        yield Finding(ID, "warning", sight.topic, None, what, _ADDED)
    for one in sight.table.foreign:
        if one.rewritten and not one.added and not one.removes:
            what = (
                f"snapshot {one.snapshot_id} of table {sight.table_name} ({one.operation}) wrote "
                f"{counted(one.rewritten, 'row')} again, "
                "perhaps with other content, and is not the archiver's"
            )
            yield Finding(ID, "warning", sight.topic, None, what, _REWRITTEN)
