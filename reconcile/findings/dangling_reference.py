"""dangling-reference: the table or the ledger references an object that does not exist."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reconcile.audit.rules import PartitionFinding
from reconcile.findings.finding import Finding
from reconcile.snapshot.topic_snapshot import TopicSnapshot

ID = "dangling-reference"


def find(snapshot: TopicSnapshot, judged: Sequence[PartitionFinding]) -> Iterator[Finding]:
    """One per object."""
    del judged
    for file in () if snapshot.view.table is None else snapshot.view.table.files:
        if file.object_size is None:
            yield Finding(
                ID,
                "error",
                snapshot.topic,
                None if file.key is None else file.key.partition,
                f"table {snapshot.table_name} references {file.path}, which is not in the object store",
                "restore the object from a copy of the data folder, with the same name and size; until "
                "then queries that read it fail. Find out who deleted it: the archiver never deletes an "
                "object that a retained snapshot references",
            )
    # Pending archives too: the next commit would add a file that does not exist.
    for item in snapshot.pending:
        if item.object_size is None:
            yield Finding(
                ID,
                "error",
                snapshot.topic,
                item.partition,
                f"the ledger references {item.key} (offsets {item.base} to {item.end - 1}, not yet in the "
                "table), which is not in the object store",
                "restore the object from a copy of the data folder before the next commit; its records "
                "are still in intake",
            )
