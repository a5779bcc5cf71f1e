"""A daemon whose Kafka port is taken, and then free: readiness, metrics, page and status."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from tests.support.builders.deployment import Deployment
from tests.support.kafka.wire import WireClient
from tests.support.process.processes import until
from tests.support.process.serving import Served, quick

pytestmark = pytest.mark.timeout(240)


@pytest.mark.slow
def test_a_taken_kafka_port_is_shown_until_it_is_free(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "d")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        host, port = taken.getsockname()
        document = quick(deployment.document())
        document["kafka"] = {"listen": f"{host}:{port}"}
        deployment.write(document)
        with Served(deployment, "--roles", "intake", scratch=tmp_path / "scratch") as daemon:
            until("the check fails", lambda: b"Kafka port" in daemon.get("/readyz").body)
            # HTTP intake works, so the daemon stays ready.
            daemon.until_ready()
            checks = {check["name"]: check["ok"] for check in daemon.get("/readyz").json()["checks"]}
            assert checks["Kafka port"] is False
            metrics = _metrics(daemon)
            assert "archiver_kafka_up 0.0" in metrics and "archiver_kafka_registered 0.0" in metrics
            assert 'archiver_dependency_up{dependency="Kafka port"} 0.0' in metrics
            assert f"{host}:{port} is closed" in daemon.get("/").body.decode()
            # Before, the port gives no status.
            daemon.until_logged("serving as intake")
            shown = _shown(daemon)
            assert (shown["address"], shown["registered"]) == (None, False)
            assert "kafka.listen" in shown["closed_because"]
            taken.close()
            until("the port is open", lambda: b"Kafka port" not in daemon.get("/readyz").body)
            with WireClient((host, port)):
                until(
                    "a client is connected",
                    lambda: "archiver_kafka_connections 1.0" in _metrics(daemon),
                )
                until("it is registered", lambda: "archiver_kafka_registered 1.0" in _metrics(daemon))
                shown = _shown(daemon)
            assert (shown["address"], shown["registered"]) == (f"{host}:{port}", True)
            assert (shown["closed_because"], shown["connections"]) == (None, 1)
            assert [one["port"] for one in shown["live"]] == [port]
            assert 'dependency="Kafka port"' not in _metrics(daemon)
            assert f"live daemons: {host}:{port}" in daemon.get("/").body.decode()
            assert daemon.stop() == 0


def _shown(daemon: Served) -> Any:
    """The group `kafka` of the status document."""
    answer = daemon.request("GET", "/v1/admin/status", headers={"Authorization": f"Bearer {daemon.token}"})
    assert answer.status == 200, answer
    return answer.json()["daemon"]["kafka"]


def _metrics(daemon: Served) -> str:
    return daemon.get("/metrics").body.decode()
