"""overlap: offsets are in several files of the table that are not copies of each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reconcile.audit.rules import PartitionFinding
from reconcile.findings.doubled_file import same_range
from reconcile.findings.finding import Finding
from reconcile.snapshot.offset_coverage import merge, subtract
from reconcile.snapshot.offset_ranges import shown
from reconcile.snapshot.topic_snapshot import TopicSnapshot

ID = "overlap"


def find(sight: TopicSnapshot, judged: Sequence[PartitionFinding]) -> Iterator[Finding]:
    """One per partition, without what `doubled-file` tells."""
    told = same_range(sight)
    for found in judged:
        copies = merge(held for (partition, held) in told if partition == found.view.partition)
        left = subtract(found.doubled, copies)
        if left:
            yield Finding(
                ID,
                "error",
                sight.topic,
                found.view.partition,
                f"offsets {shown(left)} are in the table more than once, in files with different ranges",
                "somebody added rows that were there already: `archiver explain` names the files and "
                "the snapshots; take them out with the "
                "engine that added them. Nothing is removed by itself",
            )
