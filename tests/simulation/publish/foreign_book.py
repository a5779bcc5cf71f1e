"""What strangers changed, counted by the rows of the files themselves, and whether the table states each
change once.

Pure bookkeeping. Uses nothing of the product but the terms of the table property; it adds up neither
summaries nor properties of others.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class _Made:
    parent_id: int | None
    """As it was when the snapshot was made."""
    rows: int
    change: int
    """How many more rows than before a stranger's commit gave it; a compaction adds none."""


class ForeignBook:
    """Every snapshot that there ever was, and which of them strangers expired."""

    def __init__(self) -> None:
        self._made: dict[int, _Made] = {}
        self._forgotten: set[int] = set()

    def saw(self, snapshot_id: int, parent_id: int | None, rows: int, *, changes: bool) -> None:
        """A new snapshot whose files hold so many rows; `changes` if it is a stranger's, and no
        compaction."""
        before = self._made[parent_id].rows if parent_id in self._made else 0
        self._made[snapshot_id] = _Made(parent_id, rows, rows - before if changes else 0)

    def forgot(self, snapshots: Iterable[int]) -> None:
        """A stranger expired them; nothing else records what they changed."""
        self._forgotten.update(snapshots)

    def expired(self, current: int | None, retained: Collection[int]) -> Mapping[int, int]:
        """What the current snapshot's ancestors changed that only the table's property records: by id, rows
        added or (below 0) removed."""
        found: dict[int, int] = {}
        at = current
        while at is not None and at in self._made:
            change = self._made[at].change
            if change and at not in retained and at not in self._forgotten:
                found[at] = change
            at = self._made[at].parent_id
        return found

    def descends(self, current: int | None, snapshot_id: int) -> bool:
        """Whether the current snapshot is that one, or was made on top of it. Expiry changes neither."""
        at = current
        while at is not None and at in self._made and at != snapshot_id:
            at = self._made[at].parent_id
        return at == snapshot_id


def told_once(expired: Mapping[int, int], text: str | None, *, retired: bool) -> str | None:
    """What strangers added and removed stands once in the table when their snapshots have expired; less of it
    where retention passed it."""
    changes = [] if text is None else json.loads(text)["changes"]
    told = (sum(one["rows"] for one in changes), sum(one["added"] for one in changes))
    so = (
        -sum(change for change in expired.values() if change < 0),
        sum(change for change in expired.values() if change > 0),
    )
    if told == so or (retired and told[0] <= so[0] and told[1] <= so[1]):
        return None
    return (
        f"the table tells of {told[0]} rows removed and {told[1]} added by expired snapshots, "
        f"{dict(expired)} are so"
    )
