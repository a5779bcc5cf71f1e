"""Topics of Avro records in a real deployment: a registry's subject that changes, and a schema file."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import fastavro
import pyarrow as pa
import pytest

from archiver.api import Writer
from archiver.runtime.errors import RecordRefused
from tests.support.builders.driver import Driver, catalog_table
from tests.support.schema.orders_topic import TABLE, deployed, rows
from tests.support.schema.registry_server import RegistryServer

LINE = {
    "type": "record",
    "name": "Line",
    "fields": [{"name": "sku", "type": "string"}, {"name": "n", "type": "int"}],
}
FIRST = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "customer", "type": "string"},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "clock", "type": {"type": "long", "logicalType": "time-micros"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
        {"name": "lines", "type": {"type": "array", "items": LINE}},
        {"name": "grid", "type": {"type": "array", "items": {"type": "map", "values": "double"}}},
        {"name": "ref", "type": ["null", "long", "string"], "default": None},
    ],
}
SECOND = json.loads(json.dumps(FIRST))
SECOND["fields"][0]["type"] = "long"
SECOND["fields"][1] = {"name": "buyer", "type": ["null", "string"], "aliases": ["customer"], "default": None}
SECOND["fields"].append({"name": "note", "type": ["null", "string"], "default": None})


def order(schema: Any, number: int, **more: Any) -> bytes:
    """A datum by another library."""
    value = {
        "id": number,
        "customer": f"c{number}",
        "buyer": f"c{number}",
        "state": "PAID",
        "day": 19_000,
        "clock": 1,
        "local": 1_700_000_000_123,
        "lines": [{"sku": "a", "n": 1}, {"sku": "b", "n": 2}],
        "grid": [{"x": 0.5}, {}],
        "ref": "r",
        "note": None,
        **more,
    }
    out = io.BytesIO()
    plain = json.loads(json.dumps(schema).replace('"logicalType"', '"was"'))
    fastavro.schemaless_writer(out, fastavro.parse_schema(plain), value)
    return out.getvalue()


def enveloped(number: int, data: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + data


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with RegistryServer() as made:
        made.add("orders-value", 1, 7, json.dumps(FIRST), kind=None)
        yield made


def test_a_subject_from_records_to_a_table(tmp_path: Path, server: RegistryServer) -> None:
    deployment = deployed(
        tmp_path / "d", {"subject": "orders-value"}, schema_registry={"confluent": {"url": server.url}}
    )
    deployment.write(deployment.document())
    sent: list[bytes | None] = [enveloped(7, order(FIRST, number)) for number in range(30)]
    sent[5] = enveloped(7, order(FIRST, 5) + b"x")
    sent[6] = None
    sent[7] = order(FIRST, 7)
    with Driver(deployment) as driver:
        driver.send("orders", sent, 0)
        assert driver.archive().of("orders").state == "archived"
        server.add("orders-value", 2, 9, json.dumps(SECOND), kind="AVRO")
        later: list[bytes | None] = [
            enveloped(9, order(SECOND, 2**40, note="n")),
            enveloped(7, order(FIRST, 31)),
            enveloped(9, order(SECOND, 1, ref=None, buyer=None)),
        ]
        driver.send("orders", later, 0)
        report = driver.archive().of("orders")
        assert report.state == "archived"
        assert report.schema_change is not None
        assert report.schema_change["incompatible"] == 0
        driver.check_complete("orders")
        assert [one.value for one in driver.records("orders")[0]] == sent + later
    found = rows(deployment)
    assert found[0]["lines"] == [{"sku": "a", "n": 1}, {"sku": "b", "n": 2}]
    assert found[0]["grid"] == [[("x", 0.5)], []]
    assert str(found[0]["day"]) == "2022-01-08"
    assert str(found[0]["local"]) == "2023-11-14 22:13:20.123000"
    assert (found[0]["buyer"], found[0]["ref"]["string"], found[0]["__prefix__"]) == (
        "c0",
        "r",
        b"\0\0\0\0\x07",
    )
    # pyiceberg reads a null list of structs as an empty one.
    assert sorted(found[5]) == sorted(found[7]) == ["__err__", "__raw__", "lines"]
    assert found[6] in ({}, {"lines": []})
    assert [(row["id"], row.get("buyer"), row.get("note")) for row in found[30:]] == [
        (2**40, "c1099511627776", "n"),
        (31, "c31", None),
        (1, None, None),
    ]
    assert [number for number, row in enumerate(found) if "__raw__" in row] == [5, 7]
    shown = deployment.cli("schema", "show", "orders", "--output", "json")
    fields = {one["column"]: one for one in shown.json()["fields"]}
    assert (fields["value.buyer"]["path"], fields["value.buyer"]["versions"]) == ("customer", [1, 2])
    decoded = deployment.cli("consume", "--topic", "orders", "--from", "30", "--decode")
    first = decoded.lines()[0]
    assert (first["decoded"]["value"]["id"], first["decoded"]["value"]["note"]) == (2**40, "n")
    files = [str(path) for path in deployment.root.rglob("*.parquet") if "archive" in str(path)]
    assert files
    queried = duckdb.connect().execute(
        f"SELECT count(value.lines[1].sku) FROM read_parquet({files}, union_by_name = true)"
    )
    assert queried.fetchone() == (30,)


def test_a_replay_and_queries(tmp_path: Path, server: RegistryServer) -> None:
    deployment = deployed(
        tmp_path / "d", {"subject": "orders-value"}, schema_registry={"confluent": {"url": server.url}}
    )
    deployment.write(deployment.document())
    sent: list[bytes | None] = [enveloped(7, order(FIRST, number)) for number in range(30)]
    sent[3] = enveloped(9, order(SECOND, 2**40, note="n"))
    with Driver(deployment) as driver:
        driver.send("orders", sent, 0)
        assert driver.archive().of("orders").state == "archived"
    assert "has schema id 9, which is not one of the topic's subject" in rows(deployment)[3]["__err__"]
    server.add("orders-value", 2, 9, json.dumps(SECOND), kind="AVRO")
    replayed = deployment.cli("dlq", "replay", "--topic", "orders")
    assert replayed.code == 0, replayed.err
    with Driver(deployment) as driver:
        driver.check_complete("orders")
        assert [one.value for one in driver.records("orders")[0]] == sent
    found = rows(deployment)
    assert (found[3]["id"], found[3]["note"], "__raw__" in found[3]) == (2**40, "n", False)
    assert [row["id"] for row in found[:3]] == [0, 1, 2]
    query = "SELECT count(*), max(value.day), max(value.clock), max(value.id) FROM shop.orders"
    queried = deployment.cli("query", query)
    assert queried.code == 0, queried.err
    assert "2022-01-08" in queried.out
    conditions = {
        "value.day = '2022-01-08'": 30,
        "value.day > '2022-01-08'": 0,
        "value.local = '2023-11-14T22:13:20.123'": 30,
        "value.local > '2023-11-14T22:13:20.123'": 0,
        "value.clock = 1": 30,
        "value.clock > 1": 0,
        "value.id > 100": 1,
    }
    # The bounds in the manifests are those of the columns.
    with catalog_table(deployment, TABLE) as table:
        for condition, count in conditions.items():
            scan = table.scan(row_filter=condition)
            assert (scan.to_arrow().num_rows, bool(list(scan.plan_files()))) == (count, count > 0), condition


def test_a_schema_file_and_records_that_are_refused(tmp_path: Path) -> None:
    deployment = deployed(tmp_path / "d", {"avsc": "order.avsc", "validate": "reject"})
    (deployment.root / "order.avsc").write_text(json.dumps(FIRST), encoding="utf-8")
    deployment.write(deployment.document())
    with Writer(deployment.config) as writer:
        assert writer.send("orders", order(FIRST, 1), partition=0).result(30).offset == 0
        with pytest.raises(RecordRefused, match=r"value: cannot be decoded as shop\.Order: it is cut off"):
            writer.send("orders", order(FIRST, 1)[:-1], partition=0)
        batch = pa.table({"value": [order(FIRST, number) for number in range(50)] + [b"\xff", None]})
        outcomes = [one.outcome for one in writer.send_batch("orders", batch, 0).result(30)]
        assert outcomes == ["ok"] * 50 + ["failed", "ok"]
    with Driver(deployment) as driver:
        assert driver.archive().of("orders").state == "archived"
        driver.check_complete("orders")
        assert [row.get("id") for row in rows(deployment)] == [1, *range(50), None]
        driver.send("orders", [order(FIRST, 3)], 0)
        (deployment.root / "order.avsc").write_text(json.dumps(SECOND), encoding="utf-8")
        report = driver.archive().of("orders")
        assert report.state != "archived"
        assert report.why is not None
        assert "records without a registry's envelope do not say which schema wrote them" in report.why
        assert "restore the file" in report.why


def test_a_plan_and_a_check_of_schema_files(tmp_path: Path) -> None:
    deployment = deployed(tmp_path / "d", {"avsc": "order.avsc"})
    (deployment.root / "order.avsc").write_text(json.dumps(FIRST), encoding="utf-8")
    (deployment.root / "new.avsc").write_text(json.dumps(SECOND), encoding="utf-8")
    deployment.write(deployment.document())
    planned = deployment.cli("schema", "plan", "orders", "--output", "json").json()
    assert [one["what"] for one in planned["changes"]] == ["added"] * len(FIRST["fields"])
    files = ("--against", str(deployment.root / "order.avsc"), "--avsc", str(deployment.root / "new.avsc"))
    checked = deployment.cli("schema", "check", *files, "--output", "json").json()
    assert [(one["what"], one["field"]) for one in checked["changes"]] == [
        ("widened", "id"),
        ("renamed", "buyer"),
        ("unchanged_column", "buyer"),
        ("added", "note"),
    ]
    assert checked["compatible"] is True
