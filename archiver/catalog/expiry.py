"""Selects the snapshots that our own commit may expire, and records the changes in them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, takewhile

from archiver.catalog.external_changes import change_of, placed, read_expired, retained_changes
from archiver.catalog.table_layout import EXPIRED_CHANGES
from archiver.catalog.tables import SnapshotView, TableView
from archiver.ledger.views import PendingFile, TopicLedger
from archiver.runtime.errors import Corrupted


def expired(
    view: TableView, pending: Sequence[PendingFile], snapshots_max: int, snapshots_age_s: float, now_us: int
) -> tuple[int, ...]:
    """Ids of ancestors to expire when one more snapshot is added: those that are both beyond the newest
    `snapshots_max` and older than the age.

    Always kept: the current snapshot, the targets of branches and tags, and every ancestor newer than a
    pending file's token. So is another writer's change that may still be undone. Snapshots outside the
    lineage are left to other writers, except for changes that were kept when the lineage was cut above them.
    The same commit must set the properties that `recorded` returns for the ids.
    """
    # Rule T3. Without the ancestors above its token, a pending file could not be offered any more (rule C3).
    needed_above = min(
        (item.last_sequence_number for item in pending if item.table_uuid == view.uuid),
        default=view.sequence_number,
    )
    oldest_ms = (now_us - round(snapshots_age_s * 1e6)) // 1000
    old = [
        snapshot
        for position, snapshot in enumerate(ancestry(view))
        if position > 0
        # One less, because the commit itself adds a snapshot.
        and position >= snapshots_max - 1
        and snapshot.timestamp_ms < oldest_ms
        and snapshot.snapshot_id not in view.pinned
        and snapshot.sequence_number <= needed_above
    ]
    changes = {snapshot.snapshot_id for snapshot in old if change_of(snapshot) is not None}
    if changes and not _is_readable(view):
        # The property cannot be extended. If the lineage were cut above these changes, nothing would show any
        # more which of them are ancestors.
        oldest = min(snapshot.sequence_number for snapshot in old if snapshot.snapshot_id in changes)
        return tuple(snapshot.snapshot_id for snapshot in old if snapshot.sequence_number < oldest)
    # Only a change below every remaining snapshot cannot be undone by a rollback.
    kept = changes - _for_good(view, {snapshot.snapshot_id for snapshot in old}) if changes else changes
    return tuple(snapshot.snapshot_id for snapshot in old if snapshot.snapshot_id not in kept)


def recorded(
    view: TableView, gone: Collection[int], ledger: TopicLedger, watermarks: Sequence[int]
) -> Mapping[str, str]:
    """The table property that records other writers' changes among the snapshots `gone`, without those that
    retention has passed; nothing if the property is up to date.

    `watermarks` are the table's, one per partition.
    """
    found = [
        (snapshot, change) for snapshot, change in retained_changes(view) if snapshot.snapshot_id in gone
    ]
    try:
        before = read_expired(view.properties)
    except Corrupted:
        # `expired` then expires no change, so there is nothing to record.
        return {}
    # A catalog may set the property and keep the snapshot. The change still counts once.
    fresh = [(snapshot, change) for snapshot, change in found if snapshot.snapshot_id not in before.ids]
    more = [placed(change, view, ledger, watermarks, snapshot.sequence_number) for snapshot, change in fresh]
    now = replace(before.with_more(more, ledger.starts), kept=_cut_off(view, gone))
    return {} if now == before else {EXPIRED_CHANGES: now.to_json()}


def ancestry(view: TableView) -> tuple[SnapshotView, ...]:
    """The lineage, then other writers' changes that were kept when it was cut above them; newest first."""
    lineage = view.lineage()
    try:
        kept = read_expired(view.properties).kept
    except Corrupted:
        return lineage
    known = {item.snapshot_id for item in lineage}
    behind = [item for item in view.snapshots if item.snapshot_id in kept and item.snapshot_id not in known]
    # A change newer than the oldest snapshot of the lineage is no ancestor: the table was rolled back to
    # before it.
    older = (item for item in behind if lineage and item.sequence_number < lineage[-1].sequence_number)
    return (*lineage, *sorted(older, key=lambda item: -item.sequence_number))


def _cut_off(view: TableView, gone: Collection[int]) -> tuple[int, ...]:
    """Ids of other writers' changes that stay, and that the lineage does not reach without the snapshots
    `gone`.
    """
    reached = {
        item.snapshot_id for item in takewhile(lambda item: item.snapshot_id not in gone, view.lineage())
    }
    left = (
        item for item in ancestry(view) if item.snapshot_id not in gone and item.snapshot_id not in reached
    )
    return tuple(sorted(item.snapshot_id for item in left if change_of(item) is not None))


def _is_readable(view: TableView) -> bool:
    """Whether the table's property can be read, and so be written."""
    try:
        read_expired(view.properties)
    except Corrupted:
        return False
    return True


def _for_good(view: TableView, old: Collection[int]) -> frozenset[int]:
    """Common ancestors of all snapshots that stay. After any rollback the table has their changes."""
    parents = {snapshot.snapshot_id: snapshot.parent_id for snapshot in view.snapshots}
    # Expiry took the links above the kept changes. The order of ancestry stands in for them.
    for newer, older in pairwise(ancestry(view)):
        parents[newer.snapshot_id] = older.snapshot_id
    common = set(parents)
    for snapshot_id in parents.keys() - set(old):
        above: set[int] = set()
        at: int | None = snapshot_id
        # The last condition ends the walk in damaged metadata with a cycle of parents.
        while at is not None and at in parents and at not in above:
            above.add(at)
            at = parents[at]
        common &= above
    return frozenset(common)
