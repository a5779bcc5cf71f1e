"""gap: offsets below the watermark are in no file of the table and in no archive of the object store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reconcile.audit.rules import PartitionFinding
from reconcile.findings.finding import Finding
from reconcile.snapshot.offset_coverage import merge, shown, subtract
from reconcile.snapshot.topic_snapshot import TopicSnapshot

ID = "gap"


def find(snapshot: TopicSnapshot, judged: Sequence[PartitionFinding]) -> Iterator[Finding]:
    """One per partition, without offsets that a snapshot removed explicitly and without pending ones."""
    # The missing rows of a rolled back or replaced table are a consequence of another finding.
    if not snapshot.comparable:
        return
    for found in judged:
        # Other findings report these offsets: missing-in-catalog, or altered-object.
        reported = merge(
            [*snapshot.archives.get(found.view.partition, ()), *snapshot.faulty(found.view.partition)]
        )
        left = subtract(found.missing, reported)
        if left:
            yield Finding(
                ID,
                "error",
                snapshot.topic,
                found.view.partition,
                f"offsets {shown(left)} are neither in the table nor in any archive, though they count "
                "as archived",
                "find them with `archiver explain`, which names file and snapshot; if the intake file "
                "still exists, keep it (stop cleaning) and report this: the archiver itself does not lose "
                "offsets. Nothing is dropped or renumbered",
            )
