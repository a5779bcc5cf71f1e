"""What a mirror tells of itself."""

from __future__ import annotations

from dataclasses import dataclass

from intake.sources.kafka.upstream_changes import MirrorFinding


@dataclass(frozen=True, slots=True)
class MirrorState:
    """One source, as of a moment ago."""

    name: str
    topics: int = 0
    """That are mirrored now."""
    partitions: int = 0
    """That are read now."""
    behind: int | None = None
    """Offsets that are in the cluster and not taken in, of the partitions that are read; None before the
    first look."""
    looked_us: int | None = None
    """When the cluster was last asked what there is; None: not yet."""
    findings: tuple[MirrorFinding, ...] = ()
    """The first of them, by topic and partition."""
    stopped: int = 0
    """All of them: topics and partitions that are not read on."""
    trouble: str | None = None
    """Why nothing at all is taken in now; None if nothing is wrong but with single topics."""
    records: int = 0
    """Taken in since the start of this process."""
    bytes: int = 0
    """Raw bytes of those records."""
