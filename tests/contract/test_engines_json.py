"""Both engines for JSON: random schemas and documents, damaged bytes, and what is no document."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pytest

from archiver.schema.evolution.state import TopicSchema, decide
from archiver.schema.json.complete_engine import NESTING_MAX, JsonEngine
from archiver.schema.json.source import any_json_source, json_source
from archiver.schema.json.spacing import without_spaces
from archiver.schema.protobuf.error_causes import cause_of
from archiver.schema.protobuf.tree import ERR, PREFIX, RAW, UNRECOGNIZED
from tests.support.schema.both_engines import columns_of, enveloped, mutated, plain, same_columns
from tests.support.schema.json_reads import sizes_of_reads
from tests.support.schema.random_json import Document, Maker

SEEDS, RECORDS = 50, 100
"""5,000 records in each of two properties."""


def schema_of(schema: Any, ids: tuple[int, ...] | None = None) -> TopicSchema:
    """The first version of a topic."""
    source = json_source(json.dumps(schema).encode(), "test", ids=ids)
    return decide("t", (), None, source).schema


def expected(column: Any, kind: Any) -> Any:
    """The columns of a document with the names that its table has."""
    if column is None or isinstance(kind, str):
        return column
    if kind["type"] == "list":
        return [expected(one, kind["element"]) for one in column]
    if kind["type"] == "map":
        return [(key, expected(one, kind["value"])) for key, one in column]
    return {
        one["name"]: expected(value, one["type"])
        for one, value in zip(kind["fields"], column.values(), strict=True)
    }


def top_of(schema: TopicSchema) -> Any:
    struct = schema.schema()["fields"][1]["type"]
    return {"type": "struct", "fields": struct["fields"][3:]}


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_schemas_and_documents(seed: int) -> None:
    rng = random.Random(seed)
    maker = Maker(rng, plain=seed % 2 == 0)
    schema = schema_of(maker.schema)
    made = [maker.document(rng.choice((0.0, 0.0, 1.0))) for _ in range(RECORDS)]
    rows = same_columns(schema, [one.data for one in made]).to_pylist()
    top = top_of(schema)
    for one, row in zip(made, rows, strict=True):
        assert row[ERR] is None, one.data
        assert plain(row) == expected(one.column, top), one.data
        assert row[RAW] == (None if one.exact else one.data)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_damaged_documents_disturb_no_other(seed: int) -> None:
    rng = random.Random(1000 + seed)
    maker = Maker(rng, plain=seed % 4 > 0)
    schema = schema_of(maker.schema)
    good: list[Document] = [maker.document(rng.choice((0.0, 1.0))) for _ in range(RECORDS)]
    payloads = [mutated(rng, one.data) if rng.random() < 0.3 else one.data for one in good]
    rows = same_columns(schema, payloads).to_pylist()
    top = top_of(schema)
    for one, payload, row in zip(good, payloads, rows, strict=True):
        if payload == one.data:
            assert plain(row) == expected(one.column, top)
        elif row[ERR] is None:
            assert accepted(payload), payload


def accepted(payload: bytes) -> bool:
    """Whether another parser takes a document for one."""
    try:
        json.loads(payload.decode("utf-8"))
    except ValueError:
        return False
    return True


ORDER = {
    "title": "Order",
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "price": {"type": "number"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "buyer": {"type": "object", "properties": {"name": {"type": ["string", "null"]}}},
    },
}


DATE = {"type": "string", "format": "date"}


def order(number: int, *tags: str) -> bytes:
    value = {"id": number, "price": 0.5, "tags": tags, "buyer": {"name": f"n{number}"}}
    return json.dumps(value, separators=(",", ":")).encode()


def test_ordinary_records_take_the_fast_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("archiver.schema.json.complete_engine.JsonEngine.decode", pytest.fail)
    payloads = [order(number, "a", 'b"\n') for number in range(10_000)]
    assert columns_of(schema_of(ORDER), payloads).field(RAW).null_count == 10_000


def test_dates_and_moments_take_the_fast_way(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = schema_of({"properties": {"d": DATE, "t": {**DATE, "format": "date-time"}}})
    moments = ("2026-11-28T14:00:00Z", "1969-12-31T23:59:59.999Z", "0001-01-01T00:00:00.000001Z")
    payloads = [
        json.dumps({"d": f"20{row:02}-02-28", "t": moment}, separators=(",", ":")).encode()
        for row in range(100)
        for moment in moments
    ]
    complete = columns_of(schema, payloads, "protobuf")
    monkeypatch.setattr(JsonEngine, "decode", pytest.fail)
    value = columns_of(schema, payloads)
    assert value.equals(complete)
    assert (value.field("d").null_count, value.field("t").null_count, value.field(RAW).null_count) == (
        0,
        0,
        300,
    )


def test_pieces_of_a_batch_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = sizes_of_reads(monkeypatch)
    payloads = [order(number, "x" * 4_000) for number in range(2_200)]
    columns_of(schema_of(ORDER), payloads)
    assert max(reads) <= 4 * 2**20 < sum(reads) == sum(len(one) for one in payloads)
    reads.clear()
    columns_of(schema_of(ORDER), [order(1)] * 10_000)
    assert len(reads) == 3, "pieces of 4,096 rows"


def test_white_space_alone_needs_no_complete_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    payloads = [json.dumps(json.loads(order(number, "a b", ": c"))).encode() for number in range(5_000)]
    complete = columns_of(schema_of(ORDER), payloads, "protobuf")
    monkeypatch.setattr(JsonEngine, "decode", pytest.fail)
    value = columns_of(schema_of(ORDER), payloads)
    assert value.equals(complete)
    assert value.field(RAW).to_pylist() == payloads


@pytest.mark.parametrize(
    "data",
    [
        b'{"id":1 2}',
        b'{"id": - 1}',
        b'{"id": 1, "price": 0. 5}',
        b'{"id": 1, "tags": ["a" "b"]}',
        b'{"id": 1, "tags": ["a]}',
        b'{"id": 1, "tags": ["a" ] "}',
        b'{"id": nu ll}',
        b'{"id" "x": 1}',
    ],
)
def test_white_space_inside_a_value_joins_nothing(data: bytes) -> None:
    payloads = [json.dumps(json.loads(order(number))).encode() for number in range(40)]
    payloads[9] = payloads[11] = data
    rows = same_columns(schema_of(ORDER), payloads).to_pylist()
    assert rows[9][ERR].startswith("cannot be decoded as Order: it is not JSON: ")
    assert [row["id"] for row in rows] == [None if number in (9, 11) else number for number in range(40)]
    assert [row[RAW] for row in rows] == payloads


@pytest.mark.parametrize(
    ("text", "meaning", "certain"),
    [
        (b'{ "a" :\n[ 1 ,\t2 ]\r} ', b'{"a":[1,2]}', True),
        (b'{"a": "b  c", "d": ""}', b'{"a":"b  c","d":""}', True),
        (b'{"a":1 2}', None, False),
        (b'{"a":"b" "c"}', None, False),
        (b'{"a": "\\" b"}', None, False),
        (b'{"a": "b}', None, False),
        (b"", b"", True),
    ],
)
def test_documents_without_their_spaces(text: bytes, meaning: bytes | None, certain: bool) -> None:
    around = b'{"x": "y z"}'
    found, sure = without_spaces(pa.array([around, text, around], pa.binary()))
    assert sure.tolist() == [True, certain, True]
    assert found[0].as_py() == found[2].as_py() == b'{"x":"y z"}'
    assert meaning is None or found[1].as_py() == meaning


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "it is not JSON: Expecting value: line 1 column 1 (char 0)"),
        (b"{", "it is not JSON: "),
        (b'{"id":1} x', "it is not JSON: Extra data: line 1 column 10 (char 9)"),
        (b'{"id":1}{"id":2}', "it is not JSON: Extra data"),
        (b'{"id":1}\n{"id":2}', "it is not JSON: Extra data"),
        (b"\n\n", "it is not JSON: Expecting value"),
        (b"[1]", "it is an array where the schema has an object; correct the producer"),
        (b"null", "it is null where the schema has an object"),
        (b'{"id":NaN}', "it is not JSON: NaN is not JSON"),
        (b'{"id":-Infinity}', "it is not JSON: -Infinity is not JSON"),
        (b'{"id":1,"id":1}', "it has the name 'id' twice; which of the two counts is not defined"),
        (b'{"buyer":{"name":"a","name":"b"}}', "buyer has the name 'name' twice"),
        (b'{"x":{"y":[{"a":1,"a":1}]}}', "x.y[0] has the name 'a' twice"),
        (b'{"id":"1"}', "id is a string where the schema has an integer; correct the producer"),
        (b'{"id":true}', "id is a boolean where the schema has an integer"),
        (b'{"tags":["a",5]}', "tags[1] is a number where the schema has a string"),
        (b'{"buyer":{"name":{}}}', "buyer.name is an object where the schema has a string"),
        (b'{"tags":["\\ud800"]}', "tags[0] has half of a surrogate pair"),
        (b'{"new":{"\\udfff":1}}', "new.\\udfff has half of a surrogate pair"),
        (b'{"tags":["\xff"]}', "it is not UTF-8: invalid start byte at byte 10"),
        (b'{"tags":["\xed\xa0\x80"]}', "it is not UTF-8: "),
        (b'\xef\xbb\xbf{"id":1}', "it is not JSON: "),
        (b'{"tags":["a\x01"]}', "it is not JSON: Invalid control character"),
        (b'{"x":' + b"[" * 200 + b"]" * 200 + b"}", f"it is nested more than {NESTING_MAX} levels deep"),
        (b'{"x":' + b'[{"a":' * 10_000, f"it is nested more than {NESTING_MAX} levels deep"),
        # These end as an object does, so Arrow reads them.
        (b'{"x":' + b'[{"a":' * 10_000 + b"}", f"it is nested more than {NESTING_MAX} levels deep"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, f"it is nested more than {NESTING_MAX} levels deep"),
    ],
)
def test_what_is_no_document_of_the_schema(data: bytes, why: str) -> None:
    payloads = [order(number, "a") for number in range(40)]
    payloads[7] = data
    rows = same_columns(schema_of(ORDER), payloads).to_pylist()
    assert rows[7][ERR].startswith(f"cannot be decoded as Order: {why}")
    assert rows[7][RAW] == data
    assert [row["id"] for row in rows] == [None if number == 7 else number for number in range(40)]
    assert all(row[RAW] is None for number, row in enumerate(rows) if number != 7)


def test_causes_do_not_depend_on_names_in_the_record() -> None:
    payloads = [b'{"utf-8":{"utf-8":1,"utf-8":2}}', b'{"tags":["\xff"]}', b'{"id":"utf-8"}']
    rows = same_columns(schema_of(ORDER), payloads).to_pylist()
    assert [cause_of(row[ERR]) for row in rows] == ["malformed", "not_utf8", "malformed"]


def test_brackets_in_texts_are_no_levels() -> None:
    deep = b'{"id":1,"tags":["' + b"[" * 500 + b'\\"[[{{"],"x":' + b"[" * 150 + b"]" * 150 + b"}"
    rows = same_columns(schema_of(ORDER), [deep]).to_pylist()
    assert (rows[0]["id"], rows[0][ERR], rows[0][RAW]) == (1, None, None)


def test_numbers_keep_their_digits() -> None:
    schema = schema_of(ORDER)
    written = {
        "9223372036854775807": (2**63 - 1, True),
        "9223372036854775808": (None, False),
        "-9223372036854775808": (-(2**63), True),
        "1.0": (None, False),
        "-0": (0, False),
        "12": (12, True),
        "1" * 5000: (None, False),
    }
    payloads = [f'{{"id":{text}}}'.encode() for text in written] * 3
    rows = same_columns(schema, payloads).to_pylist()
    assert [(row["id"], row[RAW] is None) for row in rows] == list(written.values()) * 3
    prices = {
        "1.10": (1.1, False),
        "1.1": (1.1, True),
        "1e400": (None, False),
        "-0": (-0.0, True),
        "5": (5.0, True),
        "5.0": (5.0, False),
        "1e+21": (1e21, True),
        "100000000000000000000": (1e20, True),
        "0.000001": (1e-6, True),
        "1e-7": (1e-7, True),
        "1E-7": (1e-7, False),
        "0.1000000000000000055": (0.1, False),
        "5e-324": (5e-324, True),
    }
    payloads = [f'{{"price":{text}}}'.encode() for text in prices] * 3
    rows = same_columns(schema, payloads).to_pylist()
    assert [(repr(row["price"]), row[RAW] is None) for row in rows] == [
        (repr(value), whole) for value, whole in prices.values()
    ] * 3


def test_unknown_properties_are_kept_at_their_level() -> None:
    last = b'{"id":1,"buyer":{"name":"n","age":5},"note":{"a":[1.50,"\\u0001"]},"more":null}'
    first = b'{"note":1,"id":1}'
    rows = same_columns(schema_of(ORDER), [last, first] * 10).to_pylist()
    assert rows[0]["buyer"] == {"name": "n", UNRECOGNIZED: b'{"age":5}'}
    assert rows[0][UNRECOGNIZED] == b'{"note":{"a":[1.50,"\\u0001"]},"more":null}'
    assert rows[0][RAW] is None, "properties that the schema does not have come after the others"
    assert (rows[1][UNRECOGNIZED], rows[1][RAW]) == (b'{"note":1}', first)


def test_many_bad_records_and_few_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    payloads = [order(number) for number in range(12_000)]
    for number in range(0, 12_000, 3):
        payloads[number] = b'{"id":1.5}' if number % 2 else b'{"id":1}{"id":2}'
    reads = sizes_of_reads(monkeypatch)
    rows = same_columns(schema_of(ORDER), payloads).to_pylist()
    assert [row["id"] for row in rows] == [None if number % 3 == 0 else number for number in range(12_000)]
    assert len(reads) == 3 * 40, "each piece is read 40 times at most"


@pytest.mark.parametrize(
    ("bad", "reads"),
    [
        (b"", 0),
        (b"\n \n", 0),
        (b"{\xff}", 0),
        (b'{"id":"x"}', 2),
        (b'{"id":1.5}', 30),
        (b'{"id":1}{"id":2}', 30),
        (b'{"id":1}}', 30),
    ],
)
def test_one_bad_record_costs_few_reads(bad: bytes, reads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    slow: list[int] = []
    decode = JsonEngine.decode

    def counting(engine: JsonEngine, payloads: Any) -> Any:
        slow.append(len(payloads))
        return decode(engine, payloads)

    monkeypatch.setattr(JsonEngine, "decode", counting)
    counted = sizes_of_reads(monkeypatch)
    payloads = [order(number) for number in range(12_000)]
    payloads[5_000] = bad
    value = columns_of(schema_of(ORDER), payloads)
    assert value.field(RAW).null_count == 11_999
    assert slow == [1], "the complete engine reads the bad record alone"
    assert 3 <= len(counted) <= 3 + reads


def test_two_documents_next_to_none_shift_nothing() -> None:
    payloads = [order(number) for number in range(100)]
    payloads[10], payloads[11] = order(1) + order(2), b"{}" + b" " * 50
    payloads[50], payloads[51] = b" ", order(3) + b"\n" + order(4)
    rows = same_columns(schema_of(ORDER), payloads).to_pylist()
    good = [number for number in range(100) if number not in (10, 11, 50, 51)]
    assert [rows[number]["id"] for number in good] == good
    assert [rows[number][ERR] is None for number in (10, 11, 50, 51)] == [False, True, False, False]


@pytest.mark.parametrize("more", [[], [(30, order(1) + order(2))]])
def test_two_halves_of_a_document_shift_nothing(more: list[tuple[int, bytes]]) -> None:
    """Each half begins and ends as an object. A record of two documents makes up for the missing one."""
    payloads = [order(number) for number in range(40)]
    for place, data in [(10, b'{"note":"}'), (11, b'{"}'), *more]:
        payloads[place] = data
    rows = same_columns(schema_of(ORDER), payloads).to_pylist()
    bad = {10, 11, *(place for place, _ in more)}
    assert [row["id"] for row in rows] == [None if number in bad else number for number in range(40)]
    assert {number for number, row in enumerate(rows) if row[ERR] is not None} == bad


def test_envelopes_are_optional_and_kept() -> None:
    schema = schema_of(ORDER, ids=(3, 7))
    payloads = [enveloped(7, order(1)), order(2), enveloped(9, order(3)), b"\0\0", enveloped(3, b" {}")] * 8
    rows = same_columns(schema, payloads).to_pylist()[:5]
    assert [row["id"] for row in rows] == [1, 2, None, None, None]
    assert [row[PREFIX] for row in rows] == [b"\0\0\0\0\7", None, None, None, b"\0\0\0\0\3"]
    assert [row[RAW] is None for row in rows] == [True, True, False, False, False]
    assert rows[2][ERR].endswith("has schema id 9, which is not one of the topic's subject")
    assert "is cut off or damaged, after 2 bytes" in rows[3][ERR]


def test_a_small_record_of_many_values_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    item = {"type": "object", "properties": {f"f{number}": {"type": "integer"} for number in range(500)}}
    schema = schema_of({"type": "object", "properties": {"v": {"type": "array", "items": item}}})
    bomb = b'{"v":[' + b"{}," * 10_000 + b"{}]}"
    reads = sizes_of_reads(monkeypatch)
    rows = same_columns(schema, [b"{}", bomb, b'{"v":[{}]}'] + [b"{}"] * 9).to_pylist()
    assert rows[1][ERR] == "cannot be decoded as JSON: more than 4194304 values in one record are not decoded"
    assert (rows[0]["v"], len(rows[2]["v"])) == (None, 1)
    assert reads == [len(b'{"v":[{}]}') + 10 * len(b"{}")], "the others are read without it"
    # Braces in a text are no objects.
    text = b'{"w":"' + b"{" * 10_000 + b'"}'
    assert same_columns(schema, [text]).to_pylist()[0][ERR] is None


@pytest.mark.parametrize(
    ("schema", "payload", "held"),
    [
        ({"type": "string"}, b'"a"', "a"),
        ({"type": "integer"}, b"5", 5),
        ({"type": ["integer", "null"]}, b"null", None),
        ({"type": "array", "items": {"type": "integer"}}, b"[1,null]", [1, None]),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, b'{"a":1}', [("a", 1)]),
        ({}, b'{"b":1.50,"a":[]}', '{"b":1.50,"a":[]}'),
    ],
)
def test_a_schema_that_is_no_object(schema: Any, payload: bytes, held: Any) -> None:
    rows = same_columns(schema_of(schema), [payload, payload + b" "] * 10).to_pylist()
    assert rows[0] == {RAW: None, PREFIX: None, ERR: None, "value": held}
    assert rows[1] == {RAW: payload + b" ", PREFIX: None, ERR: None, "value": held}


def test_documents_without_a_schema() -> None:
    schema = decide("t", (), any_json_source(), any_json_source()).schema
    payloads = [b'{"a":1.50}', b"5", b"null", b' {"a": "\\u017c"}', b"nope", b'{"a":1,"a":2}', b'["\\ud800"]']
    rows = same_columns(schema, payloads).to_pylist()
    assert [row["value"] for row in rows] == ['{"a":1.50}', "5", "null", '{"a":"ż"}', None, None, None]
    assert [row[RAW] is None for row in rows] == [True, True, True, False, False, False, False]
    assert all(row[ERR] is not None for row in rows[4:])


def test_columns_of_slices_and_of_other_readers() -> None:
    """Encoding does not depend on how Arrow holds the columns."""
    from archiver.schema.codec import RecordCodec

    maker = Maker(random.Random(5))
    schema = schema_of(maker.schema)
    payloads = [maker.document().data for _ in range(60)]
    codec = RecordCodec(schema)
    keys = pa.nulls(60, pa.binary())
    key, value = codec.encode_columns(keys, pa.array(payloads, pa.binary()))
    sliced = value.slice(13, 40)
    assert codec.rebuild(key.slice(13, 40), sliced)[1].to_pylist() == payloads[13:53]
    parts = pa.chunked_array([value.slice(0, 7), value.slice(7)])
    assert codec.rebuild(pa.chunked_array([key]), parts)[1].to_pylist() == payloads
