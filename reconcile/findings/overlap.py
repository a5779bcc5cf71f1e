"""overlap: offsets are in several files of the table with different ranges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reconcile.audit.rules import PartitionFinding
from reconcile.findings.doubled_file import same_range
from reconcile.findings.finding import Finding
from reconcile.snapshot.offset_coverage import merge, shown, subtract
from reconcile.snapshot.topic_snapshot import TopicSnapshot

ID = "overlap"


def find(snapshot: TopicSnapshot, judged: Sequence[PartitionFinding]) -> Iterator[Finding]:
    """One per partition, without the ranges that `doubled-file` reports."""
    reported = same_range(snapshot)
    for found in judged:
        copies = merge(held for (partition, held) in reported if partition == found.view.partition)
        # `doubled-file` reports files of exactly the same range.
        left = subtract(found.doubled, copies)
        if left:
            yield Finding(
                ID,
                "error",
                snapshot.topic,
                found.view.partition,
                f"offsets {shown(left)} are in the table more than once, in files with different ranges",
                "another writer added rows that the table already had: `archiver explain` names the files "
                "and the snapshots; remove them with the engine that added them. The archiver removes "
                "nothing here",
            )
