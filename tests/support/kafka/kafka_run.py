"""A run of the outside harness over the Kafka port: two daemons, Kafka producers and a Kafka reader.

Daemons are killed, or paused for longer than their registration, a proxy before each loses answers, and store and
log are slow. A longer run archives in its middle, and a second reader begins at the archives. Owns every
process of the run.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml

from tests.harness.daemons import Daemon, waited
from tests.harness.fault_plan import FaultPlan
from tests.harness.loading import read_ledger
from tests.harness.scene import LimitedDisk, Scene, free_port, kill_tree
from tests.harness.supervisor import ENDING_S, RunOptions, Supervisor
from tests.support.servers.lossy_proxy import LossyProxy

DAEMON_KILLED, DAEMON_PAUSED, ANSWER_LOST = "daemon-killed", "daemon-paused", "kafka-answer-lost"
STORE_SLOW = "store-slow"
ACTS: Final = (DAEMON_KILLED, DAEMON_PAUSED, ANSWER_LOST, STORE_SLOW)
ACT_EVERY_S = 3.0
"""One comes in so many seconds, and each at least once in a run."""
BROKER_TIMEOUT_S = 2
PAUSED_S = BROKER_TIMEOUT_S + 1.5
AWAY_S = BROKER_TIMEOUT_S + 1.0
LOSING_S = 0.3
SLOW_S = 2.0
"""How long store and log of a daemon are slow."""
ARCHIVED_FROM_S = 60.0
"""A run of this length archives in its middle, while faults go on. A second reader begins then, at offset 0: it
reads archives, and then intake."""
STARTED_S = 60.0
DAEMONS = 2
READERS: Final = ("r0", "r1")
"""The first follows from the beginning, the second begins when records are archived."""


@dataclass(frozen=True)
class KafkaScene(Scene):
    """A deployment with a configuration for each daemon, because each has its own address for clients."""

    def configure(self, number: int, listen: tuple[str, int], advertised: tuple[str, int]) -> Path:
        """Write the configuration of a daemon."""
        document: dict[str, Any] = yaml.safe_load(self.config.read_text(encoding="utf-8"))
        document["http"] = {"listen": "127.0.0.1:0"}
        document["daemon"] = {"watch_interval": "1s", "shutdown_grace": "30s"}
        document["kafka"] = {
            "listen": "{}:{}".format(*listen),
            "advertised": "{}:{}".format(*advertised),
            "broker_timeout": f"{BROKER_TIMEOUT_S}s",
        }
        path = self.folder / f"daemon-{number}.yaml"
        path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
        return path


class KafkaRun(Supervisor):
    """One run."""

    def __init__(
        self,
        scene: KafkaScene,
        proxies: list[LossyProxy],
        seed: int,
        seconds: float,
        tell: Callable[[str], None],
    ) -> None:
        # No writer: its event times have microseconds, which a Kafka reader could not confirm.
        options = RunOptions(seed, seconds, workers=1, rounds=int(seconds >= ARCHIVED_FROM_S))
        super().__init__(scene, LimitedDisk(), options, tell)
        self.options = replace(options, workers=0)
        self._plan = FaultPlan((), (), ACTS)
        self._kafka_scene = scene
        self._proxies = proxies
        self._configs: list[Path] = []
        self._daemons: list[Daemon | None] = [None] * DAEMONS
        self._lives_of_daemons = 0
        self._clients: dict[str, subprocess.Popen[bytes]] = {}
        self.stopped: list[int] = []
        """Exit codes of the daemons that were asked to end."""

    def run(self) -> None:
        try:
            super().run()
        finally:
            for process in (*self._clients.values(), *(one.process for one in self._daemons if one)):
                if process.poll() is None:
                    # A paused process could not be waited for.
                    process.send_signal(signal.SIGCONT)
                    kill_tree(process)

    def _begin(self) -> None:
        for number, proxy in enumerate(self._proxies):
            proxy.upstream = ("127.0.0.1", free_port())
            self._configs.append(self._kafka_scene.configure(number, proxy.upstream, proxy.address))
            self._start_daemon(number)
        assert waited(self._all_serve, STARTED_S), self.reported()
        self._start_client("k0", ("kafka-idempotent", "kafka-idempotent", "kafka-plain"))
        self._start_client(READERS[0], ("kafka-reader",))
        super()._begin()
        assert waited(lambda: self._has("k0", "ack") and self._has(READERS[0], "fetched"), STARTED_S), (
            self.reported()
        )

    def _start_daemon(self, number: int) -> None:
        name = f"daemon-{self._lives_of_daemons}"
        self._lives_of_daemons += 1
        serve = ("serve", "--config", str(self._configs[number]), "--roles", "intake")
        slow = (str(self._slow_file(number)), str(self._slow_calls(number)))
        command = ("-m", "tests.harness.slow_daemon", *slow, *serve)
        self._daemons[number] = Daemon(name, self.scene.start(name, *command))

    def _slow_file(self, number: int) -> Path:
        """While it exists, the store of that daemon is slow."""
        return self.scene.folder / f"slow-{number}"

    def _slow_calls(self, number: int) -> Path:
        return self.scene.folder / f"slow-{number}.calls"

    def _slowed(self, number: int) -> int:
        """Calls of that daemon that were slow."""
        path = self._slow_calls(number)
        return len(path.read_text(encoding="utf-8").splitlines()) if path.exists() else 0

    def _all_serve(self) -> bool:
        logs = (self.scene.folder / "logs" / f"daemon-{number}.log" for number in range(DAEMONS))
        return all("serving Kafka clients on" in log.read_text(encoding="utf-8") for log in logs)

    def _has(self, client: str, event: str) -> bool:
        ledger = read_ledger(self.scene.folder, f"worker-{client}-0")
        return any(one["event"] == event for one in ledger.events)

    def _start_client(self, name: str, senders: tuple[str, ...]) -> None:
        spec = {
            "folder": str(self.scene.folder),
            "worker": name,
            "seed": self.options.seed,
            "origin_s": self._origin_s,
            "servers": ",".join("{}:{}".format(*proxy.address) for proxy in self._proxies),
            "topics": {topic: settings["partitions"] for topic, settings in self.scene.topics.items()},
            "senders": senders,
            "pause_s": 0.0 if name in READERS else 0.1,
            "burst_max": 40,
        }
        path = self.scene.folder / "specs" / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(spec), encoding="utf-8")
        self._clients[name] = self.scene.start(name, "-m", "tests.harness.visitor", str(path))

    # faults

    def _play(self) -> None:
        rng = random.Random(f"{self.options.seed}/kafka")
        acts = list(ACTS)
        rng.shuffle(acts)
        acts += [rng.choice(ACTS) for _ in range(round(self.options.seconds / ACT_EVERY_S) - len(acts))]
        width_s = 0.9 * self.options.seconds / len(acts)
        for number, act in enumerate(acts):
            at_s = self._played_from_s + (number + rng.random()) * width_s
            target = rng.randrange(DAEMONS)
            self._at(at_s, lambda act=act, target=target: self._act_on(act, target))  # type: ignore[misc]
        if self.options.rounds:
            self._at(self._played_from_s + self.options.seconds / 4, lambda: self._begin_round(0.0))
        super()._play()

    def _tick(self) -> None:
        super()._tick()
        if self._rounds_done and READERS[1] not in self._clients:
            self._start_client(READERS[1], ("kafka-reader",))

    def _act_on(self, act: str, target: int) -> None:
        daemon = self._daemons[target]
        if act == ANSWER_LOST:
            before = self._proxies[target].lost
            self._proxies[target].losing.set()
            self._later(LOSING_S, lambda: self._lose_no_more(target, before))
        elif act == STORE_SLOW:
            slowed = self._slowed(target)
            self._slow_file(target).touch()
            self._later(SLOW_S, lambda: self._slow_no_more(target, slowed))
        elif daemon is None or daemon.process.poll() is not None:
            # It is away already.
            self._later(AWAY_S, lambda: self._act_on(act, target))
        elif act == DAEMON_KILLED:
            daemon.process.kill()
            daemon.process.wait()
            self._daemons[target] = None
            self._play_fault(act, daemon.name)
            self._later(AWAY_S, lambda: self._start_daemon(target))
        else:
            os.kill(daemon.pid, signal.SIGSTOP)
            self._play_fault(act, daemon.name)
            self._later(PAUSED_S, lambda: self._let_go_on(daemon))

    def _lose_no_more(self, target: int, before: int) -> None:
        proxy = self._proxies[target]
        if proxy.lost == before:
            # No client of this daemon has asked anything yet; the other one has answers to lose.
            proxy.losing.clear()
            self._later(LOSING_S, lambda: self._act_on(ANSWER_LOST, (target + 1) % DAEMONS))
            return
        proxy.losing.clear()
        self._play_fault(ANSWER_LOST, f"{proxy.lost - before} answers of daemon {target}")

    def _slow_no_more(self, target: int, before: int) -> None:
        self._slow_file(target).unlink(missing_ok=True)
        slowed = self._slowed(target) - before
        if slowed:
            self._play_fault(STORE_SLOW, f"{slowed} calls of daemon {target}")
        else:
            # It is away, or no client has asked it.
            self._later(LOSING_S, lambda: self._act_on(STORE_SLOW, (target + 1) % DAEMONS))

    def _let_go_on(self, daemon: Daemon) -> None:
        if daemon.alive():
            os.kill(daemon.pid, signal.SIGCONT)

    def _play_fault(self, kind: str, what: str) -> None:
        self._ledger.write("fault", kind=kind, what=what)
        self.tell(f"{self._elapsed_s():6.1f} s  {kind}: {what}")

    # the end

    def _settle(self) -> None:
        self._end_client("k0")
        self._end_workers()
        self._wait_for_round()
        if self.options.rounds and READERS[1] not in self._clients:
            # The round took longer than the run.
            self._start_client(READERS[1], ("kafka-reader",))
        for reader in READERS:
            if reader in self._clients:
                assert waited(lambda: self._has(reader, "fetched"), STARTED_S), self.reported()  # noqa: B023
                self._end_client(reader)
        for daemon in self._daemons:
            if daemon is not None:
                daemon.process.send_signal(signal.SIGTERM)
                self.stopped.append(daemon.process.wait(ENDING_S))
        super()._settle()

    def _end_client(self, name: str) -> None:
        process = self._clients[name]
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(ENDING_S)
        if process.poll() is None:
            kill_tree(process)
        self._ledger.write("process", ledger=f"worker-{name}-0", code=process.returncode, killed=False)

    def reported(self) -> str:
        """For a test that failed."""
        logs = sorted((self.scene.folder / "logs").glob("*.log"))
        return json.dumps(
            {path.name: path.read_text(encoding="utf-8", errors="replace")[-1500:] for path in logs}, indent=1
        )


@contextlib.contextmanager
def kafka_run(folder: Path, seed: int, seconds: float, tell: Callable[[str], None]) -> Iterator[KafkaRun]:
    """The parts of a run, started, and the run, which is not: its history will be in `folder`."""
    with contextlib.ExitStack() as parts:
        proxies = [parts.enter_context(contextlib.closing(LossyProxy())) for _ in range(DAEMONS)]
        yield KafkaRun(KafkaScene(folder, folder / "disk"), proxies, seed, seconds, tell)
