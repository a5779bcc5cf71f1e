"""Do events survive their JSON form, and does an error name the wrong JSON?"""

from __future__ import annotations

import copy
import dataclasses
import json
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings

from archiver.events import codec, json_form
from archiver.events.types import DataComplete, DataFile, DataWritten, Event, PartitionField, TableReference
from archiver.runtime.errors import InvalidInput
from tests.support.events.event_values import events

_ID = UUID(int=7)
_FILE = DataFile(path="p", record_count=1, file_size=2, partition=(3,), lower_bounds={1: b"\x01"})
_EVENT = Event(_ID, 1_000_000, "g", DataWritten(_ID, TableReference("c", ("n",), "t", _ID), (_FILE,)))


def _tree() -> Any:
    return json_form.to_json(codec.read(codec.encode(_EVENT, (PartitionField(1000, "day", "date"),))))


@settings(deadline=None)
@given(events())
def test_an_event_survives_json(case: tuple[Event, tuple[PartitionField, ...]]) -> None:
    decoded = codec.read(codec.encode(*case))
    assert json_form.from_json(json.loads(json.dumps(json_form.to_json(decoded)))) == decoded


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("id", "x", "'x' is not a uuid"),
        ("group_id", None, "Event lacks the key group_id"),
        ("group_id", 7, "a string expected, got 7"),
        ("type_name", "COMMIT_READY", "the type name of DataWritten is DATA_WRITTEN, not 'COMMIT_READY'"),
        ("groupId", "g", "Event has the unknown key 'groupId'"),
        ("type", 0, "the type number of DataWritten is 1, not 0"),
        ("timestamp_micros", True, "timestamp_micros True, which is another time"),
        ("timestamp", 7, "timestamp is 7, which is of the wrong type"),
        ("timestamp", "yesterday", "'yesterday' is not a time like 2026"),
        (
            "timestamp",
            "1970-01-01T00:00:02Z",
            "and timestamp_micros 1000000, which is another time; leave one of them out",
        ),
        ("payload/class", "Other", "the payload class 'Other' is unknown; known are StartCommit"),
        ("payload/partition_type", [{}], "the event lacks the key id"),
        ("payload/partition_type", [{"id": 1, "name": "day", "type": "x"}], "not an iceberg type"),
        ("payload/table_reference", 7, "an object expected for .*TableReference, got 7"),
        ("payload/table_reference/namespace", "n", "a list expected, got 'n'"),
        ("payload/table_reference/table_uuid", 7, "a uuid expected, got 7"),
        ("payload/data_files/0/file_path", None, "lacks the key file_path"),
        ("payload/data_files/0/record_count", 1.5, "a long expected, got 1.5"),
        ("payload/data_files/0/partition", {}, "the event lacks the key day"),
        ("payload/data_files/0/partition", {"day": 3, "hour": 4}, "partition: values of day expected, got"),
        ("payload/data_files/0/colum_sizes", {}, "GenericDataFile has the unknown key 'colum_sizes'"),
        ("payload/data_files/0/lower_bounds", {"x": "00"}, "an object with field ids as keys expected"),
        ("payload/data_files/0/lower_bounds", {"1": "0"}, "'0' is not hex"),
    ],
)
def test_wrong_json_is_named(path: str, value: object, message: str) -> None:
    tree = copy.deepcopy(_tree())
    *parents, last = path.split("/")
    target = tree
    for one in parents:
        target = target[int(one)] if isinstance(target, list) else target[one]
    target[last] = value
    with pytest.raises(InvalidInput, match=message):
        json_form.from_json(tree)


def test_a_tuple_of_another_length_has_no_json() -> None:
    decoded = codec.Decoded(_EVENT, (), True, False)
    with pytest.raises(InvalidInput, match="partition: 0 values expected"):
        json_form.to_json(decoded)


def test_a_time_is_taken_from_its_text_or_its_number() -> None:
    tree = _tree()
    del tree["timestamp_micros"]
    assert json_form.from_json(tree).event == _EVENT
    tree["timestamp_micros"] = 1_000_000
    del tree["timestamp"]
    assert json_form.from_json(tree).event == _EVENT


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "an event is a json object"),
        ({}, "the event lacks the key payload"),
        ({"event": 7}, "event is 7, which is of the wrong type"),
        (
            {"event": {"payload": {"class": "StartCommit"}}, "partition_spec": 7},
            "a partition spec has a list of fields, got 7",
        ),
    ],
)
def test_a_document_without_an_event_is_named(document: object, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        json_form.from_document(document)


def test_without_partition_type_the_spec_next_to_the_event_counts() -> None:
    tree = _tree()
    del tree["payload"]["partition_type"]
    with pytest.raises(
        InvalidInput, match="lacks the key partition_type, and there is no partition_spec next to it"
    ):
        json_form.from_json(tree)
    spec = {"fields": [{"name": "day", "transform": "day", "source-id": 2, "field-id": 1000}]}
    schema = {"type": "struct", "fields": [{"id": 2, "name": "at", "type": "timestamptz"}]}
    found = json_form.from_document({"event": tree, "partition_spec": spec, "table_schema": schema})
    assert (found.event, found.partition_fields) == (_EVENT, (PartitionField(1000, "day", "date"),))


@settings(deadline=None)
@given(events())
def test_an_event_survives_the_older_vocabulary(case: tuple[Event, tuple[PartitionField, ...]]) -> None:
    event, fields = _older(case[0]), case[1]
    data = codec.encode(event, fields, legacy=True)
    found = codec.read(data)
    assert (found.event, found.partition_fields, found.legacy) == (event, fields, True)
    assert codec.write(found) == data
    assert json_form.from_json(json.loads(json.dumps(json_form.to_json(found))), fields) == found


def _older(event: Event) -> Event:
    """The parts of an event that the older vocabulary can express."""

    def rounded(time_us: int | None) -> int | None:
        return None if time_us is None else time_us // 1000 * 1000

    payload: Any = event.payload
    if isinstance(payload, DataWritten):
        gone: dict[str, Any] = {
            "first_row_id": None,
            "referenced_data_file": None,
            "content_offset": None,
            "content_size": None,
        }
        kept = [
            None if files is None else tuple(dataclasses.replace(one, **gone) for one in files)
            for files in (payload.data_files, payload.delete_files)
        ]
        payload = dataclasses.replace(payload, data_files=kept[0], delete_files=kept[1])
    if isinstance(payload, DataComplete) and payload.assignments is not None:
        offsets = tuple(
            dataclasses.replace(one, timestamp_us=rounded(one.timestamp_us)) for one in payload.assignments
        )
        payload = dataclasses.replace(payload, assignments=offsets)
    if hasattr(payload, "valid_through_us"):
        payload = dataclasses.replace(payload, valid_through_us=rounded(payload.valid_through_us))
    if hasattr(payload, "table"):
        payload = dataclasses.replace(
            payload, table=dataclasses.replace(payload.table, catalog="", uuid=None)
        )
    return dataclasses.replace(event, payload=payload, timestamp_us=event.timestamp_us // 1000 * 1000)


def test_the_older_vocabulary_has_whole_milliseconds() -> None:
    with pytest.raises(InvalidInput, match="whole milliseconds, not 1000001 microseconds"):
        codec.encode(
            dataclasses.replace(_EVENT, timestamp_us=1_000_001),
            (PartitionField(1000, "day", "date"),),
            legacy=True,
        )
