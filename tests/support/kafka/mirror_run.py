"""A run of the outside harness on mirrored topics: a real broker with external producers, two daemons that
mirror it, faults by the seed.

Daemons are killed and stopped, leadership goes from one to the other, producers die in the middle of
transactions, topics grow, the broker is killed. In the end stream and table are judged against what a plain
consumer of committed records finds. Owns every process of the run.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import NewPartitions as _NewPartitions  # type: ignore[attr-defined]  # its __init__ has no __all__
from confluent_kafka.admin import NewTopic as _NewTopic  # type: ignore[attr-defined]

from tests.harness.daemons import Daemon
from tests.harness.fault_plan import STOP, FaultPlan, plan_faults
from tests.harness.places import Unreadable
from tests.harness.reading import consumed_rows
from tests.harness.scene import TOPICS, free_port, kill_tree
from tests.harness.supervisor import READING_S, Supervisor
from tests.harness.upstream_reading import upstream_rows
from tests.support.kafka.kafka_server import KafkaServer
from tests.support.log.etcd_run import DAEMON_KILLED, LEASE_TTL_S, EtcdRun, EtcdScene
from tests.support.log.etcd_server import EtcdThree

MIRRORED: Final = {
    "m.one": {"partitions": 0, "table": "h.m_one", "mirrored": True},
    "m.two": {"partitions": 0, "table": "h.m_two", "mirrored": True},
}
"""They have as many partitions as upstream."""
DAEMON_STOPPED, SENDER_KILLED, GROWN, BROKER_KILLED = (
    "daemon-stopped",
    "upstream-sender-killed",
    "upstream-grown",
    "broker-killed",
)
ACTS: Final = (DAEMON_KILLED, DAEMON_STOPPED, SENDER_KILLED, GROWN, BROKER_KILLED)
ACT_EVERY_S = 8.0
"""One comes in so many seconds, and each at least once in a run."""
STOPPED_S = LEASE_TTL_S + 4.0
BROKER_AWAY_S = 2.0
PARTITIONS_FIRST, PARTITIONS_MAX = 2, 8
PATIENCE_S = 180.0
"""Until everything is mirrored, on a machine that does other things too."""
_BROKER: Final = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000}


@dataclass(frozen=True)
class MirrorScene(EtcdScene):
    """A deployment that mirrors every topic whose name begins with `m.`."""

    brokers: str = ""

    @property
    def topics(self) -> Mapping[str, dict[str, Any]]:
        return {**TOPICS, **MIRRORED}

    def prepare(self) -> None:
        super().prepare()
        document: dict[str, Any] = yaml.safe_load(self.config.read_text(encoding="utf-8"))
        document["sources"] = [
            {
                "kafka": {
                    "brokers": self.brokers,
                    "topics": "m[.].*",
                    "discover_interval": "500ms",
                    "request_timeout": "5s",
                }
            }
        ]
        self.config.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")


class MirrorRun(EtcdRun):
    """One run."""

    def __init__(
        self,
        scene: MirrorScene,
        members: EtcdThree,
        broker: KafkaServer,
        seed: int,
        seconds: float,
        tell: Callable[[str], None],
    ) -> None:
        super().__init__(scene, members, seed, seconds, tell)
        self.options = replace(
            self.options, workers=1, faults=(STOP,)
        )  # only one writer and the mirror, to spare the machine
        plan = plan_faults(seed, seconds, 1, self.options.rounds, (STOP,), self.options.stop_s)
        self._plan = FaultPlan(plan.actions, plan.spells, (*plan.kinds, *ACTS))
        self._broker = broker
        self._brokers = scene.brokers
        self._sizes = dict.fromkeys(MIRRORED, PARTITIONS_FIRST)
        self._sender: subprocess.Popen[bytes] | None = None
        self._senders = 0

    def run(self) -> None:
        try:
            super().run()
        finally:
            if self._sender is not None and self._sender.poll() is None:
                kill_tree(self._sender)

    def _begin(self) -> None:
        asked = [_NewTopic(name, PARTITIONS_FIRST, 1) for name in MIRRORED]
        admin = AdminClient({"bootstrap.servers": self._brokers})
        for future in admin.create_topics(asked).values():
            future.result(PATIENCE_S)
        self._start_sender()
        super()._begin()

    # the upstream's producers

    def _start_sender(self) -> None:
        name = f"upstream-{self._senders}"
        spec = {
            "brokers": self._brokers,
            "seed": self.options.seed,
            "life": self._senders,
            "topics": self._sizes,
            "pause_s": self.options.pause_s,
            "burst_max": self.options.burst_max,
        }
        path = self.scene.folder / "specs" / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(spec), encoding="utf-8")
        self._sender = self.scene.start(name, "-m", "tests.harness.upstream_sender", str(path))
        self._senders += 1

    def _kill_sender(self) -> None:
        assert self._sender is not None
        self._sender.kill()
        self._sender.wait(PATIENCE_S)
        self._start_sender()

    def _end_sender(self) -> None:
        assert self._sender is not None
        self._sender.send_signal(signal.SIGTERM)
        self._sender.wait(PATIENCE_S)

    # faults

    def _play(self) -> None:
        rng = random.Random(f"{self.options.seed}/mirror")
        acts = list(ACTS)
        rng.shuffle(acts)
        acts += [rng.choice(ACTS) for _ in range(round(self.options.seconds / ACT_EVERY_S) - len(acts))]
        width_s = 0.9 * self.options.seconds / len(acts)
        for number, act in enumerate(acts):
            at_s = self._played_from_s + (number + rng.random()) * width_s
            chosen = rng.random()
            self._at(at_s, lambda act=act, chosen=chosen: self._act_on(act, chosen))  # type: ignore[misc]
        Supervisor._play(self)  # not those of the etcd run

    def _act_on(self, act: str, chosen: float) -> None:
        what = {
            DAEMON_KILLED: self._kill_daemon,
            DAEMON_STOPPED: self._stop_daemon,
            SENDER_KILLED: self._end_in_a_transaction,
            GROWN: self._grow,
            BROKER_KILLED: self._kill_broker,
        }[act](chosen)
        self._ledger.write("fault", kind=act, what=what)
        self.tell(f"{self._elapsed_s():6.1f} s  {act}: {what}")

    def _kill_daemon(self, chosen: float) -> str:
        """Mostly the one that leads; both mirror."""
        daemon = self._leading() if chosen < 0.7 else self._garrison.running()[0]
        self._garrison.kill(daemon)
        self._garrison.start()
        return daemon.name

    def _stop_daemon(self, chosen: float) -> str:
        """The one that leads, for longer than its lease: the other takes over, and it goes on as if nothing
        had been."""
        daemon = self._leading()
        os.kill(daemon.pid, signal.SIGSTOP)
        self._later(STOPPED_S, lambda: self._let_go_on(daemon))
        return f"{daemon.name} for {STOPPED_S:g} s"

    def _let_go_on(self, daemon: Daemon) -> None:
        if daemon.alive():
            os.kill(daemon.pid, signal.SIGCONT)

    def _end_in_a_transaction(self, chosen: float) -> str:
        self._kill_sender()
        return f"life {self._senders - 1} begins"

    def _grow(self, chosen: float) -> str:
        name = sorted(self._sizes)[int(chosen * len(self._sizes))]
        self._sizes[name] = min(PARTITIONS_MAX, self._sizes[name] + 1)
        admin = AdminClient({"bootstrap.servers": self._brokers})
        for future in admin.create_partitions([_NewPartitions(name, self._sizes[name])]).values():
            future.result(PATIENCE_S)
        self._kill_sender()  # the next sender uses the new partitions
        return f"{name} has {self._sizes[name]} partitions"

    def _kill_broker(self, chosen: float) -> str:
        self._broker.kill()
        time.sleep(BROKER_AWAY_S)
        self._broker.start()
        return f"for {BROKER_AWAY_S:g} s and its start"

    # the end

    def _settle(self) -> None:
        self._end_sender()
        self._wait_until_level()
        self._leading()  # one of them still does
        self._end_workers()
        for daemon in self._garrison.running():
            self.seen.stopped.append(self._garrison.stop(daemon))
        self._rounds_done = (
            0  # one more, of everything that is there now; by itself, with either daemon on the port
        )
        Supervisor._settle(self)

    def _wait_until_level(self) -> None:
        """Until as much is here as there; what is not here by then is missing, and the judge says so."""
        wanted = {topic: len(upstream_rows(self._brokers, topic)) for topic in MIRRORED}
        deadline = self._elapsed_s() + PATIENCE_S
        while self._elapsed_s() < deadline and any(
            self._consumed(topic) < count for topic, count in wanted.items()
        ):
            time.sleep(1.0)
        self.tell(f"{self._elapsed_s():6.1f} s  upstream: {wanted}")

    def _consumed(self, topic: str) -> int:
        output = self.scene.folder / f"so-far-{topic}.jsonl"
        with output.open("wb") as file:
            process = self.scene.start("so-far", "-m", "archiver", "consume", "--topic", topic, stdout=file)
        if process.wait(READING_S) != 0:
            return 0
        return sum(1 for _ in consumed_rows(output))

    def _read(self) -> None:
        super()._read()
        for topic in MIRRORED:
            self._note_rows("upstream", topic, None, lambda topic=topic: (self._upstream(topic), {}))  # type: ignore[misc]

    def _upstream(self, topic: str) -> list[Any]:
        rows = upstream_rows(self._brokers, topic)
        if not rows:
            raise Unreadable(f"topic {topic} has no record in its cluster")
        return rows


@contextlib.contextmanager
def mirror_run(folder: Path, seed: int, seconds: float, tell: Callable[[str], None]) -> Iterator[MirrorRun]:
    """The parts of a run, started, and the run, which is not: its history will be in `folder`."""
    with contextlib.ExitStack() as parts:
        alongside = Path(parts.enter_context(tempfile.TemporaryDirectory(prefix="harness-parts-")))
        members = parts.enter_context(EtcdThree(alongside / "etcd"))
        broker = parts.enter_context(KafkaServer(alongside / "kafka", _BROKER))
        scene = MirrorScene(
            folder,
            folder / "disk",
            port=free_port(),
            addresses=tuple(members.addresses),
            brokers=broker.brokers,
        )
        yield MirrorRun(scene, members, broker, seed, seconds, tell)
