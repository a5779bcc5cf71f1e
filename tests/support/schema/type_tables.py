"""The tables of a page in docs that says what becomes of a schema's types."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[3] / "docs"


@dataclass(frozen=True)
class TypeRow:
    """A row of a table."""

    line: int
    depth: int
    type: Any
    column: str
    example: str
    holds: Any
    raw: str


def type_rows(page: str, first: str) -> list[TypeRow]:
    """Every row of the page's tables, whose first column is `first`; one that cannot be read is an error."""
    head = f"| {first} | column | example | holds | raw |"
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    found: list[TypeRow] = []
    for place, line in enumerate(lines):
        comment = re.fullmatch(r"<!-- rows(?: recursion_depth=(\d+))? -->", line)
        if comment is None:
            continue
        assert lines[place + 2] == head, f"line {place + 3}"
        at = place + 4
        while lines[at].startswith("|"):
            cells = [cell.strip().strip("`") for cell in lines[at].strip("|").split(" | ")]
            kind, column, example, holds, raw = cells
            found.append(
                TypeRow(
                    at + 1, int(comment[1] or 2), json.loads(kind), column, example, json.loads(holds), raw
                )
            )
            at += 1
    return found


def type_text(kind: Any) -> str:
    """An Iceberg type as the page spells it."""
    if isinstance(kind, str):
        return kind
    if kind["type"] == "list":
        return f"list<{type_text(kind['element'])}>"
    if kind["type"] == "map":
        return f"map<{type_text(kind['key'])}, {type_text(kind['value'])}>"
    return f"struct<{', '.join(one['name'] + ' ' + type_text(one['type']) for one in kind['fields'])}>"


def shown(value: Any) -> Any:
    """A column's value as the page spells it."""
    if isinstance(value, dict):
        return {name: shown(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [shown(one) for one in value]
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    if isinstance(value, datetime):
        return (value.astimezone(UTC) if value.tzinfo else value).isoformat().replace("+00:00", "Z")
    if isinstance(value, date | time):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal) else value
