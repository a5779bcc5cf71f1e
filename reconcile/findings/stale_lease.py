"""stale-lease: somebody holds the lease, archives wait, and nothing happens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reconcile.audit.rules import PartitionFinding
from reconcile.findings.finding import Finding
from reconcile.snapshot.topic_snapshot import TopicSnapshot

ID = "stale-lease"


def find(sight: TopicSnapshot, judged: Sequence[PartitionFinding]) -> Iterator[Finding]:
    """At most one. The kernel frees the lease of a process that died, so this is one that hangs."""
    del judged
    if sight.idle_s is None:
        return
    yield Finding(
        ID,
        "warning",
        sight.topic,
        None,
        f"{sight.holder} holds the lease, archives wait, and the ledger heard nothing of the topic for "
        f"{sight.idle_s:,.0f} s",
        "look at that process and at the catalog it waits for; if it hangs, stop it: another one goes "
        "on within a tick, and what the old "
        "one still sends is void",
    )
