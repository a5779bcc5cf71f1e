"""topic-recreated-on-old-table: the topic was deleted and created again, and its table still belongs to the
old topic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reconcile.audit.rules import PartitionFinding
from reconcile.findings.finding import Finding
from reconcile.snapshot.topic_snapshot import TopicSnapshot

ID = "topic-recreated-on-old-table"


def find(snapshot: TopicSnapshot, judged: Sequence[PartitionFinding]) -> Iterator[Finding]:
    """At most one."""
    del judged
    table = snapshot.table
    # Old and new rows have the same offsets, so in one table they would be indistinguishable.
    if table is not None and table.mismatch is not None and table.topic_id not in (None, snapshot.topic_id):
        yield Finding(
            ID,
            "error",
            snapshot.topic,
            None,
            f"table {table.name} {table.mismatch}",
            "name another table in topics[].archive.table and reload; the topic's records wait in intake "
            "until then",
        )
