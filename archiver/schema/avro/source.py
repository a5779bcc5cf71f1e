"""The Avro schemas of a topic's keys or values as one document: the newest, and those of all registry ids.

The document is what a `Source` of the format `avro` and a SCHEMA entry hold: JSON with `schema` (the newest
in its normal form) and `writers` (pairs of a registry's id and the schema of that id, in the order of the
ids; an id of the newest schema has null). `steps`, where there are any, says which fields are identified by a
former name. Equal content gives equal bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from archiver.runtime.errors import ConfigInvalid
from archiver.schema.avro.mapping import avro_tree, followed_steps
from archiver.schema.avro.model import Schema, parse_schema
from archiver.schema.protobuf.column_names import named_tree
from archiver.schema.protobuf.descriptors import Envelope, Source
from archiver.schema.protobuf.tree import RECORDED_COLUMNS_MAX, RECURSION_DEPTH, MessageTree
from archiver.schema.schema_text import check_name, read_schema

_KEPT = 256
"""Parsed documents, and parsed schemas, in memory."""


@dataclass(frozen=True)
class AvroSchemas:
    """A parsed document."""

    newest: Schema
    texts: Mapping[int, str]
    """The schemas in normal form by id of the registry; empty without one."""
    steps: Mapping[str, str]
    """As in `avro_tree`."""
    recursion_depth: int
    where: str

    def writer(self, number: int) -> Schema:
        """The schema of an id. Raises `ConfigInvalid`."""
        text = self.texts[number]
        if text == self.newest.text:
            return self.newest
        # Parsed when a record needs it: a subject may have a thousand versions.
        return _schema(text, self.recursion_depth, f"{self.where}, schema id {number}")


def avro_source(
    schema: Schema,
    where: str,
    recursion_depth: int = RECURSION_DEPTH,
    columns: Iterable[tuple[str, str]] = (),
    writers: Mapping[int, str] | None = None,
) -> Source:
    """The source of a schema. `writers`: the schemas of all ids of a registry, in normal form; None: payloads
    have no envelope. Raises `ConfigInvalid` for a renamed column that does not exist.
    """
    document = {
        "schema": json.loads(schema.text),
        "writers": [
            [number, None if text == schema.text else json.loads(text)]
            for number, text in sorted((writers or {}).items())
        ],
    }
    data = _bytes(document)
    envelope = None if writers is None else Envelope.plain(writers, bare=False)
    source = Source(schema.name, data, recursion_depth, tuple(sorted(columns)), envelope, "avro")
    # Called for its errors only. The names are applied when columns are made.
    named_tree(avro_tree(schema), source.columns, where)
    return source


def load_avro_source(
    path: Path, message: str | None, recursion_depth: int, columns: Iterable[tuple[str, str]] = ()
) -> Source:
    """The source of an `.avsc` file. Raises `ConfigInvalid`."""
    where = f"Avro schema {path}"
    data = read_schema(path, where)
    schema = parse_schema(data, where, recursion_depth, defaults=True)
    check_name(schema.name, message, where)
    return avro_source(schema, where, recursion_depth, columns)


def avro_schemas(source: Source, where: str) -> AvroSchemas:
    """The parsed schemas of a source. Raises `ConfigInvalid`."""
    return _parsed(source.descriptor_set, source.recursion_depth, where)


def avro_source_tree(source: Source, where: str) -> MessageTree:
    """The tree of the newest schema's columns. Raises `ConfigInvalid`."""
    schemas = avro_schemas(source, where)
    return avro_tree(schemas.newest, schemas.steps)


def followed(source: Source | None, former: Sequence[Source], where: str) -> Source | None:
    """The source with the identities of the fields of the newest Avro schema before it. `where` opens the
    messages of errors.
    """
    before = [one for one in former if one.format == "avro"]
    if source is None or source.format != "avro" or not before:
        return source
    document: dict[str, Any] = json.loads(source.descriptor_set)
    tree = avro_tree(avro_schemas(source, where).newest)
    steps = followed_steps(tree, avro_source_tree(before[-1], where))
    document.pop("steps", None)
    if steps:
        document["steps"] = dict(sorted(steps.items()))
    return replace(source, descriptor_set=_bytes(document))


def _bytes(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def writer_texts(source: Source) -> dict[int, str]:
    """The schemas of all ids, in normal form."""
    return dict(avro_schemas(source, "recorded schema").texts)


def with_writers_of(source: Source, other: Source) -> Source:
    """A schema that has no id yet, with the ids of another source of the topic."""
    if other.envelope is None:
        return source
    newest = avro_schemas(source, "schema").newest
    found = avro_source(newest, "schema", source.recursion_depth, (), writer_texts(other))
    return replace(found, columns=source.columns)


def as_registered(source: Source) -> Source:
    """A schema of a file as one of a registry that has no ids yet."""
    newest = avro_schemas(source, "schema").newest
    found = avro_source(newest, "schema", source.recursion_depth, (), {})
    return replace(found, columns=source.columns)


@lru_cache(maxsize=_KEPT)
def _parsed(document: bytes, recursion_depth: int, where: str) -> AvroSchemas:
    parsed: dict[str, Any] = json.loads(document)
    newest = _schema(_bytes(parsed["schema"]).decode(), recursion_depth, where)
    texts = {
        number: newest.text if given is None else _bytes(given).decode()
        for number, given in parsed["writers"]
    }
    return AvroSchemas(newest, texts, parsed.get("steps", {}), recursion_depth, where)


@lru_cache(maxsize=_KEPT)
def _schema(text: str, recursion_depth: int, where: str) -> Schema:
    # Earlier versions may have other limits. What they recorded must stay readable.
    return parse_schema(
        text.encode(), where, recursion_depth, columns_max=RECORDED_COLUMNS_MAX, levels_max=None
    )


def check_readable(source: Source | None, former: Sequence[Source], where: str) -> None:
    """Refuse an Avro schema under which records of this topic could be read by a schema that did not write
    them. Raises `ConfigInvalid`.
    """
    if source is None or source.format != "avro":
        return
    for one in former:
        if one.format != "avro":
            continue
        if (one.envelope is None) != (source.envelope is None):
            raise ConfigInvalid(
                f"{where}: its records have been read {'without' if one.envelope is None else 'with'} a "
                "registry's envelope so far, and a record does not say which it has; restore the former "
                "source of the schema, or send to a new topic"
            )
        if source.envelope is None and _bytes_of(one, where) != _bytes_of(source, where):
            raise ConfigInvalid(
                f"{where}: the Avro schema {source.message} has changed, and records without a registry's "
                "envelope do not say which schema wrote them; restore the file, or send to a new topic. "
                "With `subject` a schema can change"
            )


def _bytes_of(source: Source, where: str) -> Any:
    """What decides how records are written."""
    return _without_aliases(json.loads(avro_schemas(source, where).newest.text))


def _without_aliases(parsed: Any) -> Any:
    if isinstance(parsed, list):
        return [_without_aliases(one) for one in parsed]
    if not isinstance(parsed, dict):
        return parsed
    return {name: _without_aliases(one) for name, one in parsed.items() if name != "aliases"}
