"""What an archiving run did, as values for the command line and the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from archiver.jobs.positions import HeldBack


@dataclass
class TopicReport:
    """One topic's part of a run."""

    topic: str
    state: str = "idle"
    """idle: nothing was due; archived; halted: somebody must act; deferred: a later run goes on by itself."""
    archives: int = 0
    rows: int = 0
    raw_bytes: int = 0
    stored_bytes: int = 0
    snapshot_id: int | None = None
    why: str | None = None
    waiting: int | None = 0
    """Stable records that are in no archive when the run ends; None if that cannot be told."""
    misconfigured: bool = False
    """The reason is in the configuration."""
    gaps: int = 0
    """Offsets of aborted transactions that were passed over."""
    held: list[dict[str, object]] = field(default_factory=list)
    """Per partition that an open transaction holds back when the run ends: which transaction, and how many offsets wait for it."""

    def hold(self, held: Mapping[int, HeldBack], now_us: int) -> None:
        """Record which partitions wait for which transactions, and say so unless something is wrong besides."""
        self.held = [{"partition": partition, **item.to_json()} for partition, item in sorted(held.items())]
        if self.held and self.state in ("idle", "archived"):
            oldest = min(held.values(), key=lambda item: item.since_us)
            waiting = sum(item.waiting for item in held.values())
            told = (
                f"held back in {len(held)} partition{'s' if len(held) > 1 else ''}: {waiting:,} offsets wait for open transactions, the "
                f"oldest of them {oldest.described(now_us)}"
            )
            self.why = told if self.why is None else f"{self.why}; {told}"

    def halt(self, why: str) -> None:
        """Record that the topic cannot go on; the first reason stays."""
        if self.state != "halted":
            self.state, self.why = "halted", why

    def defer(self, why: str) -> None:
        """Record that the topic was left for a later run; a halt is not overwritten."""
        if self.state != "halted":
            self.state, self.why = "deferred", why


@dataclass
class ArchiveReport:
    """A whole run: every topic looked at, in the order of their names."""

    epoch: int = 0
    rounds: int = 0
    topics: dict[str, TopicReport] = field(default_factory=dict)

    def of(self, topic: str) -> TopicReport:
        """The topic's report, created at first use."""
        return self.topics.setdefault(topic, TopicReport(topic))

    @property
    def halted(self) -> list[TopicReport]:
        """Topics that need somebody."""
        return [item for item in self.topics.values() if item.state == "halted"]

    @property
    def misconfigured(self) -> list[TopicReport]:
        """Topics that wait for a better configuration."""
        return [item for item in self.topics.values() if item.misconfigured]

    @property
    def deferred(self) -> list[TopicReport]:
        """Topics left for a later run."""
        return [item for item in self.topics.values() if item.state == "deferred"]

    def to_json(self) -> dict[str, object]:
        """The document of `archive --output json`."""
        return {
            "epoch": self.epoch,
            "rounds": self.rounds,
            "topics": [vars(item) for item in self.topics.values()],
        }
