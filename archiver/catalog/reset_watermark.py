"""Records new watermarks in a table that was rolled back (protocol rule T4, requested by an operator).

Owns one commit: an empty snapshot on top of the current one, with the property `archiver.watermarks` for the
offsets up to which the caller found the table complete. It is a fence as well (rule D2): no request that was
sent before can be applied after it. Rules C4 and C5 hold as in the committer. Must run only on request.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

from archiver.catalog.commit import RANGES_CHARACTERS_MAX, CommitOutcome
from archiver.catalog.evidence import Evidence, Gaps, read_evidence, same_place
from archiver.catalog.identity import TableTarget, load_table
from archiver.catalog.table_layout import COMMIT_ID, REBUILT, REPLAYED, SET_BACK, VALID_THROUGH, WATERMARKS
from archiver.catalog.tables import SnapshotView, SwapOutcome, Tables, TableView, shown
from archiver.ledger.leader import Leader
from archiver.ledger.views import TopicLedger
from archiver.runtime import failpoints
from archiver.runtime.errors import Corrupted, OutcomeUnknown, RetryLater

NOTHING_KNOWN = "1970-01-01T00:00:00.000001+00:00"
"""Valid-through time of a table without a known one. A commit cannot remove the property, and the old value
claims too much."""
NOTHING_KNOWN_US = 1
_SILENT = frozenset({REBUILT, REPLAYED, SET_BACK})


def is_set_back(view: TableView) -> bool:
    """Whether the table was rolled back behind our newest commit (rule C1); False if expiry merely cut its
    history.
    """
    try:
        evidence = read_evidence(view.properties)
    except Corrupted:
        return False
    lineage = view.lineage()
    if evidence is None or any(item.snapshot_id == evidence.snapshot_id for item in lineage):
        return False
    # The lineage reaches below our commit and does not contain it, so expiry is no explanation.
    return not lineage or lineage[-1].sequence_number <= evidence.sequence_number


def is_older_copy(view: TableView, watermarks: Sequence[int], ledger: TopicLedger, gaps: Gaps) -> bool:
    """Whether the table is behind what the ledger recorded of it, so that its catalog is an older copy."""
    if view.sequence_number < ledger.sequence_number:
        return True
    return any(
        offset < ledger.watermark(partition)
        and not same_place(gaps, partition, offset, ledger.watermark(partition))
        for partition, offset in enumerate(watermarks)
    )


def newest_own(view: TableView) -> SnapshotView | None:
    """The nearest snapshot of the lineage that the ledger recorded together with watermarks; None if none is
    retained.

    Replays, resets of watermarks and parts of a rebuilt table do not count.
    """
    # A replay leaves the evidence of the commit before it. A reset may be missing in the ledger, and its
    # watermarks may be of a history that was rolled back. The ledger records a rebuild only when it is whole.
    return next(
        (item for item in view.lineage() if COMMIT_ID in item.summary and not item.summary.keys() & _SILENT),
        None,
    )


def is_below_own(view: TableView) -> bool:
    """Whether our newest commit descends from the current snapshot, and the first commit of ours above that
    agreed with the ledger.

    Then no writer had rolled the table back when that commit was made.
    """
    # Each commit first checks that the ledger is not ahead of its base (`assessment.contradiction`). So the
    # ledger's records after the current snapshot's sequence number began no higher than that snapshot.
    evidence = read_evidence(view.properties)
    by_id = {item.snapshot_id: item for item in view.snapshots}
    at = None if evidence is None else by_id.get(evidence.snapshot_id)
    lowest: SnapshotView | None = None
    while at is not None and at.snapshot_id != view.snapshot_id:
        # Walks down, so the last one kept is the lowest of ours above the current snapshot.
        lowest = at if COMMIT_ID in at.summary else lowest
        at = None if at.parent_id is None else by_id.get(at.parent_id)
    return at is not None and lowest is not None and not lowest.summary.keys() & _SILENT


class WatermarkReset:
    """Resets the watermarks in tables of one catalog."""

    def __init__(self, tables: Tables, leader: Leader) -> None:
        self._tables = tables
        self._leader = leader

    def restate(
        self,
        target: TableTarget,
        base: TableView,
        offsets: Sequence[int],
        commit_id: uuid.UUID,
        more: Mapping[str, str] | None = None,
    ) -> CommitOutcome:
        """Record that the table is complete up to `offsets`, as found in `base`; returns what the ledger must
        record. `more` are further properties that the same commit sets.

        Raises `Deposed`; `RetryLater` if certainly nothing was changed, for example because the table is not
        as in `base` any more; `OutcomeUnknown` if the request may still be applied. In each case the table
        must be loaded again.
        """
        ledger = self._leader.fold.topic(target.topic_id)
        own = newest_own(base)
        # The time of the commit that remains. The property still has the one of a commit that was rolled
        # back.
        through = NOTHING_KNOWN if own is None else own.summary.get(VALID_THROUGH, NOTHING_KNOWN)

        def properties(snapshot_id: int, sequence_number: int) -> Mapping[str, str]:
            evidence = Evidence(snapshot_id, sequence_number, self._leader.epoch, commit_id, tuple(offsets))
            return {
                COMMIT_ID: str(commit_id),
                VALID_THROUGH: through,
                **(more or {}),
                WATERMARKS: evidence.to_json(),
            }

        stamp = {
            COMMIT_ID: str(commit_id),
            VALID_THROUGH: through,
            # Cut: summaries stay in the metadata, and the property has all offsets.
            SET_BACK: ",".join(map(str, offsets))[:RANGES_CHARACTERS_MAX],
        }
        prepared = self._tables.prepare(base, [], properties, stamp, merge=False, expire=())
        # Rule C4: after the load, before the swap.
        self._leader.check()
        failpoints.reach("restate.swap.before")
        try:
            swapped = self._tables.swap(prepared)
            failpoints.reach("restate.swap.after")
        except OutcomeUnknown as error:
            raise OutcomeUnknown(
                f"table {shown(target.identifier)}: {error}; check the table again"
            ) from error
        if swapped.outcome is SwapOutcome.CONFLICT:
            # No loop here: the offsets were found in `base`, and must be determined again for another one.
            raise RetryLater(
                f"table {shown(target.identifier)} was changed by another writer ({swapped.why}); try again"
            )
        # For an unknown outcome and for an applied one alike: only the table shows it (rule C6).
        view = load_table(self._tables, target, ledger.table_uuid)
        if view is None or all(item.snapshot_id != prepared.snapshot_id for item in view.lineage()):
            raise OutcomeUnknown(
                f"table {shown(target.identifier)}: the outcome of the commit is not known "
                f"({swapped.why}); check the table again"
            )
        return outcome_of(view, prepared.snapshot_id, offsets)


def outcome_of(view: TableView, snapshot_id: int | None, offsets: Sequence[int]) -> CommitOutcome:
    """The ledger's record of a table whose watermarks it must accept, also lower ones. The caller handles
    pending archives.
    """
    return CommitOutcome(
        table_uuid=view.uuid,
        snapshot_id=snapshot_id,
        sequence_number=view.sequence_number,
        watermarks=dict(enumerate(offsets)),
        committed=(),
        killed=(),
        valid_through_us=NOTHING_KNOWN_US,
    )
