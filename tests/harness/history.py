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


@dataclass(frozen=True, slots=True)
class Transaction:
    """One transaction: what its sender asked for and the answers, in order."""

    name: str
    steps: tuple[tuple[str, Outcome | None], ...] = ()
    """`commit` or `abort`, with the answer; None if none came."""

    @property
    def fate(self) -> Fate:
        """As far as its sender can know after everything has settled: a commit that was never asked for, or
        failed, cannot be there."""
        commits = [outcome for step, outcome in self.steps if step == "commit"]
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


@dataclass(frozen=True, slots=True)
class Fetched:
    """What one Kafka reader got, from the beginning of every partition on."""

    rows: Mapping[str, tuple[Row, ...]] = field(default_factory=dict)
    """Per topic, in the order of the answers; Kafka knows no ingest time."""
    ends: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """Per topic and partition, the end of the log that it was given when it had read all."""


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
    troubles: tuple[str, ...] = ()
    """Why this history is not the whole story: no verdict can be valid, or invalid, then."""
    oddities: tuple[str, ...] = ()
    """What should not happen to a run, though its story is whole: the verdict cannot be valid then."""
