"""Which daemons are live, as each of them believes: the product's registrations without their store.

A list may be old, because the store did not answer or its daemon was paused. So two daemons may believe that
they coordinate one group, and so may two processes of one daemon.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from archiver.log.brokers import Broker
from archiver.runtime.errors import ArchiverError
from tests.simulation.schedule import Process
from tests.simulation.twins import Requests

_INTERVAL_US = 1_000_000
"""How often a daemon renews its registration and reads the list."""


class Registrations:
    """What the metadata store holds of all daemons."""

    def __init__(self, timeout_us: int, lag: float) -> None:
        """`lag` is the chance that a daemon keeps its list, although it could read a newer one."""
        self.lag = lag
        self._timeout_us = timeout_us
        self._renewed: dict[str, tuple[Broker, int]] = {}

    def renew(self, actor: str, incarnation: str, now_us: int, *, first: bool) -> Broker:
        """Register a process, or renew that. Another process with that address stays registered while it is
        live, unless this one has just started.
        """
        known, at_us = self._renewed.get(actor, (None, 0))
        is_live = at_us + self._timeout_us > now_us
        if known is not None and known.incarnation != incarnation and is_live and not first:
            return known
        broker = Broker(number_of(actor) + 1, actor, 9092, "", incarnation)
        self._renewed[actor] = broker, now_us
        return broker

    def live(self, now_us: int) -> list[Broker]:
        """The daemons that renewed their registration in time."""
        found = [one for one, at_us in self._renewed.values() if at_us + self._timeout_us > now_us]
        return sorted(found, key=lambda one: one.node_id)


class Belief:
    """What one daemon process believes."""

    def __init__(self, registrations: Registrations, process: Process, choices: random.Random) -> None:
        self._registrations = registrations
        self._process = process
        self._random = choices
        self._requests = Requests(process)
        self._due_us = process.schedule.now_us
        self.own: Broker | None = None
        self.live: Sequence[Broker] = ()

    @property
    def due_in_us(self) -> int:
        """Time until the registration is renewed again."""
        return max(0, self._due_us - self._process.schedule.now_us)

    def renew(self) -> None:
        """Renew the registration, and read the list."""
        schedule = self._process.schedule
        try:
            own, live = self._requests.look("renews its registration", self._renewed)
        except ArchiverError:
            # The last list stays.
            pass
        else:
            self.own = own
            if not self.live or schedule.calm or self._random.random() >= self._registrations.lag:
                self.live = live
        self._due_us = schedule.now_us + _INTERVAL_US

    def _renewed(self) -> tuple[Broker, list[Broker]]:
        name, now_us = self._process.name, self._process.schedule.now_us
        own = self._registrations.renew(self._process.actor.name, name, now_us, first=self.own is None)
        return own, self._registrations.live(now_us)


def number_of(actor: str) -> int:
    """The number in the name of a daemon."""
    return int(actor.removeprefix("daemon"))
