"""The input and output of refinement: plain values that travel between driver and workers.

Owns the form of a task descriptor and of a result. Both survive pickling, and a result names exactly one
plan. A descriptor must never hold an open resource: Spark may run it again on another worker without notice.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from archiver.events.types import DataFile
from archiver.ledger.archives import ArchiveFile
from archiver.objects.location import StorePlace
from archiver.objects.paths import Granularity
from archiver.refine.plan import WRITER_BYTES, Plan, PlanKey
from archiver.runtime.errors import Halt
from archiver.runtime.ids import TopicId
from archiver.schema.evolution.state import TopicSchema
from intake.segments import Segments

ErrorKind = Literal["retry", "missing", "corrupted", "conflict", "failed"]
"""Why a plan has no files.

- `retry`: nothing is wrong with the data; a later run may succeed (disk full, store unavailable).
- `missing`: an intake file that the log names is not in the store.
- `corrupted`: an intake file is not what the log says.
- `conflict`: another archive exists under the key, and its records are not the plan's.
- `failed`: this version cannot refine it (a defect, or a schema that does not fit).

Every kind but `retry` halts the partition."""


@dataclass(frozen=True, slots=True)
class RefineTopic:
    """What a worker needs to know of a topic."""

    topic_id: TopicId
    name: str
    schema: TopicSchema
    granularity: Granularity
    spec_id: int = 0
    """Partition spec of the table, named in each data file."""
    sort_order_id: int | None = 1
    """Sort order of the table, named in each data file."""
    judged_to: Mapping[int, int] | None = None
    """Per partition the offset from which on a record with an unknown registry id cannot be judged, so that
    its plan must be retried (`archiver.refine.prepare_topic.KnownIds`). None: the topic has no registry ids.
    """


@dataclass(frozen=True, slots=True)
class RefineOptions:
    """How a worker does its work, and the bounds of its memory."""

    zstd_level: int = 1
    """Level 3 was measured slower here and hardly smaller."""
    open_writers_max: int = 64
    """Plans that are written at the same time. A plan whose records need less memory than `writer_bytes`
    counts by its bytes. More plans of a bundle wait, and read their intake files again."""
    writer_bytes: int = WRITER_BYTES
    reads_max: int = 0
    """Intake files that a task reads ahead; 0: each file is read at its turn, in the task's own thread."""
    uploads_max: int = 4
    """Archives of a task that are uploaded while it works on the next; 0: the task waits for each, in its own
    thread."""
    row_group_rows: int = 1_000_000
    """A row group of an archive is closed at this many rows …"""
    row_group_bytes: int = 128 * 1024 * 1024
    """… or at this many bytes of columns in memory, at the first of the two."""
    decode_rows: int = 65_536
    """This many records are decoded at a time …"""
    decode_bytes: int = 8 * 1024 * 1024
    """… or about this many raw bytes, at the first of the two."""
    buffer_bytes: int = 512 * 1024 * 1024
    """Bound for all open writers of a task together. Beyond it the fullest writer closes its row group
    early."""
    engine: Literal["ptars", "protobuf"] = "ptars"
    failpoints: str = ""
    """Failpoints that a worker process arms (see `archiver.runtime.failpoints`); empty in production."""


@dataclass(frozen=True, slots=True)
class TaskDescriptor:
    """One bundle and all that a worker needs for it."""

    cluster_id: str
    place: StorePlace
    """Contains credentials only if the configuration states them; they are not in its `repr`, nor in that of
    a descriptor."""
    epoch: int
    topics: Mapping[TopicId, RefineTopic]
    plans: tuple[Plan, ...]
    options: RefineOptions


@dataclass(frozen=True, slots=True)
class RefineJob:
    """All refinement of a round."""

    cluster_id: str
    place: StorePlace
    epoch: int
    topics: Mapping[TopicId, RefineTopic]
    """At least the topics of the plans."""
    bundles: Sequence[tuple[Plan, ...]]
    options: RefineOptions = field(default_factory=RefineOptions)

    def descriptors(self) -> list[TaskDescriptor]:
        """One descriptor per bundle, each with its own topics only."""
        return [self._descriptor(plans) for plans in self.bundles if plans]

    def _descriptor(self, plans: tuple[Plan, ...]) -> TaskDescriptor:
        # A schema may be large, so a task gets those of its own topics only.
        topics = {plan.topic_id: self.topics[plan.topic_id] for plan in plans}
        # Plans that share intake files name them once, so that the descriptor stays small.
        shared = Segments.sharing([plan.segments for plan in plans])
        sent = tuple(replace(plan, segments=segments) for plan, segments in zip(plans, shared, strict=True))
        return TaskDescriptor(self.cluster_id, self.place, self.epoch, topics, sent, self.options)


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """An archive in the object store: its entry for the ledger, and its entry for the table."""

    archive: ArchiveFile
    data_file: DataFile
    decode_errors: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """How many of its keys and values could not be decoded, by (`key` or `value`,
    `archiver.schema.protobuf.error_causes.Cause`)."""


@dataclass(frozen=True, slots=True)
class PlanResult:
    """The outcome of one plan: all of its files, or an error."""

    topic_id: TopicId
    partition: int
    base: int
    end: int
    files: tuple[WrittenFile, ...] = ()
    """Consecutive, [base, end) together; empty if there is an error."""
    error: ErrorKind | None = None
    why: str | None = None
    """For people: what is wrong and what to do; set together with `error`."""

    @classmethod
    def done(cls, plan: Plan, files: Sequence[WrittenFile]) -> PlanResult:
        """The plan's files are all stored."""
        return cls(plan.topic_id, plan.partition, plan.base, plan.end, tuple(files))

    @classmethod
    def failed(cls, plan: Plan, error: ErrorKind, why: str) -> PlanResult:
        """The plan has no result. Files that were stored stay; the next attempt finds and reuses them."""
        return cls(plan.topic_id, plan.partition, plan.base, plan.end, (), error, why)

    @property
    def plan_key(self) -> PlanKey:
        """Identifies the plan within its job."""
        return (self.topic_id, self.partition, self.base)


def gaps_archive(plan: Plan) -> ArchiveFile:
    """The ledger entry of a plan without records: nothing is refined or stored, but the watermark passes the
    range.
    """
    return ArchiveFile(
        key="",
        size=0,
        sha256=b"",
        records_digest=b"",
        partition=plan.partition,
        base=plan.base,
        end=plan.end,
        epoch=plan.epoch,
        schema_version=0,
        rows=0,
        raw_bytes=0,
        ingest_min_us=0,
        ingest_max_us=0,
        gaps=plan.gaps,
    )


def pack(value: TaskDescriptor | PlanResult) -> bytes:
    """The bytes that travel through Spark. Both ends run the same version of this package and trust each
    other.
    """
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def unpack_task(data: bytes) -> TaskDescriptor:
    """The inverse of `pack` on the worker; raises `Halt` if it is no descriptor of this version."""
    value = pickle.loads(data)  # noqa: S301 - made by our own driver
    if not isinstance(value, TaskDescriptor):
        raise Halt(
            f"a worker was handed a {type(value).__name__} and no task; driver and workers must run "
            "the same version"
        )
    return value


def unpack_result(data: bytes) -> PlanResult:
    """The inverse of `pack` on the driver; raises `Halt` if it is no result of this version."""
    value = pickle.loads(data)  # noqa: S301 - made by our own workers
    if not isinstance(value, PlanResult):
        raise Halt(
            f"a worker answered with a {type(value).__name__} and no result; driver and workers must "
            "run the same version"
        )
    return value
