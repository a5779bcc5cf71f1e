"""spec-changed: the table is partitioned otherwise than the configuration says, or is not where or as this
version made it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from archiver.catalog.table_layout import FORMAT_VERSION
from reconcile.audit.rules import PartitionFinding
from reconcile.findings.finding import Finding
from reconcile.findings.table_replaced import is_another
from reconcile.snapshot.topic_snapshot import TopicSnapshot

ID = "spec-changed"


def find(sight: TopicSnapshot, judged: Sequence[PartitionFinding]) -> Iterator[Finding]:
    """At most one: whatever keeps the topic's own table of the right format from being written to."""
    del judged
    table = sight.table
    if (
        table is None
        or table.mismatch is None
        or table.topic_id not in (None, sight.topic_id)
        or is_another(sight, table)
    ):
        return
    if table.format_version == FORMAT_VERSION:
        yield Finding(
            ID,
            "error",
            sight.topic,
            None,
            f"table {table.name} {table.mismatch}",
            "undo the change with the engine that made it (for example ALTER TABLE … REPLACE PARTITION "
            "FIELD), or bring "
            "topics[].archive.partition_by into line and reload",
        )
