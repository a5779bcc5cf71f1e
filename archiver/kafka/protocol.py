"""Requests and responses of the Kafka protocol, read and written by the schemas that kio generates from
Kafka's own.

kio supplies the schemas alone. Its parser allocates what an array's length states and aborts the process when
that fails: a request of twenty bytes could end a daemon (decision 0076). Here every length is compared
with the bytes that are left before anything is made of it, and the elements of one request are bounded.

Values are plain: times are whole milliseconds, error codes are ints, and a record set is a view of the
request.
"""

from __future__ import annotations

import enum
import struct
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from datetime import datetime, timedelta
from functools import cache
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Final, Union, get_args, get_origin

from kio.index import load_request_schema, load_response_schema

ELEMENTS_MAX: Final = 500_000
"""Most array elements in one request. An element of one byte takes a hundred in memory."""
LOOP_ELEMENTS_MAX: Final = 20_000
"""Most array elements of a request whose elements are handled in the listener's loop (`IN_LOOP`). A Produce
request of 1 MiB, the default of clients, has room for 15,000."""
PIECE_BYTES_MIN: Final = 16 * 1024
"""Record batches of a response from this size on are pieces of their own. A smaller one is copied, which is
faster than a write to the socket."""
CLIENT_ID_MAX: Final = 255
"""Most characters of a client id that are kept; the rest is cut."""
_UNSIGNED_VARINT_BYTES: Final = 5


class Malformed(Exception):
    """The bytes are no request of the stated API and version."""


class ManyElements(Exception):
    """The request has more elements than the caller reads now."""


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


class _Cursor:
    """A position in the bytes of one request."""

    __slots__ = ("at", "data", "elements", "elements_max", "elements_now", "end")

    def __init__(self, data: memoryview, elements_max: int, elements_now: int) -> None:
        """`elements_max` is what a request may have, `elements_now` what the caller reads now."""
        self.data = data
        self.at = 0
        self.end = len(data)
        self.elements = 0
        self.elements_max = elements_max
        self.elements_now = elements_now

    def count(self, elements: int) -> None:
        """Count elements before they are read."""
        self.elements += elements
        if self.elements > self.elements_max:
            raise Malformed(f"more than {self.elements_max} elements")
        if self.elements > self.elements_now:
            raise ManyElements

    def take(self, count: int) -> memoryview:
        """The next bytes."""
        at = self.at
        if count > self.end - at:
            raise Malformed(f"a field of {count} bytes where {self.end - at} are left")
        self.at = at + count
        return self.data[at : at + count]

    def number(self, form: struct.Struct) -> Any:
        """The next number."""
        if form.size > self.end - self.at:
            raise Malformed("the request ends inside a number")
        (value,) = form.unpack_from(self.data, self.at)
        self.at += form.size
        return value

    def varint(self) -> int:
        """The next unsigned varint."""
        value = 0
        for place in range(_UNSIGNED_VARINT_BYTES):
            if self.at == self.end:
                raise Malformed("the request ends inside a varint")
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                return value
        raise Malformed("a varint of more than 5 bytes")


class _Output(bytearray):
    """The bytes of one response, without its large record batches."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[tuple[int, bytes]] = []
        """Each with its place: the number of these bytes before it."""

    def pieces(self) -> list[bytes | memoryview]:
        """All bytes of the response, in order."""
        rest, start = memoryview(self), 0
        found: list[bytes | memoryview] = []
        for place, batch in self.batches:
            found += [rest[start:place], batch] if place > start else [batch]
            start = place
        return [*found, rest[start:]] if start < len(rest) else found


_Read = Callable[[_Cursor], Any]
_Write = Callable[[_Output, Any], None]

_INT8, _INT16, _INT32, _INT64 = (struct.Struct(form) for form in (">b", ">h", ">i", ">q"))
_UINT16, _FLOAT64 = struct.Struct(">H"), struct.Struct(">d")
_NUMBERS: Final[Mapping[str, struct.Struct]] = {
    "int8": _INT8,
    "int16": _INT16,
    "int32": _INT32,
    "int64": _INT64,
    "uint16": _UINT16,
    "float64": _FLOAT64,
    "error_code": _INT16,
    "timedelta_i32": _INT32,
    "timedelta_i64": _INT64,
    "datetime_i64": _INT64,
}


def _write_varint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)


def _number(form: struct.Struct) -> tuple[_Read, _Write]:
    def write(out: _Output, value: int) -> None:
        out += form.pack(value)

    return (lambda cursor: cursor.number(form)), write


def _boolean() -> tuple[_Read, _Write]:
    return (lambda cursor: cursor.number(_INT8) != 0), (lambda out, value: out.append(1 if value else 0))


def _uuid() -> tuple[_Read, _Write]:
    def write(out: _Output, value: uuid.UUID | None) -> None:
        out += bytes(16) if value is None else value.bytes

    return (lambda cursor: uuid.UUID(bytes=bytes(cursor.take(16)))), write


def _length(form: struct.Struct, *, flexible: bool) -> tuple[_Read, _Write]:
    """A length, -1 for null. Flexible versions write it as a varint of one more."""
    if not flexible:
        return _number(form)

    def write(out: _Output, value: int) -> None:
        _write_varint(out, value + 1)

    return (lambda cursor: cursor.varint() - 1), write


def _content(kind: str, *, flexible: bool, nullable: bool) -> tuple[_Read, _Write]:
    """Text, bytes or a record set."""
    text = kind == "string"
    read_length, write_length = _length(_INT16 if text else _INT32, flexible=flexible)

    def read(cursor: _Cursor) -> str | memoryview | None:
        length = read_length(cursor)
        if length < 0:
            if length == -1 and nullable:
                return None
            raise Malformed(f"a {kind} of length {length}")
        found = cursor.take(length)
        if not text:
            return found
        try:
            return str(found, "utf-8")
        except UnicodeDecodeError as error:
            raise Malformed(f"text that is not UTF-8: {error.reason}") from error

    def write(out: _Output, value: str | bytes | Sequence[bytes] | None) -> None:
        if value is None:
            write_length(out, -1)
            return
        if isinstance(value, list):
            write_length(out, sum(map(len, value)))
            for batch in value:
                if len(batch) >= PIECE_BYTES_MIN:
                    out.batches.append((len(out), batch))
                else:
                    out += batch
            return
        if isinstance(value, str):
            value = value.encode()
        write_length(out, len(value))
        out += value  # type: ignore[arg-type]

    return read, write


def _array(item: tuple[_Read, _Write], *, flexible: bool, nullable: bool) -> tuple[_Read, _Write]:
    read_item, write_item = item
    read_length, write_length = _length(_INT32, flexible=flexible)

    def read(cursor: _Cursor) -> list[Any] | None:
        length = read_length(cursor)
        if length < 0:
            if length == -1 and nullable:
                return None
            raise Malformed(f"an array of length {length}")
        # Every element takes at least a byte, so a length beyond the bytes left is false.
        if length > cursor.end - cursor.at:
            raise Malformed(f"an array of {length} elements where {cursor.end - cursor.at} bytes are left")
        cursor.count(length)
        return [read_item(cursor) for _ in range(length)]

    def write(out: _Output, value: Sequence[Any] | None) -> None:
        if value is None:
            write_length(out, -1)
            return
        write_length(out, len(value))
        for one in value:
            write_item(out, one)

    return read, write


def _nullable_struct(item: tuple[_Read, _Write]) -> tuple[_Read, _Write]:
    # A struct that may be null has a byte before it: -1 for null, 1 else (KIP-893).
    def read(cursor: _Cursor) -> Any:
        return None if cursor.number(_INT8) < 0 else item[0](cursor)

    def write(out: _Output, value: Any) -> None:
        out += _INT8.pack(-1 if value is None else 1)
        if value is not None:
            item[1](out, value)

    return read, write


@dataclass(frozen=True, slots=True)
class _Member:
    """One field of a message."""

    name: str
    tag: int | None
    read: _Read
    write: _Write
    default: Any
    """Value of a field that a response leaves out; `MISSING` if it must not."""


def _plain(value: Any) -> Any:
    """A default of kio as the plain value that this module uses."""
    if isinstance(value, timedelta):
        return round(value.total_seconds() * 1000)
    if isinstance(value, datetime):
        return round(value.timestamp() * 1000)
    if is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    return value


_ZERO: Final[Mapping[str, Any]] = {"bool": False, "string": "", "bytes": b"", "uuid": None, "float64": 0.0}


def _member(field: Field[Any], *, flexible: bool, in_header: bool) -> _Member:
    kind = field.metadata.get("kafka_type", "")
    tag = field.metadata.get("tag")
    declared = field.type
    # A tagged field is left out where it has no value, so its content is never null.
    nullable = False
    if get_origin(declared) in (UnionType, Union):
        nullable = tag is None
        (declared,) = (one for one in get_args(declared) if one is not NoneType)
    is_array = get_origin(declared) is tuple
    element: Any = get_args(declared)[0] if is_array else declared
    if is_dataclass(element):
        schema: Any = element
        item = _codec(schema)
        if not is_array and nullable:
            item = _nullable_struct(item)
    elif kind in _NUMBERS:
        item = _number(_NUMBERS[kind])
    elif kind == "bool":
        item = _boolean()
    elif kind == "uuid":
        item = _uuid()
    else:
        # The client id keeps its old form in every version (KIP-511).
        flexible_text = flexible and not (in_header and field.name == "client_id")
        item = _content(kind, flexible=flexible_text, nullable=nullable and not is_array)
    if is_array:
        item = _array(item, flexible=flexible, nullable=nullable)
    default = _plain(field.default) if field.default is not MISSING else MISSING
    if default is None and kind == "datetime_i64":
        # No time.
        default = -1
    if kind.startswith("timedelta") and default is MISSING:
        default = 0
    if tag is not None and default is MISSING:
        default = () if is_array else _ZERO.get(kind, 0)
    return _Member(field.name, tag, *item, default)


@cache
def _codec(schema: Any) -> tuple[_Read, _Write]:
    """Reader and writer of one struct of a schema."""
    flexible = bool(schema.__flexible__)
    in_header = schema.__name__ == "RequestHeader"
    members = [_member(field, flexible=flexible, in_header=in_header) for field in fields(schema)]
    plain = [one for one in members if one.tag is None]
    tagged = {one.tag: one for one in sorted(members, key=lambda one: one.tag or 0) if one.tag is not None}

    def read(cursor: _Cursor) -> SimpleNamespace:
        message = SimpleNamespace(**{one.name: one.read(cursor) for one in plain})
        if flexible:
            for one in tagged.values():
                setattr(message, one.name, one.default)
            _read_tags(cursor, tagged, message)
        return message

    def write(out: _Output, message: Mapping[str, Any]) -> None:
        for one in plain:
            value = message.get(one.name, one.default)
            if value is MISSING:
                raise KeyError(f"{schema.__name__} needs {one.name}")
            one.write(out, value)
        if flexible:
            found = [
                (tag, one) for tag, one in tagged.items() if message.get(one.name, one.default) != one.default
            ]
            _write_varint(out, len(found))
            for tag, one in found:
                content = _Output()
                one.write(content, message[one.name])
                _write_varint(out, tag)
                _write_varint(out, len(content))
                out += content

    return read, write


def _read_tags(cursor: _Cursor, tagged: Mapping[int, _Member], message: SimpleNamespace) -> None:
    count = cursor.varint()
    # A tag takes at least two bytes.
    if 2 * count > cursor.end - cursor.at:
        raise Malformed(f"{count} tagged fields where {cursor.end - cursor.at} bytes are left")
    cursor.count(count)
    before = -1
    for _ in range(count):
        tag, size = cursor.varint(), cursor.varint()
        if tag <= before:
            raise Malformed("tagged fields are not in ascending order")
        before = tag
        content = cursor.take(size)
        # Unknown tags are skipped: newer clients may send them in any flexible version.
        if tag in tagged:
            inner = _Cursor(content, cursor.elements_max, cursor.elements_now)
            inner.elements = cursor.elements
            setattr(message, tagged[tag].name, tagged[tag].read(inner))
            cursor.elements = inner.elements
            if inner.at != inner.end:
                raise Malformed(f"tagged field {tag} has {inner.end - inner.at} bytes too many")


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


_HEAD: Final = struct.Struct(">hhi")


@cache
def _codecs(
    load: Callable[[int, int], Any], api: ApiKey, version: int
) -> tuple[tuple[_Read, _Write], tuple[_Read, _Write]]:
    """Of the header and of the body; kio resolves a name for each call."""
    schema = load(api, version)
    return _codec(schema.__header_schema__), _codec(schema)


def read_request(data: memoryview, elements_now: int | None = None) -> KafkaRequest:
    """Read one request, without its size. Raises `Malformed`, and `ManyElements` if it has more than
    `elements_now`.
    """
    if len(data) < _HEAD.size:
        raise Malformed("less than a request header")
    key, version, correlation_id = _HEAD.unpack_from(data)
    try:
        api = ApiKey(key)
    except ValueError:
        raise Malformed(f"API key {key} is not supported") from None
    lowest, highest = VERSIONS[api]
    if not lowest <= version <= highest:
        if api is ApiKey.API_VERSIONS:
            return KafkaRequest(api, version, correlation_id, "", SimpleNamespace(), known=False)
        raise Malformed(
            f"version {version} of {api.name} is not supported; versions {lowest} to {highest} are"
        )
    (read_header, _), (read_body, _) = _codecs(load_request_schema, api, version)
    elements_max = LOOP_ELEMENTS_MAX if api in IN_LOOP else ELEMENTS_MAX
    cursor = _Cursor(data, elements_max, elements_max if elements_now is None else elements_now)
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
    out = _Output()
    out += bytes(_INT32.size)
    write_header(out, {"correlation_id": request.correlation_id})
    write_body(out, body)
    _INT32.pack_into(out, 0, len(out) + sum(len(batch) for _, batch in out.batches) - _INT32.size)
    return out.pieces()
