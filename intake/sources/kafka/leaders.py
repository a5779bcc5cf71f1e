"""Asks the brokers of a Kafka cluster which of them lead partitions, and does such work in threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from kio.schema.errors import ErrorCode
from kio.schema.metadata.v7.request import MetadataRequest, MetadataRequestTopic
from kio.schema.metadata.v7.response import MetadataResponse

from intake.sources.kafka.upstream import Place
from intake.sources.kafka.wire import Connecting, Connection, NotSpoken, WireError, error_of

Work = TypeVar("Work")


class Job(Generic[Work]):
    """Work in a thread; nothing waits for it."""

    def __init__(
        self, name: str, work: Callable[[], Work], drop: Callable[[Work], None], late_s: float
    ) -> None:
        self._work = work
        self._drop = drop
        self.late_s = late_s
        """When it is given up, by the clock: the resolution of a name has no bound of its own."""
        self._lock = threading.Lock()
        self._is_dropped = False
        self.done = False
        self.result: Work | None = None
        self.error: Exception | None = None
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        result, error = None, None
        try:
            result = self._work()
        except Exception as failed:  # noqa: BLE001 - raised in the thread that asked
            error = failed
        with self._lock:
            self.result, self.error, self.done = result, error, True
            unused = result if self._is_dropped else None
        if unused is not None:
            self._drop(unused)

    def is_late(self, now_s: float) -> bool:
        """Whether it is given up."""
        return not self.done and now_s > self.late_s

    def drop(self) -> None:
        """The result is not needed any more."""
        with self._lock:
            self._is_dropped = True
            unused = self.result
        if unused is not None:
            self._drop(unused)


@dataclass(frozen=True, slots=True)
class Leaders:
    """The response to a question for leaders."""

    connection: Connection
    brokers: dict[int, tuple[str, int]]
    errors: dict[str, ErrorCode]
    leaders: dict[Place, tuple[int, int]]
    """Broker and leader epoch."""


def ask_leaders(
    made: Connecting,
    asker: Connection | None,
    addresses: Sequence[tuple[str, int]],
    names: Sequence[str],
    timeout_s: float,
) -> Leaders:
    """Ask the first broker that responds. Raises `WireError`."""
    until_s = made.clock.monotonic_s() + timeout_s
    error: WireError | None = None
    connection = asker
    for address in [None, *addresses]:
        left_s = until_s - made.clock.monotonic_s()
        if left_s <= 0:
            break
        try:
            if address is not None:
                connection = Connection(made, address, left_s)
            if connection is not None:
                return _leaders(connection, names, max(0.001, until_s - made.clock.monotonic_s()))
        except NotSpoken:
            raise
        except WireError as failed:
            error = failed
            if connection is not None:
                connection.close()
            connection = None
    raise error or WireError("no broker responds in time")


def _leaders(connection: Connection, names: Sequence[str], timeout_s: float) -> Leaders:
    topics: Any = tuple(MetadataRequestTopic(name=name) for name in names)  # type: ignore[arg-type]
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
    found = connection.ask(request, MetadataResponse, timeout_s)
    return Leaders(
        connection,
        {int(one.node_id): (str(one.host), int(one.port)) for one in found.brokers},
        {str(one.name): error_of(one.error_code) for one in found.topics},
        {
            (str(topic.name), int(one.partition_index)): (int(one.leader_id), int(one.leader_epoch))
            for topic in found.topics
            for one in topic.partitions
            if one.leader_id >= 0
        },
    )
