"""Connections of Kafka clients to simulated daemons, and what happens to requests and answers on them.

Requests of one connection arrive in their order, and so do the answers. A request that is lost takes all later
ones of its connection with it; one that is late holds them back, and no answer comes any more. A client learns
only that no answer came.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from archiver.kafka.listener import Session
from archiver.kafka.protocol import ApiKey, KafkaRequest
from intake.log.fold import TopicState
from tests.simulation.faults import Fate
from tests.simulation.schedule import Process


class Disconnected(Exception):
    """The connection is closed; what was sent on it may have been processed."""


@dataclass(eq=False)
class Reply:
    """The answer to one request."""

    request: KafkaRequest
    connection: Connection
    sent_us: int
    done: bool = False
    body: Mapping[str, Any] | None = None
    arrived: bool = False
    """The client has it."""


class DaemonPort:
    """The port of one daemon process."""

    def __init__(self, process: Process, topics: Callable[[], Mapping[str, TopicState]]) -> None:
        self.process = process
        self.name = process.name
        self.topics = topics
        """What Metadata would answer."""
        self.is_open = True
        self.inbox: deque[Reply] = deque()
        """Requests that have arrived."""
        self.left: deque[Connection] = deque()
        """Connections whose end the daemon learns of."""
        self._connections: list[Connection] = []

    def attach(self, connection: Connection) -> None:
        """A client connects."""
        self._connections.append(connection)

    def arrive(self, reply: Reply) -> None:
        """A request arrives."""
        if self.is_open:
            self.inbox.append(reply)
            self.process.wake()

    def detach(self, connection: Connection, *, noticed: bool) -> None:
        """A client has closed its connection; the daemon may not notice."""
        self._connections.remove(connection)
        if noticed and self.is_open:
            self.left.append(connection)
            self.process.wake()

    def close(self) -> None:
        """The process is gone."""
        self.is_open = False
        self.inbox.clear()
        for connection in self._connections:
            connection.closed = True
            connection.process.wake()


class Brokers:
    """The ports that clients can find: of every daemon the last one that was opened and is open."""

    def __init__(self) -> None:
        self._ports: dict[str, list[DaemonPort]] = {}

    def enter(self, actor: str, port: DaemonPort) -> None:
        """A daemon has started."""
        self._ports.setdefault(actor, []).append(port)

    def port(self, actor: str) -> DaemonPort | None:
        """The port of a daemon; None if nothing listens."""
        return next((port for port in reversed(self._ports.get(actor, ())) if port.is_open), None)

    @property
    def live(self) -> list[DaemonPort]:
        """In a fixed order."""
        return [port for actor in sorted(self._ports) if (port := self.port(actor)) is not None]


@dataclass(eq=False)
class Connection:
    """A client's connection to one daemon process."""

    process: Process
    """Of the client."""
    port: DaemonPort
    closed: bool = False
    session: Session = field(init=False)
    _waiting: deque[Reply] = field(default_factory=deque)
    """Answers that are still to come, in order."""
    _cut: bool = False
    """No request arrives any more."""
    _deaf: bool = False
    """No answer comes any more."""
    _late: list[Reply] | None = None
    """Requests that are on their way for long."""
    _number: int = 0

    def __post_init__(self) -> None:
        self.session = Session(self.process.name, client_id=self.process.name)
        self.port.attach(self)

    def send(self, api: ApiKey, version: int, body: Any, what: str) -> Reply:
        """Send a request. Raises `Disconnected`."""
        process, schedule = self.process, self.process.schedule
        process.step(f"sends {what} to {self.port.name}")
        if self.closed:
            raise Disconnected
        self._number += 1
        request = KafkaRequest(api, version, self._number, process.name, body)
        reply = Reply(request, self, schedule.now_us)
        if self._late is not None:
            self._late.append(reply)
            return reply
        fate = Fate.FINE if self._cut or self._deaf else schedule.fate(process)
        if fate is not Fate.FINE:
            schedule.note(process.name, fate.value)
        if fate is Fate.REFUSED:
            self.close()
            raise Disconnected
        self._cut |= fate is Fate.DROPPED
        self._deaf |= fate in (Fate.REPLY_LOST, Fate.LATE)
        if fate is Fate.LATE:
            self._late = [reply]
            schedule.send_late(f"{what} to {self.port.name}", self._land)
        elif not self._cut:
            self._deliver(reply)
        return reply

    def _land(self) -> None:
        late, self._late = self._late or [], None
        for reply in late:
            self._deliver(reply)

    def _deliver(self, reply: Reply) -> None:
        self._waiting.append(reply)
        self.port.arrive(reply)

    def answer(self, reply: Reply, body: Mapping[str, Any] | None) -> None:
        """The daemon has an answer; None if the request has none."""
        reply.done, reply.body = True, body
        while self._waiting and self._waiting[0].done:
            first = self._waiting.popleft()
            if not self._deaf and not self.closed:
                first.arrived = True
                self.process.wake()

    def close(self) -> None:
        """The client closes it."""
        if not self.closed:
            self.closed = True
            self.port.detach(self, noticed=self.process.schedule.random.random() < 0.5)


def answered(reply: Reply, patience_us: int) -> Mapping[str, Any]:
    """Wait for the answer. Raises `Disconnected`, and closes the connection if none comes in that time."""
    connection = reply.connection
    process = connection.process
    until_us = process.schedule.now_us + patience_us
    while not reply.arrived:
        if connection.closed or process.schedule.now_us >= until_us:
            connection.close()
            raise Disconnected
        process.wait(until_us - process.schedule.now_us)
    assert reply.body is not None, "the request has an answer"
    return reply.body
