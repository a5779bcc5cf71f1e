"""A Kafka cluster in memory, as a mirror sees one: answers that a test gives, and no records."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from intake.sources.kafka.upstream import Bounds, Place, Polled, Stopped, UpstreamTopic


@dataclass
class MemoryUpstream:
    """`bounds_now` is asked at every poll; a partition that is not in it has no answer."""

    bounds_now: dict[Place, Bounds]
    ids: dict[str, bytes] = field(default_factory=dict)
    since: dict[Place, int] = field(default_factory=dict)
    polls: list[Polled] = field(default_factory=list)
    """What the next polls give, the first one first."""
    reading: dict[Place, tuple[int, int | None]] = field(default_factory=dict)
    looks: int = 0
    closed: int = 0

    def topics(self) -> list[str]:
        return sorted(self.ids)

    def describe(self, names: Collection[str]) -> dict[str, UpstreamTopic | None]:
        partitions = {
            name: 1 + max((one for topic, one in self.bounds_now if topic == name), default=0)
            for name in names
        }
        return {
            name: UpstreamTopic(name, self.ids[name], partitions[name]) for name in names if name in self.ids
        }

    def bounds(self, places: Collection[Place]) -> dict[Place, Bounds]:
        self.looks += bool(places)
        return {place: self.bounds_now[place] for place in places if place in self.bounds_now}

    def offsets_since(self, places: Collection[Place], since_ms: int) -> dict[Place, int]:
        return {place: self.since[place] for place in places if place in self.since}

    def read(self, positions: Mapping[Place, tuple[int, int | None]]) -> None:
        self.reading |= positions

    def stop_reading(self, places: Sequence[Place]) -> None:
        for place in places:
            self.reading.pop(place, None)

    def poll(self, records_max: int, timeout_s: float) -> Polled:
        return self.polls.pop(0) if self.polls else Polled()

    def known_ends(self, places: Collection[Place]) -> dict[Place, int]:
        return {}

    def close(self) -> None:
        self.closed += 1
        self.reading.clear()


def records(place: Place, offsets: Sequence[int], end: int | None = None) -> Polled:
    """A poll with these records, read to the end if there is one."""
    count = len(offsets)
    polled = Polled(
        [place[0]] * count,
        [place[1]] * count,
        list(offsets),
        [5] * count,
        [None] * count,
        [b"v"] * count,
        [None] * count,
    )
    polled.epochs = {place: 3} if count else {}
    polled.ends = {} if end is None else {place: end}
    return polled


def truncated(place: Place, why: str = "log truncation detected") -> Polled:
    """A poll in which the client reports that the partition was cut off."""
    return Polled(stopped=[Stopped(place, "truncated", why)])
