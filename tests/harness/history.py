"""What happened in one run, as plain values: what was sent and acknowledged, which faults were played, what
was read back.

Owns the words of a history. Nothing here reads a file or judges; `loading.py` makes a history from a folder,
`judging.py` judges it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Outcome = Literal["ok", "failed", "unknown"]
Source = tuple[str, int, int, str]
"""Topic, partition, offset and digest of a record that was read."""
Fate = Literal["committed", "aborted", "undecided"]
Place = tuple[str, int, int]
"""Topic, partition, offset."""
ProducerKey = tuple[int, int]
"""Producer id and epoch."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try to send one record. The tries of a record share sender and number; they differ in `attempt`."""

    sender: str
    """The name of a sequence of records: one thread of one worker, and its successors after a crash. A suffix
    behind a `/` separates records that are ordered among themselves only: those of one file, or those between
    two lost answers."""
    number: int
    """Rises with every new record of the sender."""
    attempt: int
    topic: str
    partition: int | None
    """None if the key decides and no answer came."""
    digest: str
    """Of key, value, headers and event time together; no two records of a run share it."""
    sequence: int | None = None
    """With an idempotent producer."""
    producer: ProducerKey | None = None
    transaction: str | None = None
    """The transaction it was sent in."""
    outcome: Outcome | None = None
    """None: no answer came, which says as little as `unknown`."""
    offset: int | None = None
    error: str | None = None
    file: str | None = None
    """The file it was put into, for a source that ingests files; those get no acknowledgement."""
    source: Source | None = None
    """The record that it was made from, by a loop that reads and writes exactly once."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """One transaction: what its sender asked for and the answers, in order."""

    name: str
    steps: tuple[tuple[str, Outcome | None], ...] = ()
    """`commit`, `abort` or `fenced`, with the answer; None if none came. `fenced`: a second producer opened the
    transactional id."""
    asked_s: float | None = None
    """When its commit was first asked for, in seconds since the run began."""
    committed_s: float | None = None
    """When its commit was acknowledged."""

    @property
    def fenced(self) -> bool:
        """Whether a second producer was open before this one asked for a commit."""
        before = [(step, outcome) for step, outcome in self.steps if step in ("commit", "fenced")]
        return before[:1] == [("fenced", "ok")]

    @property
    def fate(self) -> Fate:
        """As far as its sender can know after everything has settled: a commit that was never asked for,
        failed, or came after the producer was fenced, cannot be there."""
        commits = [outcome for step, outcome in self.steps if step == "commit"]
        if self.fenced:
            return "aborted"
        if "ok" in commits:
            return "committed"
        return "undecided" if any(outcome != "failed" for outcome in commits) else "aborted"


@dataclass(frozen=True, slots=True)
class Row:
    """One record as it was read back."""

    partition: int
    offset: int
    digest: str
    ingest_us: int
    """Ingest time in microseconds since 1970 UTC."""
    batch_start: int | None


@dataclass(frozen=True, slots=True)
class TableReading:
    """A table as other code than the product's sees it."""

    rows: tuple[Row, ...]
    watermarks: Mapping[int, int]
    """Per partition, the offset below which the table says it is complete; 0 where it says nothing."""


@dataclass(frozen=True, slots=True)
class MirrorReading:
    """A mirrored topic at the end, from both sides."""

    upstream: tuple[Row, ...]
    """What a plain reader of committed records finds in the cluster; it knows no ingest time."""
    consumed: tuple[Row, ...]
    """What `archiver consume` printed, in its order."""
    table: TableReading
    """Of the topic; every mirrored topic of a run has one."""


Isolation = Literal["committed", "uncommitted"]


@dataclass(frozen=True, slots=True)
class Fetched:
    """What one Kafka reader got, from the beginning of every partition on."""

    rows: Mapping[str, tuple[Row, ...]] = field(default_factory=dict)
    """Per topic, in the order of the answers; Kafka knows no ingest time."""
    ends: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """Per topic and partition, the end of the log that it was given when it had read all."""
    isolation: Isolation = "committed"
    """Which records it asked for."""
    first_s: Mapping[str, float] = field(default_factory=dict)
    """Per digest, when the reader had it first, in seconds since the run began."""


@dataclass(frozen=True, slots=True)
class GroupCommit:
    """A commit of the offset of one partition, as a member of a group asked for it. A partition is topic and
    number."""

    partition: tuple[str, int]
    offset: int
    asked_s: float
    answered_s: float | None = None
    """When it was acknowledged. None: it failed, or its outcome is unknown."""
    transaction: str | None = None
    """The transaction that has it."""


@dataclass(frozen=True, slots=True)
class OffsetSeen:
    """The committed offset that a daemon gave for one partition; -1 if there is none."""

    partition: tuple[str, int]
    offset: int
    began_s: float
    """When it was asked."""
    ended_s: float
    daemon: int


@dataclass(frozen=True, slots=True)
class Processed:
    """A record that a member of a group has processed."""

    member: str
    topic: str
    partition: int
    offset: int
    digest: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Assigned:
    """A partition that a member got. The member reads its committed offset afterwards."""

    member: str
    partition: tuple[str, int]
    at_s: float


@dataclass(frozen=True, slots=True)
class GroupReading:
    """What the members of one consumer group did, and what an observer saw; each in the order of time."""

    commits: tuple[GroupCommit, ...] = ()
    seen: tuple[OffsetSeen, ...] = ()
    processed: tuple[Processed, ...] = ()
    assigned: tuple[Assigned, ...] = ()
    ends: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """Per partition, its end after the last record. The group had time to commit it."""


@dataclass(frozen=True)
class History:
    """One run."""

    seed: int = 0
    topics: tuple[str, ...] = ()
    """Every topic that was written to."""
    tabled: tuple[str, ...] = ()
    """Those with a table."""
    faults_asked: tuple[str, ...] = ()
    """Kinds of faults the run was to play."""
    rounds_asked: int = 0
    """Rounds of archiving the run was to start."""
    attempts: tuple[Attempt, ...] = ()
    """In the order in which each sender made them."""
    transactions: Mapping[str, Transaction] = field(default_factory=dict)
    dropped: frozenset[str] = frozenset()
    """Files that were put, whole, where a source ingests them."""
    faults: Mapping[str, int] = field(default_factory=dict)
    """How often each kind was played."""
    settled: bool = False
    """Whether the run waited for everything to come to rest before it read."""
    consumed: Mapping[str, tuple[Row, ...]] = field(default_factory=dict)
    """Per topic, what `archiver consume` printed, in its order."""
    tables: Mapping[str, TableReading] = field(default_factory=dict)
    mirrors: Mapping[str, MirrorReading] = field(default_factory=dict)
    """Per mirrored topic; those are in nothing above."""
    fetched: Mapping[str, Fetched] = field(default_factory=dict)
    """Per Kafka reader."""
    groups: Mapping[str, GroupReading] = field(default_factory=dict)
    """Per consumer group."""
    troubles: tuple[str, ...] = ()
    """Why this history is not the whole story: no verdict can be valid, or invalid, then."""
    oddities: tuple[str, ...] = ()
    """What should not happen to a run, though its story is whole: the verdict cannot be valid then."""
