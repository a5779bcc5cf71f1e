"""Snapshots of other writers that changed the number of rows, and the record of those that are expired. Pure.

Owns the arithmetic on their summaries, which the committer and the audit share, and the table property
`archiver.expired-changes`. A commit of ours that expires such a snapshot sets the property. So each change
counts once: by its snapshot while that is retained, by the property afterwards. The property is JSON, oldest
change first, bounded in size::

    {"v":1,"changes":[{"rows":2,"hidden":0,"added":0,"below":[821,847],"snapshots":[5478415281050496407]},
    …],"kept":[…]}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from archiver.catalog.table_layout import COMMIT_ID, EXPIRED_CHANGES
from archiver.catalog.tables import SnapshotView, TableView
from archiver.ledger.views import TopicLedger
from archiver.runtime.errors import Corrupted
from archiver.runtime.redaction import excerpt

VERSION = 1
CHANGES_MAX = 50
"""So many changes are kept apart."""
OFFSETS_MAX = 4096
"""So many numbers are kept in all `below` together, if they are of more than one change: about 40 KB of the
table's metadata."""
SNAPSHOTS_MAX = 10
"""So many ids of merged changes are kept, the newest."""

_REMOVALS = ("delete", "overwrite")
"""Operations that can remove rows; `replace` (compaction) cannot."""
_ADDITIONS = ("append", "overwrite", "")
"""Operations that can add rows; an unnamed one can be any."""


@dataclass(frozen=True, slots=True)
class Change:
    """By how much other writers changed the number of rows, with one snapshot or several expired ones."""

    rows: int = 0
    """Rows fewer in data files, if it removed any."""
    hidden: int = 0
    """Rows more behind position-delete files; negative where it removed such files."""
    added: int = 0
    """Rows added beyond those removed."""
    below: tuple[int, ...] | None = ()
    """Per partition, where the table ended then. From there on the change removed and added no row of the
    stream. None if unknown."""
    snapshots: tuple[int, ...] = ()
    """Ids, oldest first; of merged changes only the newest."""

    @property
    def removes(self) -> bool:
        """Whether rows were removed."""
        return bool(self.rows or self.hidden)

    def plus(self, later: Change) -> Change:
        """Both merged into one."""
        # One unknown end makes the end of both unknown.
        below = None
        if self.below is not None and later.below is not None:
            # The later change may cover more partitions: a topic can grow.
            below = tuple(map(max, zip_longest(self.below, later.below, fillvalue=0)))
        snapshots = (*self.snapshots, *later.snapshots)[-SNAPSHOTS_MAX:]
        return Change(
            self.rows + later.rows, self.hidden + later.hidden, self.added + later.added, below, snapshots
        )


@dataclass(frozen=True, slots=True)
class ExpiredChanges:
    """The table property on changes whose snapshots our own commits expired."""

    changes: tuple[Change, ...] = ()
    """Oldest first."""
    kept: tuple[int, ...] = ()
    """Ids of changes that our own commits kept when they cut the lineage above them, because something older
    was retained, for example a tagged snapshot. Only this shows that they are ancestors."""

    @property
    def ids(self) -> frozenset[int]:
        """Of the recorded changes."""
        return frozenset(number for one in self.changes for number in one.snapshots)

    def with_more(self, more: Iterable[Change], starts: Mapping[int, int]) -> ExpiredChanges:
        """With newer ones appended, without those that retention has passed, within the bounds."""
        # Changes that retention has passed are dropped, so the record does not grow for years.
        changes = list(unretired((*self.changes, *more), starts))
        while len(changes) > 1 and (
            len(changes) > CHANGES_MAX or sum(len(one.below or ()) for one in changes) > OFFSETS_MAX
        ):
            # Merging the two oldest each time would build a sum that retention never passes.
            at = _closest(changes)
            changes[at : at + 2] = [changes[at].plus(changes[at + 1])]
        return replace(self, changes=tuple(changes))

    def to_json(self) -> str:
        """The value of the table property."""
        changes = [
            {
                "rows": one.rows,
                "hidden": one.hidden,
                "added": one.added,
                "below": None if one.below is None else list(one.below),
                "snapshots": list(one.snapshots),
            }
            for one in self.changes
        ]
        kept = {"kept": list(self.kept)} if self.kept else {}
        return json.dumps({"v": VERSION, "changes": changes, **kept}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> ExpiredChanges:
        """The inverse; raises `Corrupted` if it is not what this version writes."""
        try:
            document = json.loads(text)
            if document["v"] != VERSION:
                version = document["v"]
                raise Corrupted(
                    f"table property {EXPIRED_CHANGES} has version {version!r}; this version of the "
                    f"archiver knows {VERSION}"
                )
            kept = tuple(document.get("kept", ()))
            # Not `isinstance`: JSON `true` is a bool, which Python counts as an int.
            if any(type(number) is not int for number in kept):
                raise ValueError("not a whole number")
            return cls(tuple(_change(one) for one in document["changes"]), kept)
        # Remote text: any program that may alter the table can write the property.
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise Corrupted(
                f"table property {EXPIRED_CHANGES} cannot be understood ({error}): {excerpt(text)!r}"
            ) from error


def property_after_repair(view: TableView, lacking: int, offsets: Sequence[int]) -> Mapping[str, str]:
    """The property after a repair set the watermarks to `offsets`, below which the table lacks `lacking`
    records; nothing if it stays as it is.

    The repair brings back rows that were removed at the ends. Rows that are still missing, and that no
    retained snapshot explains, stay recorded.
    """
    try:
        expired = read_expired(view.properties)
    except Corrupted:
        # A property that cannot be read is left as it is, because rewriting would lose its content.
        return {}
    changes = expired.changes
    before = sum(one.rows + one.hidden - one.added for one in changes)
    retained = sum(one.rows + one.hidden - one.added for _, one in retained_changes(view))
    # Never more than before: a row that was lost must not count as removed on purpose.
    now = min(max(lacking - retained, 0), max(before, 0))
    if now == before and not expired.kept:
        return {}
    if now == before:
        # After the rollback nothing shows whether the kept changes are still ancestors.
        return {EXPIRED_CHANGES: replace(expired, kept=()).to_json()}
    ids = tuple(number for one in changes for number in one.snapshots)[-SNAPSHOTS_MAX:]
    left = (Change(rows=now, below=tuple(offsets), snapshots=ids),) if now else ()
    return {EXPIRED_CHANGES: ExpiredChanges(left).to_json()}


def rows_removed(view: TableView) -> int:
    """How many rows other writers removed, as far as the table records it; 0 if its property cannot be
    read.
    """
    try:
        expired = read_expired(view.properties).changes
    except Corrupted:
        return 0
    return max(
        sum(one.rows + one.hidden for one in (*expired, *(change for _, change in retained_changes(view)))), 0
    )


def read_expired(properties: Mapping[str, str]) -> ExpiredChanges:
    """The record of expired changes in a table's properties; `Corrupted` if it cannot be parsed."""
    text = properties.get(EXPIRED_CHANGES)
    return ExpiredChanges() if text is None else ExpiredChanges.from_json(text)


def change_of(snapshot: SnapshotView) -> Change | None:
    """The change of another writer's snapshot, by its summary, without `below`; None if the snapshot is ours
    or did not change the number of rows.
    """
    # Only our own commits have a commit id in their summary.
    if COMMIT_ID in snapshot.summary:
        return None
    fewer, hidden = -added_records(snapshot.summary), hidden_records(snapshot.summary)
    change = Change(snapshots=(snapshot.snapshot_id,))
    if is_external_removal(snapshot) and (fewer > 0 or fewer + hidden > 0):
        # A merge-on-read delete removes no data row. Its rows are only hidden.
        rows = max(fewer, 0)
        change = replace(change, rows=rows, hidden=fewer + hidden - rows)
    # Also for an overwrite: a MERGE may add more rows than it removes.
    if snapshot.operation in _ADDITIONS and fewer + hidden < 0:
        change = replace(change, added=-fewer - hidden)
    return change if change.removes or change.added else None


def is_external_removal(snapshot: SnapshotView) -> bool:
    """Whether a snapshot is another writer's and its operation can remove or replace rows."""
    return snapshot.operation in _REMOVALS and COMMIT_ID not in snapshot.summary


def retained_changes(view: TableView) -> tuple[tuple[SnapshotView, Change], ...]:
    """Changes in the table's retained history, without `below`; oldest first."""
    found = ((snapshot, change_of(snapshot)) for snapshot in reversed(view.history()))
    return tuple((snapshot, change) for snapshot, change in found if change is not None)


def rewritten_records(snapshot: SnapshotView) -> int:
    """How many rows a snapshot of another writer wrote again, by its summary; 0 if it is ours, or declares
    that it changed no row.

    A compaction (`replace`) declares that it changed none.
    """
    # An overwrite removes and adds rows: an UPDATE, a MERGE, the rows that a copy-on-write DELETE keeps. The
    # summary does not say which of them it changed.
    summary = snapshot.summary
    if COMMIT_ID in summary or snapshot.operation != "overwrite":
        return 0
    taken = _count(summary, "deleted-records") + _count(summary, "added-position-deletes")
    added = _count(summary, "added-records")
    # No summary says how many rows equality deletes remove, so every added row may be a rewritten one.
    return added if _count(summary, "added-equality-deletes") else min(added, taken)


def placed(
    change: Change, view: TableView, ledger: TopicLedger, watermarks: Sequence[int], sequence_number: int
) -> Change:
    """The change of a snapshot with that sequence number, with `below`. `watermarks` are the table's current
    ones, one per partition.

    A value of `below` that is too high does no harm.
    """
    past = ledger.past
    # The ledger no longer remembers that time, so the current ends are the safe upper bound.
    if sequence_number < past.exact_since:
        return replace(
            change,
            below=tuple(max(ledger.watermark(partition), end) for partition, end in enumerate(watermarks)),
        )
    recorded, following = past.moves_around(sequence_number)
    # The ledger may record a commit from before the change later, at a higher sequence number. So its next
    # record counts as already there. The exception: all snapshots since its last record are of other writers.
    others = {one.sequence_number for one in view.snapshots if COMMIT_ID not in one.summary}
    in_time = all(number in others for number in range(recorded + 1, sequence_number))
    since = sequence_number if in_time or following is None else following
    ends = (max(ledger.watermark(partition), end) for partition, end in enumerate(watermarks))
    return replace(
        change, below=tuple(past.lowest(partition, end, since) for partition, end in enumerate(ends))
    )


def unretired(changes: Sequence[Change], starts: Mapping[int, int]) -> tuple[Change, ...]:
    """Without the oldest ones that explain nothing any more, because everything that they can have removed
    lies below retention's starts.

    Added rows are dropped together with as many rows removed after them.
    """
    if not any(starts.values()):
        return tuple(changes)
    # `left` are added rows that no later removal has taken back yet.
    passed = left = reached = 0
    for number, change in enumerate(changes, 1):
        if change.below is None or any(
            place > starts.get(partition, 0) for partition, place in enumerate(change.below)
        ):
            break
        left = max(left + change.added - change.rows - change.hidden, 0)
        passed, reached = number if not left else passed, number
    # If nothing was removed later, retention removed the added rows together with the others.
    return tuple(changes[passed if any(change.removes for change in changes[reached:]) else reached :])


def _closest(changes: Sequence[Change]) -> int:
    """Index of the first of the two neighbours between which the table grew least. Two changes without
    `below` count as close.
    """

    def between(at: int) -> tuple[bool, int]:
        one, other = changes[at].below, changes[at + 1].below
        if one is None or other is None:
            return (one is not None or other is not None, 0)
        return False, sum(other) - sum(one)

    return min(range(len(changes) - 1), key=between)


def added_records(summary: Mapping[str, str]) -> int:
    """How many more rows data files hold than before, by a snapshot's summary."""
    return _count(summary, "added-records") - _count(summary, "deleted-records")


def hidden_records(summary: Mapping[str, str]) -> int:
    """How many more rows position-delete files hide than before. No summary counts the rows that equality
    deletes hide.
    """
    return _count(summary, "added-position-deletes") - _count(summary, "removed-position-deletes")


def _count(summary: Mapping[str, str], name: str) -> int:
    text = summary.get(name, "0")
    # Summaries are text of any writer. An unreadable count must not stop a commit.
    return int(text) if text.isdecimal() else 0


def _change(document: Any) -> Change:
    """One change of the property; raises if the document is malformed."""
    below = document["below"]
    change = Change(
        document["rows"],
        document["hidden"],
        document["added"],
        None if below is None else tuple(below),
        tuple(document["snapshots"]),
    )
    numbers = (change.rows, change.hidden, change.added, *(change.below or ()), *change.snapshots)
    if any(type(number) is not int for number in numbers):
        raise ValueError("not a whole number")
    if min(change.rows, change.added, *(change.below or ())) < 0:
        raise ValueError("a number below zero")
    return change
