"""Fuzz target: control events, as bytes from anywhere.

They are read, or refused with `Corrupted`; nothing else is raised, and work is bounded.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archiver.events import codec
from archiver.events.avro import (
    NODES_MAX,
    PRIMITIVES,
    Optional,
    Record,
    Schema,
    parse_schema,
    read_data,
    read_datum,
    write_datum,
)
from archiver.events.types import Event
from archiver.ledger.event_reader import EventReader
from archiver.proto import control_log_pb2 as pb
from archiver.runtime.errors import ArchiverError, Corrupted, InvalidInput
from reconcile.snapshot import manifests
from tests.support.events.event_values import events
from tests.support.fuzzing import fuzzing

GOLDEN = Path(__file__).parents[1] / "compat" / "golden_events"
SAMPLES = [path.read_bytes() for path in sorted(GOLDEN.glob("*/*.bin"))]
ERROR_MAX = 2000
"""Characters of an error."""
VALUES_PER_BYTE_MAX = 8
"""With 1,024 more: what the reader allows for a datum."""

LONG_NUMBERS = st.sampled_from(
    [
        b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\xff" * 9 + b"\x01",
        b"\xff" * 12,
        b"\x80" * 20,
        b"\x02" * 40,
    ]
)


def check(data: bytes) -> None:
    """Read, or refused; what was read is written in the one form of ours, which is read as the same event.

    Avro has several forms of one value (blocks of an array, the order of a map), and Java reads them all.
    """
    refused = ""
    try:
        found = codec.read(data)
    except Corrupted as error:
        refused = str(error)
    if refused:
        assert len(refused) < ERROR_MAX, "an error does not carry what was sent"
        return
    assert isinstance(found.event, Event)
    try:
        written = codec.write(found)
    except InvalidInput:
        return
    again = codec.read(written)
    assert codec.write(again) == written
    assert again.event == found.event or "nan" in repr(found.event)


@st.composite
def mutations(draw: st.DrawFn, sample: bytes) -> bytes:
    """A sample with a few bytes replaced, removed, doubled or grown to enormous counts."""
    data = bytearray(sample)
    for _ in range(draw(st.integers(1, 4))):
        low = draw(st.integers(0, len(data)))
        high = min(len(data), low + draw(st.integers(0, 8)))
        part = draw(st.binary(max_size=8) | LONG_NUMBERS | st.just(bytes(data[low:high]) * 2))
        data[low:high] = part
    return bytes(data)


@fuzzing()
@given(st.binary(max_size=200) | st.binary(max_size=200).map(lambda rest: codec.MAGIC + rest))
def test_any_bytes(data: bytes) -> None:
    check(data)


@fuzzing(4)
@given(st.sampled_from(SAMPLES).flatmap(mutations))
def test_golden_events_with_altered_bytes(data: bytes) -> None:
    check(data)


@fuzzing(2)
@given(st.sampled_from(SAMPLES), st.data())
def test_golden_schemas_with_another_datum(sample: bytes, data: st.DataObject) -> None:
    """The schema is whole, so that the reader meets every value."""
    text, datum = codec.split(sample)
    check(codec.join(text, data.draw(mutations(datum) | st.binary(max_size=100) | LONG_NUMBERS)))


@fuzzing(0.3)
@given(events())
def test_events_of_ours_come_back_as_the_same_bytes(case: tuple[Event, Any]) -> None:
    event, fields = case
    written = codec.encode(event, fields)
    assert codec.write(codec.read(written)) == written


# schemas: deep, wide, with names that refer to themselves and to each other

NAMES = [f"n{number}" for number in range(6)]
LEAVES = st.sampled_from([*sorted(PRIMITIVES), *NAMES, "a.b", "", "record", 7, None, True])


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    fields = st.lists(st.fixed_dictionaries({"name": st.sampled_from(NAMES), "type": inner}), max_size=4)
    return (
        st.fixed_dictionaries(
            {"type": st.just("array"), "items": inner},
            optional={"logicalType": st.just("map"), "element-id": st.integers()},
        )
        | st.fixed_dictionaries({"type": st.just("record"), "name": st.sampled_from(NAMES), "fields": fields})
        | st.fixed_dictionaries(
            {"type": st.just("fixed"), "name": st.sampled_from(NAMES), "size": st.integers(-1, 2**70)}
        )
        | st.lists(inner | st.just("null"), max_size=3)
        | st.fixed_dictionaries({"type": inner})
    )


TREES = st.recursive(LEAVES, _nested, max_leaves=30)


@fuzzing(3)
@given(TREES, st.binary(max_size=60))
def test_any_schema_and_any_datum(tree: Any, datum: bytes) -> None:
    try:
        schema = parse_schema(json.dumps(tree))
    except Corrupted:
        return
    assert _types(schema) <= NODES_MAX
    try:
        value = read_datum(schema, datum)
    except Corrupted:
        pass
    else:
        assert _values(value) <= VALUES_PER_BYTE_MAX * len(datum) + 1024
        assert read_datum(schema, write_datum(schema, value)) == value or "nan" in repr(value)
    with_header = codec.join(json.dumps(tree).encode(), datum)
    check(with_header)


@fuzzing()
@given(
    st.integers(0, 70),
    st.sampled_from(["array", "union", "record"]),
    st.sampled_from(["int", "null", "n0"]),
    st.binary(max_size=40),
)
def test_schemas_that_nest_as_deep_as_they_like(depth: int, kind: str, leaf: str, datum: bytes) -> None:
    tree: Any = leaf
    for level in range(depth):
        match kind:
            case "array":
                tree = {"type": "array", "items": tree}
            case "union":
                tree = ["null", {"type": "array", "items": tree}]
            case _:
                tree = {
                    "type": "record",
                    "name": f"n{depth - level}",
                    "fields": [{"name": "f", "type": tree}],
                }
    try:
        schema = parse_schema(json.dumps(tree))
        read_datum(schema, datum)
    except Corrupted:
        return
    assert depth <= 33


@pytest.mark.parametrize("width", [1, 2, 7])
@pytest.mark.parametrize("count", [24, 40, 700])
def test_names_that_refer_to_each_other_cost_what_their_text_does(width: int, count: int) -> None:
    """A text of `count` records, each with the one before it `width` times: a tree of width ** count
    types."""
    fields: list[Any] = [
        {"name": "f0", "type": {"type": "record", "name": "r0", "fields": [{"name": "x", "type": "null"}]}}
    ]
    for number in range(1, count):
        parts = [{"name": f"g{part}", "type": f"r{number - 1}"} for part in range(width)]
        fields.append(
            {"name": f"f{number}", "type": {"type": "record", "name": f"r{number}", "fields": parts}}
        )
    text = json.dumps({"type": "record", "name": "top", "fields": fields})
    if (width, count) == (1, 24):
        assert read_data(parse_schema(text), b"", 1)
        return
    with pytest.raises(Corrupted, match="nests deeper than 32 levels, or has more than"):
        parse_schema(text)
    header = b"Obj\x01" + b"\x02" + _bytes(b"avro.schema") + _bytes(text.encode()) + b"\x00" + bytes(16)
    with pytest.raises(Corrupted, match="cannot be read as an Avro file"):
        list(manifests.records(header + b"\x02\x00" + bytes(16), "m.avro"))


@pytest.mark.parametrize(
    "tree",
    [
        {"type": "record", "name": "n", "fields": [{"name": "f", "type": "n"}]},
        ["null", "n"],
        {"type": "array", "items": "n"},
    ],
)
def test_a_name_that_refers_to_itself_is_refused(tree: Any) -> None:
    with pytest.raises(Corrupted, match="not defined before it"):
        parse_schema(json.dumps(tree))


# the ledger's entries


def entries(sample: bytes) -> list[bytes]:
    """A control log of three entries, the last with an event."""
    text, datum = codec.split(sample)
    digest = hashlib.sha256(text).digest()
    event = pb.Event(text_sha256=digest, datum=datum)
    made = [
        pb.ControlEntry(format=1, id=bytes([1] * 16), epoch=1, epoch_started=pb.EpochStarted()),
        pb.ControlEntry(
            format=1, id=bytes([2] * 16), epoch=1, schema_text=pb.SchemaText(sha256=digest, text=text)
        ),
        pb.ControlEntry(format=1, id=bytes([3] * 16), epoch=1, files_written=pb.FilesWritten(event=event)),
    ]
    return [one.SerializeToString() for one in made]


def taken(log: list[bytes]) -> list[bytes]:
    reader = EventReader()
    found = [reader.take(index, data) for index, data in enumerate(log)]
    return [one.data for one in found if one is not None]


@pytest.mark.parametrize("sample", SAMPLES[:3])
def test_events_come_out_of_the_ledger_as_they_went_in(sample: bytes) -> None:
    assert taken(entries(sample)) == [sample]


@fuzzing(2)
@given(st.sampled_from(SAMPLES), st.integers(0, 2), st.data())
def test_entries_of_a_control_log_with_altered_bytes(sample: bytes, place: int, data: st.DataObject) -> None:
    log = entries(sample)
    log[place] = data.draw(mutations(log[place]))
    try:
        events_found = taken(log)
    except ArchiverError:
        return
    for one in events_found:
        check(one)


def _types(schema: Schema) -> int:
    if isinstance(schema, Record):
        return 1 + sum(_types(one.schema) for one in schema.fields)
    inner = schema.schema if isinstance(schema, Optional) else getattr(schema, "items", None)
    return 1 if inner is None else 1 + _types(inner)


def _values(value: Any) -> int:
    return 1 + sum(map(_values, value)) if isinstance(value, list) else 1


def _bytes(data: bytes) -> bytes:
    """With its length in front, as Avro writes it."""
    number, out = len(data) << 1, bytearray()
    while number > 0x7F:
        out.append((number & 0x7F) | 0x80)
        number >>= 7
    return bytes([*out, number]) + data
