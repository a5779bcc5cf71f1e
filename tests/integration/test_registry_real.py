"""Topics whose schemas come from a real schema registry: from registration to rows, and through deletion,
loss and return.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from archiver.config.settings import ConfluentSettings, SchemaRegistrySettings, SchemaSettings
from archiver.registry.fetch import SchemaFetcher
from archiver.registry.subjects import Fetched
from archiver.runtime.clock import SystemClock
from archiver.runtime.errors import ConfigInvalid
from archiver.schema.evolution.state import SourceSchema
from archiver.schema.json.source import json_schema
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver, catalog_table
from tests.support.schema.protos import message_class
from tests.support.schema.real_registry import RealRegistry, real_registry, registry_program  # noqa: F401 - fixtures

MONEY = 'syntax = "proto3"; package shop; message Money { int64 units = 1; string currency = 2; }'
ORDER = (
    'syntax = "proto3"; package shop; import "shop/money.proto"; import "google/protobuf/timestamp.proto"; '
    "message Order { int64 id = 1; Money total = 2; google.protobuf.Timestamp at = 3; }"
)
WIDER = ORDER.replace("at = 3;", "at = 3; string note = 4;")


def fetch_of(registry: RealRegistry) -> SchemaFetcher:
    return SchemaFetcher(SchemaRegistrySettings(confluent=ConfluentSettings(url=registry.url)), SystemClock())


def ids(fetched: Fetched) -> list[int]:
    assert fetched.source.envelope is not None
    return [number for number, _ in fetched.source.envelope.ids]


def test_versions_references_compatibility_and_deletion(real_registry: RealRegistry) -> None:  # noqa: F811
    registry, subject = real_registry, SchemaSettings(subject="shop/päid-value")
    path = "/subjects/shop%2Fp%C3%A4id-value"
    with pytest.raises(ConfigInvalid, match="not found"):
        fetch_of(registry)(subject, None)
    registry.register("money", MONEY)
    first = registry.register(path.removeprefix("/subjects/"), ORDER, ("shop/money.proto", "money", 1))
    second = registry.register(path.removeprefix("/subjects/"), WIDER, ("shop/money.proto", "money", 1))
    fetch = fetch_of(registry)
    fetched = fetch(subject, None)
    assert (fetched.source.message, ids(fetched), fetched.newest_id) == (
        "shop.Order",
        [first, second],
        second,
    )
    files = {
        file.name for file in descriptor_pb2.FileDescriptorSet.FromString(fetched.source.descriptor_set).file
    }
    assert {"shop/money.proto", "google/protobuf/timestamp.proto"} < files

    registry.put(f"/config{path.removeprefix('/subjects')}", {"compatibility": "BACKWARD"})
    references = [{"name": "shop/money.proto", "subject": "money", "version": 1}]
    changed = {
        "schemaType": "PROTOBUF",
        "schema": WIDER.replace("int64 id", "string id"),
        "references": references,
    }
    assert registry.post(f"{path}/versions", changed).status_code == 409
    assert ids(fetch(subject, None)) == [first, second]

    registry.delete(f"{path}/versions/1")
    assert ids(fetch_of(registry)(subject, None)) == [first, second], (
        "softly deleted: its records may be on their way"
    )
    registry.delete(f"{path}/versions/1?permanent=true")
    assert ids(fetch_of(registry)(subject, None)) == [second]
    assert ids(fetch_of(registry)(subject, SourceSchema.of(fetched.source, {}))) == [first, second], (
        "known is known"
    )
    registry.delete(path)
    with pytest.raises(ConfigInvalid, match="not found"):
        fetch_of(registry)(subject, None)


def test_a_serialized_schema_is_read_as_registered(real_registry: RealRegistry) -> None:  # noqa: F811
    """What confluent-kafka-python registers: base64 of a FileDescriptorProto, with a reference and a built-in
    import."""
    money = descriptor_pb2.FileDescriptorProto(
        name="pay/money.proto", package="pay", syntax="proto3", dependency=["google/type/date.proto"]
    )
    money.message_type.add(name="Money").field.add(
        name="day", number=1, type=11, label=1, type_name=".google.type.Date"
    )
    sale = descriptor_pb2.FileDescriptorProto(
        name="sale.proto", package="pay", syntax="proto3", dependency=["pay/money.proto"]
    )
    sale.message_type.add(name="Sale").field.add(
        name="total", number=1, type=11, label=1, type_name=".pay.Money"
    )
    money_text, sale_text = (
        base64.standard_b64encode(one.SerializeToString()).decode() for one in (money, sale)
    )
    real_registry.register("serialized-money", money_text)
    number = real_registry.register("sales-value", sale_text, ("pay/money.proto", "serialized-money", 1))
    fetched = fetch_of(real_registry)(SchemaSettings(subject="sales-value"), None)
    assert (fetched.source.message, ids(fetched)) == ("pay.Sale", [number])


def test_json_schemas_of_a_real_registry_become_columns(real_registry: RealRegistry) -> None:  # noqa: F811
    number = real_registry.register(
        "json",
        '{"$schema": "http://json-schema.org/draft-07/schema#", "title": "Sale", "type": "object",'
        ' "properties": {"number": {"type": "integer"}}}',
        kind="JSON",
    )
    fetched = fetch_of(real_registry)(SchemaSettings(subject="json"), None)
    assert (fetched.source.format, fetched.source.message) == ("json", "Sale")
    assert [name for name, _ in json_schema(fetched.source).node.fields] == ["number"]
    assert fetched.source.envelope is not None
    assert fetched.source.envelope.ids == ((number, ()),)


def test_avro_schemas_of_a_real_registry_become_columns(real_registry: RealRegistry) -> None:  # noqa: F811
    fields = '[{"name": "number", "type": "long"}, {"name": "note", "type": ["null", "string"]}]'
    number = real_registry.register(
        "avro", f'{{"type": "record", "name": "Sale", "fields": {fields}}}', kind="AVRO"
    )
    fetched = fetch_of(real_registry)(SchemaSettings(subject="avro"), None)
    assert fetched.source.format == "avro"
    assert fetched.source.message == "Sale"
    assert fetched.source.envelope is not None
    assert fetched.source.envelope.ids == ((number, ()),)


# archiving


def deployment_of(
    registry: RealRegistry, root: Path, subject: str, when_down: str = "last_known"
) -> Deployment:
    """A deployment with `orders` of the subject, and a topic without a schema."""
    made = Deployment(root)
    document = made.document()
    orders, clicks = document["topics"][:2]
    orders |= {"partitions": 1, "value": {"subject": subject}}
    confluent = {"url": registry.url, "attempts_max": 1, "down_pause": "0s"}
    made.write(
        document
        | {"topics": [orders, clicks], "schema_registry": {"confluent": confluent, "when_down": when_down}}
    )
    return made


def enveloped(number: int, message: Any) -> bytes:
    data: bytes = message.SerializeToString(deterministic=True)
    return b"\0" + number.to_bytes(4, "big") + b"\0" + data


def kind_of(registry: RealRegistry, subject: str) -> Any:
    return message_class(fetch_of(registry)(SchemaSettings(subject=subject), None).source)


def rows(deployment: Deployment) -> list[dict[str, Any]]:
    """The values in the table, in the order of offsets."""
    with catalog_table(deployment, "shop.orders") as table:
        found = table.scan().to_arrow().to_pylist()
    return [row["value"] for row in sorted(found, key=lambda row: row["kafka"]["offset"])]


@pytest.fixture
def own_registry(registry_program: Path, tmp_path: Path) -> Iterator[RealRegistry]:  # noqa: F811
    """A registry that can be killed, and keeps its state in a file."""
    folder = tmp_path / "registry"
    folder.mkdir()
    registry = RealRegistry(registry_program, folder, folder / "kept")
    try:
        registry.start()
        yield registry
    finally:
        registry.kill()


def test_from_registered_schemas_to_rows_and_back(real_registry: RealRegistry, tmp_path: Path) -> None:  # noqa: F811
    registry = real_registry
    registry.register("money", MONEY)
    first = registry.register("orders-value", ORDER, ("shop/money.proto", "money", 1))
    foreign = registry.register(
        "foreign-value", ORDER.replace("package shop", "package other"), ("shop/money.proto", "money", 1)
    )
    deployment = deployment_of(registry, tmp_path / "d", "orders-value")
    kind = kind_of(registry, "orders-value")
    with Driver(deployment) as driver:
        sent = [
            enveloped(first, kind(id=1, total={"units": 5})),
            kind(id=2).SerializeToString(),
            enveloped(foreign, kind(id=3)),
            b"\0" + first.to_bytes(4, "big") + b"\x02\x02" + kind(id=4).SerializeToString(),
            None,
        ]
        driver.send("orders", sent)
        report = driver.archive()
        assert report.of("orders").state == "archived", report.of("orders").why
        second = registry.register("orders-value", WIDER, ("shop/money.proto", "money", 1))
        sent.append(enveloped(second, kind_of(registry, "orders-value")(id=6, note="wider")))
        driver.send("orders", sent[-1:])
        assert driver.archive().of("orders").decode_errors == {}
        assert [record.value for record in driver.records("orders")[0]] == sent, (
            "byte for byte, envelopes and all"
        )
        driver.check_complete("orders")
        assert report.of("orders").decode_errors == {"value:other_message": 1, "value:unknown_schema": 1}
    found = rows(deployment)
    assert [row and row["id"] for row in found] == [1, 2, None, None, None, 6]
    assert [row and row["__prefix__"] for row in found] == [sent[0][:6], None, None, None, None, sent[5][:6]]
    assert [row and row["__raw__"] for row in found] == [None, None, sent[2], sent[3], None, None]
    assert found[0]["total"]["units"] == 5
    assert found[5]["note"] == "wider"
    lines = deployment.cli("consume", "--topic", "orders", "--decode").lines()
    decoded = [line["decoded"]["value"] for line in lines]
    assert decoded[0] == {"id": "1", "total": {"units": "5"}}
    assert decoded[5] == {"id": "6", "note": "wider"}
    assert [list(decoded[place]) for place in (2, 3)] == [["error"], ["error"]]


def test_while_the_registry_is_killed_nothing_is_judged_that_cannot_be_known(
    own_registry: RealRegistry, tmp_path: Path
) -> None:
    """Two clusters with the same topic: one goes on with the last known schema, one waits. Neither holds up
    another topic."""
    registry = own_registry
    registry.register("money", MONEY)
    first = registry.register("orders-value", ORDER, ("shop/money.proto", "money", 1))
    going, waiting = (
        deployment_of(registry, tmp_path / when_down, "orders-value", when_down)
        for when_down in ("last_known", "wait")
    )
    kind = kind_of(registry, "orders-value")
    with Driver(going) as on, Driver(waiting) as off:
        for driver in (on, off):
            driver.send("orders", [enveloped(first, kind(id=1))])
            assert driver.archive().of("orders").rows == 1
        second = registry.register("orders-value", WIDER, ("shop/money.proto", "money", 1))
        port = int(registry.address.rsplit(":", 1)[1])
        registry.kill()
        for driver in (on, off):
            driver.send("orders", [enveloped(first, kind(id=2))])
            driver.send("clicks", [b"x"])
        report, held = on.archive(), off.archive()
        assert (report.of("orders").state, report.of("orders").rows, report.of("clicks").state) == (
            "archived",
            1,
            "archived",
        )
        assert report.exit_code == 0
        (note,) = report.of("orders").notes
        assert "goes on with the last known schema of subject orders-value" in note
        assert note in (report.of("orders").why or "")
        assert (held.of("orders").state, held.of("orders").waiting, held.of("clicks").state) == (
            "deferred",
            1,
            "archived",
        )
        assert "cannot be asked" in (held.of("orders").why or "")

        on.send("orders", [enveloped(second, kind(id=3))])
        unknown = on.archive().of("orders")
        assert (unknown.state, unknown.rows, unknown.waiting, unknown.decode_errors) == ("deferred", 0, 1, {})
        assert "could not be" in (unknown.why or "")

        registry.start(port)
        for driver in (on, off):
            healed = driver.archive().of("orders")
            assert (healed.state, healed.rows, healed.decode_errors, healed.notes) == ("archived", 1, {}, [])
            driver.check_complete("orders", "clicks")
    assert [(row["id"], row["__err__"]) for row in rows(going)] == [(1, None), (2, None), (3, None)]


def test_an_id_younger_than_the_list_is_no_error(real_registry: RealRegistry, tmp_path: Path) -> None:  # noqa: F811
    """A version is registered and used for a record after the fetch, before the round reads the log."""
    registry = real_registry
    first = registry.register("young-value", MONEY)
    deployment = deployment_of(registry, tmp_path / "d", "young-value")
    kind = kind_of(registry, "young-value")
    with Driver(deployment) as driver:
        driver.send("orders", [enveloped(first, kind(units=1))])
        fetch = driver.application.fetch_schema
        younger: list[int] = []

        def late(settings: SchemaSettings, known: SourceSchema | None) -> Fetched:
            fetched = fetch(settings, known)
            if not younger:
                younger.append(
                    registry.register(
                        "young-value", MONEY.replace("currency = 2;", "currency = 2; string more = 3;")
                    )
                )
                driver.send(
                    "orders",
                    [
                        enveloped(younger[0], kind(units=2)),
                        b"\0\xff\xff\xff\xff\0" + kind(units=3).SerializeToString(),
                    ],
                )
            return fetched

        run = driver.run()
        run.setup._fetch = late
        first_round = run.run(None, everything=True).of("orders")
        assert (first_round.state, first_round.decode_errors) == ("deferred", {})
        second_round = driver.archive().of("orders")
        assert (second_round.state, second_round.decode_errors) == ("archived", {"value:unknown_schema": 1})
        driver.check_complete("orders")
    assert [(row["units"], row["__err__"] is None) for row in rows(deployment)] == [
        (1, True),
        (2, True),
        (None, False),
    ]
    assert fetch_of(registry)(SchemaSettings(subject="young-value"), None).newest_id == younger[0]
