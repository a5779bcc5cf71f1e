"""Does the schema text equal Java's, also for what the golden samples do not cover?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archiver.events.codec import from_wire_text, schema_text, to_wire_text
from archiver.events.types import EventType, PartitionField
from archiver.runtime.errors import Corrupted, InvalidInput


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_text_survives_javas_utf8(text: str) -> None:
    data = to_wire_text(text)
    assert from_wire_text(data) == text
    assert b"\0" not in data
    assert all(byte < 0xF0 for byte in data)


def test_javas_utf8_differs_from_the_usual_one_in_two_places() -> None:
    assert to_wire_text("a\0é😀").hex() == "61" + "c080" + "c3a9" + "eda0bdedb880"


@pytest.mark.parametrize("data", ["ff", "c3", "f09f9880", "eda0bd", "c081"])
def test_other_bytes_are_corrupted(data: str) -> None:
    with pytest.raises(Corrupted, match="modified utf-8"):
        from_wire_text(bytes.fromhex(data))


def _partition(*fields: PartitionField) -> str:
    text = from_wire_text(schema_text(EventType.DATA_WRITTEN, fields, True))
    start = text.index('"name":"PartitionData","fields":[') + len('"name":"PartitionData","fields":[')
    return text[start : text.index(']},"doc":"Partition data tuple', start)]


def test_a_fixed_type_is_written_once_and_then_by_name() -> None:
    kinds = ("decimal(9, 2)", "decimal(9, 2)", "uuid")
    found = _partition(*(PartitionField(1000 + at, f"f{at}", kind) for at, kind in enumerate(kinds)))
    first = '{"type":"fixed","name":"decimal_9_2","namespace":"","size":4,"logicalType":"decimal","precision":9,"scale":2}'
    assert found == (
        f'{{"name":"f0","type":["null",{first}],"default":null,"field-id":1000}},'
        '{"name":"f1","type":["null","decimal_9_2"],"default":null,"field-id":1001},'
        '{"name":"f2","type":["null","uuid_fixed"],"default":null,"field-id":1002}'
    )


def test_an_original_name_is_kept_with_javas_escapes() -> None:
    found = _partition(PartitionField(1000, 'a"\\\n\x1b', "int"))
    assert (
        found
        == '{"name":"a_x22_x5C_xA_x1B","type":["null","int"],"default":null,"iceberg-field-name":"a\\"\\\\\\n\\u001B","field-id":1000}'
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            (PartitionField(1000, "a-b", "int"), PartitionField(1001, "a_x2Db", "int")),
            "two partition fields are named 'a_x2Db' in avro",
        ),
        (
            (PartitionField(1000, "a", "int"), PartitionField(1000, "b", "int")),
            "id 1000 is out of range or used twice",
        ),
        ((PartitionField(-1, "a", "int"),), "id -1 is out of range"),
        ((PartitionField(1000, "", "int"),), "empty name"),
        ((PartitionField(1000, "a", "struct<>"),), "'struct<>' is not an iceberg type"),
    ],
)
def test_partition_fields_that_iceberg_could_not_have_are_refused(
    fields: tuple[PartitionField, ...], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        schema_text(EventType.DATA_WRITTEN, fields, True)
