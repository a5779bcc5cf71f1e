"""Unknown fields: found on the wire, learned by the fast engine, kept byte for byte. The columns equal the
judge's in every case."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.unknown_fields import UnknownFieldSet

from archiver.schema.arrow import pc
from archiver.schema.codec import RecordCodec
from archiver.schema.evolution.state import arrow_schema, decide
from archiver.schema.protobuf.complete_engine import ProtobufEngine
from archiver.schema.protobuf.descriptors import Source, source_tree
from archiver.schema.protobuf.ptars_engine import PtarsEngine
from archiver.schema.protobuf.tree import ERR, PREFIX, RAW, UNRECOGNIZED, Kind, MessageTree, Shape
from archiver.schema.protobuf.unknown_fields import EXTRAS_MAX, Extra, Path, Scanner, extended, learned
from archiver.schema.side_reader import EngineName
from tests.support.schema.protos import (
    F,
    field,
    file_of,
    fill,
    map_field,
    message_class,
    mutated,
    order_file,
    orders,
    random_file,
    source,
)

ORDER = source(order_file(), "Order")
Found = dict[tuple[Path, int], Extra]
ENGINES: tuple[EngineName, ...] = ("ptars", "protobuf")


def varint(value: int) -> bytes:
    result = bytearray()
    while value > 0x7F:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*result, value])


def raw_field(number: int, wire: int, content: bytes) -> bytes:
    return varint(number << 3 | wire) + (varint(len(content)) if wire == 2 else b"") + content


def unknown(rng: random.Random, numbers: Sequence[int]) -> bytes:
    """Some fields that a schema may not know, of any wire type."""
    result = b""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        number, wire = rng.choice(numbers), rng.choice((0, 0, 0, 1, 2, 2, 5, 3))
        content = {
            0: varint(rng.choice((0, 1, 300, 2**64 - 1))),
            1: rng.randbytes(8),
            2: rng.randbytes(rng.randrange(5)),
            3: b"\x08\x01" + varint(number << 3 | 4),
            5: rng.randbytes(4),
        }[wire]
        result += raw_field(number, wire, content)
    return result


def engines(one: Source) -> tuple[PtarsEngine, ProtobufEngine]:
    side = arrow_schema(decide("t", (), None, one).schema).field("value").type
    message: Any = pa.struct([child for child in side if child.name not in (RAW, PREFIX, ERR)])
    tree = source_tree(one)
    return PtarsEngine(tree, message), ProtobufEngine(tree, message)


def columns(engine: EngineName, one: Source, items: Sequence[bytes | None]) -> list[Any]:
    codec = RecordCodec(decide("t", (), None, one).schema, engine)
    values: Any = pa.array(items, pa.binary())
    column: Any
    key, column = codec.encode_columns(pa.nulls(len(items), pa.binary()), values)
    assert codec.rebuild(key, column)[1].to_pylist() == list(items)
    rows: list[Any] = column.to_pylist()
    return rows


def text(value: Any) -> str:
    return repr(
        {**value, RAW: None} if value is not None and "nan" in repr(value) and value[ERR] is None else value
    )


class TestScanner:
    """What is found in single payloads."""

    tree = source_tree(ORDER)

    @pytest.mark.parametrize(
        ("payload", "found"),
        [
            (b"", {}),
            (b"\x08\x01\x12\x01a", {}),
            (b"\xa0\x3f\x07", {((), 1012): Extra(0, False)}),
            (b"\xa0\x3f\x07\xa0\x3f\x08", {((), 1012): Extra(0, True)}),
            (
                raw_field(500, 1, b"12345678") + raw_field(501, 5, b"1234"),
                {((), 500): Extra(1, False), ((), 501): Extra(5, False)},
            ),
            (raw_field(5, 2, raw_field(7, 2, b"x")), {((5,), 7): Extra(2, False)}),
            (raw_field(6, 2, raw_field(9, 0, b"\1")) * 2, {((6,), 9): Extra(0, False)}),
            (raw_field(500, 3, raw_field(600, 0, b"\1") + varint(500 << 3 | 4)), {}),
            (b"\x0d1234", {}),
            (raw_field(19_500, 0, b"\1"), {}),
            (raw_field(2**29 - 1, 0, b"\1"), {((), 2**29 - 1): Extra(0, False)}),
            (b"\xa0\xbf\x80\x00\x07", {((), 1012): Extra(0, False)}),
        ],
    )
    def test_what_is_found(self, payload: bytes, found: dict[Any, Extra]) -> None:
        assert Scanner(self.tree).unknown_fields(payload) == found

    @pytest.mark.parametrize(
        "payload",
        [
            b"\xa0",
            b"\xa0\x3f",
            b"\xa0\x3f" + b"\xff" * 11,
            b"\x00\x01",
            b"\x0c",
            b"\x0f\x01",
            b"\x12" + varint(2**63),
            b"\x12\xff\xff\xff\xff\x0f",
            raw_field(500, 3, b"\x08\x01"),
            raw_field(500, 3, varint(501 << 3 | 4)),
            b"\xa3\x06" * 100_000,
            b"\xa3\x06" * 100_000 + b"\xa4\x06" * 99_999,
            varint(2**32 | 8) + b"\x01",
            raw_field(5, 2, b"\xa0"),
        ],
    )
    def test_malformed(self, payload: bytes) -> None:
        assert Scanner(self.tree).unknown_fields(payload) is None

    def test_groups_nested_without_end_cost_no_stack(self) -> None:
        assert Scanner(self.tree).unknown_fields(b"\xa3\x06" * 100_000 + b"\xa4\x06" * 100_000) == {}

    def test_values_of_maps_but_not_their_entries(self) -> None:
        file = file_of()
        inner = file.message_type.add(name="Inner")
        field(inner, "x", 1, F.TYPE_INT32)
        outer = file.message_type.add(name="Outer")
        map_field(outer, "shop.Outer", "by_name", 1, F.TYPE_STRING, F.TYPE_MESSAGE, ".shop.Inner")
        payload = raw_field(
            1, 2, raw_field(1, 2, b"k") + raw_field(2, 2, b"\x20\x05") + raw_field(3, 0, b"\1")
        )
        assert Scanner(source_tree(source(file, "Outer"))).unknown_fields(payload) == {
            ((1,), 4): Extra(0, False)
        }

    @pytest.mark.parametrize("seed", range(10))
    def test_agrees_with_protobuf_at_the_top(self, seed: int) -> None:
        rng = random.Random(seed)
        make = message_class(ORDER)
        scanner = Scanner(self.tree)
        for _ in range(100):
            order = make()
            fill(rng, order)
            payload = order.SerializeToString() + unknown(rng, (13, 77, 3000))
            theirs: Any = UnknownFieldSet(make.FromString(payload))
            seen = [(one.field_number, one.wire_type) for one in theirs if one.wire_type != 3]
            found = scanner.unknown_fields(payload)
            assert found is not None
            assert {(number, extra.wire) for (path, number), extra in found.items() if path == ()} <= set(
                seen
            )
            assert {number for path, number in found if path == ()} == {number for number, _ in seen}


class TestLearning:
    """From found fields to an extension."""

    def test_what_few_records_have_is_left_alone(self) -> None:
        often, twice, once = ([((), number)] for number in (100, 200, 300))
        samples: list[Found] = [
            dict.fromkeys(where, Extra(0, False)) for where in [often] * 40 + [twice] * 2 + [once]
        ]
        assert learned({}, samples) == {((), 100): Extra(0, False)}
        assert learned({}, samples[40:]) == {((), 200): Extra(0, False)}

    def test_nothing_new_is_the_same_extension(self) -> None:
        known: Found = {((), 100): Extra(0, True)}
        assert learned(known, [{((), 100): Extra(0, False)}] * 3) is known
        assert learned(known, []) is known

    def test_a_field_seen_twice_in_a_message_becomes_repeated_and_keeps_its_wire_type(self) -> None:
        known: Found = {((), 100): Extra(0, False)}
        assert learned(known, [{((), 100): Extra(0, True)}] * 3) == {((), 100): Extra(0, True)}
        assert learned(known, [{((), 100): Extra(2, True)}] * 3) is known

    def test_an_extension_is_bounded(self) -> None:
        found = learned({}, [{((), number): Extra(0, False) for number in range(100, 400)}] * 2)
        assert len(found) == EXTRAS_MAX
        assert learned(found, [{((7,), 5000): Extra(0, False)}] * 9) is found

    def test_extended_trees(self) -> None:
        tree = source_tree(ORDER)
        found = extended(tree, {((), 1000): Extra(2, True), ((5,), 9): Extra(0, False)})
        assert [one.number for one in found.fields] == [*range(1, 13), 1000]
        more = found.fields[-1]
        assert (more.kind, more.shape, more.unknown, more.packed) == (Kind.BYTES, Shape.REPEATED, True, False)
        address = found.by_number()[5].message
        assert isinstance(address, MessageTree)
        assert [(one.number, one.kind, one.presence, one.unknown) for one in address.fields][-1] == (
            9,
            Kind.UINT64,
            True,
            True,
        )
        assert extended(tree, {}) is tree


class TestEngine:
    """How the fast engine handles them."""

    def rows(self, extra: bytes, count: int = 500) -> list[bytes]:
        return [one + extra for one in orders(count, 3)]

    def test_what_every_record_has_is_decoded_at_once_in_the_next_batch(self) -> None:
        fast, judge = engines(ORDER)
        payloads: Any = pa.array(self.rows(raw_field(100, 2, b"new") + raw_field(101, 0, b"\5")), pa.binary())
        before: Any = fast.decode(payloads)
        assert before.columns.field(UNRECOGNIZED).null_count == 500
        assert before.settled is not None and not before.settled.any()
        revised = fast.revise(payloads)
        assert revised.columns.equals(judge.decode(payloads).columns)
        after: Any = fast.decode(payloads)
        assert after.columns.equals(revised.columns)
        assert fast.encode(after.columns).equals(payloads)

    def test_what_one_record_has_leaves_the_others_fast(self) -> None:
        fast, judge = engines(ORDER)
        odd: Any = pa.array(self.rows(b"\xa0\x3f\x07", 100), pa.binary())
        many: Any = pa.concat_arrays([pa.array(orders(3000, 4), pa.binary()), odd])
        fast.decode(many)
        assert fast.revise(odd).columns.equals(judge.decode(odd).columns)
        assert fast.decode(many).columns.field(UNRECOGNIZED).null_count == len(many)

    def test_only_bad_records_are_judged(self) -> None:
        fast, judge = engines(ORDER)
        items = orders(2000, 6)
        bad = {0: b"\x08", 700: b"\x12\x01\xff", 1999: b"\x0c"}
        for row, payload in bad.items():
            items[row] = payload
        payloads: Any = pa.array(items, pa.binary())
        found = fast.decode(payloads)
        assert found.settled is not None
        assert (
            [row for row, settled in enumerate(found.settled) if settled] == list(found.errors) == list(bad)
        )
        assert found.errors == judge.decode(payloads).errors

    def test_a_few_large_records_are_learned_from(self) -> None:
        fast, judge = engines(ORDER)
        payloads: Any = pa.array(
            [raw_field(2, 2, b"x" * 20_000) + b"\xa0\x3f\x07" for _ in range(20)], pa.binary()
        )
        fast.decode(payloads)
        fast.revise(payloads)
        found = fast.decode(payloads)
        assert found.settled is not None and not found.settled.any()
        assert found.columns.equals(judge.decode(payloads).columns)

    def test_a_habit_is_given_up(self) -> None:
        fast, _ = engines(ORDER)
        payloads: Any = pa.array(self.rows(b"\xa0\x3f\x07"), pa.binary())
        fast.decode(payloads)
        fast.revise(payloads)
        few = payloads.slice(0, 5)
        nulls = [fast.decode(few).columns.field(UNRECOGNIZED).null_count for _ in range(70)]
        assert nulls[0] == 0 and nulls[-1] == 5

    def test_values_that_columns_cut_are_settled_in_the_next_batch(self) -> None:
        make = message_class(ORDER)
        items = []
        for number in range(200):
            order = make(id=number)
            order.created_at.seconds, order.created_at.nanos = number, 1
            items.append(order.SerializeToString())
        fast, judge = engines(ORDER)
        payloads: Any = pa.array(items, pa.binary())
        fast.decode(payloads)
        assert fast.revise(payloads).columns.equals(judge.decode(payloads).columns)
        found = fast.decode(payloads)
        assert found.settled is not None and found.settled.all()

    def test_what_ptars_does_not_write_alone_is_learned_too(self) -> None:
        """Unpacked numbers in messages, lists and maps of them, some absent."""
        file = file_of()
        inner = file.message_type.add(name="Inner")
        field(inner, "n", 1, F.TYPE_INT32, repeated=True, packed=False)
        field(inner, "name", 3, F.TYPE_STRING)
        field(inner, "at", 2, F.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp")
        outer = file.message_type.add(name="Outer")
        field(outer, "one", 1, F.TYPE_MESSAGE, type_name=".shop.Inner")
        field(outer, "many", 2, F.TYPE_MESSAGE, type_name=".shop.Inner", repeated=True)
        map_field(outer, "shop.Outer", "by_name", 3, F.TYPE_STRING, F.TYPE_MESSAGE, ".shop.Inner")
        more = raw_field(7, 0, b"\1") + raw_field(7, 0, b"\2") + raw_field(8, 2, b"x")
        part = b"\x08\x01\x08\x02" + more
        parts = (
            raw_field(1, 2, part),
            raw_field(2, 2, part) * 2,
            raw_field(3, 2, b"\x0a\x01k" + raw_field(2, 2, part)),
        )
        items = [
            b"".join(one for bit, one in enumerate(parts) if number >> bit & 1) + more
            for number in range(200)
        ]
        fast, judge = engines(source(file, "Outer"))
        payloads: Any = pa.array(items, pa.binary())
        fast.decode(payloads)
        assert fast.revise(payloads).columns.equals(judge.decode(payloads).columns)
        found = fast.decode(payloads).columns
        assert found.equals(judge.decode(payloads).columns)
        assert fast.encode(found).equals(payloads)
        stamps: Any = pa.array(
            [one + raw_field(1, 2, raw_field(2, 2, b"\x10\x01")) for one in items if one[:1] != b"\x0a"],
            pa.binary(),
        )
        fast.decode(stamps)
        assert fast.revise(stamps).columns.equals(judge.decode(stamps).columns)

    @pytest.mark.parametrize(
        "extra",
        [
            raw_field(100, 0, b"\1") + raw_field(100, 0, b"\2"),
            raw_field(101, 0, b"\1") + raw_field(100, 0, b"\2"),
            raw_field(100, 0, b"\x81\x00"),
            raw_field(100, 3, b"\x08\x01" + varint(100 << 3 | 4)),
            raw_field(19_500, 0, b"\1"),
            raw_field(2**29 - 1, 5, b"abcd"),
            raw_field(12, 5, b"abcd"),
            raw_field(5, 2, raw_field(100, 1, b"12345678")),
            raw_field(6, 2, raw_field(100, 2, b"12345678")) + raw_field(6, 2, raw_field(1, 2, b"sku")),
            raw_field(7, 2, raw_field(1, 2, b"k") + raw_field(9, 0, b"\1")),
            raw_field(100, 2, b"\1\2\3") + raw_field(101, 1, b"12345678") + raw_field(102, 5, b"1234"),
            raw_field(100, 0, b"\xff" * 10 + b"\x01"),
            raw_field(8, 2, b"a") + raw_field(9, 0, b"\1") + raw_field(100, 0, b"\1"),
        ],
    )
    @pytest.mark.parametrize("before", [False, True])
    def test_what_every_record_shares(self, extra: bytes, before: bool) -> None:
        items: list[bytes] = [extra + one if before else one + extra for one in orders(200, 5)]
        fast, slow = (columns(engine, ORDER, items * 2) for engine in ENGINES)
        assert fast == slow

    @pytest.mark.parametrize("seed", range(12))
    def test_random_unknown_fields_in_batches_that_are_learned_from(self, seed: int) -> None:
        rng = random.Random(seed)
        value = source(random_file(rng), "M0")
        make = message_class(value)
        shared = unknown(rng, (rng.choice((501, 777, 3000)),))
        codecs = [RecordCodec(decide("t", (), None, value).schema, engine) for engine in ENGINES]
        for _ in range(3):
            items = []
            for _ in range(150):
                message = make()
                fill(rng, message)
                item = message.SerializeToString() + shared
                if rng.random() < 0.2:
                    at = rng.randrange(len(item))
                    item = item[:at] + unknown(rng, (1, 2, 7, 16, 501, 19_005, 2**29 - 1)) + item[at:]
                items.append(mutated(rng, item) if rng.random() < 0.2 else item)
            values: Any = pa.array(items, pa.binary())
            made: list[Any] = [codec.encode_columns(values, values)[1] for codec in codecs]
            assert codecs[0].rebuild(values_keys(values), made[0])[1].to_pylist() == items
            assert [text(row) for row in made[0].to_pylist()] == [text(row) for row in made[1].to_pylist()]

    def test_unknown_fields_of_several_levels_are_encoded_as_the_judge_does(self) -> None:
        fast, judge = engines(ORDER)
        line = raw_field(6, 2, raw_field(1, 2, b"sku") + raw_field(9, 2, b"line"))
        items = [
            b"\xa0\x3f\x07",
            line,
            line + raw_field(6, 2, b"") + b"\xa0\x3f\x07",
            raw_field(5, 2, raw_field(3, 5, b"abcd")),
            b"",
            raw_field(5, 2, raw_field(3, 5, b"abcd")) + line,
        ]
        payloads: Any = pa.array(items, pa.binary())
        decoded = judge.decode(payloads).columns
        assert fast.encode(decoded).to_pylist() == items == judge.encode(decoded).to_pylist()
        for row in range(len(items)):
            assert fast.encode(decoded.slice(row, 1)).to_pylist() == [items[row]]

    @pytest.mark.parametrize("engine", ENGINES)
    def test_keys_have_them_too(self, engine: EngineName) -> None:
        codec = RecordCodec(decide("t", (), ORDER, None).schema, engine)
        keys: Any = pa.array(self.rows(b"\xa0\x3f\x07", 100), pa.binary())
        key: Any = codec.encode_columns(keys, keys)[0]
        assert key.field(RAW).equals(keys)
        assert set(key.field(UNRECOGNIZED).to_pylist()) == {b"\xa0\x3f\x07"}


class TestHostileBytes:
    """The outcome for any bytes is the judge's verdict, and the process continues."""

    hostile = (
        b"\x12" + varint(2**31 - 1) + b"a",
        b"\x12" + varint(2**63) + b"a",
        raw_field(100, 2, b"")[:-1] + varint(2**40),
        b"\x52" + varint(2**32 - 1),
        b"\xa3\x06" * 100_000 + b"\xa4\x06" * 100_000,
        b"\xa3\x06" * 4000 + b"\xa4\x06" * 4000,
        b"\x0b" * 8192,
        b"\xa0\x3f" + b"\xff" * 10 + b"\x01",
        b"\x88\x80\x80\x80\x80\x00\x01",
        varint((2**29 - 1) << 3) + b"\x01",
        varint(2**29 << 3) + b"\x01",
        b"\x2a" * 5000,
    )

    def test_next_to_good_records_with_and_without_unknown_fields(self) -> None:
        good = orders(100, 7)
        items = [*good, *self.hostile, *(one + b"\xa0\x3f\x07" for one in good)]
        fast, slow = (columns(engine, ORDER, items * 2) for engine in ENGINES)
        assert fast == slow
        assert all(row[ERR] is None for row in fast[:100])

    def test_learned_from_they_do_no_harm(self) -> None:
        items = [one for one in self.hostile for _ in range(30)]
        fast, slow = (columns(engine, ORDER, items) for engine in ENGINES)
        assert fast == slow


def test_columns_of_the_former_version_without_unknown_fields_are_rebuilt() -> None:
    """`__unrecognized__` all null, `__prefix__` all null: what version 1 wrote."""
    codec = RecordCodec(decide("t", (), None, ORDER).schema)
    values: Any = pa.array(orders(50, 8), pa.binary())
    key, column = codec.encode_columns(values, values)
    found: Any = column
    assert (
        found.field(UNRECOGNIZED).null_count
        == found.field(PREFIX).null_count
        == found.field(RAW).null_count
        == 50
    )
    assert pc.all(pc.equal(codec.rebuild(key, column)[1], values)).as_py()


def values_keys(values: Any) -> Any:
    """A key column without a schema."""
    return pa.StructArray.from_arrays([values], names=[RAW])
