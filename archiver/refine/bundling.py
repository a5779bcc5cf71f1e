"""Which plans share a task.

Pure. A task reads each of its intake files once, so plans over the same files belong together; reading a file
once per partition would cost far more requests than the records are worth. Large plans stand alone, so that
every core has work. Every plan is in exactly one bundle. How many plans are written at a time is bounded by
what their writers hold: a thousand archives of some kB are no more than one of some MB, and dividing them
would read every file, and every row group, once more for each part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from archiver.refine.plan import Plan

TASK_BYTES_MIN = 4 * 1024 * 1024
"""Less work than this is not divided to keep another core busy: starting a task costs more."""

WRITER_BYTES = 7 * 1024 * 1024
"""A plan whose records take so much in memory counts as a whole open writer, a smaller one as its share of
one: with 64 writers small plans have 448 MiB together, and a task may hold 512."""
PLANS_MAX = 4096
"""Plans that are written at a time, however small they are: each has a spool file."""


def bundle(
    plans: Sequence[Plan],
    cores: int,
    task_bytes: int,
    open_writers_max: int,
    task_bytes_min: int = TASK_BYTES_MIN,
    writer_bytes: int = WRITER_BYTES,
) -> list[tuple[Plan, ...]]:
    """Divide the plans into tasks, the largest first.

    A bundle holds at most as many plans as `Together` has room for, and about as many raw bytes as an equal
    share of the work for each of the `cores` (not above `task_bytes`, unless a single plan is larger). There
    are at least `cores` bundles when plans and bytes allow it.
    """
    work_bytes = sum(plan.raw_bytes for plan in plans)
    # Whole waves of tasks: with three equal tasks on two cores one core would wait for half of the time.
    waves = max(1, -(-work_bytes // max(1, cores * task_bytes)))
    share_bytes = -(-work_bytes // (max(1, cores) * waves))
    target_bytes = max(1, min(task_bytes, max(share_bytes, min(task_bytes_min, task_bytes))))
    bundles: list[tuple[Plan, ...]] = []
    together = Together(open_writers_max, writer_bytes)
    together_bytes = 0
    for plan in _neighbours_together(plans):
        if plan.raw_bytes >= target_bytes:
            bundles.append((plan,))
            continue
        overshoot = together_bytes + plan.raw_bytes - target_bytes
        too_large = together_bytes + plan.raw_bytes > task_bytes or overshoot > target_bytes - together_bytes
        if together.plans and (too_large or not together.has_room(plan)):
            bundles.append(tuple(together.plans))
            together, together_bytes = Together(open_writers_max, writer_bytes), 0
        together.add(plan)
        together_bytes += plan.raw_bytes
    if together.plans:
        bundles.append(tuple(together.plans))
    return sorted(bundles, key=lambda members: -sum(plan.raw_bytes for plan in members))


class Together:
    """Plans that are written at the same time: at most so many writers, the small ones counted by their
    bytes.
    """

    def __init__(self, open_writers_max: int, writer_bytes: int) -> None:
        self.plans: list[Plan] = []
        self._writer_bytes = writer_bytes
        self._left = max(1, open_writers_max) * writer_bytes

    def has_room(self, plan: Plan) -> bool:
        """Is there room for one more? There always is for the first."""
        return not self.plans or (len(self.plans) < PLANS_MAX and self._held(plan) <= self._left)

    def add(self, plan: Plan) -> None:
        """Take it in."""
        self.plans.append(plan)
        self._left -= self._held(plan)

    def _held(self, plan: Plan) -> int:
        return max(1, min(plan.loose_bytes, self._writer_bytes))


def written_together(plans: Sequence[Plan], open_writers_max: int, writer_bytes: int) -> Iterator[list[Plan]]:
    """The plans in their order, cut where there is no room for more at the same time."""
    together = Together(open_writers_max, writer_bytes)
    for plan in plans:
        if not together.has_room(plan):
            yield together.plans
            together = Together(open_writers_max, writer_bytes)
        together.add(plan)
    if together.plans:
        yield together.plans


def _neighbours_together(plans: Iterable[Plan]) -> list[Plan]:
    """An order in which plans over the same intake files follow each other.

    Plans whose spans of files overlap form a window; inside it they stand by topic and partition, as their
    records do inside the files, so that the bundles cut from a window share files but hardly any row group.
    """
    windows: list[list[Plan]] = []
    reaches_to = -1
    for plan in sorted(
        plans, key=lambda plan: (plan.segments.first_index, plan.topic, plan.partition, plan.base)
    ):
        first, last = plan.segments.first_index, plan.segments.last_index
        if not windows or first > reaches_to:
            windows.append([])
            reaches_to = last
        windows[-1].append(plan)
    return [
        plan
        for window in windows
        for plan in sorted(window, key=lambda plan: (plan.topic, plan.partition, plan.base))
    ]
