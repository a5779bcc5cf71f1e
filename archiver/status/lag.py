"""Where every topic partition stands, how far each stage lags behind what was accepted, and what holds it
back.

Pure: a view over the folds of both logs at one time, for the status page, `status`, and the metrics. Promises
that a lag is exact in records (offsets of aborted transactions are no records) and honest: None where a shelf
that holds some of it cannot be read. Costs a few look-ups per partition. Must never decide anything: what is
archived when is the planner's.
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
from intake.log.transactions import OpenTransaction

Stage = Literal["stable", "archived", "committed"]
"""stable: no open transaction is before it · archived: archives are in the ledger · committed: the table (or,
without one, the archives) is complete up to there."""
Kind = Literal["none", "parquet", "iceberg", "unconfigured"]
"""What becomes of the topic's records, as configured; unconfigured: the log has the topic and the
configuration does not."""

STAGES: tuple[Stage, ...] = ("stable", "archived", "committed")
"""In the order in which a record passes them."""


@dataclass(frozen=True, slots=True)
class StageLag:
    """How far one stage of a partition is."""

    offset: int
    """The first offset that has not got there."""
    records: int | None
    """Records that were accepted and have not got there, those of open transactions among them; None if it
    cannot be told."""
    seconds: float | None
    """Age of the oldest of them by its accept time, not below 0; 0.0 if there is none, None if it cannot be
    told."""


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One topic partition."""

    topic: str
    partition: int
    start: int
    """First offset that retention has left."""
    next: int
    """The offset the next record will get."""
    stages: Mapping[Stage, StageLag]
    """The stages that the topic has: a topic whose records stay in intake has only `stable`."""
    held: HeldBack | None
    """The oldest open transaction in it."""
    cause: Cause | None
    """Of what kind the reason is."""
    reason: str | None
    """What holds it back, for people; the worst, if there are several. None if nothing does."""

    @property
    def untouched(self) -> bool:
        """Nothing of it was ever archived, or passed over."""
        return "archived" in self.stages and self.stages["archived"].offset == 0

    @property
    def last(self) -> StageLag:
        """The last stage that the topic has."""
        return next(self.stages[stage] for stage in reversed(STAGES) if stage in self.stages)


@dataclass(frozen=True, slots=True)
class TopicLag:
    """One topic and its partitions."""

    topic: str
    topic_id: TopicId
    kind: Kind
    partitions: tuple[PartitionLag, ...]
    last_commit_us: int | None
    """When a commit last brought it further; None if none did."""
    valid_through_us: int | None
    """Every record with an ingest time before this is in the table; None if not known."""
    pending: int
    """Archives that are in no table yet."""
    stuck: str | None
    """Why the last round could not finish the topic."""
    pending_bytes: int = 0
    """Stored bytes of those archives."""

    def lag(self, stage: Stage) -> StageLag | None:
        """The partitions' lags as one (see `summed`); None if the topic has no such stage."""
        return summed([partition.stages[stage] for partition in self.partitions if stage in partition.stages])


@dataclass(frozen=True, slots=True)
class LagReport:
    """Everything at one time."""

    now_us: int
    topics: tuple[TopicLag, ...]
    """In the order of their names."""
    differences: tuple[str, ...]
    """In what the configured topics differ from the log, for people."""
    newest_us: int = 0
    """The newest ingest time in the intake log; 0 if it has none."""
    log_ahead_s: float | None = None
    """How far that is ahead of `now_us`, if by more than `intake.clock_skew_max`."""

    def topic(self, name: str) -> TopicLag | None:
        """The topic of that name; None if the log has none."""
        return next((topic for topic in self.topics if topic.topic == name), None)


def summed(lags: Sequence[StageLag]) -> StageLag | None:
    """The sum of the records and the greatest of the ages, `offset` being the sum of the offsets; None if
    there are none.

    What cannot be told of one cannot be told of all.
    """
    if not lags:
        return None
    records = [lag.records for lag in lags if lag.records is not None]
    seconds = [lag.seconds for lag in lags if lag.seconds is not None]
    return StageLag(
        sum(lag.offset for lag in lags),
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
    """Where everything stands at `now_us`.

    `topics`, `archive` and `skew_max_s` (`intake.clock_skew_max`) are those of the configuration. `stuck`
    says, per topic that the last round left halted or deferred, why. Both logs must have been read, the
    control log first, or an archive may seem to reach beyond the log. Raises nothing for a shelf that cannot
    be read.
    """
    configured = {topic.name: topic for topic in topics}
    blocking = _blocking(intake)
    found = [
        _topic(
            _Look(
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
        now_us, tuple(found), tuple(differences), newest_us, log_ahead_s(newest_us, now_us, skew_max_s)
    )


def difference(topic: TopicSettings, intake: Backlog) -> str | None:
    """In what the configuration of a topic differs from the log; None if in nothing."""
    state = intake.topics_by_name.get(topic.name)
    if state is None and intake.fold.deleted_named(topic.name) is not None:
        return (
            f"topic {topic.name} is configured and was deleted; take it out of the configuration, or "
            "`archiver topics create` a new one"
        )
    if state is None and topic.mirrored:
        return (
            f"topic {topic.name} is configured but not mirrored yet; its Kafka source declares it when it "
            "has found it"
        )
    if state is not None and state.mirrored != topic.mirrored:
        return (
            f"topic {topic.name} is {'' if state.mirrored else 'not '}mirrored, the configuration says "
            "otherwise; correct the configuration"
        )
    if topic.mirrored:
        return None
    if state is None:
        return (
            f"topic {topic.name} is configured but not created yet; the first record or archive run "
            "creates it"
        )
    if state.partitions != topic.partitions:
        has = counted(state.partitions, "partition")
        return (
            f"topic {topic.name} has {has}, the configuration says {topic.partitions}; correct the "
            "configuration"
        )
    return None


def _blocking(intake: Backlog) -> dict[TopicPartition, tuple[int, OpenTransaction]]:
    """Per partition with an open transaction: the first offset of the oldest, and which one it is. One pass
    over all of them.
    """
    found: dict[TopicPartition, tuple[int, OpenTransaction]] = {}
    for transaction in intake.fold.transactions:
        for tp, ranges in list(transaction.ranges.items()):
            if ranges and (tp not in found or ranges[0][0] < found[tp][0]):
                found[tp] = (ranges[0][0], transaction)
    return found


@dataclass(frozen=True, slots=True)
class _Look:
    """What is looked at: one topic."""

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
        """Do its records go on from intake? Nobody can tell what was meant for a topic that the configuration
        lacks: all of them wait.
        """
        return self.settings is None or self.settings.archive.kind != "none"


def _topic(look: _Look, blocking: Mapping[TopicPartition, tuple[int, OpenTransaction]]) -> TopicLag:
    topic_id = look.state.topic_id
    triggers = look.archive if look.settings is None else look.archive.of(look.settings)
    return TopicLag(
        topic=look.state.name,
        topic_id=topic_id,
        kind=look.kind,
        partitions=tuple(
            _partition(look, number, blocking.get((topic_id, number)), triggers)
            for number in range(look.state.partitions)
        ),
        last_commit_us=look.ledger.committed_us or None,
        valid_through_us=look.ledger.valid_through_us or None,
        pending=len(look.ledger.pending_by_id),
        stuck=look.stuck,
        pending_bytes=sum(item.archive.size for item in look.ledger.pending_by_id.values()),
    )


def _partition(
    look: _Look, number: int, blocking: tuple[int, OpenTransaction] | None, triggers: ArchiveSettings
) -> PartitionLag:
    tp = (look.state.topic_id, number)
    following = look.intake.next_offset(tp)
    stable = following if blocking is None else min(following, blocking[0])
    offsets: dict[Stage, int] = {"stable": stable}
    if look.archived:
        offsets |= {"archived": look.ledger.planned_to(number), "committed": look.ledger.watermark(number)}
    stages, unread = _lags(look, tp, offsets, following)
    open_one = None if blocking is None else _held(blocking[1], following - stable)
    cause, reason = reason_of(
        Held(
            intake=look.intake,
            tp=tp,
            topic=look.state.name,
            stable=stable,
            archived=offsets.get("archived"),
            committed=offsets.get("committed"),
            unread=unread,
            stuck=look.stuck,
            transaction=open_one,
            written_us=look.ledger.written_us,
            configured=look.settings is not None,
            triggers=triggers,
            now_us=look.now_us,
        )
    )
    return PartitionLag(
        look.state.name, number, 0, following, MappingProxyType(stages), open_one, cause, reason
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
    look: _Look, tp: TopicPartition, offsets: Mapping[Stage, int], following: int
) -> tuple[dict[Stage, StageLag], Halt | InvalidInput | RetryLater | None]:
    """The lag of each stage; and why some of it cannot be told."""
    known: dict[int, StageLag] = {}
    unread: Halt | InvalidInput | RetryLater | None = None
    for offset in offsets.values():
        if offset in known:
            continue
        if offset >= following:
            known[offset] = StageLag(offset, 0, 0.0)
            continue
        try:
            waiting = look.intake.waiting(tp, offset)
        except (Halt, InvalidInput, RetryLater) as error:
            unread = error
            known[offset] = StageLag(offset, None, None)
            continue
        first_us = waiting.first_accept_us
        known[offset] = StageLag(
            offset, waiting.records, 0.0 if first_us is None else max(0, look.now_us - first_us) / 1e6
        )
    return {stage: known[offset] for stage, offset in offsets.items()}, unread
