"""Does `config check --connect` report on data folder, bucket, metadata store and source clusters, and leave
nothing behind?"""

from __future__ import annotations

import socket
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from archiver.config.settings import load_settings
from archiver.log.open import open_metadata
from archiver.log.sqlite import SqliteLogStore, tails
from archiver.log.store import Appended
from archiver.objects.paths import store_probe_key
from archiver.runtime.clock import SystemClock
from archiver.runtime.errors import InvalidInput
from archiver.runtime.ids import SystemIds
from tests.support.builders.deployment import Deployment, Done
from tests.support.log.etcd_server import Etcd, User, enable_auth
from tests.support.objects.s3_faults import S3Faults
from tests.support.objects.s3_server import ACCESS_KEY_ID, REGION, SECRET_ACCESS_KEY, S3Server
from tests.support.process.privileges import file_modes_hold

Found = dict[str, tuple[str, str]]
TOPICS = [{"name": "kept", "partitions": 1}]
ROOT, OURS = User("root", "of the root"), User("archiver", "of the archiver")


def deployed(folder: Path, **overrides: Any) -> Deployment:
    return Deployment(folder, overrides={"catalogs": [], "topics": TOPICS, **overrides})


def asked(deployment: Deployment, part: str, *more: str) -> tuple[int, Found]:
    """The exit code and the findings on that part: (verdict, words) by what was checked."""
    done = deployment.cli("config", "check", "--connect", "--output", "json", *more)
    no_secret(done)
    assert done.err == ""
    document = done.json()[part]
    (one,) = document if isinstance(document, list) else [document]
    return done.code, {item["check"]: (item["verdict"], item["told"]) for item in one["findings"]}


def verdicts(found: Found) -> dict[str, str]:
    return {check: verdict for check, (verdict, _) in found.items()}


def no_secret(done: Done) -> None:
    assert SECRET_ACCESS_KEY not in done.out + done.err
    assert OURS.password not in done.out + done.err


def files(folder: Path) -> dict[Path, bytes]:
    return {
        path: path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith("-shm")
    }


# folder and SQLite


def test_before_the_first_start_nothing_is_made(tmp_path: Path) -> None:
    deployment = deployed(tmp_path)
    before = files(tmp_path)
    for more in ((), ("--probe",)):
        code, found = asked(deployment, "data", *more)
        assert (code, verdicts(found)) == (0, {"reachable": "note"})
        code, found = asked(deployment, "metadata", *more)
        assert (code, verdicts(found)) == (0, {"reachable": "note"})
    assert files(tmp_path) == before
    assert not deployment.data.exists()


def test_a_deployment_in_use_is_only_read_and_the_probe_is_removed(tmp_path: Path) -> None:
    deployment = deployed(tmp_path)
    assert deployment.cli("topics", "create", "kept").code == 0
    before = files(tmp_path)
    code, found = asked(deployment, "data")
    assert (code, verdicts(found)) == (0, {"reachable": "fine", "cluster": "fine"})
    code, found = asked(deployment, "metadata", "--probe")
    assert (code, verdicts(found)) == (0, {"reachable": "fine"})
    assert "entries in the intake log" in found["reachable"][1]
    code, found = asked(deployment, "data", "--probe")
    assert (code, verdicts(found)) == (
        0,
        {"reachable": "fine", "cluster": "fine", "conditional create": "fine", "removal": "fine"},
    )
    assert files(tmp_path) == before
    shown = deployment.cli("config", "check", "--connect")
    assert f"data {deployment.data.as_uri()} (folder): fine\n  fine   reachable: " in shown.out
    assert f"metadata {tmp_path}/metadata.db (sqlite): fine\n" in shown.out


def test_a_database_in_use_is_read_up_to_its_newest_entry(tmp_path: Path) -> None:
    path = tmp_path / "logs.db"
    store = SqliteLogStore(path, 5.0, 2**20)
    log = store.log("intake")
    for number in range(3):
        assert log.append(number, b"x") is Appended.OK
    assert tails(path, 5.0) == {"intake": 3}, "while it is open, from the WAL"
    log.trim(2)
    store.close()
    before = sorted(tmp_path.iterdir())
    assert tails(path, 5.0) == {"intake": 3}
    assert sorted(tmp_path.iterdir()) == before, "nothing is made to read it"


def test_places_that_cannot_be_used(tmp_path: Path) -> None:
    code, found = asked(deployed(tmp_path / "a", data={"uri": "not/mounted"}), "data")
    assert (code, verdicts(found)) == (2, {"reachable": "untold"})
    code, found = asked(
        deployed(tmp_path / "b", metadata={"sqlite": {"path": "not/mounted/metadata.db"}}), "metadata"
    )
    assert (code, verdicts(found)) == (2, {"reachable": "untold"})
    other = deployed(tmp_path / "c")
    with sqlite3.connect(tmp_path / "c" / "metadata.db") as connection:
        connection.execute("create table mine (x)")
    connection.close()
    code, found = asked(other, "metadata")
    assert (code, verdicts(found)) == (1, {"reachable": "wrong"})
    assert "not archiver metadata" in found["reachable"][1]
    (tmp_path / "c" / "metadata.db").write_bytes(
        b"no database at all, but longer than a header of SQLite's" * 20
    )
    assert asked(other, "metadata")[0] == 1


def test_a_data_folder_of_another_cluster_is_not_probed(tmp_path: Path) -> None:
    deployment = deployed(tmp_path)
    assert deployment.cli("topics", "create", "kept").code == 0
    deployment.write(deployment.document() | {"cluster": "other"})
    before = files(deployment.data)
    code, found = asked(deployment, "data", "--probe")
    assert (code, verdicts(found)) == (1, {"reachable": "fine", "cluster": "wrong"})
    assert files(deployment.data) == before


def test_a_database_that_this_user_may_not_write(tmp_path: Path) -> None:
    deployment = deployed(tmp_path)
    assert deployment.cli("topics", "create", "kept").code == 0
    path = tmp_path / "metadata.db"
    path.chmod(0o444)
    with file_modes_hold():
        code, found = asked(deployment, "metadata")
    assert (code, found["reachable"][0]) == (1, "wrong")
    assert "may not write" in found["reachable"][1]


def test_a_probe_has_a_key_of_its_own() -> None:
    assert (
        store_probe_key("Archiver_Probe_0123456789abcdef") == "probe/Archiver_Probe_0123456789abcdef.object"
    )
    with pytest.raises(InvalidInput, match="no name of a probe"):
        store_probe_key("../cluster")


# a bucket


@pytest.fixture(scope="module")
def unsigned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3"), signed=False) as server:
        yield server


def in_bucket(folder: Path, endpoint: str, bucket: str) -> Deployment:
    folder.mkdir()
    (folder / "id").write_text(ACCESS_KEY_ID)
    (folder / "secret").write_text(SECRET_ACCESS_KEY)
    keys = {"access_key_id": {"file": "id"}, "secret_access_key": {"file": "secret"}}
    data = {"uri": f"s3://{bucket}/pre", "endpoint": endpoint, "region": REGION, "path_style": True, **keys}
    return deployed(folder, data={**data, "connect_timeout": "1s", "request_timeout": "5s"})


@pytest.mark.slow
def test_a_bucket(unsigned: S3Server, tmp_path: Path) -> None:
    bucket = unsigned.new_bucket()
    with S3Faults(unsigned) as faults:
        deployment = in_bucket(tmp_path / "a", faults.uri, bucket)
        code, found = asked(deployment, "data")
        assert (code, verdicts(found)) == (0, {"reachable": "fine", "cluster": "note"})
        assert {kind for kind, count in faults.counts().items() if count} == {"identity", "list"}, (
            "reads only"
        )
        code, found = asked(deployment, "data", "--probe")
        assert (code, verdicts(found)) == (
            0,
            {"reachable": "fine", "cluster": "note", "conditional create": "fine", "removal": "fine"},
        )
        faults.ignoring = ("put",)
        code, found = asked(deployment, "data", "--probe")
        assert (code, verdicts(found)["conditional create"], verdicts(found)["removal"]) == (
            1,
            "wrong",
            "fine",
        )
        assert "two writers could destroy each other's data" in found["conditional create"][1]
    assert unsigned.client().list_objects_v2(Bucket=bucket).get("KeyCount") == 0


@pytest.mark.slow
def test_a_bucket_that_is_missing_or_away(unsigned: S3Server, tmp_path: Path) -> None:
    code, found = asked(in_bucket(tmp_path / "a", unsigned.uri, "no-such-bucket"), "data", "--probe")
    assert (code, verdicts(found)) == (1, {"reachable": "wrong"})
    code, found = asked(
        in_bucket(tmp_path / "b", f"http://127.0.0.1:{closed_port()}", "bucket"), "data", "--probe"
    )
    assert (code, verdicts(found)) == (2, {"reachable": "untold"})


def closed_port() -> int:
    """A loopback port at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


# etcd


def on_etcd(folder: Path, address: str, **more: Any) -> Deployment:
    etcd = {"addresses": [address], "state": "state", "request_timeout": "2s", **more}
    return deployed(folder, metadata={"etcd": etcd})


@pytest.mark.slow
def test_etcd_is_asked_and_never_written(tmp_path: Path) -> None:
    with Etcd(tmp_path / "server") as server:
        deployment = on_etcd(tmp_path / "d", server.address)
        for more in ((), ("--probe",)):
            code, found = asked(deployment, "metadata", *more)
            assert (code, found["reachable"][0]) == (0, "note")
        assert not (tmp_path / "d" / "state").exists()
        assert deployment.cli("topics", "create", "kept").code == 0
        revision = revision_of(deployment)
        code, found = asked(deployment, "metadata", "--probe")
        assert (code, verdicts(found)) == (0, {"state folder": "fine", "reachable": "fine", "write": "fine"})
        assert "in the intake log" in found["reachable"][1]
        assert revision_of(deployment) == revision
    code, found = asked(deployment, "metadata")
    assert (code, verdicts(found)) == (2, {"state folder": "fine", "reachable": "untold"})


def revision_of(deployment: Deployment) -> int:
    """How many writes the etcd of a deployment has seen."""
    settings = load_settings(deployment.config, {})
    store: Any = open_metadata(settings.metadata, 2**20, SystemClock(), SystemIds())
    revision = int(store.cluster._revision)
    store.close()
    return revision


@pytest.mark.slow
def test_a_user_of_etcd_who_may_only_read(tmp_path: Path) -> None:
    with Etcd(tmp_path / "server") as server:
        enable_auth(server, ROOT, OURS, "/archiver", read_only=True)
        (tmp_path / "d").mkdir()
        (tmp_path / "d" / "password").write_text(OURS.password)
        deployment = on_etcd(tmp_path / "d", server.address, user=OURS.name, password={"file": "password"})
        code, found = asked(deployment, "metadata")
        assert (code, found["reachable"][0]) == (0, "note")
        code, found = asked(deployment, "metadata", "--probe")
        assert (code, found["write"][0]) == (1, "wrong")
        assert "grant it readwrite" in found["write"][1]


# a Kafka source


def test_a_source_that_is_away_is_reported_within_its_timeout(tmp_path: Path) -> None:
    kafka = {
        "name": "upstream",
        "brokers": f"127.0.0.1:{closed_port()}",
        "topics": "orders",
        "request_timeout": "1s",
    }
    deployment = deployed(tmp_path, sources=[{"kafka": kafka}])
    began_s = SystemClock().monotonic_s()
    code, found = asked(deployment, "sources")
    assert SystemClock().monotonic_s() - began_s < 20
    assert (code, verdicts(found)) == (2, {"reachable": "untold"})
    assert "Connection refused" in found["reachable"][1]
    assert "source upstream (kafka): untold\n" in deployment.cli("config", "check", "--connect").out
