"""A relay between Kafka clients and two daemons that delivers the first batch late, and loses its answer.

The first Produce request is held back. The next one of its connection goes to the other daemon, and the client
gets that answer. Then the first one goes to its own daemon, its answer is dropped, and the connection ends.
From then on everything passes. Only for clients that find answers by their correlation id, as librdkafka does.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Sequence
from typing import Self

from archiver.kafka.protocol import ApiKey

Address = tuple[str, int]


class Overtaking:
    """One port for each of two daemons. Use it as a context manager."""

    def __init__(self) -> None:
        self._ports = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        self._daemons: Sequence[Address] = ()
        self._lock = threading.Lock()
        self.has_begun = False
        """Whether a first batch was held back."""

    @property
    def addresses(self) -> list[str]:
        """What the daemons advertise."""
        return ["{}:{}".format(*port.getsockname()) for port in self._ports]

    def start(self, daemons: Sequence[Address]) -> None:
        """Relay to these daemons, one for each port."""
        self._daemons = daemons
        for number in range(2):
            threading.Thread(target=self._accept, args=(number,), daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for port in self._ports:
            # A mere `close` would leave its thread waiting in `accept`.
            with contextlib.suppress(OSError):
                port.shutdown(socket.SHUT_RDWR)
            port.close()

    def _accept(self, number: int) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._ports[number].accept()
                threading.Thread(target=self._serve, args=(client, number), daemon=True).start()

    def _serve(self, client: socket.socket, number: int) -> None:
        own, other = (socket.create_connection(self._daemons[n], 30) for n in (number, 1 - number))
        # Each request is answered before the next one is read. The client still has several on their way.
        with client, own, other, contextlib.suppress(OSError):
            while True:
                request = _frame(client)
                if _is_produce(request) and self._is_first():
                    while not _is_produce(second := _frame(client)):
                        client.sendall(_answer(own, second))
                    client.sendall(_answer(other, second))
                    _answer(own, request)
                    return
                client.sendall(_answer(own, request))

    def _is_first(self) -> bool:
        with self._lock:
            first, self.has_begun = not self.has_begun, True
            return first


def _is_produce(request: bytes) -> bool:
    return int.from_bytes(request[4:6], "big") == ApiKey.PRODUCE


def _answer(daemon: socket.socket, request: bytes) -> bytes:
    daemon.sendall(request)
    return _frame(daemon)


def _frame(connection: socket.socket) -> bytes:
    """The next request or response, with its size; raises `ConnectionError` at the end."""
    size = _exactly(connection, 4)
    return size + _exactly(connection, struct.unpack(">i", size)[0])


def _exactly(connection: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        more = connection.recv(count - len(found))
        if not more:
            raise ConnectionError("the other side ended the connection")
        found += more
    return found
