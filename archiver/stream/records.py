"""A record as a consumer gets it back, alone or in Arrow batches.

Owns the columns of a stream batch. Both forms contain the same, and only `source` shows whether a record came
from an archive or from intake.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from archiver.runtime.ids import TopicId
from intake.records import HEADERS, TIMESTAMP

Source = Literal["archive", "intake"]

_FIELDS: list[pa.Field[Any]] = [
    pa.field("offset", pa.int64(), nullable=False),
    pa.field("event_timestamp", TIMESTAMP),
    pa.field("ingest_timestamp", TIMESTAMP, nullable=False),
    pa.field("batch_start", pa.int64()),
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("headers", HEADERS, nullable=False),
]
STREAM_SCHEMA = pa.schema(_FIELDS)
"""Columns of a batch, in this order."""


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """One record with its place; key and value are the producer's bytes."""

    topic: str
    partition: int
    offset: int
    timestamp_us: int | None
    """Event time, microseconds since 1970 UTC."""
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    ingest_us: int
    """Never less than that of the record before."""
    batch_start: int | None
    """First offset of the producer's batch."""
    source: Source


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """Consecutive records of one topic partition from one place."""

    topic: str
    topic_id: TopicId
    partition: int
    source: Source
    records: pa.RecordBatch
    """As `STREAM_SCHEMA`, offsets ascending."""

    def __iter__(self) -> Iterator[StreamRecord]:
        """The records one by one."""
        batch = self.records
        times = (
            # As microseconds, because Python's datetime ends with the year 9999.
            batch.column(name).cast(pa.int64()).to_pylist()
            for name in ("event_timestamp", "ingest_timestamp")
        )
        others = (
            batch.column(name).to_pylist() for name in ("offset", "batch_start", "key", "value", "headers")
        )
        for timestamp_us, ingest_us, offset, batch_start, key, value, headers in zip(
            *times, *others, strict=True
        ):
            yield StreamRecord(
                topic=self.topic,
                partition=self.partition,
                offset=offset,
                timestamp_us=timestamp_us,
                key=key,
                value=value,
                headers=tuple((header["key"], header["value"]) for header in headers),
                ingest_us=ingest_us,
                batch_start=batch_start,
                source=self.source,
            )
