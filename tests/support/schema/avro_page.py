"""docs/schema-mapping-avro.md as data: the rows of its tables, and the bytes of their examples."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro

from tests.support.schema.random_avro import without_logical
from tests.support.schema.type_tables import TypeRow, type_rows


def avro_page_rows() -> list[TypeRow]:
    """Every row of the page's tables."""
    return type_rows("schema-mapping-avro.md", "type")


def record_of(row: TypeRow) -> Any:
    """The schema of a record that has only the row's field."""
    return {"type": "record", "name": "R", "fields": [{"name": "v", "type": row.type}]}


def payload_of(row: TypeRow) -> bytes:
    """The bytes of a row's example, by another library."""
    if row.example.startswith("0x"):
        return bytes.fromhex(row.example[2:])
    plain = fastavro.parse_schema(without_logical(record_of(row)))
    [value] = fastavro.json_reader(io.StringIO(json.dumps({"v": json.loads(row.example)})), plain)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, plain, value)
    return out.getvalue()
