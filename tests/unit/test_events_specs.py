"""Do partition fields have the types that Iceberg's transforms give?"""

from __future__ import annotations

from typing import Any

import pytest

from archiver.events.partitions import partition_fields
from archiver.events.types import PartitionField
from archiver.runtime.errors import InvalidInput

SCHEMA = {
    "type": "struct",
    "fields": [
        {"id": 1, "name": "id", "type": "long"},
        {"id": 2, "name": "at", "type": "timestamptz"},
        {"id": 3, "name": "price", "type": "decimal(9,2)"},
        {
            "id": 4,
            "name": "who",
            "type": {"type": "struct", "fields": [{"id": 5, "name": "code", "type": "fixed[16]"}]},
        },
        {"id": 6, "name": "list", "type": {"type": "list", "element-id": 7, "element": "string"}},
    ],
}


def spec(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"spec-id": 0, "fields": list(fields)}


@pytest.mark.parametrize(
    ("transform", "source", "kind"),
    [
        ("identity", 1, "long"),
        ("identity", 3, "decimal(9, 2)"),
        ("identity", 5, "fixed[16]"),
        ("void", 2, "timestamptz"),
        ("truncate[10]", 3, "decimal(9, 2)"),
        ("bucket[16]", 5, "int"),
        ("year", 2, "int"),
        ("month", 2, "int"),
        ("day", 2, "date"),
        ("hour", 2, "int"),
    ],
)
def test_a_transform_has_its_type(transform: str, source: int, kind: str) -> None:
    given = spec({"name": "x", "transform": transform, "source-id": source, "field-id": 1007})
    assert partition_fields(given, SCHEMA) == (PartitionField(1007, "x", kind),)


def test_fields_without_ids_are_numbered_from_1000() -> None:
    fields = [{"name": name, "transform": "identity", "source-id": 1} for name in "ab"]
    assert [one.field_id for one in partition_fields(spec(*fields), SCHEMA)] == [1000, 1001]


@pytest.mark.parametrize(
    ("given", "schema", "message"),
    [
        (7, SCHEMA, "a partition spec has a list of fields, got 7"),
        ({"fields": 7}, SCHEMA, "a partition spec has a list of fields"),
        (spec(7), SCHEMA, "a partition field is an object, got 7"),  # type: ignore[arg-type]
        (spec({"name": "x"}), SCHEMA, "a partition field has a name, a transform, a source-id"),
        (
            spec({"name": "x", "transform": "identity", "source-id": 99}),
            SCHEMA,
            "the source 99, which the table's schema lacks",
        ),
        (
            spec({"name": "x", "transform": "identity", "source-id": 1}),
            None,
            "the source 1, which the table's schema lacks",
        ),
        (
            spec({"name": "x", "transform": "identity", "source-id": 4}),
            SCHEMA,
            "cannot have a struct, list or map as its source",
        ),
        (
            spec({"name": "x", "transform": "zorder", "source-id": 1}),
            SCHEMA,
            "'zorder' is not a transform of iceberg",
        ),
    ],
)
def test_what_is_no_spec_is_named(given: Any, schema: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        partition_fields(given, schema)
