"""A topic's schema as recorded in the control log.

Reading a SCHEMA entry gives exactly what was written. Other packages import these classes from `state`.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from archiver.proto import control_log_pb2
from archiver.runtime.errors import Corrupted
from archiver.runtime.redaction import excerpt
from archiver.schema.columns import Json
from archiver.schema.protobuf.descriptors import Envelope, SchemaFormat, Source
from archiver.schema.protobuf.tree import RECURSION_DEPTH

DOCUMENT_MAX: Final = 64 * 2**20
"""Bytes of the Avro schemas or the JSON Schema of a topic's keys or values, all versions together."""


@dataclass(frozen=True)
class SourceSchema:
    """The schema side of a key or a value, as recorded."""

    message: str
    """Full name of the message."""
    descriptor_set: bytes
    """A serialized FileDescriptorSet with every file the message needs."""
    field_ids: Mapping[str, int]
    """Path of field numbers, as in `columns.field_ids`, to Iceberg field id. Only fields that the message has
    in this version."""
    recursion_depth: int = RECURSION_DEPTH
    """As in `Source`."""
    columns: tuple[tuple[str, str], ...] = ()
    """As in `Source`."""
    envelope: Envelope | None = None
    """As in `Source`."""
    format: SchemaFormat = "protobuf"
    """As in `Source`."""

    def source(self) -> Source:
        """The same without ids."""
        return Source(
            self.message,
            self.descriptor_set,
            self.recursion_depth,
            self.columns,
            self.envelope,
            self.format,
        )

    @staticmethod
    def of(source: Source, field_ids: Mapping[str, int]) -> SourceSchema:
        """What is recorded of a source."""
        return SourceSchema(
            source.message,
            source.descriptor_set,
            field_ids,
            source.recursion_depth,
            source.columns,
            source.envelope,
            source.format,
        )


@dataclass(frozen=True)
class TopicSchema:
    """The columns of a topic from one SCHEMA entry on."""

    version: int
    """1, 2, … per topic."""
    iceberg_json: str
    """Iceberg's JSON form with the field ids in force. It has every column the topic ever had: those that no
    field of this version has are dropped ones."""
    key: SourceSchema | None
    """None: the key has no schema."""
    value: SourceSchema | None
    """None: the value has no schema."""

    def sides(self) -> tuple[SourceSchema | None, SourceSchema | None]:
        """Key and value."""
        return self.key, self.value

    def to_entry(self, topic_id: bytes) -> control_log_pb2.SchemaChanged:
        """The entry's body for the control log. `topic_id`: 16 bytes."""
        entry = control_log_pb2.SchemaChanged(
            topic_id=topic_id, version=self.version, iceberg_schema=self.iceberg_json
        )
        for theirs, ours in ((entry.key, self.key), (entry.value, self.value)):
            if ours is not None:
                _write(theirs, ours)
        return entry

    @staticmethod
    def from_entry(entry: control_log_pb2.SchemaChanged) -> TopicSchema:
        """The state that an entry records. Raises Corrupted if its JSON cannot be read."""
        # Only for its error: damage is reported when the entry is read.
        parse_schema_json(entry.iceberg_schema)
        key = _read(entry.key) if entry.HasField("key") else None
        value = _read(entry.value) if entry.HasField("value") else None
        return TopicSchema(entry.version, entry.iceberg_schema, key, value)

    def schema(self) -> Json:
        """The Iceberg schema as parsed JSON, the caller's own."""
        return parse_schema_json(self.iceberg_json)


def parse_schema_json(text: str) -> Json:
    """Iceberg's JSON form of a schema; raises Corrupted if it is none."""
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise Corrupted(
            f"an iceberg schema cannot be read: {error}; text begins {excerpt(text, 60)!r}"
        ) from error
    if not isinstance(schema, dict) or schema.get("type") != "struct":
        raise Corrupted(f"an iceberg schema is not a struct; text begins {excerpt(text, 60)!r}")
    return schema


def _write(entry: control_log_pb2.SchemaChanged.Source, side: SourceSchema) -> None:
    entry.message = side.message
    if side.format == "avro":
        # Schemas of many versions are nearly the same text.
        entry.avro = zlib.compress(side.descriptor_set, 9)
    elif side.format == "json":
        entry.json = zlib.compress(side.descriptor_set, 9)
    else:
        entry.descriptor_set = side.descriptor_set
    entry.field_ids.update(side.field_ids)
    # Omitted if it is the default, so that the entry of an unchanged topic stays equal byte for byte.
    if side.recursion_depth != RECURSION_DEPTH:
        entry.recursion_depth = side.recursion_depth
    entry.columns.update(dict(side.columns))
    if side.envelope is not None:
        # A flag of its own, because an envelope without ids differs from no envelope.
        entry.enveloped = True
        for number, indexes in side.envelope.ids:
            entry.ids.add(id=number, indexes=indexes)


def _read(entry: control_log_pb2.SchemaChanged.Source) -> SourceSchema:
    form: SchemaFormat = "avro" if entry.avro else "json" if entry.json else "protobuf"
    ids = tuple((one.id, tuple(one.indexes)) for one in entry.ids)
    envelope = Envelope(ids, indexed=form == "protobuf", bare=form != "avro") if entry.enveloped else None
    depth = entry.recursion_depth if entry.HasField("recursion_depth") else RECURSION_DEPTH
    return SourceSchema(
        entry.message,
        entry.descriptor_set if form == "protobuf" else _unpacked(entry.avro or entry.json),
        dict(entry.field_ids),
        depth,
        # Protobuf's maps have no order; `Source` has these in the order of the paths.
        tuple(sorted(entry.columns.items())),
        envelope,
        form,
    )


def _unpacked(data: bytes) -> bytes:
    """The document of the schemas in an entry."""
    unpacker = zlib.decompressobj()
    try:
        found = unpacker.decompress(data, DOCUMENT_MAX)
    except zlib.error as error:
        raise Corrupted(f"the schemas of a SCHEMA entry cannot be read: {error}") from error
    if not unpacker.eof:
        raise Corrupted(f"the schemas of a SCHEMA entry are cut off, or over {DOCUMENT_MAX:,} bytes")
    return found
