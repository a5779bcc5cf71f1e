"""A consumer without a socket: reads a `FetchReader` as Kafka's clients read a broker, and decodes by another
library.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from aiokafka.record.memory_records import MemoryRecords

from archiver.kafka.fetch import Fetched, FetchLimits, FetchReader
from archiver.kafka.log_view import LogView
from archiver.runtime.ids import TopicId
from archiver.stream.records import StreamRecord
from tests.support.builders.driver import Driver

LARGE = 2**30

Seen = tuple[int, int | None, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
"""Offset, milliseconds, key, value, headers."""


def log_view(driver: Driver) -> LogView:
    """The logs as that process knows them, read once."""
    application = driver.application
    view = LogView(
        lambda: application.sequencer.view,
        application.backlog,
        application.ledger,
        driver.clock,
        refresh_interval_s=0.0,
        ledger_interval_s=0.0,
    )
    view.refresh()
    return view


def fetch_reader(
    driver: Driver, limits: FetchLimits | None = None, log: LogView | None = None
) -> FetchReader:
    """A reader over that process's application."""
    application = driver.application
    return FetchReader(
        log or log_view(driver),
        application.objects,
        application.stream_of,
        application.cluster.cluster_id,
        driver.clock,
        limits or FetchLimits(read_s=3600.0),
    )


def batches_of(fetched: Fetched) -> list[Any]:
    """The batches of a response, each with the checksum that it states."""
    records = MemoryRecords(b"".join(fetched.batches))
    found = []
    while records.has_next():
        batch = records.next_batch()
        assert batch.validate_crc()
        found.append(batch)
    assert len(found) == len(fetched.batches)
    return found


def records_of(batch: Any) -> Iterator[Seen]:
    """The records of a batch."""
    for record in batch:
        headers = tuple((name, value) for name, value in record.headers)
        yield record.offset, record.timestamp, record.key, record.value, headers


@dataclass
class Client:
    """A consumer of one partition."""

    reader: FetchReader
    topic_id: TopicId
    partition: int = 0
    committed: bool = True
    position: int = 0
    max_bytes: int = LARGE
    seen: list[Seen] = field(default_factory=list)
    fetches: int = 0

    def fetch(self) -> int:
        """One fetch from the position; the number of records that the application gets."""
        fetched = self.reader.read(
            self.topic_id, self.partition, self.position, self.max_bytes, committed=self.committed
        )
        self.fetches += 1
        before, last = len(self.seen), self.position - 1
        for number, batch in enumerate(batches_of(fetched)):
            assert batch.next_offset - 1 > last, "batches never go back"
            # A reader inside of a batch gets it as a whole.
            assert number == 0 or batch.base_offset > last or batch.base_offset <= last < batch.next_offset
            last = batch.next_offset - 1
            if not batch.is_control_batch:
                self.seen += [one for one in records_of(batch) if one[0] >= self.position]
            self.position = batch.next_offset
        assert self.position == fetched.next_offset
        assert not fetched.batches or fetched.size - len(fetched.batches[-1]) <= self.max_bytes
        return len(self.seen) - before

    def to_end(self, fetches_max: int = 100_000) -> list[Seen]:
        """Every record up to the end; each fetch must move the position."""
        for _ in range(fetches_max):
            before = self.position
            self.fetch()
            if self.position == before:
                return self.seen
        raise AssertionError(f"the end was not reached within {fetches_max} fetches")


def seen(record: StreamRecord) -> Seen:
    """What a client must see of a record."""
    milliseconds = None if record.timestamp_us is None else record.timestamp_us // 1000
    return record.offset, milliseconds, record.key, record.value, record.headers


def expected(driver: Driver, topic: str, partition: int = 0, *, uncommitted: bool = False) -> list[Seen]:
    """What every client must see of a partition, by the project's own stream."""
    stream = driver.application.stream()
    records = stream.read(driver.topic_id(topic), partition, uncommitted=uncommitted)
    return [seen(record) for record in records]
