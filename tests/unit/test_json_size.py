"""The values of a JSON document are counted before it is decoded, never too few, and bound what is written."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pytest

from archiver.schema.codec import RecordCodec
from archiver.schema.evolution.state import TopicSchema, arrow_schema, decide
from archiver.schema.json.complete_engine import JsonEngine
from archiver.schema.json.encoder import _members
from archiver.schema.json.fast_engine import FastJsonEngine
from archiver.schema.json.model import parse_schema
from archiver.schema.json.size import JsonMeter
from archiver.schema.json.source import json_source
from archiver.schema.payload_check import EdgeCheck
from archiver.schema.protobuf.decoded_size import VALUES_MAX
from archiver.schema.protobuf.tree import ERR, PREFIX, RAW, UNRECOGNIZED
from tests.support.schema.both_engines import ENGINES, columns_of
from tests.support.schema.json_reads import sizes_of_reads
from tests.support.schema.random_json import Maker

NUMBER_BYTES = 25
"""Of the longest number as it is written, with its comma."""
WIDE = {"properties": {f"f{number}": {"type": "integer"} for number in range(500)}}
LONG = {"properties": {f"n{number:02}" + "x" * 997: {"type": ["string", "null"]} for number in range(100)}}
REFUSED = "cannot be decoded as JSON: more than 4194304 values in one record are not decoded"


def text_of(schema: Any) -> bytes:
    return json.dumps(schema).encode()


def topic(schema: Any) -> TopicSchema:
    return decide("t", (), None, json_source(text_of(schema), "test")).schema


def meter_of(schema: Any) -> JsonMeter:
    return JsonMeter(parse_schema(text_of(schema), "test"))


def binary(*payloads: bytes) -> Any:
    return pa.array(payloads, pa.binary())


def listed(item: Any) -> Any:
    return {"properties": {"v": {"type": "array", "items": item}}}


def mapped(item: Any) -> Any:
    return {"properties": {"v": {"type": "object", "additionalProperties": item}}}


def items(text: bytes, count: int) -> bytes:
    return b'{"v":[' + b",".join([text] * count) + b"]}"


def entries(text: bytes, count: int) -> bytes:
    return b'{"v":{' + b",".join(b'"%d":%b' % (number, text) for number in range(count)) + b"}}"


def places(array: Any) -> int:
    """The number of slots in an array and in its nested arrays."""
    if pa.types.is_struct(array.type):
        return len(array) + sum(places(child) for child in array.flatten())
    if pa.types.is_map(array.type):
        return len(array) + places(array.keys) + places(array.items)
    if pa.types.is_list(array.type):
        return len(array) + places(array.flatten())
    return len(array)


def message(column: Any) -> Any:
    names = [one.name for one in column.type if one.name not in (RAW, PREFIX, ERR)]
    return pa.StructArray.from_arrays([column.field(name) for name in names], names)


@pytest.mark.parametrize("seed", range(20))
def test_no_document_has_more_places_than_were_counted(seed: int) -> None:
    maker = Maker(random.Random(seed), plain=seed % 2 == 0)
    meter = meter_of(maker.schema)
    payloads = [maker.document(1.0).data for _ in range(30)]
    for payload in payloads:
        needed = places(message(columns_of(topic(maker.schema), [payload])))
        assert meter.beyond(binary(payload), needed - 1) == [0]
        bounds = meter.bounds(binary(payload), 0)
        assert bounds is not None and bounds[0] >= needed


@pytest.mark.parametrize(
    ("schema", "payload"),
    [
        (listed(WIDE), items(b"null", 7)),
        (listed(WIDE), items(b"{}", 7)),
        (listed(WIDE), items(b"\n null ", 7)),
        (mapped(WIDE), entries(b"null", 7)),
        (mapped(WIDE), entries(b" null", 7)),
        (listed({"type": "array", "items": WIDE}), items(b"[null,null,{}]", 3)),
        (listed({"type": "integer", "maximum": 2**64}), items(b"1", 50)),
        (mapped({"type": "integer", "maximum": 2**64}), entries(b"1", 50)),
        (listed({"type": "array", "items": {"type": "integer"}}), items(b"[]", 50)),
    ],
)
@pytest.mark.parametrize("rows", [1, 20])
def test_nulls_and_other_short_items_count(schema: Any, payload: bytes, rows: int) -> None:
    meter = meter_of(schema)
    needed = places(message(columns_of(topic(schema), [payload])))
    payloads = binary(*[payload] * rows)
    assert meter.beyond(payloads, needed - 1) == list(range(rows))
    bounds = meter.bounds(payloads, needed * rows - 1)
    assert bounds is not None and bounds.min() >= needed
    reads = meter.bounds_of_reads(payloads, needed * rows - 1)
    assert reads is not None and reads.min() >= needed


def test_batches_are_divided_by_their_nulls() -> None:
    codec = RecordCodec(topic(listed(WIDE)))
    for item in (b"null", b"{}"):
        values = binary(*[items(item, 2_001)] * 100)
        assert len(codec.portions(pa.nulls(100, pa.binary()), values)) == 7


def test_null_properties_are_no_items() -> None:
    schema = {"properties": {"note": {"type": ["string", "null"]}, **listed(WIDE)["properties"]}}
    payloads = binary(*[b'{"note":null,"v":[]}', b'{"note": null, "v": []}'] * 5_000)
    bounds = meter_of(schema).bounds(payloads, 0)
    # The object around them counts, since it could be an item.
    assert bounds is not None and bounds.max() < 2 * 500


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("schema", "payload"),
    [
        (listed(WIDE), items(b"null", 10_000)),
        (mapped(WIDE), entries(b"null", 10_000)),
        (listed(LONG), items(b"{}", 2_000)),
        ({"properties": {"id": {"type": "integer"}}}, b'{"x":[' + b"1," * VALUES_MAX + b"1]}"),
        ({"properties": {"id": {"type": "integer"}}}, b'{"x":"\\",[","y":[' + b"[]," * VALUES_MAX + b"1]}"),
    ],
    ids=["nulls", "null-entries", "names", "unknown", "unknown-arrays"],
)
def test_a_small_record_of_many_values_is_not_decoded(schema: Any, payload: bytes, engine: Any) -> None:
    payloads = [b"{}"] * 12 + [payload]
    value = columns_of(topic(schema), payloads, engine)
    assert value.field(ERR).to_pylist() == [None] * 12 + [REFUSED]
    assert value.field(RAW)[12].as_py() == payload


def test_many_unknown_values_are_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("archiver.schema.json.size.parsed", pytest.fail)
    meter = meter_of({"properties": {"id": {"type": "integer"}}})
    payload = b'{"x":[' + b"1," * 200 + b"1]}"
    assert meter.beyond(binary(payload), 200) == [0]
    assert meter.beyond(binary(payload), 210) == []


def test_what_texts_have_in_them_does_not_count() -> None:
    meter = meter_of(listed(WIDE))
    for text in (",[{", "\\\\", '\\"', '\\\\\\"'):
        payload = b'{"v":[],"x":"' + (text * 300).encode() + b'"}'
        json.loads(payload)
        assert meter.beyond(binary(payload), 600) == []
    # After these the text is over, and what follows counts.
    for ending in (b"\\\\", b'\\"\\\\'):
        payload = b'{"x":"' + ending + b'","y":[' + b"1," * 600 + b"1]}"
        assert meter.beyond(binary(payload), 600) == [0]


def test_intake_refuses_nulls_before_it_takes_memory() -> None:
    check = EdgeCheck(json_source(text_of(listed(WIDE)), "test"))
    found = check.check(binary(items(b"null", 2_100), items(b"null", 1_900)))
    assert list(found.errors) == [0]
    assert "more than 1000000 fields and list elements" in found.errors[0]


@pytest.mark.parametrize("seed", range(20))
def test_values_bound_what_is_written(seed: int) -> None:
    maker = Maker(random.Random(500 + seed), plain=seed % 2 == 0)
    rows = [maker.document(1.0).data for _ in range(30)]
    assert_bounded(maker.schema, rows)


@pytest.mark.parametrize(
    ("schema", "payload"),
    [
        (LONG, b"{}"),
        (listed(LONG), items(b"{}", 5)),
        (mapped(LONG), entries(b"{}", 5)),
        ({"properties": {"o": LONG}}, b'{"o":{}}'),
        ({"properties": {"o": {"properties": {"ż" * 400: {"type": ["null", "integer"]}}}}}, b'{"o":{}}'),
        (listed({"type": "number"}), items(b"1e20", 50)),
        (listed({"type": "string", "format": "date"}), items(b'""', 50)),
        (listed({"type": "integer"}), items(b"1.0", 50)),
    ],
)
def test_names_and_numbers_bound_what_is_written(schema: Any, payload: bytes) -> None:
    assert_bounded(schema, [payload])


def assert_bounded(schema: Any, payloads: list[bytes]) -> None:
    """Whether the bytes that are written of each row stay within the payload and those of its values."""
    codec = RecordCodec(topic(schema))
    engine = codec._value._reader
    assert engine is not None
    meter = meter_of(schema)
    for payload in payloads:
        columns = message(columns_of(topic(schema), [payload]))
        written = engine.encode(columns, pa.nulls(1, pa.binary()))[0].as_py()
        over = len(written) - len(payload)
        assert over <= 0 or meter.beyond(binary(payload), (over - 1) // NUMBER_BYTES) == [0]


def test_batches_are_divided_by_what_is_written() -> None:
    codec = RecordCodec(topic(LONG))
    rows = 23_000
    found = codec.portions(pa.nulls(rows, pa.binary()), binary(*[b"{}"] * rows))
    assert len(found) > 1 and max(end - start for start, end in found) * 100_000 < 2**29


def test_present_properties_are_no_names_to_be_written() -> None:
    item = {"properties": {"x" * 160: {"type": ["integer", "null"]}}}
    meter = meter_of(listed(item))
    present = items(json.dumps({"x" * 160: 1}).encode(), 100)
    assert meter.beyond(binary(present), 500) == []
    assert meter.beyond(binary(items(b"{}", 100)), 1_000) == [0]


@pytest.mark.parametrize("there", [0, 3, 100])
def test_null_objects_are_not_written_first(there: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An absent object of many names is no part of the form, and takes no memory for them."""
    monkeypatch.setattr("archiver.schema.json.encoder._members", members := Counting(_members))
    payloads = [b'{"o":{"a":null}}'] * there + [b"{}"] * (100 - there)
    schema = topic({"properties": {"o": {"properties": {"a": {"type": ["string", "null"]}}}}})
    value = columns_of(schema, payloads, "protobuf")
    assert value.field(RAW).null_count == 100
    inner = {(b'"a":', there)} if there else set()
    assert members.calls == {(b'"o":', 100), *inner}


class Counting:
    """The first names of objects, and how many of them a call has written."""

    def __init__(self, write: Any) -> None:
        self._write = write
        self.calls: set[tuple[bytes, int]] = set()

    def __call__(self, parts: Any, rows: int) -> Any:
        self.calls.add((parts[0][0], rows))
        return self._write(parts, rows)


@pytest.mark.parametrize(
    ("schema", "bad"),
    [
        ({"properties": {f"f{number}": {"type": "integer"} for number in range(300)}}, b"{}" * 20_000),
        (listed(WIDE), b'{"v":[' + b"{}," * 10_000 + b"x]}"),
        (listed(WIDE), b'{"v":[' + b"null," * 10_000 + b"x]}"),
    ],
)
def test_a_damaged_record_of_many_values_is_not_read(
    schema: Any, bad: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = sizes_of_reads(monkeypatch)
    value = columns_of(topic(schema), [b"{}"] * 12 + [bad])
    assert value.field(ERR)[12].as_py().startswith("cannot be decoded as JSON: it is not JSON")
    assert value.field(ERR).null_count == 12
    assert sizes == [24]


def test_what_is_read_at_a_time_is_divided_by_its_values() -> None:
    schema = topic(listed(WIDE))
    columns = arrow_schema(schema).field("value").type
    engine = FastJsonEngine(
        parse_schema(text_of(listed(WIDE)), "test"),
        pa.struct([columns.field("v"), columns.field(UNRECOGNIZED)]),
    )
    doubtful, pieces = engine._prepared(binary(*[items(b"{}", 500)] * 100))
    assert not doubtful.any()
    assert [len(rows) for rows in pieces] == [65, 35], "16 million values"


def test_a_form_beyond_two_gibibytes_keeps_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The meters make this impossible; a batch must not fail if one were wrong."""
    codec = RecordCodec(topic({"properties": {"id": {"type": "integer"}}}))

    encode = JsonEngine.encode

    def too_long(engine: JsonEngine, columns: Any) -> Any:
        if len(columns) > 10:
            raise pa.ArrowCapacityError("array cannot contain more than 2147483646 bytes")
        return encode(engine, columns)

    payloads = [b'{"id":1}'] * 20
    monkeypatch.setattr("archiver.schema.json.fast_engine.PIECE_ROWS", 10)
    monkeypatch.setattr(JsonEngine, "encode", too_long)
    _, value = codec.encode_columns(pa.nulls(20, pa.binary()), binary(*payloads))
    assert value.field(RAW).to_pylist() == payloads
    assert value.field("id").to_pylist() == [1] * 20
