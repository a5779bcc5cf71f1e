"""table-replaced: another table stands under the name of the topic's table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reconcile.audit.rules import PartitionFinding
from reconcile.findings.finding import Finding
from reconcile.snapshot.topic_snapshot import TableSnapshot, TopicSnapshot

ID = "table-replaced"


def is_another(sight: TopicSnapshot, table: TableSnapshot) -> bool:
    """Whether the table is not the one the ledger knows, nor an older topic's of this cluster (that has an id
    of its own).
    """
    if table.mismatch is None or table.topic_id not in (None, sight.topic_id):
        return False
    return (
        table.topic_id is None
        or table.cluster_id is None
        or (sight.known_uuid is not None and table.uuid != sight.known_uuid)
    )


def find(sight: TopicSnapshot, judged: Sequence[PartitionFinding]) -> Iterator[Finding]:
    """At most one."""
    del judged
    if sight.table is not None and is_another(sight, sight.table):
        yield Finding(
            ID,
            "error",
            sight.topic,
            None,
            f"table {sight.table.name} {sight.table.mismatch}",
            "restore the table that the ledger knows, or name another one under topics[].archive.table "
            "of a new topic; what was archived "
            "is kept, and nothing is written to a table that is not ours",
        )
