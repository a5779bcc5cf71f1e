"""Produce requests over HTTP that an intake worker answers (decision 0095).

The daemon serves the port and reads a request. A worker gets one end of a socket pair, and through it the
records of this one request. If the worker ends before its answer is whole, the outcome is unknown.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final, Protocol

from starlette.exceptions import HTTPException
from starlette.responses import Response

from archiver.config.daemon import HttpSettings
from archiver.web.app_context import Records
from archiver.web.error_responses import refusal, refused
from archiver.web.listener import Listener
from archiver.web.produce import RecordRequests
from intake.write.writer import IntakeWriter

_log = logging.getLogger(__name__)

MARGIN_S: Final = 5.0
"""Time beyond `http.request_timeout` for the worker to answer with the outcomes so far."""
ENDED: Final = (
    "the intake worker of this request ended or did not answer in time; of every record the outcome is "
    "unknown, check before sending it again"
)
_SIZES: Final = struct.Struct(">II")


class RecordWorkers(Protocol):
    """The processes that answer produce requests."""

    def give_records(self, far: socket.socket) -> Callable[[], None] | None:
        """Send a copy of the socket to a worker; None if none can take it now. What is returned is called
        when the request has ended.
        """


# --- In the daemon
def send_request(channel: socket.socket, far: socket.socket) -> None:
    """Send one end of a pair to the worker at the other end. Raises `OSError`, among others
    `BlockingIOError`.
    """
    socket.send_fds(channel, [b"r"], [far.fileno()])


class Forward:
    """Forwards produce requests; `AppContext.forward`."""

    def __init__(self, workers: Callable[[], RecordWorkers | None], http: HttpSettings) -> None:
        self._workers = workers
        self._http = http

    async def __call__(self, records: Records) -> Response | None:
        """The answer of a worker; None if no worker can answer, and then none has the records. Raises a
        refusal if the outcome is unknown.
        """
        workers = self._workers()
        if workers is None:
            return None
        near, far = socket.socketpair()
        with near:
            with far:
                ended = workers.give_records(far)
            if ended is None:
                return None
            try:
                async with asyncio.timeout(self._http.request_timeout + MARGIN_S):
                    return await self._asked(near, records)
            except (OSError, asyncio.IncompleteReadError) as error:
                raise refusal(500, ENDED) from error
            finally:
                ended()

    async def _asked(self, near: socket.socket, records: Records) -> Response:
        reader, writer = await asyncio.open_connection(sock=near)
        try:
            _write(writer, _fields(records), records.body)
            await writer.drain()
            head, body = await _read(reader)
        finally:
            writer.transport.abort()
        return Response(body, head["status"], head["headers"])


# --- In a worker
class ReceivedRequests(Listener):
    """The requests that a worker receives, as a listening socket for asyncio."""

    def __init__(self, channel: socket.socket) -> None:
        """Takes over the descriptor of `channel`."""
        super().__init__(channel.family, channel.type, channel.proto, fileno=channel.detach())

    def listen(self, backlog: int = 0, /) -> None:
        """The daemon sends the requests."""

    def accept(self) -> tuple[socket.socket, Any]:
        """As `Listener.accept`."""
        data, descriptors, _, _ = socket.recv_fds(self, 1, 1)
        if not data:
            # The daemon has ended, and the worker ends soon. Until then this socket stays readable.
            asyncio.get_running_loop().remove_reader(self.fileno())
            raise BlockingIOError
        if not descriptors:
            raise ConnectionAbortedError
        return socket.socket(fileno=descriptors[0]), None


class RecordServer:
    """Answers the forwarded requests of a worker in a thread of its own, from `start` to `stop`."""

    def __init__(
        self, channel: socket.socket, writer: Callable[[], IntakeWriter | None], http: HttpSettings
    ) -> None:
        self._listener = ReceivedRequests(channel)
        self._writer = writer
        self._http = http
        self._requests = RecordRequests(http)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = asyncio.Event()
        self._open: set[asyncio.Task[None]] = set()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="http-forwarded", daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()
        self._started.wait()

    def stop(self, grace_s: float) -> None:
        """Write the answers of requests in work, and end, within `grace_s`."""
        assert self._loop is not None, "it was started"
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(grace_s)
        self._requests.close()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        server = await asyncio.start_server(self._answer, sock=self._listener)
        self._started.set()
        await self._stopped.wait()
        server.close()
        if self._open:
            await asyncio.wait(set(self._open))

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "asyncio runs this in a task"
        self._open.add(task)
        try:
            fields, body = await _read(reader)
            answer = await self._response(Records(**fields, body=body))
            headers = {name: value for name, value in answer.headers.items() if name != "content-length"}
            _write(writer, {"status": answer.status_code, "headers": headers}, bytes(answer.body))
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            # The client has gone, or the daemon. What was sent is stored all the same.
            pass
        finally:
            self._open.discard(task)
            writer.close()

    async def _response(self, records: Records) -> Response:
        try:
            intake = self._writer()
            if intake is None:
                raise refusal(
                    503, "the daemon is stopping; nothing was sent", retry_after_s=self._http.retry_after
                )
            return await self._requests.answer(intake, records)
        except HTTPException as error:
            return await refused(None, error)
        except Exception as error:  # noqa: BLE001
            # The head of the request: the worker continues.
            _log.exception("a forwarded request ended in an unexpected error")
            return await refused(None, error)


# --- On the pair
def _fields(records: Records) -> dict[str, Any]:
    return {name: value for name, value in asdict(records).items() if name != "body"}


def _write(writer: asyncio.StreamWriter, head: dict[str, Any], body: bytes) -> None:
    text = json.dumps(head).encode()
    writer.write(_SIZES.pack(len(text), len(body)) + text)
    writer.write(body)


async def _read(reader: asyncio.StreamReader) -> tuple[dict[str, Any], bytes]:
    # Both ends are ours: the daemon has bounded the body.
    head_size, body_size = _SIZES.unpack(await reader.readexactly(_SIZES.size))
    head = json.loads(await reader.readexactly(head_size))
    return head, await reader.readexactly(body_size)
