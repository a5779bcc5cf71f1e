"""Records come in: intake files and transactions, appended as the writer appends them, a little at a time.

How a record gets into the log is the other rig's business; here every file lands at once. Promises that every
value is unlike any other.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence

import pyarrow as pa

from archiver.config.groups import LogSettings
from archiver.objects.paths import intake_key
from archiver.runtime.clock import ManualClock
from archiver.runtime.ids import SeededIds, TopicPartition, new_ulid
from intake.format import INTAKE_SCHEMA, PlacedSegment, SegmentRows, write_intake_file
from intake.log.sequencer import Sequencer
from intake.producers import Stamp
from tests.simulation.publish.contents import Sent, light_intake
from tests.simulation.publish.publish_ground import Ground
from tests.simulation.schedule import START_US, Process

_TIMEOUT_US = 3_600_000_000


class Feeder:
    """Sends so many files, with pauses."""

    def __init__(
        self,
        ground: Ground,
        choices: random.Random,
        seed: int,
        topics: dict[str, int],
        files: int,
        *,
        light: bool,
        grows: bool = False,
    ) -> None:
        """With `grows`, topics get more partitions now and then; the configuration of the others does not."""
        self.name = "feeder"
        self._ground = ground
        self._random = choices
        self._left = files
        self._light = light
        self._grows = grows
        self._clock = ManualClock(START_US)
        self._ids = SeededIds(seed ^ 0xFEED)
        self._sequencer = Sequencer(ground.intake, self._ids, self._clock, LogSettings())
        self._producer = (0, 0)
        self._sequences: dict[TopicPartition, int] = {}
        self._open = False
        self._count = 0
        for name, partitions in topics.items():
            self._sequencer.declare_topic(name, partitions)
        if choices.random() < 0.4:
            self._producer = self._sequencer.open_producer("tx", _TIMEOUT_US)
        for _ in range(choices.choice((0, 1, 1, 2))):
            self._send()
        self._end()

    def live(self, process: Process) -> None:
        while self._left > 0:
            process.sleep(self._random.randrange(10_000, 2_500_000))
            process.require_current()
            self._clock.set_wall(process.schedule.now_us)
            if self._grows and self._random.random() < 0.4:
                topic = self._random.choice(list(self._sequencer.fold.topics_by_id.values()))
                self._sequencer.grow_topic(topic.name, topic.partitions + self._random.randrange(1, 3))
                self._ground.met["partitions added"] += 1
            self._send()
        self._end()

    def _send(self) -> None:
        """A file of a few records; now and then of a transaction, which is then ended one way or the
        other."""
        if self._open and self._random.random() < 0.6:
            self._end()
            return
        self._left -= 1
        transactional = self._producer != (0, 0) and self._random.random() < 0.7
        self._open |= transactional
        runs = [(tp, self._random.randrange(1, 3)) for tp in self._partitions()]
        now_us = self._clock.now_us()
        rows = [self._row(now_us) for _, count in runs for _ in range(count)]
        key = intake_key(now_us, new_ulid(self._ids, now_us))
        segments = [
            PlacedSegment(
                tp[0],
                tp[1],
                0,
                0,
                count,
                8 * count,
                now_us,
                self._stamp(tp, count) if transactional else None,
            )
            for tp, count in runs
        ]
        data, digest, placed = self._file(rows, segments)
        self._ground.sent[key] = rows
        self._ground.objects.create(key, data)
        self._sequencer.append_file(key, len(data), digest, placed)

    def _partitions(self) -> Sequence[TopicPartition]:
        known = [
            (topic.topic_id, number)
            for topic in self._sequencer.fold.topics_by_id.values()
            for number in range(topic.partitions)
        ]
        return [tp for tp in known if self._random.random() < 0.7] or known[:1]

    def _row(self, now_us: int) -> Sent:
        self._count += 1
        return f"record {self._count}".encode(), now_us - self._random.randrange(0, 5_000)

    def _stamp(self, tp: TopicPartition, count: int) -> Stamp:
        sequence = self._sequences.get(tp, 0)
        self._sequences[tp] = sequence + count
        return Stamp(*self._producer, sequence, transactional=True)

    def _end(self) -> None:
        if self._open:
            self._open = False
            self._sequencer.end_transaction(*self._producer, commit=self._random.random() < 0.4)

    def _file(
        self, rows: Sequence[Sent], segments: Sequence[PlacedSegment]
    ) -> tuple[bytes, bytes, Sequence[PlacedSegment]]:
        """The bytes of a file, the digest of its footer, and where its segments are in it."""
        if self._light:
            data, first, placed = light_intake(rows), 0, []
            for one in segments:
                placed.append(
                    PlacedSegment(
                        one.topic_id,
                        one.partition,
                        0,
                        first,
                        one.rows,
                        one.raw_bytes,
                        one.accept_max_us,
                        one.stamp,
                    )
                )
                first += one.rows
            return data, hashlib.sha256(data).digest(), placed
        table = pa.Table.from_pylist(
            [
                {
                    "topic": "any",
                    "partition": 0,
                    "value": value,
                    "headers": [],
                    "event_timestamp": 0,
                    "accept_timestamp": accept_us,
                    "batch": number,
                }
                for number, (value, accept_us) in enumerate(rows)
            ],
            schema=INTAKE_SCHEMA,
        )
        given = [
            SegmentRows(one.topic_id, one.partition, one.rows, one.raw_bytes, one.accept_max_us, one.stamp)
            for one in segments
        ]
        written = write_intake_file(table, given, 1 << 20)
        return written.data, written.footer_sha256, written.segments
