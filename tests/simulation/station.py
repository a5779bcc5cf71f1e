"""The product as one simulated process runs it: sequencer and publisher over the world as that process sees
it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from archiver.config.groups import IntakeSettings, LogSettings
from archiver.runtime.errors import ArchiverError, OutcomeUnknown
from archiver.runtime.ids import SeededIds, TopicPartition
from intake.log.checkpoint import CheckpointStore
from intake.log.checkpointer import Checkpointer
from intake.log.sequencer import Sequencer
from intake.log.source_positions import Move
from intake.producers import Refusal, Stamp
from intake.records import HEADERS, RECORD_SCHEMA, TIMESTAMP, Record
from intake.write.accept_clock import AcceptClock
from intake.write.acknowledgements import Acknowledgement, PendingBatch, PendingRecord
from intake.write.flush import FlushWriter
from intake.write.queue import BatchItem, Item, RecordItem
from tests.simulation.book import Book, Sent
from tests.simulation.ground import DOOMED, Ground
from tests.simulation.schedule import Process
from tests.simulation.twins import SimulatedClock, SimulatedLog, SimulatedObjects

TOPICS = {"flights": 2, "gates": 1}
"""Declared by every actor, as by the processes of a deployment."""
HELD_MAX_S = 6.0
INTAKE = IntakeSettings(clock_skew_max=2.0, clock_settle=3.0)


@dataclass(frozen=True)
class Outgoing:
    """Records of one partition that are sent together."""

    tp: TopicPartition
    records: Sequence[Sent]
    stamp: Stamp | None = None
    stated: bool = False
    """They may have been sent before."""


@dataclass(frozen=True)
class World:
    """What all processes share, and the constants of a run."""

    seed: int
    ground: Ground
    book: Book
    log_settings: LogSettings


class Station:
    """One process's part of the product. Making one reads the log."""

    def __init__(self, world: World, process: Process) -> None:
        self.process = process
        self.world = world
        self.clock = SimulatedClock(process)
        self.log = SimulatedLog(world.ground.log, process, world.ground.trim)
        self.objects = SimulatedObjects(world.ground, process)
        self.ids = SeededIds(world.seed * 1_000_003 + process.number)
        checkpoints = CheckpointStore(self.objects)
        self.sequencer = Sequencer(self.log, self.ids, self.clock, world.log_settings, checkpoints)
        self.checkpointer = Checkpointer(self.log, checkpoints, self.sequencer, world.log_settings)
        self.sequencer.refresh()
        for name, partitions in TOPICS.items():
            if name not in self.sequencer.fold.topics_by_name:
                self.sequencer.declare_topic(name, partitions)
        self._accept_clock = AcceptClock(self.clock, INTAKE.clock_skew_max, INTAKE.clock_settle)
        self._publisher = FlushWriter(
            self.objects,
            self.sequencer,
            INTAKE.row_group_bytes,
            self.clock,
            self.ids,
            self._accept_clock,
            HELD_MAX_S,
        )
        self._settled = threading.Condition()

    def partitions(self) -> list[TopicPartition]:
        """Every topic partition that this process knows, but for those of the doomed topic."""
        topics = [topic for topic in self.sequencer.fold.topics_by_id.values() if topic.name != DOOMED]
        return [(topic.topic_id, number) for topic in topics for number in range(topic.partitions)]

    def send(self, outgoing: Sequence[Outgoing]) -> list[Refusal | None]:
        """Publish as one flush and enter the answers into the book; per piece, the rule by which it was
        refused.

        Raises `RetryLater`, and nothing was sent, if the clock is not to be trusted.
        """
        items: list[tuple[Outgoing, list[Item]]] = []
        for one in outgoing:
            accept_us = self._accept_clock.accept_us(self.sequencer.fold.newest_us)
            items.append((one, self._items(one, accept_us)))
        for one in outgoing:
            for sent in one.records:
                sent.open_attempts += 1
        self._publisher.publish([item for _, several in items for item in several])
        if self.process.schedule.random.random() < 0.2:
            self.checkpointer.run_if_due()
        return [self._answer(one, several) for one, several in items]

    def take_in(self, outgoing: Sequence[Outgoing], move: Move) -> Refusal | None:
        """Publish records of a source with the position behind them, and note in the book what is known of
        them then.

        None, or why they do not count.

        Raises what log and store raise.
        """
        items = [
            item
            for one in outgoing
            for item in self._items(one, self._accept_clock.accept_us(self.sequencer.fold.newest_us))
        ]
        records = [sent for one in outgoing for sent in one.records]
        for sent in records:
            sent.open_attempts += 1
        try:
            refusal = (
                self._publisher.publish_moving(items, [move])
                if items
                else self.sequencer.append_moves([move])
            )
        except OutcomeUnknown:
            raise
        except ArchiverError:
            for sent in records:
                sent.open_attempts -= 1
            raise
        for sent in records:
            sent.open_attempts -= 1
            sent.is_there |= refusal is None
        self.process.schedule.note(
            self.process.name, f"took in {move.item} from {move.base} to {move.end}: {refusal}"
        )
        return refusal

    def _items(self, one: Outgoing, accept_us: int) -> list[Item]:
        topic = self.sequencer.fold.topics_by_id[one.tp[0]]
        if one.stamp is None:
            return [
                RecordItem(
                    topic,
                    Record(None, sent.value),
                    len(sent.value),
                    0,
                    accept_us,
                    PendingRecord(topic.name, one.tp[1], self._settled),
                )
                for sent in one.records
            ]
        values = [sent.value for sent in one.records]
        partitions = np.full(len(values), one.tp[1], np.int32)
        pending = PendingBatch(topic.name, partitions, self._settled)
        pending.expect(0)
        pending.admitted()
        sizes = np.array([len(value) for value in values], np.int64)
        columns = _columns(values)
        return [
            BatchItem(
                topic,
                columns,
                sizes,
                partitions,
                int(sizes.sum()),
                0,
                accept_us,
                0,
                pending,
                one.stamp,
                stated=one.stated,
            )
        ]

    def _answer(self, one: Outgoing, items: Sequence[Item]) -> Refusal | None:
        answers: list[Acknowledgement] = []
        for item in items:
            if not item.pending.done():
                raise AssertionError(f"a record of {self.process.name} was never answered")
            found = item.pending.result(0)
            answers.extend([found] if isinstance(found, Acknowledgement) else found)
        for sent, answer in zip(one.records, answers, strict=True):
            self.world.book.answer(sent, answer)
        self.process.schedule.note(
            self.process.name, f"hears {[(a.outcome, a.offset, a.refusal) for a in answers]}"
        )
        return answers[0].refusal


def _columns(values: Sequence[bytes]) -> pa.RecordBatch:
    keys, headers, times = _blank(len(values))
    return pa.RecordBatch.from_arrays(
        [keys, pa.array(values, pa.binary()), headers, times], schema=RECORD_SCHEMA
    )


@lru_cache
def _blank(rows: int) -> tuple[pa.Array[Any], pa.Array[Any], pa.Array[Any]]:
    """No keys, no headers, no times."""
    return pa.nulls(rows, pa.binary()), pa.array([[]] * rows, HEADERS), pa.nulls(rows, TIMESTAMP)


def is_settled(records: Sequence[Sent]) -> bool:
    """Whether the sender knows that every one is there."""
    return all(sent.offset is not None or sent.is_there for sent in records)
