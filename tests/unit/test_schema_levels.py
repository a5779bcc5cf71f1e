"""Nesting is counted as the libraries count it. Accepted schemas can be written and read; others are refused
at set-up by name."""

from __future__ import annotations

import io
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.protobuf import descriptor_pb2

from archiver.runtime.errors import ConfigInvalid
from archiver.schema.codec import RecordCodec
from archiver.schema.evolution.state import arrow_schema, decide
from archiver.schema.protobuf.descriptors import Source, make_source, source_tree
from archiver.schema.protobuf.tree import LIBRARY_LEVELS_MAX
from tests.support.schema.engine_rows import ENGINES, values_of

F = descriptor_pb2.FieldDescriptorProto
Link = Literal["message", "list", "map"]


def link(message: descriptor_pb2.DescriptorProto, kind: Link, name: str, target: str) -> None:
    """Field 2 of a message: another message, a list of it, or a map of it."""
    field = message.field.add(
        name=name, number=2, type=F.TYPE_MESSAGE, type_name=f".n.{target}", label=F.LABEL_OPTIONAL
    )
    if kind != "message":
        field.label = F.LABEL_REPEATED
    if kind == "map":
        entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, type=F.TYPE_INT32, label=F.LABEL_OPTIONAL)
        entry.field.add(
            name="value", number=2, type=F.TYPE_MESSAGE, type_name=field.type_name, label=F.LABEL_OPTIONAL
        )
        field.type_name = f".n.{message.name}.{entry.name}"


def chain(*links: Link) -> bytes:
    """Messages L0, L1, … each inside the one before, each with a number in field 1; as a descriptor set."""
    file = descriptor_pb2.FileDescriptorProto(name="n.proto", package="n", syntax="proto3")
    for place in range(len(links) + 1):
        message = file.message_type.add(name=f"L{place}")
        message.field.add(name="x", number=1, type=F.TYPE_INT32, label=F.LABEL_OPTIONAL)
        if place < len(links):
            link(message, links[place], "next", f"L{place + 1}")
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


def ring(*links: Link) -> bytes:
    """Messages L0, L1, … of which the last one holds the first one again."""
    file = descriptor_pb2.FileDescriptorProto(name="n.proto", package="n", syntax="proto3")
    for place, kind in enumerate(links):
        message = file.message_type.add(name=f"L{place}")
        message.field.add(name="x", number=1, type=F.TYPE_INT32, label=F.LABEL_OPTIONAL)
        link(message, kind, "next", f"L{(place + 1) % len(links)}")
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


def payload(*links: Link, inside: bytes = b"\x08\x01") -> bytes:
    """A record in which every message of a chain stands once."""

    def held(data: bytes) -> bytes:
        return (
            b"\x12" + bytes([len(data) & 0x7F | 0x80, len(data) >> 7]) + data
            if len(data) > 127
            else b"\x12" + bytes([len(data)]) + data
        )

    for kind in reversed(links):
        inside = b"\x08\x01" + held(b"\x08\x01" + held(inside) if kind == "map" else inside)
    return inside


DEEPEST: list[tuple[Link, ...]] = [
    ("message",) * 49,
    ("list",) * 31,
    ("map",) * 20,
    ("map",) * 20 + ("message",) * 2,
    ("list", "map") * 12 + ("list",),
    ("message", "list", "map") * 10 + ("list",),
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("links", DEEPEST, ids=lambda links: f"{len(links)}-{links[0]}-{links[-1]}")
def test_the_deepest_message_that_is_let_through_works(links: tuple[Link, ...], engine: Any) -> None:
    """It is decoded, encoded again, written and read. The deepest message also has a list of unknown fields."""
    source = make_source(chain(*links), "n.L0")
    schema = decide("t", (), None, source).schema
    codec = RecordCodec(schema, engine)
    records = [payload(*links)] * 3 + [payload(*links, inside=b"\x08\x01\x48\x02\x48\x03")] * 100
    keys, column = codec.encode_columns(pa.nulls(len(records), pa.binary()), values_of(records))
    values: Any = column
    assert values.field("__err__").null_count == values.field("__raw__").null_count == len(records)
    data = io.BytesIO()
    pq.write_table(pa.table([values], schema=pa.schema([arrow_schema(schema).field("value")])), data)
    read = pq.ParquetFile(io.BytesIO(data.getvalue())).read().column(0)
    assert codec.rebuild(keys, read)[1].to_pylist() == records


@pytest.mark.parametrize(
    "links", [*(one + one[-1:] for one in DEEPEST[1:]), ("map",) * 21, ("list",) * 49], ids=len
)
def test_one_level_more_is_refused_at_set_up_with_file_message_field_and_remedy(
    links: tuple[Link, ...],
) -> None:
    with pytest.raises(ConfigInvalid) as refused:
        make_source(chain(*links), "n.L0", "descriptor set x.pb")
    text = str(refused.value)
    assert text.startswith("descriptor set x.pb: n.proto, message n.L0, field next.next.")
    assert f"at most {LIBRARY_LEVELS_MAX} work; choose a flatter message" in text


@pytest.mark.parametrize(
    ("links", "most"),
    [(("map", "map", "map"), 6), (("list", "map"), 10), (("map", "message", "map", "list"), 6)],
)
def test_recursion_across_several_types_is_counted_the_same_way(links: tuple[Link, ...], most: int) -> None:
    schema = decide("t", (), None, make_source(ring(*links), "n.L0", recursion_depth=most)).schema
    for engine in ENGINES:
        RecordCodec(schema, engine)  # type: ignore[arg-type]
    if most < 10:
        with pytest.raises(ConfigInvalid, match="smaller recursion_depth"):
            make_source(ring(*links), "n.L0", recursion_depth=most + 1)


def test_times_and_wrappers_are_a_level_more() -> None:
    """On the wire they are messages, and this form is passed between the libraries."""
    from google.protobuf import timestamp_pb2, wrappers_pb2

    for module, name in ((timestamp_pb2, "Timestamp"), (wrappers_pb2, "Int64Value")):
        own = descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
        for links, good in ((("list",) * 30, True), (("list",) * 31, False)):
            files = descriptor_pb2.FileDescriptorSet.FromString(chain(*links))
            files.file[0].dependency.append(own.name)
            last = files.file[0].message_type[-1]
            last.field.add(
                name="t",
                number=3,
                type=F.TYPE_MESSAGE,
                type_name=f".google.protobuf.{name}",
                label=F.LABEL_OPTIONAL,
            )
            data = descriptor_pb2.FileDescriptorSet(file=[own, *files.file]).SerializeToString()
            if good:
                RecordCodec(decide("t", (), None, make_source(data, "n.L0")).schema)
                continue
            with pytest.raises(ConfigInvalid, match=r"field next.*\.t: is 64 levels deep"):
                make_source(data, "n.L0")


def test_a_recorded_schema_of_any_levels_is_read() -> None:
    """Earlier versions accepted it, so commands that only read must still be able to read it."""
    assert source_tree(Source("n.L0", chain(*("list",) * 40))).full_name == "n.L0"
