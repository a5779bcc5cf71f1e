"""The image's health check against a real port: without TLS, with it, with client certificates; and against
ports that are not alive.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from tests.support.builders.deployment import Deployment
from tests.support.log.etcd_certificates import Certificates, make_certificates
from tests.support.process.web import Daemon

CHECK = Path(__file__).resolve().parents[2] / "deploy" / "healthcheck.py"
NAMES = ("cert_file", "key_file", "client_ca_file")


def checked(config: Path) -> tuple[int, str]:
    """The exit code and the output; the check does not run in the configuration's folder."""
    environ = {**os.environ, "ARCHIVER_CONFIG": str(config)}
    done = subprocess.run(
        [sys.executable, str(CHECK)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environ,
        cwd="/",
    )
    return done.returncode, done.stdout + done.stderr


def written(folder: Path, listen: str, tls: Mapping[str, str] | None) -> Path:
    config = folder / "archiver.yaml"
    config.write_text(yaml.safe_dump({"cluster": "c", "http": {"listen": listen, "tls": tls}}))
    return config


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates") / "tls")


@pytest.mark.parametrize("speaks", [(), ("cert_file", "key_file"), NAMES], ids=["http", "tls", "clients"])
def test_the_health_check_follows_the_port(
    tmp_path: Path, certificates: Certificates, speaks: tuple[str, ...]
) -> None:
    paths = dict(
        zip(NAMES, (certificates.server, certificates.server_key, certificates.authority), strict=True)
    )
    tls = {name: str(paths[name]) for name in speaks} or None
    relative = {name: os.path.relpath(path, tmp_path) for name, path in (tls or {}).items()} or None
    with Daemon(Deployment(tmp_path / "d"), tls=tls) as daemon:
        port = daemon.address[1]
        for listen in (f"127.0.0.1:{port}", f"0.0.0.0:{port}"):
            assert checked(written(tmp_path, listen, relative)) == (0, "/healthz answers 200\n")
        other = None if tls else {name: str(paths[name]) for name in NAMES}
        code, _ = checked(written(tmp_path, f"127.0.0.1:{port}", other))
        assert code == 1, "it was asked as the configuration says, and not as it happens to speak"
        daemon.alive = False
        assert checked(written(tmp_path, f"127.0.0.1:{port}", relative)) == (1, "/healthz answers 503\n")
    code, said = checked(written(tmp_path, f"127.0.0.1:{port}", None))
    assert (code, said) == (1, "ConnectionRefusedError: [Errno 111] Connection refused\n")


def test_a_health_check_that_cannot_know_where_to_ask_says_so(tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("http: [")
    for config, error in (
        (tmp_path / "nowhere.yaml", "FileNotFoundError"),
        (tmp_path / "broken.yaml", "ParserError"),
    ):
        code, said = checked(config)
        assert (code, said.partition(":")[0]) == (1, error)
        assert "Traceback" not in said
