"""Requests and responses of the Kafka protocol that the listener serves."""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any, Final

from kio.index import load_request_schema, load_response_schema

from intake.kafka_messages import Cursor, Malformed, Output, Read, Write, codec

ELEMENTS_MAX: Final = 500_000
"""Most array elements in one request. An element of one byte takes a hundred in memory."""
LOOP_ELEMENTS_MAX: Final = 20_000
"""Most array elements of a request whose elements are handled in the listener's loop (`IN_LOOP`). A Produce
request of 1 MiB, the default of clients, has room for 15,000."""
CLIENT_ID_MAX: Final = 255
"""Most characters of a client id that are kept; the rest is cut."""


class ApiKey(enum.IntEnum):
    """The APIs that the listener serves, by Kafka's numbers."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    INCREMENTAL_ALTER_CONFIGS = 44
    OFFSET_DELETE = 47
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69


VERSIONS: Final[Mapping[ApiKey, tuple[int, int]]] = {
    ApiKey.PRODUCE: (3, 11),
    ApiKey.FETCH: (4, 12),
    ApiKey.LIST_OFFSETS: (1, 8),
    ApiKey.METADATA: (1, 12),
    # Later versions of these two have ids of topics instead of names.
    ApiKey.OFFSET_COMMIT: (2, 9),
    ApiKey.OFFSET_FETCH: (1, 9),
    ApiKey.FIND_COORDINATOR: (0, 4),
    ApiKey.JOIN_GROUP: (0, 9),
    ApiKey.HEARTBEAT: (0, 4),
    ApiKey.LEAVE_GROUP: (0, 5),
    ApiKey.SYNC_GROUP: (0, 5),
    ApiKey.DESCRIBE_GROUPS: (0, 5),
    ApiKey.LIST_GROUPS: (0, 5),
    # Version 0 is answered with an error. librdkafka up to 2.0 uses version 1, but only if 0 is offered too.
    ApiKey.SASL_HANDSHAKE: (0, 1),
    ApiKey.API_VERSIONS: (0, 4),
    ApiKey.CREATE_TOPICS: (2, 7),
    ApiKey.DELETE_TOPICS: (1, 6),
    ApiKey.DELETE_RECORDS: (0, 2),
    ApiKey.INIT_PRODUCER_ID: (0, 4),
    # Later versions are for brokers, and for clients whose Produce adds partitions (KIP-890).
    ApiKey.ADD_PARTITIONS_TO_TXN: (0, 3),
    ApiKey.ADD_OFFSETS_TO_TXN: (0, 3),
    ApiKey.END_TXN: (0, 4),
    # Version 2 states that the transaction has an epoch of its own (KIP-890).
    ApiKey.WRITE_TXN_MARKERS: (1, 1),
    ApiKey.TXN_OFFSET_COMMIT: (0, 3),
    ApiKey.DESCRIBE_CONFIGS: (1, 4),
    ApiKey.ALTER_CONFIGS: (0, 2),
    ApiKey.SASL_AUTHENTICATE: (0, 2),
    ApiKey.CREATE_PARTITIONS: (0, 3),
    ApiKey.DELETE_GROUPS: (0, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (0, 1),
    ApiKey.OFFSET_DELETE: (0, 0),
    ApiKey.DESCRIBE_CLUSTER: (0, 1),
    ApiKey.DESCRIBE_PRODUCERS: (0, 0),
    ApiKey.DESCRIBE_TRANSACTIONS: (0, 0),
    ApiKey.LIST_TRANSACTIONS: (0, 1),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: (0, 1),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (0, 1),
}
"""The lowest and the highest version of each API."""
IN_LOOP: Final = frozenset(
    {
        # Its partitions are queued in the order of the requests.
        ApiKey.PRODUCE,
        # Groups in memory belong to the loop.
        ApiKey.FIND_COORDINATOR,
        ApiKey.JOIN_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.LEAVE_GROUP,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.LIST_GROUPS,
        ApiKey.DELETE_GROUPS,
        ApiKey.OFFSET_DELETE,
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.WRITE_TXN_MARKERS,
        # Each element may have a larger answer.
        ApiKey.DESCRIBE_TRANSACTIONS,
    }
)


@dataclass(frozen=True, slots=True)
class KafkaRequest:
    """A request whose header is read."""

    api: ApiKey
    version: int
    correlation_id: int
    client_id: str
    body: SimpleNamespace
    """Fields by the names of kio's schema. Of an `ApiVersions` request of an unknown version, no field."""
    known: bool = True
    """False for `ApiVersions` of an unknown version, which Kafka answers instead of closing (KIP-511)."""
    elements: int = 0
    """Elements of all its arrays, and tagged fields."""
    unread: bool = False
    """Whether another process reads it; then `body` has the one field `frame`, the whole request without its
    size, until it is sent."""


_HEAD: Final = struct.Struct(">hhi")
_SIZE: Final = struct.Struct(">i")


@cache
def _codecs(
    load: Callable[[int, int], Any], api: ApiKey, version: int
) -> tuple[tuple[Read, Write], tuple[Read, Write]]:
    """Of the header and of the body; kio resolves a name for each call."""
    schema = load(api, version)
    return codec(schema.__header_schema__), codec(schema)


def _head(data: bytes | memoryview) -> tuple[ApiKey, int, int]:
    """API, version and correlation id of a request; raises `Malformed`."""
    if len(data) < _HEAD.size:
        raise Malformed("less than a request header")
    key, version, correlation_id = _HEAD.unpack_from(data)
    try:
        return ApiKey(key), version, correlation_id
    except ValueError:
        raise Malformed(f"API key {key} is not supported") from None


def unread_request(frame: bytes | memoryview, read_here: Container[ApiKey]) -> KafkaRequest | None:
    """A request for another process, which checks and reads it; None if its API is in `read_here`. Raises
    `Malformed` for an unknown API.
    """
    api, version, correlation_id = _head(frame)
    if api in read_here:
        return None
    return KafkaRequest(api, version, correlation_id, "", SimpleNamespace(frame=frame), unread=True)


def read_request(data: memoryview, elements_now: int | None = None) -> KafkaRequest:
    """Read one request, without its size. Raises `Malformed`, and `ManyElements` if it has more than
    `elements_now`.
    """
    api, version, correlation_id = _head(data)
    lowest, highest = VERSIONS[api]
    if not lowest <= version <= highest:
        if api is ApiKey.API_VERSIONS:
            return KafkaRequest(api, version, correlation_id, "", SimpleNamespace(), known=False)
        raise Malformed(
            f"version {version} of {api.name} is not supported; versions {lowest} to {highest} are"
        )
    (read_header, _), (read_body, _) = _codecs(load_request_schema, api, version)
    elements_max = LOOP_ELEMENTS_MAX if api in IN_LOOP else ELEMENTS_MAX
    cursor = Cursor(data, elements_max, elements_max if elements_now is None else elements_now)
    header = read_header(cursor)
    body = read_body(cursor)
    # Bytes after the request are ignored, as by Kafka: librdkafka writes a null array of Metadata 12 with
    # four bytes instead of one.
    client_id = (header.client_id or "")[:CLIENT_ID_MAX]
    return KafkaRequest(api, version, correlation_id, client_id, body, elements=cursor.elements)


def write_response(request: KafkaRequest, body: Mapping[str, Any]) -> list[bytes | memoryview]:
    """The response to a request in pieces, with its size in front. `body` has fields by the names of kio's
    schema; those that have a default may be left out, and names that the request's version lacks are ignored.
    A record set may be a list of its batches; large ones are not copied.
    """
    version = request.version if request.known else 0
    (_, write_header), (_, write_body) = _codecs(load_response_schema, request.api, version)
    out = Output()
    out += bytes(_SIZE.size)
    write_header(out, {"correlation_id": request.correlation_id})
    write_body(out, body)
    _SIZE.pack_into(out, 0, len(out) + sum(len(batch) for _, batch in out.batches) - _SIZE.size)
    return out.pieces()
