"""Rewritten archives: the old and new ones in the ledger.

A rewrite has three states. Under way: the new object exists, but the ledger does not yet know whether the
table has it. Replaced: the table has the new archive, and the old one may be deleted once no retained
snapshot references it. Abandoned: the new archive is unused. A rewrite has exactly the offsets of the old
archives, so it never changes watermarks or coverage. Old and new archives hold the same records, so a reader
may use either; a deletion must check here.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from archiver.ledger.archives import ArchiveFile


@dataclass(frozen=True, slots=True)
class OldArchive:
    """An archive that another one replaces."""

    key: str
    size: int
    """Bytes of the object."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One archive that replaces one or several."""

    olds: tuple[OldArchive, ...]
    """In offset order; together they have the range of the new one."""
    archive: ArchiveFile
    """The new archive."""
    table_uuid: uuid.UUID
    """Rule T3: the table that the writer last saw."""
    last_sequence_number: int
    """The table's last sequence number at that time."""
    index: int
    """The index of the entry in the control log."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """An archive that another one has replaced."""

    by: str
    """Key of the new archive."""
    sequence_number: int
    """The table had the new archive at this sequence number; older snapshots may reference the old one."""


@dataclass(slots=True)
class Rewrites:
    """The rewrites of one topic."""

    under_way: dict[str, Rewrite] = field(default_factory=dict)
    """By the new key, in log order."""
    replaced: dict[str, Replaced] = field(default_factory=dict)
    """By the old key, until its object is deleted."""
    abandoned: dict[str, tuple[Rewrite, str]] = field(default_factory=dict)
    """By the new key, with the reason. If the table has it anyway, a later entry records that it replaced the
    old one."""

    def knows(self, key: str) -> bool:
        """Whether the key was used, or is about to be deleted."""
        return key in self.under_way or key in self.replaced or key in self.abandoned
