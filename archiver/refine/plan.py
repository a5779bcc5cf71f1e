"""Plans: which ranges of a partition's stable backlog become archives, and which plans share a Spark task.

Pure. Guarantees: the plans of one call follow each other without a hole, from the watermark to the stable
offset. Every record between is in exactly one plan. Offsets of aborted transactions (gaps) are in a plan like
all others, but have no records. Gaps before the first record belong to the first plan, others to the plan of
the records before them. An offset that is in no segment and in no gap stops the partition (protocol rule P1);
it never makes a plan shorter.

Every plan is in exactly one bundle, and a bundle becomes one task. A task reads each of its intake files
once, so plans over the same files belong together: reading a file once per partition would cost far more
requests than the records are worth. The number of plans written at a time is bounded by what their writers
hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from archiver.refine.triggers import bytes_within
from archiver.runtime.errors import TopicHalted
from archiver.runtime.ids import TopicId, TopicPartition
from intake.log.state import Gap, merged
from intake.segments import Segments

ROW_OVERHEAD_BYTES = 64
"""What a record costs in memory in addition to its key, value and headers."""

PlanKey = tuple[TopicId, int, int]
"""Topic, partition and base."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One range of one topic partition that should become one archive."""

    topic_id: TopicId
    topic: str
    partition: int
    base: int
    end: int
    """Exclusive."""
    epoch: int
    """The leader's epoch. It is part of the object key, so a range that is planned again gets another key
    (protocol rule P2)."""
    segments: Segments
    """Where the records are, in offset order; the first and the last may reach beyond the range."""
    rows: int
    """Records in the range: its offsets without the gaps."""
    raw_bytes: int
    gaps: tuple[Gap, ...] = ()
    """Offsets of the range that hold no record; ascending, never touching."""

    @property
    def plan_key(self) -> PlanKey:
        """Identifies the plan within its round."""
        return (self.topic_id, self.partition, self.base)

    @property
    def loose_bytes(self) -> int:
        """Estimate of the memory that its records need before they are decoded."""
        return self.raw_bytes + ROW_OVERHEAD_BYTES * self.rows

    @property
    def gap_only(self) -> bool:
        """Whether the range has no record, so that nothing is refined: only the watermark has to pass it."""
        return not self.segments


def plan_partition(
    tp: TopicPartition,
    topic: str,
    segments: Segments,
    start: int,
    stable: int,
    epoch: int,
    max_bytes: int,
    gaps: Sequence[Gap] = (),
) -> list[Plan]:
    """Plans for the records in [start, stable) of one partition.

    `segments` and `gaps` are in offset order and may reach beyond the range at both ends. A plan ends at the
    segment boundary nearest to `max_bytes`; a segment is never divided, except by `start` and `stable`.
    Raises `TopicHalted` if an offset of the range is in no segment and in no gap, or in two of them.
    """
    if stable <= start:
        return []
    needed = segments.where((segments.bases < stable) & (segments.ends > start))
    inside = merged(gaps, start, stable)
    # With gaps, or if the fast check fails, the slow one finds the offset to report.
    if inside or not _is_chain(needed, start, stable):
        _check_chain(topic, tp[1], needed, inside, start, stable)
    groups = _groups(needed, _sizes(needed, start, stable), max_bytes)
    # The range begins at the watermark, so gaps before the first record belong to the first plan.
    bases = [start, *(int(group.bases[0]) for group, _ in groups[1:])]
    ends = [*bases[1:], stable]
    taken = _gaps_by_end(inside, ends)
    return [
        Plan(
            topic_id=tp[0],
            topic=topic,
            partition=tp[1],
            base=base,
            end=end,
            epoch=epoch,
            segments=group,
            rows=end - base - sum(high - low for low, high in gaps_of),
            raw_bytes=group_bytes,
            gaps=gaps_of,
        )
        for base, end, (group, group_bytes), gaps_of in zip(bases, ends, groups, taken, strict=True)
    ]


def _sizes(needed: Segments, start: int, stable: int) -> list[int]:
    """The bytes of each segment's records in [start, stable); only the first and the last segment can reach
    beyond.
    """
    sizes: list[int] = needed.raw_bytes.tolist()
    # A set, because with one segment both places are the same.
    for place in {0, len(needed) - 1} if needed else ():
        sizes[place] = bytes_within(needed[place], start, stable)
    return sizes


def _gaps_by_end(gaps: Sequence[Gap], ends: Sequence[int]) -> list[tuple[Gap, ...]]:
    """The gaps of the ranges that end at `ends`. No gap lies across an end, because a segment begins
    there.
    """
    found: list[tuple[Gap, ...]] = []
    at = 0
    for end in ends:
        first = at
        while at < len(gaps) and gaps[at][0] < end:
            at += 1
        found.append(tuple(gaps[first:at]))
    return found


def _is_chain(needed: Segments, start: int, stable: int) -> bool:
    """Whether each segment begins where the one before it ends, so that no offset of [start, stable) is
    missing or doubled.

    Without gaps this answers the question of `_check_chain` with a few array operations: a round may have
    half a million segments.
    """
    bases, ends = needed.bases, needed.ends
    return len(needed) > 0 and bool(
        bases[0] <= start and ends[-1] >= stable and (bases[1:] == ends[:-1]).all()
    )


def _check_chain(
    topic: str, partition: int, needed: Segments, gaps: Sequence[Gap], start: int, stable: int
) -> None:
    """Every offset of [start, stable) must be in exactly one segment or gap (protocol rule P1)."""
    spans = sorted(
        [(max(segment.base, start), segment.end, "segments") for segment in needed]
        + [(*gap, "gaps") for gap in gaps]
    )
    reached, before = start, ""
    for base, end, kind in spans:
        if base > reached:
            break
        # An overlap is never resolved here: either entry could be the wrong one.
        if base < reached:
            claims = (
                f"two intake {kind} claim offset {base}"
                if kind == before
                else f"offset {base} is said to be a record and a gap"
            )
            raise TopicHalted(topic, f"partition {partition}: {claims}; the intake log is damaged")
        reached, before = end, kind
    if reached < stable:
        following = next((base for base, _, _ in spans if base > reached), stable)
        raise TopicHalted(
            topic,
            f"partition {partition}: offsets {reached} to {following - 1} are stable and not archived, "
            "but no intake file holds them; "
            "nothing of this topic is archived until they are found (restore the intake log or its files)",
        )


def _groups(needed: Segments, sizes: Sequence[int], max_bytes: int) -> list[tuple[Segments, int]]:
    """Runs of segments whose bytes are as near to `max_bytes` as segment boundaries allow, with their bytes;
    at least one run.
    """
    total = sum(sizes)
    # Most partitions end here, and their segments are many and small.
    if total < max_bytes:
        return [(needed, total)]
    groups: list[tuple[Segments, int]] = []
    first = group_bytes = 0
    for place, segment_bytes in enumerate(sizes):
        overshoot = group_bytes + segment_bytes - max_bytes
        # Cut before this segment if that is nearer to `max_bytes` than a cut after it.
        if place > first and overshoot > max_bytes - group_bytes:
            groups.append((needed[first:place], group_bytes))
            first, group_bytes = place, 0
        group_bytes += segment_bytes
        if group_bytes >= max_bytes:
            groups.append((needed[first : place + 1], group_bytes))
            first, group_bytes = place + 1, 0
    if first < len(needed) or not groups:
        groups.append((needed[first:], group_bytes))
    return groups


# --- Bundles
TASK_BYTES_MIN = 4 * 1024 * 1024
"""Less work than this is not divided to keep another core busy: starting a task costs more."""

WRITER_BYTES = 7 * 1024 * 1024
"""A plan whose records need this much memory counts as a whole open writer, a smaller one as its share. With
64 writers, small plans have 448 MiB together; a task may hold 512."""
PLANS_MAX = 4096
"""Plans that are written at a time, however small: each has a spool file."""


def bundle(
    plans: Sequence[Plan],
    cores: int,
    task_bytes: int,
    open_writers_max: int,
    task_bytes_min: int = TASK_BYTES_MIN,
    writer_bytes: int = WRITER_BYTES,
) -> list[tuple[Plan, ...]]:
    """Divide the plans into tasks, the largest first.

    A bundle holds at most as many plans as fit into `Together`. Its raw bytes are about an equal share of the
    work for each of the `cores`, and not above `task_bytes`, unless a single plan is larger. There are at
    least `cores` bundles when plans and bytes allow it.
    """
    work_bytes = sum(plan.raw_bytes for plan in plans)
    # Whole waves of tasks: with three equal tasks on two cores, one core is idle for half of the second wave.
    waves = max(1, -(-work_bytes // max(1, cores * task_bytes)))
    share_bytes = -(-work_bytes // (max(1, cores) * waves))
    # An equal share per core and wave, not below what a task is worth, never above its bound.
    target_bytes = max(1, min(task_bytes, max(share_bytes, min(task_bytes_min, task_bytes))))
    bundles: list[tuple[Plan, ...]] = []
    together = Together(open_writers_max, writer_bytes)
    together_bytes = 0
    for plan in _neighbours_together(plans):
        if plan.raw_bytes >= target_bytes:
            # Large plans stand alone, so that every core has work.
            bundles.append((plan,))
            continue
        overshoot = together_bytes + plan.raw_bytes - target_bytes
        # Cut before this plan if that is nearer to the target than a cut after it.
        too_large = together_bytes + plan.raw_bytes > task_bytes or overshoot > target_bytes - together_bytes
        if together.plans and (too_large or not together.has_room(plan)):
            bundles.append(tuple(together.plans))
            together, together_bytes = Together(open_writers_max, writer_bytes), 0
        together.add(plan)
        together_bytes += plan.raw_bytes
    if together.plans:
        bundles.append(tuple(together.plans))
    # The largest first: a large task that starts last would keep one core busy alone.
    return sorted(bundles, key=lambda members: -sum(plan.raw_bytes for plan in members))


class Together:
    """Plans that are written at the same time: a bounded number of writers, the small ones counted by their
    bytes.
    """

    def __init__(self, open_writers_max: int, writer_bytes: int) -> None:
        self.plans: list[Plan] = []
        self._writer_bytes = writer_bytes
        self._left = max(1, open_writers_max) * writer_bytes

    def has_room(self, plan: Plan) -> bool:
        """Whether one more plan fits; the first always does."""
        return not self.plans or (len(self.plans) < PLANS_MAX and self._held(plan) <= self._left)

    def add(self, plan: Plan) -> None:
        """Add a plan."""
        self.plans.append(plan)
        self._left -= self._held(plan)

    def _held(self, plan: Plan) -> int:
        # A thousand archives of some kB hold no more than one of some MB; in separate lists they would read
        # every file again.
        return max(1, min(plan.loose_bytes, self._writer_bytes))


def written_together(plans: Sequence[Plan], open_writers_max: int, writer_bytes: int) -> Iterator[list[Plan]]:
    """The plans in their order, divided into lists that are written at the same time."""
    together = Together(open_writers_max, writer_bytes)
    for plan in plans:
        if not together.has_room(plan):
            # Each further list reads the intake files of its plans again.
            yield together.plans
            together = Together(open_writers_max, writer_bytes)
        together.add(plan)
    if together.plans:
        yield together.plans


def _neighbours_together(plans: Iterable[Plan]) -> list[Plan]:
    """An order in which plans over the same intake files follow each other.

    Plans whose spans of files overlap form a window. Inside it they are ordered by topic and partition, as
    records are inside the files. So the bundles cut from a window share files but hardly any row group.
    """
    windows: list[list[Plan]] = []
    reaches_to = -1
    for plan in sorted(
        plans, key=lambda plan: (plan.segments.first_index, plan.topic, plan.partition, plan.base)
    ):
        first, last = plan.segments.first_index, plan.segments.last_index
        if not windows or first > reaches_to:
            windows.append([])
            # The window is not extended by later plans: one chain of overlaps could join everything.
            reaches_to = last
        windows[-1].append(plan)
    return [
        plan
        for window in windows
        for plan in sorted(window, key=lambda plan: (plan.topic, plan.partition, plan.base))
    ]
