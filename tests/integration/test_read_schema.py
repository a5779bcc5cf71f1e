"""The schema of a topic through the read API and as a page: its versions, the plan, and undecoded records."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from archiver.app import reading_schema
from archiver.runtime.errors import CatalogAway
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver
from tests.support.builders.rebuilding import second_version
from tests.support.process.pages import check_harmless
from tests.support.process.web import Daemon
from tests.support.schema.orders import DESCRIPTOR_SET, order


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    """`orders` has a version with three columns, and one record that does not decode."""
    deployment = Deployment(tmp_path / "d")
    with Driver(deployment) as driver:
        driver.send("orders", [order(1), b"\xff\xff\xff", order(2)], 1)
        driver.archive()
    return deployment


@pytest.fixture
def daemon(deployment: Deployment) -> Iterator[Daemon]:
    with Daemon(deployment) as daemon:
        yield daemon


def get(daemon: Daemon, topic: str, status: int = 200) -> tuple[Any, str]:
    """The document, and the text of its page."""
    path = f"/topics/{topic}/schema"
    reply, page = daemon.call("GET", f"/v1{path}"), daemon.call("GET", path)
    assert (reply.status, page.status) == (status, status), reply.body
    return reply.json(), check_harmless(page).text


def changed(deployment: Deployment, **settings: Any) -> None:
    """The source has the second version from now on: no `customer`, but a `note`."""
    (deployment.root / "shop.binpb").write_bytes(second_version()[0])
    document = deployment.document()
    document["topics"][0] |= settings
    deployment.write(document)


def briefly(found: Any) -> list[tuple[str, str]]:
    return [(one["what"], one["column"]) for one in found["changes"]]


def test_a_schema_with_one_version_and_no_change(daemon: Daemon) -> None:
    found, text = get(daemon, "orders")
    (version,) = found["versions"]
    assert (version["version"], version["key"]) == (1, None)
    assert version["recorded"].endswith("Z")
    assert version["value"] == {"format": "protobuf", "message": "shop.Order", "ids": []}
    assert briefly(version) == [("added", f"value.{name}") for name in ("id", "customer", "lines")]
    plan = found["plan"]
    assert (plan["version"], plan["changes"], plan["allowed"], plan["unchanged"]) == (1, [], True, 5)
    assert found["undecoded"] == {"key": None, "value": 1, "files": 1, "complete": True}
    assert (found["plan_why"], found["undecoded_why"], found["versions_left"]) == (None, None, 0)
    assert "The newest schema changes nothing" in text


def test_the_plan_of_a_newer_schema_becomes_a_version(deployment: Deployment) -> None:
    changed(deployment)
    with Daemon(deployment) as daemon:
        found, text = get(daemon, "orders")
        expected = [("added", "value.note"), ("dropped", "value.customer")]
        assert (briefly(found["plan"]), found["plan"]["version"]) == (expected, 2)
        assert "makes version 2 of version 1" in text
        printed = deployment.cli("schema", "plan", "orders", "--output", "json").json()
        assert [(one["what"], one["column"], one["why"]) for one in printed["changes"]] == [
            (one["what"], one["column"], one["why"]) for one in found["plan"]["changes"]
        ]
        value = base64.b64encode(second_version()[1](id=3, note="x").SerializeToString())
        assert daemon.send("orders", b'{"value": "%s"}' % value).status == 200
        daemon.administer("archive", {"all": True})
        found, text = get(daemon, "orders")
    assert [one["version"] for one in found["versions"]] == [2, 1]
    assert briefly(found["versions"][0]) == expected
    assert found["plan"]["changes"] == []
    assert "since version 1" in text


def test_a_change_that_the_topic_refuses(deployment: Deployment) -> None:
    changed(deployment, schema_change="refuse")
    with Daemon(deployment) as daemon:
        found, text = get(daemon, "orders")
    assert (found["schema_change"], found["plan"]["allowed"]) == ("refuse", False)
    assert "schema_change: refuse halts the topic before these changes" in text


def test_an_incompatible_change_has_its_reason(deployment: Deployment) -> None:
    files = descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTOR_SET)
    files.file[0].message_type[1].field[1].type = descriptor_pb2.FieldDescriptorProto.TYPE_DOUBLE
    changed(deployment)
    (deployment.root / "shop.binpb").write_bytes(files.SerializeToString())
    with Daemon(deployment) as daemon:
        found, text = get(daemon, "orders")
    (change,) = found["plan"]["changes"]
    assert (change["what"], change["compatible"], found["plan"]["compatible"]) == ("new_column", False, False)
    assert change["why"]
    assert "new column" in text


def test_the_versions_are_shown_while_the_registry_is_away(deployment: Deployment) -> None:
    secret = deployment.root / "password"
    secret.write_text("hunter2-long\n")
    secret.chmod(0o600)
    document = deployment.document()
    document["schema_registry"] = {
        "confluent": {
            "url": "http://127.0.0.1:9",
            "auth": {"username": "user", "password": {"file": str(secret)}},
            "attempts_max": 1,
            "timeout": "1s",
        }
    }
    document["topics"][0]["value"] = {"subject": "orders-value", "message": "shop.Order"}
    deployment.write(document)
    with Daemon(deployment) as daemon:
        found, text = get(daemon, "orders")
    assert [one["version"] for one in found["versions"]] == [1]
    assert found["plan"] is None
    assert "127.0.0.1:9" in found["plan_why"]
    assert "The newest schema is not known" in text
    assert "hunter2-long" not in text


def test_the_versions_are_shown_while_the_catalog_is_away(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tables(catalog: str) -> Any:
        raise CatalogAway(f"catalog {catalog} cannot be reached")

    monkeypatch.setattr(daemon.application, "tables", tables)
    found, text = get(daemon, "orders")
    assert (len(found["versions"]), found["undecoded"]) == (1, None)
    assert found["plan"]["changes"] == []
    assert found["undecoded_why"] == "catalog local cannot be reached"
    assert "They could not be counted" in text


def test_topics_without_a_message_or_a_record(daemon: Daemon) -> None:
    found, text = get(daemon, "clicks")
    (version,) = found["versions"]
    assert (version["key"], version["value"], version["changes"]) == (None, None, [])
    assert "neither keys nor values have a schema" in text
    found, text = get(daemon, "kept")
    assert (found["versions"], found["plan"]["recorded_version"], found["plan"]["changes"]) == ([], None, [])
    assert found["undecoded"] is None
    assert "No version is recorded yet" in text
    assert "there is no topic nothing" in get(daemon, "nothing", 404)[0]["error"]["message"]


def test_what_is_left_out_is_said(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_schema, "CHANGES_MAX", 1)
    monkeypatch.setattr(reading_schema, "COUNTED_S", 0.0)
    found, text = get(daemon, "orders")
    assert (len(found["versions"][0]["changes"]), found["versions"][0]["changes_left"]) == (1, 2)
    assert (found["undecoded"]["files"], found["undecoded"]["complete"]) == (1, False)
    assert "And 2 more changes" in text
    assert "at least 1" in text
    monkeypatch.setattr(reading_schema, "CHANGES_S", 0.0)
    found, text = get(daemon, "orders")
    assert (found["versions"][0]["changes"], found["versions"][0]["why"]) == ([], "not compared within 0 s")


HOSTILE_NAMES = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onfocus='alert(1)",
    "</code></td><svg onload=alert(1)>",
    "\u202egnp.exe\u2066",
    "{{ 7 * 7 }}",
    "`</code><script>`",
    "\x1b[31mred",
)


def json_schema(kind: str, *more: str) -> str:
    properties = {name: {"type": kind} for name in (*HOSTILE_NAMES, *more)}
    return json.dumps({"title": HOSTILE_NAMES[0], "type": "object", "properties": properties})


def test_hostile_names_of_a_json_schema_are_text(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "d")
    document = deployment.document()
    document["topics"][0]["value"] = {"json_schema": "hostile.json"}
    deployment.write(document)
    source = deployment.root / "hostile.json"
    source.write_text(json_schema("string"))
    with Driver(deployment) as driver:
        value = json.dumps({name: name for name in HOSTILE_NAMES}, separators=(",", ":")).encode()
        driver.send("orders", [value, b"<script>"], 0)
        assert driver.archive().of("orders").state == "archived"
    # Other types, so that each name is in a change with a reason, and one more name.
    source.write_text(json_schema("integer", "<b>new</b>"))
    with Daemon(deployment) as daemon:
        found, text = get(daemon, "orders")
        # Names of columns are identifiers; errors repeat names as they are in the schema.
        columns = {one["field"] for one in found["plan"]["changes"]}
        assert len(columns) == len(HOSTILE_NAMES) + 1
        assert {"_script_alert_1___script_", "__31mred", "_b_new__b_"} <= columns
        assert all(name in text for name in columns)
        pages = {
            path: daemon.call("GET", path)
            for path in (
                "/topics/orders/table",
                "/topics/orders/messages?from=earliest",
                "/topics/orders/messages/0/0",
                "/topics/orders/messages/0/1",
                "/dead-letters?topic=orders",
                "/dead-letters/replay?topic=orders",
            )
        }
        assert {path: reply.status for path, reply in pages.items() if reply.status != 200} == {}
        texts = {path: check_harmless(reply).text for path, reply in pages.items()}
        assert "<script>alert(1)</script> is a string where" in texts["/topics/orders/messages/0/0"]
        source.write_text(json_schema("<script>alert(2)</script>"))
        found, text = get(daemon, "orders")
        assert found["plan"] is None
        assert "<script>alert(2)</script>" in text


@pytest.mark.parametrize("name", [HOSTILE_NAMES[0], HOSTILE_NAMES[1], HOSTILE_NAMES[3]])
@pytest.mark.parametrize("place", ["avro record", "avro field", "protobuf field"])
def test_hostile_names_that_a_schema_may_not_have_are_text(
    deployment: Deployment, place: str, name: str
) -> None:
    document = deployment.document()
    if place == "protobuf field":
        files = descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTOR_SET)
        field = files.file[0].message_type[1].field[0]
        field.name = field.json_name = name
        (deployment.root / "shop.binpb").write_bytes(files.SerializeToString())
    else:
        record, column = (name, "id") if place == "avro record" else ("Order", name)
        avro = {"type": "record", "name": record, "fields": [{"name": column, "type": "string"}]}
        (deployment.root / "hostile.avsc").write_text(json.dumps(avro))
        document["topics"][0]["value"] = {"avsc": "hostile.avsc"}
    deployment.write(document)
    with Daemon(deployment) as daemon:
        found, text = get(daemon, "orders")
        assert found["plan"] is None
        assert name in text, "the reason names it"
        for path in ("/topics/orders", "/topics/orders/messages?partition=1&from=earliest"):
            assert check_harmless(daemon.call("GET", path)).text
