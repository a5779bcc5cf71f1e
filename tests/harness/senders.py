"""Workloads: what one sending thread does, burst after burst. Every choice is drawn from a seeded source.

A *plain* sender uses the writer itself and never repeats a record. The other kinds are in `numbered.py`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tests.harness.delivery import Desk, Item

BURST_MAX = 40


class Sender(Protocol):
    """One sending thread's work."""

    def burst(self) -> None:
        """Send some records and wait for their answers."""

    def settle(self) -> None:
        """Find out about what earlier lives left open; nothing new is begun."""


@dataclass
class Choices:
    """What to send next."""

    rng: random.Random
    topics: Mapping[str, int]
    """Partitions of each topic."""
    number: int
    burst_max: int = BURST_MAX

    def items(self, *, one_topic: bool, partitioned: bool) -> list[Item]:
        """The next records; `partitioned` names every partition, else some are left to the key."""
        rng = self.rng
        topic, found = rng.choice(list(self.topics)), []
        by_key = not partitioned and rng.random() < 0.4
        for _ in range(rng.randint(1, self.burst_max)):
            if not one_topic:
                topic = rng.choice(list(self.topics))
            found.append(Item(self.number, topic, None if by_key else rng.randrange(self.topics[topic])))
            self.number += 1
        return found

    def places(self) -> list[tuple[str, int]]:
        """Every partition there is."""
        return [
            (topic, partition) for topic, partitions in self.topics.items() for partition in range(partitions)
        ]


class PlainSender:
    """Sends through the writer itself."""

    def __init__(self, desk: Desk, writer: Any, choices: Choices) -> None:
        self._desk = desk
        self._writer = writer
        self._choices = choices

    def burst(self) -> None:
        together = self._choices.rng.random() < 0.5
        self._desk.deliver(
            self._writer, self._choices.items(one_topic=together, partitioned=False), together=together
        )

    def settle(self) -> None:
        """A plain record of unknown outcome stays so: to send it again would be another record."""
