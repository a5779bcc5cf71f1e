"""table-missing: the ledger knows the topic's table, and the catalog has none of that name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reconcile.audit.rules import PartitionFinding
from reconcile.findings.finding import Finding
from reconcile.snapshot.topic_snapshot import TopicSnapshot

ID = "table-missing"


def find(sight: TopicSnapshot, judged: Sequence[PartitionFinding]) -> Iterator[Finding]:
    """At most one. A topic that was never archived has no table yet."""
    del judged
    if sight.table_name is None or sight.table is not None or sight.view.unreadable is not None:
        return
    if sight.known_uuid is None and not sight.archived:
        return
    yield Finding(
        ID,
        "error",
        sight.topic,
        None,
        f"table {sight.table_name} (uuid {sight.known_uuid}) is gone from its catalog: it was dropped "
        "or renamed",
        "rename it back, or restore it from a copy of the catalog; its archives and the intake that it "
        "needs are kept. To make the table "
        "anew from the bucket: `archiver reconcile --rebuild`. It is never made again unasked",
    )
