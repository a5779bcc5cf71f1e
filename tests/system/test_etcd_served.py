"""Commands and a daemon whose logs are in etcd: it is away, comes, goes, comes back empty; and it requires
authentication."""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from signal import SIGKILL

import pytest

from tests.support.builders.deployment import Deployment, Done
from tests.support.log.etcd_certificates import make_certificates
from tests.support.log.etcd_server import Etcd, User, enable_auth
from tests.support.process.processes import until
from tests.support.process.serving import Served, quick

pytestmark = pytest.mark.timeout(240)

THREE = '{"value": "AAAA"}\n' * 3
TOPIC = "/v1/topics/clicks/records"


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    with Etcd(tmp_path / "etcd") as server:
        yield server


def deployment_on(etcd: Etcd, folder: Path, **more: object) -> Deployment:
    settings = {
        "addresses": [etcd.address],
        "state": "state",
        "request_timeout": "3s",
        "lease_ttl": "6s",
        **more,
    }
    made = Deployment(folder, overrides={"metadata": {"etcd": settings}})
    made.write(quick(made.document()))
    return made


def produced(deployment: Deployment) -> Done:
    return deployment.run("produce", "--topic", "clicks", stdin=THREE)


@pytest.mark.slow
def test_a_daemon_waits_for_etcd_and_lives_through_its_absence(etcd: Etcd, tmp_path: Path) -> None:
    deployment = deployment_on(etcd, tmp_path / "d")
    etcd.stop()
    with Served(deployment, "--roles", "intake", scratch=tmp_path / "scratch") as daemon:
        daemon.until_logged("waiting for deployment: no member of the metadata store answers")
        assert (daemon.get("/healthz").status, daemon.get("/readyz").status) == (200, 503)
        etcd.start()
        daemon.until_ready()
        assert daemon.post(TOPIC, THREE.encode()).status == 200
        token = deployment.root / "state" / "etcd.admin-token"
        assert stat.S_IMODE(token.stat().st_mode) == 0o600
        etcd.kill()
        until("it is not ready", lambda: not daemon.ready())
        assert daemon.get("/healthz").status == 200, "liveness depends on nothing"
        etcd.start()
        daemon.until_ready()
        assert daemon.post(TOPIC, THREE.encode()).status == 200
        assert daemon.stop() == 0
    done = deployment.run("consume", "--topic", "clicks")
    offsets = {(line["partition"], line["offset"]) for line in done.lines()}
    assert len(done.lines()) == len(offsets) == 6


@pytest.mark.slow
def test_a_daemon_that_ends_while_etcd_hangs_ends_in_time(etcd: Etcd, tmp_path: Path) -> None:
    deployment = deployment_on(etcd, tmp_path / "d")
    with Served(deployment, "--roles", "intake", scratch=tmp_path / "scratch") as daemon:
        daemon.until_ready()
        etcd.pause()
        began_s = time.monotonic()
        daemon.stop()
        assert time.monotonic() - began_s < 60
        etcd.go_on()


def test_a_data_folder_without_its_logs_takes_nothing(etcd: Etcd, tmp_path: Path) -> None:
    """All of etcd's data are lost. First this machine says so, then, where it has forgotten too, the data
    folder."""
    deployment = deployment_on(etcd, tmp_path / "d")
    assert produced(deployment).code == 0
    etcd.stop()
    shutil.rmtree(etcd.folder / "data")
    etcd.start()
    for forget in (False, True):
        if forget:
            shutil.rmtree(deployment.root / "state")
        done = produced(deployment)
        assert done.code == 1, (done.out, done.err)
        assert "put the newest one in place" in done.err
        assert "Traceback" not in done.err


def test_logs_without_their_data_folder_begin_no_other(etcd: Etcd, tmp_path: Path) -> None:
    deployment = deployment_on(etcd, tmp_path / "d")
    assert produced(deployment).code == 0
    shutil.rmtree(deployment.data)
    done = produced(deployment)
    assert done.code == 3, (done.out, done.err)
    assert "has no identity (cluster.json); bring that folder back" in done.err


def test_with_certificates_and_a_user_from_the_configuration(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path / "certificates")
    user = User("archiver", "swordfish")
    with Etcd(tmp_path / "etcd", certificates=certificates) as etcd:
        enable_auth(etcd, User("root", "of the root"), user, "/team/archiver")
        tls = {
            "ca_file": certificates.authority,
            "cert_file": certificates.client,
            "key_file": certificates.client_key,
        }
        who = {"user": user.name, "password": {"env": "ETCD_PASSWORD"}, "prefix": "/team/archiver"}
        deployment = deployment_on(
            etcd, tmp_path / "d", tls={name: str(path) for name, path in tls.items()}, **who
        )
        environ = {"ETCD_PASSWORD": user.password}
        said = [deployment.run("config", what, environ=environ) for what in ("check", "show")]
        said.append(deployment.run("produce", "--topic", "clicks", stdin=THREE, environ=environ))
        assert [done.code for done in said] == [0, 0, 0], said
        assert "is valid: cluster test, 4 topics" in said[0].out
        said.append(
            deployment.run(
                "produce", "--topic", "clicks", stdin=THREE, environ={"ETCD_PASSWORD": "wrong-one"}
            )
        )
        assert said[-1].code == 1
        assert "refuses user archiver" in said[-1].err
        text = "".join(done.out + done.err for done in said)
        assert "swordfish" not in text
        assert "wrong-one" not in text


def test_what_is_unsafe_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    deployment = Deployment(
        tmp_path / "d", overrides={"metadata": {"etcd": {"addresses": ["etcd.example.com:2379"]}}}
    )
    done = deployment.run("config", "check")
    assert done.code == 3
    assert "metadata.etcd.addresses[0]: etcd.example.com:2379 is another machine, and without tls" in done.err


@pytest.mark.slow
@pytest.mark.spark
def test_a_daemon_that_was_killed_and_is_started_again_leads_at_once(etcd: Etcd, tmp_path: Path) -> None:
    """Its lease would keep others from leading for ten minutes."""
    deployment = deployment_on(etcd, tmp_path / "d", lease_ttl="10m")

    def archived(daemon: Served) -> bool:
        return any("archived in" in line["message"] for line in daemon.logged())

    for run in range(2):
        with Served(deployment, scratch=tmp_path / f"scratch-{run}") as daemon:
            daemon.until_ready()
            assert daemon.post(TOPIC, THREE.encode()).status == 200
            until(f"run {run} archives", lambda daemon=daemon: archived(daemon))  # type: ignore[misc]
            if run == 0:
                os.kill(daemon.pid, SIGKILL)
            else:
                assert daemon.stop() == 0
