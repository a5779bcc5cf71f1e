"""State of every topic partition: the lag of each stage behind the accepted records, and what holds it back.

Pure: a view over the folds of both logs at one time, for the status page, `status` and the metrics. A lag
counts records exactly; offsets of aborted transactions are no records. It is None if a history file that is
needed for it cannot be read. The planner, not this module, decides what is archived.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from archiver.config.topics import ArchiveSettings, TopicSettings
from archiver.ledger.fold import LedgerFold
from archiver.ledger.views import TopicLedger
from archiver.publish.progress import HeldBack
from archiver.runtime.errors import Halt, InvalidInput, RetryLater
from archiver.runtime.ids import TopicId, TopicPartition
from archiver.runtime.text import counted
from archiver.status.reasons import Cause, Held, reason_of
from intake.log.backlog import Backlog
from intake.log.clock_check import log_ahead_s
from intake.log.fold import TopicState
from intake.log.state import fewer_configured
from intake.log.transactions import OpenTransaction

Stage = Literal["stable", "archived", "committed"]
"""stable: no open transaction is before it · archived: archives are in the ledger · committed: the table (or,
without one, the archives) is complete up to there."""
Kind = Literal["none", "parquet", "iceberg", "unconfigured"]
"""Configured archive kind of the topic; unconfigured: only the log has the topic."""

STAGES: tuple[Stage, ...] = ("stable", "archived", "committed")
"""In the order in which a record passes them."""


@dataclass(frozen=True, slots=True)
class StageLag:
    """Progress of one stage of a partition."""

    offset: int
    """First offset that has not reached the stage."""
    records: int | None
    """Accepted records that have not reached the stage, including those of open transactions; None if
    unknown."""
    seconds: float | None
    """Age of the oldest of them by its accept time, not below 0; 0.0 without one, None if unknown."""


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One topic partition."""

    topic: str
    partition: int
    start: int
    """First offset that neither retention removed nor a client deleted."""
    next: int
    """The offset the next record will get."""
    stages: Mapping[Stage, StageLag]
    """Stages of the topic; with archive kind none it has only `stable`."""
    held: HeldBack | None
    """The oldest open transaction in it."""
    cause: Cause | None
    """Kind of the reason."""
    reason: str | None
    """What holds it back, for people; the worst of several reasons. None if nothing does."""

    @property
    def untouched(self) -> bool:
        """Whether nothing of it was ever archived or skipped."""
        return "archived" in self.stages and self.stages["archived"].offset == 0

    @property
    def last(self) -> StageLag:
        """Last stage of the topic."""
        return next(self.stages[stage] for stage in reversed(STAGES) if stage in self.stages)


@dataclass(frozen=True, slots=True)
class TopicLag:
    """One topic and its partitions."""

    topic: str
    topic_id: TopicId
    kind: Kind
    partitions: tuple[PartitionLag, ...]
    last_commit_us: int | None
    """Time of the last commit with progress; None without one."""
    valid_through_us: int | None
    """Every record with an ingest time before this is in the table; None if not known."""
    pending: int
    """Pending archives."""
    stuck: str | None
    """Why the last round could not finish the topic."""
    pending_bytes: int = 0
    """Stored bytes of those archives."""

    @property
    def troubled(self) -> int:
        """Partitions that are held back by more than not being due yet."""
        # The ordinary causes need no attention.
        return sum(one.cause not in (None, "waiting", "due", "off") for one in self.partitions)

    def lag(self, stage: Stage) -> StageLag | None:
        """Sum of the partitions' lags (see `summed`); None if the topic has no such stage."""
        return summed([partition.stages[stage] for partition in self.partitions if stage in partition.stages])


@dataclass(frozen=True, slots=True)
class LagReport:
    """Lag of all topics at one time."""

    now_us: int
    topics: tuple[TopicLag, ...]
    """In the order of their names."""
    differences: tuple[str, ...]
    """Differences between the configured topics and the log, for people."""
    newest_us: int = 0
    """The newest ingest time in the intake log; 0 if it has none."""
    log_ahead_s: float | None = None
    """Seconds by which it is ahead of `now_us`, if more than `intake.clock_skew_max`."""
    producers: int = 0
    """Idempotent producers that the intake log knows."""

    def topic(self, name: str) -> TopicLag | None:
        """The topic of that name; None if the log has none."""
        return next((topic for topic in self.topics if topic.topic == name), None)


def summed(lags: Sequence[StageLag]) -> StageLag | None:
    """Sum of records and of offsets, and the greatest age; None for no lags.

    If one value is unknown, its sum or maximum is unknown.
    """
    if not lags:
        return None
    records = [lag.records for lag in lags if lag.records is not None]
    seconds = [lag.seconds for lag in lags if lag.seconds is not None]
    return StageLag(
        # The sum of first offsets is the number of offsets of the topic that passed the stage.
        sum(lag.offset for lag in lags),
        # A sum without the unknown part would be too small and seem exact.
        sum(records) if len(records) == len(lags) else None,
        max(seconds) if len(seconds) == len(lags) else None,
    )


def lag_report(
    intake: Backlog,
    ledger: LedgerFold,
    topics: Sequence[TopicSettings],
    now_us: int,
    stuck: Mapping[str, str],
    *,
    archive: ArchiveSettings,
    skew_max_s: float = 10.0,
) -> LagReport:
    """State of all topics at `now_us`.

    `topics`, `archive` and `skew_max_s` (`intake.clock_skew_max`) are settings. `stuck` has the reason for
    each topic that the last round halted or deferred. Read the control log before the intake log, or an
    archive may seem to reach beyond the log. A history file that cannot be read raises nothing.
    """
    configured = {topic.name: topic for topic in topics}
    # Once for all partitions: the fold can only search all transactions.
    blocking = _blocking(intake)
    # Topics of the log, not of the configuration: records of a removed topic still wait.
    found = [
        _topic(
            _TopicView(
                intake,
                ledger.topic(state.topic_id),
                state,
                configured.get(state.name),
                archive,
                now_us,
                stuck.get(state.name),
            ),
            blocking,
        )
        for state in sorted(intake.topics_by_name.values(), key=lambda state: state.name)
    ]
    differences = [note for topic in topics if (note := difference(topic, intake)) is not None]
    newest_us = intake.fold.newest_us
    return LagReport(
        now_us,
        tuple(found),
        tuple(differences),
        newest_us,
        log_ahead_s(newest_us, now_us, skew_max_s),
        len(intake.fold.producers),
    )


def difference(topic: TopicSettings, intake: Backlog) -> str | None:
    """Difference between the configuration of a topic and the log; None if there is none."""
    state = intake.topics_by_name.get(topic.name)
    # Before the other tests: a deleted topic is not created again by itself.
    if state is None and intake.fold.deleted_named(topic.name) is not None:
        return (
            f"topic {topic.name} is configured and was deleted; remove it from `topics` in archiver.yaml, or "
            f"run `archiver topics create {topic.name}`"
        )
    if state is None and topic.mirrored:
        return (
            f"topic {topic.name} is configured but not mirrored yet; wait until its Kafka source has found "
            "it in the cluster"
        )
    if state is not None and state.mirrored != topic.mirrored:
        return (
            f"topic {topic.name} is {'' if state.mirrored else 'not '}mirrored, the configuration says "
            "otherwise; correct `topics` and `sources` in archiver.yaml"
        )
    # The number of its partitions comes from its source.
    if topic.mirrored:
        return None
    if state is None:
        return (
            f"topic {topic.name} is configured but not created yet; send its first record, or run `archiver "
            "archive`, to create it"
        )
    if state.partitions > topic.partitions:
        return fewer_configured(state, topic.partitions)
    if state.partitions < topic.partitions:
        has = counted(state.partitions, "partition")
        return (
            f"topic {topic.name} has {has}, the configuration says {topic.partitions}; reload the daemon "
            "(`systemctl reload stream-archiver`), which adds them"
        )
    return None


def _blocking(intake: Backlog) -> dict[TopicPartition, tuple[int, OpenTransaction]]:
    """First offset and transaction of the oldest open transaction of each partition; one pass over all."""
    found: dict[TopicPartition, tuple[int, OpenTransaction]] = {}
    for transaction in intake.fold.transactions:
        # A copy: the thread of a writer may add a partition to the transaction.
        for tp, ranges in list(transaction.ranges.items()):
            if ranges and (tp not in found or ranges[0][0] < found[tp][0]):
                found[tp] = (ranges[0][0], transaction)
    return found


@dataclass(frozen=True, slots=True)
class _TopicView:
    """One topic in both logs and in the configuration."""

    intake: Backlog
    ledger: TopicLedger
    state: TopicState
    settings: TopicSettings | None
    archive: ArchiveSettings
    now_us: int
    stuck: str | None

    @property
    def kind(self) -> Kind:
        return "unconfigured" if self.settings is None else self.settings.archive.kind

    @property
    def archived(self) -> bool:
        """Whether its records are to be archived."""
        # The archive kind of an unconfigured topic is unknown, so all its records count as waiting.
        return self.settings is None or self.settings.archive.kind != "none"


def _topic(view: _TopicView, blocking: Mapping[TopicPartition, tuple[int, OpenTransaction]]) -> TopicLag:
    topic_id = view.state.topic_id
    # A topic without settings of its own has the general triggers.
    triggers = view.archive if view.settings is None else view.archive.of(view.settings)
    return TopicLag(
        topic=view.state.name,
        topic_id=topic_id,
        kind=view.kind,
        partitions=tuple(
            _partition(view, number, blocking.get((topic_id, number)), triggers)
            for number in range(view.state.partitions)
        ),
        # 0 in the ledger means never, which is not a time.
        last_commit_us=view.ledger.committed_us or None,
        valid_through_us=view.ledger.valid_through_us or None,
        pending=len(view.ledger.pending_by_id),
        stuck=view.stuck,
        pending_bytes=sum(item.archive.size for item in view.ledger.pending_by_id.values()),
    )


def _partition(
    view: _TopicView, number: int, blocking: tuple[int, OpenTransaction] | None, triggers: ArchiveSettings
) -> PartitionLag:
    tp = (view.state.topic_id, number)
    following = view.intake.next_offset(tp)
    stable = following if blocking is None else min(following, blocking[0])
    offsets: dict[Stage, int] = {"stable": stable}
    if view.archived:
        # `planned_to` includes pending archives, which are in the ledger and not in the table yet.
        offsets |= {"archived": view.ledger.planned_to(number), "committed": view.ledger.watermark(number)}
    stages, unread = _lags(view, tp, offsets, following)
    open_one = None if blocking is None else _held(blocking[1], following - stable)
    cause, reason = reason_of(
        Held(
            intake=view.intake,
            tp=tp,
            topic=view.state.name,
            stable=stable,
            archived=offsets.get("archived"),
            committed=offsets.get("committed"),
            unread=unread,
            stuck=view.stuck,
            transaction=open_one,
            written_us=view.ledger.written_us,
            configured=view.settings is not None,
            triggers=triggers,
            now_us=view.now_us,
        )
    )
    return PartitionLag(
        topic=view.state.name,
        partition=number,
        start=view.intake.log_start(tp, view.ledger.start(number)),
        next=following,
        stages=MappingProxyType(stages),
        held=open_one,
        cause=cause,
        reason=reason,
    )


def _held(transaction: OpenTransaction, waiting: int) -> HeldBack:
    return HeldBack(
        transaction.transactional_id,
        transaction.producer_id,
        transaction.epoch,
        transaction.started_us,
        transaction.deadline_us,
        waiting,
    )


def _lags(
    view: _TopicView, tp: TopicPartition, offsets: Mapping[Stage, int], following: int
) -> tuple[dict[Stage, StageLag], Halt | InvalidInput | RetryLater | None]:
    """Lag of each stage, and why some of it is unknown."""
    # By offset, because stages that are level need one query.
    known: dict[int, StageLag] = {}
    unread: Halt | InvalidInput | RetryLater | None = None
    for offset in offsets.values():
        if offset in known:
            continue
        # Nothing waits; a restored log may even end before the archives.
        if offset >= following:
            known[offset] = StageLag(offset, 0, 0.0)
            continue
        try:
            waiting = view.intake.waiting(tp, offset)
        # The report goes on without this number, and the reason names the error.
        except (Halt, InvalidInput, RetryLater) as error:
            unread = error
            known[offset] = StageLag(offset, None, None)
            continue
        first_us = waiting.first_accept_us
        # Not below 0: the clock of the writer may be ahead of this one.
        known[offset] = StageLag(
            offset, waiting.records, 0.0 if first_us is None else max(0, view.now_us - first_us) / 1e6
        )
    return {stage: known[offset] for stage, offset in offsets.items()}, unread
