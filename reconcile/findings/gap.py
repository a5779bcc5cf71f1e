"""gap: offsets below the watermark that are in no file of the table, and that no archive in the object store
holds either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reconcile.audit.rules import PartitionFinding
from reconcile.findings.finding import Finding
from reconcile.snapshot.offset_coverage import merge, subtract
from reconcile.snapshot.offset_ranges import shown
from reconcile.snapshot.topic_snapshot import TopicSnapshot

ID = "gap"


def find(sight: TopicSnapshot, judged: Sequence[PartitionFinding]) -> Iterator[Finding]:
    """One per partition. What was removed by a snapshot that says so is none, and what is still pending is
    none.
    """
    if not sight.comparable:
        return
    for found in judged:
        told = merge([*sight.archives.get(found.view.partition, ()), *sight.faulty(found.view.partition)])
        left = subtract(found.missing, told)
        if left:
            yield Finding(
                ID,
                "error",
                sight.topic,
                found.view.partition,
                f"offsets {shown(left)} are neither in the table nor in any archive, though they count "
                "as archived",
                "look for them with `archiver explain`, which names file and snapshot; if the intake "
                "file is still there, keep it (stop "
                "cleaning) and report this: the archiver does not lose offsets by itself. Nothing is "
                "dropped or renumbered",
            )
