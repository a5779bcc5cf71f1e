"""Registry envelopes: removed, restored as they were, and refused with a cause."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from archiver.schema.codec import RecordCodec
from archiver.schema.envelope import opened
from archiver.schema.evolution.state import decide
from archiver.schema.protobuf.descriptors import Envelope
from archiver.schema.protobuf.error_causes import CAUSES, cause_of
from archiver.schema.protobuf.tree import ERR, PREFIX, RAW
from archiver.schema.side_reader import EngineName
from tests.support.schema.protos import order_file, orders, source

ENVELOPE = Envelope(((7, (0,)), (8, (1, 0)), (2**31 + 5, (70,))))
ORDER = replace(source(order_file(), "Order"), envelope=ENVELOPE)
ENGINES: tuple[EngineName, ...] = ("ptars", "protobuf")

SEVEN, SEVEN_LONG = b"\0\0\0\0\7\0", b"\0\0\0\0\7\2\0"
EIGHT, EIGHT_PADDED = b"\0\0\0\0\x08\4\2\0", b"\0\0\0\0\x08\x84\0\2\0"
HIGH = b"\0\x80\0\0\5\2\x8c\1"


def values_of(items: list[bytes | None]) -> Any:
    return pa.array(items, pa.binary())


def rows_of(engine: EngineName, items: list[bytes | None]) -> list[dict[str, Any] | None]:
    codec = RecordCodec(decide("t", (), None, ORDER).schema, engine)
    key, value = codec.encode_columns(values_of(items), values_of(items))
    column: Any = value
    column.validate(full=True)
    assert codec.rebuild(key, column)[1].to_pylist() == items
    rows: list[dict[str, Any] | None] = column.to_pylist()
    return rows


def test_many_long_spellings_are_looked_at_once_each() -> None:
    """A comparison byte by byte took 35 ms a record."""
    rng = random.Random(1)
    items = [
        b"\0\0\0\0\7\xc8\1"
        + b"".join(bytes([number | 128 for number in rng.randbytes(4)]) + b"\1" for _ in range(100))
    ]
    items += [
        items[0][:7]
        + rng.randbytes(4).translate(bytes(number | 128 for number in range(256)))
        + items[0][11:]
        for _ in range(3000)
    ]
    items += [one[:200] for one in items[:100]] + [
        b"\0\0\0\0\7" + b"\xff" * 6,
        b"\0\0\0\0\7\x82\x80\x80\x80\0\x80\x80\x80\x80\0tail",
    ]
    found = opened(values_of([*items]), ENVELOPE)
    causes = [cause_of(found.errors[row]) if row in found.errors else None for row in range(len(items))]
    assert causes == ["other_message"] * 3001 + ["malformed"] * 101 + [None]
    assert found.messages[-1].as_py() == b"tail" and found.prefixes[-1].as_py() == items[-1][:-4]


@pytest.mark.parametrize("engine", ENGINES)
class TestRecords:
    """Whole records."""

    @pytest.mark.parametrize("prefix", [SEVEN, SEVEN_LONG, EIGHT, EIGHT_PADDED, HIGH])
    def test_every_spelling_is_kept(self, engine: EngineName, prefix: bytes) -> None:
        rows = rows_of(engine, [prefix + one for one in orders(20, 1)])
        assert all(row is not None and row[PREFIX] == prefix and row[RAW] is None for row in rows)
        assert [row["id"] for row in rows if row is not None] == list(range(20))

    def test_an_envelope_around_nothing_is_an_empty_message(self, engine: EngineName) -> None:
        [row] = rows_of(engine, [SEVEN])
        assert row is not None and (row[PREFIX], row[RAW], row[ERR], row["customer"]) == (
            SEVEN,
            None,
            None,
            "",
        )

    def test_records_with_without_and_null_next_to_each_other(self, engine: EngineName) -> None:
        one, two = orders(2, 1)
        rows = rows_of(engine, [one, SEVEN + two, None, b"", EIGHT + one])
        assert [row and (row[PREFIX], row[RAW], row["id"]) for row in rows] == [
            (None, None, 0),
            (SEVEN, None, 1),
            None,
            (None, None, 0),
            (EIGHT, None, 0),
        ]

    @pytest.mark.parametrize(
        ("payload", "cause", "reported"),
        [
            (b"\0\0\0\0\x09\0\x08\1", "unknown_schema", "9"),
            (b"\0\xff\xff\xff\xff\0", "unknown_schema", "4294967295"),
            (b"\0\0\0\0\7\4\2\0\x08\1", "other_message", "[1, 0]"),
            (b"\0\0\0\0\x08\0\x08\1", "other_message", "[0]"),
            (b"\0\0\0\0\7\2\1", "other_message", "[-1]"),
            (b"\0", "malformed", "1 bytes"),
            (b"\0\0\0\0\7", "malformed", "5 bytes"),
            (b"\0\0\0\0\7\4\2", "malformed", "7 bytes"),
            (b"\0\0\0\0\7\1", "malformed", "-1"),
            (b"\0\0\0\0\7\xff\xff\xff\xff\xff\xff", "malformed", "5 bytes"),
            (b"\0\0\0\0\7\xff\xff\3", "malformed", "message indexes"),
            (SEVEN + b"\x08", "malformed", "shop.Order"),
            (SEVEN + b"\x12\1\xff", "not_utf8", "shop.Order"),
        ],
    )
    def test_what_is_no_record_of_the_topic(
        self, engine: EngineName, payload: bytes, cause: str, reported: str
    ) -> None:
        good = [SEVEN + one for one in orders(4, 1)]
        rows = rows_of(engine, [*good[:2], payload, *good[2:]])
        row = rows.pop(2)
        assert row is not None
        assert [name for name, one in row.items() if one is not None] == [RAW, ERR]
        assert reported in row[ERR] and row[ERR].startswith("cannot be decoded as shop.Order: ")
        assert cause_of(row[ERR]) == cause and cause in CAUSES
        assert [other and (other[PREFIX], other["id"]) for other in rows] == [
            (SEVEN, number) for number in range(4)
        ]

    def test_unknown_fields_behind_an_envelope(self, engine: EngineName) -> None:
        rows = rows_of(engine, [SEVEN + one + b"\xa0\x3f\7" for one in orders(100, 1)])
        assert {(row["__unrecognized__"], row[PREFIX], row[RAW]) for row in rows if row is not None} == {
            (b"\xa0\x3f\7", SEVEN, None)
        }

    def test_a_record_that_keeps_its_bytes_keeps_all_of_them(self, engine: EngineName) -> None:
        [row] = rows_of(engine, [SEVEN + b"\x08\x81\0"])
        assert row is not None and (row[RAW], row[PREFIX], row["id"]) == (SEVEN + b"\x08\x81\0", SEVEN, 1)

    def test_keys(self, engine: EngineName) -> None:
        codec = RecordCodec(decide("t", (), ORDER, None).schema, engine)
        keys = values_of([SEVEN + orders(1, 1)[0], b"\0\0\0\0\x09\0", None])
        key: Any
        key, value = codec.encode_columns(keys, keys)
        assert key.field(RAW).equals(keys)
        assert key.field(PREFIX).to_pylist() == [SEVEN, None, None]
        assert codec.rebuild(key, value)[0].equals(keys)


@pytest.mark.parametrize("engine", ENGINES)
def test_without_a_registry_a_zero_in_front_is_malformed(engine: EngineName) -> None:
    codec = RecordCodec(decide("t", (), None, replace(ORDER, envelope=None)).schema, engine)
    values = values_of([SEVEN + orders(1, 1)[0]])
    column: Any = codec.encode_columns(values, values)[1]
    [row] = column.to_pylist()
    assert row[RAW] is not None and cause_of(row[ERR]) == "malformed"


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_lost_behind_any_prefix(seed: int) -> None:
    rng = random.Random(seed)
    heads = (SEVEN, SEVEN_LONG, EIGHT, EIGHT_PADDED, HIGH, b"", b"\0", b"\0\0\0\0\x09\0", b"\0\0\0\0\7\4")
    items = []
    for _ in range(300):
        made = bytearray(rng.choice(heads) + rng.randbytes(rng.randrange(6)))
        if made and rng.random() < 0.2:
            made[rng.randrange(len(made))] = rng.randrange(256)
        items.append(bytes(made))
    found = opened(values_of(list(items)), ENVELOPE)
    messages, prefixes = found.messages.to_pylist(), found.prefixes.to_pylist()
    for row, item in enumerate(items):
        if row in found.errors:
            assert item[:1] == b"\0" and prefixes[row] is None and messages[row] == b""
        else:
            assert (prefixes[row] or b"") + messages[row] == item
            assert (prefixes[row] is not None) == (item[:1] == b"\0")


def test_as_many_ids_as_records() -> None:
    count = 30_000
    items = [b"\0" + number.to_bytes(4, "big") + b"\0" for number in range(100, 100 + count)]
    found = opened(values_of([*items, SEVEN]), ENVELOPE)
    assert list(found.errors) == list(range(count))
    assert all(str(100 + row) in why for row, why in found.errors.items())
    assert found.prefixes[count].as_py() == SEVEN


def test_sliced_payloads() -> None:
    values = values_of([SEVEN + b"a", b"b", EIGHT + b"c", SEVEN + b"d"])
    found = opened(values.slice(1, 3), ENVELOPE)
    assert found.messages.to_pylist() == [b"b", b"c", b"d"]
    assert found.prefixes.to_pylist() == [None, EIGHT, SEVEN]
    assert opened(values.slice(0, 0), ENVELOPE).messages.to_pylist() == []
