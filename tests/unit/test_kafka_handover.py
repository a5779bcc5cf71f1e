"""How connections are handed over to an intake worker, and requests relayed back, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import struct
import sys
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from archiver.kafka import handover
from archiver.kafka.frames import FrameReader
from archiver.kafka.handover import (
    PRINCIPAL_BYTES_MAX,
    HandingOver,
    Received,
    ReceivedPeer,
    Relay,
    read_principal,
    send_connection,
)
from archiver.runtime.clock import uptime_s
from archiver.web.listener import UNSENT_BYTES_MAX, listening
from tests.support.process.processes import open_sockets, until

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts descriptors in /proc"),
]

AGE_MAX_S = 30.0
LEFT_MAX_S = 60.0
FDS = Path("/proc/self/fd")
LARGE = 3 * 2**20 + 7


def descriptors() -> int:
    """Open descriptors of this process; a listing has one of its own."""
    return len(list(FDS.iterdir()))


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No test leaves a socket open, and nothing here opens pipes."""
    # What an event loop imports and opens once.
    asyncio.run(asyncio.sleep(0))
    before = open_sockets()
    yield
    # Threads that outlive tests of other files open sockets for moments, and what those tests left to the
    # collector may be closed by now.
    until("no socket is left", lambda: open_sockets() <= before, LEFT_MAX_S)


@contextlib.contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The two ends of a TCP connection: the client's, and the accepted one."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        accepted, _ = server.accept()
        with accepted:
            yield client, accepted


@contextlib.contextmanager
def received(
    connections_max: int = 10, on_end: Callable[[], None] = lambda: None
) -> Iterator[tuple[socket.socket, Received]]:
    """The daemon's end of a channel, and what a worker accepts from."""
    near, far = socket.socketpair()
    with near, Received(far, connections_max, UNSENT_BYTES_MAX, AGE_MAX_S, on_end) as found:
        near.setblocking(False)
        found.setblocking(False)
        yield near, found


@contextlib.contextmanager
def handed(channel: socket.socket) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection that was sent to the worker: the client's end, and the daemon's end of the pair."""
    with connected() as (client, accepted):
        near, far = socket.socketpair()
        with near:
            with far:
                send_connection(channel, accepted, far)
            accepted.close()
            yield client, near


def ended(sock: socket.socket) -> bool:
    sock.settimeout(20)
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


# --- What a worker accepts


def test_a_connection_arrives_with_its_client_and_its_pair() -> None:
    with received() as (channel, worker), handed(channel) as (client, near):
        plain, address = worker.accept()
        assert isinstance(address, ReceivedPeer)
        assert tuple(address) == client.getsockname()
        assert worker.open_connections == 1
        for one in (plain, address.far):
            assert not one.get_inheritable()
        client.sendall(b"request")
        assert plain.recv(100) == b"request"
        address.far.sendall(b"relayed")
        assert near.recv(100) == b"relayed"
        plain.close()
        plain.close()
        assert worker.open_connections == 0
        # Without a relay the pair ends with the connection.
        assert ended(near)
        assert ended(client)


def test_connections_keep_their_order_and_their_own_pairs() -> None:
    with received() as (channel, worker), contextlib.ExitStack() as stack:
        made = [stack.enter_context(handed(channel)) for _ in range(5)]
        for client, near in made:
            plain, address = worker.accept()
            assert tuple(address) == client.getsockname()
            address.far.sendall(b"x")
            assert near.recv(1) == b"x"
            plain.close()


def test_without_a_connection_accept_would_block() -> None:
    with received() as (_, worker), pytest.raises(BlockingIOError):
        worker.accept()


def test_the_end_of_the_channel_is_reported_each_time() -> None:
    ends: list[int] = []
    with received(on_end=lambda: ends.append(1)) as (channel, worker):
        with handed(channel) as (client, _):
            channel.close()
            # What was sent before is still served.
            plain, address = worker.accept()
            assert tuple(address) == client.getsockname()
            plain.close()
        for _ in range(2):
            with pytest.raises(BlockingIOError):
                worker.accept()
        assert len(ends) == 2


@pytest.mark.parametrize("count", [0, 1])
def test_missing_descriptors_close_the_connection(count: int) -> None:
    with received() as (channel, worker), connected() as (client, accepted):
        socket.send_fds(channel, [struct.pack(">d", uptime_s())], [accepted.fileno()] * count)
        accepted.close()
        with pytest.raises(ConnectionAbortedError):
            worker.accept()
        assert ended(client)
        assert worker.open_connections == 0


def test_a_worker_without_descriptors_closes_the_connection_and_goes_on() -> None:
    """The kernel gives as many as there are places for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with received() as (channel, worker), contextlib.ExitStack() as stack:
        made = [stack.enter_context(handed(channel)) for _ in range(3)]
        used = max(int(one.name) for one in FDS.iterdir()) + 1
        spare = used - descriptors()
        fillers = [os.dup(channel.fileno()) for _ in range(spare)]
        try:
            for places in (0, 1):
                top = max(int(one.name) for one in FDS.iterdir()) + 1
                holes = [os.dup(channel.fileno()) for _ in range(top - descriptors())]
                resource.setrlimit(resource.RLIMIT_NOFILE, (top + len(holes) + places - 1, hard))
                try:
                    with pytest.raises(ConnectionAbortedError):
                        worker.accept()
                finally:
                    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                    for one in holes:
                        os.close(one)
        finally:
            for one in fillers:
                os.close(one)
        for client, near in made[:2]:
            assert ended(client)
            assert ended(near)
        plain, address = worker.accept()
        assert tuple(address) == made[2][0].getsockname()
        plain.close()


@pytest.mark.parametrize(("age_s", "served"), [(AGE_MAX_S - 5, True), (AGE_MAX_S + 1, False)])
def test_a_connection_that_waited_too_long_is_closed(
    monkeypatch: pytest.MonkeyPatch, age_s: float, served: bool
) -> None:
    with received() as (channel, worker), handed(channel) as (client, near):
        monkeypatch.setattr(handover, "uptime_s", lambda: uptime_s() + age_s)
        if served:
            worker.accept()[0].close()
        else:
            with pytest.raises(ConnectionAbortedError):
                worker.accept()
        assert ended(client)
        assert ended(near)
        assert worker.open_connections == 0


def test_connections_beyond_the_limit_of_a_worker_are_closed() -> None:
    with received(connections_max=1) as (channel, worker):
        with handed(channel) as (first, _), handed(channel) as (second, near):
            plain, _ = worker.accept()
            with pytest.raises(ConnectionAbortedError):
                worker.accept()
            assert ended(second)
            assert ended(near)
            plain.close()
            assert ended(first)
        with handed(channel):
            worker.accept()[0].close()


def test_a_client_that_has_gone_is_no_connection() -> None:
    with received() as (channel, worker):
        with connected() as (client, accepted), socket.socket() as unconnected:
            near, far = socket.socketpair()
            with near:
                with far:
                    send_connection(channel, unconnected, far)
                with pytest.raises(ConnectionAbortedError):
                    worker.accept()
                assert ended(near)
            accepted.close()
            assert ended(client)
        with handed(channel) as (client, near):
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
            # Whether its end has arrived or not, nothing is left.
            with contextlib.suppress(ConnectionAbortedError):
                worker.accept()[0].close()
            assert ended(near)
        assert worker.open_connections == 0


# --- What the daemon hands over


class Pool:
    """Takes connections, or does not."""

    def __init__(self) -> None:
        self.taken: list[tuple[socket.socket, socket.socket]] = []
        self.takes = True
        self.ends = 0

    def give(self, client: socket.socket, far: socket.socket) -> Callable[[], None] | None:
        if not self.takes:
            return None
        self.taken.append((client.dup(), far.dup()))

        def end() -> None:
            self.ends += 1

        return end

    def close(self) -> None:
        for pair in self.taken:
            for one in pair:
                one.close()


@contextlib.contextmanager
def port(pool: Pool, may_accept: Callable[[], bool] = lambda: True) -> Iterator[HandingOver]:
    made = listening("127.0.0.1", 0, 10, 2, create=lambda *kind: HandingOver(pool, may_accept, *kind))
    assert isinstance(made, HandingOver)
    with made, contextlib.closing(pool):
        yield made


async def _accepts(listener: HandingOver) -> tuple[socket.socket, Any]:
    # Its log lines need the time of a loop.
    return listener.accept()


def test_the_daemon_keeps_one_end_of_a_pair_and_nothing_of_the_client() -> None:
    pool = Pool()
    with port(pool) as listener, socket.create_connection(listener.getsockname()) as client:
        near, address = asyncio.run(_accepts(listener))
        assert address == client.getsockname()
        assert (near.family, listener.open_connections, pool.ends) == (socket.AF_UNIX, 1, 0)
        served, far = pool.taken.pop()
        far.sendall(b"relayed")
        assert near.recv(100) == b"relayed"
        served.close()
        # Only the worker had it.
        assert ended(client)
        far.close()
        assert ended(near)
        near.close()
        near.close()
        assert (listener.open_connections, pool.ends) == (0, 1)


@pytest.mark.parametrize("why", ["no worker", "it waited"])
def test_a_connection_that_no_worker_takes_is_closed(why: str) -> None:
    pool = Pool()
    pool.takes = why != "no worker"
    with port(pool, lambda: why != "it waited") as listener:
        with socket.create_connection(listener.getsockname()) as client:
            with pytest.raises(ConnectionAbortedError):
                asyncio.run(_accepts(listener))
            assert ended(client)
        assert (listener.open_connections, pool.taken) == (0, [])


def test_a_fault_of_the_pool_leaves_no_descriptor() -> None:
    class Faulty(Pool):
        def give(self, client: socket.socket, far: socket.socket) -> Callable[[], None] | None:
            raise ValueError("a defect")

    with port(Faulty()) as listener, socket.create_connection(listener.getsockname()) as client:
        with pytest.raises(ValueError):
            asyncio.run(_accepts(listener))
        assert ended(client)
        assert listener.open_connections == 0


def test_the_limit_of_the_port_counts_what_was_handed_over() -> None:
    pool = Pool()
    with port(pool) as listener, contextlib.ExitStack() as stack:
        place = listener.getsockname()
        nears = []
        for _ in range(2):
            stack.enter_context(socket.create_connection(place))
            nears.append(stack.enter_context(contextlib.closing(asyncio.run(_accepts(listener))[0])))
        with socket.create_connection(place) as third:
            with pytest.raises(ConnectionAbortedError):
                asyncio.run(_accepts(listener))
            assert ended(third)
        nears[0].close()
        with socket.create_connection(place):
            asyncio.run(_accepts(listener))[0].close()


# --- Requests that are relayed


class Answering:
    """The daemon's end: reads who the client is, and what it asks."""

    def __init__(self, near: socket.socket) -> None:
        self._near = near

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection(sock=self._near)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()

    async def principal(self) -> str:
        async with asyncio.timeout(20):
            head = await self.reader.readexactly(4)
            (size,) = struct.unpack(">i", head)
            name = await self.reader.readexactly(size)
            frames = FrameReader(asyncio.get_running_loop())
            frames.received(len(head + name), memoryview(head + name))
            return await read_principal(frames)

    async def frame(self) -> bytes:
        async with asyncio.timeout(20):
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            return await self.reader.readexactly(size)

    def answer(self, data: bytes) -> None:
        self.writer.write(struct.pack(">i", len(data)) + data)

    async def ends(self) -> bool:
        async with asyncio.timeout(20):
            return await self.reader.read(1) == b""


def framed(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


@contextlib.asynccontextmanager
async def relaying() -> AsyncIterator[tuple[Relay, Answering]]:
    near, far = socket.socketpair()
    relay = Relay(far)
    assert far.fileno() == -1
    try:
        async with Answering(near) as daemon:
            yield relay, daemon
    finally:
        relay.close()
        # The transports close their sockets in the next turns.
        for _ in range(3):
            await asyncio.sleep(0)


def _asked(relay: Relay, data: bytes, sent: Callable[[], None] = lambda: None) -> asyncio.Task[bytes]:
    return asyncio.create_task(relay.ask("User:a", data, sent))


def test_answers_have_the_order_of_pipelined_requests() -> None:
    async def run() -> None:
        async with relaying() as (relay, daemon):
            taken: list[int] = []
            asked = [_asked(relay, b"%d" % number, lambda n=number: taken.append(n)) for number in range(50)]  # type: ignore[misc]
            assert await daemon.principal() == "User:a"
            assert [await daemon.frame() for _ in asked] == [b"%d" % number for number in range(50)]
            assert taken == list(range(50))
            assert not any(one.done() for one in asked)
            for number in range(50):
                daemon.answer(b"a%d" % number)
            assert await asyncio.gather(*asked) == [framed(b"a%d" % number) for number in range(50)]

    asyncio.run(run())


def test_the_answer_to_a_cancelled_request_is_not_given_to_the_next_one() -> None:
    async def run() -> None:
        async with relaying() as (relay, daemon):
            asked = [_asked(relay, b"%d" % number) for number in range(3)]
            await daemon.principal()
            for _ in asked:
                await daemon.frame()
            asked[1].cancel()
            for number in range(3):
                daemon.answer(b"a%d" % number)
            found = await asyncio.gather(*asked, return_exceptions=True)
            assert [found[0], found[2]] == [framed(b"a0"), framed(b"a2")]
            assert isinstance(found[1], asyncio.CancelledError)

    asyncio.run(run())


def test_a_request_that_is_cancelled_before_it_is_sent_is_not_sent() -> None:
    async def run() -> None:
        async with relaying() as (relay, daemon):
            # More than the kernel keeps, so that it is under way until the daemon reads.
            asked = [_asked(relay, bytes(LARGE)), _asked(relay, b"gone"), _asked(relay, b"last")]
            assert await daemon.principal() == "User:a"
            asked[1].cancel()
            assert len(await daemon.frame()) == LARGE
            assert await daemon.frame() == b"last"
            daemon.answer(b"0")
            daemon.answer(b"2")
            assert [await asked[0], await asked[2]] == [framed(b"0"), framed(b"2")]

    asyncio.run(run())


def test_a_request_that_is_cancelled_while_it_is_sent_keeps_its_place() -> None:
    async def run() -> None:
        async with relaying() as (relay, daemon):
            large = _asked(relay, bytes(LARGE))
            assert await daemon.principal() == "User:a"
            large.cancel()
            later = _asked(relay, b"later")
            assert len(await daemon.frame()) == LARGE
            assert await daemon.frame() == b"later"
            daemon.answer(b"of the large one")
            daemon.answer(b"of the later one")
            assert await later == framed(b"of the later one")

    asyncio.run(run())


def test_large_frames_go_both_ways_at_once() -> None:
    async def run() -> None:
        async with relaying() as (relay, daemon):
            asked = [_asked(relay, bytes([number]) * LARGE) for number in range(4)]
            await daemon.principal()
            for number in range(4):
                assert await daemon.frame() == bytes([number]) * LARGE
                daemon.answer(bytes([255 - number]) * LARGE)
            for number, one in enumerate(asked):
                assert await one == framed(bytes([255 - number]) * LARGE)

    asyncio.run(run())


def test_a_request_that_waits_for_its_answer_holds_no_bytes() -> None:
    class Bytes(bytearray):
        """With weak references."""

    async def run() -> None:
        async with relaying() as (relay, daemon):
            frame: Any = Bytes(100)
            kept = weakref.ref(frame)
            taken = asyncio.Event()
            asked = _asked(relay, frame, taken.set)
            del frame
            await daemon.principal()
            await daemon.frame()
            await taken.wait()
            assert kept() is None
            daemon.answer(b"a")
            await asked

    asyncio.run(run())


def test_an_empty_answer_is_one() -> None:
    async def run() -> None:
        async with relaying() as (relay, daemon):
            asked = _asked(relay, b"x")
            await daemon.principal()
            await daemon.frame()
            daemon.answer(b"")
            assert await asked == framed(b"")

    asyncio.run(run())


def test_the_end_of_the_daemon_fails_what_waits_and_what_comes() -> None:
    async def run() -> None:
        async with relaying() as (relay, daemon):
            lost = asyncio.Event()
            relay.on_lost = lost.set
            asked = [_asked(relay, b"%d" % number) for number in range(3)]
            await daemon.principal()
            for _ in asked:
                await daemon.frame()
            daemon.answer(b"first")
            daemon.writer.write(struct.pack(">i", 100) + b"a part")
            daemon.writer.close()
            found = await asyncio.gather(*asked, return_exceptions=True)
            assert found[0] == framed(b"first")
            assert all(isinstance(one, ConnectionError) for one in found[1:])
            assert lost.is_set()
            with pytest.raises(ConnectionError):
                await _asked(relay, b"later")

    asyncio.run(run())


def test_the_end_of_the_daemon_before_the_first_request_fails_it() -> None:
    async def run() -> None:
        async with relaying() as (relay, daemon):
            daemon.writer.close()
            await daemon.writer.wait_closed()
            with pytest.raises(OSError):
                await _asked(relay, b"x")

    asyncio.run(run())


def test_the_client_s_end_comes_behind_its_requests_and_leaves_their_answers() -> None:
    async def run() -> None:
        async with relaying() as (relay, daemon):
            asked = [_asked(relay, bytes(LARGE)), _asked(relay, b"last")]
            # As when the connection ends right behind its requests: they are in no turn of the loop yet.
            relay.end()
            relay.end()
            await daemon.principal()
            assert len(await daemon.frame()) == LARGE
            assert await daemon.frame() == b"last"
            assert await daemon.ends()
            daemon.answer(b"0")
            daemon.answer(b"1")
            assert await asyncio.gather(*asked) == [framed(b"0"), framed(b"1")]

    asyncio.run(run())


def test_a_close_fails_what_waits_and_the_daemon_sees_it() -> None:
    async def run() -> None:
        async with relaying() as (relay, daemon):
            asked = [_asked(relay, b"x"), _asked(relay, bytes(LARGE)), _asked(relay, b"y")]
            await daemon.principal()
            await daemon.frame()
            relay.close()
            found = await asyncio.gather(*asked, return_exceptions=True)
            assert all(isinstance(one, ConnectionError) for one in found), found
            with contextlib.suppress(OSError):
                while await daemon.reader.read(2**16):
                    pass
            relay.end()
            with pytest.raises(ConnectionError):
                await _asked(relay, b"later")

    asyncio.run(run())


def test_a_close_without_a_request_ends_the_pair() -> None:
    async def run() -> None:
        async with relaying() as (relay, daemon):
            relay.end()
            relay.close()
            relay.close()
            with pytest.raises(asyncio.IncompleteReadError):
                await daemon.principal()

    asyncio.run(run())


@pytest.mark.parametrize("turns", range(5))
@pytest.mark.parametrize("cancelled", [False, True])
def test_a_close_while_the_pair_is_opened_frees_no_descriptor_of_another(turns: int, cancelled: bool) -> None:
    """asyncio has the descriptor by then: closed under it, the next connection would get its number."""

    async def run() -> None:
        async with relaying() as (relay, _):
            asked = _asked(relay, b"x")
            for _ in range(turns):
                await asyncio.sleep(0)
            if cancelled:
                asked.cancel()
            relay.close()
            # Gets the number, if it is free already.
            one, other = socket.socketpair()
            reader, writer = await asyncio.open_connection(sock=one)
            await asyncio.gather(asked, return_exceptions=True)
            for _ in range(5):
                await asyncio.sleep(0)
            other.sendall(b"still read")
            async with asyncio.timeout(20):
                assert await reader.readexactly(10) == b"still read"
            writer.close()
            await writer.wait_closed()
            other.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    "name", ["User:ANONYMOUS", "User:CN=ü,O=\U0001f600", "User:\udcff", "U" * PRINCIPAL_BYTES_MAX, ""]
)
def test_a_principal_arrives_as_it_is(name: str) -> None:
    async def run() -> None:
        async with relaying() as (relay, daemon):
            asked = asyncio.create_task(relay.ask(name, b"x", lambda: None))
            assert await daemon.principal() == name
            assert await daemon.frame() == b"x"
            daemon.answer(b"a")
            await asked
            # Only once: a connection has one client.
            again = asyncio.create_task(relay.ask("User:another", b"y", lambda: None))
            assert await daemon.frame() == b"y"
            daemon.answer(b"b")
            await again

    asyncio.run(run())


@pytest.mark.parametrize("size", [-1, -(2**31), PRINCIPAL_BYTES_MAX + 1, 2**31 - 1])
def test_a_principal_beyond_its_bound_ends_the_connection(size: int) -> None:
    async def run() -> None:
        reader = FrameReader(asyncio.get_running_loop())
        reader.received(4, memoryview(struct.pack(">i", size)))
        with pytest.raises(ConnectionAbortedError):
            await read_principal(reader)

    asyncio.run(run())
