"""Control-topic events as bytes: `C2 01`, the length of the schema text (16 bits, big endian), the text, one
Avro datum.

Encoding writes what the Java classes write, with map entries in ascending key order. Decoding reads the
output of every release. The writer's schema is matched by field id, as in Java, and the older vocabulary
(`io.tabular`) by name; the result has the same types. Input that Java refuses is refused. Wrong bytes raise
`Corrupted`, wrong values raise `InvalidInput`, and no other error is raised; work is proportional to the
input. No other module builds or parses event bytes. The older vocabulary is written only on request (`ledger
encode`): the ledger never contains it.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from archiver.events import avro, event_fields, partitions
from archiver.events.avro import shown
from archiver.events.event_fields import (
    Field,
    Kind,
    ListOf,
    MapOf,
    PartitionTuple,
    Scalar,
    Struct,
    left_out,
    struct_of,
)
from archiver.events.partitions import UUID_FIXED, avro_name, avro_type, parse_type
from archiver.events.types import TYPE_OF_PAYLOAD, Event, EventType, PartitionField
from archiver.runtime.errors import Corrupted, InvalidInput

# --- The schema text, as Java writes it
TEXT_BYTES_MAX = 65535
"""Java stores the length of the text in 16 bits."""

TEXTS_CACHED = 64
"""Texts kept; one per table and payload type is in use."""

_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_ESCAPED = re.compile(r'["\\\x00-\x1f]')

_SCALARS: dict[str, Any] = {
    "int": "int",
    "long": "long",
    "string": "string",
    "bytes": "bytes",
    "uuid": UUID_FIXED,
    "millis": "long",
    # The order of keys is that of Java's text, because the bytes must be equal.
    "timestamp": {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True},
}


# The older releases give the same type another name.
_LEGACY_UUID = UUID_FIXED | {"name": "uuid"}


@lru_cache(maxsize=TEXTS_CACHED)
def schema_text(
    event_type: EventType,
    partition_fields: tuple[PartitionField, ...],
    table_uuid: bool,
    legacy: bool = False,
) -> bytes:
    """The schema of an event of that type, as wire bytes.

    `table_uuid` False omits that field, for readers of release 1.10; `legacy` is the older vocabulary. Raises
    `InvalidInput` for partition fields that Iceberg could not have, and for a text longer than
    `TEXT_BYTES_MAX` bytes.
    """
    builder = _Builder(partition_fields, left_out(table_uuid, legacy), legacy)
    tree = builder.kind(struct_of(event_type, legacy), "")
    text = to_wire_text(_json(tree))
    # Checked here, so that the error can name the cause: the names of partition fields.
    if len(text) > TEXT_BYTES_MAX:
        names = len(partition_fields)
        raise InvalidInput(
            f"the schema of the event takes {len(text)} bytes, {TEXT_BYTES_MAX} fit; its {names} "
            "partition fields need shorter names"
        )
    return text


class _Builder:
    """Makes the JSON tree. Named types that it already contains are referred to by name."""

    def __init__(
        self, partition_fields: Sequence[PartitionField], left_out_ids: frozenset[int], legacy: bool
    ) -> None:
        self._partition_fields = partition_fields
        self._left_out = left_out_ids
        self._scalars = _SCALARS | ({"uuid": _LEGACY_UUID} if legacy else {})
        self._known: set[str] = set()

    def kind(self, kind: Kind, namespace: str) -> Any:
        if isinstance(kind, Scalar):
            return self._maybe_fixed(self._scalars[kind.name])
        if isinstance(kind, ListOf):
            listed = {"type": "array", "items": self.kind(kind.items, namespace)}
            return listed if kind.element_id is None else listed | {"element-id": kind.element_id}
        if isinstance(kind, MapOf):
            return {"type": "array", "items": self._entry(kind), "logicalType": "map"}
        if isinstance(kind, Struct):
            fields = [one for one in kind.fields if one.field_id not in self._left_out]
            space = kind.name.rpartition(".")[0]
            field = self._legacy_field if kind.by_name else self._field
            return self._record(kind.name, namespace, lambda: [field(one, space) for one in fields])
        # The partition record differs between tables, so its fields come from the table.
        return self._record(f"{namespace}.PartitionData", namespace, self._partition)

    def _record(self, full_name: str, namespace: str, fields: Any) -> Any:
        space, _, name = full_name.rpartition(".")
        # Avro defines a name once. Java refers to it by its bare name inside its own namespace.
        if full_name in self._known:
            return name if space == namespace else full_name
        self._known.add(full_name)
        tree: dict[str, Any] = {"type": "record", "name": name}
        if space != namespace:
            tree["namespace"] = space
        tree["fields"] = fields()
        return tree

    def _field(self, field: Field, namespace: str) -> dict[str, Any]:
        kind = self.kind(field.kind, namespace)
        tree: dict[str, Any] = {"name": field.name, "type": ["null", kind] if field.optional else kind}
        if field.doc is not None:
            tree["doc"] = field.doc
        if field.optional:
            # Avro allows this default only because null is the first branch of the union.
            tree["default"] = None
        tree["field-id"] = field.field_id
        return tree

    def _legacy_field(self, field: Field, namespace: str) -> dict[str, Any]:
        kind = self.kind(field.kind, namespace)
        # Java gave every field of these schemas the id "-1", no default, and null as the second branch.
        return {"name": field.name, "type": [kind, "null"] if field.optional else kind, "field-id": "-1"}

    def _entry(self, kind: MapOf) -> Any:
        def fields() -> list[Any]:
            key = {"name": "key", "type": "int", "field-id": kind.key_id}
            return [key, {"name": "value", "type": kind.values.name, "field-id": kind.value_id}]

        # Iceberg's name of the entry record; two maps with the same ids share it.
        name = f"k{kind.key_id}_v{kind.value_id}"
        if name in self._known:
            return name
        self._known.add(name)
        return {"type": "record", "name": name, "namespace": "", "fields": fields()}

    def _partition(self) -> list[Any]:
        trees: list[Any] = []
        names: set[str] = set()
        _check_ids([one.field_id for one in self._partition_fields])
        for one in self._partition_fields:
            name = avro_name(one.name)
            # Different names may become equal when characters that Avro does not allow are replaced.
            if name in names:
                raise InvalidInput(f"two partition fields are named {name!r:.80} in avro; rename one of them")
            names.add(name)
            tree: dict[str, Any] = {
                "name": name,
                "type": ["null", self._maybe_fixed(avro_type(parse_type(one.type)))],
                "default": None,
            }
            if name != one.name:
                # Only where the Avro name differs, so that a reader finds the original.
                tree["iceberg-field-name"] = one.name
            trees.append(tree | {"field-id": one.field_id})
        return trees

    def _maybe_fixed(self, tree: Any) -> Any:
        if not isinstance(tree, dict) or tree["type"] != "fixed":
            return tree
        # A named type is defined once, and then referred to by its name.
        name = tree["name"]
        if name in self._known:
            return name
        self._known.add(name)
        return tree


def _check_ids(field_ids: list[int]) -> None:
    for at, field_id in enumerate(field_ids):
        if not 0 <= field_id < 2**31 or field_id in field_ids[:at]:
            raise InvalidInput(f"the partition field id {shown(field_id)} is out of range or used twice")


def _json(tree: Any) -> str:
    """JSON in Jackson's form: no blanks, only necessary escapes."""
    # json.dumps escapes differently from Jackson, and the bytes must be equal.
    if isinstance(tree, dict):
        return "{" + ",".join(f"{_quoted(key)}:{_json(value)}" for key, value in tree.items()) + "}"
    if isinstance(tree, list):
        return "[" + ",".join(map(_json, tree)) + "]"
    if isinstance(tree, str):
        return _quoted(tree)
    if isinstance(tree, bool):
        return "true" if tree else "false"
    return "null" if tree is None else str(tree)


def _quoted(text: str) -> str:
    # Jackson writes the code of a control character in upper-case hex.
    return '"' + _ESCAPED.sub(lambda found: _ESCAPES.get(found[0], f"\\u{ord(found[0]):04X}"), text) + '"'


def to_wire_text(text: str) -> bytes:
    """Java's modified UTF-8."""
    if text.isascii() and "\0" not in text:
        return text.encode("ascii")
    # Java encodes each UTF-16 unit on its own, so a surrogate pair takes six bytes, and NUL takes two.
    units = text.encode("utf-16-be", "surrogatepass")
    characters = (chr(int.from_bytes(units[at : at + 2], "big")) for at in range(0, len(units), 2))
    return b"".join(
        b"\xc0\x80" if one == "\0" else one.encode("utf-8", "surrogatepass") for one in characters
    )


def from_wire_text(data: bytes) -> str:
    """The inverse of `to_wire_text`. Raises `Corrupted` for anything that is not modified UTF-8."""
    try:
        units = data.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
        # Plain UTF-8 has four bytes for such a character, Java two surrogates of three bytes.
        if max(units, default="") > "\uffff":
            raise Corrupted(
                "the schema text of the event is not java's modified utf-8: it holds a character of "
                "four bytes"
            )
        return units.encode("utf-16-be", "surrogatepass").decode("utf-16-be")
    except UnicodeError as error:
        raise Corrupted(f"the schema text of the event is not java's modified utf-8: {error}") from error


# --- Events
MAGIC = b"\xc2\x01"
SCHEMAS_CACHED = 64
"""Parsed schemas kept, by text; the least recently used is dropped first."""

_Read = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Decoded:
    """An event, and information that only its schema has."""

    event: Event
    partition_fields: tuple[PartitionField, ...]
    """Fields of the partition tuples of its files; empty for other payloads and unpartitioned tables."""
    table_uuid: bool
    """Whether the schema has the field `table_uuid`; False for releases up to 1.10 (and for payloads without
    a table)."""
    legacy: bool
    """Whether it is of the older vocabulary. Such an event has no catalog name, and its times were
    milliseconds."""


def encode(
    event: Event,
    partition_fields: Sequence[PartitionField] = (),
    *,
    table_uuid: bool = True,
    legacy: bool = False,
) -> bytes:
    """The bytes of an event, as Java writes them.

    `partition_fields` names and types the partition tuples of its files, in order; other payloads ignore it.
    `table_uuid` False omits the uuid of the table, because readers of release 1.10 fail at it. `legacy` is
    the older vocabulary, which has neither catalog names nor the newest fields of files, and whole
    milliseconds. Raises `InvalidInput` with the path of the value that does not fit.
    """
    # The exact type: a subclass could have fields that no schema has.
    if type(event.payload) not in TYPE_OF_PAYLOAD:
        raise InvalidInput(f"{type(event.payload).__name__} is not the payload of a control event")
    fields = tuple(partition_fields)
    text = schema_text(event.type, fields, table_uuid, legacy)
    writer = _Writer(fields, event_fields.left_out(table_uuid, legacy))
    outer = event_fields.struct_of(event.type, legacy)
    datum = [
        writer.wire(one.kind, int(event.type) if one.name == "type" else getattr(event, one.attribute))
        for one in outer.fields
    ]
    return join(text, avro.write_datum(_parsed(text), datum))


def write(decoded: Decoded) -> bytes:
    """The bytes of an event, with a schema like the one it was read with. Raises `InvalidInput`."""
    return encode(
        decoded.event, decoded.partition_fields, table_uuid=decoded.table_uuid, legacy=decoded.legacy
    )


def decode(data: bytes) -> Event:
    """The event in `data`. Raises `Corrupted`."""
    return read(data).event


def read(data: bytes) -> Decoded:
    """The event in `data` and the information in its schema. Raises `Corrupted`."""
    text, datum = split(data)
    plan = _plan(text)
    values = plan.read(avro.read_datum(plan.schema, datum))
    number = values.pop("type")
    event = Event(**values)
    # The payload has decided the class; a number that contradicts it is damage.
    if number != event.type:
        raise Corrupted(
            f"the event has the type number {number}, but its payload is that of {event.type.name} "
            f"({event.type.value})"
        )
    return Decoded(event, plan.partition_fields or (), plan.table_uuid, plan.legacy)


def split(data: bytes) -> tuple[bytes, bytes]:
    """The schema text and the datum of an event, both as on the wire. Raises `Corrupted`."""
    # The magic bytes are Iceberg's, not those of Avro's single-object encoding (C3 01).
    if len(data) < 4 or data[:2] != MAGIC:
        raise Corrupted(
            f"a control event starts with c201 and a length, this one with {data[:4].hex() or 'nothing'}"
        )
    end = 4 + int.from_bytes(data[2:4], "big")
    # The length comes from the input, so it is checked before anything is sliced.
    if end > len(data):
        raise Corrupted(
            f"the control event ends inside its schema text: {end} bytes expected, {len(data)} present"
        )
    return data[4:end], data[end:]


def join(text: bytes, datum: bytes) -> bytes:
    """The inverse of `split`. Raises `InvalidInput` if the text is too long for its length field."""
    if len(text) > TEXT_BYTES_MAX:
        raise InvalidInput(
            f"a schema text of {len(text)} bytes does not fit in an event, {TEXT_BYTES_MAX} do"
        )
    return MAGIC + len(text).to_bytes(2, "big") + text + datum


@lru_cache(maxsize=SCHEMAS_CACHED)
def _parsed(text: bytes) -> avro.Schema:
    # Cached, because the events of a topic repeat a few texts.
    return avro.parse_schema(from_wire_text(text))


class _Writer:
    """Turns typed values into input of the Avro writer, field by field in table order."""

    def __init__(self, partition_fields: tuple[PartitionField, ...], left_out: frozenset[int]) -> None:
        self._partition = [(one.name, partitions.parse_type(one.type)) for one in partition_fields]
        self._left_out = left_out

    def wire(self, kind: Kind, value: Any) -> Any:
        if value is None:
            return None
        if isinstance(kind, Scalar):
            if kind.name == "millis":
                return _whole_milliseconds(value)
            # Other values pass unchanged: the Avro writer reports the wrong type.
            return value.bytes if isinstance(value, uuid.UUID) else value
        if isinstance(kind, ListOf):
            return (
                [self.wire(kind.items, item) for item in value] if isinstance(value, list | tuple) else value
            )
        if isinstance(kind, MapOf):
            return _sorted_items(value)
        if isinstance(kind, PartitionTuple):
            return self._tuple(value)
        return self._struct(kind, value)

    def _struct(self, struct: Struct, value: Any) -> list[Any]:
        expected = struct.value or struct.make
        if not isinstance(expected, type) or not isinstance(value, expected):
            raise InvalidInput(f"a {struct.short_name} expected, got {avro.shown(value)}")
        fields = [one for one in struct.fields if one.field_id not in self._left_out]
        return [self.wire(one.kind, getattr(value, one.attribute)) for one in fields]

    def _tuple(self, values: Any) -> list[Any]:
        if not isinstance(values, list | tuple) or len(values) != len(self._partition):
            names = ", ".join(name for name, _ in self._partition) or "none"
            raise InvalidInput(
                f"partition: {len(self._partition)} values expected (fields: {names}), got "
                f"{avro.shown(values)}"
            )
        return [
            partitions.to_wire(kind, value) for (_, kind), value in zip(self._partition, values, strict=True)
        ]


def _whole_milliseconds(time_us: Any) -> Any:
    # Refused, because rounding would silently change the time.
    if isinstance(time_us, int) and time_us % 1000:
        raise InvalidInput(
            f"the older vocabulary has whole milliseconds, not {avro.shown(time_us)} microseconds"
        )
    return time_us // 1000 if isinstance(time_us, int) else time_us


def _sorted_items(value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise InvalidInput(f"a map from field id expected, got {avro.shown(value)}")
    try:
        # Sorted, so that equal events give equal bytes.
        return [list(item) for item in sorted(value.items(), key=lambda item: item[0])]
    except TypeError as error:
        raise InvalidInput(f"a map from field id has keys of different types: {error}") from error


@dataclass(frozen=True, slots=True)
class _Plan:
    """The functions that read the datums of one schema text."""

    schema: avro.Schema
    read: _Read
    partition_fields: tuple[PartitionField, ...] | None
    table_uuid: bool
    legacy: bool


@lru_cache(maxsize=SCHEMAS_CACHED)
def _plan(text: bytes) -> _Plan:
    schema = _parsed(text)
    name = schema.name if isinstance(schema, avro.Record) else "no record"
    if name not in (event_fields.EVENT, event_fields.LEGACY_EVENT):
        raise Corrupted(
            f"the schema of the event describes {name!r:.200}; known are {event_fields.EVENT} and "
            f"{event_fields.LEGACY_EVENT}"
        )
    assert isinstance(schema, avro.Record)
    # The namespace of the outer record decides the vocabulary.
    legacy = name == event_fields.LEGACY_EVENT
    struct = _payload_struct(schema, legacy)
    matcher = _Matcher()
    outer = event_fields.legacy_event_struct(struct) if legacy else event_fields.event_struct(struct)
    reader = matcher.match(outer, schema)
    return _Plan(schema, reader, matcher.partition_fields, matcher.table_uuid, legacy)


def _payload_struct(schema: avro.Record, legacy: bool) -> Struct:
    """The table of the payload, found by its record name, as Java finds the class."""
    known = {
        struct.name: struct
        for struct in (event_fields.LEGACY_PAYLOADS if legacy else event_fields.PAYLOADS).values()
    }
    # The record name of the payload decides, because the type number is in the datum.
    for one in schema.fields:
        if one.name == "payload" and isinstance(one.schema, avro.Record):
            if one.schema.name in known:
                return known[one.schema.name]
            raise Corrupted(
                f"the payload of the event is {one.schema.name!r:.200}; known are {', '.join(known)}"
            )
    raise Corrupted("the schema of the event has no payload")


class _Matcher:
    """Compares a writer's schema with the tables, and builds the functions that convert its datums."""

    def __init__(self) -> None:
        self.partition_fields: tuple[PartitionField, ...] | None = None
        self.table_uuid = False

    def match(self, kind: Kind, node: avro.Schema) -> _Read:
        if isinstance(kind, Scalar):
            return _match_scalar(kind, node)
        if isinstance(kind, ListOf) and isinstance(node, avro.Array):
            item = self.match(kind.items, node.items)
            return lambda values: tuple(item(value) for value in values)
        # Avro's own maps have text keys only, so Iceberg writes a list of entries.
        if isinstance(kind, MapOf) and isinstance(node, avro.Array):
            return _match_map(kind, node)
        if isinstance(kind, PartitionTuple) and isinstance(node, avro.Record):
            return self._match_partition(node)
        if isinstance(kind, Struct) and isinstance(node, avro.Record):
            return self._match_struct(kind, node)
        raise Corrupted(
            f"the schema of the event has {avro.describe(node)} where {_described(kind)} is expected"
        )

    def _match_struct(self, struct: Struct, node: avro.Record) -> _Read:
        if node.name != struct.name:
            raise Corrupted(
                f"the schema of the event has a record {node.name!r:.200} where {struct.name} is expected"
            )
        known: dict[Any, event_fields.Field] = {
            (one.name if struct.by_name else one.field_id): one for one in struct.fields
        }
        readers: list[tuple[str, _Read]] = []
        for one in node.fields:
            key = one.name if struct.by_name else _field_id(node, one)
            field = known.pop(key, None)
            # As Java, which refuses unknown field ids. `pop` above makes a repeated field unknown too.
            if field is None:
                raise Corrupted(
                    f"{node.name} has the field {one.name!r:.200} ({key!r:.200}), which is unknown or "
                    "there twice"
                )
            # Release 1.10 has no such field, and a rewritten event must stay readable for it.
            self.table_uuid |= field.field_id == event_fields.TABLE_UUID_ID
            readers.append((field.attribute, self._match_field(field, one.schema)))
        # A missing optional field keeps the default of its Python type.
        if missing := [one.name for one in known.values() if not one.optional]:
            raise Corrupted(f"{node.name} lacks the fields {', '.join(missing)}")
        make = struct.make
        return lambda values: make(
            **{name: reader(value) for (name, reader), value in zip(readers, values, strict=True)}
        )

    def _match_field(self, field: event_fields.Field, node: avro.Schema) -> _Read:
        reader = self.match(field.kind, node.schema if isinstance(node, avro.Optional) else node)
        if field.optional:
            return lambda value: field.if_null if value is None else reader(value)

        # A writer may declare a required field as a union with null.
        def required(value: Any) -> Any:
            if value is None:
                raise Corrupted(f"the event has no {field.name}, which is required")
            return reader(value)

        return required

    def _match_partition(self, node: avro.Record) -> _Read:
        if node.name != event_fields.PARTITION_DATA:
            raise Corrupted(
                f"the schema of the event has a record {node.name!r:.200} where "
                f"{event_fields.PARTITION_DATA} is expected"
            )
        fields: list[PartitionField] = []
        kinds: list[partitions.PartitionType] = []
        for one in node.fields:
            kind = partitions.type_of(
                one.schema.schema if isinstance(one.schema, avro.Optional) else one.schema
            )
            name = one.properties.get("iceberg-field-name", one.name)
            if not isinstance(name, str):
                raise Corrupted(f"the partition field {one.name!r:.200} has an original name that is no text")
            kinds.append(kind)
            fields.append(PartitionField(_field_id(node, one), name, str(kind)))
        # One event has one table and so one partition type, for data and delete files alike.
        if self.partition_fields not in (None, tuple(fields)):
            raise Corrupted(
                "the data files and the delete files of the event have different partition fields"
            )
        self.partition_fields = tuple(fields)
        return lambda values: tuple(
            partitions.from_wire(kind, value) for kind, value in zip(kinds, values, strict=True)
        )


def _field_id(record: avro.Record, field: avro.RecordField) -> int:
    field_id = field.properties.get("field-id")
    if not isinstance(field_id, int) or isinstance(field_id, bool):
        raise Corrupted(f"{record.name}.{field.name!r:.200} has no field-id")
    return field_id


def _match_scalar(kind: Scalar, node: avro.Schema) -> _Read:
    logical = None if isinstance(node, avro.Record | avro.Optional) else node.properties.get("logicalType")
    if kind.name == "uuid":
        # Matched by size and logical type, because the name differs between releases.
        if isinstance(node, avro.Fixed) and node.size == 16 and logical == "uuid":
            return lambda value: uuid.UUID(bytes=value)
    elif isinstance(node, avro.Primitive):
        if kind.name == "timestamp" and node.kind == "long" and logical == "timestamp-micros":
            return _same
        if kind.name == "millis" and node.kind == "long":
            # Milliseconds of the older vocabulary become microseconds.
            return lambda value: value * 1000
        # Avro promotes int to long.
        if kind.name == node.kind or (kind.name, node.kind) == ("long", "int"):
            return _same
    raise Corrupted(f"the schema of the event has {avro.describe(node)} where {_described(kind)} is expected")


def _described(kind: Kind) -> str:
    return (
        kind.name
        if isinstance(kind, Scalar | Struct)
        else {ListOf: "a list", MapOf: "a map"}.get(type(kind), "a partition tuple")
    )


def _same(value: Any) -> Any:
    return value


def _match_map(kind: MapOf, node: avro.Array) -> _Read:
    entry = node.items
    if node.properties.get("logicalType") != "map" or not isinstance(entry, avro.Record):
        raise Corrupted("the schema of the event has a list where a map is expected")
    # The ids identify which statistic of a file the map is.
    if [_field_id(entry, one) for one in entry.fields] != [kind.key_id, kind.value_id]:
        raise Corrupted(f"{entry.name} is not the map with the ids {kind.key_id} and {kind.value_id}")
    # Only for its errors: keys and values need no conversion.
    _match_scalar(Scalar("int"), entry.fields[0].schema)
    _match_scalar(kind.values, entry.fields[1].schema)

    def convert(items: list[tuple[int, Any]]) -> dict[int, Any]:
        converted = dict(items)
        # A dict would silently keep the last of two values.
        if len(converted) != len(items):
            raise Corrupted(f"a map of {entry.name} holds a key twice")
        return converted

    return convert
