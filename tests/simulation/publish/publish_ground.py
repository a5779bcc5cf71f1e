"""The true state: both logs, the object store, the catalog, and what was sent. Every change is checked as it
happens.

Nothing here crashes or forgets, so it is what the processes are judged by. Must never be read by an actor
that plays the product.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from archiver.catalog.evidence import read_evidence
from archiver.catalog.reset_watermark import is_set_back
from archiver.catalog.table_layout import COMMIT_ID, COMPACTED, EXPIRED_CHANGES, RETIRED, SET_BACK
from archiver.catalog.tables import Identifier
from archiver.ledger.archive_visibility import ArchiveVisibility
from archiver.ledger.checkpoint import LedgerCheckpoint, decode, encode
from archiver.ledger.fold import LedgerFold
from archiver.log.store import Appended
from archiver.objects.paths import (
    ARCHIVE_PREFIX,
    INTAKE_PREFIX,
    checkpoint_prefix,
    parse_archive_key,
    parse_checkpoint_key,
)
from archiver.proto import control_log_pb2 as pb
from archiver.runtime.ids import SeededIds, TopicId, TopicPartition
from archiver.stream.archives import ArchiveIndex, find_archives
from intake.log.fold import IntakeFold
from tests.simulation.publish import predicates
from tests.simulation.publish.catalog_twin import WatchedTables
from tests.simulation.publish.contents import Row, Sent, archive_rows
from tests.simulation.publish.foreign_book import ForeignBook, told_once
from tests.simulation.publish.predicates import SnapshotSeen
from tests.simulation.schedule import Violation
from tests.support.log.memory_log import MemoryLog
from tests.support.objects.memory_store import MemoryObjectStore

ENTRY_BYTES_MAX = 1 << 19


class WorldClock:
    """The time of the world; no process's clock is right by it."""

    def __init__(self) -> None:
        self.now: Callable[[], int] = lambda: 0

    def now_us(self) -> int:
        return self.now()

    def monotonic_s(self) -> float:
        return self.now() / 1e6

    def sleep(self, seconds: float) -> None:
        raise AssertionError(f"the world does not sleep {seconds} s")


class _WatchedLog(MemoryLog):
    """A log whose every new entry is checked."""

    def __init__(self, name: str, look: Callable[[int, bytes], None]) -> None:
        super().__init__(name, ENTRY_BYTES_MAX)
        self._look = look

    def append(self, index: int, data: bytes) -> Appended:
        tail = self.tail()
        outcome = super().append(index, data)
        if self.tail() > tail:
            self._look(index, data)
        return outcome


def insist(invariant: str, wrong: str | None) -> None:
    """Raise `Violation` if something is wrong."""
    if wrong is not None:
        raise Violation(invariant, wrong)


class Ground:
    """The world below the processes."""

    def __init__(self, seed: int, identifiers: dict[str, Identifier]) -> None:
        self.clock = WorldClock()
        self.intake = _WatchedLog("intake", self._sequenced)
        self.control = _WatchedLog("control", self._recorded)
        self.objects = MemoryObjectStore(self.clock)
        self.tables = WatchedTables(SeededIds(seed ^ 0x7AB1E), self.clock, self._changed)
        self.identifiers = identifiers
        """Topic name → its table."""
        self.fold = IntakeFold()
        self.ledger = LedgerFold()
        self._entries: list[bytes] | None = None
        """Of the control log, those that were trimmed included, where it is trimmed."""
        self.sent: dict[str, list[Sent]] = {}
        """Intake key → its rows; what was acknowledged follows from the log."""
        self.rows: dict[str, tuple[Row, ...]] = {}
        """Path of a data file → the rows that it really holds."""
        self.met: Counter[str] = Counter()
        """What happened how often: a run in which nothing happens proves nothing."""
        self.seen: dict[int, SnapshotSeen] = {}
        """Every snapshot there ever was."""
        self.retained: dict[Identifier, tuple[int, ...]] = {}
        self.removing: frozenset[tuple[int, int]] = frozenset()
        """What the foreign snapshot that comes next takes away on purpose."""
        self.rolled_back: set[Identifier] = set()
        """Tables that were rolled back, until they hold again what the ledger says."""
        self.ever_rolled_back: set[Identifier] = set()
        """Tables that were rolled back, until an operator has repaired them."""
        self.touched = False
        """A stranger has done something."""
        self.removed: set[Identifier] = set()
        """Tables that strangers removed rows from."""
        self.foreign: set[Identifier] = set()
        """Tables that strangers added rows of their own to."""
        self.expired: set[Identifier] = set()
        """Tables whose snapshots strangers expired."""
        self.book = ForeignBook()
        """How many rows strangers added and removed."""
        self.lost: set[Identifier] = set()
        """Tables that were dropped."""
        self.came_back = False
        """Erased rows are archived again, from intake that may be marked for deletion: a finding while a
        snapshot without them is retained."""
        self._written: set[str] = set()
        self._rewritten: set[str] = set()
        """Keys that DATA_WRITTEN has named."""
        self._ever: set[str] = set()
        """Paths that were in any snapshot."""
        self._checked_ledger: dict[Identifier, tuple[object, ...]] = {}
        """By what each table was last compared with the ledger."""
        self._times: dict[TopicPartition, dict[int, int]] = {}
        self._data: tuple[int, dict[TopicId, tuple[tuple[int, ...], ...]]] = (-1, {})
        self._values: dict[TopicPartition, dict[int, bytes]] = {}

    # what was sent

    def data(self, topic_id: TopicId) -> tuple[tuple[int, ...], ...]:
        """Per partition the offsets of committed, stable records."""
        index, known = self._data
        if index != self.fold.next_index:
            known = {}
            self._data = (self.fold.next_index, known)
        if topic_id not in known:
            known[topic_id] = tuple(
                self._data_of((topic_id, number))
                for number in range(self.fold.topics_by_id[topic_id].partitions)
            )
        return known[topic_id]

    def _data_of(self, tp: TopicPartition) -> tuple[int, ...]:
        stable = self.fold.stable_offset(tp)
        gaps = {offset for low, high in self.fold.gaps(tp, 0, stable) for offset in range(low, high)}
        values = self._values.setdefault(tp, {})
        found: list[int] = []
        for segment in self.fold.segments(tp, 0):
            for place, offset in enumerate(range(segment.base, segment.end)):
                if offset < stable and offset not in gaps:
                    found.append(offset)
                    values[offset] = self.sent[segment.file.key][segment.first_row + place][0]
        return tuple(found)

    def topic_id(self, name: str) -> TopicId:
        """The id of a topic that exists."""
        return self.fold.topics_by_name[name].topic_id

    def _sequenced(self, index: int, data: bytes) -> None:
        self.fold.apply(index, data)

    # objects

    def create(self, key: str, data: bytes) -> None:
        """The store's create."""
        self.objects.create(key, data)
        if key.startswith(checkpoint_prefix("control")):
            self.met["ledger checkpoints"] += 1
            self._same_from(decode(data, key))
        if key.startswith(ARCHIVE_PREFIX) and "/data/" in key:
            self.rows[self.objects.uri(key)] = self._checked(key, archive_rows(data))

    def _own_below(self, identifier: Identifier, snapshot_id: int | None) -> bool:
        """Whether a commit of ours is retained at or below that snapshot."""
        while snapshot_id in self.retained[identifier]:
            seen, view = self.seen[snapshot_id], self.tables.state(identifier).snapshots[snapshot_id].view
            if seen.ours:
                return True
            snapshot_id = view.parent_id
        return False

    def _checked(self, key: str, rows: tuple[Row, ...]) -> tuple[Row, ...]:
        """The rows of an archive: bit by bit what was acknowledged, and the same times in every archive."""
        parsed = parse_archive_key(key)
        if parsed is None:
            raise Violation("an archive's key tells its range", key)
        topic_id = TopicId(parsed.topic_id)
        self.data(topic_id)
        for partition, offset, value, ingest_us in rows:
            tp = (topic_id, partition)
            if self._values[tp].get(offset) != value:
                raise Violation(
                    "what was acknowledged is archived bit by bit", f"{key} has {value!r} at {offset}"
                )
            if self._times.setdefault(tp, {}).setdefault(offset, ingest_us) != ingest_us:
                raise Violation(
                    "an ingest time never changes",
                    f"{key} has {ingest_us} at {offset}, it was {self._times[tp][offset]}",
                )
        expected = [
            (parsed.partition, offset)
            for offset in self.data(topic_id)[parsed.partition]
            if parsed.base <= offset < parsed.end
        ]
        if [(partition, offset) for partition, offset, _, _ in rows] != expected:
            raise Violation("an archive holds its range", f"{key} holds {[row[:2] for row in rows]}")
        return rows

    def delete(self, key: str) -> None:
        """The store's delete; the object must not be needed any more."""
        if self.objects.info(key) is not None:
            self.met[f"deleted {key.partition('/')[0]}"] += 1
        self.objects.delete(key)
        if key.startswith(INTAKE_PREFIX):
            self._vacuumed(key)
        elif "/data/" in key:
            self._swept(key)
        self.check_streams()

    def check_streams(self) -> None:
        """A reader of the topic finds every record, in any state of its table."""
        for topic in self.fold.topics_by_id.values():
            ledger = self.ledger.topic(topic.topic_id)
            for partition, offsets in enumerate(self.data(topic.topic_id)):
                given_up = ArchiveVisibility.of(ledger, partition, self.ledger.condemned)
                archives = find_archives(self.objects, topic.topic_id, partition, given_up)
                taken_in = {
                    offset
                    for segment in self.fold.segments((topic.topic_id, partition), 0)
                    if self.objects.info(segment.file.key) is not None
                    for offset in range(segment.base, segment.end)
                }

                def holds(
                    offset: int, archives: ArchiveIndex = archives, taken_in: set[int] = taken_in
                ) -> bool:
                    return offset in taken_in or archives.covering(offset) is not None

                insist(
                    "streams find every record",
                    predicates.streams_find(offsets, ledger.start(partition), holds),
                )

    def _vacuumed(self, key: str) -> None:
        for topic in self.fold.topics_by_id.values():
            identifier = self.identifiers[topic.name]
            if identifier in self.lost:
                continue
            for partition, offsets in enumerate(self.data(topic.topic_id)):
                tp = (topic.topic_id, partition)
                mine = [segment for segment in self.fold.segments(tp, 0) if segment.file.key == key]
                gone = [offset for offset in offsets if any(one.base <= offset < one.end for one in mine)]
                unstable = [segment for segment in mine if segment.end > self.fold.stable_offset(tp)]
                if unstable:
                    raise Violation(
                        "nothing vacuumed that the table lacks",
                        f"{key} holds offsets that are not stable yet",
                    )
                gone = [
                    offset for offset in gone if offset >= self.ledger.topic(topic.topic_id).start(partition)
                ]
                if gone:
                    retained = [self.seen[snapshot_id] for snapshot_id in self.retained.get(identifier, ())]
                    insist(
                        "nothing vacuumed that the table lacks",
                        predicates.vacuumed_is_in_table(retained, partition, gone),
                    )

    def _swept(self, key: str) -> None:
        path = self.objects.uri(key)
        naming = [
            snapshot_id
            for retained in self.retained.values()
            for snapshot_id in retained
            if path in self.seen[snapshot_id].paths
        ]
        if naming:
            raise Violation(
                "every referenced object exists", f"{key} was deleted, and snapshots {naming} name it"
            )
        if any(topic.pending_file(key) is not None for topic in self.ledger.topics.values()):
            raise Violation("every pending object exists", f"{key} was deleted, and the ledger offers it")

    # ledger and tables

    def remember_entries(self) -> None:
        """The control log is trimmed in this world."""
        self._entries = []

    @property
    def trims(self) -> bool:
        """Whether the control log is trimmed in this world."""
        return self._entries is not None

    def _same_from(self, checkpoint: LedgerCheckpoint) -> None:
        """A fold from a checkpoint on is the fold from the start."""
        fold, index = checkpoint.fold, checkpoint.index
        for at, data in enumerate((self._entries or [])[index:], index):
            fold.apply(at, data)
        if encode(fold) != encode(self.ledger):
            raise Violation(
                "a fold from a checkpoint is the fold from the start", f"not from entry {index} on"
            )

    def trim(self, below: int) -> None:
        """The control log's trim: what goes must be in a checkpoint."""
        keys = [parse_checkpoint_key(info.key) for info in self.objects.list(checkpoint_prefix("control"))]
        if not any(key is not None and below <= key.index <= self.control.tail() for key in keys):
            raise Violation("nothing is trimmed that no checkpoint holds", f"the control log below {below}")
        self.met["ledger trimmed"] += below > self.control.floor()
        self.control.trim(below)

    def _recorded(self, index: int, data: bytes) -> None:
        applied, epoch = self.ledger.applied, self.ledger.epoch
        self.ledger.apply(index, data)
        if self._entries is not None:
            self._entries.append(data)
        entry = pb.ControlEntry.FromString(data)
        kind = entry.WhichOneof("body") or ""
        if self.ledger.applied == applied:
            self.met["void entries"] += 1
            return
        self.met[kind] += 1
        self.met["takeovers"] += epoch > 0 and self.ledger.epoch > epoch
        self._written |= {item.key for item in entry.files_written.files}
        self._rewritten |= {item.archive.key for item in entry.files_rewritten.files}
        self.met["killed"] += len(entry.table_committed.killed)
        self.met["condemned keys"] += len(entry.condemned.keys)
        self.check_ledger()

    def check_ledger(self) -> None:
        """The ledger against the tables."""
        for name, identifier in self.identifiers.items():
            topic = self.fold.topics_by_name.get(name)
            if topic is None or identifier in self.lost or topic.topic_id not in self.ledger.topics:
                continue
            mine = self.ledger.topics[topic.topic_id]
            state, told = self.tables.state(identifier), (dict(mine.watermarks), dict(mine.starts))
            was = self._checked_ledger.get(identifier)
            now = (state, told, self.fold.next_index, identifier in self.rolled_back)
            if was is not None and was[0] is state and was[1:] == now[1:]:
                continue  # nothing of it has changed
            self._checked_ledger[identifier] = now
            wrong = predicates.ledger_within_table(
                mine.watermark, self.current(identifier), self.data(topic.topic_id)
            )
            view = self.tables.load(identifier)
            if wrong is None and view is not None and not is_set_back(view):
                self.rolled_back.discard(
                    identifier
                )  # a leader may still append a commit to the ledger that was rolled back by then
            elif wrong is not None and identifier not in self.rolled_back:
                raise Violation("the ledger is never ahead of the table", wrong)

    def current(self, identifier: Identifier) -> SnapshotSeen | None:
        """A table's current snapshot, with what is kept no longer as removed."""
        snapshot_id = self.tables.current(identifier)
        if snapshot_id is None:
            return None
        seen = self.seen[snapshot_id]
        name = next(name for name, one in self.identifiers.items() if one == identifier)
        below = self._below_starts(self.topic_id(name))
        return replace(seen, removed=seen.removed | below) if below - seen.removed else seen

    def _changed(self, identifier: Identifier) -> None:
        """The catalog has changed a table."""
        state = self.tables.state(identifier)
        name = next(name for name, one in self.identifiers.items() if one == identifier)
        topic_id = self.topic_id(name)
        if state is None:
            self.retained[identifier] = ()
            return
        self.retained[identifier] = tuple(state.snapshots)
        for snapshot_id, snapshot in state.snapshots.items():
            if snapshot_id not in self.seen:
                self.seen[snapshot_id] = self._look(
                    identifier, state.uuid, topic_id, snapshot_id, snapshot, state.properties
                )
                self._ever.update(self.seen[snapshot_id].paths)
                rows = sum(item.data_file.record_count for item in snapshot.files)
                foreign = not self.seen[snapshot_id].ours and snapshot.view.operation != "replace"
                self.book.saw(snapshot_id, snapshot.view.parent_id, rows, changes=foreign)
        if identifier not in self.lost:
            self._check_told(identifier, topic_id, state.current, state.properties.get(EXPIRED_CHANGES))
        self.check_ledger()

    def _check_told(
        self, identifier: Identifier, topic_id: TopicId, current: int | None, told: str | None
    ) -> None:
        """What strangers changed is not forgotten with their snapshots, and not counted twice."""
        expired = self.book.expired(current, self.retained[identifier])
        insist(
            "what others changed is told once",
            told_once(expired, told, retired=bool(self.ledger.topic(topic_id).starts)),
        )
        self.met["changes told after expiry"] = max(self.met["changes told after expiry"], len(expired))

    def _look(
        self,
        identifier: Identifier,
        table: uuid.UUID,
        topic_id: TopicId,
        snapshot_id: int,
        snapshot: object,
        told: object,
    ) -> SnapshotSeen:
        """A new snapshot, with everything that must hold of it."""
        view, files = snapshot.view, snapshot.files  # type: ignore[attr-defined]
        data = self.data(topic_id)
        paths = tuple(item.data_file.path for item in files)
        parent = self.seen.get(view.parent_id) if view.parent_id is not None else None
        before = set(parent.paths) if parent is not None else set()
        removed, held = parent.removed if parent is not None else frozenset(), self._held(paths, len(data))
        if RETIRED in view.summary:
            removed |= self._retired(topic_id, parent, held)
        removed |= self._below_starts(topic_id)
        if SET_BACK in view.summary and (evidence := read_evidence(told)) is not None:  # type: ignore[arg-type]
            back = sorted(place for place in removed if place[1] >= evidence.offset(place[0]))
            if back and self._own_below(identifier, view.parent_id):
                raise Violation("what was erased does not come back", f"{back} of snapshot {view.parent_id}")
            if back:  # behind a cut it does, and the runbook says so (evidence-doubted)
                removed -= frozenset(back)
                self.rolled_back.add(identifier)
                self.came_back = True
        seen = SnapshotSeen(
            snapshot_id,
            COMMIT_ID in view.summary
            and COMPACTED not in view.summary,  # a merge is what a compaction of others is
            paths,
            tuple(path for path in paths if path not in before),
            held,
            removed | self.removing,
        )
        self.removing = frozenset()
        insist("no path twice", predicates.no_path_twice(seen))
        insist("no offset twice", predicates.no_offset_twice(seen))
        insist("a path is added once", predicates.no_path_again(seen, self._ever))
        insist("nothing is lost below the watermark", predicates.no_hole(seen, data))
        insist("every referenced object exists", predicates.referenced_exist(seen, self._exists))
        if COMPACTED in view.summary:
            self._look_at_merge(seen, parent)
        if seen.ours:
            self._look_at_ours(seen, identifier, table, topic_id, data, told)
        return seen

    def _retired(
        self, topic_id: TopicId, parent: SnapshotSeen | None, held: tuple[tuple[int, ...], ...]
    ) -> frozenset[tuple[int, int]]:
        """What retention took out of the table: only what lies below the starts that the ledger knows (rule
        C1)."""
        before = parent.held if parent is not None else ()
        gone = {
            (partition, offset)
            for partition, offsets in enumerate(before)
            for offset in offsets
            if offset not in held[partition]
        }
        beyond = [place for place in gone if place[1] >= self.ledger.topic(topic_id).start(place[0])]
        if beyond:
            raise Violation("only what is below the start is retired", f"{sorted(beyond)} are beyond")
        self.met["retired rows"] += len(gone)
        return frozenset(gone)

    def _below_starts(self, topic_id: TopicId) -> frozenset[tuple[int, int]]:
        """Records that are kept no longer, wherever they still stand: a snapshot that never reached them may
        lack them."""
        starts = self.ledger.topic(topic_id).starts
        if not starts:
            return frozenset()
        data = self.data(topic_id)
        return frozenset(
            (partition, offset)
            for partition, start in starts.items()
            for offset in data[partition]
            if offset < start
        )

    def _look_at_merge(self, seen: SnapshotSeen, parent: SnapshotSeen | None) -> None:
        """Merged archives took the place of small ones: the same rows as before, and the ledger knew of
        them."""
        self.met["merges committed"] += len(seen.added)
        untold = [path for path in seen.added if self.key(path) not in self._rewritten]
        if untold:
            raise Violation(
                "the ledger knows a file before the table does", f"{untold} are in no FILES_REWRITTEN"
            )
        before = () if parent is None else parent.held
        # The topic may have grown since: its new partitions have no rows.
        grown = len(seen.held) - len(before)
        if parent is None or seen.held != (*before, *((),) * grown) or len(seen.paths) >= len(parent.paths):
            raise Violation(
                "a merge moves no row",
                f"snapshot {seen.snapshot_id} has {seen.held}, before it: {parent and parent.held}",
            )

    def _look_at_ours(
        self,
        seen: SnapshotSeen,
        identifier: Identifier,
        table: uuid.UUID,
        topic_id: TopicId,
        data: predicates.Data,
        told: object,
    ) -> None:
        self.met["commits"] += 1
        self.met["empty commits"] += not seen.added
        unwritten = [path for path in seen.added if self.key(path) not in self._written]
        if unwritten:
            raise Violation(
                "the ledger knows a file before the table does", f"{unwritten} are in no DATA_WRITTEN"
            )
        known = self.ledger.topic(topic_id).table_uuid
        if known is not None and known != table:
            raise Violation(
                "no commit to another table", f"{identifier} has uuid {table}, the ledger knows {known}"
            )
        evidence = read_evidence(told)  # type: ignore[arg-type]
        if evidence is None or evidence.snapshot_id != seen.snapshot_id:
            raise Violation("evidence names its commit", f"snapshot {seen.snapshot_id} came with {evidence}")
        insist("evidence = rows", predicates.evidence_is_rows(seen, evidence.offsets, data))

    def _held(self, paths: Iterable[str], partitions: int) -> tuple[tuple[int, ...], ...]:
        held: list[list[int]] = [[] for _ in range(partitions)]
        for path in paths:
            for partition, offset, _, _ in self.rows.get(path, ()):
                held[partition].append(offset)
        return tuple(tuple(sorted(offsets)) for offsets in held)

    def _exists(self, path: str) -> bool:
        return self.objects.info(self.key(path)) is not None

    def key(self, path: str) -> str:
        """The object key behind a path in a table."""
        return path.removeprefix("memory:///")

    def may_halt(self, name: str) -> bool:
        """Whether what strangers did to the topic's table is reason enough to wait for people."""
        identifier = self.identifiers[name]
        doubtful = identifier in self.expired and identifier in self.removed | self.foreign
        return doubtful or identifier in self.lost or identifier in self.ever_rolled_back

    def audit_must_explain(self, name: str) -> bool:
        """Whether rows were erased from the topic's table, and nothing else was done that would keep the
        audit from finding which."""
        identifier = self.identifiers[name]
        others = self.foreign | self.expired | self.lost | self.ever_rolled_back
        return identifier in self.removed - others and not self.ledger.topic(self.topic_id(name)).starts

    def erased(self, identifier: Identifier) -> list[tuple[int, int]]:
        """(partition, offset) of the rows that strangers took out of the table."""
        current = self.current(identifier)
        return [] if current is None else sorted(current.removed)

    def taken_over(self, name: str) -> None:
        """The product reported to an operator that it accepted a rollback. It did not if a stranger expired
        the lineage instead: that hides the rollback. Nor does the report count for a later rollback."""
        identifier = self.identifiers[name]
        view, seen = self.tables.load(identifier), self.current(identifier)
        evidence = None if view is None else read_evidence(view.properties)
        if evidence is None or seen is None:
            return
        # The rows alone do not show a second rollback: accepting the first one commits a snapshot without
        # files, and the snapshot below it holds the same rows.
        if not self.book.descends(seen.snapshot_id, evidence.snapshot_id):
            return
        if predicates.evidence_is_rows(seen, evidence.offsets, self.data(self.topic_id(name))) is None:
            self.ever_rolled_back.discard(identifier)

    def orphans(self) -> list[str]:
        """Archives that no retained snapshot names."""
        named = {
            path
            for retained in self.retained.values()
            for snapshot_id in retained
            for path in self.seen[snapshot_id].paths
        }
        return [
            info.key
            for info in self.objects.list(ARCHIVE_PREFIX)
            if "/data/" in info.key and self.objects.uri(info.key) not in named
        ]

    def check_times(self) -> None:
        """Ingest times of everything that was ever archived."""
        for tp, times in self._times.items():
            wrong = predicates.times_never_step_back(times)
            insist("ingest times never step back", None if wrong is None else f"{tp}: {wrong}")
