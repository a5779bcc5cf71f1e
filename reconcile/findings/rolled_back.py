"""rolled-back: the table was set back behind our newest commit, or its catalog is an older copy than the
ledger.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reconcile.audit.rules import PartitionFinding
from reconcile.findings.finding import Finding
from reconcile.snapshot.topic_snapshot import TopicSnapshot

ID = "rolled-back"


def find(sight: TopicSnapshot, judged: Sequence[PartitionFinding]) -> Iterator[Finding]:
    """At most one. Never repaired unasked: somebody did it, perhaps on purpose (rule T4)."""
    del judged
    table = sight.table
    if table is None or table.mismatch is not None or not table.rolled_back:
        return
    yield Finding(
        ID,
        "error",
        sight.topic,
        None,
        f"table {table.name}: {table.doubt}"
        if table.doubt is not None
        else f"table {table.name} {table.contradiction}",
        "if it was a mistake, roll the table forward again with the engine that rolled it back. If it "
        "is to stay so: "
        f"`archiver reconcile --fix --topic {sight.topic}` puts the lower watermark into ledger and "
        "table, and the next round archives "
        "what is missing again, from intake",
    )
