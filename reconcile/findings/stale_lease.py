"""stale-lease: a process holds the lease and archives wait, but the ledger makes no progress."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reconcile.audit.rules import PartitionFinding
from reconcile.findings.finding import Finding
from reconcile.snapshot.topic_snapshot import TopicSnapshot

ID = "stale-lease"


def find(snapshot: TopicSnapshot, judged: Sequence[PartitionFinding]) -> Iterator[Finding]:
    """At most one."""
    del judged
    # The kernel frees the lease of a dead process, so a silent holder hangs.
    if snapshot.idle_s is None:
        return
    yield Finding(
        ID,
        "warning",
        snapshot.topic,
        None,
        f"{snapshot.holder} holds the lease and archives wait, but the ledger has no entry of the topic for "
        f"{snapshot.idle_s:,.0f} s",
        "check that process and the catalog it waits for; if it hangs, stop it: another process continues "
        "within a tick, and later writes of the old one are void",
    )
