"""The port of the Kafka protocol: connections, their requests in order, and the bounds of both.

Requests of a connection start in their order and are answered in it, as Kafka does. Several may be in work at
a time, so that a producer's batches share a flush. A client that sends nothing, sends slowly, or does not
read its answers is cut off; what it produced before stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import ssl
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final

from kio.schema.errors import ErrorCode

from archiver.config.groups import IntakeSettings
from archiver.config.kafka_listener import KafkaListenerSettings
from archiver.kafka.frames import FrameReader, start_server
from archiver.kafka.handover import HandingOver, Relay, Workers, read_principal
from archiver.kafka.large import ELEMENTS_IN_LOOP, PLAIN, elements_of, sized
from archiver.kafka.protocol import ApiKey, KafkaRequest, read_request, unread_request, write_response
from archiver.kafka.sasl import SaslExchange
from archiver.runtime.clock import uptime_s
from archiver.runtime.logging import LogLimit
from archiver.runtime.redaction import excerpt
from archiver.status.kafka_port import ListenerCounts, api_name
from archiver.web.listener import BACKLOG_S, UNSENT_BYTES_MAX, Listener, PatientLoop
from archiver.web.server import Port
from archiver.web.tls import ServerTls
from intake.kafka_messages import Malformed, ManyElements

_log = logging.getLogger(__name__)

FETCHES_MAX: Final = 1
"""Fetch requests of one connection in work, as in Kafka. `Session.answer_bytes` is of the only one."""
JOINED_BYTES_MAX: Final = 16 * 1024
"""Most bytes of answers of one connection that are sent together."""
ANSWER_PARTS: Final = 4
"""One answer of Fetch takes at most this part of the memory that is free."""
LARGE_THREADS: Final = 2
"""Threads that read requests and write answers with many elements."""
HANDSHAKE_BYTES_MAX: Final = 64 * 1024
"""Largest request of a client that is not authenticated yet."""
RATE_MIN: Final = 64 * 1024
"""Bytes a second at which a request must at least arrive."""
ARRIVAL_S: Final = 5.0
"""Time that every request has, in addition to its bytes at the minimum rate."""
TURNS: Final = 5
"""Turns of the loop after which an accepted connection has its protocol; asyncio takes two."""
CANCELLED_S: Final = 1.0
"""Last part of a stop, in which requests that wait are cancelled."""
RUNS: Final = 4
"""How often the server notes within the longest pause that the process runs."""
WOKEN_S: Final = 1.0
"""Time after a pause in which new connections are closed: the first ones have waited during the pause."""
TEXT_LOGGED: Final = 200
"""Characters of a client's text in a line of the access log."""
_SIZE: Final = struct.Struct(">i")


@dataclass(slots=True)
class Session:
    """One connection, as the handlers of its requests see it."""

    peer: str
    """Host and port of the client."""
    principal: str = "User:ANONYMOUS"
    authenticated: bool = True
    client_id: str = ""
    """Of the newest request."""
    handshaken: bool = False
    """Whether a SASL handshake was received."""
    exchange: SaslExchange | None = None
    """From the answer to the handshake on."""
    closing: str | None = None
    """Why the connection is closed behind the next answer."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the client sends nothing more: its connection is closed, or is being closed."""
    commits: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held until a commit of offsets is queued, so that those of a connection keep their order."""
    claims: dict[str, int] = field(default_factory=dict)
    """By transactional id: the newest claim under which a request of this connection was answered."""
    release: Callable[[KafkaRequest], None] = lambda _: None
    """Frees the memory of a request that waits for other clients, and keeps nothing of its bytes."""
    relay: Relay | None = None
    """In a worker: to the daemon. It ends with the connection."""
    relayed: bool = False
    """In the daemon: the connection is a worker's end, and the worker sees its bytes and its times."""
    answer_bytes: int = 0
    """What the Fetch in work holds of `KafkaServer.answers`; given back when its answer is written."""

    def end(self) -> None:
        """The client sends nothing more."""
        self.ended.set()
        if self.relay is not None:
            # What waits for other clients in the daemon ends there.
            self.relay.end()


Body = Mapping[str, Any]
Answer = Body | bytes
"""An answer by its fields, or from the daemon as on the wire."""
Handle = Callable[[Session, KafkaRequest], Awaitable[Answer | None]]
"""Answers one request; None: it has no answer. What must keep the order of a connection happens before the
first wait."""
Handlers = Mapping[ApiKey, Callable[[Session, KafkaRequest], Awaitable[Body | None]]]
"""What answers the requests of each API."""


class MemoryBudget:
    """Bytes of requests over all connections. Those that wait get their turns in order."""

    def __init__(self, bytes_max: int) -> None:
        self._free = self._max = bytes_max
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def held(self) -> int:
        """Bytes in use."""
        return self._max - self._free

    async def take(self, size: int) -> None:
        """Wait until the bytes are free. A request larger than the budget waits for all of it."""
        size = min(size, self._max)
        if not self._waiting and size <= self._free:
            self._free -= size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            # The turn may have come in the same moment; its bytes would be lost.
            granted = turn.done() and not turn.cancelled()
            # Without bytes as well: those behind may fit into what is free.
            self.give(size if granted else 0)
            raise

    def give(self, size: int) -> None:
        """Free bytes that were taken."""
        self._free += min(size, self._max)
        while self._waiting and (self._waiting[0][1].done() or self._waiting[0][0] <= self._free):
            size, turn = self._waiting.popleft()
            if not turn.done():
                self._free -= size
                turn.set_result(None)


class AnswerMemory:
    """Bytes of answers of Fetch over all connections. None waits for it: with little left, answers are small.

    So a client that does not read its answer, and holds it until it is cut off, delays no other.
    """

    def __init__(self, bytes_max: int) -> None:
        self._max = bytes_max
        self.held = 0
        """Bytes in use. An answer of one whole batch may go beyond the limit."""

    def take(self, size: int) -> int:
        """Take a part of what is free, at most `size`; returns its bytes. With 0 an answer has one batch."""
        granted = min(size, max(0, self._max - self.held) // ANSWER_PARTS)
        self.held += granted
        return granted

    def correct(self, granted: int, size: int) -> None:
        """The answer for which bytes were taken has this size; 0 when it is written."""
        self.held += size - granted


def pause_max_s(intake: IntakeSettings) -> float:
    """Longest time for which a process may not run and still accept what waits in its connections."""
    # A client may repeat a batch for a quarter of it, and the writer has another eighth (decision 0086).
    return intake.producer_idle_min / 8


class KafkaServer(Port):
    """Serves the Kafka protocol on one address, from `start` to `stop`."""

    def __init__(
        self,
        handle: Handle,
        settings: KafkaListenerSettings,
        retry_max_s: float,
        connections_max: int,
        pause_max_s: float,
        new_session: Callable[[str, ssl.SSLObject | None], Session] = lambda peer, _: Session(peer),
        counts: ListenerCounts | None = None,
        workers: Workers | None = None,
    ) -> None:
        """`connections_max` is what the process has descriptors for. If the process did not run for
        `pause_max_s`, connections are closed and what waits in them is not read. `new_session` makes the
        session of a connection from its peer and its TLS. `counts` are shared with the handlers. Connections
        are handed over to `workers`, and only relayed requests are answered here.
        """
        # A client that is alone gets the largest answer.
        answers_bytes_max = max(settings.requests_bytes_max, ANSWER_PARTS * settings.fetch_bytes_max)
        super().__init__(
            settings.listen,
            retry_max_s,
            connections_max,
            setting="kafka.listen",
            name="kafka",
            doing="serving Kafka clients",
            # The rest is for other answers, and for single batches when no memory is left.
            unsent_bytes_max=answers_bytes_max + UNSENT_BYTES_MAX,
        )
        self.answers = AnswerMemory(answers_bytes_max)
        """Bytes of answers of Fetch, from before their records are read until they are written."""
        self.large_threads = ThreadPoolExecutor(LARGE_THREADS, "kafka-large")
        """For requests and answers with many elements (`archiver.kafka.large`)."""
        self.counts = counts or ListenerCounts()
        self.settings = settings
        self.handle = handle
        self._workers = workers
        # With workers, they encrypt.
        self._tls = None if settings.tls is None or workers is not None else ServerTls(settings.tls)
        self._new_session = new_session
        self._connections: set[_Connection] = set()
        self._pause_max_s = pause_max_s
        self._ran_s = uptime_s()
        """When the loop ran last."""
        self._woke_s = float("-inf")
        """When the last pause ended."""
        self._grace_s = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_event: asyncio.Event | None = None
        self._log_limit = LogLimit(_log)
        self._defects_limit = LogLimit(_log)
        self.on_open: Callable[[], None] = lambda: None
        """Called in the loop whenever the port is open."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop while the port is open; None else."""
        return self._loop

    def stop(self, grace_s: float) -> None:
        """Accept no more requests, answer those in work, and close, all within `grace_s`. Stopping twice is
        no error.
        """
        self._grace_s = grace_s
        self._stopping.set()
        loop, event = self._loop, self._stop_event
        if loop is not None and event is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                loop.call_soon_threadsafe(event.set)
        self._join(grace_s)
        self.large_threads.shutdown(wait=False, cancel_futures=True)

    @property
    def read_here(self) -> Container[ApiKey] | None:
        """The APIs whose requests this process reads; None for all."""
        return None

    def session(self, writer: asyncio.StreamWriter) -> Session:
        """The session of an accepted connection."""
        peer = writer.get_extra_info("peername")
        text = f"{peer[0]}:{peer[1]}" if peer else "?"
        if self._workers is not None:
            return Session(text, relayed=True)
        return self._new_session(text, writer.get_extra_info("ssl_object"))

    def _listening(self, create: Callable[..., Listener] = Listener) -> Listener:
        workers = self._workers
        if workers is None:
            return super()._listening(create)
        return super()._listening(lambda *socket: HandingOver(workers, self._may_accept, *socket))

    def _may_accept(self) -> bool:
        """Whether a connection may be served that waited until now (`paused`)."""
        self.paused()
        return uptime_s() - self._woke_s >= WOKEN_S

    def _serve(self, listener: Listener) -> None:
        context = None if self._tls is None else self._tls.context()
        with asyncio.Runner(loop_factory=PatientLoop) as runner:
            runner.run(self._until_stopped(listener, context))

    async def _until_stopped(self, listener: Listener, context: ssl.SSLContext | None) -> None:
        self._stop_event = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        # `stop` may have come before the event existed.
        if self._stopping.is_set():
            return
        budget = MemoryBudget(self.settings.requests_bytes_max)
        connections = self._connections

        async def serve(reader: FrameReader, writer: asyncio.StreamWriter) -> None:
            if uptime_s() - self._woke_s < WOKEN_S:
                # It may have waited to be accepted, and its request with it.
                writer.close()
                return
            connection = _Connection(self, reader, writer, self.session(writer), budget)
            connections.add(connection)
            self.counts.connections += 1
            try:
                await connection.run()
            finally:
                connections.discard(connection)
                self.counts.connections -= 1
                connection.closed.set()

        # A port that could not be opened did not run either.
        self._ran_s = uptime_s()
        watching = [asyncio.create_task(listener.watch.run()), asyncio.create_task(self._note_runs())]
        try:
            handshake_s = None if context is None else self.settings.authentication_timeout
            server = await start_server(serve, listener, context, handshake_s)
            self._opened(listener)
            self.on_open()
            await self._stop_event.wait()
            # asyncio loses a connection that is accepted in the turn in which the server is closed.
            self._loop.remove_reader(listener)
            for _ in range(TURNS):
                await asyncio.sleep(0)
            server.close()
            await self._drain(connections)
        finally:
            self._loop = None
            for one in watching:
                one.cancel()
            await asyncio.gather(*watching, return_exceptions=True)

    async def _note_runs(self) -> None:
        """Note that the process runs, until cancelled."""
        while True:
            await asyncio.sleep(self._pause_max_s / RUNS)
            self.paused()

    def paused(self) -> bool:
        """Whether the process did not run for `pause_max_s` until now; every connection is ended then.

        A request that waited in a socket for so long must not be accepted: its client can have stored the
        batch at another daemon, and the log can have forgotten the producer (decision 0086).
        """
        now_s = uptime_s()
        paused_s, self._ran_s = now_s - self._ran_s, now_s
        if paused_s <= self._pause_max_s:
            return False
        _log.warning(
            "the daemon did not run for %.0f s, so it closes the connections of Kafka clients (%d)",
            paused_s,
            len(self._connections),
        )
        self._woke_s = now_s
        for one in list(self._connections):
            one.end()
        return True

    async def _drain(self, connections: set[_Connection]) -> None:
        """Let the requests in work be answered, then close what is left."""
        for one in list(connections):
            one.end()
        closed = [asyncio.create_task(one.closed.wait()) for one in connections]
        if closed:
            await asyncio.wait(closed, timeout=max(0.0, self._grace_s - CANCELLED_S))
        for one in list(connections):
            one.abort()
        if closed:
            await asyncio.wait(closed, timeout=CANCELLED_S)

    def note(self, session: Session, reason: str, why: str) -> None:
        """Count and log a connection that is cut off."""
        self.counts.refuse(reason)
        self._log_limit.log(
            asyncio.get_running_loop().time(),
            logging.WARNING,
            "Kafka client %s is disconnected: %s",
            session.peer,
            excerpt(why),
        )

    def note_defect(self, session: Session, request: KafkaRequest) -> None:
        """Count and log a request that ended in the present exception, a defect of the listener."""
        self.counts.refuse("failed")
        self._defects_limit.log(
            asyncio.get_running_loop().time(),
            logging.ERROR,
            "%s of Kafka client %s failed; its connection is closed",
            request.api.name,
            session.peer,
            exc_info=True,
        )

    def answered(
        self, session: Session, entry: _Entry, body: Answer | None, sent: int, errors: Mapping[str, int]
    ) -> None:
        """Count a request whose answer of `sent` bytes is written, and log it by `kafka.access_log`."""
        # The worker has the bytes of a client, and the daemon has the rest of a relayed request.
        if not session.relayed:
            self.counts.bytes_out += sent
        if isinstance(body, bytes):
            return
        api = api_name(entry.request.api.name)
        seconds = asyncio.get_running_loop().time() - entry.began_s
        self.counts.answered(api, seconds)
        self.counts.failed(api, errors)
        if body is not None and body.get("throttle_time"):
            self.counts.throttled += 1
        if self.settings.access_log:
            _log.info(
                "Kafka request",
                extra={
                    "peer": session.peer,
                    "principal": excerpt(session.principal, TEXT_LOGGED),
                    "client_id": excerpt(entry.request.client_id, TEXT_LOGGED),
                    "api": api,
                    "version": entry.request.version,
                    "entries": _entries(entry.request.body),
                    "bytes_in": entry.size,
                    "bytes_out": sent,
                    "errors": errors,
                    "seconds": round(seconds, 6),
                },
            )


@dataclass(frozen=True, slots=True)
class _Entry:
    """A request in work."""

    request: KafkaRequest
    task: asyncio.Task[Answer | None]
    size: int
    """Bytes of the request."""
    began_s: float
    """Time of the loop when the request was whole."""


class _Connection:
    """Reads requests, starts them in order, and writes the answers in order."""

    def __init__(
        self,
        server: KafkaServer,
        reader: FrameReader,
        writer: asyncio.StreamWriter,
        session: Session,
        budget: MemoryBudget,
    ) -> None:
        self._server = server
        self._reader = reader
        self._writer = writer
        self._session = session
        self._budget = budget
        self._answers: asyncio.Queue[_Entry | None] = asyncio.Queue(
            server.settings.requests_per_connection_max
        )
        self._joined = bytearray()
        """Answers that are to be written with the next one. Empty while that is waited for."""
        self._fetches = asyncio.Semaphore(FETCHES_MAX)
        self._sizes: dict[int, int] = {}
        """Bytes that requests in work hold of the budget, by the identity of the request."""
        session.release = self._release
        if session.relay is not None:
            # The daemon has freed the place of this connection.
            session.relay.on_lost = self.end
        self._in_work = 0
        """Requests that are not answered yet."""
        self.closed = asyncio.Event()
        self._ended = False
        """No further request is accepted."""
        self._requested = False
        """A request was received."""
        self._reading: asyncio.Task[None] | None = None
        self._writing: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Serve until the client leaves, is cut off, or the server stops."""
        self._reading = asyncio.create_task(self._read_all())
        self._writing = asyncio.create_task(self._write_all())
        try:
            await asyncio.wait((self._reading, self._writing), return_when=asyncio.FIRST_COMPLETED)
            if self._reading.done():
                # What was accepted is answered, unless the client does not read.
                await asyncio.wait((self._writing,))
        finally:
            for task in (self._reading, self._writing):
                task.cancel()
            await asyncio.gather(self._reading, self._writing, return_exceptions=True)
            self._discard()
            self._give_answer()
            if self._session.relay is not None:
                self._session.relay.close()
            self._writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await self._writer.wait_closed()

    def end(self) -> None:
        """Accept no further request."""
        if self._reading is not None:
            self._reading.cancel()

    def abort(self) -> None:
        """Close without waiting for answers."""
        # Not `close`, which waits until the client has read everything.
        self._writer.transport.abort()
        for task in (self._reading, self._writing):
            if task is not None:
                task.cancel()

    async def _read_all(self) -> None:
        server, session = self._server, self._session
        # One time for the whole authentication: with one for each request, a client without a password could
        # keep its connection.
        limit_s = asyncio.get_running_loop().time() + server.settings.authentication_timeout
        try:
            if session.relayed:
                session.principal = await read_principal(self._reader)
            while True:
                frame, size = await self._frame(limit_s)
                # asyncio reads from sockets before it runs timers, so this request may be the first to know.
                if server.paused():
                    self._budget.give(size)
                    return
                try:
                    request = await self._request(frame)
                except BaseException:
                    self._budget.give(size)
                    raise
                # It would stay until the next request comes.
                del frame
                self._sizes[id(request)] = size
                self._in_work += 1
                # The task starts before that of the next request, so its first step keeps the order.
                task = asyncio.create_task(_answer(server.handle, session, request))
                try:
                    await self._answers.put(_Entry(request, task, size, asyncio.get_running_loop().time()))
                except BaseException:
                    # The request is in no queue, so nothing else ends it.
                    task.cancel()
                    self._release(request)
                    raise
        except asyncio.IncompleteReadError as error:
            if error.partial:
                server.note(session, "malformed", "the connection ended inside a request")
        except TimeoutError:
            server.note(session, "slow", "it sent nothing, or too slowly")
        except Malformed as error:
            server.note(session, "malformed", str(error))
        except _TooLarge as error:
            server.note(session, "too_large", str(error))
        except OSError:
            # The client closed the connection or its machine went away.
            pass
        finally:
            self._ended = True
            session.end()
            # Wakes the writer. It does not sleep while the queue is full.
            with contextlib.suppress(asyncio.QueueFull):
                self._answers.put_nowait(None)

    async def _head(self, limit_s: float) -> bytes | memoryview:
        """The size of the next request. A client that is not authenticated has until `limit_s`, and so has
        the first request of any client.
        """
        if self._session.relayed:
            # The worker ends the connection of a client that rests too long.
            return await self._reader.take(_SIZE.size, math.inf)
        while True:
            may_rest = self._requested and self._session.authenticated
            now_s = asyncio.get_running_loop().time()
            until_s = now_s + self._server.settings.connections_idle if may_rest else limit_s
            try:
                return await self._reader.take(_SIZE.size, until_s)
            except TimeoutError:
                # A member of a group may wait for the others for longer than a connection may rest.
                if may_rest and self._in_work:
                    continue
                # The answer that authenticated the client may have come while this waited.
                if may_rest or not (self._requested and self._session.authenticated):
                    raise

    async def _frame(self, limit_s: float) -> tuple[bytes | memoryview, int]:
        """The next request, and the bytes that it holds of the budget."""
        server = self._server
        (size,) = _SIZE.unpack(await self._head(limit_s))
        most = server.settings.request_bytes_max if self._session.authenticated else HANDSHAKE_BYTES_MAX
        if not 0 < size <= most:
            raise _TooLarge(f"a request of {size} bytes; 1 to {most} are accepted (kafka.request_bytes_max)")
        # Not read before there is room: the client waits in its own send buffer.
        await self._budget.take(size)
        try:
            most_s = min(server.settings.request_timeout, ARRIVAL_S + size / RATE_MIN)
            frame = await self._reader.take(size, asyncio.get_running_loop().time() + most_s)
        except BaseException:
            self._budget.give(size)
            raise
        if not self._session.relayed:
            server.counts.bytes_in += size + _SIZE.size
        self._requested = True
        return frame, size

    async def _request(self, frame: bytes | memoryview) -> KafkaRequest:
        read_here = self._server.read_here
        if read_here is not None and (unread := unread_request(frame, read_here)) is not None:
            return unread
        data = memoryview(frame)
        try:
            request = read_request(data, ELEMENTS_IN_LOOP)
        except ManyElements:
            loop = asyncio.get_running_loop()
            request = await loop.run_in_executor(self._server.large_threads, read_request, data)
        self._session.client_id = request.client_id
        if request.api is ApiKey.FETCH:
            # The connection ends with any error, so the place is given back by the writer only.
            await self._fetches.acquire()
        return request

    async def _write_all(self) -> None:
        answered = 0
        going = True
        try:
            while going and not (self._ended and self._answers.empty()):
                if self._answers.empty():
                    self._write_joined()
                await self._writer.drain()
                self._in_work -= answered
                entry = await self._answers.get()
                answered = 0 if entry is None else 1
                going = entry is None or await self._write(entry)
        except OSError:
            # The client left, or does not read its answers.
            return
        finally:
            self._write_joined()

    async def _write(self, entry: _Entry) -> bool:
        """Write an answer when it is there; whether the connection goes on. Raises as `_send`."""
        request, task = entry.request, entry.task
        if not task.done():
            self._write_joined()
        try:
            body = await task
            elements = 0 if body is None or isinstance(body, bytes) else elements_of(body)
            if elements > ELEMENTS_IN_LOOP:
                # What is ready does not wait for the thread that writes this one.
                self._write_joined()
            pieces, errors = await sized(self._server.large_threads, elements, _written, request, body)
        except ConnectionError:
            # The daemon has ended its side of this connection.
            return False
        except Exception:  # noqa: BLE001
            # Other connections go on, and the client reconnects.
            self._server.note_defect(self._session, request)
            return False
        finally:
            task.cancel()
            self._release(request)
        size = sum(map(len, pieces))
        self._server.answered(self._session, entry, body, size, errors)
        if (why := self._session.closing) is not None:
            self._server.note(self._session, "unauthenticated", why)
        if request.api is not ApiKey.FETCH and len(self._joined) + size <= JOINED_BYTES_MAX:
            for piece in pieces:
                self._joined += piece
            return why is None
        self._write_joined()
        await self._send(pieces)
        if request.api is ApiKey.FETCH:
            self._give_answer()
            self._fetches.release()
        return why is None

    def _write_joined(self) -> None:
        """Write the answers that were ready at the same time: a send for each would take longer than to make
        them.
        """
        if self._joined:
            self._writer.write(self._joined)
            # The transport may hold the other one.
            self._joined = bytearray()

    async def _send(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Send an answer. Raises `OSError` if the client left, or does not read it in time; the listener's
        watch cuts off a client that does not read what is written.
        """
        if len(pieces) > 1:
            try:
                # As for what is written at once (`archiver.web.listener`).
                async with asyncio.timeout(BACKLOG_S):
                    for piece in pieces:
                        self._writer.write(piece)
                        # A piece that the kernel takes at once is not copied.
                        await self._writer.drain()
            except TimeoutError:
                # What is left would be written first.
                self._writer.transport.abort()
                raise
        elif pieces:
            self._writer.write(pieces[0])
            await self._writer.drain()

    def _give_answer(self) -> None:
        """Free what the Fetch in work holds for its answer."""
        self._server.answers.correct(self._session.answer_bytes, 0)
        self._session.answer_bytes = 0

    def _discard(self) -> None:
        """Drop the answers that cannot be delivered any more. Records in work are stored all the same."""
        while not self._answers.empty():
            entry = self._answers.get_nowait()
            if entry is not None:
                entry.task.cancel()
                self._release(entry.request)

    def _release(self, request: KafkaRequest) -> None:
        """Free what a request holds of the budget; no effect the second time."""
        self._budget.give(self._sizes.pop(id(request), 0))


class _TooLarge(Exception):
    pass


async def _answer(handle: Handle, session: Session, request: KafkaRequest) -> Answer | None:
    return await handle(session, request)


def _written(
    request: KafkaRequest, body: Answer | None
) -> tuple[Sequence[bytes | memoryview], dict[str, int]]:
    """The bytes of an answer in pieces, and its errors."""
    if isinstance(body, bytes):
        return (body,), {}
    return ((), {}) if body is None else (write_response(request, body), _errors(body))


def _errors(body: Body) -> dict[str, int]:
    """The errors of an answer, by Kafka's name."""
    found: dict[str, int] = {}
    left: list[Mapping[str, Any]] = [body]
    while left:
        for name, value in left.pop().items():
            if name == "error_code" and value:
                error = _error_name(value)
                found[error] = found.get(error, 0) + 1
            elif (kind := type(value)) in PLAIN:
                continue
            elif kind is dict:
                left.append(value)
            # Lists of numbers and texts, for example replicas, have no errors.
            elif (kind is list or kind is tuple) and value and type(value[0]) is dict:
                left.extend(value)
    return found


def _error_name(code: int) -> str:
    try:
        return ErrorCode(code).name.upper()
    except ValueError:
        return str(code)


def _entries(body: SimpleNamespace) -> int:
    """The partitions that a request names, or its topics or resources if it names no partitions."""
    names = ("topic_data", "topics", "topic_names", "resources")
    count = 0
    for topic in next((found for name in names if (found := getattr(body, name, None))), ()):
        partitions = getattr(topic, "partition_data", None) or getattr(topic, "partitions", None)
        count += 1 if partitions is None or isinstance(partitions, int) else len(partitions)
    return count
