"""Archives that were made anew: what the ledger knows of old and new ones.

Owns the three states of a rewrite: under way (the new object exists, nobody knows yet whether the table has
it), replaced (the table has the new one, the old one may be deleted once no retained snapshot names it),
abandoned (the new one is nobody's). Promises that watermarks and what counts as covered never change here: a
rewrite holds the very offsets of the old archives. Old and new hold the same records, so whoever reads
records may take either; whoever deletes must ask here.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from archiver.ledger.archives import ArchiveFile


@dataclass(frozen=True, slots=True)
class OldArchive:
    """One that another takes the place of."""

    key: str
    size: int
    """Bytes of the object."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One archive that was made anew, of one or of several."""

    olds: tuple[OldArchive, ...]
    """In the order of their offsets; together they are the range of the new one."""
    archive: ArchiveFile
    """The new one."""
    table_uuid: uuid.UUID
    """Rule T3: the table as the writer last saw it …"""
    last_sequence_number: int
    """… and its last sequence number then."""
    index: int
    """Of the entry in the control log."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """An archive that another one stands for."""

    by: str
    """Key of the new one."""
    sequence_number: int
    """The table had the new one at this sequence number; older snapshots may name the old one."""


@dataclass(slots=True)
class Rewrites:
    """One topic's rewrites."""

    under_way: dict[str, Rewrite] = field(default_factory=dict)
    """By the new key, in the order of the log."""
    replaced: dict[str, Replaced] = field(default_factory=dict)
    """By the old key, until its object is deleted."""
    abandoned: dict[str, tuple[Rewrite, str]] = field(default_factory=dict)
    """By the new key, with the reason. Should the table have it all the same, a later entry says that it
    replaced the old one."""

    def knows(self, key: str) -> bool:
        """Whether the key was used, or is about to be deleted."""
        return key in self.under_way or key in self.replaced or key in self.abandoned
