"""A real daemon whose port speaks TLS, and commands that use it."""

from __future__ import annotations

import http.client
import socket
import ssl
import sys
from pathlib import Path

import pytest

from tests.support.builders.deployment import Deployment
from tests.support.log.etcd_certificates import make_certificates
from tests.support.process.processes import until
from tests.support.process.serving import Served, quick

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for descendants in /proc"),
]


def test_a_daemon_with_a_certificate_is_asked_by_commands(tmp_path: Path) -> None:
    made = make_certificates(tmp_path / "tls")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    deployment = Deployment(tmp_path / "d")
    document = quick(deployment.document())
    document["http"] = {
        "listen": f"127.0.0.1:{port}",
        "tls": {"cert_file": str(made.server), "key_file": str(made.server_key)},
    }
    deployment.write(document)

    def says_ready() -> bool:
        asked = http.client.HTTPSConnection(
            "127.0.0.1", port, timeout=30, context=ssl.create_default_context(cafile=made.authority)
        )
        try:
            asked.request("GET", "/readyz")
            return asked.getresponse().status == 200
        except ConnectionError:
            return False
        finally:
            asked.close()

    with Served(deployment, "--roles", "intake,reconcile", scratch=tmp_path / "scratch") as daemon:
        until("it is ready", says_ready)
        status = deployment.cli("status", "--output", "json").json()
        assert status["daemon"]["address"] == f"127.0.0.1:{port}", status["daemon"]
        done = deployment.cli("clean")
        assert done.code == 0, done.err
        assert "is not asked" not in done.err
        assert daemon.stop() == 0
