"""Group events into waves, and build their Kafka records (pure); the Protocol of their destination.

A *wave* is a set of events that may be in flight at the same time. It has at most one event per table, so no
fault of broker or client can reorder the events of one table. Events of a whole round (START_COMMIT,
DATA_COMPLETE, COMMIT_COMPLETE) are waves of their own: a reader of COMMIT_COMPLETE finds all other events of
that round in the topic.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from archiver.events import codec
from archiver.events.types import CommitComplete, CommitToTable
from archiver.ledger.event_reader import LedgerEvent
from archiver.runtime.rfc3339 import format_time


class Destination(Protocol):
    """A connection to the topic. After an error the publisher closes it and opens another one."""

    def topic_id(self, stopping: Callable[[], bool]) -> bytes:
        """The topic's id in its cluster; empty if the cluster has no topic ids.

        Raises `Halt` if the topic is missing or access is denied. Raises `RetryLater` if the cluster does not
        answer, or the process stops before it does.
        """

    def send(self, records: Sequence[TopicRecord], stopping: Callable[[], bool]) -> None:
        """Send the records and return when all in-sync replicas acknowledged each of them.

        Raises `Halt` if a record is refused permanently, `RetryLater` or `OutcomeUnknown` otherwise. After an
        error any of the records may be in the topic, also repeatedly, now or later.
        """

    def close(self) -> None:
        """Close the connection and send no further unacknowledged record."""


EVENTS_MAX = 100
"""Largest number of events in a wave."""
BYTES_MAX = 16 * 2**20
"""Largest size of a wave with more than one event."""


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A record of the control topic."""

    key: bytes
    """Equal for all events of one table; events of whole rounds have another key."""
    value: bytes
    headers: tuple[tuple[str, bytes], ...]
    what: str
    """Description for messages."""


def waves(
    events: Iterable[LedgerEvent], events_max: int = EVENTS_MAX, bytes_max: int = BYTES_MAX
) -> Iterator[list[LedgerEvent]]:
    """Split the events into waves, in order."""
    wave: list[LedgerEvent] = []
    tables: set[bytes] = set()
    size = 0
    for event in events:
        # Events of whole rounds belong to no topic.
        alone = not event.topic_id
        if wave and (
            # One event per table on its way: behind a record that failed, the client would send the next.
            alone or event.topic_id in tables or len(wave) >= events_max or size + len(event.data) > bytes_max
        ):
            yield wave
            wave, tables, size = [], set(), 0
        wave.append(event)
        tables.add(event.topic_id)
        size += len(event.data)
        # Sent by itself: a reader of COMMIT_COMPLETE finds everything before it in the topic.
        if alone:
            yield wave
            wave, tables, size = [], set(), 0
    if wave:
        yield wave


def record_of(cluster_id: str, event: LedgerEvent) -> TopicRecord:
    """The event as a record. Raises `Corrupted` if a commit event cannot be decoded."""
    headers = {
        "archiver.id": event.entry_id.hex(),
        "archiver.cluster-id": cluster_id,
        "archiver.index": str(event.index),
        "archiver.type": event.kind,
        "archiver.commit-id": str(uuid.UUID(bytes=event.commit_id)),
    }
    if event.topic_id:
        headers["archiver.topic-id"] = event.topic_id.hex()
    headers |= _of_commit(event)
    key = f"{cluster_id}/{event.topic_id.hex()}" if event.topic_id else cluster_id
    what = f"entry {event.index} of the control log ({event.kind}, {len(event.data)} bytes)"
    return TopicRecord(
        key.encode(), event.data, tuple((name, value.encode()) for name, value in headers.items()), what
    )


def _of_commit(event: LedgerEvent) -> dict[str, str]:
    """Headers of commit events, so that triggers need not decode Avro."""
    if event.kind not in ("COMMIT_TO_TABLE", "COMMIT_COMPLETE"):
        return {}
    found: dict[str, str] = {}
    payload = codec.decode(event.data).payload
    if isinstance(payload, CommitToTable):
        found["archiver.table"] = ".".join((*payload.table.namespace, payload.table.name))
        if payload.snapshot_id is not None:
            found["archiver.snapshot-id"] = str(payload.snapshot_id)
    if isinstance(payload, CommitToTable | CommitComplete) and payload.valid_through_us is not None:
        found["archiver.valid-through"] = format_time(payload.valid_through_us)
    return found
