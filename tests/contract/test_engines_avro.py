"""Both engines for Avro: random schemas and records, damaged bytes, schemas that differ from the writer's."""

from __future__ import annotations

import copy
import io
import json
import random
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from archiver.schema.avro.fast_engine import FastAvroEngine
from archiver.schema.avro.lockstep import Lockstep
from archiver.schema.avro.model import parse_schema
from archiver.schema.avro.source import avro_source
from archiver.schema.evolution.state import TopicSchema, decide
from archiver.schema.protobuf.tree import ERR, PREFIX, RAW
from tests.support.schema.both_engines import columns_of, enveloped, mutated, plain, same_columns
from tests.support.schema.random_avro import Maker, varint, without_logical

SEEDS, RECORDS = 40, 100
"""4,000 records in each of three properties."""


def bare(schema: Any) -> TopicSchema:
    """The first version of a topic whose records have no envelope."""
    parsed = parse_schema(json.dumps(schema).encode(), "test")
    return decide("t", (), None, avro_source(parsed, "test")).schema


def registered(*schemas: Any) -> TopicSchema:
    """A version with these schemas under the ids 1, 2, …; the last is the newest."""
    parsed = [parse_schema(json.dumps(one).encode(), "test") for one in schemas]
    writers = {number: one.text for number, one in enumerate(parsed, 1)}
    return decide("t", (), None, avro_source(parsed[-1], "test", writers=writers)).schema


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_schemas_and_records(seed: int) -> None:
    maker = Maker(random.Random(seed))
    schema = bare(maker.schema)
    datums = [maker.datum() for _ in range(RECORDS)]
    value = same_columns(schema, [one.data for one in datums])
    judge = fastavro.parse_schema(without_logical(maker.schema))
    for one, row in zip(datums, value.to_pylist(), strict=True):
        assert row[ERR] is None
        assert plain(row) == named(one.column, schema)
        # Nanoseconds are the only thing that a column does not hold.
        assert row[RAW] is None or "nanos" in json.dumps(maker.schema)
        source = io.BytesIO(one.data)
        assert fastavro.schemaless_reader(source, judge) == one.plain
        assert source.read() == b""


def named(column: dict[str, Any], schema: TopicSchema) -> dict[str, Any]:
    """The expected columns of the top level, where names that differ only in case have a suffix."""
    struct = schema.schema()["fields"][1]["type"]["fields"][3:]
    found: dict[str, Any] = renamed(column, {"type": "struct", "fields": struct})
    return found


def renamed(value: Any, kind: Any) -> Any:
    if value is None or isinstance(kind, str):
        return value
    if kind["type"] == "list":
        return [renamed(one, kind["element"]) for one in value]
    if kind["type"] == "map":
        return [(key, renamed(one, kind["value"])) for key, one in value]
    return {
        column["name"]: renamed(one, column["type"])
        for column, one in zip(kind["fields"], value.values(), strict=True)
    }


@pytest.mark.parametrize("seed", range(SEEDS))
def test_damaged_records_disturb_no_other(seed: int) -> None:
    rng = random.Random(seed)
    maker = Maker(rng)
    schema = bare(maker.schema)
    good = [maker.datum().data for _ in range(RECORDS)]
    payloads = [mutated(rng, one) if rng.random() < 0.3 else one for one in good]
    whole, mixed = same_columns(schema, good), same_columns(schema, payloads)
    for row, (before, after) in enumerate(zip(good, payloads, strict=True)):
        if before == after:
            assert repr(mixed[row].as_py()) == repr(whole[row].as_py())


@pytest.mark.parametrize("seed", range(SEEDS))
def test_records_of_other_schemas(seed: int) -> None:
    rng = random.Random(seed)
    maker = Maker(rng)
    newest = changed(rng, maker.schema)
    schema = registered(maker.schema, newest)
    data = [maker.datum().data for _ in range(RECORDS)]
    payloads = [
        enveloped(rng.choice((1, 1, 1, 2, 3)), mutated(rng, one) if rng.random() < 0.1 else one)
        for one in data
    ]
    same_columns(schema, payloads)


def changed(rng: random.Random, schema: Any) -> Any:
    """The schema after some changes of its fields, at any level."""
    result = copy.deepcopy(schema)
    change_fields(rng, result)
    return result


PROMOTED = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}


def change_fields(rng: random.Random, kind: Any) -> None:
    if isinstance(kind, list):
        for one in kind:
            change_fields(rng, one)
    if not isinstance(kind, dict):
        return
    for part in ("items", "values"):
        if isinstance(kind.get(part), str) and kind[part] in PROMOTED and rng.random() < 0.3:
            kind[part] = rng.choice(PROMOTED[kind[part]])
        change_fields(rng, kind.get(part))
    if kind["type"] != "record":
        return
    for one in list(kind["fields"]):
        if isinstance(one["type"], str):
            change_plain(rng, kind["fields"], one)
        elif isinstance(one["type"], list) and len(one["type"]) > 1 and rng.random() < 0.1:
            one["type"] = one["type"][::-1]
        else:
            change_fields(rng, one["type"])
        if rng.random() < 0.1:
            one["aliases"] = [one["name"]]
            one["name"] = f"new_{one['name']}"
    rng.shuffle(kind["fields"])
    if rng.random() < 0.5:
        kind["fields"].append({"name": "added", "type": ["null", "string"], "default": None})


def change_plain(rng: random.Random, fields: list[Any], one: Any) -> None:
    """Remove, promote or widen to a union a field whose type is a name."""
    pick, before = rng.random(), one["type"]
    if pick < 0.15:
        fields.remove(one)
    elif pick < 0.3:
        one["type"] = rng.choice(PROMOTED.get(before, (before,)))
    elif pick < 0.4 and before in PROMOTED:
        one["type"] = ["null", before, "boolean"]


ORDER = {
    "type": "record",
    "name": "shop.Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ],
}


def order(number: int, *tags: str) -> bytes:
    items = b"".join(varint(len(one)) + one.encode() for one in tags)
    return varint(number) + (varint(len(tags)) + items if tags else b"") + b"\0"


def test_bytes_behind_a_datum_shift_no_neighbour() -> None:
    payloads = [order(number, "a", "b") for number in range(100)]
    payloads[50] += order(7)
    value = same_columns(bare(ORDER), payloads)
    rows = value.to_pylist()
    assert rows[50][ERR] == "cannot be decoded as shop.Order: 2 bytes are behind it"
    assert [row["id"] for row in rows] == [None if number == 50 else number for number in range(100)]
    assert [row[RAW] for row in rows] == [payloads[50] if number == 50 else None for number in range(100)]


def test_other_spellings_are_read_and_kept() -> None:
    spelled = {
        "padded number": b"\x82\x00" + b"\0",
        "two blocks": b"\x02" + b"\x02\x02a" + b"\x02\x02b" + b"\0",
        "a block with its size": b"\x02" + b"\x03\x08\x02a\x02b" + b"\0",
    }
    rows = same_columns(bare(ORDER), [*spelled.values()] * 10).to_pylist()[:3]
    assert [(row["id"], row["tags"]) for row in rows] == [(1, []), (1, ["a", "b"]), (1, ["a", "b"])]
    assert [row[RAW] for row in rows] == list(spelled.values())


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "it is cut off"),
        (b"\x02", "it is cut off"),
        (b"\x02\x02\x80", "it is cut off"),
        (b"\xff" * 9 + b"\x02\0", "a number has more than 64 bits"),
        (b"\xff" * 11 + b"\0", "a number is longer than 10 bytes"),
        (b"\x02\x02\x01\0", "a length is -1"),
        (b"\x02\x02\x04\xc3\x28\0", "a text is not UTF-8"),
        (b"\x02" + varint(2**40) + b"\0", "it is cut off"),
        (b"\x02" + varint(-(2**63)) + b"\0\0", "it is cut off"),
    ],
)
def test_what_is_no_datum(data: bytes, why: str) -> None:
    payloads = [order(1, "a")] * 20
    payloads[7] = data
    rows = same_columns(bare(ORDER), payloads).to_pylist()
    assert rows[7][ERR].startswith(f"cannot be decoded as shop.Order: {why}")
    assert rows[7][RAW] == data
    assert all(row["id"] == 1 for number, row in enumerate(rows) if number != 7)


def test_a_number_of_32_bits_and_what_a_time_may_be() -> None:
    def of(kind: Any, *numbers: int) -> list[Any]:
        schema = bare({"type": "record", "name": "R", "fields": [{"name": "v", "type": kind}]})
        rows = same_columns(schema, [varint(number) for number in numbers] * 10).to_pylist()
        return [row[ERR] or row["v"] for row in rows[: len(numbers)]]

    beyond = "cannot be decoded as R: "
    assert of("int", 2**31 - 1, 2**31) == [2**31 - 1, f"{beyond}2147483648 is no 32-bit number"]
    [late] = of({"type": "long", "logicalType": "timestamp-millis"}, 2**60)
    assert late == f"{beyond}a timestamp is outside the years 1 to 9999"
    [day] = of({"type": "int", "logicalType": "date"}, 2**31 - 1)
    assert day == f"{beyond}a date is outside the years 1 to 9999"
    [clock] = of({"type": "int", "logicalType": "time-millis"}, 86_400_000)
    assert clock == f"{beyond}a time is outside of a day"
    # A logical type that Avro does not have on this type is none.
    assert of({"type": "int", "logicalType": "timestamp-millis"}, 5) == [5]


def test_long_arrays_next_to_short_ones() -> None:
    payloads = [order(number, *("t" * (number % 3) for number in range(number % 7))) for number in range(200)]
    payloads[100] = order(5, *(str(number) for number in range(3000)))
    rows = same_columns(bare(ORDER), payloads).to_pylist()
    assert rows[100]["tags"] == [str(number) for number in range(3000)]
    assert all(row[RAW] is None for row in rows)


def test_ordinary_records_take_the_fast_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("archiver.schema.avro.complete_engine.AvroEngine.decode", pytest.fail)
    payloads = [order(number, "a") for number in range(1000)]
    assert columns_of(bare(ORDER), payloads).field(RAW).null_count == 1000


def test_a_key_twice_in_a_map_is_one_column() -> None:
    schema = bare(
        {"type": "record", "name": "R", "fields": [{"name": "m", "type": {"type": "map", "values": "int"}}]}
    )
    twice = varint(2) + b"\x02a\x02" + b"\x02a\x04" + b"\0"
    rows = same_columns(schema, [b"\0", twice] * 20).to_pylist()
    assert (rows[1]["m"], rows[1][RAW]) == ([("a", 2)], twice)
    assert (rows[0]["m"], rows[0][RAW]) == ([], None)


def test_fields_that_differ_only_in_case() -> None:
    fields = [
        {"name": name, "type": kind} for name, kind in (("id", "int"), ("ID", "string"), ("Id", "long"))
    ]
    schema = bare({"type": "record", "name": "R", "fields": fields})
    payload = varint(1) + b"\x02a" + varint(3)
    [row, *_] = same_columns(schema, [payload] * 20).to_pylist()
    assert plain(row) == {"id": 1, "ID_v2": "a", "Id_v3": 3}
    assert row[RAW] is None


def test_3000_fields() -> None:
    fields = [{"name": f"f{number}", "type": ["null", "long"]} for number in range(3000)]
    schema = bare({"type": "record", "name": "R", "fields": fields})
    payload = b"".join(b"\0" if number % 3 else b"\x02" + varint(number) for number in range(3000))
    [row, *_] = same_columns(schema, [payload] * 10).to_pylist()
    assert [row[f"f{number}"] for number in range(3000)] == [
        None if number % 3 else number for number in range(3000)
    ]
    assert row[RAW] is None


def test_a_former_name_that_is_still_a_field_is_no_former_name() -> None:
    first = {"type": "record", "name": "R", "fields": [{"name": name, "type": "int"} for name in "ba"]}
    second = {"type": "record", "name": "R", "fields": [{"name": "b", "type": "int", "aliases": ["a"]}]}
    payload = enveloped(1, varint(2) + varint(1))
    [row, *_] = same_columns(registered(first, second), [payload] * 20).to_pylist()
    assert (plain(row), row[RAW]) == ({"b": 2}, payload)


def test_branches_of_which_one_column_is_left() -> None:
    first, second = (
        {"type": "record", "name": "R", "fields": [{"name": "v", "type": kind}]}
        for kind in (["int", "long"], "long")
    )
    payloads = [enveloped(1, varint(branch) + varint(5)) for branch in range(2)]
    rows = same_columns(registered(first, second), payloads * 10).to_pylist()[:2]
    # As an int the column could not say which of the two was sent.
    assert [(row["v"], row[RAW]) for row in rows] == [(None, payloads[0]), (5, None)]


def test_decimals_of_another_scale_are_read_over() -> None:
    first, second = (
        {
            "type": "record",
            "name": "R",
            "fields": [
                {
                    "name": "v",
                    "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": scale},
                }
            ],
        }
        for scale in (2, 3)
    )
    payload = enveloped(1, varint(1) + b"\x07")
    [row, *_] = same_columns(registered(first, second), [payload] * 20).to_pylist()
    assert (row["v"], row[RAW]) == (None, payload)


def test_a_writer_of_another_schema_fills_what_fits() -> None:
    first = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "a", "type": "int"},
            {"name": "gone", "type": "string"},
            {"name": "old", "type": "string"},
            {"name": "state", "type": {"type": "enum", "name": "E", "symbols": ["X", "Y"]}},
        ],
    }
    second = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "new", "type": ["null", "string"], "aliases": ["old"]},
            {"name": "more", "type": "int", "default": 5},
            {"name": "state", "type": {"type": "enum", "name": "E", "symbols": ["X"]}},
            {"name": "a", "type": "long"},
        ],
    }
    schema = registered(first, second)
    empty = enveloped(1, varint(1) + b"\0" + b"\x02o" + b"\x02")
    filled = enveloped(1, varint(1) + b"\x02g" + b"\x02o" + b"\x02")
    rows = same_columns(schema, [empty, filled] * 10).to_pylist()
    # The default of `more` is not filled in, and the symbol is the one that was sent.
    assert plain(rows[0]) == plain(rows[1]) == {"new": "o", "more": None, "state": "Y", "a": 1}
    assert [row[RAW] for row in rows[:2]] == [None, filled], "an empty text is what an absent one encodes to"
    assert rows[0][PREFIX] == b"\0\0\0\0\1"


def test_branches_that_would_share_a_column_do_not() -> None:
    one = {"type": "enum", "name": "One", "symbols": ["W", "X"]}
    two = {"type": "enum", "name": "Two", "symbols": ["Y"]}
    schema = registered(
        {"type": "record", "name": "R", "fields": [{"name": "v", "type": [one, two]}]},
        {"type": "record", "name": "R", "fields": [{"name": "v", "type": two}]},
    )
    payloads = [enveloped(1, b"\x00\x02"), enveloped(1, b"\x02\x00"), enveloped(2, b"\x00")] * 20
    rows = same_columns(schema, payloads).to_pylist()[:3]
    assert [(row["v"], row[RAW] is None) for row in rows] == [(None, False), ("Y", True), ("Y", True)]


def test_records_without_an_envelope_are_no_records_of_a_subject() -> None:
    schema = registered(ORDER)
    payloads = [enveloped(1, order(1)), order(1), enveloped(9, order(1)), b"\0\0", b""] * 5
    rows = same_columns(schema, payloads).to_pylist()[:5]
    assert [row[ERR] for row in rows] == [
        None,
        "cannot be decoded as shop.Order: it has no registry envelope: its first byte is 2, not 0",
        (
            "cannot be decoded as shop.Order: its registry envelope has schema id 9, which is not one of the "
            "topic's subject"
        ),
        "cannot be decoded as shop.Order: its registry envelope is cut off or damaged, after 2 bytes",
        "cannot be decoded as shop.Order: its registry envelope is cut off or damaged, after 0 bytes",
    ]


def test_a_small_record_of_many_values_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = [{"name": f"f{number}", "type": ["null", "int"]} for number in range(500)]
    wide = {"type": "record", "name": "W", "fields": fields}
    item = ["null", wide]
    schema = bare(
        {"type": "record", "name": "R", "fields": [{"name": "v", "type": {"type": "array", "items": item}}]}
    )
    bomb = varint(10_000) + bytes(10_000) + b"\0"
    monkeypatch.setattr(Lockstep, "decode", pytest.fail)
    rows = same_columns(schema, [b"\0", bomb, b"\x02\x00\0"]).to_pylist()
    assert rows[1][ERR] == "cannot be decoded as R: more than 4194304 values in one record are not decoded"
    assert (rows[0]["v"], rows[2]["v"]) == ([], [None])


def test_columns_that_no_decode_has_made() -> None:
    parsed = parse_schema(json.dumps(ORDER).encode(), "test")
    kind = pa.struct([("id", pa.int64()), ("tags", pa.list_(pa.string()))])
    engine = FastAvroEngine(parsed, parsed, kind)
    with pytest.raises(pa.ArrowInvalid, match="null"):
        engine.encode(pa.array([{"id": None, "tags": []}], kind))
