"""Which snapshots our own commit may forget. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from archiver.catalog.layout import COMMIT_ID
from archiver.catalog.tables import SnapshotView, TableView
from archiver.ledger.views import PendingFile


def expired(view: TableView, pending: Sequence[PendingFile], snapshots_max: int, snapshots_age_s: float, now_us: int) -> tuple[int, ...]:
    """Ids of ancestors to forget when one more snapshot is added: those beyond the newest `snapshots_max` and older than the age as well.

    Kept in any case: the current snapshot, what a branch or tag points to, every ancestor newer than a pending file's T3 token (without
    them the file could not be offered any more, rule C3), and every delete or overwrite of somebody else: it is the only record of rows
    that were removed on purpose, and the audit would call them missing without it. Snapshots outside the lineage belong to somebody else.
    """
    needed_above = min((item.last_sequence_number for item in pending if item.table_uuid == view.uuid), default=view.sequence_number)
    oldest_ms = (now_us - round(snapshots_age_s * 1e6)) // 1000
    return tuple(
        snapshot.snapshot_id
        for position, snapshot in enumerate(view.lineage())
        if position > 0
        and position >= snapshots_max - 1
        and snapshot.timestamp_ms < oldest_ms
        and snapshot.snapshot_id not in view.pinned
        and snapshot.sequence_number <= needed_above
        and not tells_of_removed_rows(snapshot)
    )


def tells_of_removed_rows(snapshot: SnapshotView) -> bool:
    """Whether somebody else removed rows with it."""
    return snapshot.operation in {"delete", "overwrite"} and COMMIT_ID not in snapshot.summary
