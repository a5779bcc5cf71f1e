"""foreign-rows: somebody else added rows to the table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from archiver.wording import counted
from reconcile.findings import Finding
from reconcile.judge import PartitionFinding
from reconcile.sights import TopicSight

ID = "foreign-rows"


def find(sight: TopicSight, judged: Sequence[PartitionFinding]) -> Iterator[Finding]:
    """One per snapshot of the table's history that brought them. A table that is not the topic's has nothing to be foreign to.

    What expired snapshots brought is told as long as rows stand where none should: they may have been taken out again since.
    """
    state = sight.view.table
    if sight.table is None or state is None:
        return
    strange = any(found.outside or found.doubled for found in judged)
    expired = [(f"snapshot {number}, which has expired,", "no longer known", added) for number, added in state.added_by if strange]
    retained = [(f"snapshot {one.snapshot_id}", one.operation, one.added) for one in sight.table.foreign]
    for snapshot, operation, added in (*retained, *expired):
        yield Finding(
            ID,
            "warning",
            sight.topic,
            None,
            f"{snapshot} of table {sight.table_name} ({operation}) added {counted(added, 'row')} and is not the archiver's",
            "nothing, if this is wanted: archiving goes on. Rows with kafka.partition and kafka.offset of the topic's own make the audit "
            "invalid; then take them out with the engine that added them, or keep them in a table of their own",
        )
