"""Which plans a round is made of: reads both folds, writes nothing.

Pure but for the folds it is handed. Promises that a partition's plans begin where its written archives end (protocol rule P1), that a round
stays within its bounds of partitions and bytes, and that a partition which cannot be planned halts only its topic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from archiver.errors import TopicHalted
from archiver.ids import TopicPartition
from archiver.jobs.plan import Plan, plan_partition
from archiver.jobs.topic_setup import TopicWork
from archiver.jobs.triggers import backlog_of, concurrent_limit, is_due
from archiver.ledger.fold import LedgerFold
from archiver.ledger.views import TopicLedger
from archiver.objects.paths import parse_archive_key
from intake.fold import IntakeFold
from intake.segments import SegmentRef

PARTITION_MEMORY_BYTES = 64 * 1024 * 1024
"""What archiving one partition is reckoned to need when `concurrent_max: 0` asks to go by the machine's memory."""


@dataclass(frozen=True)
class RoundLimits:
    """Bounds of one round."""

    memory_bytes: int
    """Of the machine; for `concurrent_max: 0`."""
    round_bytes_max: int
    """Raw bytes that one round takes at most (one plan is always taken)."""
    everything: bool = False
    """Ignore the triggers: whatever is stable is taken."""
    partitions: frozenset[int] | None = None
    """Only these partitions; None: all."""


@dataclass
class Planned:
    """The plans of a round."""

    plans: list[Plan] = field(default_factory=list)
    halted: list[TopicHalted] = field(default_factory=list)
    raw_bytes: int = 0

    def room(self, limits: RoundLimits) -> bool:
        """May another plan be added?"""
        return not self.plans or self.raw_bytes < limits.round_bytes_max

    def take(self, plans: Sequence[Plan], limits: RoundLimits) -> None:
        """Add the plans of one partition, as many as there is room for."""
        for plan in plans:
            if not self.room(limits):
                return
            self.plans.append(plan)
            self.raw_bytes += plan.raw_bytes


@dataclass(frozen=True)
class _Candidate:
    """A partition that is to be archived."""

    work: TopicWork
    partition: int
    start: int
    stable: int
    segments: Sequence[SegmentRef]
    waiting_since_us: int
    """Accept time of its oldest segment: who waits longest goes first, so that no partition starves behind busier ones."""


def choose_plans(
    works: Sequence[TopicWork],
    intake: IntakeFold,
    ledger: LedgerFold,
    epoch: int,
    now_us: int,
    limits: RoundLimits,
    skip: AbstractSet[TopicPartition],
) -> Planned:
    """Plans of every due partition (of every partition with a stable backlog if `limits.everything`), up to the limits.

    Partitions in `skip` are left out: something about them failed in this run.
    """
    planned = Planned()
    candidates: list[_Candidate] = []
    for work in works:
        try:
            candidates.extend(_candidates(work, intake, ledger, now_us, limits, skip))
        except TopicHalted as halted:
            planned.halted.append(halted)
    taken: Counter[str] = Counter()
    halted_topics = {halted.topic for halted in planned.halted}
    for candidate in sorted(candidates, key=lambda item: item.waiting_since_us):
        work = candidate.work
        at_a_time = concurrent_limit(work.archive.concurrent_max, limits.memory_bytes, PARTITION_MEMORY_BYTES)
        if work.name in halted_topics or taken[work.name] == at_a_time or not planned.room(limits):
            continue
        taken[work.name] += 1
        try:
            planned.take(_plans(candidate, epoch), limits)
        except TopicHalted as halted:
            halted_topics.add(work.name)
            planned.halted.append(halted)
    planned.plans = [plan for plan in planned.plans if plan.topic not in halted_topics]
    return planned


def _candidates(
    work: TopicWork, intake: IntakeFold, ledger: LedgerFold, now_us: int, limits: RoundLimits, skip: AbstractSet[TopicPartition]
) -> Iterator[_Candidate]:
    """The topic's partitions that are due, or have anything at all if `limits.everything`."""
    for partition in range(work.state.partitions):
        tp = (work.state.topic_id, partition)
        if (limits.partitions is not None and partition not in limits.partitions) or tp in skip:
            continue
        start, stable = ledger.topic(work.state.topic_id).planned_to(partition), intake.stable_offset(tp)
        if start > stable:
            raise TopicHalted(
                work.name,
                f"partition {partition} is archived up to offset {start}, but the intake log ends at {stable}: the metadata store is older "
                "than the archives (a restored copy?); nothing is archived until it is the newest again",
            )
        if start == stable:
            continue
        segments = intake.segments(tp, start)
        if limits.everything or is_due(backlog_of(segments, start, stable, work.archive.min_bytes), now_us, work.archive):
            since_us = segments[0].accept_max_us if segments else 0
            yield _Candidate(work, partition, start, stable, segments, since_us)


def _plans(candidate: _Candidate, epoch: int) -> list[Plan]:
    work = candidate.work
    tp = (work.state.topic_id, candidate.partition)
    return plan_partition(tp, work.name, candidate.segments, candidate.start, candidate.stable, epoch, work.archive.max_bytes)


def valid_through_us(work: TopicWork, intake: IntakeFold, watermarks: dict[int, int], tick_us: int) -> int:
    """Every record with an ingest time before this is at or below the watermarks: the last tick below which no backlog remains.

    `tick_us` must be a tick that is in the log, and the fold must have read at least that far.
    """
    through_us = tick_us
    for partition in range(work.state.partitions):
        tp = (work.state.topic_id, partition)
        watermark = watermarks.get(partition, 0)
        if watermark >= intake.next_offset(tp):
            continue
        waiting = intake.segments(tp, watermark)
        through_us = min(through_us, waiting[0].floor_us if waiting else through_us)
    return through_us


def path_used(ledger: TopicLedger, plan: Plan) -> bool:
    """Could the plan's file get a path that the ledger knows already (protocol rule P2)? Then a new epoch must come first.

    Paths of other epochs cannot be met again, because the epoch is part of them.
    """
    for key in ledger.epoch_keys | ledger.killed.keys():
        used = parse_archive_key(key)
        if used is not None and (used.epoch, used.partition) == (plan.epoch, plan.partition) and used.end > plan.base:
            return True
    return False
