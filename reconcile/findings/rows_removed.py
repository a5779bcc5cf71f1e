"""rows-removed: another writer deleted rows with an explicit delete snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from archiver.runtime.text import counted
from reconcile.audit.rules import PartitionFinding
from reconcile.findings.finding import Finding
from reconcile.snapshot.topic_snapshot import TopicSnapshot

ID = "rows-removed"


def find(snapshot: TopicSnapshot, judged: Sequence[PartitionFinding]) -> Iterator[Finding]:
    """One per snapshot, or one for several expired snapshots."""
    del judged
    rewritten = {
        one.snapshot_id: one.rewritten for one in (() if snapshot.table is None else snapshot.table.external)
    }
    for removal in () if snapshot.view.table is None else snapshot.view.table.removals:
        expired = ", which has expired," if removal.expired else ""
        others = (
            f" (and before it {', '.join(map(str, removal.expired[:-1]))})" if removal.expired[:-1] else ""
        )
        # Rows behind delete files are removed for queries too.
        rows = counted(removal.rows + removal.hidden, "row")
        if again := rewritten.get(removal.snapshot_id):
            rows += (
                f" and rewrote {counted(again, 'row')}, whose content `archiver audit --deep` compares "
                "with the archives"
            )
        yield Finding(
            ID,
            # Erasure on request works this way, so it is no error.
            "info",
            snapshot.topic,
            None,
            f"snapshot {removal.snapshot_id}{expired} of table {snapshot.table_name}{others} removed {rows}",
            "nothing: the rows are not archived again, and the audit counts them as removed. Archives and "
            "intake may still hold them: see 'erasure on request' in the runbook",
        )
