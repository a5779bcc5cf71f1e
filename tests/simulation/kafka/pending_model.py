"""A plain model of offsets that wait for the end of their transaction, to compare the fold with."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from archiver.runtime.ids import TopicPartition
from tests.simulation.kafka.group_requests import Offset


@dataclass(frozen=True)
class Waiting:
    """An offset of an open transaction."""

    group: str
    tp: TopicPartition
    offset: Offset
    index: int
    """Of its entry."""
    time_us: int


class PendingModel:
    """The offsets of all open transactions. Of two for a partition, that of the later entry counts."""

    def __init__(self) -> None:
        self._waiting: dict[int, list[Waiting]] = {}
        """By producer id."""

    def hold(self, producer_id: int, offsets: Collection[Waiting]) -> None:
        """The open transaction of the producer gets these offsets."""
        places = {(one.group, one.tp) for one in offsets}
        kept = [one for one in self._waiting.get(producer_id, ()) if (one.group, one.tp) not in places]
        self._waiting[producer_id] = [*kept, *offsets]

    def committed(self, index: int, group: str, tps: Iterable[TopicPartition]) -> None:
        """The entry at `index` commits offsets of these partitions, so earlier ones cannot count any more."""
        self._drop(dict.fromkeys(((group, tp) for tp in tps), index))

    def end(self, producer_id: int, *, commit: bool) -> list[Waiting]:
        """The transaction of the producer ends; the offsets that are committed by it."""
        ended = self._waiting.pop(producer_id, [])
        if not commit:
            return []
        self._drop({(one.group, one.tp): one.index for one in ended})
        return ended

    def partitions(self, group: str) -> frozenset[TopicPartition]:
        """The partitions of a group that an open transaction may still commit."""
        return frozenset(one.tp for held in self._waiting.values() for one in held if one.group == group)

    def _drop(self, newest: Mapping[tuple[str, TopicPartition], int]) -> None:
        for producer_id, held in self._waiting.items():
            self._waiting[producer_id] = [
                one for one in held if one.index > newest.get((one.group, one.tp), -1)
            ]
