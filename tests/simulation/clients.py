"""Actors that send records: plain ones, and idempotent ones that send again until they know.

What an actor keeps in itself is its durable list of what it sent. Promises to behave as a client must: a
sequence number is used for one record only; nothing new is sent before the outcome of all that was sent is
resolved. Records whose outcome cannot be resolved are given up with their producer, or with its epoch in their
partition, which a Kafka client raises itself.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from archiver.runtime.errors import RetryLater
from archiver.runtime.ids import TopicPartition
from intake.producers import Refusal, Stamp
from tests.simulation.book import Sent
from tests.simulation.schedule import Process, Violation
from tests.simulation.station import Outgoing, Station, World, is_settled

_FAILURES_MAX = 4
"""After so many flushes in a row that brought nothing a process is started again."""
_BATCHES_MAX = 5
"""On their way at once, as with Kafka's producers."""
_REST_US = 300_000
REPEAT_MAX_US = 1_500_000
"""How long a client repeats a batch of an epoch that it raised. If the log forgets its producer, the first
batch of such an epoch counts again."""


class PlainWriter:
    """Sends records without numbers, never again."""

    def __init__(self, name: str, world: World, choices: random.Random, flushes: int) -> None:
        self.name = name
        self._world = world
        self._random = choices
        self._left = flushes

    def live(self, process: Process) -> None:
        station = Station(self._world, process)
        failures = 0
        while self._left > 0:
            process.require_current()
            self._left -= 1
            stream = process.name  # another process of the same writer is another sender
            chosen = [self._random.choice(station.partitions()) for _ in range(self._random.randrange(1, 4))]
            outgoing = [
                Outgoing(
                    tp, [self._world.book.record(stream, tp) for _ in range(self._random.randrange(1, 4))]
                )
                for tp in chosen
            ]
            station.send(outgoing)
            arrived = all(is_settled(one.records) for one in outgoing)
            failures = 0 if arrived else failures + 1
            if failures >= _FAILURES_MAX:
                raise RetryLater("nothing arrives; a new process may see more")
            process.sleep(self._random.randrange(_REST_US))


@dataclass
class Lane:
    """What an idempotent producer has for one partition."""

    epoch: int = 0
    """Of the producer in this partition."""
    sequence: int = 0
    """Of the first record of `window`."""
    window: list[Sent] = field(default_factory=list)
    """Sent, perhaps, and not settled; in order."""
    cut: list[int] = field(default_factory=list)
    """How many records each batch of the window had the first time."""
    tried: bool = False
    tried_us: int = 0
    """Time of the first attempt of the window."""
    known_us: int = 0
    """As `tried_us`, of the oldest batch in `known`."""
    recut: bool = False
    """It was sent in other batches than the first time."""
    known: deque[Outgoing] = field(default_factory=lambda: deque(maxlen=_BATCHES_MAX))
    """The last batches that were acknowledged as they were first cut: the log remembers where they are."""
    torn: bool = False
    """A batch was refused because a part of it is new: from now on the window goes record by record."""

    def batches(self, choices: random.Random) -> list[tuple[int, int]]:
        """Places in the window from which and to which to send now, at most as many as may be on their
        way."""
        rows = len(self.window)
        sizes = self.cut
        if self.torn:
            self.recut = True
            sizes = [1] * rows
        elif self.tried and choices.random() < 0.3:
            self.recut = True
            sizes = cut_into(choices, rows, _BATCHES_MAX)
        places = [0]
        for size in sizes[:_BATCHES_MAX]:
            places.append(places[-1] + size)
        return list(pairwise(places))

    def raise_epoch(self) -> None:
        """Number the next records from 0 in another epoch. What is open stays open."""
        self.epoch, self.sequence = self.epoch + 1, 0
        self.window, self.cut = [], []
        self.tried = self.torn = self.recut = False
        self.known.clear()  # batches of the earlier epoch are refused, once one of this epoch is there

    def expire(self, now_us: int) -> None:
        """Give up what was tried for too long to be repeated."""
        if self.epoch == 0:
            return
        if now_us - self.known_us > REPEAT_MAX_US:
            self.known.clear()
        if self.tried and now_us - self.tried_us > REPEAT_MAX_US:
            self.raise_epoch()

    def remember(self, sent: Outgoing) -> None:
        """A batch was answered for."""
        if self.recut:
            self.known.clear()  # in the log it may stand in more batches than one
        elif is_settled(sent.records):
            self.known_us = self.known_us if self.known else self.tried_us
            self.known.append(Outgoing(sent.tp, sent.records, sent.stamp, stated=True))

    def drop_settled(self) -> None:
        """Forget the settled records at the beginning."""
        while self.window and is_settled(self.window[:1]):
            self.window.pop(0)
            self.sequence += 1
            self.cut = [size for size in (self.cut[0] - 1, *self.cut[1:]) if size]
        if not self.window:
            self.tried = self.torn = self.recut = False


def cut_into(choices: random.Random, rows: int, pieces_max: int) -> list[int]:
    """Sizes that add up to `rows`."""
    places = (
        sorted(choices.sample(range(1, rows), min(choices.randrange(pieces_max), rows - 1)))
        if rows > 1
        else []
    )
    return [end - start for start, end in zip([0, *places], [*places, rows], strict=True)]


class IdempotentProducer:
    """Numbers its records, and sends them again until it knows that they are there."""

    def __init__(
        self, name: str, world: World, choices: random.Random, windows: int, *, raises: bool
    ) -> None:
        self.name = name
        self._world = world
        self._random = choices
        self._left = windows
        self._raises = raises
        """It raises its epoch, now and then."""
        self._producer: tuple[int, int] | None = None
        self._lanes: dict[TopicPartition, Lane] = {}
        self.trouble = ""

    def live(self, process: Process) -> None:
        station = Station(self._world, process)
        failures = 0
        while self._left > 0 or any(lane.window for lane in self._lanes.values()):
            process.require_current()
            if self._producer is None:
                opened = station.sequencer.open_producer("", 0)
                process.require_current()
                self._producer = opened
            self._expire(station)
            self._fill(station)
            failures = 0 if self._send(station) else failures + 1
            self._expire(station)
            if self._random.random() < 0.3:
                self._repeat(station)
            if failures >= _FAILURES_MAX:
                raise RetryLater("nothing arrives; a new process may see more")
            process.sleep(self._random.randrange(_REST_US))
            process.require_current()

    def _expire(self, station: Station) -> None:
        for lane in self._lanes.values():
            lane.expire(station.process.schedule.now_us)

    def _fill(self, station: Station) -> None:
        """New records for partitions in which nothing is open."""
        if self._left <= 0 or (
            any(lane.window for lane in self._lanes.values()) and self._random.random() < 0.5
        ):
            return
        self._left -= 1
        stream = f"{self.name} {self._producer}"
        for tp in self._random.sample(station.partitions(), self._random.randrange(1, 3)):
            lane = self._lanes.setdefault(tp, Lane())
            # Also with records of unknown outcome, as a client does when a batch has expired.
            if self._raises and self._random.random() < 0.2:
                lane.raise_epoch()
            if not lane.window:
                rows = self._random.randrange(1, 9)
                lane.window = [self._world.book.record(stream, tp) for _ in range(rows)]
                lane.cut = cut_into(self._random, rows, _BATCHES_MAX)

    def _send(self, station: Station) -> bool:
        """One flush with some of what is open; False if no answer said that a record is there."""
        sent = self._chosen(station.process.schedule.now_us)
        company = self._company(station) if self._random.random() < 0.3 else []
        producer = self._producer
        refusals = station.send([*(one for _, one in sent), *company])
        station.process.require_current()
        self.trouble = str([(one.stamp, refusal) for (_, one), refusal in zip(sent, refusals, strict=False)])
        for (lane, one), refusal in zip(sent, refusals, strict=False):
            self._hear(lane, one, refusal)
        if producer == self._producer and "unknown_producer" in refusals:
            self._give_up()
        arrived = any(is_settled(one.records) for _, one in sent)
        for lane, _ in sent:
            lane.drop_settled()
        return arrived

    def _chosen(self, now_us: int) -> list[tuple[Lane, Outgoing]]:
        """Batches of what is open, in order within each partition."""
        assert self._producer is not None, "a producer is opened before anything is sent"
        chosen: list[tuple[Lane, Outgoing]] = []
        for tp, lane in self._lanes.items():
            if not lane.window:
                continue
            batches = lane.batches(self._random)
            if self._random.random() < 0.3:
                batches = batches[: self._random.randrange(1, len(batches) + 1)]
            for start, end in batches:
                stamp = Stamp(self._producer[0], lane.epoch, lane.sequence + start)
                chosen.append((lane, Outgoing(tp, lane.window[start:end], stamp, stated=lane.tried)))
            if not lane.tried:
                lane.tried, lane.tried_us = True, now_us
        return chosen

    def _hear(self, lane: Lane, one: Outgoing, refusal: Refusal | None) -> None:
        """Learn from the answer to a batch."""
        if refusal == "out_of_order" and len(one.records) > 1:
            lane.torn = True
        if refusal == "forgotten":
            if not lane.recut:
                raise Violation(
                    "the last five batches are remembered", f"{self.name}: {one.stamp} of {lane.cut}"
                )
            for sent in one.records:
                sent.is_there = True
        lane.remember(one)

    def _repeat(self, station: Station) -> None:
        """Send again what was acknowledged, as a client does that missed the answer: nothing new comes of
        it."""
        repeated: list[Outgoing] = []
        for lane in self._lanes.values():
            first = self._random.randrange(_BATCHES_MAX)
            repeated.extend(list(lane.known)[first : first + self._random.randrange(1, 3)])
        if not repeated:
            return
        refusals = station.send(repeated)
        station.process.require_current()
        wrong = [refusal for refusal in refusals if refusal not in (None, "barrier", "unknown_producer")]
        if wrong:
            raise Violation(
                "the last five batches are remembered", f"{self.name} repeats {repeated}: {refusals}"
            )
        if "unknown_producer" in refusals:
            self._give_up()

    def _company(self, station: Station) -> Sequence[Outgoing]:
        """Records without a producer in the same flush."""
        tp = self._random.choice(station.partitions())
        return [Outgoing(tp, [self._world.book.record(f"{station.process.name} company", tp)])]

    def _give_up(self) -> None:
        """The log does not know the producer any more: what is open stays open, and another producer
        begins."""
        self._producer = None
        self._lanes.clear()
