"""The column layout that this version froze: the same descriptor sets must give the same Iceberg schema, byte
for byte, for ever.

`golden_schema/{name}.binpb` is a descriptor set, `{name}.json` the schema of a table whose key and value both
have that message; `bytes.json` is the schema of a topic without Protobuf. A difference here means that tables
in the field no longer fit: do not adjust the files.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.schema import Schema, assign_fresh_schema_ids

from archiver.schema.evolution.state import decide
from archiver.schema.protobuf.descriptors import load_source

GOLDEN = Path(__file__).parent / "golden_schema"
MESSAGES = {"order": "shop.Order", "all_kinds": "shop.AllKinds"}


@pytest.mark.parametrize("name", MESSAGES)
def test_schema_of_a_message(name: str) -> None:
    source = load_source(GOLDEN / f"{name}.binpb", MESSAGES[name])
    assert decide("t", (), source, source).schema.iceberg_json == (
        GOLDEN / f"{name}.json"
    ).read_text().rstrip("\n")


def test_schema_without_protobuf() -> None:
    assert decide("t", (), None, None).schema.iceberg_json == (GOLDEN / "bytes.json").read_text().rstrip("\n")


@pytest.mark.parametrize("name", [*MESSAGES, "bytes"])
def test_a_catalog_gives_the_same_ids(name: str) -> None:
    schema = Schema.model_validate_json((GOLDEN / f"{name}.json").read_text())
    assert schema.schema_id == 0
    assert assign_fresh_schema_ids(schema).as_struct() == schema.as_struct()
