"""Values of a result's JSON look like those of `archiver query`, for every type."""

from __future__ import annotations

import json

import pytest

from archiver.query.duck import Limits, asked
from archiver.query.json_values import DEPTH_MAX, TYPE_MAX, Kind, kind_of, restored
from archiver.query.values import faithful, readable

LIMITS = Limits(256 * 2**20, 1)


@pytest.mark.parametrize(
    "value",
    [
        "'text'",
        "'N14228'::BLOB",
        "'\\xFF'::BLOB",
        "{'__raw__': 'N14228'::BLOB, 'order': 1, 'a \"b\" (c)': [1, NULL], '[]': 'x'}",
        "[{'a': 'x'::BLOB}, NULL]",
        "[['x'::BLOB], []]",
        "array_value('a'::BLOB, 'b'::BLOB)",
        "MAP {'k': 'x'::BLOB}",
        "MAP {'x'::BLOB: 1}",
        "MAP {1: 'a'}",
        "MAP {true: [1]}",
        "MAP {}",
        "[]",
        "{'i': 9007199254740993, 'u': 18446744073709551615::UBIGINT, 'h': 1::HUGEINT}",
        "{'d': 1.10::DECIMAL(20, 2)}",
        "{'f': 'nan'::DOUBLE, 'g': '-inf'::FLOAT, 'h': 1.5}",
        "{'t': TIMESTAMP '2020-02-03 04:05:06.000007', 'z': TIMESTAMPTZ '2020-02-03 04:05:06+01'}",
        "{'n': TIMESTAMP_NS '2020-02-03 04:05:06.123456789', 'c': TIME '10:00:00', 'd': DATE '2020-02-03'}",
        "{'u': '4a9e1426-1e22-4dc3-b961-95aaf3366923'::UUID, 'j': '{\"a\": 1}'::JSON, 'b': '101'::BIT}",
        "['b'::ENUM('a', 'b', '(', 'it''s')]",
        "{'u': union_value(k := 1), 'e': 'x'::BLOB}",
        "{'b': true, 'n': NULL}",
        "1",
        "now()::TIMESTAMP",
    ],
)
def test_a_value_looks_as_in_a_terminal(value: str) -> None:
    with asked(f"SELECT {value} AS one", [], LIMITS) as result:
        ((found,),) = list(result.rows)
        ((_, type_text),) = result.columns
    kind = kind_of(type_text)
    assert kind is not None, type_text
    again = restored(json.loads(json.dumps(faithful(found))), kind)
    assert readable(again) == readable(found)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "(",
        "STRUCT",
        "STRUCT(",
        "STRUCT(a",
        "STRUCT(a INTEGER",
        "STRUCT(a INTEGER, ",
        "STRUCT(a INTEGER) b",
        "MAP(VARCHAR)[",
        "INTEGER[",
        "INTEGER)",
        "STRUCT(" * 1000,
        "STRUCT(a " * (DEPTH_MAX + 1) + "INTEGER" + ")" * (DEPTH_MAX + 1),
        "INTEGER" + "[]" * (DEPTH_MAX + 1),
        "A" * (TYPE_MAX + 1),
    ],
)
def test_what_is_no_type_has_no_kind(text: str) -> None:
    kind = kind_of(text)
    assert kind is None or kind == Kind("(") or kind.name.startswith('"'), kind


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("no base64!", "BLOB"),
        ({"a": 1}, "STRUCT(b INTEGER)"),
        ({"a": 1}, "VARIANT"),
        ([1], "INTERVAL"),
        ([1], "STRUCT(a INTEGER)"),
        ({"a": [1]}, "STRUCT(a TUPLE(INTEGER, INTEGER))"),
    ],
)
def test_a_value_of_another_type_is_refused(value: object, kind: str) -> None:
    known = kind_of(kind)
    assert known is not None
    with pytest.raises(ValueError, match=r".*"):
        restored(value, known)
