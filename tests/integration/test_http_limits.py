"""The limits of the port: a request that is too large, too slow or too many is refused whole; the others are
not disturbed.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import logging
import os
import re
import resource
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from archiver.runtime.clock import SystemClock
from archiver.web import connection
from archiver.web.listener import Listener
from intake.write.acknowledgements import PendingRecord
from intake.write.writer import IntakeWriter
from tests.support.builders.deployment import Deployment
from tests.support.process.processes import until
from tests.support.process.web import PATIENCE_S, Daemon, Reply, read_all

GOOD = b'{"value": "YQ=="}\n'
NDJSON = "application/x-ndjson"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(Deployment(tmp_path / "d"), body_bytes_max=2000, records_max=5) as daemon:
        yield daemon


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def head(length: int | None = None, topic: str = "clicks", kind: str = NDJSON) -> bytes:
    size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    return (
        f"POST /v1/topics/{topic}/records HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
        f"{kind}\r\n{size}\r\n\r\n"
    ).encode()


def answer(reply: bytes) -> tuple[int, str]:
    """Status and body of the first answer."""
    first, _, body = reply.partition(b"\r\n\r\n")
    return int(first.split()[1]), body.decode()


def receive(client: socket.socket) -> bytes:
    """One answer whose length is announced."""
    reply = b""
    while b"\r\n\r\n" not in reply:
        reply += client.recv(1)
    length = next(
        int(line[15:]) for line in reply.lower().split(b"\r\n") if line.startswith(b"content-length:")
    )
    while length > 0:
        piece = client.recv(length)
        assert piece, "cut off"
        reply, length = reply + piece, length - len(piece)
    return reply


def test_an_announced_size_is_refused_before_any_of_it_is_there(daemon: Daemon) -> None:
    with daemon.raw() as client:
        client.sendall(head(2001).replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"))
        status, body = answer(receive(client))
    assert status == 413
    assert "larger than http.body_bytes_max = 2000 bytes" in body


def test_a_size_that_no_one_announced_is_counted(daemon: Daemon) -> None:
    with daemon.raw() as client:
        client.sendall(head())
        for _ in range(3):
            client.sendall(chunk(GOOD * 40))  # without an end: a reader that waits for one waits for ever
        status, body = answer(receive(client))
    assert status == 413
    assert "nothing was sent" in body
    assert daemon.stored("clicks") == {}


def test_a_client_that_sends_all_of_a_large_body_first_gets_its_answer_and_may_go_on(daemon: Daemon) -> None:
    connected = http.client.HTTPConnection(*daemon.address, timeout=PATIENCE_S)
    try:
        connected.request("POST", "/v1/topics/clicks/records", GOOD * 100_000, {"Content-Type": NDJSON})
        refused = connected.getresponse()
        assert refused.status == 413
        refused.read()
        connected.request("POST", "/v1/topics/clicks/records", GOOD, {"Content-Type": NDJSON})
        taken = connected.getresponse()
        assert (taken.status, json.loads(taken.read())["offset"]) == (200, 0)
    finally:
        connected.close()


def test_at_the_limit_is_within_it(daemon: Daemon) -> None:
    body = GOOD * 5
    assert daemon.send("clicks", body + b"\n" * (2000 - len(body))).status == 200
    refused = daemon.send("clicks", body + GOOD)
    assert refused.status == 413
    assert "more than http.records_max = 5 records" in refused.error
    assert len(daemon.stored("clicks")) == 5


@pytest.mark.parametrize(
    ("kind", "headers", "reported"),
    [
        ("application/json", {}, "the content type 'application/json' is not accepted"),
        ("", {}, "the content type '' is not accepted"),
        (f"{NDJSON}; charset=latin-1", {}, "the charset latin-1 is not accepted"),
        (NDJSON, {"Content_Encoding": "gzip"}, "the content encoding 'gzip' is not accepted"),
        (NDJSON, {"Content_Encoding": "identity, br"}, "the content encoding 'identity, br' is not accepted"),
    ],
)
def test_types_and_encodings_that_are_not_taken(
    daemon: Daemon, kind: str, headers: dict[str, str], reported: str
) -> None:
    reply = daemon.send("clicks", GOOD, kind, **headers)
    assert (reply.status, reported in reply.error) == (415, True), reply.error
    assert "nothing was" in reply.error
    assert daemon.stored("clicks") == {}


@pytest.mark.parametrize(
    ("query", "kind", "reported"),
    [
        ("?txt=true", NDJSON, "there is no parameter 'txt'"),
        ("?text=yes", NDJSON, "text=yes is not understood"),
        ("?text=true&text=false", NDJSON, "once"),
        ("?text=true", "application/x-protobuf", "text=true is for JSON lines"),
    ],
)
def test_parameters_are_not_guessed(daemon: Daemon, query: str, kind: str, reported: str) -> None:
    reply = daemon.send("clicks", b"", kind, query)
    assert (reply.status, reported in reply.error) == (400, True), reply.error


@pytest.mark.parametrize("topic", ["nix", "..", "a%2Fb", "%00", "%ff", "orders%20"])
def test_a_topic_that_does_not_exist(daemon: Daemon, topic: str) -> None:
    reply = daemon.send(topic, GOOD)
    assert reply.status == 404, reply.body


def test_a_body_that_does_not_come_in_time(tmp_path: Path) -> None:
    with Daemon(Deployment(tmp_path / "d"), request_timeout=5, requests_max=1) as daemon:
        with daemon.raw() as slow:
            slow.sendall(head(1000) + GOOD)
            status, body = answer(read_all(slow))
        assert status == 408
        assert "only 18 bytes of the body arrived within http.request_timeout = 5 s" in body
        assert daemon.send("clicks", GOOD).status == 200
        assert len(daemon.stored("clicks")) == 1


def test_a_client_that_leaves_inside_its_body_leaves_nothing(tmp_path: Path) -> None:
    with Daemon(Deployment(tmp_path / "d"), requests_max=1) as daemon:
        for _ in range(3):
            with daemon.raw() as client:
                client.sendall(head(1000) + GOOD)
        until("the place is free again", lambda: daemon.send("clicks", GOOD).status == 200)
        assert len(daemon.stored("clicks")) == 1


def test_requests_max_are_worked_on_and_the_others_come_back_later(tmp_path: Path) -> None:
    with Daemon(
        Deployment(tmp_path / "d", overrides={"intake": {"delay_max": "1h"}}), requests_max=2
    ) as daemon:
        held: list[Reply] = []
        threads = [threading.Thread(target=lambda: held.append(daemon.send("files", GOOD))) for _ in range(2)]
        for thread in threads:
            thread.start()
        assert daemon.writer is not None
        writer = daemon.writer
        until("both are handed over", lambda: writer.metrics().records_accepted == 2)
        refused = daemon.send("files", GOOD)
        assert (refused.status, refused.headers["retry-after"]) == (429, "2")
        assert "http.requests_max = 2" in refused.error
        assert daemon.call("GET", "/healthz").status == 200
        writer.flush()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert [reply.status for reply in held] == [200, 200]
        assert len(daemon.stored("files")) == 2


def test_without_a_writer(daemon: Daemon, tmp_path: Path) -> None:
    writer, daemon.writer = daemon.writer, None
    refused = daemon.send("clicks", GOOD)
    assert (refused.status, refused.headers["retry-after"]) == (429, "2")
    assert "not open yet" in refused.error
    daemon.journal.becomes("stopping")
    refused = daemon.send("clicks", GOOD)
    assert (refused.status, refused.headers["retry-after"]) == (503, "2")
    daemon.journal.becomes("serving")
    daemon.writer = writer
    assert writer is not None
    writer.close()
    refused = daemon.send("clicks", GOOD)
    assert (refused.status, "the writer is closed" in refused.error) == (503, True)
    with Daemon(Deployment(tmp_path / "other"), roles=frozenset({"archive"})) as other:
        refused = other.send("clicks", GOOD)
        assert (refused.status, "has not the role intake" in refused.error) == (503, True)


def test_a_thousand_at_once_before_a_tiny_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each record is acknowledged at one offset, or its request is refused and none of it is stored."""
    # A thousand clients share a thread with each other: on a busy machine the last ones send late.
    monkeypatch.setattr(connection, "HEAD_S", PATIENCE_S)
    overrides = {
        "intake": {
            "delay_max": "20ms",
            "queue_bytes_max": 4000,
            "delay_max_bytes": 2000,
            "record_bytes_max": 1000,
        }
    }
    with Daemon(Deployment(tmp_path / "d", overrides=overrides), requests_max=40) as daemon:
        replies = asyncio.run(_all_at_once(daemon.address, 1000))
        statuses = Counter(status for status, _ in replies)
        assert set(statuses) <= {200, 429}, statuses
        assert statuses[200] >= 10
        assert statuses[429] >= 10
        places: dict[tuple[int, int], str] = {}
        for number, (status, body) in enumerate(replies):
            if status == 429:
                assert set(json.loads(body)) == {"error"}
                continue
            lines = [json.loads(line) for line in body.splitlines()]
            assert len(lines) == 3
            for row, line in enumerate(lines):
                assert (
                    places.setdefault((line["partition"], line["offset"]), f"{number}-{row}")
                    == f"{number}-{row}"
                )
        stored = {place: (record.value or b"").decode() for place, record in daemon.stored("orders").items()}
        assert stored == places


async def _all_at_once(address: tuple[str, int], count: int) -> list[tuple[int, str]]:
    async def one(number: int) -> tuple[int, str]:
        reader, writer = await asyncio.open_connection(*address)
        body = b"".join(json.dumps({"value": f"{number}-{row}"}).encode() + b"\n" for row in range(3))
        request = (
            head(len(body), "orders")
            .replace(b"/records ", b"/records?text=true ")
            .replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        )
        try:
            writer.write(request + body)
            return answer(await reader.read())
        finally:
            writer.close()
            await writer.wait_closed()

    return list(await asyncio.gather(*(one(number) for number in range(count))))


def test_pipelined_requests_are_answered_in_order(daemon: Daemon) -> None:
    with daemon.raw() as client:
        second = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        client.sendall(head(len(GOOD)) + GOOD + head(3) + b"{x}" + second)
        replies = read_all(client)
    assert re.findall(rb"HTTP/1\.1 (\d+)", replies) == [b"200", b"400", b"200"]


def test_a_head_that_trickles_in_is_not_waited_for(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_S", 0.3)
    with daemon.raw() as client:
        client.settimeout(0.05)
        for letter in b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + b"X" * 10_000:
            try:
                client.sendall(bytes([letter]))
                if client.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            pytest.fail("the server still waits")
    assert daemon.call("GET", "/healthz").status == 200


def test_a_connection_may_rest_between_two_requests(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_S", 0.6)
    with daemon.raw() as client:
        for _ in range(2):
            client.sendall(head(len(GOOD)) + GOOD)
            assert answer(receive(client))[0] == 200
            threading.Event().wait(1.0)
        client.sendall(b"GET /hea")
        assert read_all(client) == b"", "a head that was begun must come to its end"
    with daemon.raw() as silent:
        assert read_all(silent) == b"", "and so must the first one"


def test_too_many_connections_are_closed(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Listener, "connections_max", 3)
    clients = [socket.create_connection(daemon.address, timeout=PATIENCE_S) for _ in range(5)]
    try:
        closed = 0
        for client in clients[3:]:
            try:
                closed += client.recv(1) == b""
            except ConnectionError:
                closed += 1
        assert closed == 2
        clients[0].sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert clients[0].recv(100).startswith(b"HTTP/1.1 200")
    finally:
        for client in clients:
            client.close()


def test_a_lack_of_descriptors_is_logged_once_and_over(
    daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    """asyncio's own loop logged each of 1,024 attempts with a traceback, and began as many further loops a
    second later."""
    assert daemon.call("GET", "/healthz").status == 200, "its own descriptors are open"
    caplog.set_level(logging.INFO)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    clients = [socket.socket() for _ in range(4)]
    others: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(client.fileno() for client in clients) + 10, hard))
        with contextlib.suppress(OSError):
            while True:
                others.append(os.dup(0))
        for client in clients:
            client.settimeout(PATIENCE_S)
            client.connect(daemon.address)
        until("it is logged", lambda: "cannot accept a connection" in caplog.text)
        SystemClock().sleep(1.5)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for client in clients:
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 200")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for other in others:
            os.close(other)
        for client in clients:
            client.close()
    assert len([record for record in caplog.records if "accept" in record.getMessage()]) == 1
    assert [record for record in caplog.records if record.exc_info] == []


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00",
        b"GET / HTTP/1.1\r\n\r\n",
        b"POST /v1/topics/clicks/records HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
        head(3).replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n") + b"0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 2_000_000,
        head() + b"zz\r\n",
    ],
)
def test_what_is_no_http_is_answered_with_400_and_harms_no_one(daemon: Daemon, garbage: bytes) -> None:
    with daemon.raw() as client:
        try:
            client.sendall(garbage + b"\r\n\r\n")
            reply = read_all(client)
        except ConnectionError:
            reply = b""  # It was refused while it was still being sent.
    assert reply[:12] in (b"HTTP/1.1 400", b"")
    assert daemon.call("GET", "/healthz").status == 200
    assert daemon.stored("clicks") == {}


def test_the_last_outcome_wakes_and_is_reported_once() -> None:
    reported: list[int] = []
    lock = threading.Condition()
    pending = PendingRecord("t", 0, lock, lambda: reported.append(1))
    from intake.write.acknowledgements import OK, FlushOutcome

    assert pending.set_outcome(3, OK)
    assert not pending.set_outcome(4, FlushOutcome("unknown", "late"))
    assert (reported, pending.result(0).offset) == ([1], 3)


def test_a_topic_whose_records_take_long_to_check_keeps_no_other_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two such requests held all threads that parse, and another topic's record waited for 55 s."""
    gate, begun, deployment = threading.Event(), threading.Semaphore(0), Deployment(tmp_path / "d")
    with Daemon(deployment) as daemon:
        taken = IntakeWriter.check_topic

        def check_topic(writer: IntakeWriter, topic: str) -> None:
            if topic == "slow":
                begun.release()
                gate.wait(PATIENCE_S)
            taken(writer, topic)

        monkeypatch.setattr(IntakeWriter, "check_topic", check_topic)
        slow = [threading.Thread(target=daemon.send, args=("slow", GOOD)) for _ in range(6)]
        for one in slow:
            one.start()
        try:
            assert all(begun.acquire(timeout=PATIENCE_S) for _ in range(2))
            assert daemon.send("clicks", GOOD).status == 200
            assert not gate.is_set()
        finally:
            gate.set()
            for one in slow:
                one.join(PATIENCE_S)
