"""Up to which offsets a topic's registry ids are known: which records may be called wrong for an id that is
none of its subject's.

A producer registers its schema before it sends with it. So of every record that was in the intake log before
the list of ids was asked for, the list has the id; of a later one it may not have it yet. Promises that the
position of the log is taken before the list. Pure but for the view it is handed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from archiver.runtime.ids import TopicId
from intake.log.backlog import Backlog

if TYPE_CHECKING:
    from archiver.refine.prepare_topic import TopicWork


class KnownIds:
    """What one run knows of its topics."""

    def __init__(self) -> None:
        self._reached: dict[TopicId, Mapping[int, int]] = {}

    def prepared(self, work: TopicWork, reached: Mapping[int, int]) -> None:
        """A topic was made ready. `reached`: per partition where it ended in the intake log before that
        began.
        """
        sides = (work.schema.key, work.schema.value)
        self._reached.pop(work.state.topic_id, None)
        if any(side is not None and side.envelope is not None for side in sides):
            complete = all(one is None or one.complete for one in work.fetched)
            self._reached[work.state.topic_id] = reached if complete else {}

    def judged_to(self, topic_id: TopicId, partitions: Iterable[int]) -> dict[int, int] | None:
        """Per partition the offset from which on an unknown id is no verdict; None if there are no ids, so
        nothing to know.
        """
        reached = self._reached.get(topic_id)
        return None if reached is None else {partition: reached.get(partition, 0) for partition in partitions}


def ends(intake: Backlog, topic_id: TopicId, partitions: int) -> dict[int, int]:
    """Per partition the offset that its next record will get."""
    return {partition: intake.next_offset((topic_id, partition)) for partition in range(partitions)}
