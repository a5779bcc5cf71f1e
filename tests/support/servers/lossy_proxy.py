"""A TCP proxy that loses answers: the request arrives, the answer does not, and the connection is cut."""

from __future__ import annotations

import contextlib
import socket
import threading

from tests.support.process.processes import until

UPSTREAM_TIMEOUT_S = 5.0


class LossyProxy:
    """Passes connections on to `upstream` until it is closed. Close it."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._server.getsockname()
        self.upstream: tuple[str, int] | None = None
        """Where connections go; without it they are closed."""
        self.losing = threading.Event()
        """While it is set, each answer is dropped and its connection is cut."""
        self.lost = 0
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_one(self) -> None:
        """Lose one answer or more, then none."""
        before = self.lost
        self.losing.set()
        until("an answer is lost", lambda: self.lost > before)
        self.losing.clear()

    def close(self) -> None:
        """End every connection."""
        with self._lock:
            ends = [self._server, *self._open]
        for one in ends:
            # A mere `close` would leave its thread waiting in `accept` or `recv`.
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                try:
                    assert self.upstream is not None
                    server = socket.create_connection(self.upstream, timeout=UPSTREAM_TIMEOUT_S)
                except (AssertionError, OSError):
                    client.close()
                    continue
                server.settimeout(None)
                threading.Thread(target=self._serve, args=(client, server), daemon=True).start()

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        with client, server:
            with self._lock:
                self._open |= {client, server}
            requests = threading.Thread(target=self._pass, args=(client, server, False), daemon=True)
            requests.start()
            self._pass(server, client, True)
            requests.join()
            with self._lock:
                self._open -= {client, server}

    def _pass(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if answers and self.losing.is_set():
                    self.lost += 1
                    break
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
