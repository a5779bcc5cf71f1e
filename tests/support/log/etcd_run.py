"""A run of the outside harness on etcd: two daemons and four writers share three members and a data folder;
leaders of both kinds die.

Owns every process of the run, as the harness does. The judge decides whether all was well.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

import yaml

from tests.harness.daemons import Daemon, Garrison, waited
from tests.harness.fault_plan import KILL, STOP, FaultPlan
from tests.harness.scene import DaemonScene, LimitedDisk
from tests.harness.supervisor import SENDERS, RunOptions, Supervisor
from tests.support.log.etcd_server import EtcdThree

DAEMON_KILLED, MEMBER_KILLED = "daemon-killed", "etcd-leader-killed"
WRITERS = 4
LEASE_TTL_S = 4
TAKEN_OVER_S = 40.0
"""Until the lease has ended and the other daemon, which may be busy, has asked for it."""


@dataclass(frozen=True)
class EtcdScene(DaemonScene):
    """A deployment whose logs are in etcd."""

    addresses: tuple[str, ...] = ()

    @property
    def state(self) -> str:
        """Where the machine keeps its own."""
        return str(self.disk / "state")

    def prepare(self) -> None:
        super().prepare()
        document = yaml.safe_load(self.config.read_text(encoding="utf-8"))
        etcd = {
            "addresses": list(self.addresses),
            "state": self.state,
            "request_timeout": "2s",
            "lease_ttl": f"{LEASE_TTL_S}s",
        }
        document["metadata"] = {"etcd": etcd}
        self.config.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")


@dataclass
class Seen:
    """What the run met, apart from the history."""

    leaders: list[int] = field(default_factory=list)
    """Process ids of the daemons that held the lease, in order."""
    stopped: list[int | None] = field(default_factory=list)
    """Exit codes of the daemons that were asked to end."""


class EtcdRun(Supervisor):
    """One run."""

    def __init__(
        self, scene: EtcdScene, members: EtcdThree, seed: int, seconds: float, tell: Callable[[str], None]
    ) -> None:
        options = RunOptions(
            seed, seconds, WRITERS, rounds=1, faults=(KILL, STOP), senders=SENDERS, pause_s=0.4, burst_max=20
        )
        super().__init__(scene, LimitedDisk(), options, tell)
        plan = self._plan
        self._plan = FaultPlan(plan.actions, plan.spells, (*plan.kinds, DAEMON_KILLED, MEMBER_KILLED))
        self._members = members
        self._garrison = Garrison(scene)
        self.seen = Seen()

    def run(self) -> None:
        try:
            super().run()
        finally:
            self._garrison.end()

    def _begin(self) -> None:
        self._garrison.start()
        assert self._garrison.wait_ready(), "the first daemon did not become ready"
        self._garrison.start()
        super()._begin()

    def _play(self) -> None:
        seconds = self.options.seconds
        self._at(self._played_from_s + 0.3 * seconds, self._kill_leading_daemon)
        self._at(self._played_from_s + 0.6 * seconds, self._kill_leading_member)
        super()._play()

    def _kill_leading_daemon(self) -> None:
        leader = self._leading()
        self._garrison.kill(leader)
        self._ledger.write("fault", kind=DAEMON_KILLED, what=leader.name)
        self._garrison.start()

    def _leading(self) -> Daemon:
        found: list[Daemon] = []

        def look() -> bool:
            daemon = self._garrison.leader(self._holder())
            found[:] = [] if daemon is None else [daemon]
            return daemon is not None

        assert waited(look, TAKEN_OVER_S), "no daemon holds the lease"
        self.seen.leaders.append(found[0].pid)
        return found[0]

    def _holder(self) -> int | None:
        with self._members.leader(
            [member for member in self._members.members if member.running]
        ).client() as client:
            value, _ = client.get("/archiver/lease-leader")
        return None if value is None else int(value.rpartition(b":")[2])

    def _kill_leading_member(self) -> None:
        member = self._members.leader()
        member.kill()
        self._ledger.write("fault", kind=MEMBER_KILLED, what=member.name)
        self._later(0.15 * self.options.seconds, lambda: member.start(wait=False))

    def _settle(self) -> None:
        self._end_workers()
        self._leading()
        super()._settle()
        for daemon in self._garrison.running():
            self.seen.stopped.append(self._garrison.stop(daemon))

    def reported(self) -> str:
        """For a test that failed."""
        logs = sorted((self.scene.folder / "logs").glob("*.log"))
        return json.dumps(
            {path.name: path.read_text(encoding="utf-8", errors="replace")[-1500:] for path in logs}, indent=1
        )
