"""missing-in-catalog: an archive is written or committed according to the ledger and exists, but the table
lacks it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from archiver.runtime.text import counted
from reconcile.audit.rules import PartitionFinding
from reconcile.findings.finding import Finding
from reconcile.snapshot.offset_coverage import intersect, merge, shown, subtract
from reconcile.snapshot.topic_snapshot import TopicSnapshot

ID = "missing-in-catalog"


def find(snapshot: TopicSnapshot, judged: Sequence[PartitionFinding]) -> Iterator[Finding]:
    """One per partition with archives that wait for their commit (safe), and one per partition with missing
    rows (never safe).
    """
    if snapshot.table_name is None or not snapshot.comparable:
        return
    landed = set(() if snapshot.table is None else snapshot.table.landed)
    waiting: dict[int, list[tuple[int, int]]] = {}
    for item in snapshot.pending:
        # Altered or missing objects must not be committed; they have findings of their own.
        if item.key not in landed and item.object_size == item.size and item.altered is None:
            waiting.setdefault(item.partition, []).append((item.base, item.end))
    # The leader may be about to commit them.
    for partition, ranges in sorted(waiting.items()) if not snapshot.busy else ():
        yield Finding(
            ID,
            "warning",
            snapshot.topic,
            partition,
            f"{counted(len(ranges), 'archive')} with offsets {shown(merge(ranges))} wait in the ledger "
            "and are in no table yet",
            "nothing: the next round or this repair checks the table and commits the archives, exactly once",
            safe=True,
        )
    for found in judged:
        partition = found.view.partition
        held = subtract(
            intersect(found.missing, merge(snapshot.archives.get(partition, ()))), snapshot.faulty(partition)
        )
        # Not safe: another program may have removed the rows on purpose.
        if held:
            yield Finding(
                ID,
                "error",
                snapshot.topic,
                found.view.partition,
                f"offsets {shown(held)} count as committed but are not in the table; archives in the "
                "object store hold them",
                "find out who removed them (`archiver explain` names the snapshot) and undo that with "
                "the engine that did it; their archives are kept, and `archiver consume` still reads them",
            )
