"""The JSON Schema of a topic's keys or values as a document: what a `Source` of the format `json` and a
SCHEMA entry hold.

The document has the columns and not the schema's own text, so that later versions of the archiver read a
recorded version as it was. Equal columns give equal bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from archiver.runtime.errors import Corrupted
from archiver.schema.json.mapping import json_tree
from archiver.schema.json.model import Schema, node_json, node_of, parse_schema
from archiver.schema.protobuf.column_names import named_tree
from archiver.schema.protobuf.descriptors import Envelope, Source
from archiver.schema.protobuf.tree import RECURSION_DEPTH, MessageTree
from archiver.schema.schema_text import check_name, read_schema

_KEPT = 256
"""Parsed documents in memory."""


def json_source(
    text: bytes,
    where: str,
    message: str | None = None,
    recursion_depth: int = RECURSION_DEPTH,
    columns: Iterable[tuple[str, str]] = (),
    references: Mapping[str, bytes] | None = None,
    ids: Iterable[int] | None = None,
) -> Source:
    """The source of a schema. `references`: the schemas that it names. `ids`: those of a registry; None:
    payloads have no envelope. Raises `ConfigInvalid`.
    """
    schema = parse_schema(text, where, recursion_depth, references)
    check_name(schema.name, message, where)
    document = json.dumps(node_json(schema.node), separators=(",", ":"), ensure_ascii=False).encode()
    envelope = None if ids is None else Envelope.plain(ids, bare=True)
    source = Source(schema.name, document, recursion_depth, tuple(sorted(columns)), envelope, "json")
    # Called for its errors only. The names are applied when columns are made.
    named_tree(json_tree(schema), source.columns, where)
    return source


def load_json_source(
    path: Path, message: str | None, recursion_depth: int, columns: Iterable[tuple[str, str]] = ()
) -> Source:
    """The source of a file with a JSON Schema. Raises `ConfigInvalid`."""
    where = f"JSON Schema {path}"
    return json_source(read_schema(path, where), where, message, recursion_depth, columns)


def any_json_source(columns: Iterable[tuple[str, str]] = ()) -> Source:
    """The source of documents without a schema: one column of JSON text."""
    return json_source(b"true", "format: json", columns=columns)


def json_schema(source: Source) -> Schema:
    """The columns of a source. Raises `Corrupted` for a document that no version wrote."""
    return _parsed(source.message, source.descriptor_set)


def json_source_tree(source: Source) -> MessageTree:
    """The tree of a source's columns."""
    return json_tree(json_schema(source))


@lru_cache(maxsize=_KEPT)
def _parsed(name: str, document: bytes) -> Schema:
    try:
        return Schema(name, node_of(json.loads(document)))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Corrupted(f"the JSON Schema of a SCHEMA entry cannot be read: {error}") from error
