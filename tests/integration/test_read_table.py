"""The table of a topic through the read API and as a page, in each state of table and catalog."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.types import StringType

from archiver.app import reading_table
from archiver.app.reading_table import FILES_MAX
from archiver.runtime.errors import CatalogAway
from archiver.web import read_api
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver, catalog_table
from tests.support.process.pages import HOSTILE_TEXT, check_harmless
from tests.support.process.web import Daemon
from tests.support.schema.orders import order


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    """`orders` has two commits, `files` is archived without a table, `clicks` has records and no table."""
    deployment = Deployment(tmp_path / "d")
    with Driver(deployment) as driver:
        for first in (0, 3):
            driver.send("orders", [order(first + number) for number in range(3)], 1)
            driver.send("files", [b"file"], 0)
            driver.archive(("orders", None))
            driver.archive(("files", None))
        driver.send("clicks", [b"click"], 0)
    return deployment


@pytest.fixture
def daemon(deployment: Deployment) -> Iterator[Daemon]:
    with Daemon(deployment) as daemon:
        yield daemon


def get(daemon: Daemon, path: str, status: int = 200) -> tuple[Any, str]:
    """The document of a view, and the text of its page."""
    reply, page = daemon.call("GET", f"/v1{path}"), daemon.call("GET", path)
    assert (reply.status, page.status) == (status, status), reply.body
    return reply.json(), check_harmless(page).text


def away(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    def tables(catalog: str) -> Any:
        raise CatalogAway(f"catalog {catalog} cannot be reached: http://user:hunter2@catalog:8181 is away")

    monkeypatch.setattr(daemon.application, "tables", tables)


def test_a_table_with_its_snapshots_files_and_columns(daemon: Daemon, deployment: Deployment) -> None:
    found, text = get(daemon, "/topics/orders/table")
    assert (found["state"], found["why"], found["table"]) == ("present", None, "shop.orders")
    assert (found["rows"], found["files"], found["ledger"]["rows"]) == (6, 2, 6)
    assert found["bytes"] == sum(one["bytes"] for one in found["data_files"]) == found["ledger"]["bytes"]
    assert [one["added"]["rows"] for one in found["snapshots"]] == [3, 3]
    assert [one["place"] for one in found["snapshots"]] == ["current", "ancestor"]
    assert found["snapshots"][0]["id"] == found["snapshot"]["id"] == found["ledger"]["snapshot_id"]
    assert [one["offsets"] for one in found["snapshots"]] == ["1:3-6", "1:0-3"]
    files = found["data_files"]
    assert [(one["kafka_partition_min"], one["offset_min"], one["offset_max"]) for one in files] == [
        (1, 3, 5),
        (1, 0, 2),
    ]
    assert found["snapshots_left"] == found["data_files_left"] == found["columns_left"] == 0
    columns = {one["name"]: one for one in found["columns"]}
    assert columns["value.lines.quantity"]["from"]["field"] == "lines.quantity"
    assert "lines.quantity" in text
    # The same lines as the command's, but for the path of spark-sql.
    (printed,) = deployment.cli("tables", "--topic", "orders", "--output", "json").json()["tables"]
    for name in ("trino", "trino_catalog", "duckdb", "duckdb_secret"):
        assert found["engines"][name] == printed[name], name
    assert found["engines"]["spark"].splitlines()[1:] == printed["spark"].splitlines()[1:]
    assert found["engines"]["trino"] in text


@pytest.mark.parametrize(
    ("topic", "state", "words"),
    [
        ("files", "none", "archived as files without a table"),
        ("kept", "none", "not archived"),
        ("clicks", "missing", "the first commit creates the table shop.clicks"),
    ],
)
def test_a_topic_without_a_table_says_why(daemon: Daemon, topic: str, state: str, words: str) -> None:
    if topic == "kept":
        assert daemon.send("kept", b'{"value": null}').status == 200
    found, text = get(daemon, f"/topics/{topic}/table")
    assert (found["state"], found["snapshots"], found["columns"], found["engines"]) == (state, [], [], None)
    assert words in found["why"]
    assert words in text


def test_a_topic_that_is_not_there_has_no_page(daemon: Daemon) -> None:
    for path in ("", "/table", "/messages", "/messages/0/0"):
        found, text = get(daemon, f"/topics/nothing{path}", 404)
        # A rule may hide the names of other topics, which commands list here.
        assert found["error"]["message"] == "there is no topic nothing"
        assert "clicks" not in text


def test_a_table_that_is_gone_is_shown_as_the_ledger_has_it(daemon: Daemon, deployment: Deployment) -> None:
    with catalog_table(deployment, "shop.orders") as table:
        table.catalog.drop_table("shop.orders")
    found, text = get(daemon, "/topics/orders/table")
    assert (found["state"], found["rows"], found["ledger"]["rows"]) == ("gone", None, 6)
    assert "the table shop.orders is gone" in found["why"]
    assert "rename it back or restore it" in text


def test_a_catalog_that_is_away_is_said_without_its_secrets(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    away(daemon, monkeypatch)
    found, text = get(daemon, "/topics/orders/table")
    assert (found["state"], found["ledger"]["rows"]) == ("unavailable", 6)
    assert "catalog local cannot be reached" in found["why"]
    assert "hunter2" not in found["why"] + text


def test_a_manifest_that_cannot_be_read_leaves_the_metadata(daemon: Daemon, deployment: Deployment) -> None:
    with catalog_table(deployment, "shop.orders") as table:
        for manifest in table.current_snapshot().manifests(table.io):
            Path(manifest.manifest_path.removeprefix("file://")).write_bytes(b"damaged")
    found, text = get(daemon, "/topics/orders/table")
    assert (found["state"], found["rows"], len(found["snapshots"])) == ("present", 6, 2)
    assert found["data_files_why"]
    assert "manifest" in text


def test_the_table_of_another_topic_is_shown_with_the_reason(daemon: Daemon, deployment: Deployment) -> None:
    with catalog_table(deployment, "shop.orders") as table, table.transaction() as transaction:
        transaction.set_properties({"archiver.topic-id": "0" * 32})
    found, text = get(daemon, "/topics/orders/table")
    assert (found["state"], found["rows"]) == ("mismatch", 6)
    assert "belongs to a topic with id 0000" in found["why"]
    assert "belongs to a topic with id 0000" in text


def test_what_is_left_out_is_said(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    assert FILES_MAX > 2
    for name in ("SNAPSHOTS_MAX", "FILES_MAX"):
        monkeypatch.setattr(reading_table, name, 1)
    monkeypatch.setattr(reading_table, "COLUMNS_MAX", 3)
    found, text = get(daemon, "/topics/orders/table")
    assert (len(found["snapshots"]), found["snapshots_left"]) == (1, 1)
    assert (len(found["data_files"]), found["data_files_left"]) == (1, 1)
    assert (len(found["columns"]), found["columns_left"]) == (3, None)
    assert found["rows"] == 6
    # Without all files there is no statement for DuckDB, but the command that prints it.
    assert found["engines"]["duckdb"] is None
    assert "archiver tables --topic orders --files" in text


def test_texts_of_other_writers_are_harmless(daemon: Daemon, deployment: Deployment) -> None:
    with catalog_table(deployment, "shop.orders") as table:
        with table.update_schema() as change:
            change.add_column("region <b>&", StringType(), doc=HOSTILE_TEXT)
        with table.transaction() as transaction:
            update = transaction.update_snapshot(snapshot_properties={"archiver.ranges": HOSTILE_TEXT})
            with update.fast_append():
                pass
    found, text = get(daemon, "/topics/orders/table")
    assert found["columns"][-1]["doc"] == HOSTILE_TEXT
    assert found["snapshots"][0]["by"] == "another writer"
    assert "by another writer" in text


def test_the_page_of_a_topic_has_the_size_of_its_table(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, text = get(daemon, "/topics/orders")
    assert found["table_summary"]["rows"] == 6
    assert found["table_summary"]["files"] == 2
    assert found["table_summary"]["snapshot"]["operation"] == "append"
    assert "6 rows" in text
    # Kept for some seconds; a topic without a table is not asked for.
    away(daemon, monkeypatch)
    assert get(daemon, "/topics/orders")[0]["table_summary"]["rows"] == 6
    assert get(daemon, "/topics/files")[0]["table_summary"] is None
    assert get(daemon, "/topics/clicks")[0]["table_summary"] is None


def test_a_catalog_that_is_slow_does_not_hold_up_the_page_of_a_topic(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_api, "SUMMARY_S", 0.2)
    go_on = threading.Event()

    def tables(catalog: str) -> Any:
        go_on.wait(60)
        raise CatalogAway(f"catalog {catalog} is away")

    monkeypatch.setattr(daemon.application, "tables", tables)
    try:
        # More often than there are threads that ask catalogs, and the other reads are answered all the same.
        for _ in range(read_api.OUTSIDE_THREADS + 1):
            found, text = get(daemon, "/topics/orders")
            assert found["table_summary"] is None
            assert "shop.orders" in text
        assert get(daemon, "/topics/orders/messages?partition=1")[0]["records"]
    finally:
        go_on.set()
