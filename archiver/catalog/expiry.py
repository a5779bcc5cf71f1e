"""Which snapshots our own commit may forget. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from archiver.catalog.tables import TableView
from archiver.ledger.views import PendingFile


def expired(view: TableView, pending: Sequence[PendingFile], snapshots_max: int, snapshots_age_s: float, now_us: int) -> tuple[int, ...]:
    """Ids of ancestors to forget when one more snapshot is added, so that at most `snapshots_max` remain, none older than the age.

    Kept in any case: the current snapshot, what a branch or tag points to, and every ancestor newer than a pending file's T3 token (without
    them the file could not be offered any more, rule C3). Snapshots outside the lineage belong to somebody else.
    """
    needed_above = min((item.last_sequence_number for item in pending if item.table_uuid == view.uuid), default=view.sequence_number)
    oldest_ms = (now_us - round(snapshots_age_s * 1e6)) // 1000
    return tuple(
        snapshot.snapshot_id
        for position, snapshot in enumerate(view.lineage())
        if position > 0
        and (position >= snapshots_max - 1 or snapshot.timestamp_ms < oldest_ms)
        and snapshot.snapshot_id not in view.pinned
        and snapshot.sequence_number <= needed_above
    )
