"""Administration through the port: who has access, which progress is streamed, and that it continues when its
client disconnects.
"""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from archiver.app.application import Application
from archiver.web import admin
from tests.support.builders.deployment import Deployment
from tests.support.process.processes import until
from tests.support.process.web import PATIENCE_S, TOKEN, Daemon, read_all

BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(Deployment(tmp_path / "d")) as daemon:
        yield daemon


@pytest.mark.parametrize(
    ("given", "status"),
    [
        (None, 401),
        ("", 401),
        ("Basic Y29ycmVjdCBob3JzZQ==", 401),
        ("Bearer", 401),
        ("Bearer   ", 401),
        ("Bearer correct", 403),
        ("Bearer correct horse battery ", 200),
        ("bearer correct horse battery", 200),
        ("Bearer correct horse batteries", 403),
        ("Bearer \xff", 403),
    ],
)
def test_who_is_let_in(daemon: Daemon, given: str | None, status: int) -> None:
    headers = {} if given is None else {"Authorization": given}
    reply = daemon.call("GET", "/v1/admin/status", headers=headers)
    assert reply.status == status
    assert TOKEN.encode() not in reply.body
    assert ("www-authenticate" in reply.headers) == (status == 401)
    worked: list[str] = []
    daemon.operations.gate = lambda _: worked.append("archive")
    assert daemon.call("POST", "/v1/admin/archive", b"", headers).status == status
    assert bool(worked) == (status == 200)


def test_no_client_is_let_in_before_there_is_a_token(daemon: Daemon) -> None:
    daemon.token = None
    for bearer in ("Bearer ", "Bearer None", f"Bearer {TOKEN}"):
        reply = daemon.call("GET", "/v1/admin/status", headers={"Authorization": bearer})
        assert (reply.status, reply.headers["retry-after"]) == (503, "2")


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, True),
        ({"Host": "localhost:1"}, True),
        ({"Host": "LOCALHOST"}, True),
        ({"Host": "[::1]:8787"}, True),
        ({"Host": "127.0.0.1"}, True),
        ({"Host": "evil.example:8787"}, False),
        ({"Host": "localhost.evil.example"}, False),
        ({"Host": "127.0.0.1.evil.example"}, False),
        ({"Host": "127.0.0.1@evil.example"}, False),
        ({"Host": ""}, False),
        ({"Host": "[::1"}, False),
        ({"Host": "localhost:1", "Origin": "http://localhost:1"}, True),
        ({"Host": "localhost:1", "Origin": "http://localhost:2"}, False),
        ({"Host": "localhost:1", "Origin": "http://evil.example"}, False),
        ({"Host": "localhost:1", "Origin": "null"}, False),
        ({"Host": "localhost:1", "Origin": ""}, False),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, False),
        ({"Host": "localhost:1", "Origin": "http://[bad"}, False),
        ({"Host": "localhost:1", "Origin": "http://localhost:1/path"}, False),
        ({"Host": "2130706433"}, False),
    ],
)
def test_web_pages_of_others_may_not_use_the_port(
    daemon: Daemon, headers: dict[str, str], allowed: bool
) -> None:
    assert daemon.call("POST", "/v1/admin/reload", b"", {**BEARER, **headers}).status == (
        200 if allowed else 403
    )
    sent = daemon.send("clicks", b'{"value": null}', **headers)
    assert sent.status == (200 if allowed else 403)
    assert len(daemon.stored("clicks")) == allowed
    assert daemon.call("GET", "/", headers=headers).status == (200 if allowed else 403)


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0"])
def test_a_port_that_is_open_to_others_takes_no_name_but_those_that_are_allowed(
    tmp_path: Path, listen: str
) -> None:
    here = "::1" if "[" in listen else "127.0.0.1"

    def asked(request: bytes) -> bytes:
        with socket.create_connection((here, port), timeout=PATIENCE_S) as client:
            client.sendall(request)
            return read_all(client)

    with Daemon(
        Deployment(tmp_path / "d"),
        listen=listen,
        allow_http=True,
        allowed_hosts=("archiver", "Archiver.internal"),
    ) as daemon:
        port = daemon.address[1]
        for host in (
            b"evil.example",
            b"evil.example:8787",
            b"archiver.evil.example",
            b"archiver@evil.example",
            b"",
            b"0x7f.1",
        ):
            refused = asked(b"GET / HTTP/1.1\r\nHost: " + host + b"\r\nConnection: close\r\n\r\n")
            assert refused.startswith(b"HTTP/1.1 403"), (host, refused)
            assert b"http.allowed_hosts" in refused
            send = (
                b"POST /v1/topics/clicks/records HTTP/1.1\r\nContent-Type: "
                b"application/x-ndjson\r\nContent-Length: 16\r\nHost: " + host
            )
            assert asked(send + b'\r\nConnection: close\r\n\r\n{"value": null}\n').startswith(
                b"HTTP/1.1 403"
            ), host
        assert daemon.stored("clicks") == {}
        for host in (
            b"archiver",
            b"ARCHIVER.internal:8787",
            b"localhost:1",
            b"10.1.2.3:8787",
            b"[fe80::1]:8787",
        ):
            # The overview asks for a login here; the health does not.
            assert asked(
                b"GET /healthz HTTP/1.1\r\nHost: " + host + b"\r\nConnection: close\r\n\r\n"
            ).startswith(b"HTTP/1.1 200"), host
            foreign = (
                b"GET / HTTP/1.1\r\nHost: "
                + host
                + b"\r\nOrigin: http://evil.example\r\nConnection: close\r\n\r\n"
            )
            assert asked(foreign).startswith(b"HTTP/1.1 403"), host
        # No browser leaves the Host out; simple health checks do.
        assert asked(b"GET /healthz HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200")
        assert asked(b"GET / HTTP/1.0\r\nOrigin: http://evil.example\r\n\r\n").startswith(b"HTTP/1.1 403")


_HEADERS = st.text(
    st.characters(min_codepoint=0x21, max_codepoint=0xFF, exclude_characters="\x7f"), max_size=30
)
_BUILT = st.lists(
    st.sampled_from(
        [
            "http://",
            "[",
            "]",
            "::1",
            "127.0.0.1",
            "localhost",
            ":",
            "80",
            "@",
            "/",
            "evil.example",
            "%",
            "null",
        ]
    )
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(host=_HEADERS | _BUILT.map("".join), origin=st.none() | _HEADERS | _BUILT.map("".join))
def test_any_host_and_origin_are_judged(
    daemon: Daemon, caplog: pytest.LogCaptureFixture, host: str, origin: str | None
) -> None:
    given_origin = "" if origin is None else f"Origin: {origin}\r\n"
    with daemon.raw() as client:
        client.sendall(
            f"GET /healthz HTTP/1.1\r\nHost: {host}\r\n{given_origin}Connection: close\r\n\r\n".encode(
                "latin-1"
            )
        )
        reply = read_all(client)
    assert reply[:12] in (b"HTTP/1.1 200", b"HTTP/1.1 403", b"HTTP/1.1 400"), reply
    if reply[:12] == b"HTTP/1.1 200":
        assert re.fullmatch(r"(localhost|127\.0\.0\.1|\[[0-9A-Fa-f:.]+\]|[0-9.]+)(:\d*)?", host), host
        assert origin is None or origin.endswith(f"://{host}")
    assert "unexpected error" not in caplog.text


def test_archive_does_what_the_command_does(daemon: Daemon) -> None:
    assert daemon.send("clicks", b'{"value": "YQ==", "partition": 0}\n' * 5).status == 200
    assert daemon.send("files", b'{"value": "YQ=="}\n' * 3).status == 200
    lines = daemon.administer("archive", {"topic": "clicks", "all": True}).lines()
    assert all("progress" in line or line == {"alive": True} for line in lines[:-1])
    assert any("progress" in line for line in lines)
    done = lines[-1]["done"]
    assert done["exit_code"] == 0
    assert [(topic["topic"], topic["state"], topic["rows"]) for topic in done["document"]["topics"]] == [
        ("clicks", "archived", 5)
    ]
    ledger = daemon.application.ledger()
    assert ledger.topic(daemon.application.topic("clicks").topic_id).watermarks[0] == 5
    audited = daemon.administer("audit", {"topic": "clicks"}).lines()
    assert audited[0] == {"progress": "auditing"}
    assert audited[-1]["done"]["document"]["verdict"] == "valid"
    cleaned = daemon.administer("clean", {"dry_run": True}).lines()[-1]["done"]
    assert (cleaned["document"]["dry_run"], cleaned["exit_code"]) == (True, 0)


def test_errors_come_with_their_type_and_exit_code(daemon: Daemon) -> None:
    error = daemon.administer("archive", {"topic": "nix"}).lines()[-1]["error"]
    assert (error["type"], error["exit_code"]) == ("NotFound", 3)
    with Application(daemon.settings, {}) as other, other.leadership.turn():
        error = daemon.administer("clean").lines()[-1]["error"]
        assert (error["type"], error["exit_code"]) == ("LeaseHeld", 2)
        assert "the lease is held by" in error["message"]

    def broken(_: Any) -> None:
        raise ZeroDivisionError("nobody expected this")

    daemon.operations.gate = broken
    error = daemon.administer("clean").lines()[-1]["error"]
    assert (error["type"], error["exit_code"]) == ("OutcomeUnknown", 2)
    daemon.operations.gate = lambda _: None
    assert "done" in daemon.administer("clean").lines()[-1], "its place is free again"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[]", 400),
        (b'{"all": 1}', 400),
        (b'{"topic": true}', 400),
        (b'{"topic": "a", "topic": "b"}', 400),
        (b'{"everything": true}', 400),
        (b"[" * 50_000, 400),
        (b'{"x": ' + b"[" * 50_000, 400),
        (b"{}" + b" " * 70_000, 413),
    ],
)
def test_a_bad_body_begins_nothing(daemon: Daemon, body: bytes, status: int) -> None:
    daemon.operations.gate = lambda _: pytest.fail("it has begun")
    reply = daemon.call("POST", "/v1/admin/archive", body, {**BEARER, "Content-Type": "application/json"})
    assert reply.status == status, reply.body
    assert (
        daemon.call("POST", "/v1/admin/archive", b"{}", {**BEARER, "Content-Type": "text/plain"}).status
        == 415
    )


def test_roles_and_states(daemon: Daemon, tmp_path: Path) -> None:
    with Daemon(Deployment(tmp_path / "other"), roles=frozenset({"intake"})) as other:
        assert [other.administer(name).status for name in ("archive", "clean", "reload")] == [409, 409, 200]
    daemon.journal.becomes("stopping")
    assert daemon.administer("archive").status == 503


def open_stream(daemon: Daemon, name: str) -> Any:
    """A request of administration, started on a socket of its own."""
    connected = daemon.raw()
    client = connected.__enter__()
    client.sendall(
        f"POST /v1/admin/{name} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "
        f"{TOKEN}\r\nContent-Length: 0\r\n\r\n".encode()
    )
    return connected, client


def test_signs_of_life_and_lines_as_they_come(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "ALIVE_S", 0.05)
    go_on = threading.Event()

    def slow(progress: Any) -> None:
        progress("begun")
        assert go_on.wait(PATIENCE_S)
        progress("going on")

    daemon.operations.gate = slow
    connected, client = open_stream(daemon, "clean")
    try:
        seen = b""
        while seen.count(b'{"alive":true}') < 3:
            seen += client.recv(65536)
        assert seen.index(b'{"progress":"begun"}') < seen.index(b'{"alive":true}')
        assert b"going on" not in seen
        go_on.set()
        while b'"done"' not in seen:
            seen += client.recv(65536)
        assert b'{"progress":"going on"}' in seen
    finally:
        connected.__exit__(None, None, None)


def test_work_goes_on_without_its_client_and_only_so_much_waits(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "UNDER_WAY_MAX", 2)
    go_on, begun, ended = threading.Event(), threading.Semaphore(0), threading.Semaphore(0)

    def slow(progress: Any) -> None:
        begun.release()
        assert go_on.wait(PATIENCE_S)
        for number in range(5000):
            progress(f"line {number}")
        ended.release()

    daemon.operations.gate = slow
    for _ in range(2):
        connected, client = open_stream(daemon, "clean")
        client.recv(20)
        connected.__exit__(None, None, None)  # and disconnects
        assert begun.acquire(timeout=PATIENCE_S)
    refused = daemon.administer("clean")
    assert (refused.status, refused.headers["retry-after"]) == (429, "2")
    assert daemon.call("GET", "/readyz").status == 200
    go_on.set()
    assert ended.acquire(timeout=PATIENCE_S)
    assert ended.acquire(timeout=PATIENCE_S)
    until("there is room again", lambda: daemon.administer("clean").status == 200)


def test_work_that_hangs_locks_out_neither_status_nor_reload(daemon: Daemon) -> None:
    go_on, begun, ended = threading.Event(), threading.Semaphore(0), threading.Semaphore(0)

    def hanging(_: Any) -> None:
        begun.release()
        assert go_on.wait(PATIENCE_S)
        ended.release()

    daemon.operations.gate = hanging
    for _ in range(admin.UNDER_WAY_MAX):
        connected, client = open_stream(daemon, "archive")
        client.recv(20)
        connected.__exit__(None, None, None)
        assert begun.acquire(timeout=PATIENCE_S)
    assert daemon.administer("archive").status == 429
    assert daemon.call("GET", "/v1/admin/status", headers=BEARER).status == 200
    assert "done" in daemon.administer("reload").lines()[-1]
    go_on.set()
    for _ in range(admin.UNDER_WAY_MAX):
        assert ended.acquire(timeout=PATIENCE_S)


def test_the_end_of_the_daemon_is_reported_to_all_who_wait(tmp_path: Path) -> None:
    go_on = threading.Event()
    try:
        with Daemon(Deployment(tmp_path / "d")) as daemon:
            daemon.operations.gate = lambda _: [None, None][go_on.wait(PATIENCE_S)]
            connected, client = open_stream(daemon, "clean")
            client.recv(20)
            daemon.server.stop(0.2)
            last = read_all(client).split(b"\r\n")[-4]
            connected.__exit__(None, None, None)
            error = json.loads(last)["error"]
            assert (error["type"], error["exit_code"]) == ("OutcomeUnknown", 2)
            go_on.set()
            until(
                "the work has ended",
                lambda: not [one for one in threading.enumerate() if one.name == "admin-clean"],
            )
    finally:
        go_on.set()
