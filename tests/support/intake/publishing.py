"""A writer without threads: items made by hand, published one flush after the other, on a rig that fails on
request."""

from __future__ import annotations

import threading

import numpy as np
import pyarrow as pa

from archiver.config.groups import IntakeSettings
from archiver.runtime.clock import ManualClock
from archiver.runtime.ids import SeededIds
from intake.log.fold import TopicState
from intake.log.sequencer import Sequencer
from intake.records import Record, normalise_batch
from intake.write.accept_clock import AcceptClock
from intake.write.acknowledgements import PendingBatch, PendingRecord
from intake.write.flush import FlushCounts, FlushWriter
from intake.write.queue import ROW_COST_BYTES, BatchItem, Item, RecordItem
from intake.write.sequences import ProducerSession
from tests.support.intake.intake_rig import IntakeRig


class Publishing:
    """One process: its sequencer, its publisher, and what waits in its queue."""

    def __init__(
        self, rig: IntakeRig, clock: ManualClock, seed: int, held_max_s: float | None = None
    ) -> None:
        self.sequencer = Sequencer(rig.log, SeededIds(seed), clock, rig.log_settings)
        self.sequencer.refresh()
        self._accept_clock = AcceptClock(clock, 10, 60)
        self._publisher = FlushWriter(
            rig.objects,
            self.sequencer,
            IntakeSettings().row_group_bytes,
            clock,
            SeededIds(seed + 1),
            self._accept_clock,
            held_max_s,
        )
        self._lock = threading.Condition()
        self.queue: list[Item] = []

    def session(self, producer_id: int, epoch: int, transactional_id: str = "") -> ProducerSession:
        """A producer of this process."""
        return ProducerSession(
            producer_id,
            epoch,
            transactional_id,
            lambda tp: self.sequencer.fold.producers.next_sequence(tp, producer_id, epoch),
        )

    @property
    def counts(self) -> FlushCounts:
        """Counters of its flushes."""
        return self._publisher.counts

    def topic(self, name: str) -> TopicState:
        """A topic that exists."""
        return self.sequencer.fold.topics_by_name[name]

    def send(
        self,
        topic: str,
        partition: int,
        value: bytes,
        session: ProducerSession | None = None,
        sequence: int | None = None,
    ) -> PendingRecord:
        """Queue one record."""
        state = self.topic(topic)
        pending = PendingRecord(topic, partition, self._lock)
        record, cost, accept_us = (
            Record(None, value),
            len(value) + ROW_COST_BYTES,
            self._accept_clock.accept_us(0),
        )
        if session is None:
            self.queue.append(RecordItem(state, record, len(value), cost, accept_us, pending))
            return pending
        stamp = session.stamp((state.topic_id, partition), sequence)
        pending.sequence = stamp.sequence
        item = RecordItem(
            state,
            record,
            len(value),
            cost,
            accept_us,
            pending,
            stamp,
            sequence is not None,
            session,
            session.generation,
        )
        session.queued(item)
        self.queue.append(item)
        return pending

    def send_batch(
        self,
        topic: str,
        partitions: list[int],
        values: list[bytes],
        session: ProducerSession,
        sequences: list[int] | None = None,
    ) -> PendingBatch:
        """Queue a batch of a producer."""
        state = self.topic(topic)
        normal = normalise_batch(
            pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())}), 1 << 20
        )
        places = np.array(partitions, np.int32)
        pending = PendingBatch(topic, places, self._lock)
        stated = None if sequences is None else np.array(sequences, np.int32)
        stamp, numbers = session.stamp_rows(state.topic_id, places, stated)
        pending.sequences = numbers
        pending.expect(0)
        pending.admitted()
        accept_us, rows = self._accept_clock.accept_us(0), int(normal.raw_bytes.sum())
        item = BatchItem(
            state, normal.columns, normal.raw_bytes, places, rows, rows, accept_us, 0, pending, stamp, numbers, stated is not None, session,
            session.generation,
        )  # fmt: skip
        session.queued(item)
        self.queue.append(item)
        return pending

    def publish(self, items: int | None = None) -> None:
        """Publish what waits, or the oldest of it."""
        count = len(self.queue) if items is None else items
        taken, self.queue = self.queue[:count], self.queue[count:]
        if taken:
            self._publisher.publish(taken)
