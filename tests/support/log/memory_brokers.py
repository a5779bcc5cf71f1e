"""The in-memory twin of the registries of daemons: the same promises within one process."""

from __future__ import annotations

import threading

from archiver.log.brokers import Broker, address_taken, check_address, new_incarnation, node_id_for
from archiver.runtime.clock import Clock
from archiver.runtime.ids import IdSource


class BrokerPlace:
    """What several `MemoryBrokers` share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.known: list[tuple[int, str, int]] = []
        """Id, host and port; the newest registration last."""
        self.registered: dict[int, tuple[Broker, float]] = {}
        """By id, with the time at which it ends."""


class MemoryBrokers:
    """See `archiver.log.brokers.BrokerRegistry`; give the registries of one deployment the same `place`."""

    def __init__(self, place: BrokerPlace, timeout_s: float, clock: Clock, ids: IdSource) -> None:
        self._place = place
        self._timeout_s = timeout_s
        self._clock = clock
        self._incarnation = new_incarnation(ids)
        self._broker: Broker | None = None

    def register(self, host: str, port: int, rack: str) -> Broker:
        """As the Protocol says."""
        check_address(host, port, rack)
        with self._place.lock:
            self._broker = self._enter(host, port, rack, take_over=True)
            return self._broker

    def heartbeat(self) -> Broker | None:
        """As the Protocol says."""
        with self._place.lock:
            if (old := self._broker) is not None:
                self._broker = self._enter(old.host, old.port, old.rack, take_over=False)
            return self._broker

    def live(self) -> list[Broker]:
        """As the Protocol says."""
        with self._place.lock:
            return self._live()

    def release(self) -> None:
        """As the Protocol says."""
        with self._place.lock:
            self._broker = None
            self._leave()

    def _enter(self, host: str, port: int, rack: str, take_over: bool) -> Broker:
        live = {broker.node_id: broker for broker in self._live()}
        node_id = node_id_for(self._place.known, live, host, port)
        holder = live.get(node_id)
        if not take_over and holder is not None and holder.incarnation != self._incarnation:
            raise address_taken(host, port)
        self._leave()
        broker = Broker(node_id, host, port, rack, self._incarnation)
        self._place.known = [*(one for one in self._place.known if one[0] != node_id), (node_id, host, port)]
        self._place.registered[node_id] = (broker, self._clock.monotonic_s() + self._timeout_s)
        return broker

    def _leave(self) -> None:
        own = [
            node_id
            for node_id, (broker, _) in self._place.registered.items()
            if broker.incarnation == self._incarnation
        ]
        for node_id in own:
            del self._place.registered[node_id]

    def _live(self) -> list[Broker]:
        now_s = self._clock.monotonic_s()
        return [broker for _, (broker, until_s) in sorted(self._place.registered.items()) if now_s <= until_s]
