"""Does `archiver doctor` find what is wrong with real parts, end in time, change nothing and show no secret?"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from archiver.cli import doctor as command
from archiver.runtime.clock import SystemClock
from tests.support.builders.deployment import Deployment
from tests.support.log.etcd_server import Etcd
from tests.support.objects.s3_faults import S3Faults
from tests.support.objects.s3_server import ACCESS_KEY_ID, REGION, SECRET_ACCESS_KEY, S3Server
from tests.support.process.privileges import file_modes_hold
from tests.support.process.web import TOKEN, Daemon
from tests.support.schema.registry_server import RegistryServer

Found = dict[str, tuple[str, str, str | None]]
TOPICS = [
    {
        "name": "clicks",
        "partitions": 1,
        "archive": {"kind": "iceberg", "catalog": "local", "table": "shop.clicks"},
    }
]
SECRET = "correct horse battery staple"


@pytest.fixture(autouse=True)
def java_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of this process have an empty environment otherwise."""
    found = {name: os.environ[name] for name in ("PATH", "JAVA_HOME") if name in os.environ}
    plain = Deployment.environ
    monkeypatch.setattr(Deployment, "environ", lambda self, armed="": plain(self, armed) | found)


def deployed(folder: Path, **overrides: Any) -> Deployment:
    """A deployment on free ports."""
    http = {"listen": f"127.0.0.1:{free_port()}"}
    return Deployment(folder, overrides={"topics": TOPICS, "http": http, **overrides})


def asked(deployment: Deployment, *more: str) -> tuple[int, Found]:
    """The exit code; outcome, words and remedy by check."""
    done = deployment.cli("doctor", "--output", "json", *more)
    assert done.err == ""
    assert SECRET not in done.out
    assert SECRET_ACCESS_KEY not in done.out
    document = done.json()
    assert list(document) == ["config", "cluster", "outcomes", "checks"]
    found = {one["name"]: (one["outcome"], one["found"], one["remedy"]) for one in document["checks"]}
    assert len(found) == len(document["checks"]) == sum(document["outcomes"].values())
    for name, (outcome, said, remedy) in found.items():
        assert said, name
        assert bool(remedy) is (outcome in ("problem", "warning", "unknown")), name
    return done.code, found


def outcomes(found: Found, *names: str) -> list[str]:
    return [found[name][0] for name in names]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def silent() -> Iterator[int]:
    """A port that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield int(listener.getsockname()[1])


@contextmanager
def dated(text: str) -> Iterator[str]:
    """The address of a server that states this time."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(200)
            self.end_headers()

        def date_time_string(self, timestamp: float | None = None) -> str:
            return text

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def files(folder: Path) -> dict[Path, bytes]:
    return {
        path: path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith("-shm")
    }


def test_a_healthy_deployment_before_and_after_its_first_start(tmp_path: Path) -> None:
    deployment = deployed(tmp_path, kafka={"listen": f"127.0.0.1:{free_port()}"})
    before = files(tmp_path)
    code, found = asked(deployment)
    assert code == 0, found
    assert (files(tmp_path), deployment.data.exists()) == (before, False)
    assert (
        outcomes(found, "configuration", "http.listen", "kafka.listen", "data folder", "catalog local")
        == ["ok"] * 5
    )
    assert outcomes(found, "bucket guarantees", "schema registry", "clock") == ["not applicable"] * 3
    deployment.produce([{"topic": "clicks", "value": None}])
    before = files(tmp_path)
    code, found = asked(deployment)
    assert code == 0, found
    assert files(tmp_path) == before
    assert outcomes(found, "object store", "metadata store", "clock") == ["ok"] * 3
    assert "it belongs to cluster test" in found["object store"][1]
    done = deployment.cli("doctor")
    assert (done.code, done.err) == (0, "")
    assert "\nok:\n" in f"\n{done.out}"
    assert done.out.splitlines()[-1].startswith("0 problems, ")


def test_a_port_that_another_program_has(tmp_path: Path) -> None:
    with silent() as http, silent() as kafka:
        deployment = deployed(
            tmp_path, http={"listen": f"127.0.0.1:{http}"}, kafka={"listen": f"127.0.0.1:{kafka}"}
        )
        code, found = asked(deployment)
        assert (code, outcomes(found, "http.listen", "kafka.listen")) == (1, ["problem", "problem"])
        remedy = "stop it, or set `kafka.listen` to another port, for example `kafka.listen: 127.0.0.1:"
        assert str(found["kafka.listen"][2]).startswith(remedy)
        text = deployment.cli("doctor").out
    first, second = text.splitlines()[:2]
    assert first.startswith(f"problem: http.listen: 127.0.0.1:{http} cannot be opened")
    assert second.startswith("    remedy: stop it, or set `http.listen` to another port, for example")


def test_a_port_of_this_deployments_own_daemon(tmp_path: Path) -> None:
    deployment = deployed(tmp_path)
    deployment.produce([{"topic": "clicks", "value": None}])
    with Daemon(deployment) as daemon:
        (tmp_path / "token").write_text(TOKEN)
        listen = "{}:{}".format(*daemon.address)
        http = {"listen": listen, "admin_token": {"file": "token"}}
        deployment.write(deployment.document() | {"http": http})
        code, found = asked(deployment)
        assert (code, found["http.listen"][0]) == (0, "ok")
        own = f"by this deployment's daemon (process {os.getpid()}), "
        assert own in found["http.listen"][1]
        daemon.cluster_id = "0" * 32
        code, found = asked(deployment)
        assert (code, found["http.listen"][0]) == (1, "problem"), "the daemon of another cluster"


def test_a_folder_that_this_user_may_not_write(tmp_path: Path) -> None:
    deployment = deployed(tmp_path)
    deployment.produce([{"topic": "clicks", "value": None}])
    deployment.data.chmod(0o500)
    (tmp_path / "metadata.db").chmod(0o400)
    try:
        with file_modes_hold():
            code, found = asked(deployment)
    finally:
        deployment.data.chmod(0o700)
    assert (code, outcomes(found, "data folder", "metadata folder")) == (1, ["problem", "problem"])
    assert "may not write" in found["data folder"][1]
    # One cause is reported once.
    assert outcomes(found, "object store", "metadata store") == ["not applicable"] * 2


def test_one_folder_that_this_user_may_not_write_is_one_problem(tmp_path: Path) -> None:
    """Data folder and metadata store are both to be created in it."""
    (tmp_path / "place").mkdir()
    deployment = deployed(
        tmp_path, data={"uri": "place/data"}, metadata={"sqlite": {"path": "place/metadata.db"}}
    )
    (tmp_path / "place").chmod(0o555)
    with file_modes_hold():
        code, found = asked(deployment)
    assert code == 1
    assert [name for name, (outcome, *_) in found.items() if outcome == "problem"] == ["data folder"]
    _, said, remedy = found["data folder"]
    assert said.endswith(f"may not write {tmp_path / 'place'} (data.uri, metadata.sqlite.path)")
    assert str(remedy).startswith("run this as the user ")
    for name in ("metadata folder", "object store", "metadata store"):
        assert found[name][:2] == ("not applicable", "the check `data folder` has the reason")


def test_places_that_are_absent(tmp_path: Path) -> None:
    places = {"data": {"uri": "not/mounted"}, "metadata": {"sqlite": {"path": "gone/metadata.db"}}}
    code, found = asked(deployed(tmp_path, **places))
    assert (code, outcomes(found, "data folder", "metadata folder")) == (1, ["problem", "problem"])
    assert "mount" in str(found["data folder"][2])


def rest(port: int, **more: Any) -> list[dict[str, Any]]:
    uri = f"http://127.0.0.1:{port}"
    return [{"name": "local", "type": "rest", "uri": uri, "token": {"file": "secret"}, **more}]


def test_a_catalog_that_is_away_or_silent(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    code, found = asked(deployed(tmp_path, catalogs=rest(free_port(), request_timeout="2s")))
    assert (code, found["catalog local"][0]) == (2, "unknown")
    assert found["clock"][0] == "unknown"
    with silent() as port:
        code, found = asked(deployed(tmp_path, catalogs=rest(port, request_timeout="2s")))
        assert (code, found["catalog local"][0]) == (2, "unknown")
        began_s = SystemClock().monotonic_s()
        code, found = asked(deployed(tmp_path, catalogs=rest(port, request_timeout="120s")), "--timeout", "2")
        took_s = SystemClock().monotonic_s() - began_s
    assert (code, found["catalog local"][:2]) == (2, ("unknown", "no result within 2 s"))
    assert found["metadata store"][0] == "ok", "the others have their results"
    assert took_s < 100, "the catalog's own limit is 120 s"


def test_a_schema_registry(tmp_path: Path) -> None:
    topics = [{"name": "orders", "partitions": 1, "value": {"subject": "orders-value", "message": "a.B"}}]
    (tmp_path / "secret").write_text(SECRET)
    with RegistryServer() as server:
        auth = {"username": "me", "password": {"file": "secret"}}
        confluent = {"url": server.url, "auth": auth, "timeout": "2s", "attempts_max": 1}
        deployment = deployed(tmp_path, topics=topics, schema_registry={"confluent": confluent})
        code, found = asked(deployment)
        assert (code, found["schema registry"][0]) == (0, "warning")
        assert "no subject orders-value" in found["schema registry"][1]
        server.add("orders-value", 1, 1, 'syntax = "proto3"; package a; message B {}')
        code, found = asked(deployment)
        assert (code, found["schema registry"][0], found["clock"][0]) == (0, "ok", "ok")
        assert "within a second of the schema registry" in found["clock"][1]
        plain = deployed(tmp_path, schema_registry={"confluent": confluent}, topics=[])
        assert asked(plain)[1]["schema registry"][0] == "ok", "without subjects it is asked for its types"
    code, found = asked(deployment)
    assert (code, outcomes(found, "schema registry", "clock")) == (2, ["unknown", "unknown"])


@pytest.mark.parametrize(
    ("stated", "outcome", "said"),
    [
        ("Sun, 06 Nov 1994 08:49:37 GMT", "problem", "s ahead of the schema registry"),
        ("Fri, 01 Jan 2100 00:00:00 GMT", "warning", "s behind the schema registry"),
        ("soon", "unknown", "it states no time"),
    ],
)
def test_a_wrong_clock(stated: str, outcome: str, said: str, tmp_path: Path) -> None:
    with dated(stated) as url:
        confluent = {"url": url, "timeout": "2s", "attempts_max": 1}
        _, found = asked(deployed(tmp_path, schema_registry={"confluent": confluent}))
    assert found["clock"][0] == outcome
    assert said in found["clock"][1]


def test_a_wrong_configuration(tmp_path: Path) -> None:
    deployment = deployed(tmp_path)
    (tmp_path / "secret").write_text(SECRET)
    deployment.write(deployment.document() | {"cluster": "a b", "nonsense": SECRET, "catalogs": rest(1)})
    code, found = asked(deployment)
    assert (code, found["configuration"][0]) == (1, "problem")
    assert "nonsense" in found["configuration"][1]
    assert "cluster" in found["configuration"][1]
    assert outcomes(found, "java", "duckdb", "scratch folder") == ["ok"] * 3
    assert outcomes(found, "http.listen", "catalogs") == ["not applicable"] * 2
    assert "the default settings need" in found["memory"][1]
    shown = deployment.cli("doctor").out.splitlines()
    assert shown[-2].startswith("not checked: schemas, http.listen, ")
    assert "not applicable" not in "".join(shown)
    assert shown[-1].endswith(" 11 not checked")
    deployment.config.write_text("a: [")
    assert asked(deployment)[0] == 1
    deployment.config.write_bytes(b"\x7fELF\xff")
    code, found = asked(deployment)
    assert (code, found["configuration"][2]) == (
        1,
        "name the configuration file with -c FILE or ARCHIVER_CONFIG",
    )
    deployment.config.unlink()
    code, found = asked(deployment)
    assert (code, "docs/quickstart.md" in str(found["configuration"][2])) == (1, True)


def test_a_schema_file_without_its_message(tmp_path: Path) -> None:
    value = {"descriptor_set": "shop.binpb", "message": "shop.Nothing"}
    topics = [{"name": "orders", "partitions": 1, "value": value}]
    code, found = asked(deployed(tmp_path, topics=topics))
    assert (code, outcomes(found, "configuration", "schemas")) == (1, ["ok", "problem"])
    assert "shop.Nothing" in found["schemas"][1]


def test_no_java_and_no_duckdb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deployment = deployed(tmp_path)
    environ = deployment.environ()
    environ |= {"PATH": str(tmp_path), "JAVA_HOME": ""}
    monkeypatch.setattr(Deployment, "environ", lambda *_: environ)
    monkeypatch.setitem(sys.modules, "duckdb", None)
    code, found = asked(deployment)
    assert (code, outcomes(found, "java", "duckdb")) == (1, ["problem", "warning"])
    assert "install OpenJDK 17 or 21" in str(found["java"][2])
    assert "pip install 'stream-archiver[query]'" in str(found["duckdb"][2])


def test_a_check_that_fails_unexpectedly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError(SECRET)

    monkeypatch.setattr(command, "readiness", broken)
    (tmp_path / "secret").write_text(SECRET)
    with silent() as port:
        deployment = deployed(
            tmp_path,
            http={"listen": f"127.0.0.1:{port}"},
            catalogs=rest(free_port(), request_timeout="1s"),
            topics=[{"name": "kept", "partitions": 1}],
        )
        assert deployment.cli("topics", "create", "kept").code == 0
        code, found = asked(deployment)
    assert (code, found["http.listen"][:2]) == (
        2,
        ("unknown", "the check failed unexpectedly: ZeroDivisionError: ***"),
    )
    assert found["catalog local"][0] == "unknown", "also a catalog that no topic uses"


@pytest.mark.slow
def test_a_bucket_is_tried_and_left_empty(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "id").write_text(ACCESS_KEY_ID)
    (tmp_path / "d" / "key").write_text(SECRET_ACCESS_KEY)
    keys = {"access_key_id": {"file": "id"}, "secret_access_key": {"file": "key"}}
    with S3Server(tmp_path / "s3", signed=False) as server, S3Faults(server) as faults:
        bucket = server.new_bucket()
        data = {"uri": f"s3://{bucket}/pre", "endpoint": faults.uri, "region": REGION, "path_style": True}
        deployment = deployed(tmp_path / "d", data={**data, **keys, "request_timeout": "5s"})
        code, found = asked(deployment)
        assert code == 0, found
        assert outcomes(found, "object store", "bucket guarantees", "clock") == ["ok"] * 3
        assert outcomes(found, "data folder") == ["not applicable"]
        faults.ignoring = ("put",)
        code, found = asked(deployment)
        assert (code, found["bucket guarantees"][0]) == (1, "problem")
        assert "two writers could destroy each other's data" in found["bucket guarantees"][1]
        assert server.client().list_objects_v2(Bucket=bucket).get("KeyCount") == 0
    code, found = asked(deployment)
    assert (code, outcomes(found, "object store", "bucket guarantees")) == (2, ["unknown", "unknown"])


@pytest.mark.slow
def test_etcd_is_asked_and_never_written(tmp_path: Path) -> None:
    with Etcd(tmp_path / "server") as server:
        etcd = {"addresses": [server.address], "state": "state", "request_timeout": "2s"}
        deployment = deployed(tmp_path / "d", metadata={"etcd": etcd})
        code, found = asked(deployment)
        assert outcomes(found, "metadata folder", "metadata store") == ["ok", "ok"]
        assert "nothing was written" in found["metadata store"][1]
        # etcd states no time, and is on another machine as a rule.
        assert (code, found["clock"][0]) == (2, "unknown")
        assert not (tmp_path / "d" / "state").exists()
    assert asked(deployment)[1]["metadata store"][0] == "unknown"


def test_interrupted_and_wrong_usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deployment = deployed(tmp_path)
    assert deployment.cli("doctor", "--timeout", "0").code == 3
    assert deployment.cli("doctor", "more").code == 3

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("archiver.doctor.run.run_checks", interrupt)
    done = deployment.cli("doctor")
    assert (done.code, done.err) == (130, "interrupted; nothing was changed\n")
