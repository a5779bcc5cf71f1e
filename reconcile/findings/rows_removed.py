"""rows-removed: another writer deleted rows, by a snapshot that says so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from archiver.runtime.text import counted
from reconcile.audit.rules import PartitionFinding
from reconcile.findings.finding import Finding
from reconcile.snapshot.topic_snapshot import TopicSnapshot

ID = "rows-removed"


def find(sight: TopicSnapshot, judged: Sequence[PartitionFinding]) -> Iterator[Finding]:
    """One per snapshot, or for several that are expired. It is how erasure on request works, so nothing is
    wrong.
    """
    del judged
    rewritten = {
        one.snapshot_id: one.rewritten for one in (() if sight.table is None else sight.table.foreign)
    }
    for removal in () if sight.view.table is None else sight.view.table.removals:
        expired = ", which has expired," if removal.expired else ""
        others = (
            f" (and before it {', '.join(map(str, removal.expired[:-1]))})" if removal.expired[:-1] else ""
        )
        rows = counted(removal.rows + removal.hidden, "row")
        if again := rewritten.get(removal.snapshot_id):
            rows += (
                f" and wrote {counted(again, 'row')} again, whose content `archiver audit --deep` compares "
                "with the archives"
            )
        yield Finding(
            ID,
            "info",
            sight.topic,
            None,
            f"snapshot {removal.snapshot_id}{expired} of table {sight.table_name}{others} removed {rows}",
            "nothing: the rows are not archived again, and the audit calls them removed. Archives and "
            "intake may still hold them: see "
            "'erasure on request' in the runbook",
        )
