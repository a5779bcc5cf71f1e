"""A transactional producer by hand: real intake files, and the entries that a producer appends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from archiver.app.application import Application
from archiver.objects.paths import intake_key
from archiver.runtime.clock import Clock
from intake.format import INTAKE_SCHEMA, SegmentRows, write_intake_file
from intake.log.fold import Landed
from intake.producers import Refusal, Stamp

Values = Mapping[tuple[str, int], Sequence[bytes | None]]
"""(topic, partition) → values."""


class Transactional:
    """One transactional producer; the topics exist already, and every call is one entry of the log."""

    def __init__(
        self, application: Application, clock: Clock, transactional_id: str, timeout_s: float = 3600.0
    ) -> None:
        self.application = application
        """Through which it reaches log and store; another one may take over."""
        self._clock = clock
        self.transactional_id = transactional_id
        self.producer_id, self.epoch = application.sequencer.open_producer(
            transactional_id, round(timeout_s * 1e6)
        )
        self._sequences: dict[tuple[str, int], int] = {}
        self._files = 0

    def send(self, values: Values) -> dict[tuple[str, int], int]:
        """Put them into the open transaction, or begin one; the first offset in each partition."""
        return {
            place: landed.runs[0][0]
            for place, landed in zip(sorted(values), self.try_send(values), strict=True)
        }

    def try_send(self, values: Values) -> Sequence[Landed]:
        """As `send`, by topic and partition, with any outcome."""
        now_us = self._clock.now_us()
        rows: list[dict[str, object]] = []
        segments: list[SegmentRows] = []
        for topic, partition in sorted(values):
            sent = values[topic, partition]
            sequence = self._sequences.get((topic, partition), 0)
            self._sequences[topic, partition] = sequence + len(sent)
            stamp = Stamp(self.producer_id, self.epoch, sequence, transactional=True)
            raw_bytes = sum(len(value or b"") for value in sent)
            topic_id = self.application.topic(topic).topic_id
            segments.append(SegmentRows(topic_id, partition, len(sent), raw_bytes, now_us, stamp))
            rows += [
                {
                    "topic": topic,
                    "partition": partition,
                    "value": value,
                    "headers": [],
                    "event_timestamp": now_us,
                    "accept_timestamp": now_us,
                    "batch": number,
                }
                for number, value in enumerate(sent)
            ]
        written = write_intake_file(pa.Table.from_pylist(rows, schema=INTAKE_SCHEMA), segments, 1 << 20)
        self._files += 1
        key = intake_key(now_us, f"{self.producer_id:016d}{self.epoch:05d}{self._files:05d}")
        self.application.objects.create(key, written.data)
        return self.application.sequencer.append_file(
            key, len(written.data), written.footer_sha256, written.segments
        )

    def commit(self) -> Refusal | None:
        """End the transaction; None, or why the marker touched nothing."""
        return self.application.sequencer.end_transaction(self.producer_id, self.epoch, commit=True)

    def abort(self) -> Refusal | None:
        """End it, so that its offsets become gaps."""
        return self.application.sequencer.end_transaction(self.producer_id, self.epoch, commit=False)
