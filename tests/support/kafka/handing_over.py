"""Intake workers as threads of the test: the listener hands connections over to them through real sockets, and each
has an application, a writer and a loop of its own, as a worker process has."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Self

from archiver.app.application import Application
from archiver.kafka.handover import send_connection
from archiver.kafka.worker import KafkaWorker


class WorkerInThread:
    """One worker over an application of its own."""

    def __init__(self, other: Application, connections_max: int) -> None:
        settings = other.settings
        assert settings.kafka is not None
        self.application = Application(settings, {}, lasting=True)
        self.application.warm()
        self.writer = self.application.intake.writer()
        self.channel, theirs = socket.socketpair()
        self.channel.setblocking(False)
        self.kafka = KafkaWorker(settings.kafka, self.application, self.writer, 1.0, connections_max, theirs)
        self.open = 0
        self.kafka.start()

    def close(self) -> None:
        """Stop as the process does."""
        self.kafka.close_intake()
        self.writer.close()
        self.kafka.stop(5)
        self.channel.close()
        self.application.close()


class WorkersInThreads:
    """Some of them, as `archiver.kafka.handover.Workers`. Use it as a context manager."""

    def __init__(self, other: Application, count: int = 2) -> None:
        assert other.settings.kafka is not None
        most = other.settings.kafka.connections_max
        self.workers = [WorkerInThread(other, most) for _ in range(count)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self.workers:
            one.close()

    def give(self, client: socket.socket, far: socket.socket) -> Callable[[], None] | None:
        """To the worker with the fewest connections."""
        worker = min(self.workers, key=lambda one: one.open)
        try:
            send_connection(worker.channel, client, far)
        except OSError:
            # The workers end before the port.
            return None
        worker.open += 1

        def ended() -> None:
            worker.open -= 1

        return ended
