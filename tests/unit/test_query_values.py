"""Values of `archiver query` in each output: CSV is exact, and a text for people cannot pass for another row,
column or value.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archiver.query.values import (
    csv_line,
    faithful,
    readable,
    readable_lines,
    table_width,
    vertical_block,
)

MOMENT = dt.datetime(2026, 1, 2, 3, 4, 5, 678_901, dt.timezone(dt.timedelta(hours=2)))
ORDER = {"id": 5, "customer": "ada", "lines": [{"sku": "a", "n": 1}, {"sku": "b", "n": 2}], "note": None}


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (None, ""),
        ("", '""'),
        ("plain text", "plain text"),
        (" a blank", '" a blank"'),
        ('say "yes", twice', '"say ""yes"", twice"'),
        ("two\r\nlines", '"two\r\nlines"'),
        ("=1+1", "=1+1"),
        ("@x", "@x"),
        ("-1", "-1"),
        ("a\x1b[31m\u202eb", "a\x1b[31m\u202eb"),
        (True, "true"),
        (-3, "-3"),
        (2**64 - 1, "18446744073709551615"),
        (1.5, "1.5"),
        (float("inf"), "Infinity"),
        (Decimal("1.10"), "1.10"),
        (b"\x00\xff", "AP8="),
        (b"", '""'),
        (MOMENT, "2026-01-02T01:04:05.678901Z"),
        (dt.date(2026, 1, 2), "2026-01-02"),
        ([], "[]"),
        ({"a": [1, None], "b": b"x"}, '"{""a"":[1,null],""b"":""eA==""}"'),
    ],
)
def test_a_field_of_csv(value: object, field: str) -> None:
    assert csv_line([value]) == field + "\n"


VALUES = st.one_of(
    st.text(),
    st.integers(),
    st.booleans(),
    st.binary(),
    st.floats(allow_nan=False),
    st.lists(st.text(), max_size=3),
    st.dictionaries(st.text(), st.integers(), max_size=3),
)


@given(st.lists(st.lists(VALUES, min_size=2, max_size=2), max_size=5))
def test_a_reader_of_csv_gets_every_value(rows: list[list[Any]]) -> None:
    text = "".join(map(csv_line, rows))
    # Python's reader takes every character but these three from a field as it is.
    read = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    assert len(read) == len(rows)
    for given_row, read_row in zip(rows, read, strict=True):
        for value, field in zip(given_row, read_row, strict=True):
            shown = faithful(value)
            if isinstance(shown, bool | list | dict):
                assert json.loads(field) == shown
            else:
                assert field == str(shown)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "NULL"),
        ("plain", "plain"),
        ("a\u202eb\x1b[31m", "a\\u202eb\\u001b[31m"),
        ("two\nlines", "two\nlines"),
        (True, "true"),
        (1_234_567, "1234567"),
        (2**64 - 1, "18446744073709551615"),
        (0.1, "0.1"),
        (Decimal("1.10"), "1.10"),
        (MOMENT, "2026-01-02 01:04:05.678901+00:00"),
        (MOMENT.replace(tzinfo=None, microsecond=0), "2026-01-02 03:04:05"),
        (dt.date(2026, 1, 2), "2026-01-02"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (b"key-1", 'b"key-1"'),
        (b"", 'b""'),
        ("grün".encode(), 'b"grün"'),
        (b'{"a":\n1}', r'b"{\"a\":\n1}"'),
        (b"\x00\xff", "base64:AP8="),
        (b"a\x1b[31m", "base64:YRtbMzFt"),
        ("a\u202eb".encode(), "base64:YeKArmI="),
        ([], "[]"),
        ({}, "{}"),
        (ORDER, '{id: 5, customer: "ada", lines: [{sku: "a", n: 1}, {sku: "b", n: 2}], note: NULL}'),
        ({"a b": 'x"\n\u2028', "__raw__": b"y"}, r'{"a b": "x\"\n\u2028", __raw__: b"y"}'),
        ({1: True, "\u202e": MOMENT}, r'{1: true, "\u202e": 2026-01-02 01:04:05.678901+00:00}'),
    ],
)
def test_a_text_for_people(value: object, text: str) -> None:
    assert readable(value) == text


def test_a_nested_value_is_indented_where_it_does_not_fit() -> None:
    assert readable_lines(ORDER, 200) == [readable(ORDER)]
    assert readable_lines(ORDER, 50) == [
        "{",
        "  id: 5",
        '  customer: "ada"',
        '  lines: [{sku: "a", n: 1}, {sku: "b", n: 2}]',
        "  note: NULL",
        "}",
    ]
    assert readable_lines({"lines": ORDER["lines"]}, 30) == [
        "{",
        "  lines: [",
        '    {sku: "a", n: 1}',
        '    {sku: "b", n: 2}',
        "  ]",
        "}",
    ]


def test_a_row_as_a_block() -> None:
    forged = "x\n-[ row 2 ]-\nid | 7"
    assert vertical_block(1, ["id", "a note", "größe"], [5, forged, {"a": "y" * 20}], 30).splitlines() == [
        "-[ row 1 ]",
        "id     | 5",
        "a note | x",
        "       | -[ row 2 ]-",
        "       | id | 7",
        "größe  | {",
        '       |   a: "yyyyyyyyyyyyyyyyyyyy"',
        "       | }",
    ]
    assert vertical_block(1234, ["名\n字"], [None], 80).splitlines() == ["-[ row 1,234 ]", "名\\n字 | NULL"]


@given(st.lists(st.text(), min_size=1, max_size=3), st.integers(1, 60))
def test_no_value_looks_like_a_column_or_a_row(values: list[str], width: int) -> None:
    names = [f"c{position}" for position in range(len(values))]
    lines = vertical_block(1, names, values, width).splitlines()
    assert [line for line in lines if not line.startswith("   | ")][1:] == [
        f"{name} | {readable(value).split(chr(10))[0]}" for name, value in zip(names, values, strict=True)
    ]


def test_the_width_of_a_table() -> None:
    assert table_width(["id", "note"], [["5", "x"], ["1234", "two\nlonger lines"]]) == 1 + 7 + 15
    assert table_width(["a"], [["名字"]]) == 1 + 7
    assert table_width(["a\nbc"], []) == 1 + 5
