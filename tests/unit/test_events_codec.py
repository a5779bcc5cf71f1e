"""Do control events survive encoding, and do damaged bytes and wrong values raise the right error only?"""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archiver.events import codec
from archiver.events.types import (
    DataComplete,
    DataFile,
    DataWritten,
    Event,
    EventType,
    PartitionField,
    StartCommit,
    TableReference,
)
from archiver.runtime.errors import Corrupted, InvalidInput
from tests.support.events.event_values import events

_GOLDEN = Path(__file__).parents[1] / "compat" / "golden_events"
_SAMPLES = [path.read_bytes() for path in sorted(_GOLDEN.glob("*/*.bin"))]
_ID = UUID(int=5)
_DAY = (PartitionField(1000, "day", "date"),)


def _written(*files: DataFile, deletes: tuple[DataFile, ...] | None = ()) -> Event:
    return Event(_ID, 1, "g", DataWritten(_ID, TableReference("c", ("n",), "t"), files, deletes))


def _file(**changes: Any) -> DataFile:
    return dataclasses.replace(DataFile(path="p", record_count=1, file_size=2, partition=(19724,)), **changes)


@settings(deadline=None)
@given(events(), st.booleans())
def test_an_event_survives_its_bytes(
    case: tuple[Event, tuple[PartitionField, ...]], table_uuid: bool
) -> None:
    event, fields = case
    data = codec.encode(event, fields, table_uuid=table_uuid)
    found = codec.read(data)
    if not table_uuid and hasattr(event.payload, "table"):
        payload: Any = event.payload
        event = dataclasses.replace(
            event, payload=dataclasses.replace(payload, table=dataclasses.replace(payload.table, uuid=None))
        )
    assert found.event == event
    assert found.partition_fields == fields
    assert found.table_uuid == (table_uuid and hasattr(event.payload, "table"))
    assert codec.encode(found.event, found.partition_fields, table_uuid=table_uuid) == data
    assert codec.join(*codec.split(data)) == data


@settings(deadline=None)
@given(st.sampled_from(_SAMPLES), st.data())
def test_a_truncated_event_is_corrupted(sample: bytes, data: st.DataObject) -> None:
    with pytest.raises(Corrupted):
        codec.read(sample[: data.draw(st.integers(0, len(sample) - 1))])


@settings(deadline=None, max_examples=400)
@given(st.sampled_from(_SAMPLES), st.integers(0, 2**32), st.booleans())
def test_altered_bytes_raise_corrupted_or_are_read(sample: bytes, seed: int, in_datum: bool) -> None:
    chance = random.Random(seed)
    altered = bytearray(sample)
    start = 4 + len(codec.split(sample)[0]) if in_datum else 0
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(start, len(altered))
        match chance.randrange(3):
            case 0:
                altered[at] = chance.randrange(256)
            case 1:
                altered[at] ^= 1 << chance.randrange(8)
            case _:
                altered[at : at + 1] = chance.randbytes(chance.randrange(4))
        start = min(start, len(altered) - 1)
    try:
        found = codec.read(bytes(altered))
    except Corrupted:
        return
    assert isinstance(found.event, Event)


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_datum_behind_a_good_text_raises_corrupted_or_is_read(datum: bytes) -> None:
    text, _ = codec.split(codec.encode(_written(_file()), _DAY))
    try:
        codec.read(codec.join(text, datum))
    except Corrupted:
        return


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "starts with c201 and a length, this one with nothing"),
        (b"Obj\x01", "this one with 4f626a01"),
        (b"\xc2\x01\x00", "this one with c20100"),
        (b"\xc2\x01\x00\x05{}", "ends inside its schema text: 9 bytes expected, 6 present"),
        (b"\xc2\x01\x00\x02{}", "whose type is None"),
        (b"\xc2\x01\x00\x05[[[[[", "is not json"),
        (b'\xc2\x01\x00\x05"int"', "describes 'no record'"),
        (b'\xc2\x01\x00\x05\xf0\x9f\x98\x80"', "modified utf-8"),
    ],
)
def test_what_is_no_event_is_named(data: bytes, message: str) -> None:
    with pytest.raises(Corrupted, match=message):
        codec.read(data)


def _with_text(old: bytes, new: bytes, sample: bytes | None = None) -> bytes:
    text, datum = codec.split(sample or codec.encode(_written(_file()), _DAY))
    assert old in text
    return codec.join(text.replace(old, new), datum)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            b"connect.events",
            b"connect.future",
            "describes 'org.apache.iceberg.connect.future.Event'; known are",
        ),
        (
            b'"name":"DataWritten"',
            b'"name":"DataRewritten"',
            "the payload of the event is 'org.apache.iceberg.connect.events.DataRewritten'",
        ),
        (b',"field-id":103}', b"}", "GenericDataFile.'record_count' has no field-id"),
        (
            b'"field-id":103}',
            b'"field-id":999}',
            "has the field 'record_count' .999., which is unknown or there twice",
        ),
        (b'"field-id":103}', b'"field-id":104}', "which is unknown or there twice"),
        (b',"logicalType":"map"', b"", "a list where a map is expected"),
        (b',"logicalType":"uuid"', b"", "has fixed where uuid is expected"),
        (
            b'"logicalType":"timestamp-micros"',
            b'"logicalType":"timestamp-millis"',
            "has long .'timestamp-millis'. where timestamp is expected",
        ),
        (
            b'"logicalType":"date"',
            b'"logicalType":"dates"',
            "a partition field has the avro type int .'dates'.",
        ),
        (
            b'"name":"record_count","type":"long"',
            b'"name":"record_count","type":"string"',
            "has string where long is expected",
        ),
        (b'{"name":"group_id","type":"string","field-id":10503},', b"", "lacks the fields group_id"),
        (b'"name":"PartitionData"', b'"name":"PartitionDatum"', "PartitionData"),
    ],
)
def test_a_schema_that_java_would_refuse_is_refused(old: bytes, new: bytes, message: str) -> None:
    with pytest.raises(Corrupted, match=message):
        codec.read(_with_text(old, new))


def test_a_field_that_an_older_release_lacks_is_none() -> None:
    text, datum = codec.split(codec.encode(_written(_file(content_size=None), deletes=None), _DAY))
    old = (
        b',{"name":"content_size_in_bytes","type":["null","long"],"doc":"The length of referenced content '
        b'stored in the file"'
    )
    text = text.replace(old + b',"default":null,"field-id":145}', b"")
    # The field is the last one of the only file: its null stands before the end of the list and the missing
    # delete files.
    assert datum.endswith(b"\0\0\0")
    assert codec.decode(codec.join(text, datum[:-1])) == _written(_file(), deletes=None)


def test_a_required_value_that_is_null_is_corrupted() -> None:
    data = codec.encode(Event(_ID, 1, "", StartCommit(_ID)))
    altered = _with_text(
        b'"name":"group_id","type":"string"', b'"name":"group_id","type":["null","string"]', data
    )
    with pytest.raises(Corrupted, match="the event has no group_id, which is required"):
        codec.read(altered)


def test_nulls_of_content_and_spec_are_read_as_java_reads_them() -> None:
    data = codec.encode(_written(_file(content=None, spec_id=None)), _DAY)
    payload = codec.decode(data).payload
    assert isinstance(payload, DataWritten)
    assert payload.data_files is not None
    assert (payload.data_files[0].content, payload.data_files[0].spec_id) == (0, -1)


def test_a_type_number_of_another_payload_is_corrupted() -> None:
    text, datum = codec.split(codec.encode(Event(_ID, 1, "g", StartCommit(_ID))))
    altered = datum[:16] + b"\x08" + datum[17:]
    with pytest.raises(Corrupted, match=r"type number 4, but its payload is that of START_COMMIT \(0\)"):
        codec.read(codec.join(text, altered))


def test_bytes_after_the_event_are_corrupted() -> None:
    with pytest.raises(Corrupted, match="1 bytes follow the event"):
        codec.read(codec.encode(Event(_ID, 1, "g", StartCommit(_ID))) + b"\0")


def test_a_map_with_a_key_twice_is_corrupted() -> None:
    text, datum = codec.split(codec.encode(_written(_file(column_sizes={1: 5, 2: 6})), _DAY))
    assert b"\x04\x02\x0a\x04\x0c\0" in datum
    with pytest.raises(Corrupted, match="a map of k117_v118 holds a key twice"):
        codec.read(codec.join(text, datum.replace(b"\x04\x02\x0a\x04\x0c\0", b"\x04\x02\x0a\x02\x0c\0")))


def test_maps_are_written_in_ascending_order() -> None:
    data = codec.encode(_written(_file(column_sizes={7: 1, -1: 2, 3: 3})), _DAY)
    assert data == codec.encode(_written(_file(column_sizes={-1: 2, 3: 3, 7: 1})), _DAY)
    payload = codec.decode(data).payload
    assert isinstance(payload, DataWritten)
    assert payload.data_files is not None
    assert list(payload.data_files[0].column_sizes or ()) == [-1, 3, 7]


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (
            _written(_file(record_count=2**63)),
            "payload: data_files: record_count: an integer from -9223372036854775808",
        ),
        (_written(_file(record_count=2**33216)), "record_count: an integer .* got an integer of 33217 bits"),
        (_written(_file(record_count=True)), "record_count: an integer .* got True"),
        (_written(_file(path=None)), "file_path: text expected, got None"),
        (_written(_file(path="\ud800")), "file_path: the text '.*' is not valid unicode"),
        (_written(_file(partition=())), r"partition: 1 values expected \(fields: day\), got \(\)"),
        (_written(_file(partition=("x",))), "partition: day: an integer .* got 'x'"),
        (_written(_file(column_sizes={"1": 2})), "column_sizes: key: an integer"),
        (_written(_file(column_sizes={"1": 2, 2: 3})), "keys of different types"),
        (_written(_file(column_sizes=[1])), "a map from field id expected"),
        (_written(_file(lower_bounds={1: "x"})), "lower_bounds: value: bytes expected, got 'x'"),
        (_written(_file(split_offsets=5)), "split_offsets: a list expected, got 5"),
        (Event(_ID, 1, "g", StartCommit("x")), "commit_id: 16 bytes expected, got 'x'"),  # type: ignore[arg-type]
        (Event(_ID, 1, "g", DataComplete(_ID, ("x",))), "a TopicPartitionOffset expected, got 'x'"),  # type: ignore[arg-type]
        (Event(_ID, 1, "g", "x"), "str is not the payload of a control event"),  # type: ignore[arg-type]
    ],
)
def test_a_value_that_does_not_fit_is_named(event: Event, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        codec.encode(event, _DAY)


def test_a_schema_text_over_64_kib_is_refused() -> None:
    fields = tuple(PartitionField(1000 + at, f"name_{at}_" + "x" * 600, "int") for at in range(100))
    with pytest.raises(InvalidInput, match="65535 fit; its 100 partition fields need shorter names"):
        codec.encode(_written(), fields)
    with pytest.raises(InvalidInput, match="65536 bytes does not fit"):
        codec.join(b" " * 65536, b"")


def test_the_type_follows_from_the_payload() -> None:
    assert _written().type is EventType.DATA_WRITTEN
    assert [kind.value for kind in EventType] == [0, 1, 2, 3, 4]


def test_parsed_schemas_are_kept_within_a_bound() -> None:
    for at in range(codec.SCHEMAS_CACHED + 10):
        data = codec.encode(_written(_file()), (PartitionField(1000, f"f{at}", "date"),))
        assert codec.read(data).partition_fields[0].name == f"f{at}"
    assert codec._plan.cache_info().currsize == codec.SCHEMAS_CACHED
