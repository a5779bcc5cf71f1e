"""The port itself: health that depends on nothing, a port in use, and a shutdown that lets requests finish."""

from __future__ import annotations

import json
import logging
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from archiver.web import server as web_server
from archiver.web.app import create_app
from archiver.web.server import WebServer
from tests.support.builders.deployment import Deployment
from tests.support.process.processes import until
from tests.support.process.web import PATIENCE_S, Daemon, Reply, read_all


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(Deployment(tmp_path / "d")) as daemon:
        yield daemon


def healthy(address: tuple[str, int]) -> bool:
    with socket.create_connection(address, timeout=PATIENCE_S) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return read_all(client).startswith(b"HTTP/1.1 200")


def listens(server: WebServer) -> bool:
    return server.address is not None


def test_alive_and_ready_are_two_things(daemon: Daemon) -> None:
    assert daemon.call("GET", "/healthz").json() == {
        "alive": True,
        "version": "1.2.3",
        "roles": ["archive", "intake", "reconcile"],
    }
    daemon.journal.checked("objects", None, 1_700_000_000_000_000)
    daemon.journal.checked("metadata", "the disk is full", 1_700_000_001_500_000)
    reply = daemon.call("GET", "/readyz")
    assert reply.status == 503
    assert reply.json() == {
        "ready": False,
        "state": "serving",
        "checks": [
            {
                "name": "metadata",
                "ok": False,
                "why": "the disk is full",
                "since": "2023-11-14T22:13:21.500000Z",
            },
            {"name": "objects", "ok": True, "why": "", "since": "2023-11-14T22:13:20.000000Z"},
        ],
    }
    assert daemon.call("GET", "/healthz").status == 200
    daemon.journal.checked("metadata", None, 1_700_000_002_000_000)
    assert daemon.call("GET", "/readyz").status == 200
    daemon.journal.becomes("stopping")
    assert (daemon.call("GET", "/readyz").status, daemon.call("GET", "/healthz").status) == (503, 200)
    daemon.alive = False
    assert daemon.call("GET", "/healthz").status == 503


def test_every_answer_names_the_cluster_once_it_is_known(daemon: Daemon) -> None:
    known = daemon.cluster_id
    for path in ("/healthz", "/nowhere", "/v1/admin/status", "/"):
        assert daemon.call("GET", path).headers["archiver-cluster-id"] == known
    daemon.cluster_id = None
    reply = daemon.call("GET", "/healthz")
    assert reply.status == 200
    assert "archiver-cluster-id" not in reply.headers


def test_what_there_is_and_what_there_is_not(daemon: Daemon) -> None:
    page = daemon.call("GET", "/?topic=orders&refresh=5")
    assert (page.headers["content-type"], b"['refresh', 'topic']" in page.body) == (
        "text/html; charset=utf-8",
        True,
    )
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert page.headers["cache-control"] == "no-store"
    metrics = daemon.call("GET", "/metrics")
    assert (metrics.body, metrics.headers["content-type"]) == (
        b"archiver_up 1\n",
        "text/plain; version=0.0.4; charset=utf-8",
    )
    assert daemon.call("HEAD", "/metrics").body == b""
    served = daemon.call("GET", "/openapi.json").json()
    assert served == json.loads(
        (Path(__file__).resolve().parents[2] / "docs" / "openapi.json").read_text(encoding="utf-8")
    )
    for path in (
        "/nix",
        "/v1",
        "/v1/admin",
        "/healthz/",
        "/v1/topics/clicks/nix",
        "/v1/topics//records",
        "/static/../etc/passwd",
    ):
        reply = daemon.call("GET", path)
        assert (reply.status, reply.json()["error"]["type"]) == (404, "NotFound"), path
    assert daemon.call("GET", "/v1/topics/clicks/records").status == 405
    refused = daemon.call("DELETE", "/v1/admin/clean")
    assert (refused.status, refused.headers["allow"]) == (405, "POST")
    assert "it takes POST" in refused.error
    assert daemon.call("DELETE", "/").status == 405


def test_health_answers_while_everything_else_hangs(tmp_path: Path, daemon: Daemon) -> None:
    go_on = threading.Event()

    def stuck(_: Mapping[str, str]) -> str:
        assert go_on.wait(PATIENCE_S)
        return "at last"

    server = WebServer(create_app(replace(daemon.face, page=stuck)), "127.0.0.1:0", 1.0)
    server.start()
    pages: list[bytes] = []

    def look() -> None:
        assert server.address is not None
        with socket.create_connection(server.address, timeout=PATIENCE_S) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            pages.append(read_all(client))

    looking = [threading.Thread(target=look) for _ in range(40)]
    try:
        for thread in looking:
            thread.start()
        until("the last ones are asked to come back", lambda: len(pages) == 8)
        assert all(page.startswith(b"HTTP/1.1 429") for page in pages)
        assert server.address is not None
        assert healthy(server.address)
        go_on.set()
        for thread in looking:
            thread.join(PATIENCE_S)
        assert sum(page.endswith(b"at last") for page in pages) == 32
    finally:
        go_on.set()
        server.stop(PATIENCE_S)


def test_an_error_no_one_expected_is_500_and_is_logged(
    daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> bytes:
        raise ZeroDivisionError("secret detail")

    server = WebServer(create_app(replace(daemon.face, metrics=broken)), "127.0.0.1:0", 1.0)
    server.start()
    try:
        assert server.address is not None
        with socket.create_connection(server.address, timeout=PATIENCE_S) as client:
            client.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            reply = read_all(client)
        assert reply.startswith(b"HTTP/1.1 500")
        assert b"secret detail" not in reply
        assert b'"type":"OutcomeUnknown"' in reply
        assert "a request ended in an unexpected error" in caplog.text
        assert healthy(server.address)
    finally:
        server.stop(1.0)


def test_a_taken_port_is_said_once_and_tried_until_it_is_free(
    daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = WebServer(create_app(daemon.face), f"127.0.0.1:{port}", 0.05)
        with caplog.at_level(logging.INFO):
            server.start()
            threading.Event().wait(1.0)
            assert not listens(server)
            said = [record for record in caplog.records if "cannot listen" in record.getMessage()]
            assert [record.levelno for record in said] == [logging.WARNING]
            assert str(port) in said[0].getMessage()
    try:
        found = until("the port is had", lambda: server.address)
        assert found == ("127.0.0.1", port)
        assert healthy(found)
    finally:
        server.stop(1.0)
    assert not listens(server)
    with pytest.raises(ConnectionRefusedError):
        healthy(("127.0.0.1", port))
    assert before == {number: signal.getsignal(number) for number in before}


def test_a_port_that_stays_taken_is_logged_again_now_and_then(
    daemon: Daemon, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_server, "REMIND_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = WebServer(create_app(daemon.face), f"127.0.0.1:{port}", 0.05)
        server.start()
        why = str(server.closed_because)
        assert why.startswith(f"cannot listen on 127.0.0.1:{port}: ")
        assert why.endswith("; another program listens there: stop it, or set http.listen to another port")

        def said() -> int:
            return sum(why in record.getMessage() for record in caplog.records)

        until("it is logged again", lambda: said() >= 3)
        began, began_s = said(), time.monotonic()
        threading.Event().wait(0.5)
        most = 2 + (time.monotonic() - began_s) / web_server.REMIND_S
        assert said() - began <= most, "ten attempts are not ten lines"
    until("the port is open", lambda: server.address)
    assert server.closed_because is None
    server.stop(1.0)


def test_an_address_that_cannot_be_had_stops_nothing(
    daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    server = WebServer(create_app(daemon.face), "192.0.2.1:0", 0.1)
    server.start()
    server.stop(1.0)
    server.stop(1.0)
    assert server.address is None
    assert "cannot listen on" in caplog.text


def test_an_ipv6_address(daemon: Daemon) -> None:
    server = WebServer(create_app(daemon.face), "[::1]:0", 1.0)
    server.start()
    try:
        if server.address is None:
            pytest.skip("this machine has no IPv6")
        assert server.address[0] == "::1"
        assert healthy(server.address)
    finally:
        server.stop(1.0)


def test_the_end_waits_for_requests_under_way(tmp_path: Path) -> None:
    with Daemon(Deployment(tmp_path / "d", overrides={"intake": {"delay_max": "1h"}})) as daemon:
        replies: list[Reply] = []
        sender = threading.Thread(target=lambda: replies.append(daemon.send("files", b'{"value": "YQ=="}')))
        sender.start()
        assert daemon.writer is not None
        writer = daemon.writer
        until("it is handed over", lambda: writer.metrics().records_accepted)
        address = daemon.address
        stopper = threading.Thread(target=lambda: daemon.server.stop(PATIENCE_S))
        stopper.start()
        until("the port is closed", lambda: not _open(address))
        assert not replies
        writer.close()
        for thread in (sender, stopper):
            thread.join(PATIENCE_S)
        assert [(reply.status, reply.lines()[0]["offset"]) for reply in replies] == [(200, 0)]


def test_what_the_end_cuts_off_is_of_unknown_outcome(tmp_path: Path) -> None:
    with Daemon(Deployment(tmp_path / "d", overrides={"intake": {"delay_max": "1h"}})) as daemon:
        replies: list[Reply] = []
        sender = threading.Thread(target=lambda: replies.append(daemon.send("files", b'{"value": "YQ=="}')))
        sender.start()
        assert daemon.writer is not None
        writer = daemon.writer
        until("it is handed over", lambda: writer.metrics().records_accepted)
        daemon.server.stop(0.2)
        sender.join(PATIENCE_S)
        assert [(reply.status, reply.lines()[0]["outcome"]) for reply in replies] == [(500, "unknown")]


def _open(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, timeout=PATIENCE_S).close()
    except ConnectionRefusedError:
        return False
    return True
