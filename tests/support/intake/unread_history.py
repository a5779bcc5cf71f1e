"""History files of which some partitions cannot be read, for tests of the planner, the listings and the
vacuum."""

from __future__ import annotations

from dataclasses import dataclass, field

from archiver.runtime.errors import ArchiverError
from archiver.runtime.ids import TopicPartition
from intake.log.backlog import Backlog, BacklogSummary, summed
from intake.log.fold import IntakeFold
from intake.log.state import Gap
from intake.segments import SegmentRef, Segments


@dataclass
class UnreadHistory:
    """Everything a fold held when it was shelved, except for partitions with an error."""

    errors: dict[TopicPartition, ArchiverError] = field(default_factory=dict)
    kept: dict[TopicPartition, list[SegmentRef]] = field(default_factory=dict)

    def release_history(self, fold: IntakeFold) -> Backlog:
        """Take all segments out of a fold without open transactions; the view of both."""
        for tp, state in fold.state().partitions.items():
            self.kept[tp] = list(state.segments)
        fold.release_history({tp: state.next_offset for tp, state in fold.state().partitions.items()})
        return Backlog(fold, self)

    def segments(self, tp: TopicPartition, start: int, end: int, bytes_max: int | None) -> Segments:
        del bytes_max
        self._check(tp)
        return Segments.of([segment for segment in self.kept[tp] if start < segment.end <= end])

    def gaps(self, tp: TopicPartition, start: int, end: int) -> list[Gap]:
        del start, end
        self._check(tp)
        return []

    def summary(self, tp: TopicPartition, start: int, end: int) -> BacklogSummary:
        return summed(self.segments(tp, start, end, None), start)

    def key_of(self, log_index: int) -> str | None:
        del log_index
        return None

    def _check(self, tp: TopicPartition) -> None:
        if tp in self.errors:
            raise self.errors[tp]
