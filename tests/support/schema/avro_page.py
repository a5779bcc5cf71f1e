"""docs/schema-mapping-avro.md as data: the rows of its tables, and the bytes of their examples."""

from __future__ import annotations

import io
import json
import re
from dataclasses import dataclass
from typing import Any

import fastavro

from tests.support.pages import ROOT
from tests.support.schema.random_avro import without_logical

PAGE = ROOT / "docs" / "schema-mapping-avro.md"
HEAD = "| type | column | example | holds | raw |"


@dataclass(frozen=True)
class AvroRow:
    """One row."""

    line: int
    depth: int
    type: Any
    column: str
    example: str
    holds: Any
    raw: str


def avro_page_rows() -> list[AvroRow]:
    """Every row of the page's tables; one that cannot be read is an error."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    found: list[AvroRow] = []
    for place, line in enumerate(lines):
        comment = re.fullmatch(r"<!-- rows(?: recursion_depth=(\d+))? -->", line)
        if comment is None:
            continue
        assert lines[place + 2] == HEAD, f"line {place + 3}"
        at = place + 4
        while lines[at].startswith("|"):
            cells = [cell.strip().strip("`") for cell in lines[at].strip("|").split(" | ")]
            kind, column, example, holds, raw = cells
            found.append(
                AvroRow(
                    at + 1, int(comment[1] or 2), json.loads(kind), column, example, json.loads(holds), raw
                )
            )
            at += 1
    return found


def record_of(row: AvroRow) -> Any:
    """The schema of a record that has only the row's field."""
    return {"type": "record", "name": "R", "fields": [{"name": "v", "type": row.type}]}


def payload_of(row: AvroRow) -> bytes:
    """The bytes of a row's example, by another library."""
    if row.example.startswith("0x"):
        return bytes.fromhex(row.example[2:])
    plain = fastavro.parse_schema(without_logical(record_of(row)))
    [value] = fastavro.json_reader(io.StringIO(json.dumps({"v": json.loads(row.example)})), plain)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, plain, value)
    return out.getvalue()
