"""dangling-reference: the table, or the ledger, names an object that is not there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reconcile.audit.rules import PartitionFinding
from reconcile.findings.finding import Finding
from reconcile.snapshot.topic_snapshot import TopicSnapshot

ID = "dangling-reference"


def find(sight: TopicSnapshot, judged: Sequence[PartitionFinding]) -> Iterator[Finding]:
    """One per object."""
    del judged
    for file in () if sight.view.table is None else sight.view.table.files:
        if file.object_size is None:
            yield Finding(
                ID,
                "error",
                sight.topic,
                None if file.key is None else file.key.partition,
                f"table {sight.table_name} names {file.path}, which is not in the object store",
                "bring the object back from a copy of the data folder (its name and size have to be "
                "the same); until then queries that "
                "touch it fail. Find out who deleted it: the archiver never deletes what a retained "
                "snapshot names",
            )
    for item in sight.pending:
        if item.object_size is None:
            yield Finding(
                ID,
                "error",
                sight.topic,
                item.partition,
                f"the ledger names {item.key} (offsets {item.base} to {item.end - 1}, not yet in the "
                "table), which is not in the object "
                "store",
                "bring the object back from a copy of the data folder before the next commit; its "
                "records are still in intake",
            )
