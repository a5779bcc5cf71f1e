"""Clients that send or read slowly: they are disconnected within a bound, keep no other client out, and their
buffers are bounded.
"""

from __future__ import annotations

import contextlib
import http.client
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from archiver.config.daemon import HttpTlsSettings
from archiver.runtime.clock import SystemClock
from archiver.web import bodies, listener, produce
from archiver.web.app import create_app
from archiver.web.bodies import BodyBudget
from archiver.web.connection import TimeoutProtocol
from archiver.web.listener import UNREAD_S, UNSENT_BYTES_MAX, WINDOW_BYTES_MIN, WriteWatch
from archiver.web.server import WebServer
from tests.integration.test_http_limits import GOOD, NDJSON, answer, chunk, head, receive
from tests.support.builders.deployment import Deployment
from tests.support.log.etcd_certificates import make_certificates
from tests.support.process.processes import until
from tests.support.process.web import PATIENCE_S, Daemon, read_all

PAGE_BYTES = 20_000_000
GET_PAGE = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
Dial = Callable[[], socket.socket]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(Deployment(tmp_path / "d")) as daemon:
        yield daemon


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> list[TimeoutProtocol]:
    """Connections that the server has released."""
    found: list[TimeoutProtocol] = []
    before = TimeoutProtocol.connection_lost

    def observed(self: TimeoutProtocol, error: Exception | None) -> None:
        before(self, error)
        found.append(self)

    monkeypatch.setattr(TimeoutProtocol, "connection_lost", observed)
    return found


@contextlib.contextmanager
def large_page(daemon: Daemon, tmp_path: Path, secure: bool) -> Iterator[Dial]:
    """A server with a large status page; yields a function that connects to it."""
    context, tls = None, None
    if secure:
        made = make_certificates(tmp_path / "tls")
        tls, context = (
            HttpTlsSettings(cert_file=made.server, key_file=made.server_key),
            ssl.create_default_context(cafile=made.authority),
        )
    server = WebServer(
        create_app(replace(daemon.face, metrics=lambda: b"x" * PAGE_BYTES)), "127.0.0.1:0", 1.0, tls
    )
    server.start()

    def dial() -> socket.socket:
        assert server.address is not None
        plain = socket.socket()
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        plain.settimeout(PATIENCE_S)
        plain.connect(server.address)
        return plain if context is None else context.wrap_socket(plain, server_hostname="127.0.0.1")

    try:
        yield dial
    finally:
        server.stop(1.0)


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
def test_an_unread_answer_is_not_kept(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lost: list[Any], secure: bool
) -> None:
    monkeypatch.setattr(listener, "UNREAD_S", 0.3)
    with large_page(daemon, tmp_path, secure) as dial:
        with dial() as client:
            client.sendall(GET_PAGE)
            until("a client that reads nothing is cut off", lambda: lost)
        monkeypatch.setattr(listener, "UNREAD_S", PATIENCE_S)
        with dial() as client:
            client.sendall(GET_PAGE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
            assert len(read_all(client)) > PAGE_BYTES, "a client that reads gets all of it"


def test_more_requests_do_not_prolong_an_unread_answer(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lost: list[Any]
) -> None:
    """The second answer is never complete, because it waits for the first. Before the fix its timer never
    began, and the connection stayed for ever."""
    monkeypatch.setattr(listener, "UNREAD_S", 0.5)
    with large_page(daemon, tmp_path, False) as dial, dial() as client:
        client.sendall(GET_PAGE * 2)
        until("it is cut off", lambda: lost)


def test_a_client_that_reads_a_few_bytes_now_and_then_is_cut_off(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lost: list[Any]
) -> None:
    monkeypatch.setattr(listener, "UNREAD_S", 1.0)
    with large_page(daemon, tmp_path, False) as dial, dial() as client:
        client.sendall(GET_PAGE)

        def read_one() -> bool:
            with contextlib.suppress(OSError):
                client.recv(1)
            return bool(lost)

        until("it is cut off although it reads", read_one)


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair()


def is_cut_off(other: socket.socket) -> bool:
    other.setblocking(False)
    try:
        return other.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_the_rule_for_slow_readers() -> None:
    """With a manual clock: a client that reads enough in each window stays until the longest time is over."""
    steady, slow, fast = pair(), pair(), pair()
    watch = WriteWatch()
    for one in (steady, slow, fast):
        watch.sent(one[0], 10**7, 1000)
    watch.inspect(0.0)
    watch.sent(fast[0], 10**6, 10**6)
    now_s = 0.0
    for _ in range(5):
        watch.sent(steady[0], 10**6, WINDOW_BYTES_MIN)
        watch.sent(slow[0], 10**6, WINDOW_BYTES_MIN - 1001 if now_s == 0 else 0)
        now_s += UNREAD_S
        watch.inspect(now_s)
        assert is_cut_off(slow[1])
        assert not is_cut_off(steady[1])
    watch.inspect(listener.BACKLOG_S)
    assert is_cut_off(steady[1]), "however much it takes, an answer ends"
    watch.inspect(10 * listener.BACKLOG_S)
    assert not is_cut_off(fast[1]), "what took everything is not watched any more"
    assert watch.unsent == 0
    for end in (*steady, *slow, *fast):
        end.close()


def test_what_waits_for_all_clients_together_is_bounded() -> None:
    pairs = [pair() for _ in range(4)]
    watch = WriteWatch()
    for one in pairs[:2]:
        watch.sent(one[0], UNSENT_BYTES_MAX // 2, 0)
    assert not any(is_cut_off(one[1]) for one in pairs)
    watch.sent(pairs[2][0], UNSENT_BYTES_MAX // 2, 0)
    assert [is_cut_off(one[1]) for one in pairs] == [True, False, False, False], "the one that waited longest"
    watch.sent(pairs[3][0], 2 * UNSENT_BYTES_MAX, 0)
    assert [is_cut_off(one[1]) for one in pairs] == [True, True, True, False], "the last one stays"
    watch.forget(pairs[3][0])
    assert watch.unsent == 0
    for one in pairs:
        for end in one:
            end.close()


def test_slow_bodies_take_no_place_from_others(tmp_path: Path) -> None:
    with Daemon(Deployment(tmp_path / "d"), requests_max=3) as daemon, contextlib.ExitStack() as stack:
        slow = [stack.enter_context(daemon.raw()) for _ in range(20)]
        for one in slow:
            one.sendall(head(1000) + GOOD)
        for _ in range(20):
            assert daemon.send("clicks", GOOD).status == 200
        assert len(daemon.stored("clicks")) == 20
        for one in slow[:2]:
            one.sendall(b"\n" * (1000 - len(GOOD)))
            assert answer(receive(one))[0] == 200, "it was waited for"


def test_a_body_that_trickles_in_is_not_waited_for(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "WINDOW_S", 0.5)
    for _ in range(10):
        with daemon.raw() as client, contextlib.suppress(ConnectionError):
            client.sendall(head(100_000))
            # A byte that is sent while the server closes resets the connection, and the answer is lost with it.
            while not select.select([client], [], [], 0.1)[0]:
                client.sendall(b"\n")
            status, body = answer(read_all(client))
            break
    else:
        pytest.fail("no answer in ten attempts")
    assert status == 408
    assert "and fewer than 4096 of them in the last 0.5 s" in body
    assert "nothing was sent" in body


def test_a_body_that_keeps_the_rate_is_waited_for(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "WINDOW_S", 2.0)
    with daemon.raw() as client:
        client.sendall(head())
        for _ in range(30):
            client.sendall(chunk(b"\n" * bodies.WINDOW_BYTES_MIN))
            SystemClock().sleep(0.1)
        client.sendall(chunk(GOOD) + b"0\r\n\r\n")
        assert answer(receive(client))[0] == 200


@pytest.fixture
def budgets(monkeypatch: pytest.MonkeyPatch) -> list[BodyBudget]:
    """The budgets that ports made."""
    found: list[BodyBudget] = []

    def made(bytes_max: int, retry_after_s: float) -> BodyBudget:
        found.append(BodyBudget(bytes_max, retry_after_s))
        return found[-1]

    monkeypatch.setattr(produce, "BodyBudget", made)
    return found


def test_what_is_held_of_all_bodies_is_bounded(tmp_path: Path, budgets: list[BodyBudget]) -> None:
    body = GOOD + b"\n" * (100_000 - len(GOOD))
    with (
        Daemon(Deployment(tmp_path / "d"), body_bytes_max=100_000, requests_max=2) as daemon,
        contextlib.ExitStack() as stack,
    ):
        waiting = [stack.enter_context(daemon.raw()) for _ in range(2)]
        for one in waiting:
            one.sendall(head(100_000) + body[:-1])
        until("both are held", lambda: budgets[0].held == 199_998)
        refused = daemon.send("clicks", body)
        assert (refused.status, "bodies of 200000 bytes are open" in refused.error) == (429, True)
        assert "nothing was sent" in refused.error
        for one in waiting:
            one.sendall(body[-1:])
            assert answer(receive(one))[0] == 200
        until("everything is given back", lambda: budgets[0].held == 0)
        assert daemon.send("clicks", body).status == 200
        assert len(daemon.stored("clicks")) == 3


def test_a_budget_is_given_back_however_a_request_ends() -> None:
    budget = BodyBudget(10, 1.0)
    with contextlib.suppress(ValueError), budget.share() as share:
        share.take(10)
        assert budget.held == 10
        raise ValueError
    assert budget.held == 0
    with budget.share() as share:
        share.take(4)
        with pytest.raises(Exception, match="bodies of 10 bytes are open"):
            share.take(7)
        share.take(6)
    assert budget.held == 0


def test_a_request_for_which_there_is_no_place_once_its_body_is_there_is_refused(tmp_path: Path) -> None:
    with Daemon(
        Deployment(tmp_path / "d", overrides={"intake": {"delay_max": "1h"}}), requests_max=1
    ) as daemon:
        assert daemon.writer is not None
        writer = daemon.writer
        with daemon.raw() as late:
            late.sendall(head(len(GOOD), "files") + GOOD[:-1])
            statuses: list[int] = []
            sender = threading.Thread(target=lambda: statuses.append(daemon.send("files", GOOD).status))
            sender.start()
            until("the other is handed over", lambda: writer.metrics().records_accepted == 1)
            late.sendall(GOOD[-1:])
            status, body = answer(receive(late))
            assert (status, "http.requests_max = 1" in body) == (429, True)
        writer.flush()
        sender.join(PATIENCE_S)
        assert statuses == [200]
        assert len(daemon.stored("files")) == 1


def test_a_connection_that_was_refused_in_its_body_can_be_used_again(
    tmp_path: Path, budgets: list[BodyBudget]
) -> None:
    with Daemon(Deployment(tmp_path / "d"), body_bytes_max=1024, requests_max=1) as daemon:
        connected = http.client.HTTPConnection(*daemon.address, timeout=PATIENCE_S)
        with daemon.raw() as holder:
            holder.sendall(head(1024) + b"\n" * 1023)
            until("it is held", lambda: budgets[0].held == 1023)
            connected.request("POST", "/v1/topics/clicks/records", GOOD, {"Content-Type": NDJSON})
            refused = connected.getresponse()
            assert (refused.status, refused.headers["retry-after"]) == (429, "2")
            refused.read()
            holder.sendall(b"\n")
            assert answer(receive(holder))[0] == 200
        until("it is given back", lambda: budgets[0].held == 0)
        connected.request("POST", "/v1/topics/clicks/records", GOOD, {"Content-Type": NDJSON})
        assert connected.getresponse().status == 200
        connected.close()
