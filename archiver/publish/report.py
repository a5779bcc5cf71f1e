"""What an archiving run did, as values for the command line and the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from archiver.publish.progress import HeldBack
from archiver.runtime.errors import ArchiverError, Deposed, OutcomeUnknown, RetryLater
from archiver.runtime.exit_codes import FINE, UNKNOWN, USAGE, WRONG
from archiver.runtime.text import counted

CommitEnd = Literal["committed", "nothing", "retry", "unknown", "halted", "deposed"]
"""committed: archives are in the table · nothing: there was nothing to add · retry: the catalog was not
reached, or other writers always committed first · unknown: the last request may still be applied · halted: an
operator must act · deposed: a newer leader appeared."""

RoundStep = Literal["look", "prepare", "plan", "refine", "write", "commit"]
"""look: which topics have work · prepare: their schemas and tables · plan: what becomes an archive · refine:
archives are made · write: archives are recorded in the ledger · commit: archives are committed to the tables.
"""


@dataclass(frozen=True, slots=True)
class CommitTry:
    """One call of the committer for one table."""

    topic: str
    seconds: float
    attempts: int
    """Times that the table was loaded and a swap prepared; more than one if another writer committed first,
    or no answer came."""
    end: CommitEnd


@dataclass
class TopicReport:
    """One topic's part of a run."""

    topic: str
    state: str = "idle"
    """idle: nothing was due; archived; halted: an operator must act; deferred: a later run continues by
    itself."""
    archives: int = 0
    rows: int = 0
    raw_bytes: int = 0
    stored_bytes: int = 0
    snapshot_id: int | None = None
    why: str | None = None
    waiting: int | None = 0
    """Stable records that are in no archive when the run ends; None if they cannot be counted."""
    misconfigured: bool = False
    """Whether the reason is in the configuration."""
    notes: list[str] = field(default_factory=list)
    """What an operator should know although archiving continues, for example that the schema registry is
    down."""
    gaps: int = 0
    """Offsets of aborted transactions that the watermark passed."""
    decode_errors: dict[str, int] = field(default_factory=dict)
    """Keys and values that could not be decoded, by side and cause (`value:malformed`); their bytes are
    kept."""
    commit_attempts: int = 0
    commit_seconds: float = 0.0
    """Total duration of the topic's commits."""
    schema_change: dict[str, Any] | None = None
    """The change of the topic's schema that the run recorded: versions, number of changes, incompatible
    fields. None: there was none."""
    held: list[dict[str, object]] = field(default_factory=list)
    """Per partition that an open transaction holds back when the run ends: which transaction, and how many
    offsets wait for it."""

    def hold(self, held: Mapping[int, HeldBack], now_us: int) -> None:
        """Record which partitions wait for which transactions. Add it to the reason, unless the topic is
        halted or deferred.
        """
        self.held = [{"partition": partition, **item.to_json()} for partition, item in sorted(held.items())]
        # A halted or deferred topic keeps its own reason, which is more urgent.
        if self.held and self.state in ("idle", "archived"):
            oldest = min(held.values(), key=lambda item: item.since_us)
            waiting = counted(sum(item.waiting for item in held.values()), "offset waits", "offsets wait")
            text = (
                f"held back in {counted(len(held), 'partition')}: {waiting} for open transactions, the "
                "oldest of them "
                f"{oldest.described(now_us)}"
            )
            self.why = text if self.why is None else f"{self.why}; {text}"

    def add_notes(self) -> None:
        """Add the notes to the reason, unless the topic is halted or deferred."""
        if self.notes and self.state in ("idle", "archived"):
            # Key and value of one registry may have the same note.
            self.why = "; ".join([*([] if self.why is None else [self.why]), *dict.fromkeys(self.notes)])

    def not_decoded(self, counts: Mapping[str, int]) -> None:
        """Count further keys and values that could not be decoded."""
        self.decode_errors = dict(sorted((Counter(self.decode_errors) + Counter(counts)).items()))

    def halt(self, why: str) -> None:
        """Record that the topic cannot continue; the first reason stays."""
        if self.state != "halted":
            self.state, self.why = "halted", why

    def defer(self, why: str) -> None:
        """Record that the topic was left for a later run; a halt is not overwritten."""
        if self.state != "halted":
            self.state, self.why = "deferred", why


@dataclass
class ArchiveReport:
    """A whole run: every topic that was checked, ordered by name."""

    epoch: int = 0
    rounds: int = 0
    topics: dict[str, TopicReport] = field(default_factory=dict)
    commits: list[CommitTry] = field(default_factory=list)
    """Every commit that was attempted, in order."""
    seconds: dict[RoundStep, float] = field(default_factory=dict)
    """Total duration of each step."""

    def of(self, topic: str) -> TopicReport:
        """The topic's report, created at first use."""
        return self.topics.setdefault(topic, TopicReport(topic))

    def committing(self, tried: CommitTry) -> None:
        """Record a commit that ended, in any way."""
        self.commits.append(tried)
        report = self.of(tried.topic)
        report.commit_attempts += tried.attempts
        report.commit_seconds += tried.seconds

    def took(self, step: RoundStep, seconds: float) -> None:
        """Record a step that ended, in any way."""
        self.seconds[step] = self.seconds.get(step, 0.0) + seconds

    @property
    def halted(self) -> list[TopicReport]:
        """Topics that need an operator."""
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
        # In the order of what an operator has to do: edit the configuration, act, or wait.
        if self.misconfigured:
            return USAGE
        if self.halted:
            return WRONG
        return UNKNOWN if self.deferred else FINE

    def to_json(self) -> dict[str, object]:
        """The document of `archive --output json`."""
        return {
            "epoch": self.epoch,
            "rounds": self.rounds,
            # The fields are the document: a new one is public.
            "topics": [vars(item) for item in self.topics.values()],
        }


def commit_end(error: ArchiverError) -> CommitEnd:
    """How a commit that raised has ended."""
    if isinstance(error, RetryLater):
        return "retry"
    if isinstance(error, OutcomeUnknown):
        return "unknown"
    # `Deposed` is a `Halt` too.
    return "deposed" if isinstance(error, Deposed) else "halted"
