"""The files of `deploy`: the tools that can judge them accept them, and they agree with each other and with
the settings."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from grpc_tools import protoc
from pydantic import BaseModel, SecretStr

from archiver.config.daemon import HttpTlsSettings
from archiver.config.kafka_listener import KafkaAclSettings, KafkaListenerSettings, KafkaSaslSettings
from archiver.config.metadata import EtcdSettings, EtcdTlsSettings
from archiver.config.settings import (
    OtlpSettings,
    Settings,
    TestingSettings,
    TopicArchiveSettings,
    load_settings,
)
from archiver.config.types import parse_duration
from archiver.runtime.errors import ConfigInvalid
from tests.support.deploy.dockerfile import BUILD_STAGE, copied_sources, of, read_dockerfile
from tests.support.deploy.installation import FILES, NOT_RUN, OPERATIONS, PROGRAM, ROOT, SYSTEMD, section
from tests.support.deploy.unit_file import Unit
from tests.support.pages import blocks

DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "systemd/stream-archiver.service"
EXAMPLE = DEPLOY / "config/archiver.example.yaml"
MINIMAL = DEPLOY / "config/minimal.example.yaml"
CONTAINER = DEPLOY / "config/container/archiver.yaml"
CREDENTIALS = "/run/credentials/stream-archiver.service/"
STATE = "/var/lib/stream-archiver/"
needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="this machine has no systemd-analyze"
)


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *arguments], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.fixture
def unit() -> Unit:
    return Unit(UNIT)


# The unit


@needs_systemd
def test_the_unit_is_hardened() -> None:
    """3.0 or better."""
    done = analyze("security", "--offline=true", "--threshold=30", str(UNIT))
    assert done.returncode == 0, done.stdout + done.stderr
    rating = re.search(r"Overall exposure level for stream-archiver.service: (\d+\.\d)", done.stdout)
    assert rating is not None
    assert 0 < float(rating[1]) <= 3.0


@needs_systemd
def test_the_rating_can_fail(tmp_path: Path) -> None:
    weak = tmp_path / "stream-archiver.service"
    weak.write_text(
        re.sub(
            r"^(Protect|Restrict|SystemCall|Capability|Private).*\n", "", UNIT.read_text(), flags=re.MULTILINE
        )
    )
    assert analyze("security", "--offline=true", "--threshold=30", str(weak)).returncode != 0


@needs_systemd
def test_every_word_of_the_unit_is_known(tmp_path: Path) -> None:
    program = tmp_path / "archiver"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    there = tmp_path / UNIT.name
    text = UNIT.read_text().replace("/opt/stream-archiver/bin/archiver", str(program))
    there.write_text(text)
    done = analyze("verify", "--recursive-errors=yes", str(there))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    there.write_text(text.replace("KillMode=mixed", "KillMode=gently"))
    assert "gently" in analyze("verify", "--recursive-errors=yes", str(there)).stderr


def test_every_exception_from_hardening_is_explained(unit: Unit) -> None:
    """A directive that leaves something open stands below a comment."""
    lines = UNIT.read_text().splitlines()
    for name in (
        "MemoryDenyWriteExecute",
        "PrivateNetwork",
        "RestrictAddressFamilies",
        "ProcSubset",
        "IPAddressDeny",
        "SystemCallFilter",
    ):
        (first, *_) = [number for number, line in enumerate(lines) if line.startswith(f"{name}=")]
        assert lines[first - 1].startswith("#"), f"say why {lines[first]}"
    closed = [
        line.partition("=")[0]
        for line in lines
        if re.fullmatch(r"(?:Protect|Private)\w+=(?:yes|strict)", line)
    ]
    assert {"ProtectSystem", "ProtectHome", "PrivateTmp", "PrivateDevices", "PrivateUsers"} <= set(closed)


def test_the_unit_gives_the_daemon_its_time(unit: Unit) -> None:
    grace = load_settings(EXAMPLE, {}).daemon.shutdown_grace
    assert grace + 15 <= unit.seconds("TimeoutStopSec")
    # The service manager must not stop the JVM and the workers before the daemon does.
    assert unit.one("KillMode") == "mixed"
    assert unit.one("Type") == "notify"
    assert unit.one("Restart") == "on-failure"
    assert unit.one("ExecReload") == "/bin/kill -HUP $MAINPID"
    watch = load_settings(EXAMPLE, {}).daemon.watch_interval
    assert unit.seconds("WatchdogSec") >= 4 * watch


def test_the_unit_runs_the_command_that_is_there(unit: Unit) -> None:
    command = unit.one("ExecStart").split()
    assert command[:2] == ["/opt/stream-archiver/bin/archiver", "serve"]
    assert "/etc/stream-archiver/archiver.yaml" in command


def test_what_the_example_writes_lies_where_the_service_may_write(unit: Unit) -> None:
    assert f"/var/lib/{unit.one('StateDirectory')}/" == STATE
    for path in (EXAMPLE, MINIMAL, CONTAINER):
        settings = load_settings(path, {})
        assert settings.data.uri.startswith(f"file://{STATE}")
        assert settings.metadata.sqlite is not None
        assert str(settings.metadata.sqlite.path).startswith(STATE)
        for catalog in settings.catalogs:
            assert catalog.properties()["uri"].startswith(f"sqlite:///{STATE}")


def test_the_unit_lets_the_example_talk_as_far_as_it_must(unit: Unit) -> None:
    assert unit.one("IPAddressAllow") == "localhost"
    for path in (EXAMPLE, MINIMAL):
        assert load_settings(path, {}).http.listen == "127.0.0.1:8787"
    assert {"AF_INET", "AF_UNIX"} <= set(unit.one("RestrictAddressFamilies").split())


def test_the_user_is_one(unit: Unit) -> None:
    (line,) = [
        line
        for line in (DEPLOY / "systemd/stream-archiver.sysusers.conf").read_text().splitlines()
        if not line.startswith("#")
    ]
    assert line.split()[:2] == ["u", unit.one("User")]
    assert unit.one("User") == unit.one("Group")


# The configurations


@pytest.mark.parametrize("path", [EXAMPLE, MINIMAL, CONTAINER], ids=lambda path: path.stem)
def test_a_configuration_is_valid(path: Path) -> None:
    settings = load_settings(path, {})
    assert settings.topics
    assert load_settings(path, {"ARCHIVER_ADMIN_TOKEN": "x" * 16}) == settings, (
        "it needs nothing of the environment"
    )


def test_the_example_names_every_key() -> None:
    text = EXAMPLE.read_text()
    named = set(re.findall(r"(?:^|[{\s,#`])([a-z_]+):", text, re.MULTILINE))
    kinds = [field.annotation for field in Settings.model_fields.values()]
    groups: list[type[BaseModel]] = [Settings]
    groups += [
        kind
        for kind in kinds
        if isinstance(kind, type) and issubclass(kind, BaseModel) and kind is not TestingSettings
    ]
    groups += [HttpTlsSettings, OtlpSettings, EtcdSettings, EtcdTlsSettings]
    groups += [KafkaListenerSettings, KafkaSaslSettings, KafkaAclSettings]
    assert len(groups) > 10
    wanted = {name for group in groups for name in group.model_fields}
    # Templates are entries of `topics` with a pattern.
    assert wanted - {"testing", "templates"} - named == set()
    assert "pattern" in named
    assert "testing" not in named, "it is no example"


def test_the_example_shows_the_defaults() -> None:
    """An unchanged copy of the example changes no default."""
    example, plain = load_settings(EXAMPLE, {}), load_settings(MINIMAL, {})
    same = (
        "roles",
        "schema_registry",
        "spark",
        "http",
        "metrics",
        "telemetry",
        "daemon",
        "log",
        "intake",
        "archive",
        "cleanup",
        "sources",
    )
    for name in same:
        assert getattr(example, name) == getattr(plain, name), name
    assert example.data == plain.data
    assert example.metadata == plain.metadata
    assert example.catalogs == plain.catalogs
    for topic in example.topics:
        assert {name for name, given in topic.archive if given != getattr(TopicArchiveSettings(), name)} <= {
            "kind", "catalog", "table", "idle_max",
        }  # fmt: skip


def test_the_descriptor_set_is_made_of_the_proto(tmp_path: Path) -> None:
    folder = DEPLOY / "config"
    made = tmp_path / "orders.binpb"
    code = protoc.main(
        [
            "protoc",
            f"-I{folder}",
            "--include_imports",
            f"--descriptor_set_out={made}",
            str(folder / "orders.proto"),
        ]
    )
    assert code == 0
    assert made.read_bytes() == (folder / "orders.binpb").read_bytes()


def test_a_credential_is_found_where_the_unit_has_it_put(unit: Unit, tmp_path: Path) -> None:
    """The example's own lines about secrets, switched on, with another folder in the place of systemd's."""
    text = EXAMPLE.read_text()
    secret = "  # admin_token: { file: "
    assert f"{secret}{CREDENTIALS}admin-token }}" in text
    assert unit.one("LoadCredential") == "admin-token:stream-archiver.admin-token"
    assert Path(CREDENTIALS).name == UNIT.name
    there = tmp_path / "archiver.yaml"
    there.write_text(text.replace(secret, secret.replace("# ", "")).replace(CREDENTIALS, f"{tmp_path}/"))
    (tmp_path / "orders.binpb").write_bytes((DEPLOY / "config/orders.binpb").read_bytes())
    with pytest.raises(ConfigInvalid, match=r"the secret's file .*admin-token cannot be read"):
        load_settings(there, {})
    (tmp_path / "admin-token").write_text("planted-by-the-test\n")
    assert load_settings(there, {}).http.admin_token == SecretStr("planted-by-the-test")


def test_commented_parts_of_the_example_are_valid_too(tmp_path: Path) -> None:
    """The bucket and etcd in place of the folder and the database, of which there is one each."""
    text = (
        EXAMPLE.read_text()
        .replace("sources: []\n", "sources:\n")
        .replace('  uri: "file:///var/lib/stream-archiver/data"\n', "")
    )
    text = re.sub(r"^  sqlite:\n(?:    .*\n)+", "", text, flags=re.MULTILINE)
    lines = [re.sub(r"^(\s*)# (?=\s*(?:- )?[a-z_]+:(?: |$))", r"\1", line) for line in text.splitlines()]
    (tmp_path / "archiver.yaml").write_text("\n".join(lines).replace(CREDENTIALS, f"{tmp_path}/"))
    (tmp_path / "orders.binpb").write_bytes((DEPLOY / "config/orders.binpb").read_bytes())
    secrets = (
        "admin-token",
        "catalog-token",
        "registry",
        "s3-key",
        "s3-secret",
        "s3-token",
        "etcd-password",
        "otlp",
        "kafka-password",
        "produce-token",
        "read-token",
    )
    for name in (*secrets, "ca.pem", "archiver.pem", "archiver.key", "kafka-users.json"):
        (tmp_path / name).write_text("planted-by-the-test")
    settings = load_settings(tmp_path / "archiver.yaml", {})
    assert settings.data.uri == "s3://events/prod"
    assert settings.data.session_token is not None
    etcd = settings.metadata.etcd
    assert etcd is not None
    assert etcd.tls is not None
    for name in ("prefix", "state", "insecure", "request_timeout", "lease_ttl"):
        assert getattr(etcd, name) == EtcdSettings.model_fields[name].default, name
    kafka = settings.kafka
    assert kafka is not None and kafka.authenticates and kafka.acls
    for name, field in KafkaListenerSettings.model_fields.items():
        if name not in ("listen", "advertised", "rack", "tls", "sasl", "users_file", "acls"):
            assert getattr(kafka, name) == field.default, name
    assert [catalog.name for catalog in settings.catalogs] == ["local", "lake"]
    assert [source.kafka is None for source in settings.sources] == [True, False]
    assert settings.http.admin_token is not None
    assert settings.http.produce_token is not None
    assert settings.http.read_token is not None
    assert settings.http.tls is not None
    assert settings.telemetry.otlp is not None
    assert settings.schema_registry.confluent is not None


# The container


def test_the_image_is_built_of_what_there_is() -> None:
    found = read_dockerfile(DEPLOY / "Dockerfile")
    copied = copied_sources(found, BUILD_STAGE)
    assert {"archiver", "intake", "reconcile", "requirements/runtime.lock"} <= set(copied)
    assert [name for name in copied if not (ROOT / name).exists()] == []
    assert copied_sources(found, "") == [], "the last stage takes from the first one only"
    allowed = {
        line[1:]
        for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    assert allowed == set(copied)


def test_the_first_stage_runs_what_a_service_is_installed_with() -> None:
    """So the test of those commands is a test of these."""
    page = [line.removeprefix("sudo ") for line in section(SYSTEMD)[PROGRAM]]
    assert [one.rest() for one in of(read_dockerfile(DEPLOY / "Dockerfile"), "RUN", BUILD_STAGE)] == page


def test_the_image_is_pinned_small_and_nobodys() -> None:
    found = read_dockerfile(DEPLOY / "Dockerfile")
    images = {one.words()[0] for one in found if one.name == "FROM"}
    assert len(images) == 1, "an environment moves only between stages of one image"
    image = images.pop().partition("@")[0]
    assert re.fullmatch(r"python:3\.11\.\d+-slim-bookworm", image), (
        "an official image, and the minor version that tests run on"
    )
    (user,) = of(found, "USER")
    uid = user.text.partition(":")[0]
    assert uid.isdigit()
    assert int(uid) > 0
    java, account = of(found, "RUN")
    assert "openjdk-17-jre-headless" in java.text
    assert "--no-install-recommends" in java.text
    assert java.text.endswith("rm -rf /var/lib/apt/lists/*")
    assert f"--uid {uid} " in account.text
    assert "PIP_NO_CACHE_DIR=1" in of(found, "ENV", BUILD_STAGE)[0].text
    assert [one.text for one in of(found, "STOPSIGNAL")] == ["SIGTERM"]
    labels = of(found, "LABEL")[0].words()
    assert "org.opencontainers.image.version=0.1.0" in labels
    assert 'version = "0.1.0"' in (ROOT / "pyproject.toml").read_text()


def test_the_image_runs_the_service() -> None:
    found = read_dockerfile(DEPLOY / "Dockerfile")
    assert of(found, "ENTRYPOINT")[0].words() + of(found, "CMD")[0].words() == ["entrypoint.sh", "serve"]
    copies = [one.rest() for one in of(found, "COPY", BUILD_STAGE)]
    assert "deploy/entrypoint.sh deploy/healthcheck.py /opt/stream-archiver/bin/" in copies, (
        "where PATH leads"
    )
    assert "ARCHIVER_CONFIG=/etc/stream-archiver/archiver.yaml" in of(found, "ENV")[0].words()
    (health,) = of(found, "HEALTHCHECK")
    assert set(health.flags()) == {"interval", "timeout", "start-period", "retries"}
    assert health.rest() == 'CMD ["python", "/opt/stream-archiver/bin/healthcheck.py"]'


@pytest.fixture
def service() -> dict[str, Any]:
    document = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    assert set(document) == {"name", "services", "volumes"}
    found: dict[str, Any] = document["services"]["archiver"]
    return found


def test_the_container_is_closed(service: dict[str, Any]) -> None:
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert service["user"] == of(read_dockerfile(DEPLOY / "Dockerfile"), "USER")[0].text
    (port,) = service["ports"]
    assert port == "127.0.0.1:8787:8787"
    listen = load_settings(CONTAINER, {}).http.listen
    assert listen == "0.0.0.0:8787"
    assert of(read_dockerfile(DEPLOY / "Dockerfile"), "EXPOSE")[0].text == listen.rpartition(":")[2]


def test_the_container_gives_the_daemon_its_time(service: dict[str, Any]) -> None:
    grace = load_settings(CONTAINER, {}).daemon.shutdown_grace
    assert grace + 15 <= parse_duration(service["stop_grace_period"])
    assert service["restart"] == "unless-stopped"
    assert service["init"] is True


def test_the_container_writes_only_where_it_may(service: dict[str, Any]) -> None:
    data, config = service["volumes"]
    assert data == f"data:{STATE.rstrip('/')}"
    assert config == "${ARCHIVER_CONFIG_FOLDER:-./config/container}:/etc/stream-archiver:ro"
    assert (DEPLOY / "config/container/archiver.yaml").is_file()
    assert [mount.partition(":")[0] for mount in service["tmpfs"]] == ["/tmp"]
    build = service["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).resolve() == DEPLOY / "Dockerfile"
    assert service["image"] == "stream-archiver:0.1.0"


# The page


RUN_ELSEWHERE = {
    "install.md": {SYSTEMD: 5, "Secrets": 1},
    "upgrade.md": {"A service under systemd": 2},
    "backup.md": {
        "Backup": 1,
        "Restore": 2,
        "The logs are older than the objects": 1,
        "The catalog alone": 1,
    },
}
"""`sh` blocks of a section that tests/system/test_installed.py and test_backup_drills.py run, as far as they
can run. The rest need what is named below.
"""


@pytest.mark.parametrize("name", RUN_ELSEWHERE)
def test_every_command_of_the_page_is_run_or_cannot_be(name: str) -> None:
    page = OPERATIONS / name
    headings = re.findall(
        r"^#+ (.+)$",
        re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL),
        re.MULTILINE,
    )
    counted = 0
    for heading in headings:
        for number, commands in enumerate(section(heading, page)):
            counted += 1
            if number < RUN_ELSEWHERE[name].get(heading, 0):
                continue
            left = [
                command for command in commands if command.removeprefix("sudo ").split()[0] not in NOT_RUN
            ]
            assert left in ([], [f"sudo rm -r {' '.join(REMOVED)}"]), f"{heading}: run these in a test"
    assert counted == len(
        [block for block in blocks(page) if block.language == "sh" and "no-run" not in block.options]
    )


REMOVED = (
    "/opt/stream-archiver",
    "/etc/stream-archiver",
    "/etc/systemd/system/stream-archiver.service",
    "/etc/sysusers.d/stream-archiver.conf",
)
"""What removing the program deletes. That is what installing it puts in place; the data are not among it."""


def test_removing_removes_what_was_put_in_place() -> None:
    placed = {
        word for line in section(SYSTEMD)[FILES] for word in line.split()[-1:] if word.startswith("/etc/")
    }
    assert {path for path in placed if not path.startswith("/etc/stream-archiver")} == set(REMOVED[2:])
