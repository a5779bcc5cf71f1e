"""table-missing: the ledger knows the topic's table, but the catalog has no table of that name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reconcile.audit.rules import PartitionFinding
from reconcile.findings.finding import Finding
from reconcile.snapshot.topic_snapshot import TopicSnapshot

ID = "table-missing"


def find(snapshot: TopicSnapshot, judged: Sequence[PartitionFinding]) -> Iterator[Finding]:
    """At most one."""
    del judged
    if snapshot.table_name is None or snapshot.table is not None or snapshot.view.unreadable is not None:
        return
    # A topic that was never archived has no table yet.
    if snapshot.known_uuid is None and not snapshot.archived:
        return
    yield Finding(
        ID,
        "error",
        snapshot.topic,
        None,
        f"table {snapshot.table_name} (uuid {snapshot.known_uuid}) is gone from its catalog: it was dropped "
        "or renamed",
        "rename it back, or restore it from a copy of the catalog; its archives and required intake are "
        "kept. To rebuild the table from the bucket, run `archiver reconcile --rebuild`; the archiver "
        "never rebuilds it on its own",
    )
