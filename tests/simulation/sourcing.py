"""A source that is read again after every crash, and the actors that ingest it: several at once, none of
which keeps state.

An actor reads its positions from the log. The items are like files in a folder: each can be read from any
place and is removed once it is finished. Another one comes under its name when the log has forgotten it. An
actor that has opened one goes on reading it, as with files.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from archiver.runtime.errors import OutcomeUnknown, RetryLater
from archiver.runtime.ids import TopicPartition
from intake.log.fold import IntakeFold
from intake.log.source_positions import Begun, Finished, Move
from tests.simulation.book import Book, Sent
from tests.simulation.schedule import Process
from tests.simulation.station import Outgoing, Station, World

SOURCE = "files:simulated"
NAMES = ("a", "b", "c")
GENERATIONS = 2
"""So many items come under a name, one after the other."""
_PIECE_MAX = 4
_REST_US = 300_000


@dataclass
class Item:
    """What is behind a name now."""

    name: str
    generation: int
    length: int
    records: list[Sent] = field(default_factory=list)

    @property
    def identity(self) -> bytes:
        """Its own."""
        return f"{self.generation:04} {self.name}".encode()

    def finished(self, fold: IntakeFold) -> Finished | None:
        """What the log says of this very item, if it is finished."""
        known = fold.positions.get(SOURCE, self.name)
        return known if isinstance(known, Finished) and known.mark == self.identity[:4] else None


class Upstream:
    """The folder."""

    def __init__(self, book: Book, choices: random.Random) -> None:
        self._book = book
        self._random = choices
        self.items: dict[str, Item] = {}
        self._removed: dict[str, tuple[int, int]] = {}
        for name in NAMES:
            self._put(name, 0)

    def _put(self, name: str, generation: int) -> None:
        self.items[name] = Item(name, generation, self._random.choice((0, 1, 3, 6, 10)))

    def remove(self, name: str, finished: Finished) -> None:
        """The item goes, which is finished."""
        self._removed[name] = (self.items.pop(name).generation, finished.log_index)

    def put_again(self, name: str, fold: IntakeFold) -> None:
        """A new item under the name of one that was removed, if the log has forgotten that."""
        generation, log_index = self._removed[name]
        if fold.next_index > log_index and fold.positions.get(SOURCE, name) is None:
            self._put(name, generation + 1)

    def open(self, item: Item, partitions: Sequence[TopicPartition]) -> list[Sent]:
        """Its records, which are the same for every reader."""
        if len(item.records) < item.length:
            stream = f"{item.name}{item.generation}"
            item.records = [
                self._book.record(stream, self._random.choice(partitions)) for _ in range(item.length)
            ]
        return item.records


class SourceTaker:
    """Ingests the items, and handles the finished ones."""

    def __init__(self, name: str, world: World, choices: random.Random, upstream: Upstream) -> None:
        self.name = name
        self._world = world
        self._random = choices
        self._upstream = upstream

    @property
    def trouble(self) -> str:
        """What is left."""
        return str([(item.name, item.generation) for item in self._upstream.items.values()])

    def live(self, process: Process) -> None:
        station = Station(self._world, process)
        failures = 0
        while not self._is_over(station):
            try:
                station.sequencer.resolve()
                self._work(station)
                failures = 0
            except (RetryLater, OutcomeUnknown):
                failures += 1
            if failures > 6:
                raise RetryLater("nothing arrives; a new process may see more")
            process.sleep(self._random.randrange(_REST_US))

    def _is_over(self, station: Station) -> bool:
        items = self._upstream.items
        last = all(name in items and items[name].generation == GENERATIONS - 1 for name in NAMES)
        return last and all(item.finished(station.sequencer.fold) for item in items.values())

    def _work(self, station: Station) -> None:
        """As a poll of the folder: first what is finished, then one item."""
        self._sweep(station)
        item = self._upstream.items.get(self._random.choice(NAMES))
        if item is None:
            return
        finished = item.finished(station.sequencer.fold)
        if finished is None:
            self._take(station, item)
        elif item.generation < GENERATIONS - 1 and self._random.random() < 0.7:
            self._upstream.remove(item.name, finished)  # as a person tidies up

    def _sweep(self, station: Station) -> None:
        fold, items = station.sequencer.fold, self._upstream.items
        seen = fold.next_index
        gone = [
            name
            for name in NAMES
            if name not in items and isinstance(fold.positions.get(SOURCE, name), Finished)
        ]
        if gone:
            self._pause(station)
            station.sequencer.forget_items(SOURCE, gone, seen)
        for name in NAMES:
            if name not in items:
                self._upstream.put_again(name, station.sequencer.fold)

    def _pause(self, station: Station) -> None:
        if self._random.random() < 0.3:
            station.process.sleep(self._random.randrange(3_000_000))

    def _take(self, station: Station, item: Item) -> None:
        """Some pieces of the item, as it was when it was opened."""
        fold = station.sequencer.fold
        seen = fold.next_index
        known = fold.positions.get(SOURCE, item.name) or Begun(0, 0, item.identity)
        records = self._upstream.open(item, station.partitions())
        if isinstance(known, Finished) or known.identity != item.identity:
            return
        base = known.end
        while True:
            end = min(len(records), base + self._random.randrange(1, _PIECE_MAX + 1))
            piece = records[base:end]
            outgoing = [
                Outgoing(tp, [sent for sent in piece if sent.tp == tp])
                for tp in dict.fromkeys(sent.tp for sent in piece)
            ]
            self._pause(station)
            done = end == len(records)
            if (
                station.take_in(outgoing, Move(SOURCE, item.name, base, end, done, item.identity, seen, end))
                is not None
                or done
            ):
                return
            base = end
