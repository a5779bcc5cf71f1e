"""unknown-commit: the table holds a commit of ours that the ledger has not heard of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from archiver.runtime.text import counted
from reconcile.audit.rules import PartitionFinding
from reconcile.findings.finding import Finding
from reconcile.snapshot.topic_snapshot import TopicSnapshot

ID = "unknown-commit"


def find(sight: TopicSnapshot, judged: Sequence[PartitionFinding]) -> Iterator[Finding]:
    """At most one. The reply was lost, or the process died between the swap and the ledger's entry (rule
    C6).
    """
    del judged
    table = sight.table
    if (
        table is None
        or table.mismatch is not None
        or table.doubt is not None
        or table.contradiction is not None
        or sight.busy
    ):
        return
    if not table.ahead and not table.landed:
        return
    moved = [
        f"partition {partition} up to {there} (ledger: {here})"
        for partition, (here, there) in sorted(table.ahead.items())
    ][:5]
    what = f"table {table.name} holds commits of ours that the ledger does not know"
    if moved:
        what += f": {', '.join(moved)}" + (
            f" and {len(table.ahead) - len(moved)} more" if len(table.ahead) > len(moved) else ""
        )
    if table.landed:
        what += f"; {counted(len(table.landed), 'archive')} of them named in the ledger"
    repair = "nothing: the ledger is told what is in the table, by the next round or by this repair"
    yield Finding(ID, "warning", sight.topic, None, what, repair, safe=True)
