"""docs/debezium.md is true: its configuration, its columns and its queries, with events in Avro, in Protobuf and in JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from intake.records import Record
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import WAIT_S, Driver
from tests.support.schema import change_events as debezium
from tests.support.schema.change_events import TABLE, TOPIC
from tests.support.schema.registry_server import RegistryServer

Sent = Sequence[tuple[int, Record]]


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with RegistryServer() as made:
        yield made


def deployed(folder: Path, server: RegistryServer | None) -> Deployment:
    """The page's configuration, with a catalog that exists, and with a registry that does or with files."""
    page = yaml.safe_load(debezium.titled("archiver-json.yaml" if server is None else "archiver.yaml"))
    if server is not None:
        page["schema_registry"]["confluent"]["url"] = server.url
    page["catalogs"] = [{"name": "lake", "type": "sql", "uri": f"sqlite:///{folder / 'd'}/catalog.db"}]
    return Deployment(folder / "d", overrides=page)


def sent(driver: Driver, records: Sent) -> None:
    with driver.application.intake.writer() as writer:
        waiting = [writer.send(TOPIC, record, partition) for partition, record in records]
        writer.flush()
    for one in waiting:
        assert one.result(WAIT_S).offset is not None


def archived(driver: Driver) -> Any:
    report = driver.archive().of(TOPIC)
    assert report.state == "archived", report.why
    driver.check_complete(TOPIC)
    return report


def check_bytes(driver: Driver, records: Sent) -> None:
    """Every record reads back as it was sent."""
    found = driver.records(TOPIC)
    for partition in range(2):
        assert [(one.key, one.value) for one in found[partition]] == [
            (record.key, record.value) for place, record in records if place == partition
        ]


def asked(deployment: Deployment, sql: str) -> list[list[Any]]:
    done = deployment.cli("query", sql, "--output", "json", "--max-rows", "0")
    assert done.code == 0, done.err
    document = done.json()
    names = [column["name"] for column in document["columns"]]
    return sorted([row[name] for name in names] for row in document["rows"])


def columns(deployment: Deployment) -> dict[str, str]:
    fields = deployment.cli("schema", "show", TOPIC, "--output", "json").json()["fields"]
    return {one["column"]: one["type"] for one in fields}


def page_columns() -> dict[str, str]:
    text = debezium.PAGE.read_text(encoding="utf-8")
    return dict(re.findall(r"^\| `((?:key|value)\.[\w.]+)` \| `([^`]+)` \|$", text, re.MULTILINE))


def check_queries(deployment: Deployment) -> None:
    """The page's queries."""
    queries = debezium.queries("duckdb")
    assert asked(deployment, queries["current"]) == debezium.CURRENT
    assert asked(deployment, queries["deleted"]) == debezium.DELETED
    assert asked(deployment, queries["types"]) == debezium.TYPES


def check_columns_alone(deployment: Deployment) -> None:
    """Nothing is kept twice, and nothing is undecoded."""
    lost = f"SELECT count(*) FROM {TABLE} WHERE value.__raw__ IS NOT NULL OR value.__err__ IS NOT NULL"
    assert asked(deployment, lost) == [[0]]


def test_events_in_avro(tmp_path: Path, server: RegistryServer) -> None:
    debezium.register(server, "avsc", "AVRO")
    deployment, records = deployed(tmp_path, server), debezium.avro_records()
    with Driver(deployment) as driver:
        sent(driver, records)
        archived(driver)
        check_bytes(driver, records)
    check_queries(deployment)
    check_columns_alone(deployment)
    tombstones = f"SELECT key.id FROM {TABLE} WHERE value IS NULL"
    assert asked(deployment, tombstones) == [[2], [4], [5]]
    both = (
        f"SELECT value.before.total AS was, value.after.total AS now, value.before.weight.scale AS scale, "
        f"value.source.snapshot AS snapshot, value.transaction.id AS block FROM {TABLE} WHERE value.op = 'u'"
    )
    assert asked(deployment, both) == [["12.50", "13.75", 3, "false", "705:5"]]
    check_columns(deployment)


def check_columns(deployment: Deployment) -> None:
    """The page's table of columns."""
    found, page = columns(deployment), page_columns()
    assert {name: found.get(name) for name in page} == page
    for name in ("before", "after", "source", "transaction"):
        assert f"value.{name}" in found
    # A named type that is used twice has the same columns at both places.
    before, after = (
        {
            name.removeprefix(f"value.{part}."): kind
            for name, kind in found.items()
            if name.startswith(f"value.{part}.")
        }
        for part in ("before", "after")
    )
    assert before == after
    assert set(before) == {
        name.removeprefix("value.before.") for name in page if name.startswith("value.before.")
    }


def test_a_column_that_is_added_to_the_database(tmp_path: Path, server: RegistryServer) -> None:
    debezium.register(server, "avsc", "AVRO")
    deployment, records = deployed(tmp_path, server), debezium.avro_records()
    changed = json.loads(debezium.titled("orders-value.avsc"))
    (value,) = (one for one in changed["fields"][0]["type"] if one != "null")
    value["fields"].append({"name": "note", "type": ["null", "string"], "default": None})
    row = {**debezium.row(6, "Fay", "5.00", "new"), "note": "fragile"}
    added = Record(
        debezium.avro_envelope(
            debezium.KEY_ID, debezium.avro_schema(debezium.titled("orders-key.avsc")), {"id": 6}
        ),
        debezium.avro_envelope(
            43, debezium.avro_schema(json.dumps(changed)), debezium.event(9, "c", None, row)
        ),
    )
    with Driver(deployment) as driver:
        sent(driver, records)
        archived(driver)
        server.add(f"{TOPIC}-value", 2, 43, json.dumps(changed), kind="AVRO")
        sent(driver, [(0, added)])
        change = archived(driver).schema_change
        assert change is not None and change["incompatible"] == 0
        check_bytes(driver, [*records, (0, added)])
    assert asked(deployment, debezium.queries("duckdb")["current"]) == [
        *debezium.CURRENT,
        [6, "Fay", "5.00", "new"],
    ]
    notes = f"SELECT key.id AS id, value.after.note AS note FROM {TABLE} WHERE value.op = 'c' AND key.id > 3"
    assert asked(deployment, notes) == [[4, None], [4, None], [6, "fragile"]]


def test_events_in_protobuf(tmp_path: Path, server: RegistryServer) -> None:
    debezium.register(server, "proto", "PROTOBUF")
    deployment, records = deployed(tmp_path, server), debezium.proto_records()
    with Driver(deployment) as driver:
        sent(driver, records)
        archived(driver)
        check_bytes(driver, records)
    check_queries(deployment)
    found = columns(deployment)
    for name in ("value.before", "value.after", "value.source", "value.op", "value.before.total"):
        assert name in found
    empty = (
        f"SELECT key.id AS id, value.after.total AS total FROM {TABLE} WHERE key.id = 2 AND value.op = 'c'"
    )
    assert asked(deployment, empty) == [[2, None]]


def test_events_in_json(tmp_path: Path) -> None:
    deployment, records = deployed(tmp_path, None), debezium.json_records()
    for name in ("orders-key.json", "orders-value.json"):
        (deployment.root / name).write_text(debezium.titled(name), encoding="utf-8")
    with Driver(deployment) as driver:
        sent(driver, records)
        archived(driver)
        check_bytes(driver, records)
    check_queries(deployment)
    check_columns_alone(deployment)
    as_text = {"value.before.total": "string", "value.before.weight.value": "string"}
    page = page_columns() | as_text
    found = columns(deployment)
    assert {name: found.get(name) for name in page} == page
    assert {"value.before", "value.after", "value.source", "value.op"} <= found.keys()


def test_events_in_json_of_a_subject(tmp_path: Path, server: RegistryServer) -> None:
    """Records without an envelope, a row with a column that the schema does not have, and a record with its own
    schema."""
    debezium.register(server, "json", "JSON")
    row = {**debezium.row(6, "Fay", "5.00", "new"), "note": "fragile"}
    event = debezium.json_bytes(debezium.event(9, "c", None, row))
    key, framed = debezium.json_bytes({"id": 6}), b'{"schema":{"type":"struct"},"payload":' + event + b"}"
    records = [*debezium.json_records(), (0, Record(key, event)), (0, Record(key, framed))]
    deployment = deployed(tmp_path, server)
    with Driver(deployment) as driver:
        sent(driver, records)
        archived(driver)
        check_bytes(driver, records)
    kept = (
        "SELECT value.after.customer AS customer, decode(value.after.__unrecognized__) AS more, "
        f"value.__raw__ AS raw FROM {TABLE} WHERE value.after.__unrecognized__ IS NOT NULL"
    )
    assert asked(deployment, kept) == [["Fay", '{"note":"fragile"}', None]]
    with_schema = (
        f"SELECT json_keys(decode(value.__unrecognized__)) AS names FROM {TABLE} WHERE value.op IS NULL "
        "AND value.__unrecognized__ IS NOT NULL AND value.__err__ IS NULL"
    )
    assert asked(deployment, with_schema) == [[["schema", "payload"]]]
