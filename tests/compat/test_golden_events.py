"""Are control events read and written exactly as the Java classes do it, and is the older vocabulary still
read?"""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pytest

from archiver.events import codec, json_form
from archiver.events.codec import from_wire_text
from archiver.events.partitions import partition_fields
from archiver.events.types import DataWritten, Event

_GOLDEN = Path(__file__).parent / "golden_events"
_CURRENT = [*_GOLDEN.glob("events-*/*.bin"), *_GOLDEN.glob("partition-types/*.bin")]
_LEGACY = list(_GOLDEN.glob("legacy/*.bin"))


def _name(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def _content(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    return content


_current = pytest.mark.parametrize("path", sorted(_CURRENT), ids=_name)


def test_no_sample_is_missing() -> None:
    assert len(_CURRENT) == 50
    assert len(_LEGACY) == 7


@pytest.mark.parametrize("path", sorted(_CURRENT + _LEGACY), ids=_name)
def test_the_sample_is_what_its_hashes_say(path: Path) -> None:
    data, encoding = path.read_bytes(), _content(path)["encoding"]
    text, datum = codec.split(data)
    assert hashlib.sha256(data).hexdigest() == encoding["sha256"]
    assert hashlib.sha256(text).hexdigest() == encoding["schema_sha256"]
    assert datum.hex() == encoding["body_hex"]
    assert codec.join(text, datum) == data


@_current
def test_bytes_become_the_content(path: Path) -> None:
    found = json_form.to_json(codec.read(path.read_bytes()))
    expected = _content(path)["event"]
    assert found == expected
    assert json.dumps(found) == json.dumps(expected), "the order of keys differs"


@_current
def test_content_becomes_the_bytes(path: Path) -> None:
    content = _content(path)
    built = json_form.from_json(content["event"])
    assert (
        codec.encode(built.event, built.partition_fields, table_uuid=content["table_uuid_field"])
        == path.read_bytes()
    )


@_current
def test_values_become_the_bytes_they_were_read_from(path: Path) -> None:
    found = codec.read(path.read_bytes())
    assert (
        codec.encode(found.event, found.partition_fields, table_uuid=_content(path)["table_uuid_field"])
        == path.read_bytes()
    )
    assert not found.legacy


@pytest.mark.parametrize("path", sorted(_GOLDEN.glob("events-1.10/*.bin")), ids=_name)
def test_the_switch_makes_bytes_that_release_1_10_can_read(path: Path) -> None:
    newer = codec.read((_GOLDEN / "events-1.12" / path.name).read_bytes())
    assert codec.encode(newer.event, newer.partition_fields, table_uuid=False) == path.read_bytes()


@_current
def test_an_independent_reader_agrees(path: Path) -> None:
    text, datum = codec.split(path.read_bytes())
    schema = _qualified(json.loads(from_wire_text(text)), "", set())
    stream = io.BytesIO(datum)
    values: Any = fastavro.schemaless_reader(stream, schema, None)
    assert stream.read() == b""
    event = codec.decode(path.read_bytes())
    assert values["group_id"] == event.group_id
    assert values["type"] == event.type
    if isinstance(event.payload, DataWritten):
        assert values["payload"]["table_reference"]["name"] == event.payload.table.name
        for key, files in (
            ("data_files", event.payload.data_files),
            ("delete_files", event.payload.delete_files),
        ):
            if files is None:
                assert values["payload"][key] is None
                continue
            assert [one["file_path"] for one in values["payload"][key]] == [one.path for one in files]
            assert [len(one["partition"]) for one in values["payload"][key]] == [
                len(one.partition) for one in files
            ]
            bounds = [
                None if one["lower_bounds"] is None else [(e["key"], e["value"]) for e in one["lower_bounds"]]
                for one in values["payload"][key]
            ]
            assert bounds == [
                None if one.lower_bounds is None else sorted(one.lower_bounds.items()) for one in files
            ]


def _qualified(tree: Any, namespace: str, bare: set[str]) -> Any:
    """Give names without a namespace the made-up one `bare`, because the independent reader does not look
    them up without one."""
    if isinstance(tree, list):
        return [_qualified(one, namespace, bare) for one in tree]
    if isinstance(tree, str):
        return f"bare.{tree}" if tree in bare else tree
    made = dict(tree)
    if "fields" in made or made.get("type") == "fixed":
        if made.get("namespace") == "":
            made["namespace"] = "bare"
            bare.add(made["name"])
        if "fields" in made:
            made["fields"] = [
                dict(one) | {"type": _qualified(one["type"], namespace, bare)} for one in made["fields"]
            ]
    elif made.get("type") == "array":
        made["items"] = _qualified(made["items"], namespace, bare)
    return made


@pytest.mark.parametrize("path", sorted(_LEGACY), ids=_name)
def test_the_older_vocabulary_is_read_into_the_same_types(path: Path) -> None:
    found, expected = codec.read(path.read_bytes()), _content(path)["event"]
    assert found.legacy
    assert (str(found.event.id), found.event.group_id) == (expected["id"], expected["groupId"])
    assert (int(found.event.type), found.event.timestamp_us) == (
        expected["type"],
        expected["timestamp"] * 1000,
    )
    reported = json_form.to_json(found)
    assert reported == expected
    assert json.dumps(reported) == json.dumps(expected), "the order of keys differs"


@pytest.mark.parametrize("path", sorted(_CURRENT + _LEGACY), ids=_name)
def test_a_golden_file_as_it_is_becomes_the_bytes(path: Path) -> None:
    assert codec.write(json_form.from_document(_content(path))) == path.read_bytes()


@pytest.mark.parametrize(
    "path", sorted(path for path in _CURRENT if "partition_spec" in _content(path)), ids=_name
)
def test_the_partition_spec_gives_the_types_that_java_wrote(path: Path) -> None:
    content = _content(path)
    stated = content["event"]["payload"].pop("partition_type")
    fields = partition_fields(content["partition_spec"], content["table_schema"])
    assert [{"id": one.field_id, "name": one.name, "type": one.type} for one in fields] == stated
    assert codec.write(json_form.from_document(content)) == path.read_bytes()


@pytest.mark.parametrize("path", sorted(_LEGACY), ids=_name)
def test_an_older_event_is_written_in_the_current_vocabulary(path: Path) -> None:
    found = codec.read(path.read_bytes())
    again = codec.read(codec.encode(found.event, found.partition_fields))
    assert isinstance(again.event, Event)
    assert again.event == found.event
    assert not again.legacy
