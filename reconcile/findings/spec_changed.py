"""spec-changed: the table's partition spec differs from the configuration, or its location or properties
differ from what this version creates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from archiver.catalog.table_layout import FORMAT_VERSION
from reconcile.audit.rules import PartitionFinding
from reconcile.findings.finding import Finding
from reconcile.findings.table_replaced import is_another
from reconcile.snapshot.topic_snapshot import TopicSnapshot

ID = "spec-changed"


def find(snapshot: TopicSnapshot, judged: Sequence[PartitionFinding]) -> Iterator[Finding]:
    """At most one: any other reason why the topic's own table of the right format cannot be written."""
    del judged
    table = snapshot.table
    if (
        # A table of another topic or a replaced table has its own finding.
        table is None
        or table.mismatch is None
        or table.topic_id not in (None, snapshot.topic_id)
        or is_another(snapshot, table)
    ):
        return
    # `format-changed` reports another format.
    if table.format_version == FORMAT_VERSION:
        yield Finding(
            ID,
            "error",
            snapshot.topic,
            None,
            f"table {table.name} {table.mismatch}",
            "undo the change with the engine that made it (for example ALTER TABLE … REPLACE PARTITION "
            "FIELD), or change topics[].archive.partition_by to match and reload",
        )
