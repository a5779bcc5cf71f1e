"""The moves of retention starts, and the result of one cleaning run for the command line and the daemon."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from archiver.config.settings import TopicSettings
from archiver.ledger.bridge import append_in_parts
from archiver.ledger.fold import LedgerFold
from archiver.ledger.leader import Leader
from archiver.ledger.views import TopicLedger
from archiver.proto import control_log_pb2 as pb
from archiver.runtime import failpoints
from archiver.runtime.errors import ArchiverError
from archiver.runtime.exit_codes import FINE, UNKNOWN, WRONG, exit_code
from archiver.runtime.ids import TopicId
from intake.log.backlog import Backlog
from intake.log.fold import TopicState
from reconcile.snapshot.oldest_required import OldestRequired
from reconcile.snapshot.retention_floor import Lines
from reconcile.snapshot.unreferenced_objects import Kind


# --- Retention starts
@dataclass(frozen=True, slots=True)
class Moved:
    """A move of the start of one topic partition."""

    topic: str
    topic_id: TopicId
    partition: int
    before: int
    start: int

    def to_json(self) -> dict[str, object]:
        """The JSON of `clean`."""
        return {"topic": self.topic, "partition": self.partition, "before": self.before, "start": self.start}


def due_starts(
    topic: TopicState, intake: Backlog, ledger: TopicLedger, retention_s: float | None, now_us: int
) -> list[Moved]:
    """Starts that move because archived records are older than the retention, or because clients deleted
    them. Pure.
    """
    found: list[Moved] = []
    for partition in range(topic.partitions):
        before, archived = ledger.start(partition), ledger.watermarks.get(partition, 0)
        # The start never passes the watermark, so only archived records are removed.
        start = min(intake.deleted_below((topic.topic_id, partition)), archived)
        if retention_s is not None:
            limit_us = now_us - round(retention_s * 1e6)
            start = max(start, ledger.ages.older_than(partition, limit_us, archived))
        # A start only rises; a longer retention does not bring deleted records back.
        if start > before:
            found.append(Moved(topic.name, topic.topic_id, partition, before, start))
    return found


def all_due(
    topics: Iterable[TopicSettings], intake: Backlog, ledger: LedgerFold, lines: Lines, now_us: int
) -> list[Moved]:
    """The starts that move now, of all topics with archives and known retention floors. Pure."""
    found: list[Moved] = []
    for settings in topics:
        topic = intake.topics_by_name.get(settings.name)
        if topic is None or settings.archive.kind == "none":
            continue
        line = lines.get(topic.topic_id)
        # In doubt nothing is retired: a table that was set back may need its older records.
        if line is not None and line.why is None:
            found += due_starts(topic, intake, ledger.topic(topic.topic_id), settings.retention, now_us)
    return found


def move_starts(leader: Leader, moved: list[Moved]) -> None:
    """Append the new starts to the ledger; `leader` must lead. Raises the errors of an append."""
    # A StartMoved entry is of one topic.
    by_topic: dict[TopicId, list[Moved]] = {}
    for item in moved:
        by_topic.setdefault(item.topic_id, []).append(item)
    for topic_id, items in by_topic.items():
        raw_id = bytes.fromhex(topic_id)
        failpoints.reach("start.append.before")
        append_in_parts(
            leader,
            [pb.PartitionOffset(partition=item.partition, offset=item.start) for item in items],
            lambda part, _, raw_id=raw_id: pb.StartMoved(topic_id=raw_id, starts=part),  # type: ignore[misc]
            lambda item: f"the start of partition {item.partition}",
        )
        failpoints.reach("start.append.after")


# --- The report
class Compacted(Protocol):
    """The outcome of compaction for one topic."""

    @property
    def topic(self) -> str:
        """The topic's name."""

    @property
    def merged(self) -> int:
        """New archives in the table."""

    @property
    def archives(self) -> int:
        """Old archives that they replace."""

    @property
    def more(self) -> bool:
        """Whether the run stopped at its limit."""

    @property
    def why(self) -> str | None:
        """What ended it early."""

    def to_json(self) -> dict[str, object]:
        """The JSON of `clean`."""


@dataclass
class CleanReport:
    """The changes of a run, or with `dry_run` the changes it would make."""

    dry_run: bool
    checked_us: int
    barrier_ms: int | None = None
    """The barrier that this run raised: later log entries that name a file written before it are void. None
    if it raised none."""
    condemned: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    waiting: int = 0
    """Objects that are marked for deletion and still exist."""
    needed: int = 0
    young: int = 0
    over: int = 0
    strange: int = 0
    cut: bool = False
    """Whether more objects are due than one run may delete."""
    pin: OldestRequired | None = None
    topics: list[dict[str, object]] = field(default_factory=list)
    """Topics that keep everything, with the reason."""
    unread: bool = False
    """Whether a required history file is unreadable. Its other contents are then unknown, so nothing is
    marked or deleted."""
    findings: list[str] = field(default_factory=list)
    starts: list[Moved] = field(default_factory=list)
    """Starts of topic partitions that moved, by retention or by deletions of clients."""
    kinds: dict[str, dict[str, dict[str, int]]] = field(
        default_factory=lambda: {"condemned": {}, "deleted": {}}
    )
    """Objects and bytes marked for deletion, and deleted, by kind."""
    uploads: list[str] = field(default_factory=list)
    """Keys of stale multipart uploads that were aborted."""
    compacted: Sequence[Compacted] = ()
    """Topics whose archives were merged, or were not merged for a reason."""
    error: ArchiverError | None = None
    """The error that ended this run early; the next run continues."""

    @property
    def doubted(self) -> bool:
        """Whether the needs of some topic are unknown."""
        return any(topic["doubted"] for topic in self.topics)

    @property
    def more(self) -> bool:
        """Whether it stopped at a limit and made progress, so that another run at once is useful."""
        limited = self.over or self.cut or any(topic.more for topic in self.compacted)
        # A run without progress would repeat itself at once, for example while a table is unreachable.
        done = self.deleted or self.condemned or any(topic.merged for topic in self.compacted)
        return bool(limited and done) and self.error is None and not self.findings

    @property
    def exit_code(self) -> int:
        """The exit code of `archiver clean`."""
        # A contradiction needs an operator, so it takes precedence over errors that a later run may resolve.
        if self.findings:
            return WRONG
        if self.error is not None:
            return exit_code(self.error)
        # Topics in doubt keep everything until a later run can read them.
        return UNKNOWN if self.doubted or any(topic.why for topic in self.compacted) else FINE

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
        """Count one object as `condemned` or `deleted`."""
        counted_of = self.kinds[what].setdefault(kind, {"objects": 0, "bytes": 0})
        counted_of["objects"] += 1
        counted_of["bytes"] += size
