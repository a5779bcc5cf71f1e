"""Real members of etcd for tests: one, or three that make a cluster, on loopback ports that the system chose.

Owns the processes: each is stopped by its id and waited for, and none outlives its block. Data are in a
folder of the test and are kept while a member is down, so that a restarted member is the same one. Ports are
free when they are chosen; a member that cannot have its own takes others, as long as it is new.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import grpc

from archiver.log.etcd.cluster import import_etcd3
from archiver.proto import etcd_rpc_pb2 as rpc
from tests.support.log.etcd_certificates import Certificates
from tests.support.log.etcd_part import required
from tests.support.process.processes import until

START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 60.0
REQUEST_TIMEOUT_S = 20.0
"""Bounds a request that hangs. Each change waits for the disk, which may be slow for seconds."""
STARTS_MAX = 3
AGAIN_S = 1.0
_TAKEN = "address already in use"
_POLL_S = 0.05


def _stands_still(pid: int) -> bool:
    """Whether every thread of a process was stopped; where the system does not say, that it was asked to."""
    states = [
        path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")
    ]
    return all(state in "tT" for state in states)


@dataclass(frozen=True)
class User:
    """etcd's users; `root` may do everything."""

    name: str
    password: str


class Etcd:
    """One member. `options` are added to its command line, at each start."""

    def __init__(
        self, folder: Path, *options: str, certificates: Certificates | None = None, name: str = "one"
    ) -> None:
        self.folder = folder
        self.name = name
        self.certificates = certificates
        self._program = required()
        self.options = options
        self._process: subprocess.Popen[bytes] | None = None
        self.client_port, self.peer_port = free_port(), free_port()
        self.cluster = ""
        """Of several members: their names and peer addresses, as etcd takes them."""
        folder.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        for tried in range(1, STARTS_MAX + 1):
            try:
                self.start()
                return self
            except AssertionError:
                self.kill()
                if tried == STARTS_MAX:
                    raise
                self.client_port, self.peer_port = free_port(), free_port()
        raise AssertionError("unreachable")

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def address(self) -> str:
        """host:port for clients."""
        return f"127.0.0.1:{self.client_port}"

    @property
    def peer_url(self) -> str:
        return f"http://127.0.0.1:{self.peer_port}"

    @property
    def running(self) -> bool:
        """It was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, wait: bool = True) -> None:
        """Start it, with the data it had, and wait until it answers."""
        self._start()
        for _ in range(STARTS_MAX if wait else 0):
            try:
                self.wait_ready()
                return
            except AssertionError:
                if self.running or _TAKEN not in self._said():
                    raise
                # A client elsewhere on this machine may have the port as its own for a moment.
                time.sleep(AGAIN_S)
                self._start()
        if wait:
            self.wait_ready()

    def _start(self) -> None:
        scheme = "http" if self.certificates is None else "https"
        url = f"{scheme}://{self.address}"
        command = [
            str(self._program),
            "--name",
            self.name,
            "--data-dir",
            str(self.folder / "data"),
            "--logger",
            "zap",
        ]
        command += ["--listen-client-urls", url, "--advertise-client-urls", url]
        command += ["--listen-peer-urls", self.peer_url, "--initial-advertise-peer-urls", self.peer_url]
        command += ["--initial-cluster", self.cluster or f"{self.name}={self.peer_url}"]
        if self.certificates is not None:
            command += [
                "--cert-file",
                str(self.certificates.server),
                "--key-file",
                str(self.certificates.server_key),
            ]
            command += ["--client-cert-auth", "--trusted-ca-file", str(self.certificates.authority)]
        with (self.folder / "etcd.log").open("ab") as log:
            self._process = subprocess.Popen([*command, *self.options], stdout=log, stderr=log)

    def wait_ready(self) -> None:
        """Until it answers and knows a leader."""
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while True:
            assert self._process is not None and self._process.poll() is None, self._said()
            try:
                with self.client() as client:
                    if client.maintenancestub.Status(rpc.StatusRequest(), timeout=2).leader:
                        return
            except grpc.RpcError as error:
                # Newer versions give their status only to authenticated clients.
                if "user name is empty" in str(error.details()):
                    return
            assert time.monotonic() < deadline_s, self._said()
            time.sleep(_POLL_S)

    def status(self) -> rpc.StatusResponse:
        """What it says of itself; `leader` is a member's id."""
        with self.client() as client:
            answer: rpc.StatusResponse = client.maintenancestub.Status(
                rpc.StatusRequest(), timeout=REQUEST_TIMEOUT_S
            )
        return answer

    def client(self) -> Any:
        """A client of etcd3, for a test that reads keys or acts as another client. It is a context
        manager."""
        found = self.certificates
        files = (
            {}
            if found is None
            else {
                "ca_cert": str(found.authority),
                "cert_cert": str(found.client),
                "cert_key": str(found.client_key),
            }
        )
        return import_etcd3().client(
            host="127.0.0.1", port=self.client_port, timeout=REQUEST_TIMEOUT_S, **files
        )

    def stop(self) -> None:
        """As an operator does."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """As a machine that lost its power; no effect if it is down."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Returns once it stands still: on a busy machine its threads go on for a moment, and may answer one
        more request."""
        os.kill(self.pid, signal.SIGSTOP)
        until("the member stands still", lambda: _stands_still(self.pid))

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            if number != signal.SIGKILL:
                process.send_signal(signal.SIGCONT)
            process.wait(STOP_TIMEOUT_S)

    def _said(self) -> str:
        return (self.folder / "etcd.log").read_text(encoding="utf-8", errors="replace")[-3000:]


class EtcdThree:
    """Three members that make a cluster, with quick elections."""

    def __init__(self, folder: Path) -> None:
        quick = ("--heartbeat-interval", "50", "--election-timeout", "500")
        self.members = [Etcd(folder / name, *quick, name=name) for name in ("one", "two", "three")]

    def __enter__(self) -> Self:
        cluster = ",".join(f"{member.name}={member.peer_url}" for member in self.members)
        try:
            for member in self.members:
                member.cluster = cluster
                member.start(wait=False)
            for member in self.members:
                member.wait_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            member.kill()

    @property
    def addresses(self) -> list[str]:
        return [member.address for member in self.members]

    def leader(self, among: Sequence[Etcd] = ()) -> Etcd:
        """Who leads now, as the members (`among` them) say; waits for an election."""
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline_s:
            for member in among or self.members:
                try:
                    answer = member.status()
                except grpc.RpcError:
                    # One that was just started does not listen yet.
                    continue
                if answer.leader == answer.header.member_id:
                    return member
            time.sleep(_POLL_S)
        raise AssertionError("nobody leads")


def enable_auth(etcd: Etcd, root: User, user: User, prefix: str, *, read_only: bool = False) -> None:
    """Turn on etcd's authentication; `user` may do anything below `prefix`, or only read there, and nothing
    else."""
    with etcd.client() as client:
        stub = import_etcd3().etcdrpc.AuthStub(client.channel)
        start, end = f"{prefix}/".encode(), f"{prefix}0".encode()
        permission = {"permType": 0 if read_only else 2, "key": start, "range_end": end}
        for one in (root, user):
            stub.UserAdd(
                rpc.AuthUserAddRequest(name=one.name, password=one.password), timeout=REQUEST_TIMEOUT_S
            )
        for role in ("root", "archiver"):
            stub.RoleAdd(rpc.AuthRoleAddRequest(name=role), timeout=REQUEST_TIMEOUT_S)
        stub.RoleGrantPermission(
            rpc.AuthRoleGrantPermissionRequest(name="archiver", perm=permission), timeout=REQUEST_TIMEOUT_S
        )
        stub.UserGrantRole(
            rpc.AuthUserGrantRoleRequest(user=root.name, role="root"), timeout=REQUEST_TIMEOUT_S
        )
        stub.UserGrantRole(
            rpc.AuthUserGrantRoleRequest(user=user.name, role="archiver"), timeout=REQUEST_TIMEOUT_S
        )
        stub.AuthEnable(rpc.AuthEnableRequest(), timeout=REQUEST_TIMEOUT_S)


def free_port() -> int:
    """A loopback port that is free now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
