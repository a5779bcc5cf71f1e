"""Subjects of the type AVRO as schema sources: all ids, references, and what is refused."""

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
from archiver.schema.avro.source import avro_schemas
from archiver.schema.evolution.state import SourceSchema
from tests.support.schema.registry_server import RegistryServer, answer

SUBJECT = SchemaSettings(subject="orders-value")


def record(name: str, **fields: Any) -> str:
    return json.dumps(
        {
            "type": "record",
            "name": name,
            "fields": [{"name": one, "type": kind} for one, kind in fields.items()],
        }
    )


ORDER, WIDER = record("shop.Order", id="long"), record("shop.Order", id="long", note=["null", "string"])

WRONG_DEFAULT = json.dumps(
    {
        "type": "record",
        "name": "shop.Order",
        "fields": [{"name": "id", "type": "long", "default": None}],
    }
)


def fetcher(server: RegistryServer, when_down: Any = "wait", **more: Any) -> SchemaFetcher:
    confluent = ConfluentSettings(
        **{"url": server.url, "backoff": 0.001, "attempts_max": 2, "down_pause": 0.0, "timeout": 5.0, **more}
    )
    return SchemaFetcher(SchemaRegistrySettings(confluent=confluent, when_down=when_down), SystemClock())


def known_of(fetched: Fetched) -> SourceSchema:
    return SourceSchema.of(fetched.source, {})


def fields_of(fetched: Fetched) -> dict[int, list[str]]:
    """By schema id the names of the record's fields."""
    schemas = avro_schemas(fetched.source, "test")
    return {number: [one.name for one in schemas.writer(number).node.fields] for number in schemas.texts}


def test_every_version_is_a_writer_and_the_newest_is_the_schema() -> None:
    with RegistryServer() as server:
        server.add("orders-value", 1, 11, ORDER, kind=None)
        server.add("orders-value", 2, 14, "syntax = 'proto3';", kind="PROTOBUF")
        server.add("orders-value", 3, 13, WIDER, kind="AVRO")
        server.add("orders-value", 4, 15, "not a schema", kind="AVRO", deleted=True)
        fetched = fetcher(server)(SUBJECT, None)
        assert (fetched.source.format, fetched.source.message) == ("avro", "shop.Order")
        assert (fetched.newest_id, fetched.complete, fetched.note) == (13, True, None)
        assert fields_of(fetched) == {11: ["id"], 13: ["id", "note"]}
        assert fetched.source.envelope is not None
        assert fetched.source.envelope.ids == ((11, ()), (13, ()))
        assert not fetched.source.envelope.indexed


def test_ids_that_were_deleted_for_good_stay_valid_if_they_were_known() -> None:
    with RegistryServer() as server:
        server.add("orders-value", 1, 11, ORDER, kind="AVRO")
        server.add("orders-value", 2, 12, WIDER, kind="AVRO")
        first = fetcher(server)(SUBJECT, None)
        del server.subjects["orders-value"][1]
        assert fields_of(fetcher(server)(SUBJECT, known_of(first))) == {11: ["id"], 12: ["id", "note"]}
        assert fields_of(fetcher(server)(SUBJECT, None)) == {12: ["id", "note"]}


def test_a_known_subject_costs_two_questions() -> None:
    with RegistryServer() as server:
        for number in range(1, 4):
            server.add("orders-value", number, 10 + number, ORDER + " " * number, kind="AVRO")
        fetch = fetcher(server)
        first = fetch(SUBJECT, None)
        server.asked.clear()
        assert fetch(SUBJECT, known_of(first)) == first
        assert len(server.asked) == 2


def test_references_bring_types_also_of_references() -> None:
    with RegistryServer() as server:
        server.add("money", 1, 1, record("shop.Money", cents="long"), kind="AVRO")
        line = record("shop.Line", price="Money", again="shop.Money")
        server.add("line", 4, 2, line, ("shop.Money", "money", 1), kind="AVRO")
        order = record("shop.Order", line="Line", total="shop.Money")
        references = (("shop.Line", "line", 4), ("shop.Money", "money", 1))
        server.add("orders-value", 1, 3, order, *references, kind="AVRO")
        schema = avro_schemas(fetcher(server)(SUBJECT, None).source, "test").newest
        assert [one.type.name for one in schema.node.fields] == ["shop.Line", "shop.Money"]


def unavailable(handler: Any) -> bool:
    answer(handler, 500, {})
    return True


def test_going_on_with_the_last_known_schema() -> None:
    with RegistryServer() as server:
        server.add("orders-value", 1, 11, ORDER, kind="AVRO")
        fetch = fetcher(server, "last_known")
        known = known_of(fetch(SUBJECT, None))
        server.odd = unavailable
        fetched = fetch(SUBJECT, known)
        assert (fetched.source, fetched.complete) == (known.source(), False)


def missing(server: RegistryServer) -> None:
    server.add("orders-value", 1, 1, record("Order", a="Address"), kind="AVRO")


def gone(server: RegistryServer) -> None:
    server.add("orders-value", 1, 1, record("Order", a="A"), ("A", "a", 7), kind="AVRO")


def other_kind(server: RegistryServer) -> None:
    server.add("a", 1, 2, "{}", kind="JSON")
    server.add("orders-value", 1, 1, record("Order", a="A"), ("A", "a", 1), kind="AVRO")


def circle(server: RegistryServer) -> None:
    server.add("a", 1, 2, record("A", b="B"), ("B", "b", 1), kind="AVRO")
    server.add("b", 1, 3, record("B", a="A"), ("A", "a", 1), kind="AVRO")
    server.add("orders-value", 1, 1, record("Order", a="A"), ("A", "a", 1), kind="AVRO")


def two_versions(server: RegistryServer) -> None:
    server.add("a", 1, 2, record("A", x="int"), kind="AVRO")
    server.add("a", 2, 3, record("A", x="long"), kind="AVRO")
    server.add("b", 1, 4, record("B", a="A"), ("A", "a", 1), kind="AVRO")
    references = (("B", "b", 1), ("A", "a", 2))
    server.add("orders-value", 1, 1, record("Order", a="A", b="B"), *references, kind="AVRO")


def many(server: RegistryServer) -> None:
    for number in range(12):
        server.add(f"a{number}", 1, 10 + number, record(f"A{number}", x="int"), kind="AVRO")
    references = [(f"A{number}", f"a{number}", 1) for number in range(12)]
    server.add("orders-value", 1, 1, ORDER, *references, kind="AVRO")


def chain(server: RegistryServer) -> None:
    for number in range(9):
        server.add(
            f"a{number}",
            1,
            10 + number,
            record(f"A{number}", x="int"),
            ("A", f"a{number + 1}", 1),
            kind="AVRO",
        )
    server.add("orders-value", 1, 1, ORDER, ("A", "a0", 1), kind="AVRO")


def large(server: RegistryServer) -> None:
    server.add("orders-value", 1, 1, ORDER + " " * 3000, kind="AVRO")


def old_one(server: RegistryServer) -> None:
    server.add("orders-value", 1, 1, "[", kind="AVRO")
    server.add("orders-value", 2, 2, ORDER, kind="AVRO")


def reused(server: RegistryServer) -> None:
    server.add("orders-value", 1, 1, ORDER, kind="AVRO")
    server.add("orders-value", 2, 1, WIDER, kind="AVRO")


def wrong_default(server: RegistryServer) -> None:
    server.add("orders-value", 1, 1, ORDER, kind="AVRO")
    server.add("orders-value", 2, 2, WRONG_DEFAULT, kind="AVRO")


@pytest.mark.parametrize(
    ("prepare", "why"),
    [
        (
            wrong_default,
            r"version 2 of subject orders-value: field id has the default null, which is no long; correct",
        ),
        (
            missing,
            r"version 1 of subject orders-value: field a its type 'Address' is not defined; .* reference",
        ),
        (gone, r"version 1 of subject orders-value refers to version 7 of subject a, which is not there"),
        (other_kind, r"refers to version 1 of subject a, which is of the type JSON and not AVRO"),
        (circle, r"version 1 of subject orders-value refers to itself through version 1 of subject b"),
        (two_versions, r"version 2 of subject a: the schema defines 'A' a second time"),
        (many, r"have more than 10 references \(schema_registry.confluent.references_max\)"),
        (chain, r"refers to schemas more than 5 deep \(schema_registry.confluent.depth_max\)"),
        (large, r"larger than 2,048 bytes \(schema_registry.confluent.schema_bytes_max\)"),
        (old_one, r"version 1 of subject orders-value is not an Avro schema in JSON"),
        (reused, r"version 1 of subject orders-value has the schema id 1, under which .* restore its former"),
    ],
)
def test_what_is_wrong_with_a_subject(prepare: Callable[[RegistryServer], None], why: str) -> None:
    with RegistryServer() as server:
        prepare(server)
        fetch = fetcher(server, depth_max=5, references_max=10, schema_bytes_max=2048)
        with pytest.raises(ConfigInvalid, match=why):
            fetch(SUBJECT, None)


def test_a_former_version_may_have_a_wrong_default() -> None:
    """It stays in the registry for ever, and the newest one is correct."""
    with RegistryServer() as server:
        server.add("orders-value", 1, 1, WRONG_DEFAULT, kind="AVRO")
        server.add("orders-value", 2, 2, WIDER, kind="AVRO")
        assert fields_of(fetcher(server)(SUBJECT, None)) == {1: ["id"], 2: ["id", "note"]}


def test_what_a_topic_may_not_ask_of_avro() -> None:
    with RegistryServer() as server:
        server.add("orders-value", 1, 1, ORDER, kind="AVRO")
        with pytest.raises(ConfigInvalid, match=r"of the type AVRO.*remove `coerce`"):
            fetcher(server)(SUBJECT.model_copy(update={"coerce": True}), None)
        with pytest.raises(
            ConfigInvalid, match=r"is the schema of 'shop\.Order', not of 'shop\.Other'; correct"
        ):
            fetcher(server)(SUBJECT.model_copy(update={"message": "shop.Other"}), None)
