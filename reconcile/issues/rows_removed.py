"""rows-removed: somebody else deleted rows, by a snapshot that says so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from archiver.wording import counted
from reconcile.findings import Finding
from reconcile.judge import PartitionFinding
from reconcile.sights import TopicSight

ID = "rows-removed"


def find(sight: TopicSight, judged: Sequence[PartitionFinding]) -> Iterator[Finding]:
    """One per snapshot. It is how erasure on request works, so nothing is wrong."""
    del judged
    for removal in () if sight.view.table is None else sight.view.table.removals:
        yield Finding(
            ID,
            "info",
            sight.topic,
            None,
            f"snapshot {removal.snapshot_id} of table {sight.table_name} removed {counted(removal.rows + removal.hidden, 'row')}",
            "nothing: the rows are not archived again, and the audit calls them removed. Archives and intake may still hold them: see "
            "'erasure on request' in the runbook",
        )
