"""The rough phase: what is done to the daemons while the load goes on. Each act waits until the deployment is
well again, within a bound.

What does not get well is reported as wrong. An act that could not be played is not reported as played, and
then the run's verdict cannot be valid.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import psutil

from tests.harness.daemons import ORPHANS_S, Daemon, Garrison, waited
from tests.harness.errands import output_path, run_command
from tests.harness.scene import DaemonScene

SECOND, RELOAD, JVM_KILL, WORKER_KILL, STOP, LEADER_KILL, TERM = ACTS = (
    "second-daemon",
    "reload",
    "jvm-kill",
    "python-worker-kill",
    "daemon-stop",
    "leader-kill",
    "daemon-term",
)
WELL_S = 90.0
"""How long the deployment may take to be well again."""
STOPPED_S = (6.0, 11.0)
"""How long a daemon is stopped: longer than its senders wait for an answer, or not quite."""
CALM_S = 2.0


@dataclass
class Rough:
    """Plays acts."""

    scene: DaemonScene
    garrison: Garrison
    rng: random.Random
    elapsed_s: Callable[[], float]
    played: Callable[[str, str], None]
    """Takes kind and text of what was done."""
    wrong: Callable[[str], None]
    """Takes what the product should not have done."""
    idle: Callable[[float], None]
    """Waits so many seconds, and supervises the workers during that time."""
    _turn: int = field(default=0)

    def play(self, seconds: float) -> None:
        """Every act once, however long it takes; then drawn ones until the time is over."""
        deadline = self.elapsed_s() + seconds
        order = list(ACTS)
        while order or self.elapsed_s() < deadline:
            act = order.pop(0) if order else self.rng.choice(ACTS[1:])
            {
                SECOND: self._second,
                RELOAD: self._reload,
                JVM_KILL: self._kill_jvm,
                WORKER_KILL: self._kill_worker,
                STOP: self._stop,
                LEADER_KILL: self._kill_leader,
                TERM: self._terminate,
            }[act]()
            if not self.garrison.wait_ready(WELL_S):
                self.wrong(f"{act}: /readyz did not say 200 again within {WELL_S:g} s")
            self.idle(CALM_S)

    def leader(self) -> Daemon | None:
        """The daemon that holds the lease, as `status` reports; after a change it may take some tries."""
        for _ in range(6):
            run_command(self.scene, self.elapsed_s, ("status", "--output", "json"))
            with contextlib.suppress(ValueError, KeyError, AttributeError, IndexError):
                holder = json.loads(output_path(self.scene.folder, "status").read_bytes())["leader"]
                if (daemon := self.garrison.leader(int(holder.rsplit(":", 1)[1]))) is not None:
                    return daemon
            self.idle(2.0)
        self.wrong("no daemon of the run leads, though all say that they are ready")
        return None

    def _second(self) -> None:
        daemon = self.garrison.start()
        self.idle(8.0)
        if not daemon.alive():
            self.wrong(
                f"{daemon.name}, a second daemon on one configuration, ended by itself with "
                f"{daemon.process.returncode}"
            )
        self.played(SECOND, daemon.name)

    def _reload(self) -> None:
        self._turn += 1
        # Who is still starting may read the new file at once, and then nothing changes for it.
        serving = [
            daemon for daemon in self.garrison.running() if b"serving as" in self._log_since(daemon, 0)
        ]
        sizes = {daemon.name: self._log_size(daemon) for daemon in serving}
        self.scene.configure(self._turn)
        for daemon in serving:
            daemon.process.send_signal(signal.SIGHUP)
        self.played(RELOAD, ", ".join(sizes))
        for daemon in serving:
            if not waited(
                lambda daemon=daemon: b"complete_delay_max" in self._log_since(daemon, sizes[daemon.name]),  # type: ignore[misc]
                20.0,
            ):
                self.wrong(
                    f"{daemon.name}: after SIGHUP its log does not tell that "
                    "archive.complete_delay_max changed"
                )

    def _kill_jvm(self) -> None:
        leader = self.leader()
        if leader is None or not waited(leader.jvm, 30.0) or (jvm := leader.jvm()) is None:
            return
        jvm.kill()
        self.played(JVM_KILL, f"{jvm.pid} of {leader.name}")
        if not waited(lambda: (new := leader.jvm()) is not None and new.pid != jvm.pid, WELL_S):
            self.wrong(f"{leader.name} started no new JVM within {WELL_S:g} s after the kill of its old one")

    def _kill_worker(self) -> None:
        leader = self.leader()
        if leader is None:
            return
        deadline = time.monotonic() + WELL_S
        while time.monotonic() < deadline:
            workers = [process for part, process in leader.descendants() if part == "worker"]
            if workers:
                victim = self.rng.choice(workers)
                with contextlib.suppress(psutil.Error):
                    victim.kill()
                    self.played(WORKER_KILL, f"{victim.pid} of {leader.name}")
                    return
            time.sleep(0.02)

    def _stop(self) -> None:
        leader = self.leader()
        if leader is None:
            return
        length_s = round(self.rng.uniform(*STOPPED_S), 1)
        leader.process.send_signal(signal.SIGSTOP)
        try:
            self.played(STOP, f"{leader.name} for {length_s:g} s")
            self.idle(length_s)
        finally:
            leader.process.send_signal(signal.SIGCONT)

    def _kill_leader(self) -> None:
        leader = self.leader()
        if leader is None:
            return
        orphans = self.garrison.kill(leader)
        self.played(LEADER_KILL, leader.name)
        if orphans:
            self.wrong(f"{leader.name} was killed, and left {len(orphans)} processes that live on")
        self._replace(leader)

    def _terminate(self) -> None:
        leader = self.leader()
        if leader is None:
            return
        code = self.garrison.stop(leader)
        self.played(TERM, leader.name)
        if code != 0:
            self.wrong(
                f"{leader.name} ended with {code} after SIGTERM"
                if code is not None
                else f"{leader.name} did not end after SIGTERM"
            )
        if not waited(lambda: not leader.orphans(), ORPHANS_S):
            self.wrong(f"{leader.name} ended, and left {len(leader.orphans())} processes that live on")
        self._replace(leader)

    def _replace(self, gone: Daemon) -> None:
        """The other daemon takes port and lease over; then there are two again."""
        if self.garrison.running() and not self.garrison.wait_ready(WELL_S):
            self.wrong(f"after {gone.name} ended nobody took its port over within {WELL_S:g} s")
        self.garrison.start()

    def _log_size(self, daemon: Daemon) -> int:
        return (self.scene.folder / "logs" / f"{daemon.name}.log").stat().st_size

    def _log_since(self, daemon: Daemon, size: int) -> bytes:
        return (self.scene.folder / "logs" / f"{daemon.name}.log").read_bytes()[size:]
