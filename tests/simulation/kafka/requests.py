"""Requests of Kafka clients, as the handlers get them, and what clients make of the answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from kio.schema.errors import ErrorCode

from archiver.kafka.protocol import ApiKey
from intake.producers import Stamp
from tests.simulation.book import Sent
from tests.simulation.kafka.wire import Connection, Reply
from tests.simulation.schedule import Violation
from tests.support.kafka.record_batches import RawRecord, batch_bytes, records_bytes

KEY = b"key"
"""Of every record that a Kafka client sends. Its header is its place in its stream."""
_TRANSACTIONAL = 1 << 4
"""Kafka's flag of a batch."""
Place = tuple[str, int]
"""Topic and partition, as clients name them."""


def batch_of(records: Sequence[Sent], stamp: Stamp | None) -> bytes:
    """A record batch of a producer."""
    rows = records_bytes([RawRecord(KEY, one.value, (("n", b"%d" % one.place),)) for one in records])
    if stamp is None:
        return batch_bytes(rows)
    flags = _TRANSACTIONAL if stamp.transactional else 0
    return batch_bytes(rows, flags=flags, producer=(stamp.producer_id, stamp.epoch, stamp.sequence))


def open_producer_id(connection: Connection) -> Reply:
    """Ask for a producer id."""
    body = SimpleNamespace(transactional_id=None, transaction_timeout=60_000)
    return connection.send(ApiKey.INIT_PRODUCER_ID, 4, body, "InitProducerId")


def produce(
    connection: Connection,
    batches: Mapping[Place, bytes],
    acks: int,
    timeout_ms: int,
    transactional_id: str | None = None,
) -> Reply:
    """Send batches, at most one for each partition."""
    topics: dict[str, list[SimpleNamespace]] = {}
    for (topic, partition), data in batches.items():
        part = SimpleNamespace(index=partition, records=memoryview(data))
        topics.setdefault(topic, []).append(part)
    body = SimpleNamespace(
        transactional_id=transactional_id,
        acks=acks,
        timeout=timeout_ms,
        topic_data=[SimpleNamespace(name=name, partition_data=parts) for name, parts in topics.items()],
    )
    return connection.send(ApiKey.PRODUCE, 9, body, f"Produce {sorted(batches)}")


def produced(body: Mapping[str, Any]) -> dict[Place, tuple[ErrorCode, int]]:
    """Per partition its error code and base offset."""
    found = {
        (topic["name"], part["index"]): (ErrorCode(part["error_code"]), part["base_offset"])
        for topic in body["responses"]
        for part in topic["partition_responses"]
    }
    for place, (code, offset) in found.items():
        if (offset >= 0) != (code is ErrorCode.none):
            raise Violation(
                "an offset comes with no error and only then", f"{place}: {code.name} at {offset}"
            )
    return found


def fetch(
    connection: Connection, positions: Mapping[Place, int], wait_ms: int, bytes_max: int, *, committed: bool
) -> Reply:
    """Read from these positions on."""
    topics: dict[str, list[SimpleNamespace]] = {}
    for (topic, partition), offset in positions.items():
        part = SimpleNamespace(partition=partition, fetch_offset=offset, partition_max_bytes=bytes_max)
        topics.setdefault(topic, []).append(part)
    body = SimpleNamespace(
        session_id=0,
        isolation_level=int(committed),
        max_wait=wait_ms,
        min_bytes=1,
        max_bytes=4 * bytes_max,
        topics=[SimpleNamespace(topic=name, partitions=parts) for name, parts in topics.items()],
    )
    return connection.send(ApiKey.FETCH, 11, body, f"Fetch {sorted(positions.items())}")


def list_offsets(connection: Connection, places: Sequence[Place], time_ms: int, *, committed: bool) -> Reply:
    """Ask for the offsets at a time."""
    topics: dict[str, list[SimpleNamespace]] = {}
    for topic, partition in places:
        topics.setdefault(topic, []).append(SimpleNamespace(partition_index=partition, timestamp=time_ms))
    body = SimpleNamespace(
        isolation_level=int(committed),
        topics=[SimpleNamespace(name=name, partitions=parts) for name, parts in topics.items()],
    )
    return connection.send(ApiKey.LIST_OFFSETS, 7, body, f"ListOffsets {time_ms}")
