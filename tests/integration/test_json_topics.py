"""Topics of JSON documents in a real deployment: a registry's subject that changes, a schema file, no schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from archiver.api import Writer
from archiver.runtime.errors import RecordRefused
from tests.support.builders.driver import Driver, catalog_table
from tests.support.schema.both_engines import enveloped
from tests.support.schema.orders_topic import TABLE, deployed, rows
from tests.support.schema.registry_server import RegistryServer

LINE = {"type": "object", "properties": {"sku": {"type": "string"}, "n": {"type": "integer"}}}
FIRST: Any = {
    "title": "Order",
    "type": "object",
    "properties": {
        "id": {"type": "integer", "minimum": 0, "maximum": 1_000_000},
        "customer": {"type": ["string", "null"]},
        "day": {"type": "string", "format": "date"},
        "at": {"type": "string", "format": "date-time"},
        "lines": {"type": "array", "items": LINE},
        "prices": {"type": "object", "additionalProperties": {"type": "number"}},
        "extra": True,
    },
}
SECOND: Any = json.loads(json.dumps(FIRST))
SECOND["properties"]["id"] = {"type": "integer"}
SECOND["properties"]["note"] = {"type": "string"}


def order(number: int, **more: Any) -> bytes:
    value = {
        "id": number,
        "customer": f"c{number}",
        "day": "2026-11-28",
        "at": "2026-11-28T14:00:00.123Z",
        "lines": [{"sku": "a", "n": 1}, {"sku": "b", "n": 2}],
        "prices": {"x": 0.5},
        "extra": {"any": [1, "a"]},
        **more,
    }
    return json.dumps(value, separators=(",", ":")).encode()


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with RegistryServer() as made:
        made.add("orders-value", 1, 7, json.dumps(FIRST), kind="JSON")
        yield made


def test_a_subject_from_records_to_a_table(tmp_path: Path, server: RegistryServer) -> None:
    deployment = deployed(
        tmp_path / "d", {"subject": "orders-value"}, schema_registry={"confluent": {"url": server.url}}
    )
    deployment.write(deployment.document())
    sent: list[bytes | None] = [enveloped(7, order(number)) for number in range(30)]
    sent[5] = enveloped(7, order(5) + b"x")
    sent[6] = None
    sent[7] = order(7)
    sent[8] = enveloped(7, order(8, new=[1]))
    sent[9] = enveloped(9, order(9, note="n"))
    with Driver(deployment) as driver:
        driver.send("orders", sent, 0)
        assert driver.archive().of("orders").state == "archived"
        driver.check_complete("orders")
    assert "has schema id 9, which is not one of the topic's subject" in rows(deployment)[9]["__err__"]
    server.add("orders-value", 2, 9, json.dumps(SECOND), kind="JSON")
    replayed = deployment.cli("dlq", "replay", "--topic", "orders")
    assert replayed.code == 0, replayed.err
    later: list[bytes | None] = [enveloped(9, order(2**40, note="n")), b' {"id": 31}']
    with Driver(deployment) as driver:
        driver.send("orders", later, 0)
        report = driver.archive().of("orders")
        assert report.state == "archived"
        driver.check_complete("orders")
        assert [one.value for one in driver.records("orders")[0]] == sent + later
    found = rows(deployment)
    assert [row.get("id") for row in found] == [
        None if number in (5, 6) else number for number in range(30)
    ] + [2**40, 31]
    assert found[0]["lines"] == [
        {"sku": "a", "n": 1, "__unrecognized__": None},
        {"sku": "b", "n": 2, "__unrecognized__": None},
    ]
    assert (found[0]["prices"], found[0]["extra"]) == ([("x", 0.5)], '{"any":[1,"a"]}')
    assert (str(found[0]["day"]), str(found[0]["at"])) == ("2026-11-28", "2026-11-28 14:00:00.123000+00:00")
    assert found[8]["__unrecognized__"] == b'{"new":[1]}'
    assert (found[9]["note"], found[30]["note"], found[9]["__prefix__"]) == ("n", "n", b"\0\0\0\0\x09")
    assert "__prefix__" not in found[7]
    assert [number for number, row in enumerate(found) if "__raw__" in row] == [5, 31]
    assert "it is not JSON: Extra data" in found[5]["__err__"]
    shown = deployment.cli("schema", "show", "orders", "--output", "json")
    fields = {one["column"]: one for one in shown.json()["fields"]}
    assert (fields["value.note"]["path"], fields["value.note"]["versions"]) == ("note", [2])
    decoded = deployment.cli("consume", "--topic", "orders", "--from", "30", "--decode")
    first = decoded.lines()[0]
    assert (first["decoded"]["value"]["id"], first["decoded"]["value"]["note"]) == (2**40, "n")
    files = [str(path) for path in deployment.root.rglob("*.parquet") if "archive" in str(path)]
    queried = duckdb.connect().execute(
        f"SELECT count(value.lines[1].sku), max(value.extra ->> '$.any[1]') "
        f"FROM read_parquet({files}, union_by_name = true)"
    )
    # The replay wrote the archive again, and the old file is still there.
    count, text = queried.fetchone() or (0, "")
    assert (count >= 29, text) == (True, "a")
    conditions = {"value.day = '2026-11-28'": 29, "value.day > '2026-11-28'": 0, "value.id > 100": 1}
    # The bounds in the manifests are those of the columns.
    with catalog_table(deployment, TABLE) as table:
        for condition, number in conditions.items():
            assert table.scan(row_filter=condition).to_arrow().num_rows == number, condition


def test_a_schema_file_that_changes_and_records_that_are_refused(tmp_path: Path) -> None:
    deployment = deployed(
        tmp_path / "d", {"json_schema": "order.json", "validate": "reject"}, key={"format": "json"}
    )
    (deployment.root / "order.json").write_text(json.dumps(FIRST), encoding="utf-8")
    deployment.write(deployment.document())
    with Writer(deployment.config) as writer:
        assert writer.send("orders", order(1), key=b'{"k":1}', partition=0).result(30).offset == 0
        with pytest.raises(RecordRefused, match=r"value: cannot be decoded as Order: it is not JSON"):
            writer.send("orders", order(1)[:-1], partition=0)
        with pytest.raises(RecordRefused, match=r"id is a string where the schema has an integer"):
            writer.send("orders", b'{"id":"1"}', partition=0)
        batch = pa.table({"value": [order(number) for number in range(50)] + [b"\xff", None]})
        outcomes = [one.outcome for one in writer.send_batch("orders", batch, 0).result(30)]
        assert outcomes == ["ok"] * 50 + ["failed", "ok"]
    with Driver(deployment) as driver:
        assert driver.archive().of("orders").state == "archived"
        (deployment.root / "order.json").write_text(json.dumps(SECOND), encoding="utf-8")
        driver.send("orders", [order(2**40, note="n")], 0)
        assert driver.archive().of("orders").state == "archived"
        driver.check_complete("orders")
    found = rows(deployment)
    assert [row.get("id") for row in found] == [1, *range(50), None, 2**40]
    assert found[-1]["note"] == "n"
    with catalog_table(deployment, TABLE) as table:
        keys = {row["kafka"]["offset"]: row["key"] for row in table.scan().to_arrow().to_pylist()}
    assert keys[0]["value"] == '{"k":1}'


def test_coerce_puts_the_envelope_before_a_document(tmp_path: Path, server: RegistryServer) -> None:
    deployment = deployed(
        tmp_path / "d",
        {"subject": "orders-value", "coerce": True, "validate": "reject"},
        schema_registry={"confluent": {"url": server.url}},
    )
    deployment.write(deployment.document())
    with Writer(deployment.config) as writer:
        writer.send("orders", order(1), partition=0).result(30)
        writer.send("orders", enveloped(7, order(2)), partition=0).result(30)
    with Driver(deployment) as driver:
        assert [one.value for one in driver.records("orders")[0]] == [
            enveloped(7, order(1)),
            enveloped(7, order(2)),
        ]


def test_a_plan_and_a_check_of_schema_files(tmp_path: Path) -> None:
    deployment = deployed(tmp_path / "d", {"json_schema": "order.json"})
    (deployment.root / "order.json").write_text(json.dumps(FIRST), encoding="utf-8")
    (deployment.root / "new.json").write_text(json.dumps(SECOND), encoding="utf-8")
    deployment.write(deployment.document())
    planned = deployment.cli("schema", "plan", "orders", "--output", "json").json()
    assert [one["what"] for one in planned["changes"]] == ["added"] * len(FIRST["properties"])
    old, new = (str(deployment.root / name) for name in ("order.json", "new.json"))
    checked = deployment.cli(
        "schema", "check", "--against", old, "--json-schema", new, "--output", "json"
    ).json()
    assert [(one["what"], one["field"]) for one in checked["changes"]] == [
        ("widened", "id"),
        ("added", "note"),
    ]
    assert checked["compatible"] is True
    (deployment.root / "order.json").write_text('{"$ref": "#/$defs/x"}', encoding="utf-8")
    refused = deployment.cli("config", "check")
    assert refused.code != 0
    assert "topics[0].value.json_schema" in refused.err
    assert "which the schema does not define" in refused.err
