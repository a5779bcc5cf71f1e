"""topic-recreated-on-old-table: the topic was deleted and made again, and its table is still that of the old
one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reconcile.audit.rules import PartitionFinding
from reconcile.findings.finding import Finding
from reconcile.snapshot.topic_snapshot import TopicSnapshot

ID = "topic-recreated-on-old-table"


def find(sight: TopicSnapshot, judged: Sequence[PartitionFinding]) -> Iterator[Finding]:
    """At most one. The old rows have the same offsets as the new ones: in one table nobody could tell them
    apart.
    """
    del judged
    table = sight.table
    if table is not None and table.mismatch is not None and table.topic_id not in (None, sight.topic_id):
        yield Finding(
            ID,
            "error",
            sight.topic,
            None,
            f"table {table.name} {table.mismatch}",
            "name another table under topics[].archive.table and reload; the topic's records wait in "
            "intake until then",
        )
