"""One archive file as the ledger describes it: a value, and its stored form.

Owns the translation between `ArchiveFile` and the message of the same name in `control_log.proto`. Promises
that both directions keep every field. Must never invent a value that the stored form lacks.
"""

from __future__ import annotations

from dataclasses import dataclass

from archiver.proto import control_log_pb2 as pb
from archiver.runtime.errors import Corrupted


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """One archive, or a range of offsets that holds nothing but gaps (then `key` is empty and there is no
    object).
    """

    key: str
    """Object key under `data.uri`; contains the range and the epoch, so that no two archives share it."""
    size: int
    """Bytes of the object."""
    sha256: bytes
    """Of the whole object."""
    records_digest: bytes
    """Of the records alone: a function of the intake log, not of the schema."""
    partition: int
    base: int
    end: int
    """Exclusive."""
    epoch: int
    """Of the leader that planned it."""
    schema_version: int
    """Of the topic's schema entries in the ledger."""
    rows: int
    raw_bytes: int
    """Key, value and header bytes of the records."""
    ingest_min_us: int
    ingest_max_us: int
    gaps: tuple[tuple[int, int], ...] = ()
    """Ranges [base, end) inside that hold no record (markers, aborted transactions)."""

    @property
    def gap_only(self) -> bool:
        """No object stands behind this range."""
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
        """The value behind a stored form; raises `Corrupted` if its range is empty or reversed."""
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
