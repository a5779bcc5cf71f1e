"""Events as JSON for people, in the form of the golden samples.

Uuids are text, bytes are hex, and maps are objects with the field id as text. Each time is ISO text with six
decimals and a number (`..._micros`). The partition type and the presence of `table_uuid` are included, so
that the same bytes can be made from it. An event of the older vocabulary has that vocabulary's names, times
as plain milliseconds, and no partition type. `from_json` and `from_document` raise only `InvalidInput`.

Times cover all 64 bits: years before 0 have a minus, years beyond 9999 a plus, as in Java.
"""

from __future__ import annotations

import datetime as dt
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from archiver.events import event_fields, partitions
from archiver.events.avro import shown
from archiver.events.codec import Decoded
from archiver.events.event_fields import Field, Kind, ListOf, MapOf, PartitionTuple, Scalar, Struct
from archiver.events.partitions import partition_fields
from archiver.events.types import Event, EventType, PartitionField
from archiver.runtime.errors import InvalidInput

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_CYCLE_YEARS = 400
_CYCLE_US = 146_097 * 86_400_000_000
"""The calendar repeats after 400 years."""
_TEXT = re.compile(r"([+-]?)([0-9]{4,6})-([0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,6}))?Z")


def iso_time(time_us: int | None) -> str | None:
    """ISO text in UTC with six decimals; None for None."""
    if time_us is None:
        return None
    # Python's dates cover the years 1 to 9999 only, so whole cycles are taken off first.
    cycles, rest_us = divmod(time_us, _CYCLE_US)
    moment = _EPOCH + dt.timedelta(microseconds=rest_us)
    year = moment.year + cycles * _CYCLE_YEARS
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04}-{moment.strftime('%m-%dT%H:%M:%S.%f')}Z"


def time_us_of(text: str) -> int:
    """Microseconds since 1970 of ISO text in UTC, with up to six decimals. Raises `InvalidInput`."""
    found = _TEXT.fullmatch(text)
    if found is None:
        raise InvalidInput(f"{text!r:.80} is not a time like 2026-01-02T03:04:05.678901Z")
    sign, digits, rest, decimals = found.groups()
    year = int(f"{sign}{digits}")
    # The year is moved into 1970 to 2369, and the cycles are added again as microseconds.
    cycles = (year - _EPOCH.year) // _CYCLE_YEARS
    try:
        moment = dt.datetime.fromisoformat(f"{year - cycles * _CYCLE_YEARS:04}-{rest}+00:00")
    except ValueError as error:
        raise InvalidInput(f"{text!r:.80} is not a time: {error}") from error
    whole_us = (moment - _EPOCH) // dt.timedelta(microseconds=1)
    # Decimals are padded on the right: `.5` is 500,000 microseconds.
    return cycles * _CYCLE_US + whole_us + int((decimals or "").ljust(6, "0"))


_FIELD_ID = re.compile("-?[0-9]{1,10}")
_TIMESTAMP, _MILLIS = Scalar("timestamp"), Scalar("millis")


def to_json(decoded: Decoded) -> dict[str, Any]:
    """The event as JSON values. Raises `InvalidInput` for an event that cannot be encoded either."""
    event = decoded.event
    writer = _Writer(decoded)
    tree: dict[str, Any] = {}
    for one in event_fields.struct_of(event.type, decoded.legacy).fields:
        if one.name == "type":
            # The name is for readers, the number is what the bytes have.
            tree |= {"type": int(event.type), "type_name": _type_name(event.type, decoded.legacy)}
        elif isinstance(one.kind, Struct):
            tree["payload"] = {"class": one.kind.short_name} | writer.struct(one.kind, event.payload)
        else:
            tree |= writer.field(one, getattr(event, one.attribute))
    return tree


def _type_name(kind: EventType, legacy: bool) -> str:
    return event_fields.LEGACY_TYPE_NAMES[kind] if legacy else kind.name


class _Writer:
    def __init__(self, decoded: Decoded) -> None:
        self._fields = [(one, partitions.parse_type(one.type)) for one in decoded.partition_fields]
        self._left_out = event_fields.left_out(decoded.table_uuid, decoded.legacy)

    def struct(self, struct: Struct, value: Any) -> dict[str, Any]:
        tree: dict[str, Any] = {}
        for one in struct.fields:
            if one.field_id in self._left_out:
                continue
            # The types are needed to read the tuples of the files again.
            if one.name == "data_files":
                tree["partition_type"] = [
                    {"id": field.field_id, "name": field.name, "type": field.type}
                    for field, _ in self._fields
                ]
            tree |= self.field(one, getattr(value, one.attribute))
        return tree

    def field(self, field: Field, value: Any) -> dict[str, Any]:
        if field.kind == _TIMESTAMP:
            return {field.name: iso_time(value), f"{field.name}_micros": value}
        return {field.name: self._value(field.kind, value)}

    def _value(self, kind: Kind, value: Any) -> Any:
        if value is None:
            return None
        if isinstance(kind, ListOf):
            return [self._value(kind.items, item) for item in value]
        if isinstance(kind, MapOf):
            # Keys of JSON objects are text; sorted as numbers, as on the wire.
            return {str(key): self._value(kind.values, value[key]) for key in sorted(value)}
        if isinstance(kind, PartitionTuple):
            if len(value) != len(self._fields):
                raise InvalidInput(f"partition: {len(self._fields)} values expected, got {shown(value)}")
            pairs = zip(self._fields, value, strict=True)
            return {field.name: partitions.to_json(form, part) for (field, form), part in pairs}
        if isinstance(kind, Struct):
            return self.struct(kind, value)
        if kind.name == "bytes":
            return value.hex()
        if kind == _MILLIS:
            return value // 1000
        return str(value) if kind.name == "uuid" else value


def from_document(document: object) -> Decoded:
    """The event of a golden file (under `event`), or of an object made by `to_json`.

    The partition fields are those in the event, else those of the sibling keys `partition_spec` and
    `table_schema`. Raises `InvalidInput`.
    """
    if not isinstance(document, Mapping):
        raise InvalidInput(f"an event is a json object, got {shown(document)}")
    # A golden file has the event under a key, next to the spec and schema of its table.
    if "event" not in document:
        return from_json(document)
    spec = document.get("partition_spec")
    given = None if spec is None else partition_fields(spec, document.get("table_schema"))
    return from_json(_get(document, "event", Mapping), given)


def from_json(tree: Mapping[str, Any], given: Sequence[PartitionField] | None = None) -> Decoded:
    """The inverse of `to_json`; `given` are the partition fields if the event does not state them.

    Raises `InvalidInput` with the key that is missing, unknown or wrong.
    """
    payload = _get(tree, "payload", Mapping)
    name = _get(payload, "class", str)
    known = {
        struct.short_name: (kind, legacy)
        for legacy, structs in ((False, event_fields.PAYLOADS), (True, event_fields.LEGACY_PAYLOADS))
        for kind, struct in structs.items()
    }
    if name not in known:
        raise InvalidInput(f"the payload class {name!r:.80} is unknown; known are {', '.join(known)}")
    kind, legacy = known[name]
    if _get(tree, "type", int) != kind:
        raise InvalidInput(f"the type number of {name} is {kind.value}, not {shown(tree['type'])}")
    # The name may be omitted, but must not contradict the class.
    if tree.get("type_name", _type_name(kind, legacy)) != _type_name(kind, legacy):
        raise InvalidInput(
            f"the type name of {name} is {_type_name(kind, legacy)}, not {shown(tree['type_name'])}"
        )
    fields = _stated_fields(payload, given, legacy) if kind is EventType.DATA_WRITTEN else ()
    # Reads `table_uuid` if it is there; its absence is recorded below.
    reader = _Reader(fields, event_fields.left_out(True, legacy))
    values = reader.values(event_fields.struct_of(kind, legacy), tree, also=("type_name",))
    values.pop("type")
    reference = payload.get("table_reference")
    return Decoded(
        Event(**values), fields, isinstance(reference, Mapping) and "table_uuid" in reference, legacy
    )


def _stated_fields(
    payload: Mapping[str, Any], given: Sequence[PartitionField] | None, legacy: bool
) -> tuple[PartitionField, ...]:
    # The event's own statement takes precedence over the spec next to it.
    if "partition_type" in payload and not legacy:
        return tuple(map(_partition_field, _get(payload, "partition_type", list)))
    if given is not None:
        return tuple(given)
    if legacy:
        return ()
    raise InvalidInput("the event lacks the key partition_type, and there is no partition_spec next to it")


def _get(tree: object, key: str, kind: Any) -> Any:
    if not isinstance(tree, Mapping) or key not in tree:
        raise InvalidInput(f"the event lacks the key {key}")
    value = tree[key]
    # JSON's true is an int in Python.
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise InvalidInput(f"{key} is {shown(value)}, which is of the wrong type")
    return value


def _partition_field(tree: object) -> PartitionField:
    return PartitionField(_get(tree, "id", int), _get(tree, "name", str), _get(tree, "type", str))


def _uuid(text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError as error:
        raise InvalidInput(f"{text!r:.80} is not a uuid") from error


def _hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise InvalidInput(f"{text!r:.80} is not hex") from error


_SCALARS: dict[str, tuple[type, Callable[[Any], Any]]] = {
    "int": (int, int),
    "long": (int, int),
    "timestamp": (int, int),
    "millis": (int, lambda value: value * 1000),
    "string": (str, str),
    "uuid": (str, _uuid),
    "bytes": (str, _hex),
}


# Only payloads have the keys `class` and `partition_type` in addition to their fields.
_PAYLOAD_NAMES = {
    struct.name
    for structs in (event_fields.PAYLOADS, event_fields.LEGACY_PAYLOADS)
    for struct in structs.values()
}


def _stated_time(name: str, tree: Mapping[str, Any]) -> Any:
    """A time from its number, its text, or both if they agree."""
    number, text = tree.get(f"{name}_micros"), tree.get(name)
    # A person may write only one of the two.
    if text is None:
        return number
    if not isinstance(text, str):
        raise InvalidInput(f"{name} is {shown(text)}, which is of the wrong type")
    stated = time_us_of(text)
    # An edited text with the old number is an error: neither can be trusted more.
    if number is not None and number != stated:
        raise InvalidInput(
            f"{name} is {text!r:.80} and {name}_micros {shown(number)}, which is another time; leave "
            "one of them out"
        )
    return stated


class _Reader:
    def __init__(self, fields: tuple[PartitionField, ...], left_out: frozenset[int]) -> None:
        self._fields = [(one.name, partitions.parse_type(one.type)) for one in fields]
        self._left_out = left_out

    def struct(self, struct: Struct, tree: object) -> Any:
        if not isinstance(tree, Mapping):
            raise InvalidInput(f"an object expected for {struct.name}, got {shown(tree)}")
        return struct.make(
            **self.values(
                struct, tree, also=("class", "partition_type") if struct.name in _PAYLOAD_NAMES else ()
            )
        )

    def values(self, struct: Struct, tree: Mapping[str, Any], also: Sequence[str] = ()) -> dict[str, Any]:
        """Values by attribute. `also` are further allowed keys."""
        fields = [one for one in struct.fields if one.field_id not in self._left_out]
        known = (
            {one.name for one in fields}
            | {f"{one.name}_micros" for one in fields if one.kind == _TIMESTAMP}
            | set(also)
        )
        # A misspelt key would otherwise be lost without an error.
        if unknown := [key for key in tree if key not in known]:
            raise InvalidInput(f"{struct.name} has the unknown key {unknown[0]!r:.80}")
        values: dict[str, Any] = {}
        for one in fields:
            value = _stated_time(one.name, tree) if one.kind == _TIMESTAMP else tree.get(one.name)
            if value is None and not one.optional:
                raise InvalidInput(f"{struct.name} lacks the key {one.name}")
            # As in the Avro reader: null has the value that Java gives it.
            values[one.attribute] = one.if_null if value is None else self._value(one.kind, value)
        return values

    def _value(self, kind: Kind, tree: Any) -> Any:
        if isinstance(kind, ListOf):
            if not isinstance(tree, list):
                raise InvalidInput(f"a list expected, got {shown(tree)}")
            return tuple(self._value(kind.items, item) for item in tree)
        if isinstance(kind, MapOf):
            return self._map(kind, tree)
        if isinstance(kind, PartitionTuple):
            # Missing names are reported by `_get`; this finds names that are too many.
            if isinstance(tree, Mapping) and len(tree) > len(self._fields):
                raise InvalidInput(
                    "partition: values of "
                    f"{', '.join(name for name, _ in self._fields) or 'no fields'} expected, got "
                    f"{shown(tree)}"
                )
            return tuple(partitions.from_json(form, _get(tree, name, object)) for name, form in self._fields)
        if isinstance(kind, Struct):
            return self.struct(kind, tree)
        expected, convert = _SCALARS[kind.name]
        # No scalar of an event is a boolean, which Python would accept as an int.
        if not isinstance(tree, expected) or isinstance(tree, bool):
            raise InvalidInput(f"a {kind.name} expected, got {shown(tree)}")
        return convert(tree)

    def _map(self, kind: MapOf, tree: Any) -> dict[int, Any]:
        if not isinstance(tree, Mapping) or not all(
            isinstance(key, str) and _FIELD_ID.fullmatch(key) for key in tree
        ):
            raise InvalidInput(f"an object with field ids as keys expected, got {shown(tree)}")
        return {int(key): self._value(kind.values, value) for key, value in tree.items()}
