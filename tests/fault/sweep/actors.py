"""The test's side of the actors: starts the host, has actors forked, waits for what becomes of them, wakes
them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from archiver.runtime.clock import SystemClock
from tests.fault.sweep.deeds import Orders
from tests.support.builders.deployment import ROOT
from tests.support.process.processes import descendants

PATIENCE_S = 240.0
"""A JVM may start in it, while other tests have the cores."""
POLL_S = 0.2
_CLOCK = SystemClock()


class Actor:
    """One process at work. Exactly one lives at a time."""

    def __init__(self, host: Host, pid: int, workers: bool) -> None:
        self._host = host
        self.pid = pid
        self._workers = workers
        self.code: int | None = None
        """Exit code, negative for a signal; None while it lives."""

    def stopped(self) -> bool:
        """Wait until it, or a Spark worker of its, stands still, or it has ended: whether a process stands
        still."""
        deadline_s = _CLOCK.monotonic_s() + PATIENCE_S
        while (reported := self._host.hear(POLL_S)) is None:
            if self._standing():
                return True
            assert _CLOCK.monotonic_s() < deadline_s, f"nothing was heard of the actor for {PATIENCE_S:g} s"
        self.code = reported.get("ended")
        return "stopped" in reported

    def wake(self) -> None:
        """Let it go on, with its workers."""
        for pid in (self.pid, *self._standing()):
            os.kill(pid, signal.SIGCONT)

    def _standing(self) -> list[int]:
        # The host reports the actor itself. Only Spark has workers below it, and a look at all processes is costly.
        return standing_below(self.pid) if self._workers else []

    def end(self) -> int:
        """Wait for its end, waking it again and again: other workers may come to the point that the first one
        has passed; the exit code."""
        while self.code is None:
            if self.stopped():
                self.wake()
        return self.code

    def put_down(self) -> None:
        """After a case that failed in the middle: the next one needs the host."""
        if self.code is not None:
            return
        _kill_with_descendants(self.pid)
        while self.code is None:
            reported = self._host.hear(PATIENCE_S)
            assert reported is not None, "a killed actor does not end"
            self.code = reported.get("ended")


def standing_below(pid: int) -> list[int]:
    """The descendants of a process that a signal has stopped."""
    return [process[0] for process, _ in descendants(pid) if _state(process[0]) == "T"]


def _kill_with_descendants(root: int) -> None:
    """The descendants first: one that is stopped would outlive its parent."""
    for pid in (*(process[0] for process, _ in descendants(root)), root):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _state(pid: int) -> str:
    try:
        return (
            Path(f"/proc/{pid}/stat")
            .read_text(encoding="utf-8", errors="replace")
            .rpartition(")")[2]
            .split()[0]
        )
    except (FileNotFoundError, ProcessLookupError):
        return ""


class Host:
    """The process that forks actors. A context manager; leaving it ends the actor that is left as well."""

    def __init__(self) -> None:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("ARCHIVER_")}
        environ |= {
            "PYTHONPATH": str(ROOT),
            "OPENBLAS_NUM_THREADS": "1",
        }  # a library's threads do not survive a fork
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fault.sweep.fork_host"],
            cwd=ROOT,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._rest = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        _kill_with_descendants(self._process.pid)
        self._process.wait(PATIENCE_S)
        self._process.stdin.close()
        self._process.stdout.close()

    def begin(self, orders: Orders, *, workers: bool) -> Actor:
        """Have an actor forked; `workers`: it may start processes of its own, which reach points as well."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(orders)).encode() + b"\n")
        self._process.stdin.flush()
        reported = self.hear(PATIENCE_S)
        assert reported is not None, "no actor was forked"
        return Actor(self, reported["began"], workers)

    def hear(self, patience_s: float) -> dict[str, Any] | None:
        """What the host says next; None if it says nothing for so long."""
        assert self._process.stdout is not None
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self._process.stdout], [], [], patience_s)
            if not ready:
                return None
            data = os.read(self._process.stdout.fileno(), 65536)
            assert data, "the host of the actors has ended"
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found
