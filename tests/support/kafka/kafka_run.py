"""A run of the outside harness over the Kafka port: two daemons, Kafka producers and Kafka readers.

One of the daemons has intake workers. A round of archiving comes first. Then daemons and workers are killed, or paused for longer than their registration, a proxy before
each loses answers, store and log are slow, and senders of transactions are killed. Readers begin again at the
archives all the time. A longer run archives and cleans again and again. Owns every process of the run.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import psutil
import yaml

from tests.harness.daemons import Daemon, waited
from tests.harness.fault_plan import FaultPlan
from tests.harness.group_member import ASSIGNORS, SESSION_S
from tests.harness.kafka_loop import LOOP
from tests.harness.kafka_transactional_sender import TIMEOUT_S
from tests.harness.offset_observer import ALTOGETHER_S
from tests.harness.scene import CLEANUP_S, TOPICS, LimitedDisk, Scene, free_port, kill_tree
from tests.harness.supervisor import ENDING_S, RunOptions, Supervisor
from tests.support.kafka.kafka_clients import Clients
from tests.support.servers.lossy_proxy import LossyProxy

DAEMON_KILLED, DAEMON_PAUSED, ANSWER_LOST = "daemon-killed", "daemon-paused", "kafka-answer-lost"
WORKER_KILLED, WORKER_PAUSED = "intake-worker-killed", "intake-worker-paused"
STORE_SLOW, SENDER_KILLED = "store-slow", "transaction-left-open"
MEMBER_KILLED, MEMBER_PAUSED, MEMBER_RESTARTED = "member-killed", "member-paused", "member-restarted"
ACTS: Final = (
    *(DAEMON_KILLED, DAEMON_PAUSED, ANSWER_LOST, STORE_SLOW, SENDER_KILLED),
    *(WORKER_KILLED, WORKER_PAUSED),
    *(MEMBER_KILLED, MEMBER_PAUSED, MEMBER_RESTARTED),
)
ACT_EVERY_S = 3.0
"""One comes in so many seconds, and each at least once in a run."""
BROKER_TIMEOUT_S = 2
PAUSED_S = BROKER_TIMEOUT_S + 1.5
AWAY_S = BROKER_TIMEOUT_S + 1.0
LOSING_S = 0.3
SLOW_S = 2.0
"""How long store and log of a daemon are slow."""
ROUND_EVERY_S = 75.0
"""Archiving and cleaning come again so often. Intake is deleted 60 s after it was marked for deletion."""
METRICS_S = 1.0
"""A daemon that is paused does not answer."""
STARTED_S = 60.0
OPEN_S = TIMEOUT_S + 2.0
"""After this time no transaction of a killed sender is open."""
AGAIN_S = 0.5
"""A killed client is started again so much later."""
DAEMONS = 2
WITH_WORKERS: Final = 1
"""The daemon that has intake workers."""
WORKERS: Final = 2
SENDERS: Final = {
    "k0": ("kafka-idempotent", "kafka-idempotent", "kafka-plain"),
    "t0": ("kafka-transactional", "kafka-transactional"),
}
READERS: Final = {"r0": ("kafka-reader", "kafka-reader-uncommitted"), "r1": ("kafka-rereader",)}
"""The first follow from the beginning, the second begins again and again once records are archived."""
MEMBERS: Final = {
    **dict.fromkeys(("g0", "g1", "g2"), tuple(ASSIGNORS)),
    **dict.fromkeys(("e0", "e1"), (LOOP,)),
}
"""Each of the first is a process with a member of every plain group. The others read, process and write exactly once."""
GROUPS: Final = (*ASSIGNORS, LOOP)
OUTPUTS: Final = {"omega": {"partitions": 3, "table": None}}
"""Where the loop writes."""
OBSERVER: Final = "o0"
MEMBER_PAUSED_S = SESSION_S + 1.5
ORIGINS = re.compile(r'^archiver_kafka_fetched_partitions_total\{origin="(\w+)"\} (\d+)', re.MULTILINE)


@dataclass(frozen=True)
class KafkaScene(Scene):
    """A deployment with a configuration for each daemon, because each has its own address for clients."""

    @property
    def topics(self) -> Mapping[str, dict[str, Any]]:
        return {**TOPICS, **OUTPUTS}

    def prepare(self) -> None:
        super().prepare()
        document: dict[str, Any] = yaml.safe_load(self.config.read_text(encoding="utf-8"))
        document["archive"] |= {"snapshots_max": 5, "snapshots_age": "30s"}
        document["cleanup"] = {"grace": f"{CLEANUP_S:g}s"}
        for topic in document["topics"]:
            if topic["archive"]["kind"] == "none":
                # Intake that has records of a topic without archives is kept.
                topic["archive"] = {"kind": "parquet"}
        self.config.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")

    def configure(
        self, number: int, listen: tuple[str, int], advertised: tuple[str, int], http_port: int
    ) -> Path:
        """Write the configuration of a daemon."""
        document: dict[str, Any] = yaml.safe_load(self.config.read_text(encoding="utf-8"))
        document["http"] = {"listen": f"127.0.0.1:{http_port}"}
        document["daemon"] = {"watch_interval": "1s", "shutdown_grace": "30s"}
        document["kafka"] = {
            "listen": "{}:{}".format(*listen),
            "advertised": "{}:{}".format(*advertised),
            "broker_timeout": f"{BROKER_TIMEOUT_S}s",
            # One daemon decodes archives for every answer, the other one remembers a little.
            "fetch_cache_bytes": "256KiB" if number else 0,
            "group_session_timeout_min": "1s",
            "group_initial_rebalance_delay": "500ms",
        }
        if number == WITH_WORKERS:
            document["intake"]["workers"] = WORKERS
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
        options = RunOptions(seed, seconds, workers=1, rounds=1 + int(seconds // ROUND_EVERY_S))
        super().__init__(scene, LimitedDisk(), options, tell)
        self.options = replace(options, workers=0)
        self._plan = FaultPlan((), (), ACTS)
        self._kafka_scene = scene
        self._proxies = proxies
        self._configs: list[Path] = []
        self._http_ports: list[int] = []
        self._daemons: list[Daemon | None] = [None] * DAEMONS
        self._lives_of_daemons = 0
        self._clients = Clients(scene, self._common, self._ledger)
        self._members = random.Random(f"{seed}/members")
        self._cleaning: subprocess.Popen[bytes] | None = None
        self.origins: Counter[str] = Counter()
        """Answers with records to readers while faults went on, by where the records came from."""
        self._counted: list[Counter[str]] = [Counter() for _ in range(DAEMONS)]
        """What each daemon said last."""
        self._paused_workers: list[psutil.Process] = []
        self.stopped: list[int] = []
        """Exit codes of the daemons that were asked to end."""

    def run(self) -> None:
        try:
            super().run()
        finally:
            self._clients.abandon()
            for worker in self._paused_workers:
                # One whose daemon was killed ends by itself once it runs.
                _resume(worker)
            daemons = [one.process for one in self._daemons if one]
            for process in (*daemons, *([self._cleaning] if self._cleaning else [])):
                if process.poll() is None:
                    # A paused process could not be waited for.
                    process.send_signal(signal.SIGCONT)
                    kill_tree(process)

    def _common(self) -> dict[str, Any]:
        return {
            "seed": self.options.seed,
            "origin_s": self._origin_s,
            "servers": ",".join("{}:{}".format(*proxy.address) for proxy in self._proxies),
            "topics": _sizes(TOPICS),
            "outputs": _sizes(OUTPUTS),
            "burst_max": 40,
        }

    def _begin(self) -> None:
        for number, proxy in enumerate(self._proxies):
            proxy.upstream = ("127.0.0.1", free_port())
            self._http_ports.append(free_port())
            config = self._kafka_scene.configure(
                number, proxy.upstream, proxy.address, self._http_ports[number]
            )
            self._configs.append(config)
            self._start_daemon(number)
        assert waited(self._all_serve, STARTED_S), self.reported()
        for name, senders in SENDERS.items():
            self._clients.start(name, senders=senders, pause_s=0.1)
        everything = _sizes(self.scene.topics)
        self._clients.start("r0", senders=READERS["r0"], pause_s=0.0, topics=everything)
        assert waited(self._at_work_all, STARTED_S), self.reported()
        super()._begin()
        # A round ends when no record is left to be archived.
        for name in SENDERS:
            self._clients.end(name)
        self._begin_round(0.0)
        self._wait_for_round()
        assert self._rounds_done == 1, self.reported()
        for name in SENDERS:
            self._clients.again(name)
        assert waited(self._at_work_all, STARTED_S), self.reported()
        self._clients.start("r1", senders=READERS["r1"], pause_s=0.2, topics=everything)
        assert waited(lambda: self._clients.has("r1", "fetched"), STARTED_S), self.reported()
        for name, kinds in MEMBERS.items():
            self._clients.start(name, senders=kinds, pause_s=0.0)
        self._clients.start(
            OBSERVER,
            senders=("kafka-offsets",),
            pause_s=0.3,
            daemons=[proxy.upstream for proxy in self._proxies],
            groups=GROUPS,
        )
        assert waited(
            lambda: all(
                self._clients.has(name, "tx" if LOOP in kinds else "group-committed")
                for name, kinds in MEMBERS.items()
            ),
            STARTED_S,
        ), self.reported()
        assert waited(lambda: self._clients.has(OBSERVER, "group-offsets"), STARTED_S), self.reported()
        for number in range(DAEMONS):
            self._count_origins(number)
        self.origins.clear()
        self._played_from_s = self._elapsed_s()

    def _at_work_all(self) -> bool:
        return self._clients.has("r0", "fetched") and all(self._clients.has(name, "ack") for name in SENDERS)

    def _count_origins(self, number: int) -> None:
        """Add what a daemon has answered since the last call."""
        page = ""
        connection = http.client.HTTPConnection("127.0.0.1", self._http_ports[number], timeout=METRICS_S)
        with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("GET", "/metrics")
            page = connection.getresponse().read().decode()
        found = Counter({origin: int(count) for origin, count in ORIGINS.findall(page)})
        self.origins += found - self._counted[number]
        self._counted[number] |= found

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
        for number in range(1, self.options.rounds):
            self._at(self._played_from_s + (number - 0.5) * ROUND_EVERY_S, self._archive)
        super()._play()
        for number, daemon in enumerate(self._daemons):
            if daemon is not None:
                self._count_origins(number)
        self._ledger.write("origins", **self.origins)
        self.tell(
            f"{self._elapsed_s():6.1f} s  fetched while faults went on, by origin: {dict(self.origins)}"
        )

    def _archive(self) -> None:
        # Archiving and cleaning need the same lease.
        if self._round is None and (self._cleaning is None or self._cleaning.poll() is not None):
            self._begin_round(0.0)

    def _tick(self) -> None:
        before = self._rounds_done
        super()._tick()
        if self._rounds_done > before:
            self._cleaning = self.scene.start("clean", "-m", "archiver", "clean")

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
        elif act in (MEMBER_KILLED, MEMBER_PAUSED, MEMBER_RESTARTED):
            self._act_on_member(act, self._members.choice(list(MEMBERS)))
        elif act in (WORKER_KILLED, WORKER_PAUSED):
            self._act_on_worker(act)
        elif act == SENDER_KILLED and not self._clients["t0"].alive():
            self._later(AGAIN_S, lambda: self._act_on(act, target))
        elif act == SENDER_KILLED:
            self._clients.kill("t0")
            self._play_fault(act, "t0")
            # Every second life waits until the timeout has ended the transaction.
            self._later(
                OPEN_S if self._clients["t0"].life % 2 else AGAIN_S, lambda: self._clients.again("t0")
            )
        elif daemon is None or daemon.process.poll() is not None:
            # It is away already.
            self._later(AWAY_S, lambda: self._act_on(act, target))
        elif act == DAEMON_KILLED:
            self._count_origins(target)
            self._counted[target].clear()
            daemon.process.kill()
            daemon.process.wait()
            self._daemons[target] = None
            self._play_fault(act, daemon.name)
            self._later(AWAY_S, lambda: self._start_daemon(target))
        else:
            os.kill(daemon.pid, signal.SIGSTOP)
            self._play_fault(act, daemon.name)
            self._later(PAUSED_S, lambda: self._let_go_on(daemon))

    def _act_on_worker(self, act: str) -> None:
        daemon = self._daemons[WITH_WORKERS]
        found = [] if daemon is None else _workers(daemon)
        if daemon is None or not found:
            # It is away, or the workers have not been started yet.
            self._later(AGAIN_S, lambda: self._act_on_worker(act))
            return
        worker = self._members.choice(found)
        with contextlib.suppress(psutil.NoSuchProcess):
            if act == WORKER_KILLED:
                worker.kill()
            else:
                worker.suspend()
                self._paused_workers.append(worker)
                self._later(PAUSED_S, lambda: _resume(worker))
        self._play_fault(act, f"process {worker.pid} of {daemon.name}")

    def _act_on_member(self, act: str, name: str) -> None:
        client = self._clients[name]
        if client.paused or client.ending or not client.alive():
            self._later(AGAIN_S, lambda: self._act_on_member(act, name))
            return
        self._play_fault(act, client.ledger)
        if act == MEMBER_KILLED:
            self._clients.kill(name)
            self._later(AGAIN_S, lambda: self._clients.again(name))
        elif act == MEMBER_PAUSED:
            self._clients.pause(name)
            self._later(MEMBER_PAUSED_S, lambda: self._clients.resume(name))
        else:
            self._clients.ask(name)
            self._later(AGAIN_S, lambda: self._member_again(name))

    def _member_again(self, name: str) -> None:
        if self._clients[name].alive():
            # It leaves its groups.
            self._later(AGAIN_S, lambda: self._member_again(name))
        else:
            self._clients.note_end(name)
            self._clients.again(name)

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
        self._clients.end("t0")
        # What a killed sender left open ends by its timeout; the last kill may have been at the end.
        time.sleep(OPEN_S)
        # Its last record in each partition is the one that groups have to come to.
        self._clients.end("k0")
        self._clients.end(OBSERVER, within_s=ALTOGETHER_S + ENDING_S)
        for name in (*MEMBERS, *READERS):
            self._clients.ask(name)
        for name in (*MEMBERS, *READERS):
            self._clients.end(name)
        self._wait_for_round()
        for daemon in self._daemons:
            if daemon is not None:
                daemon.process.send_signal(signal.SIGTERM)
                self.stopped.append(daemon.process.wait(ENDING_S))
        super()._settle()

    def reported(self) -> str:
        """For a test that failed."""
        logs = sorted((self.scene.folder / "logs").glob("*.log"))
        return json.dumps(
            {path.name: path.read_text(encoding="utf-8", errors="replace")[-1500:] for path in logs}, indent=1
        )


def _workers(daemon: Daemon) -> list[psutil.Process]:
    """The intake workers of a daemon, by process id."""
    found = []
    for _, process in daemon.descendants():
        with contextlib.suppress(psutil.Error):
            if "archiver.daemon.intake_worker" in process.cmdline():
                found.append(process)
    return sorted(found, key=lambda process: process.pid)


def _resume(worker: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        worker.resume()


def _sizes(topics: Mapping[str, dict[str, Any]]) -> dict[str, int]:
    """Partitions of each topic."""
    return {topic: settings["partitions"] for topic, settings in topics.items()}


@contextlib.contextmanager
def kafka_run(folder: Path, seed: int, seconds: float, tell: Callable[[str], None]) -> Iterator[KafkaRun]:
    """The parts of a run, started, and the run, which is not: its history will be in `folder`."""
    with contextlib.ExitStack() as parts:
        proxies = [parts.enter_context(contextlib.closing(LossyProxy())) for _ in range(DAEMONS)]
        yield KafkaRun(KafkaScene(folder, folder / "disk"), proxies, seed, seconds, tell)
