"""Actors that read: what is stable and was seen once must be there for good, in the same place."""

from __future__ import annotations

import random
from collections.abc import Callable

from archiver.runtime.errors import RetryLater
from archiver.runtime.ids import TopicPartition
from tests.simulation.files import Files
from tests.simulation.schedule import Process, Violation
from tests.simulation.station import Station, World


class Sightings:
    """Every record that a reader ever saw below the stable offset."""

    def __init__(self) -> None:
        self.values: dict[tuple[TopicPartition, int], bytes] = {}

    def see(self, tp: TopicPartition, offset: int, value: bytes) -> None:
        """A reader sees that record there."""
        if self.values.setdefault((tp, offset), value) != value:
            raise Violation(
                "what was read stays", f"{tp} {offset} was {self.values[tp, offset]!r} and then {value!r}"
            )


class Archiver:
    """Says how far everything is archived; what it archives counts as read."""

    def __init__(
        self,
        name: str,
        world: World,
        choices: random.Random,
        is_over: Callable[[], bool],
        files: Files,
        sightings: Sightings,
    ) -> None:
        self.name = name
        self._world = world
        self._random = choices
        self._is_over = is_over
        self._files = files
        self._sightings = sightings

    def live(self, process: Process) -> None:
        station = Station(self._world, process)
        while not self._is_over():
            process.sleep(self._random.randrange(500_000, 4_000_000))
            process.require_current()
            try:
                self._archive(station)
            except RetryLater:
                continue

    def _archive(self, station: Station) -> None:
        backlog, watermarks = station.sequencer.backlog(), self._world.ground.watermarks
        for tp in station.partitions():
            stable, reached = backlog.stable_offset(tp), watermarks.get(tp, 0)
            for segment in backlog.segments(tp, reached):
                if segment.end > stable or self._random.random() < 0.1:
                    break
                rows = self._files.rows(segment)
                station.process.step(f"archives {tp} from {segment.base}")
                if watermarks.get(tp, 0) > segment.base:
                    break  # another process was here
                for place, (value, _) in enumerate(rows):
                    self._sightings.see(tp, segment.base + place, value)
                watermarks[tp] = segment.end


class Reader:
    """Folds the log, from wherever it can, and reads what is stable."""

    def __init__(
        self,
        name: str,
        world: World,
        choices: random.Random,
        is_over: Callable[[], bool],
        files: Files,
        sightings: Sightings,
    ) -> None:
        self.name = name
        self._world = world
        self._random = choices
        self._is_over = is_over
        self._files = files
        self._sightings = sightings

    def live(self, process: Process) -> None:
        station = Station(self._world, process)
        read_to: dict[TopicPartition, int] = {}
        while not self._is_over():
            process.sleep(self._random.randrange(200_000, 2_000_000))
            process.require_current()
            try:
                if self._random.random() < 0.3:
                    station, read_to = Station(self._world, process), {}
                self._read(station, read_to)
            except RetryLater:
                continue

    def _read(self, station: Station, read_to: dict[TopicPartition, int]) -> None:
        backlog = station.sequencer.backlog()
        for tp in station.partitions():
            stable, start = backlog.stable_offset(tp), read_to.get(tp, 0)
            if stable < start:
                raise Violation(
                    "the stable offset never goes back", f"a reader saw {start} of {tp} and then {stable}"
                )
            for segment in backlog.segments(tp, start):
                if segment.base >= stable:
                    break
                if station.objects.info(segment.file.key) is None:
                    if segment.end <= self._world.ground.watermarks.get(tp, 0):
                        continue  # archived since then, and vacuumed
                    raise Violation("a named file exists", f"a reader cannot find {segment.file.key}")
                for place, (value, _) in enumerate(self._files.rows(segment)):
                    self._sightings.see(tp, segment.base + place, value)
            read_to[tp] = stable
