"""The state of a Kafka source for status and metrics."""

from __future__ import annotations

from dataclasses import dataclass

from intake.sources.kafka.upstream_changes import MirrorFinding


@dataclass(frozen=True, slots=True)
class MirrorState:
    """The recent state of one source."""

    name: str
    topics: int = 0
    """Topics mirrored now."""
    partitions: int = 0
    """Partitions read now."""
    behind: int | None = None
    """Offsets in the cluster that are not ingested, for the partitions that are read; None before the first
    inspection."""
    looked_us: int | None = None
    """Time of the last inspection of the cluster; None before the first."""
    findings: tuple[MirrorFinding, ...] = ()
    """The first findings, by topic and partition."""
    stopped: int = 0
    """Number of topics and partitions that are not read on."""
    trouble: str | None = None
    """Reason why nothing is ingested now; None if only single topics have problems."""
    records: int = 0
    """Records ingested since the start of this process."""
    bytes: int = 0
    """Raw bytes of those records."""
