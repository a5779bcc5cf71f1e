"""docs/schema-mapping-json.md as data: the rows of its tables, as schemas and documents."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.support.schema.type_tables import TypeRow, type_rows


def json_page_rows() -> list[TypeRow]:
    """Every row of the page's tables."""
    return type_rows("schema-mapping-json.md", "schema")


def document_of(row: TypeRow) -> str:
    """The row's example as a producer sends it: an object with the property `v`, or without."""
    return "{}" if row.example == "-" else f'{{"v":{row.example}}}'


def schema_of(row: TypeRow) -> bytes:
    """The schema of such an object."""
    return _schema({"v": row.type}, _definitions(row))


def schema_of_all(rows: list[TypeRow]) -> bytes:
    """One schema with a property for each row, `r` and its place, which is such an object."""
    definitions: dict[str, Any] = {}
    for row in rows:
        for name, one in _definitions(row).items():
            assert definitions.setdefault(name, one) == one, f"two rows define {name}"
    properties = {
        f"r{place}": {"type": "object", "properties": {"v": row.type}} for place, row in enumerate(rows)
    }
    return _schema(properties, definitions)


def documents_of_all(rows: list[TypeRow]) -> list[bytes]:
    """A document of that schema for each row. One for all would not say which row's bytes are kept."""
    return [f'{{"r{place}":{document_of(row)}}}'.encode() for place, row in enumerate(rows)]


def _definitions(row: TypeRow) -> dict[str, Any]:
    # Definitions stand at the top of a schema, where references look for them.
    found: dict[str, Any] = row.type.get("$defs", {}) if isinstance(row.type, dict) else {}
    return found


def _schema(properties: Mapping[str, Any], definitions: Mapping[str, Any]) -> bytes:
    return json.dumps({"type": "object", "properties": properties, "$defs": definitions}).encode()
