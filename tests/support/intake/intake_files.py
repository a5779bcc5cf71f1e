"""Intake made by hand: files with any accept times, entries folded as the product folds them.

The writer of the product takes its times from a clock; tests of refinement need clocks that step back, and
files that are damaged. Transactional producers number their records as the product's do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from archiver.objects.paths import intake_key
from archiver.objects.store import ObjectStore
from archiver.proto import intake_log_pb2 as pb
from archiver.refine.plan import Plan, plan_partition
from archiver.runtime.ids import TopicId
from intake.format import INTAKE_SCHEMA, SegmentRows, write_intake_file
from intake.log.backlog import Backlog, read_window
from intake.log.entries import batch_entry
from intake.log.fold import Applied, IntakeFold
from intake.producers import Stamp

Opened = tuple[int, int]
"""A producer's id and epoch."""
HOUR_US = 3600 * 1_000_000


@dataclass(frozen=True)
class Row:
    """One record of an intake file."""

    accept_us: int
    value: bytes | None = b"v"
    key: bytes | None = b"k"
    headers: tuple[tuple[str, bytes | None], ...] = ()
    event_us: int = 0
    batch: int = 0

    @property
    def raw_bytes(self) -> int:
        """Key, value, header names and values."""
        pairs = sum(len(name.encode()) + len(value or b"") for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + pairs


class Intake:
    """A growing intake log over a store."""

    def __init__(self, objects: ObjectStore) -> None:
        self.objects = objects
        self.fold = IntakeFold()
        self.keys: list[str] = []
        self._names: dict[TopicId, str] = {}
        self._sequences: dict[tuple[Opened, tuple[TopicId, int]], int] = {}

    @property
    def backlog(self) -> Backlog:
        """What readers see of it."""
        return Backlog(self.fold)

    def producer(self, transactional_id: str, timeout_us: int = HOUR_US) -> Opened:
        """Open a transactional producer, or open it again."""
        applied = self._apply(
            producer=pb.ProducerOpened(
                transactional_id=transactional_id, transaction_timeout_us=timeout_us, time_us=1
            ),
            version=2,
        )
        assert applied.producer is not None
        return applied.producer

    def end(self, producer: Opened, *, commit: bool) -> None:
        """Commit or abort what the producer has open."""
        ended = pb.TransactionEnded(producer_id=producer[0], epoch=producer[1], commit=commit, time_us=1)
        assert self._apply(transaction=ended, version=2).refusal is None

    def topic(self, name: str, partitions: int = 1) -> TopicId:
        """Declare a topic."""
        number = len(self._names) + 1
        topic_id = TopicId(f"{number:032x}")
        self._names[topic_id] = name
        self._apply(
            topic=pb.TopicDeclared(
                topic_id=bytes.fromhex(topic_id), name=name, partitions=partitions, created_us=1
            )
        )
        return topic_id

    def tick(self, time_us: int) -> None:
        """Nothing later has an ingest time before this."""
        self._apply(tick=pb.Tick(time_us=time_us))

    def file(
        self,
        rows: dict[tuple[TopicId, int], Sequence[Row]],
        row_group_bytes: int = 1 << 20,
        producer: Opened | None = None,
    ) -> str:
        """Store one intake file with these segments and append its entry; returns its key. With a producer
        they are its transaction's."""
        order = sorted(rows, key=lambda tp: (self._names[tp[0]], tp[1]))
        table = pa.Table.from_pylist(
            [self._cells(tp, row) for tp in order for row in rows[tp]], schema=INTAKE_SCHEMA
        )
        return self.table(
            table,
            [
                (tp, len(rows[tp]), sum(r.raw_bytes for r in rows[tp]), max(r.accept_us for r in rows[tp]))
                for tp in order
            ],
            row_group_bytes,
            producer,
        )

    def table(
        self,
        table: pa.Table,
        runs: Sequence[tuple[tuple[TopicId, int], int, int, int]],
        row_group_bytes: int = 1 << 20,
        producer: Opened | None = None,
    ) -> str:
        """As `file`, from columns; each run is (topic partition, rows, raw bytes, newest accept time)."""
        segments = [
            SegmentRows(
                *tp, count, raw_bytes, newest, None if producer is None else self._stamp(producer, tp, count)
            )
            for tp, count, raw_bytes, newest in runs
        ]
        written = write_intake_file(table, segments, row_group_bytes)
        number = len(self.keys)
        key = intake_key(1_700_000_000_000_000 + number, f"{number:026d}")
        self.objects.create(key, written.data)
        self.keys.append(key)
        entry = pb.IntakeFile(key=key, size=len(written.data), footer_sha256=written.footer_sha256)
        for one in written.segments:
            if not entry.topics or entry.topics[-1].topic_id.hex() != one.topic_id:
                entry.topics.add(topic_id=bytes.fromhex(one.topic_id))
            entry.topics[-1].segments.add(
                partition=one.partition,
                row_group=one.row_group,
                first_row=one.first_row,
                rows=one.rows,
                raw_bytes=one.raw_bytes,
                accept_max_us=one.accept_max_us,
                producer=batch_entry(one.stamp),
            )
        applied = self._apply(file=entry, version=2 if producer else 1)
        assert all(landed.segment is not None for landed in applied.landed)
        return key

    def _stamp(self, producer: Opened, tp: tuple[TopicId, int], count: int) -> Stamp:
        sequence = self._sequences.get((producer, tp), 0)
        self._sequences[producer, tp] = sequence + count
        return Stamp(*producer, sequence, transactional=True)

    def plans(
        self,
        topic_id: TopicId,
        partition: int = 0,
        *,
        epoch: int = 1,
        start: int = 0,
        max_bytes: int = 1 << 40,
    ) -> list[Plan]:
        """Plans for everything of the partition from `start` on."""
        tp = (topic_id, partition)
        stable = self.fold.stable_offset(tp)
        window = read_window(self.backlog, tp, start, stable, 1 << 62)
        return plan_partition(
            tp, self._names[topic_id], window.segments, start, stable, epoch, max_bytes, window.gaps
        )

    def _cells(self, tp: tuple[TopicId, int], row: Row) -> dict[str, object]:
        return {
            "topic": self._names[tp[0]],
            "partition": tp[1],
            "key": row.key,
            "value": row.value,
            "headers": [{"key": name, "value": value} for name, value in row.headers],
            "event_timestamp": row.event_us,
            "accept_timestamp": row.accept_us,
            "batch": row.batch,
        }

    def _apply(self, version: int = 1, **body: object) -> Applied:
        index = self.fold.next_index
        entry = pb.IntakeEntry(format=version, id=index.to_bytes(16, "big"), **body)  # type: ignore[arg-type]
        return self.fold.apply(index, entry.SerializeToString())
