"""The installed program on a machine set up as docs/operations/install.md says: its commands, the service,
backup and restore."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from archiver.config.settings import load_settings
from tests.support.builders.deployment import Deployment
from tests.support.deploy.dockerfile import of, read_dockerfile
from tests.support.deploy.installation import (
    CHECK,
    OPERATIONS,
    READY,
    RECORD,
    ROOT,
    SYSTEMD,
    Installed,
    machine,
    pins,
    program,
    runnable,
    section,
)
from tests.support.deploy.unit_file import Unit
from tests.support.process.processes import Command, until
from tests.support.process.serving import Served

__all__ = ["machine", "program"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200), pytest.mark.turns(3, together=True)]
UNIT = ROOT / "deploy/systemd/stream-archiver.service"
CONFIG = "etc/stream-archiver/archiver.yaml"
STATE = "var/lib/stream-archiver"


def test_the_user_and_the_unit_are_in_place(machine: Installed) -> None:
    if shutil.which("systemd-sysusers") is not None:
        assert "stream-archiver:x:" in (machine.root / "etc/passwd").read_text()
    assert (machine.root / CONFIG).stat().st_mode & 0o777 == 0o640
    unit = machine.move("etc/systemd/system/stream-archiver.service")
    if shutil.which("systemd-analyze") is not None:
        command = ["systemd-analyze", "verify", "--recursive-errors=yes", str(unit)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")


def test_the_configuration_is_checked_before_the_start(machine: Installed, tmp_path: Path) -> None:
    for commands in (section(SYSTEMD)[CHECK], section(SYSTEMD, OPERATIONS / "upgrade.md")[1]):
        (check,) = runnable(commands)
        assert "is valid: cluster mine, 2 topics" in machine.shell(check, cwd=tmp_path)


def test_a_credential_is_put_in_its_store(machine: Installed, tmp_path: Path) -> None:
    machine.shell("\n".join(runnable(section("Secrets")[0])), cwd=tmp_path)
    there = machine.root / "etc/credstore/stream-archiver.admin-token"
    assert re.fullmatch(r"[0-9a-f]{64}\n", there.read_text())
    assert (there.stat().st_mode & 0o777, there.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    name = Unit(UNIT).one("LoadCredential").partition(":")[2]
    assert there.name == name


def archive(machine: Installed, cwd: Path) -> None:
    machine.command("archive", "--all", "-c", str(machine.root / CONFIG), cwd=cwd)


def events(machine: Installed, cwd: Path) -> list[tuple[int, str]]:
    printed = machine.command(
        "consume", "-c", str(machine.root / CONFIG), "--topic", "events", "--text", cwd=cwd
    )
    return [(record["offset"], record["value"]) for record in map(json.loads, printed.splitlines())]


@pytest.mark.spark
def test_records_become_a_table_and_come_back_from_a_backup(machine: Installed, tmp_path: Path) -> None:
    produce, status, audit = section(SYSTEMD)[RECORD]
    machine.shell(produce, cwd=tmp_path)
    archive(machine, tmp_path)
    assert "events" in machine.shell(status, cwd=tmp_path)
    assert "verdict: valid" in machine.shell(audit, cwd=tmp_path)
    assert events(machine, tmp_path) == [(0, "hello")]

    machine.shell("\n".join(runnable(section("Backup", OPERATIONS / "backup.md")[0])), cwd=tmp_path)
    machine.shell(produce.replace("hello", "after the backup"), cwd=tmp_path)
    assert events(machine, tmp_path) == [(0, "hello"), (1, "after the backup")]

    restore = [
        command for block in section("Restore", OPERATIONS / "backup.md") for command in runnable(block)
    ]
    assert "verdict: valid" in machine.shell("\n".join(restore), cwd=tmp_path)
    assert events(machine, tmp_path) == [(0, "hello")]
    machine.shell(produce.replace("hello", "sent again"), cwd=tmp_path)
    archive(machine, tmp_path)
    assert events(machine, tmp_path) == [(0, "hello"), (1, "sent again")]
    assert "verdict: valid" in machine.shell(audit, cwd=tmp_path)


def test_an_old_database_alone_is_refused(machine: Installed, tmp_path: Path) -> None:
    """What the page warns of."""
    produce = section(SYSTEMD)[RECORD][0]
    machine.shell(produce, cwd=tmp_path)
    database = machine.root / STATE / "metadata.db"
    shutil.copy(database, tmp_path / "old.db")
    machine.shell(produce, cwd=tmp_path)
    shutil.copy(tmp_path / "old.db", database)
    with pytest.raises(AssertionError, match="Nothing is sequenced"):
        machine.shell(produce, cwd=tmp_path)


CONTAINER = """
set -e
mount --make-rprivate /
mount -t tmpfs -o noexec,nosuid,nodev,size=1g,mode=1777 tmpfs "$SCRATCH"
# What lies below /tmp is bound into the file system that takes its place.
for folder in "$MACHINE" "$STATE" "$PROGRAM"; do
    mkdir -p "$SCRATCH${folder#/tmp}"
    mount --bind "$folder" "$SCRATCH${folder#/tmp}"
    mount --bind "$folder" "$folder"
done
mount --rbind "$SCRATCH" /tmp
mount -o remount,bind,ro "$MACHINE"
mount -o remount,bind,ro "$PROGRAM"
mount -o remount,bind,ro /
for folder in / "$MACHINE" "$PROGRAM"; do
    if touch "$folder/x" 2> /dev/null; then echo "$folder can be written to"; exit 9; fi
done
touch "$STATE/x"
cd "$STATE"
unset TMPDIR HOME
for command in produce 'archive --all' audit; do
    echo '{"topic": "orders", "key": "YQ==", "value": null}' |
        setpriv --no-new-privs --bounding-set=-all --inh-caps=-all archiver $command > /tmp/out
    tail -n 1 /tmp/out
done
"""


@pytest.mark.spark
def test_a_read_only_system_without_capabilities_is_enough(machine: Installed, tmp_path: Path) -> None:
    """What compose.yaml leaves of a container, made by hand: there is no engine to start one."""
    enter = ["unshare", "--user", "--map-root-user", "--mount"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*enter, "true"], capture_output=True, check=False).returncode != 0
    ):
        pytest.skip("this machine lets nobody make a mount namespace")
    shutil.copy(ROOT / "deploy/config/container/archiver.yaml", machine.root / CONFIG)
    machine.move(CONFIG)
    image = dict(
        word.partition("=")[::2] for word in of(read_dockerfile(ROOT / "deploy/Dockerfile"), "ENV")[0].words()
    )
    environ = {name: value for name, value in image.items() if name.startswith("PYTHON")}
    environ["PATH"] = image["PATH"].replace("/opt/", f"{machine.root}/opt/").replace("$PATH", os.defpath)
    environ["ARCHIVER_CONFIG"] = f"{machine.root}{image['ARCHIVER_CONFIG']}"
    (tmp_path / "scratch").mkdir()
    environ |= {
        "MACHINE": str(machine.root),
        "STATE": str(machine.root / STATE),
        "PROGRAM": str((machine.root / "opt/stream-archiver").resolve()),
        "SCRATCH": str(tmp_path / "scratch"),
    }
    printed = machine.program([*enter, "bash", "-c", CONTAINER], tmp_path, environ=environ)
    assert "verdict: valid" in printed


class OnMachine(Deployment):
    """The service's own configuration and data, for what runs a deployment's command."""

    def __init__(self, machine: Installed) -> None:
        self.machine = machine
        self.root = machine.root / STATE

    @property
    def config(self) -> Path:
        return self.machine.root / CONFIG

    def environ(self, armed: str = "") -> dict[str, str]:
        return self.machine.environ()


class Manager:
    """Listens as a service manager does: what the daemon says of itself."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.said: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)

    def close(self) -> None:
        self._socket.close()

    def heard(self, line: str) -> bool:
        """Whether it has said this line."""
        while True:
            try:
                self.said += self._socket.recv(65536).decode().splitlines()
            except BlockingIOError:
                return line in self.said


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Manager]:
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    found = Manager(Path("notify"))
    yield found
    found.close()


class AsAService(Served):
    """The unit's own command, under its system call filter where there is a systemd that knows what is in
    it."""

    def __init__(self, machine: Installed, manager: Manager, scratch: Path) -> None:
        unit = Unit(UNIT)
        self.deployment = OnMachine(machine)
        command = machine.here(unit.one("ExecStart")).split()
        if shutil.which("systemd-analyze") is not None:
            command = [
                sys.executable,
                str(ROOT / "tests/support/deploy/under_filter.py"),
                *unit.all("SystemCallFilter"),
                "--",
                *command,
            ]
        reported = [
            f"NOTIFY_SOCKET={manager.path.resolve()}",
            f"WATCHDOG_USEC={unit.seconds('WatchdogSec') * 1e6:.0f}",
        ]
        self.command = Command(
            self.deployment, *command[1:], scratch=scratch, program=["env", *reported, command[0]]
        )
        self.pid = self.command.pid
        self._address = None


@pytest.mark.spark
def test_the_service_starts_takes_records_and_stops(
    machine: Installed, manager: Manager, tmp_path: Path
) -> None:
    config = machine.move(
        CONFIG,
        {'"127.0.0.1:8787"': '"127.0.0.1:0"', "idle_max: 10s": "idle_max: 1s", "tick: 10s": "tick: 500ms"},
    )
    with AsAService(machine, manager, tmp_path / "scratch") as daemon:
        until("the service manager is told of the start", lambda: manager.heard("READY=1"))
        daemon.until_ready()
        port = str(daemon.address[1])
        (curl,) = runnable(section(SYSTEMD)[READY])
        machine.shell(curl.replace("8787", port), cwd=tmp_path)
        asked = tmp_path / "asked.yaml"
        asked.write_text(config.read_text().replace('"127.0.0.1:0"', f'"127.0.0.1:{port}"'))
        health = [str(machine.bin / "python"), str(ROOT / "deploy/healthcheck.py")]
        assert (
            machine.program(health, tmp_path, environ={"ARCHIVER_CONFIG": str(asked)})
            == "/healthz answers 200\n"
        )

        answer = daemon.post("/v1/topics/events/records", b'{"key": "YQ==", "value": "aGVsbG8="}\n')
        assert answer.status == 200, answer
        assert answer.lines()[0]["offset"] == 0

        def archived() -> bool:
            document = json.loads(
                machine.command("audit", "-c", str(config), "--output", "json", cwd=tmp_path)
            )
            assert document["verdict"] == "valid"
            return bool(next(one["rows"] for one in document["partitions"] if one["topic"] == "events"))

        until("the record is in its table", archived)
        daemon.signal(signal.SIGHUP)
        until(
            "the service manager is told of the reload",
            lambda: manager.heard("STATUS=reloading the configuration"),
        )
        grace = load_settings(config, {}).daemon.shutdown_grace
        assert grace < Unit(UNIT).seconds("TimeoutStopSec")
        assert daemon.stop() == 0, daemon.log_text()
        assert manager.heard("STOPPING=1")
        assert not daemon.logged("Traceback"), daemon.log_text()
    assert events(machine, tmp_path) == [(0, "hello")]


def test_the_environment_has_what_the_lock_names_and_no_more(program: Installed, tmp_path: Path) -> None:
    listed = program.program([str(program.bin / "python"), "-m", "pip", "list", "--format", "json"], tmp_path)
    found = {re.sub(r"[-_.]+", "-", item["name"]).lower(): item["version"] for item in json.loads(listed)}
    assert found.pop("stream-archiver") == "0.1.0"
    found.pop("pip")
    locked = pins("runtime.lock")
    assert {name: version for name, version in found.items() if version not in locked.get(name, ())} == {}
    program.program([str(program.bin / "python"), "-m", "pip", "check"], tmp_path)


def test_it_works_from_an_unrelated_folder(program: Installed, tmp_path: Path) -> None:
    assert "Usage: archiver" in program.command("--help", cwd=tmp_path)
    python = str(program.bin / "python")
    code = "import archiver, intake, reconcile; from archiver import Writer, Reader; print(archiver.__file__)"
    where = program.program([python, "-c", code], tmp_path)
    assert Path(where.strip()).is_relative_to(program.root)
    for name in ("shop.binpb", "archiver.yaml"):
        source = {"shop.binpb": "orders.binpb", "archiver.yaml": "minimal.example.yaml"}[name]
        shutil.copy(ROOT / "deploy/config" / source, tmp_path / name)
    assert "is valid: cluster mine, 1 topic\n" in program.command(
        "config", "check", "-c", "archiver.yaml", cwd=tmp_path
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["archiver.yaml", "shop.binpb"], (
        "and leaves nothing there"
    )
