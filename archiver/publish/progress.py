"""How far each partition of a topic is, and what holds it back: a pure view over both logs, for people and
for the planner.

If an archived log segment is damaged or gone, the backlog in it cannot be counted; everything else is known
and reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from archiver.ledger.fold import LedgerFold
from archiver.runtime.errors import Halt, InvalidInput
from archiver.runtime.ids import TopicId, TopicPartition
from archiver.runtime.rfc3339 import format_time
from intake.log.backlog import Backlog, BacklogSummary


@dataclass(frozen=True, slots=True)
class HeldBack:
    """The oldest open transaction of a partition: nothing from its first record on is archived, or read as
    committed.
    """

    transactional_id: str
    producer_id: int
    epoch: int
    since_us: int
    """Accept time of its first batch."""
    deadline_us: int
    """From this time on the archiver aborts it."""
    waiting: int
    """Offsets that wait: from the stable offset to the end of the partition, records of other producers
    included."""

    def described(self, now_us: int) -> str:
        """For people: whose it is, and since when."""
        # The writer's clock may be ahead of this one.
        age_s = max(0.0, (now_us - self.since_us) / 1e6)
        return (
            f"{self.transactional_id} (producer {self.producer_id}, epoch {self.epoch}, open for "
            f"{age_s:,.0f} s)"
        )

    def to_json(self) -> dict[str, object]:
        """As in documents."""
        return {
            "transactional_id": self.transactional_id,
            "producer_id": self.producer_id,
            "epoch": self.epoch,
            "since": format_time(self.since_us),
            "deadline": format_time(self.deadline_us),
            "waiting": self.waiting,
        }


@dataclass(frozen=True, slots=True)
class PartitionPosition:
    """Offsets of one topic partition at every stage. Each is exclusive: the first offset that has not reached
    the stage.
    """

    partition: int
    start: int
    """The first offset that neither retention removed nor a client deleted."""
    watermark: int
    """The table (or, for kind parquet, the archives) is complete up to here."""
    written: int
    """Archives are in the ledger up to here; not below the watermark."""
    stable: int
    """Nothing at or beyond this may be archived."""
    next: int
    """The offset the next record will get."""
    backlog_rows: int | None
    """Stable records that no archive holds yet; None if they cannot be counted."""
    backlog_bytes: int | None
    """Their raw bytes."""
    held: HeldBack | None
    """What keeps `stable` below `next`; None if nothing does."""
    trouble: str | None = None
    """Why the backlog can be neither counted nor archived: an archived log segment with a part of it is
    damaged or gone."""


def positions(intake: Backlog, ledger: LedgerFold, topic_id: TopicId) -> list[PartitionPosition]:
    """One position per partition, in order; none for a topic that was deleted in between.

    A damaged archived log segment is the `trouble` of the partitions with a backlog in it, never an error.
    """
    topic = intake.topics_by_id.get(topic_id)
    if topic is None:
        return []
    found: list[PartitionPosition] = []
    for partition in range(topic.partitions):
        tp = (topic_id, partition)
        written = ledger.topic(topic_id).planned_to(partition)
        waiting, trouble = _backlog(intake, tp, written)
        found.append(
            PartitionPosition(
                partition=partition,
                start=intake.log_start(tp, ledger.topic(topic_id).start(partition)),
                watermark=ledger.topic(topic_id).watermark(partition),
                written=written,
                stable=intake.stable_offset(tp),
                next=intake.next_offset(tp),
                backlog_rows=None if waiting is None else waiting.rows,
                backlog_bytes=None if waiting is None else waiting.bytes,
                held=held_back(intake, tp),
                trouble=trouble,
            )
        )
    return found


def _backlog(intake: Backlog, tp: TopicPartition, start: int) -> tuple[BacklogSummary | None, str | None]:
    """What is stable from `start` on, or why it cannot be counted."""
    try:
        return intake.summary(tp, start), None
    # `RetryLater` passes: an unavailable store says nothing about this partition.
    except (Halt, InvalidInput) as error:
        return None, str(error)


def whole_backlog(found: Sequence[PartitionPosition]) -> tuple[int | None, int | None]:
    """Rows and bytes of all these partitions; None if they cannot be counted for one of them."""
    rows = [item.backlog_rows for item in found if item.backlog_rows is not None]
    sizes = [item.backlog_bytes for item in found if item.backlog_bytes is not None]
    # A partial sum would read as the whole.
    return (sum(rows), sum(sizes)) if len(rows) == len(sizes) == len(found) else (None, None)


def troubles(topic: str, found: Iterable[PartitionPosition]) -> list[str]:
    """For people: the partitions whose backlog cannot be counted, and why. One line per reason."""
    # One damaged segment may concern many partitions, for the same reason.
    partitions: dict[str, list[int]] = {}
    for item in found:
        if item.trouble is not None:
            partitions.setdefault(item.trouble, []).append(item.partition)
    return [
        f"topic {topic} partition{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}: the "
        f"backlog cannot be counted: {why}"
        for why, numbers in partitions.items()
    ]


def held_back(intake: Backlog, tp: TopicPartition) -> HeldBack | None:
    """What holds a partition back; None if everything in it is decided."""
    blocking = intake.blocking(tp)
    if blocking is None:
        return None
    return HeldBack(
        transactional_id=blocking.transactional_id,
        producer_id=blocking.producer_id,
        epoch=blocking.epoch,
        since_us=blocking.started_us,
        deadline_us=blocking.deadline_us,
        waiting=intake.next_offset(tp) - intake.stable_offset(tp),
    )
