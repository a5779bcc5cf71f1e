"""Subjects of the type JSON as schema sources: all ids, references, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from archiver.config.settings import ConfluentSettings, SchemaRegistrySettings, SchemaSettings
from archiver.registry.fetch import SchemaFetcher
from archiver.registry.subjects import Fetched
from archiver.runtime.clock import SystemClock
from archiver.runtime.errors import ConfigInvalid
from archiver.schema.evolution.state import SourceSchema
from archiver.schema.json.source import json_schema
from tests.support.schema.registry_server import RegistryServer, answer

SUBJECT = SchemaSettings(subject="orders-value")


def schema(title: str = "Order", **properties: Any) -> str:
    return json.dumps({"title": title, "type": "object", "properties": properties})


INTEGER, TEXT = {"type": "integer"}, {"type": "string"}
ORDER, WIDER = schema(id=INTEGER), schema(id=INTEGER, note=TEXT)


def fetcher(server: RegistryServer, when_down: Any = "wait", **more: Any) -> SchemaFetcher:
    confluent = ConfluentSettings(
        **{"url": server.url, "backoff": 0.001, "attempts_max": 2, "down_pause": 0.0, "timeout": 5.0, **more}
    )
    return SchemaFetcher(SchemaRegistrySettings(confluent=confluent, when_down=when_down), SystemClock())


def names_of(fetched: Fetched) -> list[str]:
    return [name for name, _ in json_schema(fetched.source).node.fields]


def ids_of(fetched: Fetched) -> list[int]:
    assert fetched.source.envelope is not None
    return [number for number, _ in fetched.source.envelope.ids]


def test_the_newest_version_is_the_schema_and_all_ids_are_known() -> None:
    with RegistryServer() as server:
        server.add("orders-value", 1, 11, ORDER, kind="JSON")
        server.add("orders-value", 2, 14, "syntax = 'proto3';", kind="PROTOBUF")
        server.add("orders-value", 3, 12, "no schema at all", kind="JSON")
        server.add("orders-value", 4, 13, WIDER, kind="JSON")
        fetch = fetcher(server)
        first = fetch(SUBJECT, None)
        assert (first.source.format, first.source.message, first.newest_id) == ("json", "Order", 13)
        assert (names_of(first), ids_of(first)) == (["id", "note"], [11, 12, 13])
        envelope = first.source.envelope
        assert envelope is not None
        assert (envelope.indexed, envelope.bare) == (False, True)
        server.asked.clear()
        known = SourceSchema.of(first.source, {})
        assert fetch(SUBJECT, known) == first
        assert len(server.asked) == 2, "a known subject costs two questions"
        del server.subjects["orders-value"][1]
        assert ids_of(fetcher(server)(SUBJECT, known)) == [11, 12, 13], (
            "records of a deleted version may come"
        )
        assert ids_of(fetcher(server)(SUBJECT, None)) == [12, 13]


def test_references_by_the_names_that_the_schema_uses() -> None:
    with RegistryServer() as server:
        server.add("money", 1, 1, json.dumps(INTEGER), kind="JSON")
        line = schema("Line", price={"$ref": "https://example.org/money.json"})
        server.add("line", 4, 2, line, ("https://example.org/money.json", "money", 1), kind="JSON")
        order = schema(line={"$ref": "line.json"}, total={"$ref": "money.json"}, id=INTEGER)
        references = (("line.json", "line", 4), ("money.json", "money", 1))
        server.add("orders-value", 1, 3, order, *references, kind="JSON")
        node = json_schema(fetcher(server)(SUBJECT, None).source).node
        assert [(name, one.text) for name, one in node.fields] == [
            ("line", "object"),
            ("total", "long integer"),
            ("id", "long integer"),
        ]


def unavailable(handler: Any) -> bool:
    answer(handler, 500, {})
    return True


def test_going_on_with_the_last_known_schema() -> None:
    with RegistryServer() as server:
        server.add("orders-value", 1, 11, ORDER, kind="JSON")
        fetch = fetcher(server, "last_known")
        known = SourceSchema.of(fetch(SUBJECT, None).source, {})
        server.odd = unavailable
        fetched = fetch(SUBJECT, known)
        assert (fetched.source, fetched.complete) == (known.source(), False)


@pytest.mark.parametrize(
    "bad",
    [
        json.dumps({"title": "Order", "$id": "http://[x", "properties": {"id": INTEGER}}),
        json.dumps({"title": "Order", "properties": {"id": {"$ref": "http://[x"}}}),
        json.dumps({"title": "Order", "oneOf": [1] + [{"properties": {"kind": TEXT}}] * 200}),
    ],
)
def test_a_newest_version_that_is_wrong_leaves_the_last_known(bad: str) -> None:
    with RegistryServer() as server:
        server.add("orders-value", 1, 11, ORDER, kind="JSON")
        fetch = fetcher(server, "last_known")
        known = SourceSchema.of(fetch(SUBJECT, None).source, {})
        server.add("orders-value", 2, 12, bad, kind="JSON")
        fetched = fetch(SUBJECT, known)
        assert (fetched.source, fetched.complete) == (known.source(), False)
        assert fetched.note is not None
        assert "version 2 of subject orders-value: " in fetched.note
        assert "; correct it" in fetched.note


def missing(server: RegistryServer) -> None:
    server.add("orders-value", 1, 1, schema(a={"$ref": "a.json"}), kind="JSON")


def gone(server: RegistryServer) -> None:
    server.add("orders-value", 1, 1, schema(a={"$ref": "a"}), ("a", "a", 7), kind="JSON")


def other_kind(server: RegistryServer) -> None:
    server.add("a", 1, 2, "message A {}", kind="PROTOBUF")
    server.add("orders-value", 1, 1, schema(a={"$ref": "a"}), ("a", "a", 1), kind="JSON")


def one_name(server: RegistryServer) -> None:
    server.add("a", 1, 2, json.dumps(INTEGER), kind="JSON")
    server.add("b", 1, 3, json.dumps(TEXT), ("x", "a", 1), kind="JSON")
    server.add("orders-value", 1, 1, ORDER, ("y", "b", 1), ("x", "b", 1), kind="JSON")


def broken_reference(server: RegistryServer) -> None:
    server.add("a", 1, 2, "{", kind="JSON")
    server.add("orders-value", 1, 1, schema(a={"$ref": "a"}), ("a", "a", 1), kind="JSON")


def wrong_base(server: RegistryServer) -> None:
    server.add("a", 1, 2, json.dumps({"$id": "http://[x", "properties": {"b": {"$ref": "c"}}}), kind="JSON")
    server.add("orders-value", 1, 1, schema(a={"$ref": "a"}), ("a", "a", 1), kind="JSON")


def large(server: RegistryServer) -> None:
    server.add("orders-value", 1, 1, ORDER + " " * 3000, kind="JSON")


@pytest.mark.parametrize(
    ("prepare", "why"),
    [
        (missing, r"version 1 of subject orders-value: property a refers to 'a.json', which is not part of"),
        (gone, r"version 1 of subject orders-value refers to version 7 of subject a, which is not there"),
        (other_kind, r"refers to version 1 of subject a, which is of the type PROTOBUF and not JSON"),
        (one_name, r"version 1 of subject orders-value has two references of the name 'x' to different"),
        (
            wrong_base,
            r"version 1 of subject orders-value: property a has the \$id 'http://\[x', which is no URL",
        ),
        (broken_reference, r"version 1 of subject orders-value, reference a is not a JSON Schema in JSON"),
        (large, r"larger than 2,048 bytes \(schema_registry.confluent.schema_bytes_max\)"),
    ],
)
def test_what_is_wrong_with_a_subject(prepare: Callable[[RegistryServer], None], why: str) -> None:
    with RegistryServer() as server:
        prepare(server)
        with pytest.raises(ConfigInvalid, match=why):
            fetcher(server, schema_bytes_max=2048)(SUBJECT, None)
