"""Do events survive their JSON form, and is wrong JSON named?"""

from __future__ import annotations

import copy
import json
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings

from archiver.errors import InvalidInput
from archiver.events import codec, json_form
from archiver.events.types import DataFile, DataWritten, Event, PartitionField, TableReference
from tests.support.event_values import events

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
    ("time_us", "text"),
    [
        (None, None),
        (0, "1970-01-01T00:00:00.000000Z"),
        (-1, "1969-12-31T23:59:59.999999Z"),
        (2**62, f"{2**62}us"),
        (-62135596800000000, "0001-01-01T00:00:00.000000Z"),
    ],
)
def test_times_are_iso_text(time_us: int | None, text: str | None) -> None:
    assert json_form.iso_time(time_us) == text


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("id", "x", "'x' is not a uuid"),
        ("group_id", None, "group_id is None, which is of the wrong type"),
        ("type", 0, "the type number of DataWritten is 1, not 0"),
        ("timestamp_micros", True, "timestamp_micros is True"),
        ("payload/class", "Other", "the payload class 'Other' is unknown; known are StartCommit"),
        ("payload/partition_type", [{}], "the event lacks the key id"),
        ("payload/partition_type", [{"id": 1, "name": "day", "type": "x"}], "not an iceberg type"),
        ("payload/table_reference", 7, "an object expected for .*TableReference, got 7"),
        ("payload/table_reference/namespace", "n", "a list expected, got 'n'"),
        ("payload/table_reference/table_uuid", 7, "a uuid expected, got 7"),
        ("payload/data_files/0/file_path", None, "lacks the key file_path"),
        ("payload/data_files/0/record_count", 1.5, "a long expected, got 1.5"),
        ("payload/data_files/0/partition", {}, "the event lacks the key day"),
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
