"""rolled-back: the table was rolled back behind the archiver's newest commit, or its catalog is an older copy
than the ledger.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reconcile.audit.rules import PartitionFinding
from reconcile.findings.finding import Finding
from reconcile.snapshot.topic_snapshot import TopicSnapshot

ID = "rolled-back"


def find(snapshot: TopicSnapshot, judged: Sequence[PartitionFinding]) -> Iterator[Finding]:
    """At most one."""
    del judged
    table = snapshot.table
    if table is None or table.mismatch is not None or not table.rolled_back:
        return
    # Not safe: the rollback may be intentional, so only an operator accepts it (rule T4).
    yield Finding(
        ID,
        "error",
        snapshot.topic,
        None,
        f"table {table.name}: {table.doubt}"
        if table.doubt is not None
        else f"table {table.name} {table.contradiction}",
        "if it was a mistake, roll the table forward again with the engine that rolled it back. To keep "
        f"the rollback, run `archiver reconcile --fix --topic {snapshot.topic}`: it sets the lower watermark "
        "in ledger and table, and the next round archives the missing offsets again, from intake",
    )
