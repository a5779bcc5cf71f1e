"""What the servers of the tests have in common that run in a process of their own, on a loopback port that
the system chose.

Ended and started again, one is at its address. The kernel ends it with the thread that started it, so it
never outlives the tests, however they end. What it prints is kept.
"""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import IO, Self

from tests.support.process.processes import until

START_TRIES = 5
AGAIN_S = 1.0
STOP_TIMEOUT_S = 30.0
_SAID_MAX = 3000


class LocalServer(ABC):
    """One server; `port` is 0 until it was up once."""

    def __init__(self, name: str) -> None:
        """`name` is for messages."""
        self.port = 0
        self._name = name
        self._process: subprocess.Popen[bytes] | None = None
        self._said: list[bytes] = []
        self._reader: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """The running process; for a test that pauses it."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it on 127.0.0.1, at the port it had before, if it had one."""
        for _ in range(START_TRIES):
            if self._started(self.port or free_port()):
                return
            if self.port:
                # A client elsewhere on this machine may have the port as its own for a moment.
                time.sleep(AGAIN_S)
        raise AssertionError(f"{self._name} did not start: {self.output()}")

    def stop(self) -> None:
        """Ask it to end, as an operator does, and wait."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(STOP_TIMEOUT_S)
        self.kill()

    def kill(self) -> None:
        """End it at once, as a crash does; what it had acknowledged is kept."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait(STOP_TIMEOUT_S)
        if self._reader is not None:
            self._reader.join(STOP_TIMEOUT_S)
        if process.stdout is not None:
            process.stdout.close()

    def output(self) -> str:
        """What it has printed."""
        return b"".join(self._said).decode(errors="replace")[-_SAID_MAX:]

    @abstractmethod
    def _started(self, port: int) -> bool:
        """Start it there; False if another process has taken a port since."""

    def _run(self, command: Sequence[str], port: int, answers: Callable[[], bool], timeout_s: float) -> bool:
        """Whether the process is there and answers."""
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._process, self._said = process, []
        assert process.stdout is not None
        self._reader = threading.Thread(target=_collect, args=(process.stdout, self._said), daemon=True)
        self._reader.start()
        until(
            f"{self._name} answers or has ended", lambda: answers() or process.poll() is not None, timeout_s
        )
        if process.poll() is not None:
            self.kill()
            return False
        self.port = port
        return True


def _collect(stream: IO[bytes], into: list[bytes]) -> None:
    into.extend(stream)


def free_port() -> int:
    """One that is free at the moment."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
