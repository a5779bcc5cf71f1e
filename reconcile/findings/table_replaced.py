"""table-replaced: another table has the name of the topic's table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reconcile.audit.rules import PartitionFinding
from reconcile.findings.finding import Finding
from reconcile.snapshot.topic_snapshot import TableSnapshot, TopicSnapshot

ID = "table-replaced"


def is_another(snapshot: TopicSnapshot, table: TableSnapshot) -> bool:
    """Whether the table is neither the one in the ledger nor that of an older topic of this cluster."""
    # A table with the id of an older topic is `topic-recreated-on-old-table`.
    if table.mismatch is None or table.topic_id not in (None, snapshot.topic_id):
        return False
    return (
        table.topic_id is None
        or table.cluster_id is None
        or (snapshot.known_uuid is not None and table.uuid != snapshot.known_uuid)
    )


def find(snapshot: TopicSnapshot, judged: Sequence[PartitionFinding]) -> Iterator[Finding]:
    """At most one."""
    del judged
    if snapshot.table is not None and is_another(snapshot, snapshot.table):
        yield Finding(
            ID,
            "error",
            snapshot.topic,
            None,
            f"table {snapshot.table.name} {snapshot.table.mismatch}",
            "restore the table that the ledger knows, or name another one under topics[].archive.table "
            "of a new topic; archives are kept, and nothing is written to an external table",
        )
