"""Copies of a bucket's files for a query: few enough, made once, and of nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from archiver.catalog.tables import LiveFile, parse_identifier
from archiver.query.bounded_query import Stopped
from archiver.query.tables import FetchedFiles
from archiver.runtime.errors import Halt
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver
from tests.support.catalog.query_lake import Reads
from tests.support.objects.s3_faults import S3Faults
from tests.support.objects.s3_server import S3Server, data_group
from tests.support.objects.s3_store import new_store
from tests.support.process.web import Daemon, Reply, basic, kafka_users
from tests.support.schema.orders import order


def live(path: str, size: int) -> LiveFile:
    return LiveFile(path, 1, size, 0, (), None, None, None, None, 1, 1)


def interrupted() -> NoReturn:
    raise Stopped


def test_files_are_copied_once_and_within_a_bound(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    server: S3Server = request.getfixturevalue("s3_server")
    with S3Faults(server) as faults:
        store = new_store(server, endpoint=faults.uri)
        store.create("archive/a", b"a" * 600)
        store.create("archive/b", b"b" * 600)
        one, two = (
            live(store.uri("archive/a"), 600),
            live(store.uri("archive/b").replace("s3://", "s3a://"), 600),
        )
        faults.counts()
        copies = FetchedFiles(store, 1000)
        (path,) = copies.paths([one])
        assert Path(path).read_bytes() == b"a" * 600
        assert copies.paths([one]) == [path]
        assert faults.counts() == {"get": 1}
        with pytest.raises(Halt, match="exceed 1KB, the limit of a query over a bucket"):
            copies.paths([one, two])
        assert [Path(found).read_bytes()[:1] for found in FetchedFiles(store, 1200).paths([two, one])] == [
            b"b",
            b"a",
        ]
        folder = tmp_path / "copies"
        folder.mkdir()
        (given,) = FetchedFiles(store, 1200, folder).paths([one])
        assert Path(given).parent == folder
        with pytest.raises(Stopped):
            FetchedFiles(store, 1200, folder, interrupted).paths([one])
        with pytest.raises(Halt, match="has more bytes than the table's metadata states"):
            FetchedFiles(store, 1200, folder).paths([replace(one, file_size=599)])
        for strange in ("s3://another/archive/a", "file:///etc/passwd", f"{store.uri('archive/none')}"):
            with pytest.raises(Halt, match=r"is outside of data.uri|cannot be fetched"):
                FetchedFiles(store).paths([replace(one, path=strange)])


def run(daemon: Daemon, sql: str, name: str) -> Reply:
    """A query of the console, by this user. The header lets a daemon on loopback ask for a login."""
    login = {**basic(name, "password"), "X-Forwarded-For": "192.0.2.1"}
    body = json.dumps({"sql": sql}).encode()
    return daemon.call("POST", "/v1/query", body, {"Content-Type": "application/json", **login})


def data_files(driver: Driver, name: str) -> set[str]:
    """Of a table, as `bucket/key`."""
    tables = driver.application.tables("local")
    view = tables.load(parse_identifier(f"shop.{name}"))
    assert view is not None
    return {one.path.removeprefix("s3://") for one in tables.live_files(view)}


def test_the_console_queries_tables_in_a_bucket(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    server: S3Server = request.getfixturevalue("s3_server")
    folder = tmp_path / "d"
    rules = [
        {"principal": "User:alice", "operations": ["read"], "topics": ["clicks"]},
        {"principal": "User:carol", "operations": ["read"], "topics": ["*"]},
    ]
    kafka = kafka_users(tmp_path / "users", dict.fromkeys(("alice", "carol"), "password"), rules)
    with Reads(server) as reads:
        data = data_group(folder, server.new_bucket(), reads.uri)
        deployment = Deployment(folder, overrides={"data": data, "kafka": kafka})
        with Driver(deployment) as driver:
            driver.send("clicks", [b"a", b"b", None], 0)
            driver.send("orders", [order(1), order(2)], 1)
            driver.archive()
            files = {name: data_files(driver, name) for name in ("clicks", "orders")}
        assert [len(found) for found in files.values()] == [1, 1]
        with Daemon(deployment, query_time_max=60) as daemon:
            reads.files()
            both = "SELECT count(*) FROM shop.clicks a JOIN shop.clicks b USING (kafka), shop.orders"
            assert run(daemon, both, "carol").json()["rows"] == [[6]]
            assert reads.files() == files["clicks"] | files["orders"]
            for name in ("alice", "carol"):
                assert run(daemon, "SELECT count(*) FROM shop.clicks", name).json()["rows"] == [[3]]
                assert reads.files() == files["clicks"], "only of the table that the query names"
            assert run(daemon, both, "alice").status == 403
            assert reads.files() == set()
            # A file that was removed is an error and not an empty table.
            (name,) = files["orders"]
            bucket, _, key = name.partition("/")
            server.client().delete_object(Bucket=bucket, Key=key)
            gone = run(daemon, "FROM shop.orders", "carol")
            assert "cannot be fetched" in gone.error
            assert (gone.status, gone.json()["error"]["type"]) == (500, "Halt")
            assert list(daemon.application.objects.spool_dir().glob("query-*")) == []
