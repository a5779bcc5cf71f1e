"""What an archiving run did, as values for the command line and the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from archiver.publish.progress import HeldBack
from archiver.runtime.errors import ArchiverError, Deposed, OutcomeUnknown, RetryLater
from archiver.runtime.exit_codes import FINE, UNTOLD, USAGE, WRONG
from archiver.runtime.text import counted

CommitEnd = Literal["committed", "nothing", "retry", "unknown", "halted", "deposed"]
"""committed: archives came into the table · nothing: there was nothing to add · retry: it was not reached, or
others were always quicker · unknown: the last request may still land · halted: somebody must act · deposed: a
newer leader came."""

RoundStep = Literal["look", "prepare", "plan", "refine", "write", "commit"]
"""look: which topics are worth it · prepare: their schemas and tables · plan: what becomes an archive ·
refine: archives are made · write: the ledger is told · commit: tables are."""


@dataclass(frozen=True, slots=True)
class CommitTry:
    """One call of the committer for one table."""

    topic: str
    seconds: float
    attempts: int
    """Times that the table was loaded and a swap prepared; more than one if somebody else was quicker or no
    answer came."""
    end: CommitEnd


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
    notes: list[str] = field(default_factory=list)
    """What an operator should know though archiving goes on, for example that the schema registry is down."""
    gaps: int = 0
    """Offsets of aborted transactions that were passed over."""
    decode_errors: dict[str, int] = field(default_factory=dict)
    """Keys and values that could not be decoded, by side and cause (`value:malformed`); their bytes are
    kept."""
    commit_attempts: int = 0
    commit_seconds: float = 0.0
    """How long the topic's commits took, all together."""
    schema_change: dict[str, Any] | None = None
    """The change of the topic's schema that the run recorded: versions, number of changes, incompatible
    fields. None: there was none."""
    held: list[dict[str, object]] = field(default_factory=list)
    """Per partition that an open transaction holds back when the run ends: which transaction, and how many
    offsets wait for it."""

    def hold(self, held: Mapping[int, HeldBack], now_us: int) -> None:
        """Record which partitions wait for which transactions, and say so unless something is wrong
        besides.
        """
        self.held = [{"partition": partition, **item.to_json()} for partition, item in sorted(held.items())]
        if self.held and self.state in ("idle", "archived"):
            oldest = min(held.values(), key=lambda item: item.since_us)
            waiting = counted(sum(item.waiting for item in held.values()), "offset waits", "offsets wait")
            told = (
                f"held back in {counted(len(held), 'partition')}: {waiting} for open transactions, the "
                "oldest of them "
                f"{oldest.described(now_us)}"
            )
            self.why = told if self.why is None else f"{self.why}; {told}"

    def tell_notes(self) -> None:
        """Say them with the reason, unless something is wrong besides."""
        if self.notes and self.state in ("idle", "archived"):
            self.why = "; ".join([*([] if self.why is None else [self.why]), *dict.fromkeys(self.notes)])

    def not_decoded(self, counts: Mapping[str, int]) -> None:
        """Count further keys and values that could not be decoded."""
        self.decode_errors = dict(sorted((Counter(self.decode_errors) + Counter(counts)).items()))

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
    commits: list[CommitTry] = field(default_factory=list)
    """Every commit that was tried, in their order."""
    seconds: dict[RoundStep, float] = field(default_factory=dict)
    """What the steps of the rounds took, all together."""

    def of(self, topic: str) -> TopicReport:
        """The topic's report, created at first use."""
        return self.topics.setdefault(topic, TopicReport(topic))

    def committing(self, tried: CommitTry) -> None:
        """A commit ended, however it did."""
        self.commits.append(tried)
        report = self.of(tried.topic)
        report.commit_attempts += tried.attempts
        report.commit_seconds += tried.seconds

    def took(self, step: RoundStep, seconds: float) -> None:
        """A step ended, however it did."""
        self.seconds[step] = self.seconds.get(step, 0.0) + seconds

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

    @property
    def exit_code(self) -> int:
        """What `archiver archive` exits with."""
        if self.misconfigured:
            return USAGE
        if self.halted:
            return WRONG
        return UNTOLD if self.deferred else FINE

    def to_json(self) -> dict[str, object]:
        """The document of `archive --output json`."""
        return {
            "epoch": self.epoch,
            "rounds": self.rounds,
            "topics": [vars(item) for item in self.topics.values()],
        }


def commit_end(error: ArchiverError) -> CommitEnd:
    """How a commit ended that raised."""
    if isinstance(error, RetryLater):
        return "retry"
    if isinstance(error, OutcomeUnknown):
        return "unknown"
    return "deposed" if isinstance(error, Deposed) else "halted"
