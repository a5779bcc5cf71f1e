"""The compose files: Compose's own reader accepts them, and the parts of the whole stack refer to each other.
No container is started."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from archiver.config.settings import load_settings
from tests.support.deploy import deploy_parts
from tests.support.deploy.installation import ROOT

DEPLOY = ROOT / "deploy"
STACK = DEPLOY / "stack"
FILES = (DEPLOY / "compose.yaml", STACK / "compose.yaml")
VALUES = {
    "S3_ACCESS_KEY_ID": "key-of-test",
    "S3_SECRET_ACCESS_KEY": "secret-of-test",
    "GRAFANA_PASSWORD": "word-of-test",
}
OURS = "stream-archiver:0.1.0"
TIMEOUT_S = 60


def compose(path: Path, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [deploy_parts.required("compose"), path]
    clean = {"PATH": os.environ["PATH"], **environ}
    return subprocess.run(
        command, env=clean, cwd=path.parent, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )


def services(path: Path) -> dict[str, dict[str, Any]]:
    """As Compose understands them: variables filled in, paths resolved, short forms written out."""
    done = compose(path, VALUES)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)["services"]
    return found


@pytest.fixture
def stack() -> dict[str, dict[str, Any]]:
    return services(STACK / "compose.yaml")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_compose_takes_the_file(path: Path) -> None:
    assert "archiver" in services(path)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_compose_would_say_what_is_wrong(path: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "compose.yaml"
    for was, becomes in (
        ("read_only: true", "read_onlyy: true"),
        ("stop_grace_period: 90s", "stop_grace_period: [90s]"),
    ):
        text = path.read_text()
        assert was in text
        wrong.write_text(text.replace(was, becomes))
        assert compose(wrong, VALUES).returncode != 0


@pytest.mark.parametrize("missing", VALUES)
def test_nothing_starts_with_a_secret_that_everybody_knows(missing: str) -> None:
    text = (STACK / "compose.yaml").read_text()
    assert set(re.findall(r"\$\{(\w+)", text)) == set(VALUES)
    assert set(re.findall(r"^(\w+)=$", (STACK / ".env.example").read_text(), re.MULTILINE)) == set(VALUES)
    done = compose(STACK / "compose.yaml", {name: value for name, value in VALUES.items() if name != missing})
    assert done.returncode != 0
    assert missing in done.stdout + done.stderr


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_images_are_pinned_ports_are_loopbacks_and_files_are_there(path: Path) -> None:
    for name, service in services(path).items():
        _, _, tag = service["image"].partition("@")[0].rpartition(":")
        assert re.search(r"\d", tag), f"{name}: {service['image']}"
        assert {port["host_ip"] for port in service.get("ports", [])} <= {"127.0.0.1"}
        assert service["cap_drop"] == ["ALL"]
        for volume in service.get("volumes", []):
            if volume["type"] == "bind":
                assert Path(volume["source"]).exists(), f"{name}: {volume['source']}"
                assert volume["read_only"] is True


def test_our_container_is_the_same_in_both() -> None:
    one, other = (services(path)["archiver"] for path in FILES)
    for key in (
        "image",
        "build",
        "user",
        "read_only",
        "tmpfs",
        "cap_drop",
        "security_opt",
        "pids_limit",
        "init",
        "stop_grace_period",
    ):
        assert one[key] == other[key], key
    assert one["image"] == OURS


def test_the_archiver_knows_the_other_services(stack: dict[str, dict[str, Any]]) -> None:
    environ = {name: value for name, value in stack["archiver"]["environment"].items() if value is not None}
    settings = load_settings(STACK / "archiver" / "archiver.yaml", environ)
    assert settings.data.endpoint == "http://s3:9000"
    assert settings.metadata.etcd is not None
    (address,) = settings.metadata.etcd.addresses
    (catalog,) = settings.catalogs
    uri = catalog.properties()["uri"]
    for host in ("s3", address.partition(":")[0], re.fullmatch(r"http://(\w+):8181", uri)[1]):  # type: ignore[index]
        assert host in stack
    bucket = settings.data.uri.removeprefix("s3://").partition("/")[0]
    assert f"s3/{bucket}" in stack["bucket"]["command"][0]
    assert stack["catalog"]["environment"]["CATALOG_WAREHOUSE"] == settings.data.uri
    mounted = {
        volume["target"]: Path(volume["source"])
        for volume in stack["archiver"]["volumes"]
        if volume["type"] == "bind"
    }
    assert mounted == {"/etc/stream-archiver": STACK / "archiver"}
    state = [volume["target"] for volume in stack["archiver"]["volumes"] if volume["type"] == "volume"]
    assert state == [str(settings.metadata.etcd.state)]


def test_trino_reads_what_the_archiver_writes(stack: dict[str, dict[str, Any]]) -> None:
    lines = (STACK / "trino" / "lake.properties").read_text().splitlines()
    properties = dict(line.split("=", 1) for line in lines)
    settings = load_settings(STACK / "archiver" / "archiver.yaml", VALUES)
    assert properties["iceberg.rest-catalog.uri"] == settings.catalogs[0].properties()["uri"]
    assert properties["s3.endpoint"] == settings.data.endpoint
    taken = {found for value in properties.values() for found in re.findall(r"\$\{ENV:(\w+)\}", value)}
    assert taken == set(stack["trino"]["environment"])


def test_prometheus_takes_its_file_and_scrapes_the_archiver(
    stack: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    path = STACK / "prometheus" / "prometheus.yaml"
    mounted = {
        volume["target"]: Path(volume["source"])
        for volume in stack["prometheus"]["volumes"]
        if volume["type"] == "bind"
    }
    text = path.read_text()
    for target, source in mounted.items():
        text = text.replace(f"{target}/", f"{source}/")
    (tmp_path / "prometheus.yaml").write_text(text)
    command: list[str | Path] = [
        deploy_parts.required("promtool"),
        "check",
        "config",
        tmp_path / "prometheus.yaml",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rules found" in done.stdout, "the alert rules are among them"
    (job,) = yaml.safe_load(text)["scrape_configs"]
    ((target,),) = [static["targets"] for static in job["static_configs"]]
    settings = load_settings(STACK / "archiver" / "archiver.yaml", VALUES)
    host, _, port = target.partition(":")
    assert host in stack
    assert host in settings.http.allowed_hosts, "the daemon refuses other names"
    assert port == settings.http.listen.rpartition(":")[2]
    assert f"--config.file={next(iter(mounted))}/{path.name}" in stack["prometheus"]["command"]


def test_grafana_has_its_source_and_its_dashboard(stack: dict[str, dict[str, Any]]) -> None:
    mounted = {volume["target"]: Path(volume["source"]) for volume in stack["grafana"]["volumes"]}
    provisioning = mounted["/etc/grafana/provisioning"]
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in stack
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "stream-archiver.yaml").read_text())[
        "providers"
    ]
    assert [path.name for path in mounted[provider["options"]["path"]].iterdir()] == ["stream-archiver.json"]
