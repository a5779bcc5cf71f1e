"""This daemon's registration among those that serve Kafka clients, and the list of the live ones.

A thread renews the registration three times in `kafka.broker_timeout` and reads the list every second, so no
request waits for the metadata store. While the store does not answer, the last list stays: nothing could be
stored in that time either.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Callable, Sequence
from typing import Final

from archiver.log.brokers import Broker, BrokerRegistry, leader_of
from archiver.runtime.errors import ArchiverError

_log = logging.getLogger(__name__)

RENEWALS: Final = 3
"""Renewals in one time limit: two may fail without harm."""
LIST_S: Final = 1.0
"""Interval at which the list is read: a daemon that was stopped is named for so long."""
OPENING_S: Final = 0.2
"""Interval at which an unopened port is looked at again."""
# Producers send no rack. A client id is the one text of theirs that a user chooses.
_RACK: Final = re.compile(r"(?:^|[,; ])rack=([A-Za-z0-9._/:-]{1,255})", re.ASCII)


class Membership:
    """Registers this daemon from `start` to `leave`."""

    def __init__(
        self,
        registry: BrokerRegistry,
        address: Callable[[], tuple[str, int] | None],
        rack: str,
        timeout_s: float,
    ) -> None:
        """`address` gives host and port for clients; None while the port is not open."""
        self._registry = registry
        self._address = address
        self._rack = rack
        self._interval_s = timeout_s / RENEWALS
        self._registered: tuple[str, int] | None = None
        self._own: Broker | None = None
        self._live: Sequence[Broker] = ()
        self._trouble = ""
        self._stopping = threading.Event()
        self._first = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kafka-membership", daemon=True)

    @property
    def live(self) -> Sequence[Broker]:
        """The live daemons as of the last renewal, by node id."""
        return self._live

    @property
    def own(self) -> Broker | None:
        """This daemon as of its last registration; None before the first one, and from `leave` on."""
        return None if self._stopping.is_set() else self._own

    @property
    def registered(self) -> bool:
        """Whether the last renewal succeeded."""
        return self._registered is not None and not self._trouble and not self._stopping.is_set()

    @property
    def trouble(self) -> str | None:
        """Why the last renewal failed; None if it did not."""
        return self._trouble or None

    def start(self, wait_s: float = 5.0) -> None:
        """Begin; returns after the first attempt, or after `wait_s`."""
        self._thread.start()
        self._first.wait(wait_s)

    def leave(self) -> None:
        """End the registration, so that clients are sent to other daemons. Leaving twice is no error."""
        self._stopping.set()
        if self._thread.is_alive():
            # A renewal that runs now would enter the registration again behind its end.
            self._thread.join(self._interval_s)
        try:
            self._registry.release()
        except ArchiverError as error:
            _log.warning("the registration for Kafka clients ends by itself: %s", error)
        self._live = [one for one in self._live if (one.host, one.port) != self._registered]

    def leader_for(self, client_id: str) -> Broker | None:
        """The daemon that a client is given as the leader of every partition; None without live daemons."""
        live = self._live
        return leader_of(live, rack_of(client_id), client_id) if live else None

    def _run(self) -> None:
        left_s = 0.0
        while not self._stopping.is_set():
            address = self._address()
            if address is not None and (left_s <= 0 or address != self._registered):
                self._renew(address)
                left_s = self._interval_s
            # Also without a registration of its own: clients then go to the other daemons.
            with contextlib.suppress(ArchiverError):
                self._live = self._registry.live()
            # Also without an address: a taken port must not delay the start.
            self._first.set()
            wait_s = OPENING_S if address is None else min(LIST_S, self._interval_s)
            self._stopping.wait(wait_s)
            left_s -= wait_s

    def _renew(self, address: tuple[str, int]) -> None:
        trouble = ""
        try:
            # A port that was opened again may have another number.
            if address != self._registered:
                self._own = self._registry.register(*address, self._rack)
                self._registered = address
            else:
                # A lost registration may be made again under another node id.
                self._own = self._registry.heartbeat()
        except ArchiverError as error:
            trouble = str(error)
        except Exception:  # noqa: BLE001
            # The head of the thread: without it this daemon would vanish for clients.
            _log.exception("unexpected error in the registration for Kafka clients")
            trouble = "an unexpected error"
        # One line for each new reason, not one for each attempt.
        if trouble and trouble != self._trouble:
            _log.warning("the registration for Kafka clients is not renewed: %s", trouble)
        self._trouble = trouble


def rack_of(client_id: str) -> str:
    """The rack that a client id names as `rack=NAME`, alone or between commas, semicolons or blanks; else
    empty.
    """
    found = _RACK.search(client_id)
    return found.group(1) if found else ""
