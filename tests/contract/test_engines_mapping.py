"""Both engines give the same columns and bytes for everything that Protobuf has beyond plain messages."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError

from archiver.schema.arrow import arrow
from archiver.schema.protobuf.complete_engine import ProtobufEngine
from archiver.schema.protobuf.descriptors import Source, source_tree
from archiver.schema.protobuf.ptars_engine import PtarsEngine
from archiver.schema.protobuf.tree import ERR, RAW, UNRECOGNIZED
from tests.support.schema.engine_rows import ENGINES, both, encoded, shown
from tests.support.schema.protos import (
    TIMESTAMP,
    F,
    Features,
    descriptor_set,
    edition_file,
    extension,
    field,
    file_of,
    group_field,
    map_field,
    message_class,
    order_file,
    source,
)


def test_empty_messages() -> None:
    file = file_of()
    file.message_type.add(name="Nothing")
    holder = file.message_type.add(name="Holder")
    field(holder, "one", 1, F.TYPE_MESSAGE, type_name=".shop.Nothing")
    field(holder, "many", 2, F.TYPE_MESSAGE, type_name=".shop.Nothing", repeated=True)
    map_field(holder, "shop.Holder", "by_name", 3, F.TYPE_STRING, F.TYPE_MESSAGE, ".shop.Nothing")
    none, some = {UNRECOGNIZED: None}, {UNRECOGNIZED: b"\x08\x05"}
    rows = both(
        source(file, "Holder"),
        [b"", b"\x0a\x00\x12\x00\x12\x00\x1a\x05\x0a\x01a\x12\x00", b"\x0a\x02\x08\x05\x12\x02\x08\x05"],
    )
    assert [row[RAW] for row in rows] == [None] * 3
    assert [(row["one"], row["many"], row["by_name"]) for row in rows] == [
        (None, [], []),
        (none, [none, none], [("a", none)]),
        (some, [some], []),
    ]
    rows = both(source(file, "Nothing"), [b"", b"\x08\x05", b"\x08"])
    assert [(row[UNRECOGNIZED], row[RAW], row[ERR] is None) for row in rows] == [
        (None, None, True),
        (b"\x08\x05", None, True),
        (None, b"\x08", False),
    ]


def parses(make: Any, payload: bytes) -> bool:
    """Whether Protobuf's library reads the payload as the producer's message."""
    try:
        make.FromString(payload)
    except DecodeError:
        return False
    return True


class TestGroups:
    @staticmethod
    def old() -> Source:
        file = file_of(syntax="proto2")
        old = file.message_type.add(name="Old")
        group_field(old, "shop.Old", "part", 1)
        group_field(old, "shop.Old", "parts", 2, repeated=True)
        field(old, "name", 3, F.TYPE_STRING)
        return source(file, "Old")

    def test_groups_are_structs(self) -> None:
        make = message_class(self.old())
        message = make(name="n")
        message.part.x = 5
        message.parts.add(x=6)
        message.parts.add()
        rows = both(self.old(), [make(name="n").SerializeToString(), message.SerializeToString()])
        assert [row[RAW] for row in rows] == [None, None]
        assert (rows[0]["part"], rows[0]["parts"]) == (None, [])
        assert rows[1]["part"] == {"x": 5, UNRECOGNIZED: None}
        assert [one["x"] for one in rows[1]["parts"]] == [6, None]

    @pytest.mark.parametrize(
        ("payload", "part", "rest", "raw"),
        [
            (b"\x0b\x08\x05\x10\x07\x0c", {"x": 5, UNRECOGNIZED: b"\x10\x07"}, None, False),
            # as a length-delimited field it is unknown
            (b"\x0a\x02\x08\x05", None, b"\x0a\x02\x08\x05", False),
            (
                b"\x0b\x08\x05\x0c\x0b\x10\x01\x0c",
                {"x": 5, UNRECOGNIZED: b"\x10\x01"},
                None,
                True,
            ),  # twice: merged
            (b"\x0b\x08\x05\x0b\x08\x06\x0c\x0c", {"x": 5, UNRECOGNIZED: b"\x0b\x08\x06\x0c"}, None, False),
            (b"\x2b\x08\x05\x2c", None, b"\x2b\x08\x05\x2c", False),
        ],
    )
    def test_odd_groups(self, payload: bytes, part: Any, rest: bytes | None, raw: bool) -> None:
        [row] = both(self.old(), [payload])
        assert (row["part"], row[UNRECOGNIZED], row[RAW] is not None) == (part, rest, raw)

    def test_many_that_stand_behind_a_length(self) -> None:
        """Enough rows for the fast engine to search for what they share."""
        rows = both(self.old(), [b"\x0a\x02\x08\x05"] * 200)
        assert {(row["part"], row[UNRECOGNIZED], row[RAW]) for row in rows} == {
            (None, b"\x0a\x02\x08\x05", None)
        }

    def test_groups_that_do_not_end(self) -> None:
        rows = both(self.old(), [b"\x0b\x08\x05", b"\x0b\x08\x05\x14", b"\x0c", b"\x0b\x0a\x05\x0c"])
        assert all(row[ERR] for row in rows)

    def test_delimited_messages_of_an_edition(self) -> None:
        file = edition_file()
        file.options.features.message_encoding = Features.DELIMITED
        file.dependency.extend(["google/protobuf/wrappers.proto", "google/protobuf/struct.proto"])
        inner = file.message_type.add(name="Inner")
        field(inner, "x", 1, F.TYPE_INT32)
        new = file.message_type.add(name="New")
        field(new, "inner", 1, F.TYPE_MESSAGE, type_name=".shop.Inner")
        field(new, "at", 2, F.TYPE_MESSAGE, type_name=TIMESTAMP)
        field(new, "size", 3, F.TYPE_MESSAGE, type_name=".google.protobuf.Int32Value", repeated=True)
        field(new, "extra", 4, F.TYPE_MESSAGE, type_name=".google.protobuf.Value")
        map_field(new, "shop.New", "by_name", 5, F.TYPE_STRING, F.TYPE_MESSAGE, ".shop.Inner")
        value = source(file, "New")
        message = message_class(value)()
        message.inner.x, message.at.seconds, message.extra.bool_value = 1, 7, True
        message.size.add(value=3)
        message.by_name["a"].x = 4
        payload = message.SerializeToString()
        rows = both(value, [payload, b""])
        assert b"\x0b\x08\x01\x0c" in payload and rows[0][RAW] is None
        assert (rows[0]["inner"]["x"], rows[0]["at"].second, rows[0]["size"], rows[0]["extra"]) == (
            1,
            7,
            [3],
            "true",
        )
        assert shown(rows[1]) == {}


def test_extensions() -> None:
    file = file_of(syntax="proto2")
    message = file.message_type.add(name="Open")
    field(message, "x", 1, F.TYPE_INT32)
    message.extension_range.add(start=100, end=200)
    extension(file, ".shop.Open", "priority", 100, F.TYPE_INT32)
    extension(file, ".shop.Open", "notes", 101, F.TYPE_STRING, repeated=True)
    extension(file, ".shop.Open", "other", 102, F.TYPE_MESSAGE, ".shop.Open")
    value = source(file, "Open")
    make = message_class(value)
    pool = make.DESCRIPTOR.file.pool
    one = make(x=1)
    one.Extensions[pool.FindExtensionByName("shop.priority")] = -3
    one.Extensions[pool.FindExtensionByName("shop.notes")].extend(["a", ""])
    one.Extensions[pool.FindExtensionByName("shop.other")].x = 9
    [row] = both(value, [one.SerializeToString()])
    assert (row["x"], row["shop_priority"], row["shop_notes"], row["shop_other"]["x"], row[RAW]) == (
        1,
        -3,
        ["a", ""],
        9,
        None,
    )


class TestRecursion:
    """A node with children in every shape."""

    @staticmethod
    def node(depth: int) -> Source:
        file = file_of()
        node = file.message_type.add(name="Node")
        node.oneof_decl.add(name="kind")
        field(node, "x", 1, F.TYPE_INT32)
        field(node, "below", 2, F.TYPE_MESSAGE, type_name=".shop.Node")
        field(node, "all", 3, F.TYPE_MESSAGE, type_name=".shop.Node", repeated=True)
        map_field(node, "shop.Node", "named", 4, F.TYPE_STRING, F.TYPE_MESSAGE, ".shop.Node")
        field(node, "left", 5, F.TYPE_MESSAGE, type_name=".shop.Node", oneof=0)
        field(node, "text", 6, F.TYPE_STRING, oneof=0)
        return Source("shop.Node", descriptor_set(file), depth)

    @pytest.mark.parametrize("depth", [0, 1, 2])
    def test_the_rest_stays_encoded(self, depth: int) -> None:
        value = self.node(depth)
        make = message_class(value)
        message = make(x=1)
        one, inside = message, []
        for number in range(4):
            one.below.x = number
            one.all.add(x=number)
            one.named["a"].x = number
            one.left.x = number
            one = one.below
            inside.append(one)
        [row] = both(value, [message.SerializeToString(deterministic=True)])
        assert row[RAW] is None
        for _ in range(depth):
            row = row["below"]
        last = inside[depth]
        assert row["below"] == last.SerializeToString(deterministic=True)
        leaf = make(x=depth).SerializeToString()
        assert (row["all"], row["named"], row["left"]) == ([leaf], [("a", leaf)], leaf)

    @pytest.mark.parametrize(
        ("payload", "name", "column"),
        [
            (b"\x12\x02\x08\x01\x12\x03\x08\x81\x00", "below", b"\x08\x01\x08\x81\x00"),
            (b"\x2a\x02\x08\x01\x2a\x02\x08\x02", "left", b"\x08\x01\x08\x02"),
            (b"\x2a\x02\x08\x01\x32\x01a\x2a\x02\x08\x02", "left", b"\x08\x02"),
            (b"\x2a\x02\x08\x01\x32\x01a", "left", None),
            (b"\x22\x03\x0a\x01a", "named", [("a", b"")]),
        ],
    )
    def test_what_occurs_twice_is_merged(self, payload: bytes, name: str, column: Any) -> None:
        [row] = both(self.node(0), [payload])
        assert (row[name], row[RAW]) == (column, payload)

    @pytest.mark.parametrize(
        "bad",
        [
            b"\x08",
            b"\x0a\x05",
            b"\x32\x01\xff",
            b"\x00\x01",
            b"\x0b",
            b"\x12\x01\x08",
            b"\x12\x03\x32\x01\xff",
        ],
    )
    @pytest.mark.parametrize("depth", [0, 1])
    def test_what_stays_encoded_is_parsed_too(self, depth: int, bad: bytes) -> None:
        for _ in range(depth + 1):
            bad = b"\x12" + bytes([len(bad)]) + bad
        good = b"\x12\x07\x12\x05\x12\x03\x08\x81\x00"
        rows = both(self.node(depth), [good, bad, good])
        assert [row[ERR] is not None for row in rows] == [False, True, False]
        assert rows[0][RAW] is None

    def test_it_is_parsed_as_what_it_is(self) -> None:
        """Field 1 is a text of A, a number of B and a message of C."""
        file = file_of()
        for name, other, kind in (
            ("A", "B", F.TYPE_STRING),
            ("B", "C", F.TYPE_INT32),
            ("C", "A", F.TYPE_MESSAGE),
        ):
            message = file.message_type.add(name=name)
            field(message, "own", 1, kind, type_name=".shop.C" if kind == F.TYPE_MESSAGE else "")
            field(message, "to", 2, F.TYPE_MESSAGE, type_name=f".shop.{other}")
        value = Source("shop.A", descriptor_set(file), 0)
        bad_text, bad_message = b"\x0a\x01\xff", b"\x0a\x01\x08"

        def below(content: bytes, times: int) -> bytes:
            for _ in range(times):
                content = b"\x12" + bytes([len(content)]) + content
            return content

        items = [below(bad, times) for times in range(3, 9) for bad in (bad_text, bad_message)]
        refused = [row[ERR] is not None for row in both(value, items)]
        make = message_class(value)
        assert refused == [not parses(make, one) for one in items]
        assert refused == [True, False, False, False, True, True] * 2

    def test_unknown_fields_in_what_stays_encoded_are_part_of_it(self) -> None:
        [row] = both(self.node(0), [b"\x12\x02\x50\x05"])
        assert (row["below"], row[UNRECOGNIZED], row[RAW]) == (b"\x50\x05", None, None)

    def test_too_many_levels(self) -> None:
        def nested(count: int) -> bytes:
            payload = b"\x08\x01"
            for _ in range(count):
                length = len(payload)
                payload = (
                    b"\x12"
                    + (bytes([length]) if length < 128 else bytes([length & 127 | 128, length >> 7]))
                    + payload
                )
            return payload

        rows = both(self.node(1), [nested(99), nested(101)])
        assert [row[ERR] is not None for row in rows] == [False, True]

    def test_a_group_beyond_the_depth_is_unrecognized(self) -> None:
        file = edition_file()
        node = file.message_type.add(name="Node")
        field(
            node, "below", 1, F.TYPE_MESSAGE, type_name=".shop.Node"
        ).options.features.message_encoding = Features.DELIMITED
        field(node, "x", 2, F.TYPE_INT32)
        value = Source("shop.Node", descriptor_set(file), 0)
        message = message_class(value)(x=1)
        message.below.x = 2
        [row] = both(value, [message.SerializeToString()])
        assert (row["x"], row[UNRECOGNIZED], row[RAW]) == (
            1,
            b"\x0b\x10\x02\x0c",
            message.SerializeToString(),
        )

    def test_a_group_beyond_the_depth_is_parsed_too(self) -> None:
        file = file_of(syntax="proto2")
        node = file.message_type.add(name="Node")
        inner = node.nested_type.add(name="Inner")
        field(inner, "node", 1, F.TYPE_MESSAGE, type_name=".shop.Node")
        field(inner, "at", 2, F.TYPE_MESSAGE, type_name=TIMESTAMP)
        field(inner, "inner", 3, F.TYPE_GROUP, type_name=".shop.Node.Inner")
        field(node, "inner", 1, F.TYPE_GROUP, type_name=".shop.Node.Inner")
        value = Source("shop.Node", descriptor_set(file), 0)
        items = [
            b"\x0b" + one + b"\x0c"
            for one in (b"\x1b\x12\x02\x08\x05\x1c", b"\x1b\x12\x01\x08\x1c", b"\x1b\x0a\x03\x0b\x08\x0c\x1c")
        ]
        rows = both(value, items)
        make = message_class(value)
        assert (
            [row[ERR] is None for row in rows] == [parses(make, one) for one in items] == [True, False, False]
        )
        assert rows[0]["inner"][UNRECOGNIZED] == b"\x1b\x12\x02\x08\x05\x1c"


@pytest.mark.parametrize(
    ("payload", "unrecognized"),
    [
        (b"\x08\x01\xa0\x06\x05\xa2\x06\x01a", b"\xa0\x06\x05\xa2\x06\x01a"),
        (b"\x08\x01\xa0\x86\x80\x00\x85\x00", b"\xa0\x86\x80\x00\x85\x00"),
        (b"\x08\x01\xa3\x06\x08\x01\xa4\x06", b"\xa3\x06\x08\x01\xa4\x06"),
        (b"\xa0\x06\x05\x08\x01", b"\xa0\x06\x05"),
        (
            b"\x0d\x01\x02\x03\x04\xa0\x06\x05\x15\x01\x02\x03\x04",
            b"\x0d\x01\x02\x03\x04\xa0\x06\x05\x15\x01\x02\x03\x04",
        ),
    ],
)
def test_unknown_fields_stand_as_they_were(payload: bytes, unrecognized: bytes) -> None:
    [row] = both(source(order_file(), "Order"), [payload])
    assert row[UNRECOGNIZED] == unrecognized
    assert (row[RAW] is None) == payload.endswith(unrecognized)


def test_names_that_clash_have_columns_of_their_own() -> None:
    file = file_of(syntax="proto2")
    inner = file.message_type.add(name="Inner")
    message = file.message_type.add(name="Clash")
    for number, name in enumerate(("__raw__", "id", "ID", "__Err__", "select"), 1):
        field(message, name, number, F.TYPE_INT32).json_name = f"j{number}"
        field(inner, name, number, F.TYPE_INT32).json_name = f"j{number}"
    field(message, "Id", 6, F.TYPE_MESSAGE, type_name=".shop.Inner").json_name = "j6"
    value = source(file, "Clash")
    payload = b"\x08\x01\x10\x02\x18\x03\x20\x04\x28\x05\x32\x04\x08\x06\x18\x07"
    [row] = both(value, [payload])
    assert shown(row) == {
        "__raw___v2": 1,
        "id": 2,
        "ID_v2": 3,
        "__Err___v2": 4,
        "select": 5,
        "Id_v3": {
            "__raw___v2": 6,
            "id": None,
            "ID_v2": 7,
            "__Err___v2": None,
            "select": None,
            UNRECOGNIZED: None,
        },
    }
    assert row[RAW] is None


def test_columns_wider_than_the_wire() -> None:
    """A column that was widened once stays wide when the field's type is narrow again."""
    file = file_of()
    message = file.message_type.add(name="M")
    wide: dict[str, tuple[int, Any]] = {
        "int": (F.TYPE_INT32, pa.int64()),
        "float": (F.TYPE_FLOAT, pa.float64()),
        "big": (F.TYPE_UINT64, pa.decimal128(25, 0)),
    }
    for number, (name, (kind, _)) in enumerate(wide.items(), 1):
        field(message, name, number, kind)
        field(message, f"{name}s", number + 10, kind, repeated=True)
    value = source(file, "M")
    tree = source_tree(value)
    columns = [
        pa.field(one.name, wide[one.name][1] if one.number < 10 else pa.list_(wide[one.name[:-1]][1]))
        for one in tree.fields
    ]
    target = pa.struct([*columns, pa.field(UNRECOGNIZED, pa.binary())])
    one = message_class(value)(
        int=-5, float=0.1, big=2**64 - 1, ints=[1, -1], floats=[float("inf"), 1e-45], bigs=[0, 2**63]
    )
    payloads = arrow.array([one.SerializeToString(), b""])
    fast, slow = (make(tree, target) for make in (PtarsEngine, ProtobufEngine))
    decoded = [engine.decode(payloads).columns for engine in (fast, slow)]
    assert decoded[0].equals(decoded[1]) and decoded[0].type == target
    for engine in (fast, slow):
        assert engine.encode(decoded[0]).equals(payloads)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_kind_through_a_codec_of_an_edition(engine: str) -> None:
    file = edition_file(descriptor_pb2.EDITION_2024)
    file.options.features.field_presence = Features.IMPLICIT
    message = file.message_type.add(name="M")
    field(message, "plain", 1, F.TYPE_INT32)
    field(message, "present", 2, F.TYPE_INT32).options.features.field_presence = Features.EXPLICIT
    field(
        message, "loose", 3, F.TYPE_INT32, repeated=True
    ).options.features.repeated_field_encoding = Features.EXPANDED
    field(message, "packed", 4, F.TYPE_INT32, repeated=True)
    rows = encoded(
        engine,
        source(file, "M"),
        [b"", b"\x10\x00\x18\x01\x18\x02\x22\x02\x01\x02", b"\x08\x00\x1a\x02\x01\x02"],
    )
    assert [
        row and (row["plain"], row["present"], row["loose"], row["packed"], row[RAW] is None) for row in rows
    ] == [
        (0, None, [], [], True),
        (0, 0, [1, 2], [1, 2], True),
        (0, None, [1, 2], [], False),
    ]
