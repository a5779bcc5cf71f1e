"""Archives and rewrites of archives in the ledger, as values, and the stored form of an archive.

Translates between `ArchiveFile` and the message of the same name in `control_log.proto`; both directions keep
every field.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from archiver.proto import control_log_pb2 as pb
from archiver.runtime.errors import Corrupted


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
        # Under way and abandoned by new keys, replaced by old ones. Both must never name another object.
        return key in self.under_way or key in self.replaced or key in self.abandoned


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """One archive, or a range of offsets with only gaps (then `key` is empty and there is no object)."""

    key: str
    """Object key under `data.uri`; contains the range and the epoch, so that no two archives share it."""
    size: int
    """Bytes of the object."""
    sha256: bytes
    """SHA-256 of the whole object."""
    records_digest: bytes
    """Digest of the records alone: a function of the intake log, not of the schema."""
    partition: int
    base: int
    end: int
    """Exclusive."""
    epoch: int
    """Epoch of the leader that planned it."""
    schema_version: int
    """Version of the topic's schema entries in the ledger."""
    rows: int
    raw_bytes: int
    """Key, value and header bytes of the records."""
    ingest_min_us: int
    ingest_max_us: int
    gaps: tuple[tuple[int, int], ...] = ()
    """Ranges [base, end) inside without a record (markers, aborted transactions)."""

    @property
    def gap_only(self) -> bool:
        """Whether the range has no object."""
        return not self.key

    def to_proto(self) -> pb.ArchiveFile:
        """The stored form."""
        return pb.ArchiveFile(
            key=self.key,
            size=self.size,
            sha256=self.sha256,
            records_digest=self.records_digest,
            partition=self.partition,
            base=self.base,
            end=self.end,
            gaps=[pb.OffsetRange(base=base, end=end) for base, end in self.gaps],
            epoch=self.epoch,
            schema_version=self.schema_version,
            rows=self.rows,
            raw_bytes=self.raw_bytes,
            ingest_min_us=self.ingest_min_us,
            ingest_max_us=self.ingest_max_us,
        )

    @classmethod
    def from_proto(cls, message: pb.ArchiveFile) -> ArchiveFile:
        """The value of a stored form; raises `Corrupted` if its range is empty or reversed."""
        # An empty range would never advance a watermark, and its plan would repeat forever.
        if message.end <= message.base:
            raise Corrupted(
                f"archive {message.key!r} in the ledger has the range [{message.base}, {message.end}), "
                "which holds no offset"
            )
        return cls(
            key=message.key,
            size=message.size,
            sha256=message.sha256,
            records_digest=message.records_digest,
            partition=message.partition,
            base=message.base,
            end=message.end,
            epoch=message.epoch,
            schema_version=message.schema_version,
            rows=message.rows,
            raw_bytes=message.raw_bytes,
            ingest_min_us=message.ingest_min_us,
            ingest_max_us=message.ingest_max_us,
            gaps=tuple((gap.base, gap.end) for gap in message.gaps),
        )
