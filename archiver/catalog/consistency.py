"""Do the table and the ledger tell one story?

Pure. The ledger learns of an archive before the table does (rule T3), and of the table's progress after it.
So the table is never ahead of what the ledger has seen written, and never behind what the ledger has seen
committed. Where it is, one of the two stores is an older copy, or the table was rolled back: people have to
put that right. Must never take over the table's word in silence: the offsets in doubt may have been given to
other records since.
"""

from __future__ import annotations

from collections.abc import Collection

from archiver.catalog.commit_selection import unbroken_since
from archiver.catalog.evidence import Gaps, Known, no_gaps, same_place
from archiver.catalog.tables import TableView
from archiver.ledger.views import TopicLedger


def seen_up_to(view: TableView, ledger: TopicLedger) -> int:
    """The sequence number up to which the ledger has seen what is in the lineage; 0 if the lineage may be
    another one than it looked at.

    It is the same one while our newest commit of then is an ancestor. After a table was turned back and
    forth, refused archives may have come back with snapshots that are older than the last look.
    """
    return ledger.sequence_number if ledger.snapshot_id in view.ancestors() else 0


def revived_keys(ledger: TopicLedger, paths: Collection[str]) -> tuple[str, ...]:
    """Killed keys that `paths` name: a predecessor's request landed after all."""
    if not ledger.killed:
        return ()
    by_name: dict[str, list[str]] = {}
    for path in paths:
        by_name.setdefault(path.rpartition("/")[2], []).append(path)
    return tuple(
        key
        for key in ledger.killed
        if any(path.endswith(f"/{key}") for path in by_name.get(key.rpartition("/")[2], ()))
    )


def contradiction(
    view: TableView, known: Known, ledger: TopicLedger, revived: Collection[str], gaps: Gaps = no_gaps
) -> str | None:
    """Why table and ledger cannot both be the newest, worded to follow the table's name; None if they can.

    `revived` are killed keys found in the lineage. Offsets are compared modulo `gaps` (rule C2). The caller
    must make sure that no newer leader wrote what this ledger lacks.
    """
    if view.sequence_number < ledger.sequence_number:
        return (
            f"is at sequence number {view.sequence_number}, and the ledger has seen it at "
            f"{ledger.sequence_number}: the catalog was "
            "restored from an older copy; put the newest one back"
        )
    for partition, offset in enumerate(known.watermarks):
        recorded = ledger.watermark(partition)
        if offset < recorded and not same_place(gaps, partition, offset, recorded):
            return (
                f"is complete up to offset {offset} of partition {partition}, and the ledger has seen "
                f"it complete up to {recorded}: it was "
                "rolled back, or the catalog was restored from an older copy; put the newest state back"
            )
        if offset > recorded and not _accounted_for(view, ledger, partition, offset, revived):
            planned = ledger.planned_to(partition)
            if known.evidence is None:
                return (
                    f"holds offsets of partition {partition} up to {offset}, the ledger knows of "
                    f"archives up to {planned}, and no commit "
                    "of ours is recorded in the table: somebody else added the rows, or the metadata "
                    "store is an older copy; "
                    "put the newest one back, or name another table"
                )
            return (
                f"is complete up to offset {offset} of partition {partition}, and the ledger knows of "
                f"archives only up to {planned}: the "
                "metadata store is an older copy than the table; put the newest one back"
            )
    return None


def _accounted_for(
    view: TableView, ledger: TopicLedger, partition: int, offset: int, revived: Collection[str]
) -> bool:
    """Whether archives that the ledger has seen written bring a table up to `offset`.

    A killed one does if it is found in the table, or if the table's history since the last look is not whole
    (somebody compacted the file away and expired the snapshot that brought it) and it ends exactly there.
    """
    if offset <= ledger.planned_to(partition):
        return True
    if any(item.archive.partition == partition and item.archive.end == offset for item in ledger.pending):
        return True
    lost_sight = ledger.sequence_number < unbroken_since(view)
    return any(
        item.archive.partition == partition and item.archive.end == offset and (lost_sight or key in revived)
        for key, item in ledger.killed.items()
    )
