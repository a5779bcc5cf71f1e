"""A real daemon while it works, seen from outside: no socket of it, or of what it starts, is open to other
machines, and no file to other users.
"""

from __future__ import annotations

import ipaddress
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from archiver.runtime.clock import SystemClock
from tests.support.builders.deployment import ROOT, Deployment
from tests.support.log.etcd_server import free_port
from tests.support.process.processes import Command, until
from tests.support.process.serving import Served, quick

pytestmark = [
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for descendants in /proc"),
]
RECORDS = 40
ASKED_WITHOUT_TOKEN = b"c\nz:java.lang.System\ncurrentTimeMillis\ne\n"
"""A call of py4j, which a gateway without authentication answers with `!y` and the time."""
PATIENCE_S = 10.0
LOOK_EVERY_S = 0.2
ARCHIVED_S = 300.0


def processes(pid: int) -> list[psutil.Process]:
    try:
        own = psutil.Process(pid)
        return [own, *own.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def open_sockets(pid: int) -> Iterator[tuple[str, str, int]]:
    """Program, address and port of every socket that accepts input: TCP that listens, UDP that is bound. Of
    the process and its descendants."""
    for process in processes(pid):
        try:
            name, found = process.name(), process.net_connections("inet")
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue  # it has ended, or is about to
        for one in found:
            takes = one.status == psutil.CONN_LISTEN or (one.type == socket.SOCK_DGRAM and not one.raddr)
            if takes and one.laddr:
                yield name, one.laddr.ip, one.laddr.port


def is_private(address: str) -> bool:
    found = ipaddress.ip_address(address)
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback


def answer(port: int) -> bytes:
    """What a port of the JVM says to a call without its token."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as client:
            client.settimeout(2.0)
            client.sendall(ASKED_WITHOUT_TOKEN)
            return client.recv(100)
    except OSError:
        return b""


@dataclass
class Worked:
    """What a daemon had open and has written by the time that it had archived what was sent to it."""

    sockets: set[tuple[str, str, int]] = field(default_factory=set)
    programs: set[str] = field(default_factory=set)
    own_port: int = 0
    jvm_answers: dict[int, bytes] = field(default_factory=dict)
    modes: dict[Path, int] = field(default_factory=dict)
    """Of every file and folder of the deployment."""
    scratch: dict[Path, int] = field(default_factory=dict)
    """Of what lies in the folder for temporary files, which all users of a machine share; no deeper."""


def archived(daemon: Served) -> int:
    """Rows in the table, by an audit that must find it valid."""
    SystemClock().sleep(LOOK_EVERY_S)
    document = daemon.admin("audit")["done"]["document"]
    assert document["verdict"] == "valid", document
    return sum(one["rows"] for one in document["partitions"] if one["topic"] == "clicks")


class Careless(Served):
    """Started with umask 0: the daemon itself must make its files private."""

    def __init__(self, deployment: Deployment, scratch: Path) -> None:
        self.deployment = deployment
        program = ["sh", "-c", 'umask 0; exec "$@"', "sh", sys.executable, "-m", "archiver"]
        self.command = Command(deployment, "serve", scratch=scratch, program=program)
        self.pid = self.command.pid
        self._address = None


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Worked:
    folder = tmp_path_factory.mktemp("worked")
    deployment, scratch, found, done = (
        Deployment(folder / "d"),
        folder / "scratch",
        Worked(),
        threading.Event(),
    )
    deployment.write(quick(deployment.document()))
    with Careless(deployment, scratch) as daemon:

        def look() -> None:
            while not done.wait(LOOK_EVERY_S):
                found.sockets.update(open_sockets(daemon.pid))

        looking = threading.Thread(target=look)
        looking.start()
        try:
            daemon.until_ready()
            for number in range(RECORDS):
                assert (
                    daemon.post(
                        "/v1/topics/clicks/records?text=true", f'{{"value": "{number}"}}\n'.encode()
                    ).status
                    == 200
                )
            until("all of it is archived", lambda: archived(daemon) == RECORDS, ARCHIVED_S)
        finally:
            done.set()
            looking.join(PATIENCE_S)
        found.own_port = daemon.address[1]
        found.programs = {process.name() for process in processes(daemon.pid)}
        found.jvm_answers = {
            port: answer(port) for name, _, port in sorted(open_sockets(daemon.pid)) if name == "java"
        }
        found.modes = {path: path.lstat().st_mode for path in deployment.root.rglob("*")}
        found.scratch = {path: path.lstat().st_mode for path in scratch.iterdir()}
        assert daemon.stop() == 0
    return found


def test_nothing_listens_off_loopback(worked: Worked) -> None:
    assert {"java"} < worked.programs, (
        f"a daemon with a JVM and Python workers was to be looked at, not {worked.programs}"
    )
    assert {name for name, _, _ in worked.sockets} >= {"java"}
    assert worked.own_port in {port for _, _, port in worked.sockets}
    assert [one for one in sorted(worked.sockets) if not is_private(one[1])] == []


DRIVER = """
import os, sys
from archiver.runtime.errors import RetryLater
from archiver.config.settings import SparkSettings
from archiver.spark.session import SparkSessions

try:
    SparkSessions(SparkSettings(master=sys.argv[1], start_timeout=25), os.environ).session()
except RetryLater:
    print("no master")
"""


def test_the_driver_of_a_cluster_on_this_machine_listens_on_loopback_alone() -> None:
    """Its ports are open before the master, which is not there, has answered."""
    found: set[tuple[str, str, int]] = set()
    arguments = [sys.executable, "-c", DRIVER, f"spark://127.0.0.1:{free_port()}"]
    with subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, text=True) as driver:
        try:
            while driver.poll() is None:
                found.update(open_sockets(driver.pid))
                SystemClock().sleep(LOOK_EVERY_S)
        finally:
            driver.kill()
        assert driver.stdout is not None
        assert driver.stdout.read() == "no master\n"
    listening = {port for name, _, port in found if name == "java"}
    assert len(listening) > 1, "the driver's port beside that of the gateway"
    assert [one for one in sorted(found) if not is_private(one[1])] == []


def test_the_jvm_takes_no_call_without_its_token(worked: Worked) -> None:
    assert worked.jvm_answers, "it was asked at some port"
    assert [port for port, said in worked.jvm_answers.items() if said.startswith(b"!y")] == []


def test_what_a_daemon_writes_only_its_user_can_change(worked: Worked) -> None:
    assert [
        path for path, mode in worked.modes.items() if not stat.S_ISLNK(mode) and mode & stat.S_IWOTH
    ] == []
    others = stat.S_IRWXG | stat.S_IRWXO
    (token,) = [mode for path, mode in worked.modes.items() if path.name == "metadata.db.admin-token"]
    spools = [mode for path, mode in worked.modes.items() if path.parent.name == ".spool"]
    assert spools, "files in the making have a folder"
    assert [oct(mode) for mode in (token, *spools) if mode & others] == []


def test_temporary_files_are_private(worked: Worked) -> None:
    named = [path.name for path in worked.scratch]
    assert any(name.startswith("archiver-spark-") for name in named), named
    assert [path for path, mode in worked.scratch.items() if mode & (stat.S_IRWXG | stat.S_IRWXO)] == []


def test_a_socket_that_is_open_to_others_would_be_seen() -> None:
    with socket.create_server(("0.0.0.0", 0)) as open_to_all, socket.create_server(("127.0.0.1", 0)) as ours:
        found = {port: address for _, address, port in open_sockets(psutil.Process().pid)}
        assert not is_private(found[open_to_all.getsockname()[1]])
        assert is_private(found[ours.getsockname()[1]])
