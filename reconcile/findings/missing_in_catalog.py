"""missing-in-catalog: the ledger says written or committed, the archive stands in the object store, and the
table lacks it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from archiver.runtime.text import counted
from reconcile.audit.rules import PartitionFinding
from reconcile.findings.finding import Finding
from reconcile.snapshot.offset_coverage import intersect, merge, subtract
from reconcile.snapshot.offset_ranges import shown
from reconcile.snapshot.topic_snapshot import TopicSnapshot

ID = "missing-in-catalog"


def find(sight: TopicSnapshot, judged: Sequence[PartitionFinding]) -> Iterator[Finding]:
    """One per partition with archives that wait for their commit (safe), and one per partition with rows that
    are gone (never safe).
    """
    if sight.table_name is None or not sight.comparable:
        return
    landed = set(() if sight.table is None else sight.table.landed)
    waiting: dict[int, list[tuple[int, int]]] = {}
    for item in sight.pending:
        if item.key not in landed and item.object_size == item.size and item.altered is None:
            waiting.setdefault(item.partition, []).append((item.base, item.end))
    for partition, ranges in sorted(waiting.items()) if not sight.busy else ():
        yield Finding(
            ID,
            "warning",
            sight.topic,
            partition,
            f"{counted(len(ranges), 'archive')} with offsets {shown(merge(ranges))} wait in the ledger "
            "and are in no table yet",
            "nothing: the table is looked at and the archives are committed, by the next round or by "
            "this repair, exactly once",
            safe=True,
        )
    for found in judged:
        partition = found.view.partition
        held = subtract(
            intersect(found.missing, merge(sight.archives.get(partition, ()))), sight.faulty(partition)
        )
        if held:
            yield Finding(
                ID,
                "error",
                sight.topic,
                found.view.partition,
                f"offsets {shown(held)} count as committed and are not in the table; archives of ours "
                "hold them",
                "find out who took them away (`archiver explain` names the snapshot) and undo that "
                "with the engine that did it; the "
                "archives that hold them are kept, and `archiver consume` still reads them",
            )
