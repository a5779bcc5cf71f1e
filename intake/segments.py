"""Where records are: consecutive records of one topic partition inside one intake file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class FileRef:
    """An intake file that the log names."""

    log_index: int
    key: str
    size: int
    """Bytes."""
    footer_sha256: bytes


class SegmentRef(NamedTuple):
    """Consecutive records of one topic partition and where they are.

    A tuple, because a round may have half a million of them: they are made, sent to the tasks and received there in half of the time that
    a dataclass takes.
    """

    file: FileRef
    row_group: int
    first_row: int
    """Inside the row group."""
    rows: int
    base: int
    """Offset of the first record."""
    raw_bytes: int
    accept_max_us: int
    floor_us: int
    """No record of the segment has an ingest time before this."""

    @property
    def end(self) -> int:
        """One past the last offset."""
        return self.base + self.rows

    @property
    def ingest_max_us(self) -> int:
        """Ingest time of the last record."""
        return max(self.floor_us, self.accept_max_us)
