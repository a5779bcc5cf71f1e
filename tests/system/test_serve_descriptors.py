"""A real daemon that may open few files: connections that fill its port leave enough for records, archives,
Spark and the log."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from archiver.web.listener import CONNECTIONS_MAX
from tests.integration.test_http_limits import answer, head, receive
from tests.support.builders.deployment import Deployment
from tests.support.process.processes import Command, until
from tests.support.process.serving import Served, quick

RECORD = b'{"value": "AAAA"}\n'
FULL = "connections of the port are in use"

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for descendants in /proc"),
]


class Limited(Served):
    """A daemon that may open so many files."""

    def __init__(self, deployment: Deployment, *arguments: str, scratch: Path, limits: str) -> None:
        program = ("sh", "-c", f'{limits} && exec "$0" -m archiver "$@"', sys.executable)
        self.deployment = deployment
        self.command = Command(deployment, "serve", *arguments, scratch=scratch, program=program)
        self.pid = self.command.pid
        self._address = None


def gauge(daemon: Served, name: str) -> float:
    """A metric without labels."""
    lines = daemon.get("/metrics").body.decode().splitlines()
    return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])


@contextlib.contextmanager
def full_port(daemon: Served) -> Iterator[list[socket.socket]]:
    """Open connections until the daemon closes one at once; those that stay."""
    with contextlib.ExitStack() as stack:
        held: list[socket.socket] = []

        def one_more() -> bool:
            held.append(stack.enter_context(socket.create_connection(daemon.address, timeout=60)))
            return bool(daemon.logged(FULL))

        for _ in range(CONNECTIONS_MAX):
            if one_more():
                break
        until("the log says that the port is full", lambda: daemon.logged(FULL))
        yield held


def test_the_limit_of_open_files_is_raised(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "d")
    deployment.write(quick(deployment.document()))
    with Limited(
        deployment, "--roles", "intake", scratch=tmp_path / "s", limits="ulimit -Sn 256 && ulimit -Hn 3000"
    ) as daemon:
        daemon.until_ready()
        assert gauge(daemon, "process_max_fds") == 3000
        assert daemon.logged("instead of 2000") == []
        assert daemon.stop() == 0


@pytest.mark.slow
@pytest.mark.spark
def test_a_full_port_leaves_the_daemon_its_descriptors(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "d")
    deployment.write(quick(deployment.document()))
    with Limited(deployment, scratch=tmp_path / "s", limits="ulimit -n 400") as daemon:
        daemon.until_ready()
        assert len(daemon.logged("at most 200 connections instead of 2000: 400 files may be open")) == 1
        with full_port(daemon) as held:
            first = held[0]
            for _ in range(3):
                first.sendall(head(len(RECORD)) + RECORD)
                status, body = answer(receive(first))
                assert status == 200, body
            done = asked(daemon, first, "archive", {"all": True})
            assert done["exit_code"] == 0, done
            assert {one["topic"]: one["rows"] for one in done["document"]["topics"]}["clicks"] <= 3
            audited = asked(daemon, first, "audit", {"topic": "clicks"})["document"]
            assert audited["verdict"] == "valid", audited
            assert sum(one["rows"] for one in audited["partitions"]) == 3
            first.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert answer(receive(first))[0] == 200
            assert len(daemon.logged(FULL)) == 1
        until("the port accepts connections again", daemon.ready)
        assert "Traceback" not in daemon.log_text()
        assert daemon.logged("cannot accept") == []
        assert daemon.stop() == 0


def asked(daemon: Served, client: socket.socket, name: str, document: dict[str, object]) -> dict[str, Any]:
    """The end of an operation that is asked for over an open connection."""
    body = json.dumps(document).encode()
    lines = [
        f"POST /v1/admin/{name} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Authorization: Bearer {daemon.token}",
        f"Content-Length: {len(body)}",
    ]
    client.sendall("\r\n".join([*lines, "", ""]).encode() + body)
    reply = b""
    while not reply.endswith(b"\r\n0\r\n\r\n"):
        piece = client.recv(65536)
        assert piece, reply
        reply += piece
    last = next(line for line in reply.splitlines() if line.startswith((b'{"done"', b'{"error"')))
    found: dict[str, Any] = json.loads(last)["done"]
    return found
