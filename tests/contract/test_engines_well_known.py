"""Both engines give the same columns and bytes for the well-known types: wrappers, JSON, and messages of
their own fields."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import struct_pb2

from archiver.schema.evolution.state import arrow_schema
from archiver.schema.protobuf.complete_engine import ProtobufEngine
from archiver.schema.protobuf.descriptors import Source, source_tree
from archiver.schema.protobuf.engine import Engine
from archiver.schema.protobuf.ptars_engine import PtarsEngine
from archiver.schema.protobuf.tree import ERR, RAW, UNRECOGNIZED
from tests.support.schema.engine_rows import both, schema_for, shown
from tests.support.schema.protos import message_class, source, well_known_file

WELL_KNOWN = source(well_known_file(), "WellKnown")


class TestWrappers:
    def test_zero_is_not_null(self) -> None:
        make = message_class(WELL_KNOWN)
        full = make()
        for name in (
            "a_double",
            "a_float",
            "an_int64",
            "a_uint64",
            "an_int32",
            "a_uint32",
            "a_bool",
            "a_string",
            "a_bytes",
        ):
            getattr(full, name).SetInParent()
        some = make()
        some.a_uint64.value, some.a_float.value, some.a_string.value = 2**64 - 1, -0.0, "x"
        some.doubles.add(value=1.5)
        some.doubles.add()
        some.bool_by_name["a"].value = True
        some.bool_by_name["b"].SetInParent()
        rows = both(WELL_KNOWN, [one.SerializeToString(deterministic=True) for one in (full, make(), some)])
        assert all(row[RAW] is None for row in rows)
        assert shown(rows[0]) == {
            **dict.fromkeys(("a_double", "a_float", "an_int64", "a_uint64", "an_int32", "a_uint32"), 0),
            "a_bool": False,
            "a_string": "",
            "a_bytes": b"",
        }
        assert shown(rows[1]) == {}
        assert rows[2]["a_uint64"] == Decimal(2**64 - 1) and repr(rows[2]["a_float"]) == "-0.0"
        assert rows[2]["doubles"] == [1.5, 0.0] and dict(rows[2]["bool_by_name"]) == {"a": True, "b": False}

    def test_odd_ones(self) -> None:
        twice = b"\x5a\x02\x08\x01\x5a\x00"  # a_uint32 = 11: merged
        explicit = b"\x5a\x02\x08\x00"
        alongside = b"\x5a\x04\x10\x07\x08\x01"
        no_value = b"\xb2\x01\x03\x0a\x01a"  # bool_by_name = 22: an entry without value
        rows = both(WELL_KNOWN, [twice, explicit, alongside, no_value, b"\x5a\x01\x08"])
        assert [row["a_uint32"] for row in rows] == [1, 0, 1, None, None]
        assert rows[3]["bool_by_name"] == [("a", False)]
        assert [row[RAW] is not None for row in rows] == [True] * 5
        assert [row[ERR] is not None for row in rows] == [False] * 4 + [True]


def value_bytes(**kinds: Any) -> bytes:
    return struct_pb2.Value(**kinds).SerializeToString()


class TestJson:
    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (None, "null"),
            (True, "true"),
            (0.0, "0"),
            (-0.0, "-0.0"),
            (1.0, "1"),
            (-17.0, "-17"),
            (0.1, "0.1"),
            (1e22, "1e+22"),
            (5e-324, "5e-324"),
            (2.0**53, "9007199254740992.0"),
            ("", '""'),
            ('a "b"\n\x00é\U0001f422', '"a \\"b\\"\\n\\u0000é\U0001f422"'),
            ([], "[]"),
            ([1.0, [None, {}], "x"], '[1,[null,{}],"x"]'),
            ({"b": 1.5, "": False}, '{"b":1.5,"":false}'),
        ],
    )
    def test_values_are_text_and_back(self, value: Any, text: str) -> None:
        message = message_class(WELL_KNOWN)()
        _fill(message.anything, value)
        _fill(message.anythings.add(), value)
        [row] = both(WELL_KNOWN, [message.SerializeToString(deterministic=True)])
        assert (row["anything"], row["anythings"], row[RAW]) == (text, [text], None)

    def test_structs_and_lists(self) -> None:
        message = message_class(WELL_KNOWN)()
        message.object.SetInParent()
        _fill(message.array.values.add(), 3.0)
        _fill(message.object_by_id[-1].fields["x"], "y")
        message.object_by_id[2].SetInParent()
        rows = both(WELL_KNOWN, [message.SerializeToString(deterministic=True), b""])
        assert (rows[0]["object"], rows[0]["array"], rows[0][RAW]) == ("{}", "[3]", None)
        assert dict(rows[0]["object_by_id"]) == {-1: '{"x":"y"}', 2: "{}"}
        assert shown(rows[1]) == {} and rows[1][RAW] is None

    def test_keys_keep_the_order_of_the_wire(self) -> None:
        entries = [
            b"\x0a" + bytes([len(one)]) + one for one in (_entry("z", b"\x20\x01"), _entry("a", b"\x08\x00"))
        ]
        for order, text in ((entries, '{"z":true,"a":null}'), (entries[::-1], '{"a":null,"z":true}')):
            struct = b"".join(order)
            [row] = both(WELL_KNOWN, [b"\x7a" + bytes([len(struct)]) + struct])
            assert (row["object"], row[RAW]) == (text, None)

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (value_bytes(number_value=float("nan")), '"NaN"'),
            (value_bytes(number_value=float("inf")), '"Infinity"'),
            (value_bytes(number_value=float("-inf")), '"-Infinity"'),
            (b"", "null"),
            (b"\x08\x05", "null"),
            (b"\x20\x01\x1a\x01x", '"x"'),
            (b"\x2a\x08\x0a\x06\x0a\x01k\x12\x01\x20", None),
            (b"\x2a\x10" + (b"\x0a\x06\x0a\x01k\x12\x01" + b"\x00") * 2, None),
            (b"\x2a\x12\x0a\x07\x0a\x01k\x12\x02\x20\x00\x0a\x07\x0a\x01k\x12\x02\x20\x01", '{"k":true}'),
            (b"\x20\x01\x50\x07", "true"),
            (b"\x1a\x01\xff", None),
        ],
    )
    def test_odd_values_keep_their_bytes(self, value: bytes, text: str | None) -> None:
        good = message_class(WELL_KNOWN)(a_string={"value": "neighbour"}).SerializeToString()
        payload = b"\x82\x01" + bytes([len(value)]) + value
        rows = both(WELL_KNOWN, [good, payload, good])
        assert rows[1]["anything"] == text
        assert rows[1][RAW] == payload and (rows[1][ERR] is None) == (text is not None)
        assert rows[0] == rows[2] and rows[0]["a_string"] == "neighbour"

    def test_a_struct_that_occurs_twice_is_merged(self) -> None:
        parts = [b"\x7a\x09\x0a\x07" + _entry(name, b"\x20\x01") for name in "ab"]
        [row] = both(WELL_KNOWN, [b"".join(parts)])
        assert (row["object"], row[RAW] is not None) == ('{"a":true,"b":true}', True)

    def test_columns_that_no_decode_made(self) -> None:
        for engine in engines(WELL_KNOWN):
            for text in ("", "{", "NaN", '{"a":1}x', "[1]", '{"a":"\\ud800"}', '{"a":' * 100_000):
                row = {one.name: None for one in engine.message_type}
                columns: Any = pa.array([{**row, "object": text}], engine.message_type)
                with pytest.raises(pa.ArrowInvalid):
                    engine.encode(columns)


def engines(value: Source) -> list[Engine]:
    side = arrow_schema(schema_for(value)).field("value").type
    message = pa.struct([one for one in side if one.name not in (RAW, ERR, "__prefix__")])
    tree = source_tree(value)
    return [ProtobufEngine(tree, message), PtarsEngine(tree, message)]


def _entry(key: str, value: bytes) -> bytes:
    return b"\x0a" + bytes([len(key)]) + key.encode() + b"\x12" + bytes([len(value)]) + value


def _fill(message: Any, value: Any) -> None:
    if value is None:
        message.null_value = 0
    elif isinstance(value, bool):
        message.bool_value = value
    elif isinstance(value, float):
        message.number_value = value
    elif isinstance(value, str):
        message.string_value = value
    elif isinstance(value, list):
        message.list_value.SetInParent()
        for one in value:
            _fill(message.list_value.values.add(), one)
    else:
        message.struct_value.SetInParent()
        for name, one in value.items():
            _fill(message.struct_value.fields[name], one)


def test_the_fast_engine_needs_no_second_look() -> None:
    """The engines run without the codec, which would have the odd rows decoded again."""
    make = message_class(WELL_KNOWN)
    full = make(a_string={"value": "x"}, an_int32={}, a_double={"value": -0.0}, doubles=[{"value": 2}, {}])
    full.at.seconds, full.wait.nanos = 5, 7
    full.nothing.SetInParent()
    _fill(full.anything, {"a": [1.5, None]})
    payloads: Any = pa.array([full.SerializeToString(), b"", b"\x82\x01\x01\x20", full.SerializeToString()])
    slow, fast = (engine.decode(payloads) for engine in engines(WELL_KNOWN))
    assert fast.columns.equals(slow.columns)
    assert list(fast.errors) == list(slow.errors) == [2]


def test_messages_of_google_with_their_own_fields() -> None:
    message = message_class(WELL_KNOWN)()
    message.wait.seconds, message.wait.nanos = -5, -1
    message.any.type_url, message.any.value = "type.googleapis.com/x", b"\xff\x00"
    message.mask.paths.extend(["a.b", ""])
    message.nothing.SetInParent()
    [row] = both(WELL_KNOWN, [message.SerializeToString()])
    none = {UNRECOGNIZED: None}
    assert (row["wait"], row["mask"]) == (
        {"seconds": -5, "nanos": -1, **none},
        {"paths": ["a.b", ""], **none},
    )
    assert (row["any"], row["nothing"]) == (
        {"type_url": "type.googleapis.com/x", "value": b"\xff\x00", **none},
        none,
    )
    assert row[RAW] is None
