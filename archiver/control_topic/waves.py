"""What is published together, and what an event looks like in the topic: pure.

A *wave* is a set of events that may be on their way at the same time: one per table at most, so that no fault
of broker or client can bring two events of one table into the wrong order. Events of a round as a whole
(START_COMMIT, DATA_COMPLETE, COMMIT_COMPLETE) are waves of their own: whoever sees COMMIT_COMPLETE finds
everything of that round in the topic already.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from archiver.events import codec
from archiver.events.types import CommitComplete, CommitToTable
from archiver.ledger.event_reader import LedgerEvent
from archiver.runtime.rfc3339 import format_time

EVENTS_MAX = 100
"""Of a wave."""
BYTES_MAX = 16 * 2**20
"""Of a wave that has more than one event."""


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A record of the control topic."""

    key: bytes
    """Equal for the events of one table; those of whole rounds have their own."""
    value: bytes
    headers: tuple[tuple[str, bytes], ...]
    what: str
    """For messages."""


def waves(
    events: Iterable[LedgerEvent], events_max: int = EVENTS_MAX, bytes_max: int = BYTES_MAX
) -> Iterator[list[LedgerEvent]]:
    """The events in their order, cut into waves."""
    wave: list[LedgerEvent] = []
    tables: set[bytes] = set()
    size = 0
    for event in events:
        alone = not event.topic_id
        if wave and (
            alone or event.topic_id in tables or len(wave) >= events_max or size + len(event.data) > bytes_max
        ):
            yield wave
            wave, tables, size = [], set(), 0
        wave.append(event)
        tables.add(event.topic_id)
        size += len(event.data)
        if alone:
            yield wave
            wave, tables, size = [], set(), 0
    if wave:
        yield wave


def record_of(cluster_id: str, event: LedgerEvent) -> TopicRecord:
    """The event as a record. Raises `Corrupted` if a commit's event cannot be read."""
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
    """What a trigger waits for, so that it need not read Avro."""
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
