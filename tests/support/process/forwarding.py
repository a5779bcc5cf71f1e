"""An intake worker's server of HTTP records in the process of the test, and the daemon's side of its channel."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Self

from archiver.config.daemon import HttpSettings
from archiver.web.forward import Forward, RecordServer, send_request
from intake.write.writer import IntakeWriter


class OneWorker:
    """The worker that answers every request while it serves."""

    def __init__(self, writer: IntakeWriter, http: HttpSettings) -> None:
        """Closes the writer at its end."""
        self.writer: IntakeWriter | None = writer
        self._own = writer
        self._channel, far = socket.socketpair()
        self._channel.setblocking(False)
        self._server = RecordServer(far, lambda: self.writer, http)
        self.serves = True
        self.given = 0
        self.ended = 0
        self.forward = Forward(lambda: self if self.serves else None, http)

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._own.close()
        self._channel.close()
        self._server.stop(5.0)

    def give_records(self, far: socket.socket) -> Callable[[], None] | None:
        """As `archiver.web.forward.RecordWorkers`."""
        send_request(self._channel, far)
        self.given += 1
        return self._end

    def _end(self) -> None:
        self.ended += 1
