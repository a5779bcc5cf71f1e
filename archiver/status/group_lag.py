"""Lag of consumer groups: what each group committed, and the records that it has not committed yet.

Pure: a view over the folds of both logs at one time. Records are counted as in `archiver.status.lag`. No
record is read: an age is that of the segment with the first record beyond the committed offset.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from archiver.ledger.fold import LedgerFold
from archiver.runtime.errors import Halt, InvalidInput, RetryLater
from archiver.runtime.ids import TopicId
from intake.log.backlog import Backlog
from intake.log.consumer_groups import CommittedOffset, ConsumerGroup


@dataclass(frozen=True, slots=True)
class GroupPartitionLag:
    """One partition for which a group committed an offset."""

    topic: str
    partition: int
    start: int
    """First offset that neither retention removed nor a client deleted."""
    committed: CommittedOffset
    end: int
    """The offset the next record will get."""
    lag_records: int | None
    """Records from the committed offset to the end, those of open transactions included; None if unknown."""
    lag_s: float | None
    """Age of the oldest of them by its accept time, not below 0; 0.0 without one, None if unknown."""
    commit_age_s: float
    """Time since the commit, not below 0."""


@dataclass(frozen=True, slots=True)
class GroupLag:
    """A group and its partitions."""

    group: str
    partitions: tuple[GroupPartitionLag, ...]
    """By topic and partition."""

    @property
    def topics(self) -> list[str]:
        """Names of the topics with a committed offset."""
        return list(dict.fromkeys(one.topic for one in self.partitions))

    @property
    def lag_records(self) -> int | None:
        """Sum over the partitions; None if one is unknown."""
        return _sum([one.lag_records for one in self.partitions])

    @property
    def lag_s(self) -> float | None:
        """The greatest of the partitions; None if one is unknown."""
        return _greatest([one.lag_s for one in self.partitions])

    @property
    def commit_age_s(self) -> float:
        """Time since the newest commit of the group."""
        return min((one.commit_age_s for one in self.partitions), default=0.0)


class GroupLags:
    """Computes the lag of groups by one state of both logs. Read the control log before the intake log."""

    def __init__(self, intake: Backlog, ledger: LedgerFold, now_us: int) -> None:
        self._intake = intake
        self._ledger = ledger
        self._now_us = now_us
        self._known: dict[tuple[TopicId, int, int], tuple[int | None, float | None]] = {}
        """By topic, partition and offset: groups that keep up have the same lag."""

    def all(self) -> Iterator[GroupLag]:
        """Every group with committed offsets, by its id."""
        for group in sorted(self._intake.fold.consumer_groups, key=lambda one: one.group):
            yield self.of(group)

    def of(self, group: ConsumerGroup) -> GroupLag:
        """The lag of one group."""
        topics = self._intake.topics_by_id
        found = [
            self._partition(topics[topic_id].name, topic_id, partition, committed)
            for topic_id, offsets in group.topics.items()
            # A topic can be deleted between the reads of the group and of the topics.
            if topic_id in topics
            for partition, committed in offsets
        ]
        return GroupLag(group.group, tuple(sorted(found, key=lambda one: (one.topic, one.partition))))

    def _partition(
        self, topic: str, topic_id: TopicId, partition: int, committed: CommittedOffset
    ) -> GroupPartitionLag:
        end = self._intake.next_offset((topic_id, partition))
        kept_from = self._ledger.topic(topic_id).start(partition)
        start = min(end, self._intake.log_start((topic_id, partition), kept_from))
        # Records that no longer exist are not waited for.
        records, seconds = self._waiting(topic_id, partition, max(start, committed.offset), end)
        return GroupPartitionLag(
            topic=topic,
            partition=partition,
            start=start,
            committed=committed,
            end=end,
            lag_records=records,
            lag_s=seconds,
            commit_age_s=max(0, self._now_us - committed.time_us) / 1e6,
        )

    def _waiting(
        self, topic_id: TopicId, partition: int, offset: int, end: int
    ) -> tuple[int | None, float | None]:
        # A restored log may end before the committed offset.
        if offset >= end:
            return 0, 0.0
        place = (topic_id, partition, offset)
        if place not in self._known:
            self._known[place] = self._counted(topic_id, partition, offset)
        return self._known[place]

    def _counted(self, topic_id: TopicId, partition: int, offset: int) -> tuple[int | None, float | None]:
        try:
            waiting = self._intake.waiting((topic_id, partition), offset)
        # A history file that cannot be read must not hide the other partitions.
        except (Halt, InvalidInput, RetryLater):
            return None, None
        first_us = waiting.first_accept_us
        # Not below 0: the clock of the writer may be ahead of this one.
        return waiting.records, 0.0 if first_us is None else max(0, self._now_us - first_us) / 1e6


@dataclass(frozen=True, slots=True)
class GroupReport:
    """Lag of consumer groups at one time, within a limit of partitions."""

    groups: tuple[GroupLag, ...] = ()
    """By their ids."""
    groups_left: int = 0
    """Groups beyond the limit, whose lag was not computed."""
    partitions_left: int = 0
    """Partitions of those groups."""


def group_report(intake: Backlog, ledger: LedgerFold, now_us: int, partitions_max: int) -> GroupReport:
    """Lag of the first groups by their ids, of at most `partitions_max` partitions together."""
    lags, found, room = GroupLags(intake, ledger, now_us), [], partitions_max
    groups_left = partitions_left = 0
    # By id and not by lag: a series must not come and go with the lag.
    for group in sorted(intake.fold.consumer_groups, key=lambda one: one.group):
        size = sum(len(offsets.partitions) for offsets in group.topics.values())
        if size <= room:
            room -= size
            found.append(lags.of(group))
        else:
            groups_left += 1
            partitions_left += size
    return GroupReport(tuple(found), groups_left, partitions_left)


def group_document(lag: GroupLag) -> dict[str, object]:
    """A group as JSON, without its partitions."""
    return {
        "group": lag.group,
        "topics": lag.topics,
        "partitions": len(lag.partitions),
        "lag_records": lag.lag_records,
        "lag_seconds": lag.lag_s,
        "commit_age_seconds": lag.commit_age_s,
    }


def partition_document(lag: GroupPartitionLag) -> dict[str, object]:
    """A partition of a group as JSON."""
    return {
        "topic": lag.topic,
        "partition": lag.partition,
        "start": lag.start,
        "committed": lag.committed.offset,
        "end": lag.end,
        "lag_records": lag.lag_records,
        "lag_seconds": lag.lag_s,
        "commit_age_seconds": lag.commit_age_s,
        "metadata": lag.committed.metadata,
    }


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    # A sum without the unknown part would be too small and seem exact.
    return sum(known) if len(known) == len(values) else None


def _greatest(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return max(known, default=0.0) if len(known) == len(values) else None
