"""The vacuum of intake as the product runs it: barrier, tail, mark, and delete after the deletion delay.

The lease is given to every process: correctness must not depend on it.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from archiver.config.groups import CleanupSettings, LogSettings
from archiver.ledger.fold import LedgerFold
from archiver.ledger.leader import Leader as LedgerLeader
from archiver.ledger.leadership import Leadership
from archiver.runtime.errors import Deposed, RetryLater
from intake.log.backlog import Backlog
from intake.log.checkpoint import superseded
from reconcile.snapshot.retention_floor import Lines, RetentionFloor
from reconcile.vacuum.clean import CleanRun
from tests.simulation.schedule import Process, Violation
from tests.simulation.station import Station, World
from tests.simulation.twins import SimulatedLog

_LEDGER = LogSettings(append_attempts_max=3, append_backoff=0.05)


class _EverybodysLease:
    """A lease that protects nothing."""

    def acquire(self) -> None:
        """Granted."""

    def release(self) -> None:
        """As if it had been held."""

    def holder(self) -> str | None:
        return None


class Cleaner:
    """Vacuums now and then."""

    def __init__(self, name: str, world: World, choices: random.Random, is_over: Callable[[], bool]) -> None:
        self.name = name
        self._world = world
        self._random = choices
        self._is_over = is_over

    def live(self, process: Process) -> None:
        station = Station(self._world, process)
        control = SimulatedLog(self._world.ground.control, process)
        leader = LedgerLeader(control, station.ids, station.clock, process.name, _LEDGER)
        while not self._is_over():
            process.sleep(self._random.randrange(200_000, 4_000_000))
            process.require_current()
            try:
                report = self._run(station, leader).run()
            except Deposed:
                process.sleep(self._random.randrange(1_000_000))
                leader = LedgerLeader(control, station.ids, station.clock, process.name, _LEDGER)
            except RetryLater:
                continue
            else:
                if report.findings:
                    raise Violation("no file that is needed is condemned", str(report.findings))

    def _run(self, station: Station, leader: LedgerLeader) -> CleanRun:
        return CleanRun(
            objects=station.objects,
            sequencer=station.sequencer,
            intake=station.sequencer.backlog,
            leadership=Leadership(leader, _EverybodysLease()),
            lines=self._lines,
            superseded=lambda: superseded(station.objects),
            settings=CleanupSettings.model_construct(
                grace=self._random.choice((0.0, 0.5, 3.0)), deletes_max=20
            ),
            clock=station.clock,
            progress=lambda _: None,
        )

    def _lines(self, intake: Backlog, ledger: LedgerFold) -> Lines:
        """What the tables say now."""
        del ledger
        watermarks = self._world.ground.watermarks
        lines: dict[str, RetentionFloor] = {}
        for topic in intake.topics_by_id.values():
            offsets = tuple(watermarks.get((topic.topic_id, number), 0) for number in range(topic.partitions))
            lines[topic.topic_id] = RetentionFloor(topic.topic_id, topic.name, offsets, offsets)
        return lines  # type: ignore[return-value]
