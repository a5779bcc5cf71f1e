"""Snapshots of somebody else that changed the number of rows, and what a table keeps of those that are expired. Pure.

Owns the arithmetic on their summaries, by which the committer and the audit count alike, and the table property `archiver.expired-changes`.
A commit of ours that expires such a snapshot sets the property, so each change is told once: by its snapshot while that is retained, by the
property from then on. The property is JSON, bounded in size::

    {"v":1,"changes":[{"rows":2,"hidden":0,"added":0,"below":[821,847],"snapshots":[5478415281050496407]}, …]}

Oldest first; where there are more than `CHANGES_MAX`, or more than `OFFSETS_MAX` numbers in `below`, the oldest two are added up to one.
Promises that nothing is told of what retention has passed wholly, so that what a topic erases for years does not add up.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from archiver.catalog.layout import COMMIT_ID, EXPIRED_CHANGES
from archiver.catalog.tables import SnapshotView, TableView
from archiver.errors import Corrupted
from archiver.ledger.views import TopicLedger

VERSION = 1
CHANGES_MAX = 10
"""So many changes are kept apart."""
OFFSETS_MAX = 4096
"""So many numbers are kept in all `below` together, if they are of more than one change: about 40 KB of the table's metadata."""
SNAPSHOTS_MAX = 10
"""So many ids of what was added up to one change are kept, the newest."""

_REMOVALS = ("delete", "overwrite")
"""Operations that can take rows away; `replace` (compaction) cannot."""
_ADDITIONS = ("append", "overwrite", "")
"""Operations that can bring rows; one that is not named can be any."""


@dataclass(frozen=True, slots=True)
class Change:
    """By how much somebody else changed the number of rows, with one snapshot or with several that are expired."""

    rows: int = 0
    """Fewer than before in data files, where it removed any."""
    hidden: int = 0
    """More than before behind position-delete files; fewer than none where it took such files away."""
    added: int = 0
    """More than it took."""
    below: tuple[int, ...] | None = ()
    """Per partition, where the table ended when it removed rows: it took nothing from there on. None if nobody knows; short or empty where
    it removed none."""
    snapshots: tuple[int, ...] = ()
    """Ids, oldest first; of several only the newest."""

    @property
    def removes(self) -> bool:
        """Whether rows went."""
        return bool(self.rows or self.hidden)

    def plus(self, later: Change) -> Change:
        """Both as one."""
        below = None
        if self.below is not None and later.below is not None:
            below = tuple(map(max, zip_longest(self.below, later.below, fillvalue=0)))
        snapshots = (*self.snapshots, *later.snapshots)[-SNAPSHOTS_MAX:]
        return Change(self.rows + later.rows, self.hidden + later.hidden, self.added + later.added, below, snapshots)


@dataclass(frozen=True, slots=True)
class ExpiredChanges:
    """What a table's property says of changes whose snapshots our own commits expired."""

    changes: tuple[Change, ...] = ()
    """Oldest first."""

    def with_more(self, more: Iterable[Change], starts: Mapping[int, int]) -> ExpiredChanges:
        """With newer ones behind, without what retention has passed, and not larger than the bounds allow."""
        changes = list(unretired((*self.changes, *more), starts))
        while len(changes) > 1 and (len(changes) > CHANGES_MAX or sum(len(one.below or ()) for one in changes) > OFFSETS_MAX):
            changes[:2] = [changes[0].plus(changes[1])]
        return ExpiredChanges(tuple(changes))

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
        return json.dumps({"v": VERSION, "changes": changes}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> ExpiredChanges:
        """The inverse; raises `Corrupted` if it is not what this version writes."""
        try:
            document = json.loads(text)
            if document["v"] != VERSION:
                version = document["v"]
                raise Corrupted(f"table property {EXPIRED_CHANGES} has version {version!r}; this version of the archiver knows {VERSION}")
            return cls(tuple(_change(one) for one in document["changes"]))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise Corrupted(f"table property {EXPIRED_CHANGES} cannot be understood ({error}): {text[:200]!r}") from error


def read_expired(properties: Mapping[str, str]) -> ExpiredChanges:
    """What a table's properties say of expired changes; `Corrupted` if it cannot be understood."""
    text = properties.get(EXPIRED_CHANGES)
    return ExpiredChanges() if text is None else ExpiredChanges.from_json(text)


def change_of(snapshot: SnapshotView) -> Change | None:
    """What a snapshot of somebody else changed, by its summary, without the place; None if it is ours or left the number of rows alone."""
    if COMMIT_ID in snapshot.summary:
        return None
    fewer, hidden = -added_records(snapshot.summary), hidden_records(snapshot.summary)
    change = Change(snapshots=(snapshot.snapshot_id,))
    if is_foreign_removal(snapshot) and (fewer > 0 or fewer + hidden > 0):
        rows = max(fewer, 0)
        change = replace(change, rows=rows, hidden=fewer + hidden - rows)
    if snapshot.operation in _ADDITIONS and fewer + hidden < 0:
        change = replace(change, added=-fewer - hidden)
    return change if change.removes or change.added else None


def is_foreign_removal(snapshot: SnapshotView) -> bool:
    """Whether a snapshot is somebody else's and by its operation took rows away, or exchanged them, however many."""
    return snapshot.operation in _REMOVALS and COMMIT_ID not in snapshot.summary


def foreign_changes(view: TableView) -> tuple[tuple[SnapshotView, Change], ...]:
    """Those of the table's history that are retained, without their places; oldest first."""
    found = ((snapshot, change_of(snapshot)) for snapshot in reversed(view.history()))
    return tuple((snapshot, change) for snapshot, change in found if change is not None)


def placed(change: Change, view: TableView, ledger: TopicLedger, watermarks: Sequence[int], sequence_number: int) -> Change:
    """The change of a snapshot of that sequence number with `below`; `watermarks` are those that the table tells now, one per partition.

    The ledger may have heard late of a commit from before the change, at a sequence number behind it. Unless what stands between the last
    one it had heard of and the change is all somebody else's, what it heard of next counts as there already: too high does no harm.
    """
    if not change.removes:
        return change
    past = ledger.past
    if sequence_number < past.exact_since:
        return replace(change, below=None)
    heard, following = past.told_around(sequence_number)
    others = {one.sequence_number for one in view.snapshots if COMMIT_ID not in one.summary}
    in_time = all(number in others for number in range(heard + 1, sequence_number))
    since = sequence_number if in_time or following is None else following
    ends = (max(ledger.watermark(partition), told) for partition, told in enumerate(watermarks))
    return replace(change, below=tuple(past.lowest(partition, end, since) for partition, end in enumerate(ends)))


def unretired(changes: Sequence[Change], starts: Mapping[int, int]) -> tuple[Change, ...]:
    """Without the oldest ones that explain nothing any more: all that they can have removed lies below retention's starts.

    What was added goes with as much as was removed after it, or stays: it may be removed later.
    """
    passed = left = 0
    for number, change in enumerate(changes, 1):
        if change.below is None or any(place > starts.get(partition, 0) for partition, place in enumerate(change.below)):
            break
        left = max(left + change.added - change.rows - change.hidden, 0)
        passed = number if not left else passed
    return tuple(changes[passed:])


def added_records(summary: Mapping[str, str]) -> int:
    """How many more rows data files hold than before, by a snapshot's summary."""
    return _count(summary, "added-records") - _count(summary, "deleted-records")


def hidden_records(summary: Mapping[str, str]) -> int:
    """How many more rows position-delete files hide than before. How many equality deletes hide, no summary says."""
    return _count(summary, "added-position-deletes") - _count(summary, "removed-position-deletes")


def _count(summary: Mapping[str, str], name: str) -> int:
    text = summary.get(name, "0")
    return int(text) if text.isdecimal() else 0


def _change(document: Any) -> Change:
    """One change of the property; what it raises says that it is none."""
    below = document["below"]
    change = Change(
        document["rows"], document["hidden"], document["added"], None if below is None else tuple(below), tuple(document["snapshots"])
    )
    numbers = (change.rows, change.hidden, change.added, *(change.below or ()), *change.snapshots)
    if any(type(number) is not int for number in numbers):
        raise ValueError("not a whole number")
    if min(change.rows, change.added, *(change.below or ())) < 0:
        raise ValueError("a number below zero")
    return change
