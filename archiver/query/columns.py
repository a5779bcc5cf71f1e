"""Converts an Iceberg schema to DuckDB column types, and to the mapping of Parquet field ids to columns."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from archiver.runtime.errors import Halt

_PLAIN = {
    "boolean": "BOOLEAN",
    "int": "INTEGER",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "date": "DATE",
    "time": "TIME",
    "timestamp": "TIMESTAMP",
    "timestamptz": "TIMESTAMPTZ",
    "string": "VARCHAR",
    "uuid": "UUID",
    "binary": "BLOB",
}
_DECIMAL = re.compile(r"decimal\((\d+), ?(\d+)\)")
_FIXED = re.compile(r"fixed\[\d+\]")

_RESERVED_WORDS = """
    all analyse analyze and anti any array as asc asof asymmetric at authorization binary both by
    case cast check collate collation column columns concurrently constraint create cross default
    deferrable desc describe distinct do else end except false fetch for foreign freeze from full
    generated glob group having ilike in initially inner intersect into is isnull join lambda
    lateral leading left like limit map natural not notnull null offset on only or order outer
    overlaps pivot pivot_longer pivot_wider placing positional primary qualify references returning
    right select semi show similar some struct summarize symmetric table tablesample then to
    trailing true try_cast tuple union unique unpack unpivot using variadic verbose when where
    window with
"""
RESERVED = frozenset(_RESERVED_WORDS.split())
"""Words of DuckDB's SQL that are no name at the beginning of a dotted name."""


def columns_of(schema_json: str) -> list[tuple[str, str]]:
    """Name and type of every column, in order; raises `Halt` for a type that DuckDB has no name for."""
    return [(item["name"], _type(item["type"])) for item in json.loads(schema_json)["fields"]]


def columns_by_id(schema_json: str) -> str:
    """Value of `schema` in DuckDB's `read_parquet`: the field id of each column, at every level.

    Names and types are those of the schema, not of the files. A column whose field id a file does not have is
    null. Raises `Halt` as `columns_of` does, and for a column with a default other than null, which DuckDB
    cannot fill in.
    """
    return _children((item["id"], item["name"], item) for item in json.loads(schema_json)["fields"])


def quoted(name: str) -> str:
    """Quote an identifier."""
    return '"' + name.replace('"', '""') + '"'


def dotted(*names: str) -> str:
    """A name of several parts, with quotes only where DuckDB needs them."""
    first, *others = names
    return ".".join(
        [
            first if _is_plain(first) and first.lower() not in RESERVED else quoted(first),
            # After a dot every word is a name.
            *(name if _is_plain(name) else quoted(name) for name in others),
        ]
    )


def _is_plain(name: str) -> bool:
    return name.isascii() and name.isidentifier()


def fields_named(schema_json: str, name: str) -> list[str]:
    """The fields of structs with this name, in upper or lower case, as a query writes them: `value.id`."""
    return [
        dotted(*path) for path in _paths(json.loads(schema_json)) if path[-1].casefold() == name.casefold()
    ]


def _paths(struct: dict[str, Any], *above: str) -> Iterator[tuple[str, ...]]:
    """Names on the way to each field inside of structs; not in lists and maps."""
    for item in struct["fields"]:
        if above:
            yield (*above, item["name"])
        if isinstance(item["type"], dict) and item["type"]["type"] == "struct":
            yield from _paths(item["type"], *above, item["name"])


def literal(text: str) -> str:
    """Quote a text constant."""
    return "'" + text.replace("'", "''") + "'"


def _children(fields: Iterable[tuple[int, str, dict[str, Any]]]) -> str:
    """A MAP from field id to definition."""
    return "MAP {" + ", ".join(f"{number}: {_definition(name, item)}" for number, name, item in fields) + "}"


def _definition(name: str, item: dict[str, Any]) -> str:
    # DuckDB cannot fill in a default, so older rows would show null.
    if item.get("initial-default") is not None:
        raise Halt(
            f"column {name} has a default value for rows from before it, which cannot be queried here; "
            "use Spark or Trino"
        )
    kind, inside = item["type"], ""
    if isinstance(kind, dict):
        if kind["type"] == "struct":
            parts = [(one["id"], one["name"], one) for one in kind["fields"]]
        else:
            # DuckDB has fixed names for the element of a list and the entries of a map.
            names = ("element",) if kind["type"] == "list" else ("key", "value")
            parts = [(kind[f"{part}-id"], part, {"type": kind[part]}) for part in names]
        inside = f", children: {_children(parts)}"
    # Names inside structs come from the schema too: a renamed field is found by its id.
    return f"{{name: {literal(name)}, type: {literal(_type(kind))}, default_value: NULL{inside}}}"


def _type(found: Any) -> str:
    if isinstance(found, dict):
        if found["type"] == "struct":
            return (
                "STRUCT("
                + ", ".join(f"{quoted(item['name'])} {_type(item['type'])}" for item in found["fields"])
                + ")"
            )
        if found["type"] == "list":
            return _type(found["element"]) + "[]"
        if found["type"] == "map":
            return f"MAP({_type(found['key'])}, {_type(found['value'])})"
    text = str(found)
    decimal = _DECIMAL.fullmatch(text)
    if decimal is not None:
        return f"DECIMAL({decimal[1]}, {decimal[2]})"
    # DuckDB has no binary type of a fixed length.
    if _FIXED.fullmatch(text):
        return "BLOB"
    if text not in _PLAIN:
        raise Halt(f"a column has the type {text}, which cannot be queried here; use Spark or Trino")
    return _PLAIN[text]
