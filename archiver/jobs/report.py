"""What an archiving run did, as values for the command line and the log."""

from __future__ import annotations

from dataclasses import dataclass, field


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
    waiting: int = 0
    """Stable records that are in no archive when the run ends."""
    misconfigured: bool = False
    """The reason is in the configuration."""

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
