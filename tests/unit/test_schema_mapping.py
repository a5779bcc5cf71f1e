"""docs/schema-mapping.md is true: every row of its tables holds with both engines, byte for byte, and nothing
required is absent."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, text_format
from grpc_tools import protoc

from archiver.schema.codec import RecordCodec
from archiver.schema.evolution.state import decide
from archiver.schema.protobuf.descriptors import Envelope, Source
from archiver.schema.protobuf.error_causes import CAUSES, cause_of
from archiver.schema.protobuf.tree import UNRECOGNIZED
from tests.support.schema.mapping_page import (
    PAGE,
    PageRecord,
    PageRow,
    hexadecimal,
    page_causes,
    page_declarations,
    page_records,
    page_rows,
    proto_files,
)
from tests.support.schema.protos import MAP_KEYS, SCALARS, F, descriptor_of, message_class
from tests.support.schema.random_protos import WELL_KNOWN, fields_of
from tests.support.schema.wire_reading import is_map

ENGINES = ("ptars", "protobuf")
ROWS, RECORDS = page_rows(), page_records()
INCLUDE = Path(protoc.__file__).parent / "_proto"
ENVELOPE = Envelope(((7, (0,)),))
ALONGSIDE = ("__raw__", "__prefix__", "__err__")


def ids(rows: Sequence[PageRow] | Sequence[PageRecord]) -> list[str]:
    return [f"line {row.line}" for row in rows]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The descriptor set of all declarations of the page."""
    folder = tmp_path_factory.mktemp("protos")
    odd = (
        'syntax = "proto3"; package odd; import "google/protobuf/timestamp.proto"; import '
        '"google/protobuf/wrappers.proto";\n'
    )
    files = {**proto_files(ROWS), "odd.proto": odd + page_declarations("odd")}
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    target = folder / "page.binpb"
    arguments = [
        "protoc",
        f"-I{folder}",
        f"-I{INCLUDE}",
        "--include_imports",
        f"--descriptor_set_out={target}",
        *files,
    ]
    assert protoc.main(arguments) == 0, "a declaration of the page does not compile"
    return target.read_bytes()


@cache
def file_set(compiled: bytes, name: str) -> bytes:
    """The set of one table's file and its imports."""
    files = {one.name: one for one in descriptor_pb2.FileDescriptorSet.FromString(compiled).file}
    return descriptor_pb2.FileDescriptorSet(
        file=[*(files[one] for one in files[name].dependency), files[name]]
    ).SerializeToString()


def source_of(row: PageRow, compiled: bytes) -> Source:
    """A row's message, with the settings of its table. What a table renames must be in every message of it."""
    table = row.table
    return Source(
        f"shop.{row.message}",
        file_set(compiled, f"table_{table.number}.proto"),
        table.recursion_depth,
        table.columns,
    )


def type_text(kind: Any) -> str:
    """An Iceberg type as the page spells it."""
    if isinstance(kind, str):
        return kind
    if kind["type"] == "list":
        return f"list<{type_text(kind['element'])}>"
    if kind["type"] == "map":
        return f"map<{type_text(kind['key'])}, {type_text(kind['value'])}>"
    assert kind["fields"][-1]["name"] == UNRECOGNIZED and kind["fields"][-1]["type"] == "binary"
    shown = kind["fields"][:-1] or kind["fields"]
    return f"struct<{', '.join(one['name'] + ' ' + type_text(one['type']) for one in shown)}>"


def shown(value: Any) -> Any:
    """A column's value as the page spells it in JSON."""
    if isinstance(value, dict):
        return {name: shown(one) for name, one in value.items() if name != UNRECOGNIZED or one is not None}
    if isinstance(value, list | tuple):
        return [shown(one) for one in value]
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    if isinstance(value, Decimal):
        return int(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def text_of(value: Any) -> str:
    return json.dumps(shown(value), ensure_ascii=False)


def payload_of(row: PageRow, source: Source) -> bytes:
    """The bytes of a row's example, by the producer's own class."""
    if row.example.startswith("0x"):
        return hexadecimal(row.example)
    message = message_class(source)()
    text_format.Parse(row.example, message, descriptor_pool=message.DESCRIPTOR.file.pool)
    payload: bytes = message.SerializePartialToString(deterministic=True)
    return payload


@pytest.mark.parametrize("row", ROWS, ids=ids(ROWS))
def test_a_row_of_the_page(row: PageRow, compiled: bytes) -> None:
    source = source_of(row, compiled)
    schema = decide("t", (), None, source).schema
    payload = payload_of(row, source)
    [struct] = [one["type"] for one in schema.schema()["fields"] if one["name"] == "value"]
    types = {one["name"]: type_text(one["type"]) for one in struct["fields"]}
    names = [one.split(" ", 1)[0] for one in row.columns]
    assert [f"{name} {types.get(name)}" for name in names] == list(row.columns)
    assert [name for name in types if name not in (*ALONGSIDE, UNRECOGNIZED)] == [
        name for name in names if name != UNRECOGNIZED
    ]
    for engine in ENGINES:
        codec = RecordCodec(schema, engine)  # type: ignore[arg-type]
        values = pa.array([payload], pa.binary())
        key, value = codec.encode_columns(pa.nulls(1, pa.binary()), values)
        column: Any = value
        [found] = column.to_pylist()
        assert found["__err__"] is None, engine
        assert [text_of(found[name]) for name in names] == [
            json.dumps(json.loads(one), ensure_ascii=False) for one in row.holds
        ], engine
        assert codec.rebuild(key, value)[1].to_pylist() == [payload]
        if row.raw != "any":
            assert (found["__raw__"], row.raw) in ((None, "no"), (payload, "kept")), engine


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("record", RECORDS, ids=ids(RECORDS))
def test_a_record_of_the_page(record: PageRecord, compiled: bytes, engine: Any) -> None:
    schema = decide(
        "t", (), None, Source("odd.Odd", file_set(compiled, "odd.proto"), envelope=ENVELOPE)
    ).schema
    codec = RecordCodec(schema, engine)
    key, value = codec.encode_columns(pa.nulls(1, pa.binary()), pa.array([record.payload], pa.binary()))
    column: Any = value
    [found] = column.to_pylist()
    inner = found["inner"] or {}
    cells = {
        "__raw__": "null" if found["__raw__"] is None else "kept",
        "__prefix__": json.loads(text_of(found["__prefix__"])) or "null",
        UNRECOGNIZED: json.loads(text_of(found[UNRECOGNIZED])) or "null",
        f"inner.{UNRECOGNIZED}": json.loads(text_of(inner.get(UNRECOGNIZED))) or "null",
        "__err__": "null" if found["__err__"] is None else cause_of(found["__err__"]),
    }
    assert cells == record.cells
    assert codec.rebuild(key, value)[1].to_pylist() == [record.payload]
    assert found["__raw__"] in (None, record.payload)


def test_the_page_names_every_cause() -> None:
    assert page_causes() == list(CAUSES)
    # A record of too many values has megabytes: `test_decoded_size` shows it.
    assert {record.cells["__err__"] for record in RECORDS} == {*CAUSES, "null"} - {"too_many_values"}


def covered(row: PageRow, compiled: bytes) -> Iterator[str]:
    """What a row is an example of."""
    descriptor = descriptor_of(source_of(row, compiled))
    syntax = row.table.syntax
    yield f"{syntax} {row.raw}"
    if row.table.columns:
        yield "renamed"
    for one in fields_of(descriptor):
        yield from covered_by_field(one, syntax, row)
        inner = one.message_type
        for each in inner.fields if inner is not None and not is_map(one) else ():
            if each.message_type is descriptor or inner is descriptor:
                yield (
                    f"recursion {row.table.recursion_depth} "
                    f"{'delimited' if one.type == F.TYPE_GROUP else 'message'}"
                )
    if (
        len(descriptor.fields) > 1
        and descriptor.oneofs
        and any(len(one.fields) > 1 for one in descriptor.oneofs)
    ):
        yield f"oneof {'empty' if not row.example else 'set'}"


def covered_by_field(one: Any, syntax: str, row: PageRow) -> Iterator[str]:
    kind, lower = one.type, one.name.lower()
    closed = "closed" if one.enum_type is not None and one.enum_type.is_closed else "open"
    if is_map(one):
        key, value = one.message_type.fields_by_number[1], one.message_type.fields_by_number[2]
        yield f"map key {key.type}"
        yield (
            "map value "
            f"{'message' if value.message_type is not None else 'enum' if value.enum_type is not None else 'scalar'}"
        )
    elif one.is_repeated:
        yield (
            f"{syntax} repeated {'packed' if one.is_packed else 'unpacked'}"
            if kind in PACKABLE
            else f"repeated {kind}"
        )
    elif one.message_type is None:
        required = "required" if one.is_required else "explicit" if one.has_presence else "implicit"
        yield f"{syntax} {required} {'absent' if not row.example else 'set'}"
        yield f"scalar {kind}"
        if one.has_default_value:
            yield f"default {'absent' if not row.example else 'set'}"
    if one.enum_type is not None:
        numbers = (
            any(part.lstrip("-").isdigit() for part in json.loads(row.holds[0]) or ())
            if row.holds[0][0] in '["'
            else False
        )
        unknown = numbers or json.loads(row.holds[0]) in ("77", "9", "-6")
        yield f"{closed} enum {'unknown' if unknown else 'known'}"
        if any(
            value.number == other.number
            for value in one.enum_type.values
            for other in one.enum_type.values
            if value is not other
        ):
            yield "enum alias"
    if one.message_type is not None and not is_map(one):
        yield f"{syntax} {'delimited' if kind == F.TYPE_GROUP else 'message'}"
        yield one.message_type.full_name if one.message_type.full_name in WELL_KNOWN else "message"
        if not one.message_type.fields:
            yield "empty message"
    if one.is_extension:
        yield f"{syntax} extension"
    if lower in ("__raw__", "__prefix__", "__err__", "__unrecognized__"):
        yield f"name {lower}"
    if lower in ("select", "order", "table"):
        yield "name reserved in engines"
    if any(other is not one and other.name.lower() == lower for other in one.containing_type.fields):
        yield "name but for case"


PACKABLE = frozenset(SCALARS) - {F.TYPE_STRING, F.TYPE_BYTES} | {F.TYPE_ENUM}
SYNTAXES = ("proto2", "proto3", "2023")
DEMANDED = {
    *(f"scalar {kind}" for kind in (*SCALARS, F.TYPE_ENUM)),
    *(f"map key {kind}" for kind in MAP_KEYS),
    *(f"map value {kind}" for kind in ("scalar", "enum", "message")),
    *(f"{syntax} explicit {how}" for syntax in SYNTAXES for how in ("absent", "set")),
    *(
        "proto3 implicit absent",
        "proto3 implicit set",
        "2023 implicit absent",
        "proto2 required absent",
        "proto2 required set",
    ),
    *("2023 required absent", "default absent", "default set"),
    *(f"{syntax} repeated {how}" for syntax in SYNTAXES for how in ("packed", "unpacked")),
    *(f"{closed} enum {how}" for closed in ("open", "closed") for how in ("known", "unknown")),
    *(
        "enum alias",
        "oneof set",
        "oneof empty",
        "empty message",
        "proto2 delimited",
        "2023 delimited",
        "message",
    ),
    *("proto2 extension", "2023 extension", "renamed", "name but for case", "name reserved in engines"),
    *(f"name {name}" for name in ("__raw__", "__prefix__", "__err__", "__unrecognized__")),
    *(f"recursion {depth} message" for depth in (0, 1, 2)),
    *("recursion 0 delimited", "proto3 kept", "proto2 no", "proto3 no", "2023 no"),
    *(set(WELL_KNOWN)),
}
"""The subjects that the page must cover, each with at least one row."""


def test_everything_is_on_the_page(compiled: bytes) -> None:
    found = {what for row in ROWS for what in covered(row, compiled)}
    assert sorted(DEMANDED - found) == []


def test_a_row_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    good = (
        "<!-- rows syntax=proto3 -->\n\n| declaration | column | example | holds | raw "
        "|\n|---|---|---|---|---|\n"
    )
    row = "| `int32 a = 1;` | `a int` | `a: 1` | `1` | no |\n"
    page.write_text(good + row)
    assert len(page_rows(page)) == 1
    for bad in (
        row.replace("`a int`", "a int"),
        row.replace("| no |", "| yes |"),
        row.replace("`1`", "`1`<br>`2`"),
        row.replace(" | `a: 1`", ""),
        "",
    ):
        page.write_text(good + bad)
        with pytest.raises(ValueError):
            page_rows(page)
    page.write_text(good.replace("proto3", "proto9") + row)
    with pytest.raises(ValueError, match="proto9"):
        page_rows(page)


def test_the_page_has_no_other_tables_of_rows() -> None:
    """A table whose comment was lost would be read by people only, and by no test."""
    heads = [
        line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| declaration ")
    ]
    assert len(heads) == len({row.table.number for row in ROWS})
