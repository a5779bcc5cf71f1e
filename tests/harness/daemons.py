"""Starts, inspects, kills and stops the daemons of a soak, each by its own process id.

Owns what a daemon's processes are called: itself, its JVM, its Python workers. Finds them from the outside,
by the process table.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import psutil

from tests.harness.scene import GRACE_S, DaemonScene, kill_tree

READY_S = 90.0
"""How long until a daemon that was started answers `/readyz` with 200, on a machine that does other things
too."""
ORPHANS_S = 20.0
"""How long what a killed daemon started may live on."""
POLL_S = 0.1
Part = Literal["jvm", "worker", "other"]


@dataclass
class Daemon:
    """One `archiver serve`."""

    name: str
    process: subprocess.Popen[bytes]
    killed: bool = False
    known: dict[int, psutil.Process] = field(default_factory=dict)
    """Every descendant that was ever seen."""

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def alive(self) -> bool:
        """It has not ended."""
        return self.process.poll() is None

    def descendants(self) -> list[tuple[Part, psutil.Process]]:
        """What it started, and those started, as it is now."""
        found: list[tuple[Part, psutil.Process]] = []
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process(self.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    found.append((_part(process), process))
                    self.known[process.pid] = process
        return found

    def jvm(self) -> psutil.Process | None:
        """Its JVM, if it has one now."""
        return next((process for part, process in self.descendants() if part == "jvm"), None)

    def orphans(self) -> list[psutil.Process]:
        """What it started and still runs."""
        return [process for process in self.known.values() if _runs(process)]


def _part(process: psutil.Process) -> Part:
    name = process.name()
    if name == "java":
        return "jvm"
    return "worker" if name.startswith("python") and "pyspark.worker" in process.cmdline() else "other"


def _runs(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return (
            process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        )  # With its start time: ids are used again.
    return False


class Garrison:
    """Every daemon of the run. What was started is stopped by `end` in every case."""

    def __init__(self, scene: DaemonScene) -> None:
        self._scene = scene
        self._count = 0
        self.daemons: list[Daemon] = []

    def start(self) -> Daemon:
        """Another daemon on the one configuration."""
        name = f"daemon-{self._count}"
        self._count += 1
        daemon = Daemon(name, self._scene.start(name, "-m", "archiver", "serve"))
        self.daemons.append(daemon)
        return daemon

    def running(self) -> list[Daemon]:
        """Those that have not ended."""
        return [daemon for daemon in self.daemons if daemon.alive()]

    def ready(self) -> bool:
        """Whether the port says that it is ready."""
        return get(self._scene.port, "/readyz", 2.0)[0] == 200

    def wait_ready(self, patience_s: float = READY_S) -> bool:
        """Whether the port became ready in time."""
        return waited(self.ready, patience_s)

    def stop(self, daemon: Daemon) -> int | None:
        """SIGTERM; its exit code, None if it did not end in time and had to be killed."""
        daemon.descendants()
        daemon.process.send_signal(signal.SIGTERM)
        try:
            return daemon.process.wait(GRACE_S + 15.0)
        except subprocess.TimeoutExpired:
            self.kill(daemon)
            return None

    def kill(self, daemon: Daemon) -> list[psutil.Process]:
        """SIGKILL to the daemon alone; the processes of it that live on for longer than they may."""
        daemon.descendants()
        daemon.killed = True
        daemon.process.kill()
        daemon.process.wait(10.0)
        waited(lambda: not daemon.orphans(), ORPHANS_S)
        return daemon.orphans()

    def leader(self, pid: int | None) -> Daemon | None:
        """The running daemon of that process id."""
        return next((daemon for daemon in self.running() if daemon.pid == pid), None)

    def end(self) -> None:
        """Nothing of any daemon is left."""
        for daemon in self.daemons:
            daemon.descendants()
            if daemon.alive():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(daemon.pid, signal.SIGCONT)  # A stopped process could not be waited for.
                kill_tree(daemon.process)
            orphans = daemon.orphans()
            for process in orphans:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(orphans, 10.0)


def waited(holds: Callable[[], object], patience_s: float) -> bool:
    """Whether it came true in time."""
    deadline = time.monotonic() + patience_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def get(port: int, path: str, timeout_s: float) -> tuple[int | None, bytes]:
    """Status and body of one page of the daemon, on a connection of its own; no status if there was no whole
    answer in time."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return None, b""
    finally:
        connection.close()
