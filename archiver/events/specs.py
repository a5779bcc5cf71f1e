"""The partition fields of a table, from Iceberg's own JSON of its partition spec and schema.

Owns which type each transform makes of its source. Promises that a document which is no such JSON raises
`InvalidInput` and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from archiver.events.avro import shown
from archiver.events.partitions import parse_type
from archiver.events.types import PartitionField
from archiver.runtime.errors import InvalidInput

_FIRST_FIELD_ID = 1000
"""Old specs give no ids: their fields are numbered from here on."""
_RESULTS = {"year": "int", "month": "int", "day": "date", "hour": "int"}
_TRUNCATE = re.compile(r"truncate\[[0-9]+\]")
_BUCKET = re.compile(r"bucket\[[0-9]+\]")
_NESTED = ("fields", "type", "element", "key", "value")


def partition_fields(spec: object, schema: object) -> tuple[PartitionField, ...]:
    """The fields of `spec`, in order, each with the type that its transform gives. Raises `InvalidInput`."""
    listed = spec.get("fields") if isinstance(spec, Mapping) else None
    if not isinstance(listed, list):
        raise InvalidInput(f"a partition spec has a list of fields, got {shown(spec)}")
    sources = dict(_columns(schema))
    return tuple(_field(one, _FIRST_FIELD_ID + at, sources) for at, one in enumerate(listed))


def _field(tree: object, field_id: int, sources: Mapping[int, object]) -> PartitionField:
    if not isinstance(tree, Mapping):
        raise InvalidInput(f"a partition field is an object, got {shown(tree)}")
    name, transform, source_id = tree.get("name"), tree.get("transform"), tree.get("source-id")
    given_id = tree.get("field-id", field_id)
    if (
        not isinstance(name, str)
        or not isinstance(transform, str)
        or not isinstance(source_id, int)
        or not isinstance(given_id, int)
    ):
        raise InvalidInput(
            f"a partition field has a name, a transform, a source-id and a field-id, got {shown(tree)}"
        )
    if source_id not in sources:
        raise InvalidInput(
            f"the partition field {name!r:.80} has the source {shown(source_id)}, which the table's "
            "schema lacks"
        )
    return PartitionField(given_id, name, str(parse_type(_result(transform, sources[source_id]))))


def _result(transform: str, source: object) -> str:
    if not isinstance(source, str):
        raise InvalidInput("a partition field cannot have a struct, list or map as its source")
    if transform in ("identity", "void") or _TRUNCATE.fullmatch(transform):
        return source
    if _BUCKET.fullmatch(transform):
        return "int"
    if transform not in _RESULTS:
        raise InvalidInput(
            f"{transform!r:.80} is not a transform of iceberg; known are identity, void, bucket[N], "
            "truncate[N], year to hour"
        )
    return _RESULTS[transform]


def _columns(tree: object) -> Iterator[tuple[int, object]]:
    """Field id and type of every field that stands in a struct, however deep."""
    if isinstance(tree, list):
        for one in tree:
            yield from _columns(one)
    elif isinstance(tree, Mapping):
        field: Mapping[str, Any] = tree
        if isinstance(field.get("id"), int):
            yield field["id"], field.get("type")
        for key in _NESTED:
            if isinstance(field.get(key), Mapping | list):
                yield from _columns(field[key])
