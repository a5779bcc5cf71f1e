"""Reads the files of a table's snapshot with a decoder of our own: metadata JSON, manifest list, manifests.

It shares no decoder with pyiceberg, which writes manifests: an error of that library must not hide itself
(decision 0027). A file that cannot be read completely raises `Corrupted`. Must never write.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from archiver.catalog.iceberg.avro_container import container_of
from archiver.catalog.table_layout import StreamFields, bound_number
from archiver.catalog.tables import LiveFile
from archiver.events.avro import Array, Optional, Primitive, Record, Schema, parse_schema, read_data
from archiver.runtime.errors import Corrupted

UNPACKED_BYTES_MAX = 256 * 2**20
"""Most uncompressed bytes of a metadata file or manifest; valid ones have a few MiB. A few hundred KiB of
zeros would expand to as much."""
_DELETED = 2
"""Status of an entry whose file the manifest's snapshot removed."""
_CONTENTS: Mapping[int, Literal["data", "positions", "equality"]] = {0: "data", 1: "positions", 2: "equality"}

Read = Callable[[str], bytes]
"""Returns the whole object at a path of the table's metadata."""


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """A file that hides rows of data files."""

    path: str
    kind: Literal["positions", "equality"]
    format: str
    """PARQUET, AVRO, ORC or PUFFIN."""
    size: int
    """Bytes."""
    sequence_number: int
    """It hides rows of data files whose number is not above it."""
    snapshot_id: int


@dataclass(frozen=True, slots=True)
class SnapshotFiles:
    """All files of one snapshot."""

    data: tuple[LiveFile, ...]
    deletes: tuple[DeleteFile, ...]


def snapshot_files(
    read: Read, metadata_path: str, snapshot_id: int | None, fields: StreamFields
) -> SnapshotFiles:
    """The files of one snapshot of the table with metadata at `metadata_path`; none for snapshot None.

    Raises `Corrupted` if a file cannot be parsed, and the errors of `read`.
    """
    if snapshot_id is None:
        return SnapshotFiles((), ())
    manifests = list(_manifests(read, metadata_path, snapshot_id))
    # Content 1 marks a manifest of delete files; format version 1 has no such field.
    has_deletes = any(one.get("content") for one in manifests)
    data: list[LiveFile] = []
    deletes: list[DeleteFile] = []
    for manifest in manifests:
        for entry in records(read(manifest["manifest_path"]), manifest["manifest_path"]):
            # The entry only records the removal. Its file is not in the snapshot.
            if entry["status"] == _DELETED:
                continue
            file, sequence, snapshot = (
                entry["data_file"],
                _sequence(entry, manifest),
                entry["snapshot_id"] or manifest["added_snapshot_id"],
            )
            # Format version 1 has data files only, without the field.
            kind = _CONTENTS.get(file.get("content") or 0)
            if kind == "data":
                data.append(_live_file(file, manifest, sequence, snapshot, fields, has_deletes))
            elif kind is not None:
                deletes.append(
                    DeleteFile(
                        file["file_path"],
                        kind,
                        str(file["file_format"]).upper(),
                        file["file_size_in_bytes"],
                        sequence,
                        snapshot,
                    )
                )
            else:
                # A kind of a later format version may hide rows, so it must not be skipped.
                raise Corrupted(
                    f"manifest {manifest['manifest_path']} lists a file of content {file.get('content')!r}"
                )
    return SnapshotFiles(tuple(data), tuple(deletes))


def _manifests(read: Read, metadata_path: str, snapshot_id: int) -> Iterator[dict[str, Any]]:
    """The rows of the snapshot's manifest list."""
    try:
        text = read(metadata_path)
        # Iceberg writers may compress metadata with gzip. 31: a zlib window of 32 KiB with a gzip header.
        metadata = json.loads(_unpacked(text, 31) if text[:2] == b"\x1f\x8b" else text)
        found = next(one for one in metadata["snapshots"] if one["snapshot-id"] == snapshot_id)
        path = str(found["manifest-list"])
    # A deeply nested document raises RecursionError.
    except (Corrupted, ValueError, KeyError, TypeError, StopIteration, RecursionError, zlib.error) as error:
        raise Corrupted(
            f"{metadata_path} does not tell where snapshot {snapshot_id} is: {error!r}"
        ) from error
    for one in records(read(path), path):
        if "manifest_path" not in one:
            raise Corrupted(f"{path} is no manifest list")
        yield one


def _sequence(entry: Mapping[str, Any], manifest: Mapping[str, Any]) -> int:
    """The sequence number of an entry; without one of its own, that of its manifest."""
    own = entry.get("sequence_number")
    # Format version 1 has no sequence numbers; its files count as 0.
    return int((manifest.get("sequence_number") or 0) if own is None else own)


def _live_file(
    file: Mapping[str, Any],
    manifest: Mapping[str, Any],
    sequence: int,
    snapshot: int,
    fields: StreamFields,
    has_deletes: bool,
) -> LiveFile:
    lower, upper = file.get("lower_bounds"), file.get("upper_bounds")
    partition = file["partition"]
    return LiveFile(
        path=file["file_path"],
        record_count=file["record_count"],
        file_size=file["file_size_in_bytes"],
        spec_id=manifest["partition_spec_id"],
        partition=tuple(partition.values()),
        offset_min=bound_number(lower, fields.offset),
        offset_max=bound_number(upper, fields.offset),
        partition_min=bound_number(lower, fields.partition),
        partition_max=bound_number(upper, fields.partition),
        snapshot_id=snapshot,
        sequence_number=sequence,
        has_deletes=has_deletes,
    )


def records(data: bytes, name: str) -> Iterator[dict[str, Any]]:
    """The records of an Avro container file by field name, with maps as mappings. Raises `Corrupted` with
    `name`.
    """
    try:
        # The writer's schema in the header decides the fields, so newer fields are read and ignored.
        container = container_of(data, UNPACKED_BYTES_MAX)
        schema = parse_schema(container.header[b"avro.schema"].decode())
        if not isinstance(schema, Record):
            raise Corrupted("it does not hold records")
        shape = _shape(schema)
        for count, block in container.blocks:
            for values in read_data(schema, block, count):
                yield shape(values)
    except (Corrupted, KeyError, ValueError) as error:
        raise Corrupted(f"{name} cannot be read as an Avro file: {error}") from error


def _unpacked(data: bytes, wbits: int) -> bytes:
    """Decompressed bytes, up to `UNPACKED_BYTES_MAX`. Raises `Corrupted` or zlib's error."""
    stream = zlib.decompressobj(wbits)
    # A decompressor with a limit: `zlib.decompress` would allocate the whole result first.
    found = stream.decompress(data, UNPACKED_BYTES_MAX)
    if not stream.eof:
        raise Corrupted(
            f"its {len(data)} bytes are cut off, or unpack to more than {UNPACKED_BYTES_MAX} bytes"
        )
    return found


def _shape(schema: Schema) -> Callable[[Any], Any]:
    """A function that turns the decoded lists of a datum into mappings by field name."""
    if isinstance(schema, Optional):
        inner = _shape(schema.schema)
        return lambda value: None if value is None else inner(value)
    if isinstance(schema, Record):
        names = [one.name for one in schema.fields]
        shapes = [_shape(one.schema) for one in schema.fields]
        return lambda values: {
            name: shape(value) for name, shape, value in zip(names, shapes, values, strict=True)
        }
    # Iceberg stores a map with integer keys as an array of key-value records.
    if isinstance(schema, Array) and schema.properties.get("logicalType") == "map":
        return dict
    if isinstance(schema, Array) and not isinstance(schema.items, Primitive):
        item = _shape(schema.items)
        return lambda values: [item(value) for value in values]
    return lambda value: value
