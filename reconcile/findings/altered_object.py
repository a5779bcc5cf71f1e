"""altered-object: an object of the archiver has other bytes than the table, the ledger or its own digest
says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reconcile.audit.rules import PartitionFinding
from reconcile.findings.finding import Finding
from reconcile.snapshot.topic_snapshot import TopicSnapshot
from reconcile.snapshot.topic_views import FileView

ID = "altered-object"

_REPAIR = (
    "restore the object from a copy of the data folder; keep the altered one elsewhere and find out who "
    "wrote it. The archiver never changes an object"
)


def find(snapshot: TopicSnapshot, judged: Sequence[PartitionFinding]) -> Iterator[Finding]:
    """One per object, by its size, and by its digest if it was read."""
    del judged
    for file in () if snapshot.view.table is None else snapshot.view.table.files:
        why = _fault(file)
        if why is not None:
            yield Finding(
                ID,
                "error",
                snapshot.topic,
                None if file.key is None else file.key.partition,
                f"{file.path} {why}",
                _REPAIR,
            )
    for item in snapshot.pending:
        # Reported as a dangling reference.
        if item.object_size is None:
            continue
        if item.object_size != item.size:
            what = f"{item.key} has {item.object_size} bytes, but {item.size} in the ledger"
            yield Finding(ID, "error", snapshot.topic, item.partition, what, _REPAIR)
        elif item.altered is not None:
            yield Finding(ID, "error", snapshot.topic, item.partition, f"{item.key} {item.altered}", _REPAIR)


def _fault(file: FileView) -> str | None:
    if file.object_size is None:
        # Reported as a dangling reference.
        return None
    if file.file_size is not None and file.object_size != file.file_size:
        return f"has {file.object_size} bytes, but {file.file_size} in the table"
    # Only archives: a file of another writer may have any content.
    if file.key is not None and file.unread is not None:
        return f"has the name of an archive but cannot be read as one: {file.unread}"
    return None
