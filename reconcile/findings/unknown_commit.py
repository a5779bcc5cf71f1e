"""unknown-commit: the table holds a commit of the archiver that is not in the ledger."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from archiver.runtime.text import counted
from reconcile.audit.rules import PartitionFinding
from reconcile.findings.finding import Finding
from reconcile.snapshot.topic_snapshot import TopicSnapshot

ID = "unknown-commit"


def find(snapshot: TopicSnapshot, judged: Sequence[PartitionFinding]) -> Iterator[Finding]:
    """At most one. The response was lost, or the process died between the swap and the ledger entry (rule
    C6).
    """
    del judged
    table = snapshot.table
    if (
        # Doubtful evidence proves no commit. A busy leader may be about to append the entry.
        table is None
        or table.mismatch is not None
        or table.doubt is not None
        or table.contradiction is not None
        or snapshot.busy
    ):
        return
    if not table.ahead and not table.landed:
        return
    moved = [
        f"partition {partition} up to {there} (ledger: {here})"
        for partition, (here, there) in sorted(table.ahead.items())
    ][:5]
    what = f"table {table.name} holds commits of the archiver that are not in the ledger"
    if moved:
        what += f": {', '.join(moved)}" + (
            f" and {len(table.ahead) - len(moved)} more" if len(table.ahead) > len(moved) else ""
        )
    if table.landed:
        what += f"; {counted(len(table.landed), 'archive')} of them recorded in the ledger"
    # Safe: the next round does the same under the rules of the publish protocol (decision 0028).
    repair = "nothing: the next round or this repair records the table's state in the ledger"
    yield Finding(ID, "warning", snapshot.topic, None, what, repair, safe=True)
