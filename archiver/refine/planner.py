"""Chooses the plans of a round from both logs; writes nothing.

Pure, except for the views that are passed in. Guarantees: a partition's plans begin where its written
archives end (protocol rule P1), and a round stays within its bounds of partitions and bytes. A partition that
cannot be planned, or whose archived log segments are damaged, halts only its topic. Whether a partition is
due is decided from a summary of its backlog. Segments are loaded only for the partitions of the round, and
only as many as the round takes. The backlog of a topic must never be held in memory: it may have millions of
segments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from archiver.catalog.evidence import Gaps
from archiver.config.topics import ArchiveSettings
from archiver.ledger.fold import LedgerFold
from archiver.ledger.views import TopicLedger
from archiver.objects.paths import parse_archive_key
from archiver.refine.plan import Plan, plan_partition
from archiver.refine.triggers import bytes_within, concurrent_limit, gaps_due, is_due
from archiver.runtime.errors import Halt, InvalidInput, TopicHalted
from archiver.runtime.ids import TopicId, TopicPartition
from intake.log.backlog import WINDOW_BYTES, Backlog, BacklogSummary, Window, read_window, windows
from intake.log.fold import TopicState
from intake.log.state import Gap
from intake.segments import NONE, Segments

if TYPE_CHECKING:
    from archiver.refine.prepare_topic import TopicWork

PARTITION_MEMORY_BYTES = 64 * 1024 * 1024
"""Memory assumed for archiving one partition, when `concurrent_max: 0` derives the limit from the machine's
memory."""


@dataclass(frozen=True)
class RoundLimits:
    """Bounds of one round."""

    memory_bytes: int
    """Memory of the machine; for `concurrent_max: 0`."""
    round_bytes_max: int
    """Raw bytes that one round archives at most (one plan is always taken)."""
    everything: bool = False
    """Ignore the triggers: archive all that is stable."""
    partitions: frozenset[int] | None = None
    """Only these partitions; None: all."""
    segments_max: int = 500_000
    """Segments that one round archives at most (64 bytes each here, about 0.2 KB in the tasks). If segments
    are so small that this bound comes before the bound of bytes, archives are smaller than `max_bytes`."""


@dataclass
class Planned:
    """The plans of a round."""

    plans: list[Plan] = field(default_factory=list)
    halted: list[TopicHalted] = field(default_factory=list)
    raw_bytes: int = 0
    segments: int = 0

    def room(self, limits: RoundLimits) -> bool:
        """Whether another plan may be added."""
        return self.segments == 0 or (
            self.raw_bytes < limits.round_bytes_max and self.segments < limits.segments_max
        )

    def take(self, plans: Sequence[Plan], limits: RoundLimits) -> None:
        """Add the plans of one partition, as many as fit."""
        for plan in plans:
            # Plans are in offset order, so stopping here leaves a prefix and no hole.
            if not self.room(limits):
                return
            self.plans.append(plan)
            self.raw_bytes += plan.raw_bytes
            self.segments += len(plan.segments)


@dataclass(frozen=True)
class _Candidate:
    """A partition to archive."""

    work: TopicWork
    partition: int
    start: int
    stable: int
    summary: BacklogSummary
    due: bool
    """By its own triggers. A gap-only backlog that is not due is still passed along with the rest of its
    topic."""

    @property
    def tp(self) -> TopicPartition:
        return (self.work.state.topic_id, self.partition)

    @property
    def gap_only(self) -> bool:
        return self.summary.rows == 0

    @property
    def waiting_since_us(self) -> int:
        """Accept time of its oldest segment."""
        return self.summary.first_accept_us


def choose_plans(
    works: Sequence[TopicWork],
    intake: Backlog,
    ledger: LedgerFold,
    epoch: int,
    now_us: int,
    limits: RoundLimits,
    skip: AbstractSet[TopicPartition],
) -> Planned:
    """Plans of every due partition (with `limits.everything`: of every partition with a stable backlog), up
    to the limits.

    Partitions in `skip` are left out: something about them failed in this run. Gaps cost no file, so no limit
    applies to partitions with gaps only. Raises the view's error if it may go away by itself (`RetryLater`);
    any other error halts the topic.
    """
    planned = Planned()
    of_topics: list[list[_Candidate]] = []
    for work in works:
        try:
            found = list(_candidates(work, intake, ledger, now_us, limits, skip))
            # A gap-only backlog is passed with the others: the ledger entry and the snapshot are due anyway.
            if any(candidate.due for candidate in found):
                of_topics.append([candidate for candidate in found if candidate.due or candidate.gap_only])
        # `RetryLater` passes: an unavailable log or store concerns every topic.
        except (Halt, InvalidInput) as error:
            planned.halted.append(_halted(work.name, error))
    taken: Counter[str] = Counter()
    halted_topics = {halted.topic for halted in planned.halted}
    for candidate in _in_order(of_topics):
        work = candidate.work
        if work.name in halted_topics:
            continue
        try:
            # Gaps make no file, so no limit of partitions or bytes applies.
            if candidate.gap_only:
                planned.plans.extend(_plans(candidate, _gaps_alone(intake, candidate), epoch))
                continue
            at_a_time = concurrent_limit(
                work.archive.concurrent_max, limits.memory_bytes, PARTITION_MEMORY_BYTES
            )
            # Not `break`: later candidates may have gaps only, which no limit concerns.
            if taken[work.name] == at_a_time or not planned.room(limits):
                continue
            taken[work.name] += 1
            room = (limits.round_bytes_max - planned.raw_bytes, limits.segments_max - planned.segments)
            planned.take(_plans(candidate, _records(intake, candidate, *room), epoch), limits)
        except (Halt, InvalidInput) as error:
            halted_topics.add(work.name)
            planned.halted.append(_halted(work.name, error))
    # A topic that halted late in the loop loses the plans that were chosen before.
    planned.plans = [plan for plan in planned.plans if plan.topic not in halted_topics]
    return planned


def _in_order(of_topics: Iterable[list[_Candidate]]) -> Iterator[_Candidate]:
    """Topics by their longest waiting partition, the partitions of a topic together.

    A round loads and commits every table that it has an archive for, so the plans that fit should be of few
    topics. No partition starves: the one that waits longest of all is in every round. Gap-only partitions
    delay no one and have no age.
    """
    for candidates in sorted(
        of_topics, key=lambda each: min((one.waiting_since_us for one in each if not one.gap_only), default=0)
    ):
        yield from sorted(candidates, key=lambda one: one.waiting_since_us)


def _halted(topic: str, error: Halt | InvalidInput) -> TopicHalted:
    """The error that stops the planning of one topic: a damaged archived log segment halts only its topic, as
    a hole in its offsets does.
    """
    return error if isinstance(error, TopicHalted) else TopicHalted(topic, str(error))


def _candidates(
    work: TopicWork,
    intake: Backlog,
    ledger: LedgerFold,
    now_us: int,
    limits: RoundLimits,
    skip: AbstractSet[TopicPartition],
) -> Iterator[_Candidate]:
    """The topic's partitions that are due, or with `limits.everything` that have any backlog; also those with
    gaps only.
    """
    in_scope = [
        partition
        for partition in range(work.state.partitions)
        if (limits.partitions is None or partition in limits.partitions)
        and (work.state.topic_id, partition) not in skip
    ]
    for waiting in _waiting(
        work.state, work.archive, intake, ledger, now_us, in_scope, everything=limits.everything
    ):
        yield _Candidate(work, waiting.partition, waiting.start, waiting.stable, waiting.summary, waiting.due)


@dataclass(frozen=True)
class _Waiting:
    """A partition with a stable backlog."""

    partition: int
    start: int
    stable: int
    summary: BacklogSummary
    due: bool


def _waiting(
    state: TopicState,
    archive: ArchiveSettings,
    intake: Backlog,
    ledger: LedgerFold,
    now_us: int,
    partitions: Iterable[int],
    *,
    everything: bool = False,
) -> Iterator[_Waiting]:
    """The given partitions that have a stable backlog; raises `TopicHalted` if one is archived beyond the
    log.
    """
    topic = ledger.topic(state.topic_id)
    for partition in partitions:
        tp = (state.topic_id, partition)
        start, stable = topic.planned_to(partition), intake.stable_offset(tp)
        # Never clipped: offsets that were archived once and are assigned again would be other records.
        if start > stable:
            raise TopicHalted(
                state.name,
                f"partition {partition} is archived up to offset {start}, but the intake log ends at "
                f"{stable}: the metadata store is older "
                "than the archives (a restored copy?); nothing is archived until it is the newest again",
            )
        if start == stable:
            continue
        summary = intake.summary(tp, start)
        if everything:
            due = True
        elif summary.rows == 0:
            due = gaps_due(topic.written_us, now_us, archive)
        else:
            # Passed as a function, because it reads segments and is rarely needed.
            opened = partial(opened_at_us, intake, tp, start, stable, summary, archive.min_bytes)
            due = is_due(summary, opened, now_us, archive)
        yield _Waiting(partition, start, stable, summary, due)


def has_work(
    state: TopicState, archive: ArchiveSettings, intake: Backlog, ledger: LedgerFold, now_us: int
) -> bool:
    """Whether there is anything to do for the topic: a due partition, or archives that are in no table yet.

    Costs a few lookups per partition and opens nothing. An error here counts as work as well: the round then
    reports it.
    """
    # Pending archives are committed even if no partition is due.
    if ledger.topic(state.topic_id).pending_by_id:
        return True
    try:
        return any(
            waiting.due
            for waiting in _waiting(state, archive, intake, ledger, now_us, range(state.partitions))
        )
    except (Halt, InvalidInput):
        return True


def opened_at_us(
    intake: Backlog, tp: TopicPartition, start: int, stable: int, summary: BacklogSummary, min_bytes: int
) -> int:
    """Accept time of the segment with which the bytes of [start, stable) reach `min_bytes`; of the last one
    if they never do.
    """
    if min_bytes <= 0:
        return summary.first_accept_us
    total = reached_us = 0
    # The first window mostly reaches `min_bytes`; a larger one would load segments for nothing.
    for window in windows(intake, tp, start, stable, min(min_bytes, WINDOW_BYTES)):
        for segment in window.segments:
            total += bytes_within(segment, start, stable)
            reached_us = segment.accept_max_us
            if total >= min_bytes:
                return reached_us
    return reached_us


def _records(intake: Backlog, candidate: _Candidate, bytes_left: int, segments_left: int) -> Window:
    """As much of the backlog as fits into the round, plus one archive: so the last cut is where it would be
    without the limit.

    The backlog is requested by bytes, and the number of segments is known only afterwards. So each request is
    bounded by a window, and by the remaining segments times their average size. It is repeated while there
    were fewer.
    """
    summary = candidate.summary
    # A segment has at least one record, so this is a lower bound of its average size.
    per_segment = max(1, summary.bytes // summary.rows)
    bytes_needed = bytes_left + candidate.work.archive.max_bytes
    segments: list[Segments] = []
    gaps: list[Gap] = []
    at = candidate.start
    while at < candidate.stable and bytes_needed > 0 and segments_left > 0:
        window = read_window(
            intake,
            candidate.tp,
            at,
            candidate.stable,
            min(bytes_needed, segments_left * per_segment, WINDOW_BYTES),
        )
        segments.append(window.segments)
        gaps += window.gaps
        at = window.end
        bytes_needed -= int(window.segments.raw_bytes.sum())
        segments_left -= len(window.segments)
    return Window(Segments.joined(segments), gaps, at)


def _gaps_alone(intake: Backlog, candidate: _Candidate) -> Window:
    return Window(NONE, intake.gaps(candidate.tp, candidate.start, candidate.stable), candidate.stable)


def _plans(candidate: _Candidate, window: Window, epoch: int) -> list[Plan]:
    work = candidate.work
    return plan_partition(
        candidate.tp,
        work.name,
        window.segments,
        candidate.start,
        window.end,
        epoch,
        work.archive.max_bytes,
        window.gaps,
    )


def known_gaps(intake: Backlog, topic_id: TopicId) -> Gaps:
    """The gaps of one topic, for comparing offsets (protocol rule C2)."""
    return lambda partition, start, end: intake.gaps((topic_id, partition), start, end)


def valid_through_us(work: TopicWork, intake: Backlog, watermarks: dict[int, int], tick_us: int) -> int:
    """Every record with an earlier ingest time is at or below the watermarks: the last tick without a backlog
    below it.

    Records of open transactions count, because they may still be committed; aborted ones do not. `tick_us`
    must be a tick in the log, and the view must have read at least that far.
    """
    through_us = tick_us
    for partition in range(work.state.partitions):
        tp = (work.state.topic_id, partition)
        watermark = watermarks.get(partition, 0)
        if watermark >= intake.next_offset(tp):
            continue
        # The floor of the first segment beyond the watermark bounds every ingest time after it.
        waiting = intake.segments(tp, watermark, 1)
        through_us = min(through_us, waiting[0].floor_us if waiting else through_us)
    return through_us


def paths_used(fold: LedgerFold, plans: Iterable[Plan]) -> bool:
    """Whether the file of some plan could get a key that the ledger knows (protocol rule P2). Then a new
    epoch must be taken first.

    Keys of other epochs cannot be met again, because the epoch is part of the key. A range of gaps has no
    key.
    """
    of_topics: dict[TopicId, list[Plan]] = {}
    for plan in plans:
        if not plan.gap_only:
            of_topics.setdefault(plan.topic_id, []).append(plan)
    return any(_path_used(fold.topic(topic_id), planned) for topic_id, planned in of_topics.items())


def _path_used(ledger: TopicLedger, plans: Iterable[Plan]) -> bool:
    """The same for one topic. Each key is parsed once: with hundreds of plans and keys, parsing was nearly
    all of planning.
    """
    ends: dict[tuple[int, int], int] = {}
    # Killed keys count as well: an expirer may still have such an object on its list.
    for key in chain(ledger.epoch_keys, ledger.killed):
        used = parse_archive_key(key)
        if used is not None:
            place = (used.epoch, used.partition)
            # Only the highest end is kept; a plan that begins below it may meet a key.
            ends[place] = max(used.end, ends.get(place, 0))
    return any(ends.get((plan.epoch, plan.partition), 0) > plan.base for plan in plans)
