"""foreign-rows: somebody else added rows to the table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from archiver.wording import counted
from reconcile.findings import Finding
from reconcile.judge import PartitionFinding
from reconcile.sights import TopicSight

ID = "foreign-rows"


def find(sight: TopicSight, judged: Sequence[PartitionFinding]) -> Iterator[Finding]:
    """One per snapshot of the table's history that brought them. A table that is not the topic's has nothing to be foreign to."""
    del judged
    for snapshot in () if sight.table is None or sight.view.table is None else sight.table.foreign:
        yield Finding(
            ID,
            "warning",
            sight.topic,
            None,
            f"snapshot {snapshot.snapshot_id} of table {sight.table_name} ({snapshot.operation}) added "
            f"{counted(snapshot.added, 'row')} and is not the archiver's",
            "nothing, if this is wanted: archiving goes on. Rows with kafka.partition and kafka.offset of the topic's own make the audit "
            "invalid; then take them out with the engine that added them, or keep them in a table of their own",
        )
