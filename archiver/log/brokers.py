"""Registrations of the daemons that answer Kafka clients, and the choice of one of them for a client.

A registration is advisory, as a lease is. A daemon that counts as dead may still run, and two processes may
believe that they have one address. The intake log alone decides what is acknowledged.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, Protocol

from archiver.log.lease import BOOT_ID
from archiver.log.sqlite import SqliteLogStore
from archiver.runtime.clock import Clock
from archiver.runtime.errors import AddressTaken, ArchiverError, InvalidInput, RetryLater
from archiver.runtime.ids import IdSource

ADDRESSES_MAX: Final = 1000
"""Addresses whose node ids are remembered. Beyond that, a new address gets the id of the one that registered
the longest time ago and is not live."""
TEXT_MAX: Final = 255
"""Most characters of a host or a rack."""
PORT_MAX: Final = 65535
_INCARNATION_BYTES: Final = 8

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Broker:
    """A daemon as Kafka clients see it."""

    node_id: int
    """A small number from 1. An address keeps its id across restarts."""
    host: str
    port: int
    rack: str
    """Empty for none."""
    incarnation: str
    """Differs between two processes that registered one address."""


class BrokerRegistry(Protocol):
    """The registration of one process, and the live registrations of all. Safe for several threads.

    Every method waits at most as long as one request to the metadata store, and raises its errors.
    """

    def register(self, host: str, port: int, rack: str) -> Broker:
        """Register this process, in place of its earlier registration and of any other process with that
        address. Idempotent. Raises `InvalidInput` for white space in a text.
        """

    def heartbeat(self) -> Broker | None:
        """Renew the registration; a lost one is made again, perhaps under another node id. None if this
        process is not registered.

        Raises `AddressTaken` while another live process has the address.
        """

    def live(self) -> list[Broker]:
        """The registrations that were renewed within their own time limit, by node id."""

    def release(self) -> None:
        """End the registration at once; no effect without one. If the metadata store does not answer, the
        time limit ends it.
        """


# --- The choice of a daemon.
def leader_of(brokers: Sequence[Broker], rack: str, client_id: str) -> Broker:
    """The daemon that a client is given as the leader of every partition: one of its rack if there is one.

    Every daemon computes the same one. If a daemon leaves, only its own clients get another one. Raises
    `ValueError` without brokers.
    """
    same_rack = [broker for broker in brokers if rack and broker.rack == rack]
    return _highest(same_rack or brokers, b"leader", rack, client_id)


def coordinator_of(brokers: Sequence[Broker], key: str) -> Broker:
    """The daemon that coordinates a group or a transactional id; otherwise as `leader_of`."""
    # Clients of every rack must find the same one, so racks do not count.
    return _highest(brokers, b"coordinator", key)


def _highest(brokers: Sequence[Broker], purpose: bytes, *parts: str) -> Broker:
    """Rendezvous hashing: the broker with the highest hash of purpose, parts and node id."""
    # Not Python's `hash`, which differs between processes.
    shared = blake2b(digest_size=8, person=purpose)
    for part in parts:
        text = part.encode(errors="surrogatepass")
        # With its length, so that ("a", "bc") and ("ab", "c") differ.
        shared.update(len(text).to_bytes(4, "big") + text)

    def score(broker: Broker) -> tuple[bytes, int]:
        own = shared.copy()
        own.update(broker.node_id.to_bytes(4, "big"))
        return own.digest(), broker.node_id

    return max(brokers, key=score)


# --- What the adapters share.
def node_id_for(known: Sequence[tuple[int, str, int]], live: Collection[int], host: str, port: int) -> int:
    """The node id of an address. `known`: id, host and port of each remembered address, in the order of their
    last registration. Raises `RetryLater` if every id is live.
    """
    used = {node_id for node_id, *_ in known}
    for node_id, *address in known:
        if address == [host, port]:
            return node_id
    if len(known) < ADDRESSES_MAX:
        return next(number for number in range(1, ADDRESSES_MAX + 1) if number not in used)
    free = next((node_id for node_id, *_ in known if node_id not in live), None)
    if free is None:
        raise RetryLater(f"{len(known)} daemons are registered for Kafka clients, the most that are possible")
    return free


def check_address(host: str, port: int, rack: str) -> None:
    """Raises `InvalidInput` for an address or a rack that cannot be stored or served."""
    for name, text in (("host", host), ("rack", rack)):
        # Adapters separate the texts by spaces and lines.
        if len(text) > TEXT_MAX or not text.isprintable() or " " in text:
            raise InvalidInput(
                f"the {name} {text[:TEXT_MAX]!r} is over {TEXT_MAX} characters or has white space"
            )
    if not host or not 1 <= port <= PORT_MAX:
        raise InvalidInput(f"{host}:{port} is no address to connect to")


def new_incarnation(ids: IdSource) -> str:
    """A new value of `Broker.incarnation`."""
    return ids.random_bytes(_INCARNATION_BYTES).hex()


def address_taken(host: str, port: int) -> AddressTaken:
    """The error of a process whose address another one registered."""
    return AddressTaken(
        f"another daemon has registered {host}:{port} for Kafka clients; if it is not a restart of this one, "
        "give each daemon its own kafka.advertised"
    )


# --- The registry in a SQLite database.
# Made at the first registration, so an older database has no such table. Older versions ignore it.
_CREATE: Final = (
    "create table if not exists brokers (node_id integer primary key, host text not null, port integer not "
    "null, rack text not null, incarnation text not null, boot text not null, renewed_us integer not null, "
    "timeout_us integer not null, turn integer not null, unique (host, port))"
)


class SqliteBrokers:
    """Registrations as rows of the table `brokers`. See `BrokerRegistry`.

    A row stays after the registration has ended, with an empty incarnation, to keep the node id.

    Heartbeats are times of the monotonic clock. All processes on a SQLite database share a machine, so they
    share this clock, and unlike the wall clock it is never set. It starts again with the kernel; a row of an
    earlier boot is therefore not live.
    """

    def __init__(self, store: SqliteLogStore, timeout_s: float, clock: Clock, ids: IdSource) -> None:
        self._store = store
        self._timeout_us = round(timeout_s * 1e6)
        self._clock = clock
        self._incarnation = new_incarnation(ids)
        self._boot = _boot()
        self._broker: Broker | None = None
        self._lock = threading.Lock()

    def register(self, host: str, port: int, rack: str) -> Broker:
        """See `BrokerRegistry.register`."""
        check_address(host, port, rack)
        with self._lock:
            self._broker = self._enter(host, port, rack, take_over=True)
            return self._broker

    def heartbeat(self) -> Broker | None:
        """See `BrokerRegistry.heartbeat`."""
        with self._lock:
            if self._broker is not None:
                self._broker = self._enter(
                    self._broker.host, self._broker.port, self._broker.rack, take_over=False
                )
            return self._broker

    def live(self) -> list[Broker]:
        """See `BrokerRegistry.live`."""
        return self._store.transact("begin", self._live)

    def release(self) -> None:
        """See `BrokerRegistry.release`."""
        with self._lock:
            released, self._broker = self._broker, None
            if released is None:
                return
            try:
                self._store.transact("begin immediate", self._leave)
            except ArchiverError as error:
                _logger.warning("the registration for Kafka clients ends by its time limit: %s", error)

    def _enter(self, host: str, port: int, rack: str, take_over: bool) -> Broker:
        def enter(connection: sqlite3.Connection) -> Broker:
            connection.execute(_CREATE)
            live = {broker.node_id: broker for broker in self._live(connection)}
            known = connection.execute("select node_id, host, port from brokers order by turn").fetchall()
            node_id = node_id_for(known, live, host, port)
            holder = live.get(node_id)
            if not take_over and holder is not None and holder.incarnation != self._incarnation:
                raise address_taken(host, port)
            # A process has one registration. Its earlier address stays known.
            self._leave(connection)
            connection.execute(
                "replace into brokers (node_id, host, port, rack, incarnation, boot, renewed_us, timeout_us, "
                "turn) values (?, ?, ?, ?, ?, ?, ?, ?, (select ifnull(max(turn), 0) + 1 from brokers))",
                (
                    *(node_id, host, port, rack, self._incarnation, self._boot),
                    *(self._now_us(), self._timeout_us),
                ),
            )
            return Broker(node_id, host, port, rack, self._incarnation)

        return self._store.transact("begin immediate", enter)

    def _leave(self, connection: sqlite3.Connection) -> None:
        connection.execute("update brokers set incarnation = '' where incarnation = ?", (self._incarnation,))

    def _live(self, connection: sqlite3.Connection) -> list[Broker]:
        # A read must not create the table: it would need the lock of a writer.
        if connection.execute("select 1 from sqlite_master where name = 'brokers'").fetchone() is None:
            return []
        now_us = self._now_us()
        rows = connection.execute(
            "select node_id, host, port, rack, incarnation from brokers where incarnation <> '' and boot = ? "
            # Another process may have written a later time since this one read the clock. Where no boot id
            # is known, a time far ahead is from an earlier boot.
            "and renewed_us between ? - timeout_us and ? + timeout_us order by node_id",
            (self._boot, now_us, now_us),
        )
        return [Broker(*row) for row in rows]

    def _now_us(self) -> int:
        return round(self._clock.monotonic_s() * 1e6)


def _boot() -> str:
    """Identifies the boot of the kernel; empty where the kernel does not say."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
