"""A client's way to the coordinator of its group or of its transactional id."""

from __future__ import annotations

import random
from typing import Final

from kio.schema.errors import ErrorCode

from tests.simulation.kafka.group_requests import find_coordinator
from tests.simulation.kafka.kafka_clients import Links
from tests.simulation.kafka.wire import Brokers, Connection, Disconnected, answered
from tests.simulation.schedule import Process

ELSEWHERE: Final = {ErrorCode.not_coordinator, ErrorCode.coordinator_not_available}
"""Find the coordinator again, and ask again."""
AGAIN: Final = {*ELSEWHERE, ErrorCode.coordinator_load_in_progress}
"""Ask again. Kafka's clients keep the connection to a coordinator that loads."""
_PATIENCE_US = 4_000_000


class CoordinatorLink:
    """The connection to the daemon that some daemon named as the coordinator."""

    def __init__(
        self,
        process: Process,
        brokers: Brokers,
        choices: random.Random,
        links: Links,
        key: str,
        *,
        transactional: bool = False,
    ) -> None:
        self._process = process
        self._brokers = brokers
        self._random = choices
        self._links = links
        self._key = key
        self._transactional = transactional
        self._known: Connection | None = None

    def connection(self) -> Connection:
        """The present connection, or another one. Raises `Disconnected`."""
        if self._known is None or self._known.closed:
            self._known = self._found()
        return self._known

    def leave(self) -> None:
        """Find the coordinator again. Commits that are on their way stay so, now and then."""
        if self._known is not None and self._random.random() < 0.5:
            self._known.close()
        self._known = None

    def _found(self) -> Connection:
        asked = self._links.leader()
        body = answered(find_coordinator(asked, self._key, transactional=self._transactional), _PATIENCE_US)
        port = self._brokers.port(body["host"])
        if ErrorCode(body["error_code"]) is not ErrorCode.none or port is None:
            raise Disconnected
        return Connection(self._process, port)
