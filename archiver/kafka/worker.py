"""The Kafka listener of an intake worker: connections that the daemon handed over, and their requests."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Container
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from archiver.app.application import Application
from archiver.config.kafka_listener import KafkaListenerSettings
from archiver.kafka.acl import Authorizer
from archiver.kafka.authentication import BEFORE, Admission
from archiver.kafka.data_requests import DataRequests
from archiver.kafka.handover import Received, ReceivedPeer, Relay
from archiver.kafka.listener import Answer, KafkaServer, Session, pause_max_s
from archiver.kafka.protocol import ApiKey, KafkaRequest
from archiver.runtime.errors import ArchiverError
from archiver.status.kafka_port import ListenerCounts
from archiver.web.listener import Listener
from intake.write.writer import IntakeWriter

READ_HERE: Final = frozenset({ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.LIST_OFFSETS}) | BEFORE
"""The APIs that a worker answers; all others depend on what only the daemon knows."""

OF_TOPICS: Final = frozenset(
    {
        ApiKey.METADATA,
        ApiKey.CREATE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.DELETE_TOPICS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
    }
)
"""Behind an answer to these, a client may send records that depend on it: the worker reads the log first."""


class ReceivingServer(KafkaServer):
    """Serves the connections that come through a channel."""

    _channel: socket.socket | None = None
    _age_max_s = 0.0

    def receive(self, channel: socket.socket, age_max_s: float) -> None:
        """Where connections come from; call it before `start`."""
        self._channel, self._age_max_s = channel, age_max_s

    @property
    def read_here(self) -> Container[ApiKey]:
        """Overrides the property of the base class."""
        return READ_HERE

    def session(self, writer: asyncio.StreamWriter) -> Session:
        """Overrides the method of the base class."""
        session = super().session(writer)
        peer = writer.get_extra_info("peername")
        assert isinstance(peer, ReceivedPeer), "only the daemon hands over connections"
        session.relay = Relay(peer.far)
        return session

    @property
    def ended(self) -> bool:
        """Whether no connection can come any more: the server has failed, or the daemon ended the channel."""
        # The socket is gone with the first attempt to serve it.
        return self._tried.is_set() and (self._loop is None or self._stopping.is_set())

    def _listening(self, *_: object) -> Listener:
        channel, self._channel = self._channel, None
        if channel is None:
            raise OSError("the channel of connections is closed")
        assert self._connections_max is not None, "a worker has a limit"
        limits = self._connections_max, self._unsent_bytes_max
        return Received(channel, *limits, self._age_max_s, self._stop_soon)

    def _stop_soon(self) -> None:
        self._stopping.set()
        if self._stop_event is not None:
            self._stop_event.set()

    def _opened(self, _: Listener) -> None:
        self._tried.set()


class KafkaWorker:
    """Serves the connections of a worker from `start` to `stop`."""

    def __init__(
        self,
        settings: KafkaListenerSettings,
        application: Application,
        writer: IntakeWriter,
        retry_max_s: float,
        connections_max: int,
        channel: socket.socket,
    ) -> None:
        """Takes over `channel`, through which the daemon hands over connections."""
        self.counts = ListenerCounts()
        self._admission = Admission(settings, application.ids)
        self._clock = application.clock
        self._threads = ThreadPoolExecutor(1, "kafka-log-read")
        pause_s = pause_max_s(application.configured.intake)
        self._server = ReceivingServer(
            self._handle,
            settings,
            retry_max_s,
            connections_max,
            pause_s,
            self._admission.session,
            self.counts,
        )
        self._server.receive(channel, pause_s)
        authorizer = Authorizer(settings.acls, authenticates=settings.authenticates)
        self._data = DataRequests(
            settings, application, writer, authorizer, self._server.answers, self.counts
        )

    def start(self) -> None:
        """Begin to serve; `ended` says whether that failed."""
        # As the daemon does: answers to Produce have the start of the log, and the loop must not read it.
        with contextlib.suppress(ArchiverError):
            self._data.log.ledger()
        self._server.start()

    @property
    def ended(self) -> bool:
        """Whether no connection can come any more."""
        return self._server.ended

    def runs(self, within_s: float) -> bool:
        """Whether the listener's loop does what it is asked to, within this time."""
        loop, done = self._server.loop, threading.Event()
        if loop is None:
            return False
        with contextlib.suppress(RuntimeError):  # the loop has ended by itself
            loop.call_soon_threadsafe(done.set)
        return done.wait(within_s)

    def close_intake(self) -> None:
        """Refuse further records, and answer waiting consumers."""
        answer_waiting = self._data.close_intake()
        if (loop := self._server.loop) is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                loop.call_soon_threadsafe(answer_waiting)

    def stop(self, grace_s: float) -> None:
        """Answer what is in work and close, within `grace_s`."""
        self._server.stop(grace_s)
        self._data.stop()
        self._admission.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _handle(self, session: Session, request: KafkaRequest) -> Answer | None:
        if self._admission.answers(session, request):
            return await self._admission(session, request)
        if not request.unread:
            return await self._data.handlers[request.api](session, request)
        assert session.relay is not None, "a worker's session has one"
        # The request is kept until its answer comes, and it may wait long: its bytes are not.
        frame = vars(request.body).pop("frame")
        asked = session.relay.ask(session.principal, frame, lambda: session.release(request))
        del frame
        answer = await asked
        if request.api in OF_TOPICS:
            await self._read_on()
        return answer

    async def _read_on(self) -> None:
        """Read the log as far as it is now."""
        since_s = self._clock.monotonic_s()
        # Without an answer the topics that are known stand.
        with contextlib.suppress(ArchiverError):
            await asyncio.get_running_loop().run_in_executor(
                self._threads, lambda: self._data.log.refresh(since_s=since_s)
            )
