"""Every engine keeps the byte-exact rule for random schemas and records, and both give the same columns."""

from __future__ import annotations

import json
import random
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.protobuf.message import DecodeError

from archiver.schema.codec import READ_COLUMNS, RecordCodec
from archiver.schema.evolution.state import TopicSchema, arrow_schema, decide
from archiver.schema.protobuf.tree import ERR, RAW, UNRECOGNIZED
from tests.support.schema.engine_rows import ENGINES, encoded, plain, schema_for, values_of, without_nan_raw
from tests.support.schema.protos import (
    TIMESTAMP,
    F,
    descriptor_of,
    field,
    file_of,
    map_field,
    message_class,
    order_file,
    orders,
    payloads,
    random_file,
    source,
    well_known_file,
)


def field_ids_in(schema: Any) -> set[int]:
    """The field ids that a Parquet schema carries, of leaves and groups."""
    return {int(one) for one in re.findall(r"field_id=(\d+)", str(schema))}


def field_ids_in_json(schema: TopicSchema, columns: tuple[str, ...]) -> set[int]:
    """All ids of the named top-level columns in the Iceberg schema."""
    text = json.dumps([one for one in schema.schema()["fields"] if one["name"] in columns])
    return {int(one) for one in re.findall(r'"(?:id|element-id|key-id|value-id)": (\d+)', text)}


def expected(message: Any) -> dict[str, Any]:
    """The expected columns of a message, from the producer's own descriptor; without unknown fields."""
    result: dict[str, Any] = {}
    for one in message.DESCRIPTOR.fields:
        value = getattr(message, one.name)
        if one.message_type is not None and one.message_type.GetOptions().map_entry:
            item = one.message_type.fields_by_number[2]
            result[one.name] = {key: expected_value(item, value[key]) for key in value}
        elif one.is_repeated:
            result[one.name] = [expected_value(one, each) for each in value]
        elif one.has_presence and not message.HasField(one.name):
            result[one.name] = None
        else:
            result[one.name] = expected_value(one, value)
    return result


def expected_value(one: Any, value: Any) -> Any:
    if one.enum_type is not None:
        known = one.enum_type.values_by_number
        return known[value].name if value in known else str(value)
    if one.message_type is None:
        return value
    if one.message_type.full_name == "google.protobuf.Timestamp":
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(
            seconds=value.seconds, microseconds=value.nanos // 1000
        )
    return expected(value)


def maps_as_dicts(row: Any) -> Any:
    """A column row with maps (lists of pairs) as dictionaries, without unknown fields."""
    if isinstance(row, dict):
        return {name: maps_as_dicts(one) for name, one in row.items() if name != UNRECOGNIZED}
    if isinstance(row, list):
        if row and all(isinstance(one, tuple) for one in row):
            return {key: maps_as_dicts(one) for key, one in row}
        return [maps_as_dicts(one) for one in row]
    return row


def same_as_expected(row: dict[str, Any], message: Any) -> bool:
    fields = {name: one for name, one in row.items() if name not in (RAW, ERR, "__prefix__")}
    wanted = expected(message)
    for name in wanted:
        if wanted[name] == {} and fields[name] == []:
            fields[name] = {}
    return bool(plain(empty_maps_alike(maps_as_dicts(fields))) == plain(empty_maps_alike(wanted)))


def empty_maps_alike(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: empty_maps_alike(one) for name, one in value.items()} if value else []
    if isinstance(value, list):
        return [empty_maps_alike(one) for one in value]
    return value


@pytest.mark.parametrize("seed", range(60))
def test_random_schemas_and_records(seed: int) -> None:
    rng = random.Random(seed)
    file = random_file(rng)
    value = source(file, "M0")
    make = message_class(value)
    bad = rng.choice((0.0, 0.1, 0.6))
    items = payloads(rng, make, 60, bad=bad)
    # Protobuf hides unknown numbers of closed enums; columns show them. Only injured records have any.
    compared = file.syntax == "proto3" or bad == 0.0
    fast, slow = (encoded(engine, value, items) for engine in ENGINES)
    assert plain([without_nan_raw(row) for row in fast]) == plain([without_nan_raw(row) for row in slow])
    for item, row in zip(items, fast, strict=True):
        assert (item is None) == (row is None)
        if item is None or row is None:
            continue
        if row[ERR] is not None:
            assert [name for name, one in row.items() if one is not None] == [RAW, ERR]
            continue
        message = make()
        try:
            message.ParseFromString(item)
        except DecodeError:
            pytest.fail(f"a payload that Protobuf refuses has columns: {item!r}")
        if row[RAW] is None and compared:
            assert same_as_expected(row, message), (row, message)


@pytest.mark.parametrize("seed", range(20))
def test_what_producers_write_needs_no_raw(seed: int) -> None:
    """Canonical bytes are rebuilt from columns alone, except fractions of a microsecond, which columns do not
    hold."""
    rng = random.Random(1000 + seed)
    value = source(random_file(rng), "M0")
    make = message_class(value)
    items = [
        item
        for item in payloads(rng, make, 200, bad=0.0)
        if item is not None and b"\x10\x95\x9a\xef\x3a" not in item
    ]
    for engine in ENGINES:
        rows = encoded(engine, value, items)
        assert [row for row in rows if row is None or row[RAW] is not None] == []


@pytest.mark.parametrize("engine", ENGINES)
class TestOrders:
    """Hand-made records of one ordinary schema."""

    value = source(order_file(), "Order")

    def test_good_records_have_no_raw(self, engine: str) -> None:
        rows = encoded(engine, self.value, orders(300, 1))
        assert all(row is not None and row[RAW] is None and row[ERR] is None for row in rows)

    def test_columns_read_as_people_expect(self, engine: str) -> None:
        make = message_class(self.value)
        order = make(id=2**64 - 1, status=2, card="", scores=[-1], labels={"a": "", "": "b"})
        order.created_at.seconds, order.created_at.nanos = -1, 999_999_000
        order.lines.add(quantity=2**32 - 1)
        [row] = encoded(engine, self.value, [order.SerializeToString(deterministic=True)])
        assert row is not None
        assert (int(row["id"]), row["status"], row["card"], row["invoice"]) == (2**64 - 1, "PAID", "", None)
        assert row["created_at"] == datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
        assert (row["customer"], row["note"], row["address"], row["payload"]) == ("", None, None, b"")
        assert row["lines"] == [{"sku": "", "quantity": 2**32 - 1, "price": 0.0, "__unrecognized__": None}]
        assert dict(row["labels"]) == {"a": "", "": "b"}
        assert row[RAW] is None

    @pytest.mark.parametrize(
        "bad",
        [
            b"\x08",
            b"\x12\x05abc",
            b"\x12\x02\xff\xff",
            b"\x12" + b"\xff" * 9 + b"\x01",
            b"\x32" + b"\xff" * 9 + b"\x01",
            b"\x00\x01",
            b"\x0c",
            b"\x0f\x01",
            b"\x08" + b"\xff" * 11,
            b"\x22\x02\x10\x80",
            b"\x22\x0b\x10" + b"\xff" * 9 + b"\x01",
            b"\x22\x0b\x08" + b"\x80" * 8 + b"\x7f\x08",
            b"\x22\x06\x08\xff\xff\xff\xff\xff",
            b"\x52\x01\x80",
        ],
    )
    def test_one_bad_record_leaves_its_neighbours_whole(self, engine: str, bad: bytes) -> None:
        good = orders(40, 2)
        rows = encoded(engine, self.value, [*good[:17], bad, *good[17:]])
        row = rows.pop(17)
        assert row is not None
        assert row[ERR] is not None and "shop.Order" in row[ERR] and "archiver" not in row[ERR]
        assert [name for name, one in row.items() if one is not None] == [RAW, ERR]
        assert rows == encoded(engine, self.value, list(good))

    def test_bad_records_far_apart_in_a_large_batch(self, engine: str) -> None:
        good = orders(500, 6)
        items = [good[i % 500] for i in range(9000 if engine == "ptars" else 600)]
        bad = {
            0: b"\x08",
            17: b"\x12" + b"\xff" * 9 + b"\x01",
            len(items) // 2: b"\x48\x05\x42\x01a",
            len(items) - 1: b"\x0c",
        }
        for place, payload in bad.items():
            items[place] = payload
        rows = encoded(engine, self.value, items)
        odd = {place: row for place, row in enumerate(rows) if row is None or row[RAW] is not None}
        assert {place: row[RAW] for place, row in odd.items() if row is not None} == bad
        assert [place for place, row in odd.items() if row is not None and row[ERR] is None] == [
            len(items) // 2
        ]
        assert [row["id"] for row in rows[18:40] if row is not None] == list(range(18, 40))

    def test_a_failing_batch_changes_nothing_in_those_behind_it(self, engine: Any) -> None:
        good = orders(300, 6) * (240 if engine == "ptars" else 2)  # more than are decoded at once
        bad = [*good[:100], b"\x08", *good[101:]]
        codec, nulls = RecordCodec(schema_for(self.value), engine), [None] * len(good)
        found: list[Any] = [
            codec.encode_columns(values_of(nulls), values_of(items))[1] for items in (good, bad, good)
        ]
        before, failing, after = found
        assert before.field(RAW).null_count == len(good)
        assert after.equals(before)
        assert failing[100].as_py()[ERR] is not None
        assert failing.slice(0, 100).equals(before.slice(0, 100)) and failing.slice(101).equals(
            before.slice(101)
        )

    def test_only_bad_records(self, engine: str) -> None:
        rows = encoded(engine, self.value, [b"\x08", b"\xff", b"\x0c"] * 50)
        assert all(row is not None and row[ERR] for row in rows)

    @pytest.mark.parametrize(
        ("payload", "name", "shown"),
        [
            (b"\x18\x4d", "status", "77"),
            (b"\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "status", "-1"),
            (b"\x08\x01\x08\x02", "id", 2),
            (b"\x42\x01a\x48\x05", "card", None),
            (b"\x48\x05\x42\x01a", "invoice", None),
            (b"\x3a\x06\x0a\x01a\x12\x01b\x3a\x06\x0a\x01a\x12\x01c", "labels", [("a", "c")]),
            (b"\x3a\x03\x12\x01b", "labels", [("", "b")]),
            (b"\x3a\x00", "labels", [("", "")]),
            (b"\x22\x02\x10\x01", "created_at", datetime(1970, 1, 1, tzinfo=UTC)),
            (b"\x08\x81\x00", "id", 1),
            (b"\x50\x02\x50\x04", "scores", [1, 2]),
            (b"\xa0\x06\x01\x08\x01", "id", 1),
            (b"\x0d\x01\x02\x03\x04\x12\x01a", "id", 0),
            (b"\x0d\x01\x02\x03\x04\x12\x01a", "__unrecognized__", b"\x0d\x01\x02\x03\x04"),
            (
                b"\x2a\x03\x0a\x01x\x2a\x03\x12\x01y",
                "address",
                {"city": "x", "zip": "y", "__unrecognized__": None},
            ),
        ],
    )
    def test_odd_records_read_as_protobuf_reads_them(
        self, engine: str, payload: bytes, name: str, shown: Any
    ) -> None:
        [row] = encoded(engine, self.value, [payload])
        assert row is not None and row[ERR] is None
        assert row[name] == shown
        kept = name == "status"
        assert (row[RAW] is None) == kept

    def test_null_is_not_empty(self, engine: str) -> None:
        rows = encoded(engine, self.value, [None, b"", None])
        assert rows[0] is None and rows[2] is None
        assert rows[1] is not None and rows[1]["id"] == 0 and rows[1]["lines"] == [] and rows[1][RAW] is None

    def test_empty_batch_and_all_null(self, engine: str) -> None:
        assert encoded(engine, self.value, []) == []
        assert encoded(engine, self.value, [None, None]) == [None, None]

    def test_sliced_and_chunked_input(self, engine: str) -> None:
        good = orders(50, 3)
        items: list[bytes | None] = [*good[:10], None, b"\x08", *good[10:]]
        codec = RecordCodec(schema_for(self.value), engine)  # type: ignore[arg-type]
        whole = values_of(items)
        key, column = codec.encode_columns(whole, whole)
        for start, length in ((0, 3), (5, 20), (9, 4), (49, 3)):
            _, part = codec.encode_columns(whole.slice(start, length), whole.slice(start, length))
            assert part.equals(column.slice(start, length))
            assert (
                codec.rebuild(key.slice(start, length), column.slice(start, length))[1].to_pylist()
                == items[start : start + length]
            )
        chunked = pa.chunked_array([whole.slice(0, 7), whole.slice(7)])
        assert codec.encode_columns(chunked, chunked)[1].equals(column)
        rebuilt = codec.rebuild(
            pa.chunked_array([key]), pa.chunked_array([column.slice(0, 30), column.slice(30)])
        )
        assert rebuilt[1].to_pylist() == items and rebuilt[0].to_pylist() == items

    def test_through_parquet(self, engine: str, tmp_path: Any) -> None:
        rng = random.Random(5)
        items = [*orders(200, 4), *payloads(rng, message_class(self.value), 200)]
        schema = schema_for(self.value)
        codec = RecordCodec(schema, engine)  # type: ignore[arg-type]
        keys = values_of([None if i % 7 == 0 else f"k{i}".encode() for i in range(len(items))])
        columns = codec.encode_columns(keys, values_of(items))
        layout = arrow_schema(schema)
        table = pa.Table.from_arrays(
            list(columns), schema=pa.schema([layout.field("key"), layout.field("value")])
        )
        path = tmp_path / "part.parquet"
        pq.write_table(table, path, compression="zstd", row_group_size=64)
        assert pq.read_schema(path).equals(table.schema)
        assert field_ids_in(pq.ParquetFile(path).schema) == field_ids_in_json(schema, ("key", "value"))
        read = pq.ParquetFile(path).read(columns=list(READ_COLUMNS))
        rebuilt_keys, rebuilt = codec.rebuild(read["key"], read["value"])
        assert rebuilt.to_pylist() == items
        assert rebuilt_keys == keys

    def test_a_stack_of_groups_does_not_kill_the_process(self, engine: str) -> None:
        deep = b"\xa3\x06" * 400_000
        rows = encoded(
            engine,
            self.value,
            [deep, *orders(3, 1), deep + b"\xa4\x06" * 400_000, b"\x2a\x80\xea\x30" + deep, b"\x0b" * 8192],
        )
        assert [row is not None and row[ERR] is not None for row in rows] == [
            True,
            False,
            False,
            False,
            True,
            True,
            True,
        ]

    def test_large_good_records(self, engine: str) -> None:
        make = message_class(self.value)
        items = [
            make(payload=bytes([i]) * 100_000, customer="x" * 20_000).SerializeToString() for i in range(5)
        ]
        rows = encoded(engine, self.value, [*items, b"\x08", *items])
        assert sum(row is not None and row[RAW] is None for row in rows) == 10

    @pytest.mark.parametrize("seconds", [253_402_300_800, -62_135_596_801, 2**63 - 1, -(2**63)])
    def test_a_timestamp_out_of_range_is_an_error(self, engine: str, seconds: int) -> None:
        order = message_class(self.value)()
        order.created_at.seconds = seconds
        rows = encoded(engine, self.value, [*orders(3, 1), order.SerializeToString()])
        assert rows[3] is not None and "created_at" in rows[3][ERR]


@pytest.mark.parametrize("engine", ENGINES)
def test_timestamps_out_of_range_deep_inside(engine: str) -> None:
    file = file_of()
    inner = file.message_type.add(name="Inner")
    field(inner, "at", 1, F.TYPE_MESSAGE, type_name=TIMESTAMP, repeated=True)
    outer = file.message_type.add(name="Outer")
    map_field(outer, "shop.Outer", "by_name", 1, F.TYPE_STRING, F.TYPE_MESSAGE, ".shop.Inner")
    field(outer, "all", 2, F.TYPE_MESSAGE, type_name=".shop.Inner", repeated=True)
    value = source(file, "Outer")
    make = message_class(value)
    good, bad = make(), make()
    for one in (good, bad):
        one.all.add()
        one.by_name["x"].at.add(seconds=5)
        one.by_name["y"].at.add(seconds=5)
    bad.by_name["y"].at.add(nanos=-1)
    rows = encoded(
        engine,
        value,
        [
            good.SerializeToString(),
            make().SerializeToString(),
            bad.SerializeToString(),
            good.SerializeToString(),
        ],
    )
    assert [row is not None and row[ERR] is not None for row in rows] == [False, False, True, False]
    assert rows[0] is not None and rows[3] is not None and rows[0][RAW] is None and rows[3][RAW] is None


@pytest.mark.parametrize("engine", ENGINES)
def test_proto2_text_that_is_not_utf8_is_an_error(engine: str) -> None:
    file = file_of(syntax="proto2")
    message = file.message_type.add(name="Old")
    field(message, "name", 1, F.TYPE_STRING)
    field(message, "names", 2, F.TYPE_STRING, repeated=True)
    rows = encoded(engine, source(file, "Old"), [b"\x0a\x01a", b"\x0a\x01\xff", b"\x12\x01\xff", b""])
    assert [row is not None and row[ERR] is not None for row in rows] == [False, True, True, False]


@pytest.mark.parametrize("engine", ENGINES)
def test_closed_enums_show_unknown_numbers(engine: str) -> None:
    file = file_of(syntax="proto2")
    file.enum_type.add(name="Size").value.add(name="SMALL", number=3)
    message = file.message_type.add(name="Old")
    field(message, "size", 1, F.TYPE_ENUM, type_name=".shop.Size")
    field(message, "sizes", 2, F.TYPE_ENUM, type_name=".shop.Size", repeated=True)
    rows = encoded(engine, source(file, "Old"), [b"\x08\x03\x10\x03\x10\x09", b"\x08\x00", b""])
    assert [row and (row["size"], row["sizes"], row[RAW]) for row in rows] == [
        ("SMALL", ["SMALL", "9"], None),
        ("0", [], None),
        (None, [], None),
    ]


@pytest.mark.parametrize("engine", ENGINES)
def test_keys_keep_their_bytes_and_have_fields(engine: Any) -> None:
    schema = decide("t", (), source(order_file(), "Order"), None).schema
    codec = RecordCodec(schema, engine)
    keys, values = values_of([*orders(2, 9), b"\x08", None, b""]), values_of([None, b"", b"x", b"y", b"\xff"])
    key, value = codec.encode_columns(keys, values)
    columns: tuple[Any, Any] = (key, value)
    rows = columns[0].to_pylist()
    assert rows[3] is None
    assert [row[RAW] for row in rows if row is not None] == [
        one for one in keys.to_pylist() if one is not None
    ]
    assert rows[2] is not None and rows[2][ERR] is not None and rows[0] is not None and rows[0]["id"] == 0
    assert columns[1].to_pylist() == [None, {RAW: b""}, {RAW: b"x"}, {RAW: b"y"}, {RAW: b"\xff"}]
    assert codec.rebuild(key, value) == (keys, values)


def float_source() -> Any:
    file = file_of()
    message = file.message_type.add(name="Sale")
    field(message, "f", 1, F.TYPE_FLOAT)
    field(message, "r", 2, F.TYPE_FLOAT, repeated=True)
    map_field(message, "shop.Sale", "m", 3, F.TYPE_INT32, F.TYPE_FLOAT)
    return source(file, "Sale")


def test_what_one_engine_wrote_the_other_gives_back_also_signaling_nans() -> None:
    """A Python float cannot hold a signaling NaN. The fast engine falls back to the complete one for whole
    batches, so both must give the same."""
    items = [
        b"\x0d\x00\x00\x84\x7f",
        b"\x12\x04\x01\x00\x80\x7f",
        b"\x1a\x07\x08\x01\x15\x01\x00\x80\xff",
        b"\x0d\x00\x00\xc0\x7f",
    ]
    codecs = [RecordCodec(schema_for(float_source()), engine) for engine in ("ptars", "protobuf")]
    for writer in codecs:
        keys, values = writer.encode_columns(pa.nulls(len(items), pa.binary()), pa.array(items, pa.binary()))
        for reader in codecs:
            assert reader.rebuild(keys, values)[1].to_pylist() == items


def test_json_too_deep_for_the_message_around_it() -> None:
    """Protobuf counts 100 levels from the outermost message; the fast engine parses JSON by itself, one level
    deeper."""
    number = next(
        one.number
        for one in descriptor_of(source(well_known_file(), "WellKnown")).fields
        if one.name == "anything"
    )
    deep = b"\x08\x00"
    for _ in range(49):
        deep = wrapped(6, wrapped(1, deep))
    good, bad = wrapped(number, deep), wrapped(number, wrapped(6, wrapped(1, deep)))
    for engine in ENGINES:
        rows = encoded(engine, source(well_known_file(), "WellKnown"), [good, bad, good])
        assert [row is not None and row[ERR] is None for row in rows] == [True, False, True]


def wrapped(number: int, data: bytes) -> bytes:
    """A message in a field; both numbers may take two bytes."""
    head = b"".join(
        bytes([one]) if one < 128 else bytes([one & 127 | 128, one >> 7])
        for one in (number << 3 | 2, len(data))
    )
    return head + data
