"""schema-drift: the table's columns differ from the recorded schema."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reconcile.audit.rules import PartitionFinding
from reconcile.findings.finding import Finding
from reconcile.snapshot.topic_snapshot import TopicSnapshot

ID = "schema-drift"


def find(snapshot: TopicSnapshot, judged: Sequence[PartitionFinding]) -> Iterator[Finding]:
    """At most one."""
    del judged
    table = snapshot.table
    if table is None or table.mismatch is not None:
        return
    # Additional columns of other writers are allowed and are no fault.
    if table.schema_fault is not None:
        yield Finding(
            ID,
            "error",
            snapshot.topic,
            None,
            f"table {table.name}: {table.schema_fault}",
            "undo the change in the table, or rename one of the two columns "
            "(docs/protocols/schema-evolution.md); the topic waits until then",
        )
    # A round records the schema before it adds the columns.
    elif table.schema_lacking and not snapshot.busy:
        yield Finding(
            ID,
            "warning",
            snapshot.topic,
            None,
            f"table {table.name} lacks columns of the newest recorded schema",
            "nothing: the next archiving round adds them before it writes the first row with them",
        )
