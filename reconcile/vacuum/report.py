"""What one run of cleaning did, or would have done, for people and for the daemon."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from archiver.runtime.errors import ArchiverError
from archiver.runtime.exit_codes import FINE, UNTOLD, WRONG, exit_code
from reconcile.snapshot.oldest_required import OldestRequired
from reconcile.snapshot.unreferenced_objects import Kind
from reconcile.vacuum.retention import Moved


class Compacted(Protocol):
    """What became of the small archives of one topic."""

    @property
    def topic(self) -> str:
        """Its name."""

    @property
    def merged(self) -> int:
        """New archives that are in the table …"""

    @property
    def archives(self) -> int:
        """… and in whose place they are."""

    @property
    def more(self) -> bool:
        """It ended at its limit."""

    @property
    def why(self) -> str | None:
        """What ended it early."""

    def to_json(self) -> dict[str, object]:
        """As `clean` prints it."""


@dataclass
class CleanReport:
    """What a run did, or with `dry_run` would have done."""

    dry_run: bool
    checked_us: int
    barrier_ms: int | None = None
    """Entries that name a file written before count for nothing from this run on; None if it raised no
    barrier."""
    condemned: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    waiting: int = 0
    """Objects that are condemned and still there."""
    needed: int = 0
    young: int = 0
    over: int = 0
    strange: int = 0
    cut: bool = False
    """More than one run may delete could go by now."""
    pin: OldestRequired | None = None
    topics: list[dict[str, object]] = field(default_factory=list)
    """Topics of which everything is kept, with the reason."""
    unread: bool = False
    """A shelf that some topic needs cannot be read: nobody can tell what else it holds, so nothing is
    condemned or deleted."""
    findings: list[str] = field(default_factory=list)
    starts: list[Moved] = field(default_factory=list)
    """Where retention has moved the starts of topic partitions."""
    kinds: dict[str, dict[str, dict[str, int]]] = field(
        default_factory=lambda: {"condemned": {}, "deleted": {}}
    )
    """Objects and bytes that were condemned, and deleted, by kind."""
    uploads: list[str] = field(default_factory=list)
    """Keys of uploads in parts that never ended, which were aborted."""
    compacted: Sequence[Compacted] = ()
    """Topics of which archives were merged, or stayed as they are for a reason."""
    error: ArchiverError | None = None
    """What ended this run early; the next one goes on."""

    @property
    def doubted(self) -> bool:
        """Of some topic it could not be told what is needed."""
        return any(topic["doubted"] for topic in self.topics)

    @property
    def more(self) -> bool:
        """It ended at a limit and got somewhere: another run at once goes on."""
        limited = self.over or self.cut or any(topic.more for topic in self.compacted)
        done = self.deleted or self.condemned or any(topic.merged for topic in self.compacted)
        return bool(limited and done) and self.error is None and not self.findings

    @property
    def exit_code(self) -> int:
        """What `archiver clean` exits with."""
        if self.findings:
            return WRONG
        if self.error is not None:
            return exit_code(self.error)
        return UNTOLD if self.doubted or any(topic.why for topic in self.compacted) else FINE

    def to_json(self) -> dict[str, object]:
        """The document of `archiver clean --output json`."""
        return {
            "dry_run": self.dry_run,
            "barrier_ms": self.barrier_ms,
            "condemned": self.condemned,
            "deleted": self.deleted,
            "waiting": self.waiting,
            "kept": {
                "needed": self.needed,
                "young": self.young,
                "over_limit": self.over,
                "not_intake": self.strange,
            },
            "pinned": None if self.pin is None else self.pin.to_json(self.checked_us),
            "topics": self.topics,
            "findings": self.findings,
            "starts": [item.to_json() for item in self.starts],
            "kinds": self.kinds,
            "uploads": self.uploads,
            "compacted": [topic.to_json() for topic in self.compacted],
            "error": None if self.error is None else str(self.error),
        }

    def count(self, what: str, kind: Kind, size: int) -> None:
        """One object more was `condemned` or `deleted`."""
        counted_of = self.kinds[what].setdefault(kind, {"objects": 0, "bytes": 0})
        counted_of["objects"] += 1
        counted_of["bytes"] += size
