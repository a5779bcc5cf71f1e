"""Does Avro encode partition types, values and names as Iceberg does?"""

from __future__ import annotations

import datetime as dt
import decimal
import json
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archiver.events import partitions
from archiver.events.avro import parse_schema
from archiver.runtime.errors import Corrupted, InvalidInput

_TYPES = [
    "boolean",
    "int",
    "long",
    "float",
    "double",
    "string",
    "binary",
    "date",
    "time",
    "timestamp",
    "timestamptz",
    "timestamp_ns",
    "timestamptz_ns",
    "uuid",
]
_TYPES += ["fixed[1]", "fixed[16]", "decimal(1, 0)", "decimal(38, 38)"]


@pytest.mark.parametrize("text", _TYPES)
def test_a_type_survives_its_avro_form(text: str) -> None:
    kind = partitions.parse_type(text)
    assert str(kind) == text
    assert partitions.type_of(parse_schema(json.dumps(partitions.avro_type(kind)))) == kind


@pytest.mark.parametrize(
    "text",
    [
        "",
        "list<int>",
        "decimal(39, 0)",
        "decimal(0, 0)",
        "decimal(3, 4)",
        "decimal(9)",
        "fixed[-1]",
        "unknown",
        "INT",
    ],
)
def test_other_types_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        partitions.parse_type(text)


def test_a_decimal_type_is_read_with_any_blanks() -> None:
    assert str(partitions.parse_type("decimal(9,2)")) == "decimal(9, 2)"


@pytest.mark.parametrize(
    ("precision", "size"),
    [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (9, 4), (10, 5), (18, 8), (19, 9), (38, 16)],
)
def test_a_decimal_takes_the_fewest_bytes(precision: int, size: int) -> None:
    assert partitions.parse_type(f"decimal({precision}, 0)").size == size


@pytest.mark.parametrize(
    "form",
    [
        {"type": "long", "logicalType": "timestamp-micros"},
        {"type": "int", "logicalType": "time-micros"},
        {"type": "fixed", "name": "x", "size": 15, "logicalType": "uuid"},
        {"type": "fixed", "name": "x", "size": 4, "logicalType": "decimal", "precision": 10, "scale": 2},
        {"type": "fixed", "name": "x", "size": 4, "logicalType": "decimal", "precision": 99, "scale": 2},
        {"type": "fixed", "name": "x", "size": 4, "logicalType": "decimal"},
        {"type": "array", "items": "int"},
        "null",
    ],
)
def test_avro_forms_of_no_type_are_corrupted(form: object) -> None:
    with pytest.raises(Corrupted):
        partitions.type_of(parse_schema(json.dumps(form)))


@given(st.integers(1, 38), st.data())
def test_decimals_survive_the_wire(precision: int, data: st.DataObject) -> None:
    scale = data.draw(st.integers(0, precision))
    unscaled = data.draw(st.integers(-(10**precision) + 1, 10**precision - 1))
    with decimal.localcontext(prec=50):
        value = Decimal(unscaled).scaleb(-scale)
    kind = partitions.parse_type(f"decimal({precision}, {scale})")
    wire = partitions.to_wire(kind, value)
    assert wire == unscaled.to_bytes(kind.size, "big", signed=True)
    found = partitions.from_wire(kind, wire)
    assert isinstance(found, Decimal)
    assert found.compare_total(value) == 0 or unscaled == 0
    assert partitions.from_json(kind, partitions.to_json(kind, value)) == value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Decimal("1.234"), "more than 2 digits after the point"),
        (Decimal("12345678.9"), "too many digits"),
        (Decimal("1E+999999"), "too many digits"),
        (Decimal("1E-999999"), "more than 2 digits"),
        (Decimal("NaN"), "a decimal.9, 2. expected"),
        (1.5, "a decimal.9, 2. expected"),
    ],
)
def test_decimals_are_never_rounded(value: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        partitions.to_wire(partitions.parse_type("decimal(9, 2)"), value)


@pytest.mark.parametrize(
    ("value", "unscaled"),
    [(Decimal("1.2000"), 120), (Decimal("1E+3"), 100000), (Decimal("0E+99"), 0), (Decimal("-0.01"), -1)],
)
def test_decimals_of_another_exponent_are_taken_when_they_are_exact(value: Decimal, unscaled: int) -> None:
    assert (
        int.from_bytes(partitions.to_wire(partitions.parse_type("decimal(9, 2)"), value), "big", signed=True)
        == unscaled
    )


def test_a_stored_decimal_with_too_many_digits_is_corrupted() -> None:
    with pytest.raises(Corrupted, match="too many digits"):
        partitions.from_wire(partitions.parse_type("decimal(1, 0)"), b"\x0a")


@pytest.mark.parametrize(
    ("kind", "value", "wire"),
    [
        ("date", dt.date(2024, 1, 2), 19724),
        ("date", dt.date(1969, 12, 31), -1),
        ("timestamp", dt.datetime(1970, 1, 1, 0, 0, 1), 1_000_000),  # noqa: DTZ001
        ("timestamptz", dt.datetime(1970, 1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1))), 0),
        ("timestamptz_ns", dt.datetime(1969, 12, 31, 23, 59, 59, tzinfo=dt.UTC), -1_000_000_000),
        ("uuid", UUID(int=1), b"\0" * 15 + b"\1"),
        ("int", None, None),
    ],
)
def test_python_values_are_taken(kind: str, value: Any, wire: object) -> None:
    assert partitions.to_wire(partitions.parse_type(kind), value) == wire


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("timestamp", dt.datetime(2024, 1, 1, tzinfo=dt.UTC)),
        ("timestamptz", dt.datetime(2024, 1, 1)),  # noqa: DTZ001 (a time without a zone is the point)
        ("date", dt.datetime(2024, 1, 1)),  # noqa: DTZ001
        ("int", dt.date(2024, 1, 1)),
        ("uuid", "x"),
        ("uuid", 2**300),
    ],
)
def test_python_values_of_another_type_are_refused(kind: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match="expected, got"):
        partitions.to_wire(partitions.parse_type(kind), value)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("plain_1", "plain_1"),
        ("my-name", "my_x2Dname"),
        ("1st", "_1st"),
        ("a😀", "a_xD83D_xDE00"),
        ("é1", "é1"),
        (" ", "_x20"),
        ("²", "_xB2"),
        ("a٣", "a٣"),
    ],
)
def test_names_are_rewritten_as_java_does(name: str, expected: str) -> None:
    assert partitions.avro_name(name) == expected


@pytest.mark.parametrize("name", ["", "\ud800"])
def test_names_that_java_could_not_write_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="partition field"):
        partitions.avro_name(name)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int", "1"),
        ("int", 1.0),
        ("int", True),
        ("boolean", 1),
        ("binary", "0"),
        ("uuid", "x"),
        ("decimal(3, 1)", "x"),
        ("double", "1"),
        ("string", 1),
        ("date", "2024-01-01"),
    ],
)
def test_json_values_of_another_type_are_refused(kind: str, value: object) -> None:
    with pytest.raises(InvalidInput, match="is not a"):
        partitions.from_json(partitions.parse_type(kind), value)
