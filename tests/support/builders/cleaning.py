"""An intake log in memory with files that hold nothing but their keys, and the vacuum over it: for tests of
what may go and when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from archiver.config.groups import CleanupSettings, LogSettings
from archiver.ledger.fold import LedgerFold
from archiver.ledger.leader import Leader
from archiver.ledger.leadership import Leadership
from archiver.objects.paths import INTAKE_PREFIX, intake_key
from archiver.runtime.clock import ManualClock
from archiver.runtime.ids import SeededIds, TopicId, TopicPartition, new_ulid
from intake.format import PlacedSegment
from intake.log.backlog import Backlog
from intake.log.fold import Landed
from intake.log.sequencer import Sequencer
from intake.producers import Stamp
from reconcile.snapshot.retention_floor import RetentionFloor
from reconcile.vacuum.clean import CleanRun
from reconcile.vacuum.report import CleanReport
from reconcile.vacuum.tables import TableFolders
from tests.support.log.faulty_log import FaultyLog
from tests.support.log.memory_log import LeasePlace, MemoryLease, MemoryLogStore
from tests.support.objects.faulty_objects import FaultyObjectStore
from tests.support.objects.memory_store import MemoryObjectStore

NOW_US = 1_800_000_000_000_000
GRACE_S = 3600.0


@dataclass
class Run:
    """A segment to append."""

    topic: str
    partition: int = 0
    rows: int = 1
    stamp: Stamp | None = None


@dataclass
class Vacuumed:
    """Both logs, a store, a clock; lines are what the test says."""

    entry_bytes_max: int = 1 << 16
    deletes_max: int = 1000
    clock: ManualClock = field(default_factory=lambda: ManualClock(NOW_US))
    lines: dict[tuple[str, int], int] = field(default_factory=dict)
    """Per topic and partition; 0 where nothing is said."""
    why: dict[str, str] = field(default_factory=dict)
    """Topics that keep everything, and why."""
    doubted: set[str] = field(default_factory=set)
    superseded: list[str] = field(default_factory=list)
    reported: list[str] = field(default_factory=list)
    folders: TableFolders | None = None

    def __post_init__(self) -> None:
        stores = MemoryLogStore(self.entry_bytes_max)
        self.intake_log, self.control_log = FaultyLog(stores.log("intake")), FaultyLog(stores.log("control"))
        self.objects = FaultyObjectStore(MemoryObjectStore(self.clock))
        self.place = LeasePlace()
        self._seed = 0
        self.ids = SeededIds(10_000)
        self.sequencer = self.new_sequencer()

    def limits(self) -> LogSettings:
        return LogSettings(append_attempts_max=3, entry_bytes_max=max(self.entry_bytes_max, 16 * 1024))

    def new_sequencer(self) -> Sequencer:
        """Another process's way into the intake log."""
        self._seed += 1
        return Sequencer(self.intake_log, SeededIds(self._seed), self.clock, self.limits())

    def topic(self, name: str, partitions: int = 1) -> TopicId:
        return self.sequencer.declare_topic(name, partitions).topic_id

    def upload(self, data: bytes = b"records") -> str:
        """Store a file that no entry names yet, as of now."""
        key = intake_key(self.clock.now_us(), new_ulid(self.ids, self.clock.now_us()))
        self.objects.create(key, data)
        return key

    def name(self, key: str, *runs: Run, by: Sequencer | None = None) -> tuple[Landed, ...]:
        """Append the entry of a stored file."""
        sequencer = by or self.sequencer
        topics = sequencer.refresh().topics_by_name
        segments = [
            PlacedSegment(
                topics[run.topic].topic_id, run.partition, 0, 0, run.rows, 10, self.clock.now_us(), run.stamp
            )
            for run in runs
        ]
        return sequencer.append_file(key, 7, b"d" * 32, segments)

    def file(self, *runs: Run) -> str:
        """A file and its entry, a second after the one before."""
        self.clock.advance(1)
        key = self.upload()
        self.name(key, *runs)
        return key

    def leader(self, name: str = "a") -> Leader:
        self._seed += 1
        return Leader(self.control_log, SeededIds(self._seed), self.clock, f"{name}:1", self.limits())

    def ledger(self) -> LedgerFold:
        """The control log, folded from its beginning."""
        reader = self.leader()
        reader.refresh()
        return reader.fold

    def backlog(self) -> Backlog:
        """The intake log, folded from its beginning."""
        return self.new_sequencer().backlog()

    def topic_lines(self, intake: Backlog, ledger: LedgerFold) -> Mapping[TopicId, RetentionFloor]:
        found: dict[TopicId, RetentionFloor] = {}
        for topic in intake.topics_by_id.values():
            name = topic.name
            offsets = tuple(
                0 if name in self.why else self.lines.get((name, partition), 0)
                for partition in range(topic.partitions)
            )
            found[topic.topic_id] = RetentionFloor(
                topic.topic_id, name, offsets, offsets, self.why.get(name), name in self.doubted
            )
        return found

    def cleaning(self, leader: Leader | None = None, name: str = "a") -> CleanRun:
        """A process's vacuum."""
        sequencer = self.new_sequencer()
        return CleanRun(
            objects=self.objects,
            sequencer=sequencer,
            intake=sequencer.backlog,
            leadership=Leadership(leader or self.leader(name), MemoryLease(f"{name}:1", self.place)),
            lines=self.topic_lines,
            superseded=lambda: self.superseded,
            settings=CleanupSettings(grace=GRACE_S, deletes_max=self.deletes_max),
            clock=self.clock,
            progress=self.reported.append,
            folders=self.folders,
        )

    def clean(self, *, dry_run: bool = False) -> CleanReport:
        """One run of a process of its own."""
        return self.cleaning().run(dry_run=dry_run)

    def later(self) -> None:
        """A little more than the deletion delay passes."""
        self.clock.advance(GRACE_S + 1)

    def keys(self, prefix: str = INTAKE_PREFIX) -> list[str]:
        return [info.key for info in self.objects.list(prefix)]

    def tails(self) -> tuple[int, int]:
        return self.intake_log.tail(), self.control_log.tail()


def tp_of(vacuumed: Vacuumed, topic: str, partition: int = 0) -> TopicPartition:
    return vacuumed.backlog().topics_by_name[topic].topic_id, partition


def stamps(producer: tuple[int, int], first: int, count: int, transactional: bool = False) -> Sequence[Stamp]:
    """Of batches of one record each."""
    return [Stamp(*producer, sequence, transactional) for sequence in range(first, first + count)]
