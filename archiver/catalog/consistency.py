"""Does a table agree with the ledger?

Pure. The ledger records an archive before the table has it (rule T3), and the table's progress afterwards. So
the table is never ahead of what the ledger recorded as written, and never behind what it recorded as
committed. Otherwise one of the two stores is an older copy, or the table was rolled back, and an operator
must decide. The table's state is never accepted silently: the offsets in doubt may belong to other records by
now.
"""

from __future__ import annotations

from collections.abc import Collection

from archiver.catalog.commit_selection import unbroken_since
from archiver.catalog.evidence import Gaps, Known, no_gaps, same_place
from archiver.catalog.tables import TableView
from archiver.ledger.views import TopicLedger


def seen_up_to(view: TableView, ledger: TopicLedger) -> int:
    """The sequence number up to which the ledger recorded what is in the lineage; 0 if it may be another
    lineage.

    It is the same lineage while our newest commit of that time is an ancestor. After a rollback and a roll
    forward, refused archives may return with snapshots that are older than the last inspection.
    """
    return ledger.sequence_number if ledger.snapshot_id in view.ancestors() else 0


def revived_keys(ledger: TopicLedger, paths: Collection[str]) -> tuple[str, ...]:
    """Killed keys that `paths` name: a late request of an earlier leader was applied."""
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
    must check that no newer leader wrote what this ledger lacks.
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
                    f"holds offsets of partition {partition} up to {offset}, the ledger has "
                    f"archives up to {planned}, and the table records no commit of the archiver: another "
                    "writer added the rows, or the metadata store is an older copy; put the newest one back, "
                    "or name another table"
                )
            return (
                f"is complete up to offset {offset} of partition {partition}, and the ledger has "
                f"archives only up to {planned}: the "
                "metadata store is an older copy than the table; put the newest one back"
            )
    return None


def _accounted_for(
    view: TableView, ledger: TopicLedger, partition: int, offset: int, revived: Collection[str]
) -> bool:
    """Whether archives that the ledger recorded as written explain a table that is complete up to `offset`.

    A killed archive explains it if it ends exactly there and either is found in the table, or the history
    since the last inspection is incomplete. Then another writer may have compacted the file away and expired
    the snapshot that added it.
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
