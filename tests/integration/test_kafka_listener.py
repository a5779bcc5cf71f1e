"""The port of the Kafka protocol: order of answers, limits, and its stop, over real sockets."""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from archiver.config.kafka_listener import KafkaListenerSettings
from archiver.kafka import listener as kafka_listener
from archiver.kafka.listener import WOKEN_S, Body, KafkaServer, MemoryBudget, Session
from archiver.kafka.membership import Membership
from archiver.kafka.protocol import ApiKey, KafkaRequest
from archiver.runtime.clock import SystemClock, uptime_s
from archiver.runtime.ids import SystemIds
from archiver.web import listener
from tests.support.amount import WHOLE
from tests.support.kafka.wire import WireClient, request_bytes
from tests.support.log.memory_brokers import BrokerPlace, MemoryBrokers
from tests.support.process.processes import until

pytestmark = pytest.mark.timeout(60)

FETCH = {"max_wait": 0, "min_bytes": 1, "max_bytes": 1, "isolation_level": 0, "topics": []}


class Handler:
    """Answers ApiVersions when it is allowed to, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.held: dict[int, asyncio.Event] = {}
        self.hold = False
        self.keys = 0
        self.server: KafkaServer | None = None

    async def __call__(self, session: Session, request: KafkaRequest) -> Body | None:
        self.asked.append(request.correlation_id)
        if self.hold:
            event = self.held[request.correlation_id] = asyncio.Event()
            await event.wait()
        if request.client_id == "break":
            raise ValueError("a defect")
        if request.client_id == "silent":
            return None
        key = {"api_key": 0, "min_version": 0, "max_version": 0}
        return {"error_code": 0, "api_keys": [key] * self.keys}

    def release(self, correlation_id: int) -> None:
        """Answer a request that is held."""
        assert self.server is not None
        loop = self.server.loop
        assert loop is not None
        until("the request is in work", lambda: correlation_id in self.held)
        loop.call_soon_threadsafe(self.held[correlation_id].set)


@pytest.fixture
def handler() -> Handler:
    return Handler()


def _served(
    handler: Handler,
    connections_max: int = 100,
    new: Callable[[str, ssl.SSLObject | None], Session] = lambda peer, _: Session(peer),
    pause_max_s: float = 60.0,
    **settings: Any,
) -> KafkaServer:
    found = KafkaListenerSettings.model_validate({"listen": "127.0.0.1:0", **settings})
    handler.server = KafkaServer(handler, found, 1.0, connections_max, pause_max_s, new)
    handler.server.start()
    assert handler.server.address is not None
    return handler.server


@pytest.fixture
def server(handler: Handler) -> Iterator[KafkaServer]:
    server = _served(handler)
    yield server
    server.stop(5)


def _address(server: KafkaServer) -> tuple[str, int]:
    assert server.address is not None
    return server.address


def _versions(client: WireClient) -> int:
    return client.send(ApiKey.API_VERSIONS, 0, {})


def _correlation(client: WireClient) -> int:
    found: int = struct.unpack_from(">i", client.receive())[0]
    return found


def test_answers_have_the_order_of_the_requests(server: KafkaServer, handler: Handler) -> None:
    handler.hold = True
    with WireClient(_address(server)) as client:
        sent = [_versions(client) for _ in range(5)]
        until("all are in work", lambda: len(handler.held) == 5)
        assert handler.asked == sent
        for one in reversed(sent):
            handler.release(one)
        assert [_correlation(client) for _ in sent] == sent


@pytest.mark.parametrize(
    ("joined_max", "sizes"),
    [(kafka_listener.JOINED_BYTES_MAX, [1, 5]), (30, [1, 2, 1, 2])],
    ids=["all", "bound"],
)
def test_answers_that_are_ready_together_are_sent_together(
    server: KafkaServer,
    handler: Handler,
    monkeypatch: pytest.MonkeyPatch,
    joined_max: int,
    sizes: list[int],
) -> None:
    monkeypatch.setattr(kafka_listener, "JOINED_BYTES_MAX", joined_max)
    sends: list[int] = []
    sent_of = listener.WriteWatch.sent

    def sent(watch: listener.WriteWatch, connection: socket.socket, offered: int, taken: int) -> None:
        sends.append(offered)
        sent_of(watch, connection, offered, taken)

    monkeypatch.setattr(listener.WriteWatch, "sent", sent)
    handler.hold = True
    with WireClient(_address(server)) as client:
        asked = [_versions(client) for _ in range(6)]
        until("all are in work", lambda: len(handler.held) == 6)
        handler.release(asked[0])
        # It does not wait for those behind it.
        assert _correlation(client) == asked[0]

        def release_all() -> None:
            for event in handler.held.values():
                event.set()

        assert server.loop is not None
        server.loop.call_soon_threadsafe(release_all)
        assert [_correlation(client) for _ in asked[1:]] == asked[1:]
        # The client may have an answer before its send is counted.
        until("every send is counted", lambda: sum(sends) == len(asked) * sends[0])
    assert sends == [count * sends[0] for count in sizes]


def test_a_request_without_an_answer_leaves_the_next_one_alone(server: KafkaServer) -> None:
    with WireClient(_address(server)) as client:
        client.socket.sendall(request_bytes(ApiKey.API_VERSIONS, 0, 77, {}, client_id="silent"))
        sent = _versions(client)
        assert _correlation(client) == sent


def test_requests_of_a_connection_in_work_are_bounded(handler: Handler) -> None:
    handler.hold = True
    server = _served(handler, requests_per_connection_max=3)
    try:
        with WireClient(_address(server)) as client, WireClient(_address(server)) as other:
            sent = [_versions(client) for _ in range(20)]
            # One more than the bound is started: it waits for its place in the queue of answers, and the
            # writer holds another one.
            until("the bound is reached", lambda: len(handler.held) == 5)
            # Another connection goes on, and gives the first one time to exceed its bound.
            handler.hold = False
            _correlation_of = _versions(other)
            assert _correlation(other) == _correlation_of
            assert len([one for one in handler.asked if one in sent]) <= 6
            handler.hold = False
            for one in sent[:5]:
                handler.release(one)
            assert [_correlation(client) for _ in sent] == sent
    finally:
        server.stop(5)


@pytest.mark.parametrize("paused_s", [40.0, 61.0])
def test_what_waited_in_a_socket_for_a_long_pause_of_the_process_is_not_accepted(
    handler: Handler, monkeypatch: pytest.MonkeyPatch, paused_s: float
) -> None:
    asleep_s = 0.0
    monkeypatch.setattr("archiver.kafka.listener.uptime_s", lambda: uptime_s() + asleep_s)
    server = _served(handler, pause_max_s=60.0)
    try:
        with WireClient(_address(server)) as client, WireClient(_address(server)) as idle:
            for one in (client, idle):
                _versions(one)
                _correlation(one)
            assert server.loop is not None
            awake = threading.Event()
            server.loop.call_soon_threadsafe(awake.wait)
            waits = _versions(client)
            with WireClient(_address(server)) as not_accepted:
                _versions(not_accepted)
                asleep_s += paused_s
                awake.set()
                if paused_s < 60:
                    assert _correlation(client) == waits
                    return
                assert client.closed()
                assert idle.closed()
                assert not_accepted.closed()
            assert len(handler.asked) == 2
        asleep_s += WOKEN_S
        with WireClient(_address(server)) as again:
            sent = _versions(again)
            assert _correlation(again) == sent
    finally:
        server.stop(5)


@pytest.mark.parametrize("size", [-1, 0, 2**31 - 1, 2**20 + 1])
def test_a_size_out_of_bounds_closes_the_connection(handler: Handler, size: int) -> None:
    server = _served(handler, request_bytes_max=2**20)
    try:
        with WireClient(_address(server)) as client:
            client.socket.sendall(struct.pack(">i", size))
            assert client.closed()
        assert server.counts.refused == {"too_large": 1}
    finally:
        server.stop(5)


@pytest.mark.parametrize("data", [b"\x00" * 9, b"GET / HTTP/1.1", b"\xff" * 50])
def test_bytes_that_are_no_request_close_the_connection(server: KafkaServer, data: bytes) -> None:
    with WireClient(_address(server)) as client:
        client.socket.sendall(struct.pack(">i", len(data)) + data)
        assert client.closed()
    assert server.counts.refused == {"malformed": 1}


def test_what_was_asked_before_a_bad_request_is_answered(server: KafkaServer, handler: Handler) -> None:
    handler.hold = True
    with WireClient(_address(server)) as client:
        sent = _versions(client)
        client.socket.sendall(struct.pack(">i", 4) + b"junk")
        handler.release(sent)
        assert _correlation(client) == sent
        assert client.closed()


def test_a_defect_closes_its_connection_only(server: KafkaServer, caplog: pytest.LogCaptureFixture) -> None:
    with WireClient(_address(server)) as client, WireClient(_address(server)) as other:
        client.socket.sendall(request_bytes(ApiKey.API_VERSIONS, 0, 1, {}, client_id="break"))
        assert client.closed()
        sent = _versions(other)
        assert _correlation(other) == sent
    assert "API_VERSIONS of Kafka client 127.0.0.1" in caplog.text
    assert server.counts.refused == {"failed": 1}


def test_a_client_that_sends_nothing_is_cut_off(handler: Handler) -> None:
    server = _served(handler, authentication_timeout=0.2)
    try:
        with WireClient(_address(server)) as client:
            assert client.closed()
        assert server.counts.refused == {"slow": 1}
    finally:
        server.stop(5)


def test_requests_do_not_lengthen_the_time_of_the_authentication(handler: Handler) -> None:
    """With a time for each request, a client without a password could keep its place for ever."""
    server = _served(
        handler, new=lambda peer, _: Session(peer, authenticated=False), authentication_timeout=1
    )
    try:
        with WireClient(_address(server)) as client, pytest.raises(OSError):
            _ask_for_ever(client)
        assert server.counts.refused == {"slow": 1}
    finally:
        server.stop(5)


def _ask_for_ever(client: WireClient) -> None:
    while True:
        _versions(client)
        _correlation(client)


def test_the_time_of_the_authentication_ends_with_it(handler: Handler) -> None:
    sessions: list[Session] = []

    def new(peer: str, _: object) -> Session:
        sessions.append(Session(peer, authenticated=False))
        return sessions[-1]

    server = _served(handler, new=new, authentication_timeout=2)
    try:
        with WireClient(_address(server)) as client, WireClient(_address(server)) as other:
            sent = _versions(client)
            assert _correlation(client) == sent
            # While the listener waits for the next request already.
            sessions[0].authenticated = True
            # The other client connected later, so the time of the first is over as well.
            assert other.closed()
            sent = _versions(client)
            assert _correlation(client) == sent
    finally:
        server.stop(5)


# On a busy machine 200 connections come in a second.
@pytest.mark.timeout(240)
def test_many_silent_connections_leave_room_again(handler: Handler) -> None:
    """10,000 in the whole run as far as descriptors allow: each takes one here and one in the listener."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(10_000 if WHOLE else 600, (descriptors - 200) // 2)
    places = count // 2
    server = _served(handler, connections_max=places, authentication_timeout=300)
    try:
        silent = [socket.create_connection(_address(server), 30) for _ in range(count)]
        until("those beyond the limit are closed", lambda: server.counts.connections == places)
        for one in silent:
            one.close()
        until("all are gone", lambda: server.counts.connections == 0)
        with WireClient(_address(server)) as client:
            sent = _versions(client)
            assert _correlation(client) == sent
        assert server.counts.refused == {}
    finally:
        server.stop(5)


def test_a_client_that_never_reads_is_cut_off(handler: Handler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "UNREAD_S", 0.8)
    handler.keys = 100_000
    server = _served(handler, authentication_timeout=60)
    try:
        with WireClient(_address(server)) as client, WireClient(_address(server)) as other:
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            for _ in range(12):
                _versions(client)
            until("it is cut off", lambda: server.counts.connections == 1)
            # What waited for it is given up: the bytes of its requests as well.
            handler.keys = 0
            sent = _versions(other)
            assert _correlation(other) == sent
    finally:
        server.stop(5)


def test_a_request_that_does_not_arrive_is_cut_off(handler: Handler) -> None:
    server = _served(handler, request_timeout=0.2)
    try:
        with WireClient(_address(server)) as client:
            client.socket.sendall(struct.pack(">i", 100) + b"\x00" * 50)
            assert client.closed()
        assert server.counts.refused == {"slow": 1}
    finally:
        server.stop(5)


def test_connections_beyond_the_limit_are_closed(handler: Handler) -> None:
    server = _served(handler, connections_max=2)
    try:
        with WireClient(_address(server)) as first, WireClient(_address(server)) as second:
            for client in (first, second):
                sent = _versions(client)
                assert _correlation(client) == sent
            with WireClient(_address(server)) as third:
                assert third.closed()
        until("both are gone", lambda: server.counts.connections == 0)
        with WireClient(_address(server)) as again:
            sent = _versions(again)
            assert _correlation(again) == sent
    finally:
        server.stop(5)


def test_memory_of_requests_is_shared_over_connections(
    handler: Handler, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    granted: list[tuple[int, int]] = []

    class Recorded(MemoryBudget):
        async def take(self, size: int) -> None:
            asked.append(size)
            await super().take(size)
            granted.append((size, self.held))

    monkeypatch.setattr(kafka_listener, "MemoryBudget", Recorded)
    handler.hold = True
    server = _served(handler, request_bytes_max=2**20, requests_bytes_max=2**20)
    # Each request takes more than half of the memory, so the second is not read before the first ends.
    body = {"client_software_name": "x" * 600_000, "client_software_version": "1"}
    large, other = (request_bytes(ApiKey.API_VERSIONS, 3, number, body) for number in (1, 2))
    small = request_bytes(ApiKey.API_VERSIONS, 0, 3, {})
    try:
        with (
            WireClient(_address(server)) as first,
            WireClient(_address(server)) as second,
            WireClient(_address(server)) as third,
        ):
            first.socket.sendall(large)
            until("the first is in work", lambda: handler.asked == [1])
            # The size alone makes the listener ask for the memory.
            second.socket.sendall(other[:4])
            until("the second waits", lambda: len(asked) == 2)
            third.socket.sendall(small)
            until("the third waits as well", lambda: len(asked) == 3)
            # Of the second, only what fits into buffers leaves the client.
            sending = threading.Thread(target=lambda: second.socket.sendall(other[4:]))
            sending.start()
            assert handler.asked == [1]
            handler.release(1)
            assert _correlation(first) == 1
            until("the others are in work", lambda: len(handler.asked) == 3)
            sending.join()
        sizes = [len(request) - 4 for request in (large, other, small)]
        # The first was answered, and its memory was free, before the second had its turn.
        assert granted == [(sizes[0], sizes[0]), (sizes[1], sum(sizes[1:])), (sizes[2], sum(sizes[1:]))]
    finally:
        server.stop(5)


def test_a_stop_answers_what_is_in_work(handler: Handler) -> None:
    handler.hold = True
    server = _served(handler)
    address = _address(server)
    with WireClient(address) as client, WireClient(address):
        sent = _versions(client)
        until("it is in work", lambda: handler.asked == [sent])
        stopping = threading.Thread(target=lambda: server.stop(20))
        stopping.start()
        until("no connection is accepted", lambda: not _accepts(address))
        handler.release(sent)
        assert _correlation(client) == sent
        assert client.closed()
        stopping.join()
    assert server.address is None


def test_a_stop_does_not_wait_longer_than_its_grace(handler: Handler) -> None:
    handler.hold = True
    server = _served(handler)
    with WireClient(_address(server)) as client:
        sent = _versions(client)
        until("it is in work", lambda: handler.asked == [sent])
        server.stop(1.2)
        assert client.closed()


def _accepts(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, 1).close()
    except OSError:
        return False
    return True


def test_turns_of_the_memory_budget_are_in_order() -> None:
    async def run() -> list[str]:
        budget = MemoryBudget(10)
        done: list[str] = []

        async def take(name: str, size: int) -> None:
            await budget.take(size)
            done.append(name)

        await take("a", 8)
        tasks = [asyncio.create_task(take(name, size)) for name, size in (("b", 9), ("c", 1), ("d", 1))]
        await asyncio.sleep(0)
        # There is room for c, but b came first.
        assert done == ["a"]
        tasks[0].cancel()
        await asyncio.gather(tasks[0], return_exceptions=True)
        budget.give(8)
        await asyncio.gather(*tasks[1:])
        assert budget.held == 2
        budget.give(1)
        budget.give(1)
        await take("larger than all", 100)
        assert budget.held == 10
        return done

    assert asyncio.run(run()) == ["a", "c", "d", "larger than all"]


def test_a_cancelled_turn_of_the_memory_budget_wakes_those_behind_it() -> None:
    async def run() -> None:
        budget = MemoryBudget(10)
        await budget.take(8)
        first, second = (asyncio.create_task(budget.take(size)) for size in (9, 1))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait_for(second, 10)
        assert budget.held == 9

    asyncio.run(run())


def test_a_request_that_waits_for_its_place_gives_its_memory_back(handler: Handler) -> None:
    handler.hold = True
    server = _served(
        handler, requests_per_connection_max=1, request_bytes_max=2**20, requests_bytes_max=2**20
    )
    body = {"client_software_name": "x" * 300_000, "client_software_version": "1"}
    try:
        with WireClient(_address(server)) as client, WireClient(_address(server)) as other:
            client.socket.sendall(request_bytes(ApiKey.API_VERSIONS, 3, 1, body, client_id="break"))
            # The second fills the queue of answers, and the third waits for a place in it.
            for number in (2, 3):
                client.socket.sendall(request_bytes(ApiKey.API_VERSIONS, 3, number, body))
            until("all are in work", lambda: len(handler.held) == 3)
            handler.release(1)
            assert client.closed()
            handler.hold = False
            # It needs more than is left if the memory of one of them is lost.
            sent = other.send(ApiKey.API_VERSIONS, 3, body | {"client_software_name": "x" * 900_000})
            assert _correlation(other) == sent
    finally:
        server.stop(5)


def test_fetches_of_a_connection_wait_for_each_other(server: KafkaServer, handler: Handler) -> None:
    handler.hold = True
    with WireClient(_address(server)) as client, WireClient(_address(server)) as other:
        client.socket.sendall(
            b"".join(request_bytes(ApiKey.FETCH, 4, 100 + one, FETCH, client_id="silent") for one in range(3))
            + request_bytes(ApiKey.API_VERSIONS, 0, 103, {})
        )
        until("the first is in work", lambda: handler.asked == [100])
        sent = _versions(other)
        handler.release(sent)
        assert _correlation(other) == sent
        assert handler.asked == [100, sent]
        for one in range(100, 104):
            handler.release(one)
        assert _correlation(client) == 103


class LargeAnswers(Handler):
    """Answers Fetch with more than the kernel keeps for a client that does not read."""

    def __init__(self, pieces: int = 1) -> None:
        super().__init__()
        self.records = [bytes(32 * 2**20 // pieces)] * pieces

    async def __call__(self, session: Session, request: KafkaRequest) -> Body | None:
        self.asked.append(request.correlation_id)
        part = {
            "partition_index": 0,
            "error_code": 0,
            "high_watermark": 1,
            "last_stable_offset": 1,
            "aborted_transactions": None,
            "records": self.records,
        }
        return {"responses": [{"topic": "t", "partitions": [part]}]}


@pytest.mark.parametrize(("limit", "left"), [(2**20, 2), (2**28, 6)])
def test_unread_answers_are_bounded_by_the_settings_of_the_port(limit: int, left: int) -> None:
    """Beyond the limit and 64 MiB, those that wait longest are cut off, and only those."""
    handler = LargeAnswers()
    server = _served(handler, request_bytes_max=2**16, requests_bytes_max=limit, fetch_bytes_max=2**16)
    clients = [WireClient(_address(server)) for _ in range(6)]
    try:
        for client in clients:
            client.send(ApiKey.FETCH, 4, FETCH)
        until("all are answered", lambda: len(handler.asked) == 6)
        until("those beyond the limit are cut off", lambda: server.counts.connections == left)
        answers = [_answer_size(client) for client in clients]
        assert len([size for size in answers if size >= 32 * 2**20]) == left
    finally:
        for client in clients:
            client.socket.close()
        server.stop(5)


def test_an_answer_in_pieces_is_read_in_time_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that takes each piece, and slowly, would hold the memory of the answer for long."""
    monkeypatch.setattr(kafka_listener, "BACKLOG_S", 1.0)
    handler = LargeAnswers(pieces=32)
    server = _served(handler)
    try:
        with WireClient(_address(server)) as fast, WireClient(_address(server)) as slow:
            fast.send(ApiKey.FETCH, 4, FETCH)
            assert _answer_size(fast) >= 32 * 2**20
            slow.send(ApiKey.FETCH, 4, FETCH)
            until("the answer begins", lambda: slow.socket.recv(2**16))
            # Slower than a piece each second, and faster than the limit for what is written.
            until("it is cut off", lambda: slow.socket.recv(2**16) and server.counts.connections == 1)
            assert _answer_size(slow) < 31 * 2**20
    finally:
        server.stop(5)


def _answer_size(client: WireClient) -> int:
    """0 for a client that was cut off."""
    size = 0
    try:
        while size < 32 * 2**20 and (more := client.socket.recv(2**20)):
            size += len(more)
    except OSError:
        return 0
    return size


def test_a_taken_port_does_not_delay_the_start() -> None:
    """The time limit of the test ends a start that waits for the port."""
    membership = Membership(
        MemoryBrokers(BrokerPlace(), 10.0, SystemClock(), SystemIds()), lambda: None, "", 10.0
    )
    membership.start(wait_s=600)
    assert not membership.registered
    membership.leave()
