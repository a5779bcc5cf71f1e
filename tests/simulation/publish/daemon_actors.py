"""The product's daemon as one simulated process: it archives, maintains the tables and cleans, over the world
as that process sees it.

The lease is given to every process and the clock may be wrong: correctness must not depend on either. Two of
them may believe that they lead at the same time. Promises to go on until no client sends any more, nothing is
left to archive, and nothing is left to clean.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from archiver.catalog.commit import Committer
from archiver.catalog.evidence import read_evidence
from archiver.catalog.reset_watermark import is_set_back
from archiver.catalog.swap_retry import CommitLimits
from archiver.catalog.tables import Identifier
from archiver.config.groups import CleanupSettings, LogSettings
from archiver.config.settings import Settings
from archiver.ledger.checkpoint import LedgerCheckpoints
from archiver.ledger.checkpointer import LedgerCheckpointer
from archiver.ledger.fold import LedgerFold
from archiver.ledger.leader import Leader
from archiver.ledger.leadership import Leadership
from archiver.objects.cluster import ClusterIdentity
from archiver.publish.events import RoundEvents
from archiver.publish.report import TopicReport
from archiver.publish.round import ArchiveRun
from archiver.refine.demultiplexer import run_bundle
from archiver.refine.prepare_topic import TopicSetup
from archiver.refine.task import PlanResult, RefineJob, RefineOptions, pack, unpack_result, unpack_task
from archiver.refine.triggers import PollState
from archiver.rewrite.commit import TableRewriter
from archiver.rewrite.compact import Compaction, TopicCompaction
from archiver.runtime.errors import Corrupted, Deposed, OutcomeUnknown, RetryLater
from archiver.runtime.ids import SeededIds
from intake.log.backlog import Backlog
from intake.log.sequencer import Sequencer
from reconcile.repair.repairer import Repairer
from reconcile.repair.run import ReconcileRun
from reconcile.snapshot.collector import SnapshotCollector
from reconcile.snapshot.retention_floor import RetentionFloorReader
from reconcile.vacuum.clean import CleanRun, ReplacedArchives, needed_files, nothing_compacted
from reconcile.vacuum.report import CleanReport
from reconcile.vacuum.tables import TableFolders
from tests.simulation.publish.catalog_twin import SimulatedTables
from tests.simulation.publish.publish_ground import Ground
from tests.simulation.schedule import Process, Violation
from tests.simulation.twins import SimulatedClock, SimulatedLog, SimulatedObjects

ORPHAN_AGE_S = 0.5
DAY_S = 86_400.0
COMPACT_BYTES = 8_000
"""A light archive of a few records has some hundred bytes."""
SUPERSEDED_MIN = 8
CLUSTER = ClusterIdentity("c" * 32, "simulated", 1)


@dataclass
class Orders:
    """What a run is played with, the same for every daemon."""

    seed: int
    ground: Ground
    settings: Settings
    log: LogSettings
    limits: CommitLimits
    topics: dict[str, Identifier]
    light: bool
    compacts: bool = False
    """Whether cleaning merges small archives."""
    is_over: Callable[[], bool] = lambda: False
    """No client sends any more, and no stranger touches a table."""
    halted: dict[str, str] = field(default_factory=dict)
    """Why a topic waits for people, as the newest run said."""


class EverybodysLease:
    """A lease that protects nothing."""

    def acquire(self) -> None:
        """Granted."""

    def release(self) -> None:
        """As if it had been held."""

    def holder(self) -> str | None:
        return None


class Station:
    """One process's part of the product."""

    def __init__(self, orders: Orders, process: Process, *, lasting: bool) -> None:
        ground = orders.ground
        self.process = process
        self.orders = orders
        self.clock = SimulatedClock(process)
        self.ids = SeededIds(orders.seed * 1_000_003 + process.number)
        self.objects = SimulatedObjects(ground, process)
        self.tables = SimulatedTables(ground.tables, process)
        self.sequencer = Sequencer(SimulatedLog(ground.intake, process), self.ids, self.clock, orders.log)
        control = SimulatedLog(ground.control, process, ground.trim)
        self.checkpoints = LedgerCheckpoints(self.objects) if ground.trims else None
        self.leader = Leader(control, self.ids, self.clock, process.name, orders.log, self.checkpoints)
        self.checkpointer = (
            None
            if self.checkpoints is None
            else LedgerCheckpointer(control, self.checkpoints, self.leader, orders.log)
        )
        self.looks = PollState()
        self.leadership = Leadership(self.leader, EverybodysLease(), lasting=lasting)
        self.lines = RetentionFloorReader(
            self.objects, CLUSTER.cluster_id, lambda _: self.tables, orders.settings.topics
        )

    def archiving(self) -> ArchiveRun:
        """A run of archiving, as the composition root makes one."""
        orders = self.orders
        if self.checkpointer is not None:
            self.checkpointer.run_if_due()

        def no_schema(*_: object) -> None:
            raise AssertionError("no topic has a schema")

        return ArchiveRun(
            settings=orders.settings,
            cluster_id=CLUSTER.cluster_id,
            sequencer=self.sequencer,
            leadership=self.leadership,
            setup=TopicSetup(
                CLUSTER,
                self.objects,
                self.leader,
                lambda _: self.tables,
                no_schema,  # type: ignore[arg-type]
                orders.limits,
                self.clock,
            ),
            publisher=RoundEvents(CLUSTER.name, self.leader, self.clock, self.ids),
            committer=lambda tables: Committer(tables, self.leader, orders.limits, self.clock),
            refine=self.refine,
            options=RefineOptions(reads_max=0, uploads_max=0),  # a schedule knows no threads but its own
            cores=lambda: 1,
            memory_bytes=1 << 30,
            clock=self.clock,
            progress=lambda line: self.process.schedule.note(self.process.name, line),
        )

    def refine(self, job: RefineJob) -> Sequence[PlanResult]:
        """What a Spark worker does, with this process's way to the store."""
        if self.orders.light:
            return [result for task in job.descriptors() for result in run_bundle(task, self.objects)]
        tasks = [unpack_task(pack(task)) for task in job.descriptors()]
        return [unpack_result(pack(result)) for task in tasks for result in run_bundle(task, self.objects)]

    def cleaning(self, grace_s: float) -> CleanRun:
        """A run of cleaning, as the composition root makes one."""
        return CleanRun(
            objects=self.objects,
            sequencer=self.sequencer,
            intake=self.sequencer.backlog,
            leadership=self.leadership,
            lines=self.lines.read,
            superseded=self._superseded,
            replaced=ReplacedArchives(lambda _: self.tables, self.orders.settings.topics).keys,
            folders=self._folders(),
            settings=CleanupSettings.model_construct(grace=grace_s, deletes_max=20, orphan_age=ORPHAN_AGE_S),
            clock=self.clock,
            progress=lambda line: self.process.schedule.note(self.process.name, line),
            compact=self._compacted if self.orders.compacts else nothing_compacted,
        )

    def _compacted(self, dry_run: bool) -> list[TopicCompaction]:
        """Merge small archives, also of a day that goes on: appenders, strangers and cleaners work all the
        time."""
        orders = self.orders
        note = partial(self.process.schedule.note, self.process.name)
        compaction = Compaction(
            objects=self.objects,
            intake=self.sequencer.backlog,
            clock=self.clock,
            rewriter=partial(
                TableRewriter, self.objects, self.leader, orders.limits, self.clock, self.ids, note
            ),
            cluster_id=CLUSTER.cluster_id,
            leadership=self.leadership,
            tables=lambda _: self.tables,
            topics=orders.settings.topics,
            settings=CleanupSettings.model_construct(
                grace=-2 * DAY_S, compact_bytes=COMPACT_BYTES, compact_run_bytes_max=1 << 30
            ),
            options=RefineOptions(),
            entry_bytes_max=orders.log.entry_bytes_max,
        )
        return compaction.run(dry_run=dry_run)

    def _superseded(self) -> Sequence[str]:
        """A cleaning is three entries and a takeover: where a few make a checkpoint, to delete each one would
        never come to rest."""
        keys = self.checkpoints.superseded(self.orders.ground.control) if self.checkpoints is not None else []
        return keys if len(keys) >= SUPERSEDED_MIN else ()

    def _folders(self) -> TableFolders:
        orders = self.orders
        return TableFolders(
            self.objects,
            CLUSTER.cluster_id,
            self.leader,
            lambda _: self.tables,
            lambda tables: Committer(tables, self.leader, orders.limits, self.clock),
            orders.settings.topics,
            self.ids,
        )

    def reconciling(self) -> ReconcileRun:
        """A run of the reconciler, as the composition root makes one."""
        topics = self.orders.settings.topics

        def ledger() -> LedgerFold:
            self.leader.refresh()
            return self.leader.fold

        looker = SnapshotCollector(
            objects=self.objects,
            cluster_id=CLUSTER.cluster_id,
            tables=lambda _: self.tables,
            topics=topics,
            clock=self.clock,
            holder=lambda: None,
            owner=self.process.name,
            grace_s=ORPHAN_AGE_S,
            commit_s=2.0,
            silence_s=60.0,
        )
        repairer = Repairer(
            objects=self.objects,
            cluster_id=CLUSTER.cluster_id,
            tables=lambda _: self.tables,
            topics=topics,
            leadership=self.leadership,
            intake=self.sequencer.backlog,
            settle_topic=self._settled,
            ids=self.ids,
            progress=lambda line: self.process.schedule.note(self.process.name, line),
        )
        return ReconcileRun(looker, repairer, ledger, self.sequencer.backlog, self.clock)

    def _settled(self, topic: str) -> str | None:
        report = self.archiving().run((topic, frozenset())).of(topic)
        return report.why or report.state if report.state in ("halted", "deferred") else None


class Daemon:
    """Archives and cleans until there is nothing left to do."""

    def __init__(self, name: str, orders: Orders, choices: random.Random) -> None:
        self.name = name
        self.trouble = ""
        """What held the newest turn up."""
        self._orders = orders
        self._random = choices
        self._lasting = choices.random() < 0.85
        self._everything = choices.random() < 0.5

    def live(self, process: Process) -> None:
        station = Station(self._orders, process, lasting=self._lasting)
        while True:
            process.sleep(self._random.randrange(10_000, 1_200_000))
            process.require_current()
            if self._turn(station):
                return

    def _turn(self, station: Station) -> bool:
        """One turn; True if nothing is left to do."""
        was_over = self._orders.is_over()
        drawn = self._random.random()
        try:
            if was_over:
                return self._archive(station, over=True) and self._clean(station) and self._orders.is_over()
            if drawn < 0.65:
                self._archive(station, over=False)
            elif drawn < 0.85:
                self._clean(station)
            else:
                self._reconcile(station)
        except Corrupted:
            raise
        except Deposed as error:
            self.trouble = str(error)
            station.process.sleep(self._random.randrange(3_000_000))
        except (RetryLater, OutcomeUnknown) as error:
            self.trouble = str(error)
        return False

    def _archive(self, station: Station, *, over: bool) -> bool:
        """Whether nothing is left to archive."""
        report = station.archiving().run(
            everything=over or self._everything, polls=None if over else station.looks
        )
        for item in report.topics.values():
            if item.state == "halted":
                self._orders.halted[item.topic] = item.why or "?"
            elif item.state != "deferred":
                self._orders.halted.pop(item.topic, None)
        self.trouble = "; ".join(
            f"{item.topic} is {item.state}: {item.why}"
            for item in report.topics.values()
            if item.state != "idle"
        )
        return all(self._rests(station, item) for item in report.topics.values())

    def _rests(self, station: Station, item: TopicReport) -> bool:
        """Whether nothing is left to archive of the topic, or it waits for people and may."""
        if item.state == "halted":
            return self._orders.ground.may_halt(item.topic)
        topic = station.sequencer.fold.topics_by_name[item.topic]
        return (
            item.state in ("idle", "archived")
            and not item.waiting
            and not station.leader.fold.topic(topic.topic_id).pending_by_id
        )

    def _clean(self, station: Station) -> bool:
        """Whether nothing is left to clean."""
        report: CleanReport = station.cleaning(self._random.choice((0.0, 0.5, 3.0))).run()
        self._orders.ground.met["cleanings"] += 1
        for kind, counted in report.kinds["condemned"].items():
            self._orders.ground.met[f"condemned: {kind}"] += counted["objects"]
        if report.findings and not self._orders.ground.came_back:
            raise Violation("no file that is needed is condemned", str(report.findings))
        if report.error is not None and not isinstance(report.error, RetryLater | OutcomeUnknown):
            raise Violation("nothing breaks", f"cleaning ended with {report.error}")
        self.trouble = f"{report.waiting} objects are condemned and there; topics: {report.topics}"
        held = any(topic["doubted"] for topic in report.topics) or self._orders.ground.came_back
        merged = sum(topic.merged for topic in report.compacted)
        self._orders.ground.met["merged"] += merged
        busy = bool(
            merged
            or report.condemned
            or report.deleted
            or report.starts
            or report.over
            or report.error is not None
        )
        return not busy and (held or report.waiting == 0 or report.waiting == self._in_doubt())

    def _in_doubt(self) -> int:
        """How many intake files marked for deletion stay because an external snapshot does not state how far
        it reaches."""
        ground = self._orders.ground
        intake = Backlog(ground.fold)
        reader = RetentionFloorReader(
            ground.objects, CLUSTER.cluster_id, lambda _: ground.tables, self._orders.settings.topics
        )
        doubted = needed_files(intake, reader.read(intake, ground.ledger)).doubted
        return sum(key in doubted for key in ground.ledger.condemned)

    def _reconcile(self, station: Station) -> None:
        report = station.reconciling().run("safe")
        self._orders.ground.met["reconcilings"] += 1
        for finding, fixed in report.findings:
            self._orders.ground.met[f"{'repaired' if fixed else 'found'}: {finding.id}"] += 1
        self.trouble = f"found {[finding.id for finding in report.left]}"


class LastDaemon(Daemon):
    """Starts when all others have ended, and what was on its way has landed: it cleans up behind them, and
    has nothing to report."""

    def live(self, process: Process) -> None:
        process.sleep(round(2e6 * ORPHAN_AGE_S))
        super().live(process)
        ground = self._orders.ground
        report = Station(self._orders, process, lasting=False).reconciling().run("nothing")
        left = [finding.what for finding in report.left]
        if left and not ground.touched:
            raise Violation("the reconciler finds nothing in the end", str(left))
        orphans = [] if ground.touched else ground.orphans()
        if orphans:
            raise Violation("no orphan is left behind", str(orphans))
        ground.met["swept to the end"] += 1

    def _clean(self, station: Station) -> bool:
        """A run by which a table has forgotten old snapshots leaves what they named to the next one."""
        ground = self._orders.ground
        before = [ground.tables.current(identifier) for identifier in ground.identifiers.values()]
        rests = super()._clean(station)
        return rests and (
            ground.touched
            or before == [ground.tables.current(identifier) for identifier in ground.identifiers.values()]
        )


class Mender:
    """The operator: repairs a table that was rolled back. It is rolled forward again if that is possible;
    else the rollback is accepted."""

    def __init__(self, orders: Orders, choices: random.Random, is_over: Callable[[], bool]) -> None:
        self.name = "mender"
        self.trouble = ""
        self._orders = orders
        self._random = choices
        self._is_over = is_over
        self._forward = choices.random() < 0.3
        self._refused = 0

    def live(self, process: Process) -> None:
        station = Station(self._orders, process, lasting=False)
        while True:
            process.sleep(self._random.randrange(100_000, 3_000_000))
            process.require_current()
            over = self._is_over()
            try:
                if not self._mend(station) and over:
                    return
            except Corrupted:
                raise
            except (Deposed, RetryLater, OutcomeUnknown) as error:
                self.trouble = str(error)

    def _mend(self, station: Station) -> bool:
        """Repair what needs repair; whether there was anything that can be repaired."""
        ground, found = self._orders.ground, False
        for name, identifier in ground.identifiers.items():
            view = ground.tables.load(identifier)
            told = "it was rolled back" in self._orders.halted.get(name, "")
            if identifier in ground.lost or view is None or not (is_set_back(view) or told):
                continue
            evidence = read_evidence(view.properties)
            if (
                self._forward
                and not told
                and evidence is not None
                and any(one.snapshot_id == evidence.snapshot_id for one in view.snapshots)
            ):
                station.process.schedule.note(station.process.name, f"rolls {name} forward")
                ground.tables.roll_back(identifier, evidence.snapshot_id)
                ground.met["rolled forward"] += 1
                if identifier not in ground.rolled_back:
                    ground.ever_rolled_back.discard(identifier)
                    continue
                # The newest commit accepts an earlier rollback, and the ledger was not lowered before the
                # process ended: that rollback must be accepted again.
                ground.met["rolled forward to half a repair"] += 1
            found |= self._take_over(station, name)
        return found

    def _take_over(self, station: Station, name: str) -> bool:
        """`archiver reconcile --fix --topic`; False if it cannot be done."""
        report = station.reconciling().run("everything", name)
        mine = [(finding, fixed) for finding, fixed in report.findings if finding.id == "rolled-back"]
        if any(fixed for _, fixed in mine):
            self._orders.ground.met["rollback taken over"] += 1
            self._orders.ground.taken_over(name)
            return True
        self.trouble = str(report.error or [finding.repair for finding, _ in mine])
        self._refused += any("not repaired" in finding.repair for finding, _ in mine)
        station.process.schedule.note(station.process.name, f"could not take over: {self.trouble}")
        return self._refused < REFUSALS_MAX


REFUSALS_MAX = 4
"""After so many refusals to accept a rollback the operator gives up."""
