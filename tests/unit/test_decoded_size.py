"""The values of a payload are counted before it is decoded, never too few. Beyond the bound only the bytes
are kept."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2

from archiver.schema.codec import RecordCodec
from archiver.schema.evolution.state import arrow_schema, column_tree
from archiver.schema.protobuf import decoded_size
from archiver.schema.protobuf.complete_engine import ProtobufEngine
from archiver.schema.protobuf.decoded_size import BATCH_VALUES_MAX, VALUES_MAX, Meter, portions
from archiver.schema.protobuf.descriptors import Source, source_tree
from archiver.schema.protobuf.error_causes import cause_of
from archiver.schema.protobuf.tree import ERR, PREFIX, RAW
from archiver.stream.decode import ANY_BYTES_MAX, Decoder
from tests.support.schema.engine_rows import ENGINES, schema_for, values_of
from tests.support.schema.orders import DESCRIPTOR_SET, order
from tests.support.schema.random_protos import fill, random_schema
from tests.support.schema.wire_mutations import mutated

ORDER = Source("shop.Order", DESCRIPTOR_SET)
LINE = b"\x1a\x00"
"""An empty order line."""
_F = descriptor_pb2.FieldDescriptorProto


def engine_of(source: Source) -> ProtobufEngine:
    schema = schema_for(source)
    assert schema.value is not None
    columns = [one for one in arrow_schema(schema).field("value").type if one.name not in (RAW, PREFIX, ERR)]
    return ProtobufEngine(column_tree(schema.value, schema.schema()["fields"][1]["type"]), pa.struct(columns))


def places(array: Any) -> int:
    """The number of slots in an array and in its nested arrays."""
    if pa.types.is_struct(array.type):
        return len(array) + sum(places(child) for child in array.flatten())
    if pa.types.is_list(array.type):
        return len(array) + places(array.flatten())
    if pa.types.is_map(array.type):
        return len(array) + places(array.keys) + places(array.items)
    return len(array)


@pytest.mark.parametrize("seed", range(10))
def test_no_record_has_more_places_than_were_counted(seed: int) -> None:
    """This holds for every shape of schema. The cheap count is never below the exact one, which is never
    below the slots of the columns."""
    rng = random.Random(seed)
    made = random_schema(rng)
    engine = engine_of(made.source)
    meter = Meter(source_tree(made.source))
    payloads = []
    for _ in range(30):
        message = made.make()
        fill(rng, message)
        payloads.append(message.SerializePartialToString())
        payloads.append(mutated(rng, made.make.DESCRIPTOR, payloads[-1], payloads[-1:])[1])
    array = values_of(payloads)
    bounds = meter.bounds(array, 0)
    assert bounds is not None
    for row, payload in enumerate(payloads):
        exact = meter._slots + decoded_size._walk(meter._top, payload, 1 << 40)
        assert exact <= bounds[row]
        assert meter.values(payload, 1 << 40) <= exact
        if not engine.error_of(payload):
            assert places(engine.decode(values_of([payload])).columns) <= exact
            assert meter.values(payload, exact - 1) >= exact
    assert meter.bounds(array[3:9], 0).tolist() == bounds[3:9].tolist()  # type: ignore[union-attr]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_record_beyond_the_bound_keeps_its_bytes_and_disturbs_no_other(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoded_size.Meter.beyond, "__defaults__", (1000,))
    codec = RecordCodec(schema_for(ORDER), engine)
    large, whole = LINE * 1000, LINE * 100
    given = values_of([order(1), large, None, whole, b"\xff", large])
    key, encoded = codec.encode_columns(given, given)
    column: Any = encoded
    rows: list[Any] = column.to_pylist()
    assert [None if row is None else row[RAW] for row in rows] == [None, large, None, None, b"\xff", large]
    assert (
        rows[1][ERR]
        == f"cannot be decoded as shop.Order: more than {VALUES_MAX} values in one record are not decoded"
    )
    assert cause_of(rows[1][ERR]) == "too_many_values"
    assert rows[1]["id"] is None and rows[1]["lines"] is None
    assert len(rows[3]["lines"]) == 100 and rows[0]["id"] == 1
    assert codec.rebuild(key, column)[1].to_pylist() == given.to_pylist()


def test_ordinary_records_are_not_walked_and_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound costs a batch of ordinary records one comparison, and for 8 MiB a count of some bytes."""
    monkeypatch.setattr(decoded_size, "_walk", pytest.fail)
    codec = RecordCodec(schema_for(ORDER))
    values = values_of([order(row, "x" * 100, 3) for row in range(60_000)])
    assert values.nbytes > 8_000_000
    assert codec.portions(values, values) == [(0, 60_000)]
    large = values_of([order(1, "x" * 8_000_000)])
    codec.encode_columns(large, large)


def test_many_records_are_cut_where_their_values_pass_the_bound() -> None:
    codec = RecordCodec(schema_for(ORDER))
    values = values_of([LINE * 200_000, None, *[LINE * 800_000] * 12, order(1)])
    cut = codec.portions(pa.nulls(len(values), pa.binary()), values)
    assert 2 < len(cut) < 10
    assert [start for start, _ in cut] == [0, *(end for _, end in cut[:-1])] and cut[-1][1] == len(values)
    assert portions(3, [None, None]) == [(0, 3)]
    assert portions(0, [np.zeros(0, np.int64)]) == [(0, 0)]
    assert portions(3, [np.array([BATCH_VALUES_MAX + 1, 1, 2]), np.array([0, 1, 1])]) == [(0, 1), (1, 3)]


def message_of(*fields: tuple[int, Any, bool], syntax: str = "proto3") -> Source:
    """A message `t.M` with scalar fields of (number, type, repeated), and `more` = 9, a list of itself."""
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="t", syntax=syntax)
    message = file.message_type.add(name="M")
    for number, kind, repeated in fields:
        label = _F.LABEL_REPEATED if repeated else _F.LABEL_OPTIONAL
        message.field.add(name=f"f{number}", number=number, type=kind, label=label)
    message.field.add(name="more", number=9, type=_F.TYPE_MESSAGE, type_name=".t.M", label=_F.LABEL_REPEATED)
    return Source("t.M", descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())


def packed(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2, *varint(len(data))]) + data


def varint(number: int) -> bytes:
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


NESTED: Callable[[int], bytes] = lambda count: packed(9, packed(9, packed(9, packed(9, b"\x4a\x00" * count))))  # noqa: E731


@pytest.mark.parametrize(
    ("payload", "least"),
    [
        (packed(1, b"\x01" * 5000), 5000),
        (packed(1, b"\x81\x00" * 5000), 5000),
        (packed(2, b"\x01" * 40_000), 5000),
        (b"\x08\x01" * 5000, 5000),
        (b"\xa2\x06\x00" * 5000, 5000),  # unknown field 100
        (b"\xa3\x06\xa4\x06" * 5000, 5000),  # an unknown group
        (b"\xca\x00\x00" * 5000, 10_000),  # a list element whose tag has a longer encoding than necessary
        (NESTED(5000), 5000),  # below the recursion depth, where a column has bytes
        (b"\x4a\x00" * 5000 + b"\xff", 10_000),  # the parser makes the elements before it refuses the end
        (packed(9, b"\x4a\x00" * 5000) + b"\x4a\x7f", 10_000),
    ],
)
def test_everything_that_the_parser_makes_is_counted(payload: bytes, least: int) -> None:
    meter = Meter(source_tree(message_of((1, _F.TYPE_INT32, True), (2, _F.TYPE_DOUBLE, True))))
    assert meter.values(payload, least - 1) >= least
    assert meter.too_many(payload, 100) is not None
    assert meter.beyond(values_of([b"", payload, b"\x08\x01"]), 100) == [1]
    assert meter.too_many(payload) is None
    elements = Meter(
        source_tree(message_of((1, _F.TYPE_INT32, True), (2, _F.TYPE_DOUBLE, True))), columns=False
    )
    assert 4999 < elements.values(payload, 4999) <= 10_010


def test_a_malformed_payload_ends_the_count() -> None:
    meter = Meter(source_tree(message_of()))
    for payload in (
        b"\xff" * 100,
        b"\x4a",
        b"\x4a\xff",
        b"\x0c",
        b"\x0f\x01",
        b"\x0b" * 500,
        b"\x4a\x80",
        b"\x4a" + b"\xff" * 30,
        b"\x0d\x01",
    ):
        assert meter.values(payload * 3, 1) >= meter._slots


def test_consume_shows_the_reason_instead_of_the_message() -> None:
    decoder = Decoder(ORDER, ORDER)
    shown = decoder.decode(order(1), LINE * 1_100_000)
    assert isinstance(shown["key"], dict) and shown["key"]["id"] == "1"
    assert shown["value"] == {
        "error": f"cannot be decoded as shop.Order: more than {VALUES_MAX} values in one record are not decoded"
    }


def test_what_an_any_holds_is_shown_up_to_a_size() -> None:
    """The record itself names the type, so the schema does not bound the decoded size."""
    file = descriptor_pb2.FileDescriptorProto(
        name="a.proto", package="a", syntax="proto3", dependency=["google/protobuf/any.proto"]
    )
    message = file.message_type.add(name="M")
    message.field.add(
        name="any", number=1, type=_F.TYPE_MESSAGE, type_name=".google.protobuf.Any", label=_F.LABEL_OPTIONAL
    )
    message.field.add(name="more", number=2, type=_F.TYPE_MESSAGE, type_name=".a.M", label=_F.LABEL_REPEATED)
    from google.protobuf import any_pb2

    own = descriptor_pb2.FileDescriptorProto.FromString(any_pb2.DESCRIPTOR.serialized_pb)
    decoder = Decoder(
        None, Source("a.M", descriptor_pb2.FileDescriptorSet(file=[own, file]).SerializeToString())
    )

    def record(count: int) -> bytes:
        return packed(1, packed(1, b"type.googleapis.com/a.M") + packed(2, b"\x12\x00" * count))

    shown: Any = decoder.decode(None, record(10))["value"]
    assert len(shown["any"]["more"]) == 10
    shown = decoder.decode(None, record(ANY_BYTES_MAX))["value"]
    assert "google.protobuf.Any is shown up to" in shown["error"]
