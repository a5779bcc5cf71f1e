"""Rebuilds tables that the catalog has lost from their archives.

`LedgerRebuild` uses the ledger, if only the catalog is lost. `BucketRebuild` uses the bucket alone, if the
metadata store is lost too. A rebuilt table consists of archives without overlap, each complete and consistent
with its key; nothing is deleted. It needs an operator: external changes of the lost table (deleted rows,
compacted files) are not repeated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import pyarrow as pa

from archiver.catalog.commit import CommitOutcome
from archiver.catalog.evidence import read_evidence
from archiver.catalog.identity import TableTarget, target_of
from archiver.catalog.restore import Plan, RestoredFile, TableRestore, way_out
from archiver.catalog.swap_retry import CommitLimits
from archiver.catalog.table_layout import REBUILT
from archiver.catalog.tables import Tables, TableView, shown
from archiver.config.settings import TopicSettings
from archiver.ledger.archive_visibility import ArchiveVisibility
from archiver.ledger.bridge import append_in_parts, append_table_committed
from archiver.ledger.leadership import Leadership
from archiver.ledger.views import TopicLedger
from archiver.objects import paths
from archiver.objects.paths import ARCHIVE_PREFIX, parse_archive_key, topic_id_of
from archiver.objects.store import ObjectStore
from archiver.proto import control_log_pb2 as pb
from archiver.runtime import failpoints
from archiver.runtime.clock import Clock
from archiver.runtime.errors import (
    ArchiverError,
    ConfigInvalid,
    Corrupted,
    Deposed,
    NotFound,
    OutcomeUnknown,
    RetryLater,
    TopicHalted,
)
from archiver.runtime.exit_codes import FINE, UNKNOWN, WRONG
from archiver.runtime.ids import IdSource, TopicId, new_uuid
from archiver.runtime.text import counted
from archiver.schema.columns import found_schema
from archiver.schema.evolution.field_history import highest_id
from archiver.schema.evolution.recorded import TopicSchema
from archiver.stream.archives import Describe, DescribedArchive, FoundArchive, list_archives
from intake.log.backlog import Backlog
from intake.log.fold import TopicState

# --- From the ledger
_ABANDONED = "the table was rebuilt from the archives, with the old one"
_KILLED = "the table was rebuilt from the archives, and it does not continue their offsets"


class LedgerRebuild:
    """One run under one epoch."""

    def __init__(self, parts: RebuildParts, intake: Backlog) -> None:
        self._parts = parts
        self._intake = intake
        self._leader = parts.leadership.leader

    def run(self, topic: str | None = None) -> RebuildReport:
        """Rebuild every configured table that is lost, or that of one topic. Raises `ConfigInvalid`,
        `Deposed`, and the errors of a lease.
        """
        found: list[Rebuilt] = []
        topics = topics_with_table(self._parts.topics, topic)
        with self._parts.leadership.turn("rebuilding"):
            self._parts.leadership.lead()
            for settings in topics:
                state = self._intake.topics_by_name.get(settings.name)
                table = settings.archive.table or ""
                if state is None:
                    found.append(
                        Rebuilt(settings.name, "", table, "unchanged", "the topic does not exist yet")
                    )
                    continue
                found.append(
                    isolated(
                        settings.name,
                        state.topic_id,
                        table,
                        lambda one=settings, known=state: self._topic(one, known),  # type: ignore[misc]
                    )
                )
        return RebuildReport("ledger", tuple(found))

    def _topic(self, settings: TopicSettings, state: TopicState) -> Rebuilt:
        parts = self._parts
        target = target_of(settings, state.topic_id, state.partitions, parts.cluster_id, parts.objects)
        name = shown(target.identifier)
        ledger = self._leader.fold.topic(state.topic_id)
        if ledger.table_uuid is None:
            return Rebuilt(state.name, state.topic_id, name, "unchanged", "it never had a table")
        tables = parts.tables(settings.archive.catalog or "")
        view = tables.load(target.identifier)
        # The table was never lost, or an earlier run recorded the rebuilt one.
        if view is not None and view.uuid == ledger.table_uuid:
            return Rebuilt(
                state.name,
                state.topic_id,
                name,
                "unchanged",
                "the table exists, with the uuid in the ledger",
            )
        # A table of a rebuild that crashed is continued. Any other table of that name is not changed.
        if view is not None and view.properties.get(REBUILT) != str(ledger.table_uuid):
            raise TopicHalted(
                state.name,
                f"the catalog has a table {name} (uuid {view.uuid}) that no rebuild made; "
                f"{way_out(view, target)}, or name another table in the configuration, then rebuild again",
            )
        # Rewrites in progress would replace files of the lost table.
        self._abandon_rewrites(ledger)
        chains = self._chains(state, ledger)
        archives = described(parts, chains)
        schemas = [TopicSchema.from_entry(entry) for _, entry in sorted(ledger.schemas.items())]
        going = counted(len(archives), "archive goes", "archives go")
        parts.progress(f"{state.name}: {going} into table {name}")
        plan = Plan(
            schema_json=schemas[-1].iceberg_json,
            last_column_id=highest_id(schemas),
            in_place_of=str(ledger.table_uuid),
            files=restored_files(archives),
            # Retention has deleted archives below the starts.
            starts=dict(ledger.starts),
            # Up to what is planned, not what is committed: pending archives go into the table as well.
            reached={partition: ledger.planned_to(partition) for partition in range(state.partitions)},
        )
        restore = TableRestore(
            tables, self._leader.check, self._leader.epoch, parts.limits, parts.ids, parts.clock
        )
        # Table before ledger: after a crash, the next run finds the table by its property.
        self._append_committed(target, ledger, restore.run(target, plan), [item.found for item in archives])
        rows = sum(item.data_file.record_count for item in archives)
        return Rebuilt(state.name, state.topic_id, name, "rebuilt", files=len(archives), rows=rows)

    def _abandon_rewrites(self, ledger: TopicLedger) -> None:
        keys = list(ledger.rewrites.under_way)
        if not keys:
            return

        def message(part: Sequence[str], last: bool) -> pb.RewriteSettled:
            del last
            return pb.RewriteSettled(
                # No commit of a rewrite belongs to this entry.
                commit_id=bytes(16),
                topic_id=bytes.fromhex(ledger.topic_id),
                sequence_number=ledger.sequence_number,
                abandoned=[pb.RewriteSettled.Abandoned(key=key, why=_ABANDONED) for key in part],
            )

        append_in_parts(self._leader, keys, message, lambda key: f"the outcome of {key}")

    def _chains(self, state: TopicState, ledger: TopicLedger) -> dict[int, Chain]:
        """The chain of each partition; raises `TopicHalted` if archives are missing."""
        # A pending range may have several attempts; only the one in the ledger may be used.
        waiting = {
            (item.archive.partition, item.archive.base, item.archive.end): item.archive.key
            for item in ledger.pending
        }
        candidates: dict[int, list[FoundArchive]] = {}
        for found in list_archives(self._parts.objects, state.topic_id):
            key = waiting.get((found.partition, found.base, found.end), found.key)
            if found.key == key:
                candidates.setdefault(found.partition, []).append(found)
        chains: dict[int, Chain] = {}
        for partition in range(state.partitions):
            # Ranges that hold only gaps count as archived without an archive.
            empty = [*ledger.passed.ranges(partition)]
            empty += [
                (item.archive.base, item.archive.end)
                for item in ledger.pending
                if item.archive.gap_only and item.archive.partition == partition
            ]
            start = ledger.starts.get(partition, 0)
            given_up = ArchiveVisibility.of(ledger, partition, self._leader.fold.condemned)
            # The archives that readers use, so that table and streams have the same records.
            kept = given_up.kept(candidates.get(partition, []))
            chain = chain_to(kept, start, max(start, ledger.planned_to(partition)), empty)
            if chain.why is not None:
                raise TopicHalted(
                    state.name,
                    f"partition {partition}: {chain.why}; restore the archives, or see the runbook",
                )
            chains[partition] = chain
        return chains

    def _append_committed(
        self, target: TableTarget, ledger: TopicLedger, view: TableView, archives: Sequence[FoundArchive]
    ) -> None:
        """COMMIT_TO_TABLE without an event: from here on the ledger's table is the new one (rule T4)."""
        inside = {item.key for item in archives}
        keys = [item.archive.key for item in ledger.pending if item.archive.key]
        # A killed archive that is the only copy is in the new table, so it is committed now.
        revived = [key for key in ledger.killed if key in inside]
        evidence = read_evidence(view.properties)
        outcome = CommitOutcome(
            table_uuid=view.uuid,
            snapshot_id=view.snapshot_id,
            sequence_number=view.sequence_number,
            watermarks=dict(enumerate(evidence.offsets)) if evidence is not None else {},
            committed=(*(key for key in keys if key in inside), *revived),
            killed=tuple((key, _KILLED) for key in keys if key not in inside),
            # The rebuild adds no new record.
            valid_through_us=ledger.valid_through_us,
        )
        failpoints.reach("committed.append.before")
        append_table_committed(self._leader, outcome.to_proto(new_uuid(self._parts.ids), target.topic_id))
        failpoints.reach("committed.append.after")


# --- From the bucket alone
IN_PLACE_OF = "bucket"
"""The uuid of the lost table is unknown."""


@dataclass(frozen=True, slots=True)
class _Folder:
    """One topic in the bucket."""

    topic_id: TopicId
    name: str
    partitions: int
    created_us: int
    archives: tuple[FoundArchive, ...]


class BucketRebuild:
    """One run. It reads only objects and catalogs, and writes only tables."""

    def __init__(self, parts: RebuildParts) -> None:
        self._parts = parts

    def run(self, topic: str | None = None) -> RebuildReport:
        """Every configured table, or that of one topic. Raises `ConfigInvalid`, and the errors of a lease."""
        with self._parts.leadership.turn("rebuilding"):
            folders = self._folders()
            # Templates need the names of the topics, which only the folders have now. Of one name the newest.
            states = {
                one.name: TopicState(one.topic_id, one.name, one.partitions, one.created_us)
                for one in sorted(folders, key=lambda one: one.created_us)
            }
            topics = self._parts.topics_of(list(states.values()))
            found = [
                self._of(settings, [one for one in folders if one.name == settings.name])
                for settings in topics_with_table(topics, topic)
            ]
        configured = {settings.name for settings in topics}
        left = [one for one in folders if one.name not in configured and one.archives and topic is None]
        found += [
            Rebuilt(one.name, one.topic_id, "", "unchanged", "the topic is not in the configuration")
            for one in left
        ]
        return RebuildReport("bucket", tuple(found))

    def _of(self, settings: TopicSettings, folders: Sequence[_Folder]) -> Rebuilt:
        """The table of the newest topic of the name."""
        table = settings.archive.table or ""
        if not folders:
            return Rebuilt(settings.name, "", table, "unchanged", "the data folder has no archives of it")
        # An earlier topic of the name was deleted, and its table had another name.
        newest = max(folders, key=lambda one: one.created_us)
        return isolated(settings.name, newest.topic_id, table, lambda: self._topic(settings, newest))

    def _folders(self) -> list[_Folder]:
        """Every topic with archives below `archive/`."""
        archives: dict[str, list[FoundArchive]] = {}
        named: list[str] = []
        for info in self._parts.objects.list(ARCHIVE_PREFIX):
            topic_id = topic_id_of(info.key)
            parsed = parse_archive_key(info.key)
            # Only `topic.json` has the topic's name; keys have its id.
            if topic_id is not None and info.key == paths.topic_key(topic_id):
                named.append(topic_id)
            elif parsed is not None:
                found = FoundArchive.of(info.key, info.size, parsed)
                archives.setdefault(parsed.topic_id, []).append(found)
        for topic_id in sorted(set(archives) - set(named)):
            self._parts.progress(
                f"{paths.table_prefix(topic_id)} holds {counted(len(archives[topic_id]), 'archive')} but not "
                "the name of its topic"
            )
        return [self._folder(topic_id, archives.get(topic_id, [])) for topic_id in sorted(named)]

    def _folder(self, topic_id: str, archives: Sequence[FoundArchive]) -> _Folder:
        key = paths.topic_key(topic_id)
        try:
            document = json.loads(self._parts.objects.read(key))
            name, partitions, created_us = document["topic"], document["partitions"], document["created_us"]
            if (
                document["topic_id"] != topic_id
                or not isinstance(name, str)
                # Not `isinstance`: True would pass as a number.
                or type(partitions) is not int
                or type(created_us) is not int
            ):
                raise ValueError("it belongs to another topic, or lacks a name")
        except (NotFound, ValueError, KeyError, TypeError, RecursionError) as error:
            raise Corrupted(
                f"{self._parts.objects.uri(key)} does not name the topic of the archives ({error}); "
                "restore it"
            ) from error
        return _Folder(TopicId(topic_id), name, partitions, created_us, tuple(archives))

    def _topic(self, settings: TopicSettings, folder: _Folder) -> Rebuilt:
        parts = self._parts
        target = self._target(settings, folder)
        name = shown(target.identifier)
        if not folder.archives:
            return Rebuilt(
                folder.name, folder.topic_id, name, "unchanged", "the data folder has no archives of it"
            )
        chains = _chains(folder, target.partitions)
        archives = described(parts, chains)
        holes = tuple(
            (partition, low, high) for partition, chain in sorted(chains.items()) for low, high in chain.holes
        )
        heads = tuple(
            (partition, 0, chain.start) for partition, chain in sorted(chains.items()) if chain.start
        )
        missing = tuple(sorted((*heads, *holes)))
        going = counted(len(archives), "archive goes", "archives go")
        parts.progress(f"{folder.name}: {going} into table {name}")
        plan = Plan(
            schema_json=found_schema(_newest_of_each_version(archives)),
            # The highest id that was ever used is unknown without the ledger.
            last_column_id=0,
            in_place_of=IN_PLACE_OF,
            files=restored_files(archives),
            # Retention's starts are lost with the ledger.
            starts={},
            reached={partition: chain.end for partition, chain in chains.items()},
            # A hole may be a gap, retired, or lost. Then the table gets no watermarks.
            proven=not missing,
        )
        # The newest epoch that the bucket shows; no new one can be appended without a log.
        epoch = max(one.epoch for one in folder.archives)
        restore = TableRestore(
            parts.tables(settings.archive.catalog or ""),
            # No log, so there is no leadership to check.
            lambda: None,
            epoch,
            parts.limits,
            parts.ids,
            parts.clock,
        )
        restore.run(target, plan)
        why = (
            f"{_INCOMPLETE}; offsets in no archive are gaps, were retired, or are lost"
            if missing
            else _INCOMPLETE
        )
        rows = sum(item.data_file.record_count for item in archives)
        return Rebuilt(folder.name, folder.topic_id, name, "rebuilt", why, len(archives), rows, missing)

    def _target(self, settings: TopicSettings, folder: _Folder) -> TableTarget:
        # `topic.json` may have fewer partitions than the archives show.
        partitions = max(folder.partitions, *(one.partition + 1 for one in folder.archives), 1)
        return target_of(settings, folder.topic_id, partitions, self._parts.cluster_id, self._parts.objects)


def _chains(folder: _Folder, partitions: int) -> dict[int, Chain]:
    """The chain of each partition; raises `TopicHalted` if archives overlap."""
    chains: dict[int, Chain] = {}
    for partition in range(partitions):
        chain = chain_of_all(one for one in folder.archives if one.partition == partition)
        if chain.why is not None:
            raise TopicHalted(
                folder.name,
                f"partition {partition}: {chain.why}; move away the wrong archives, then rebuild again",
            )
        chains[partition] = chain
    return chains


def _newest_of_each_version(archives: Sequence[DescribedArchive]) -> list[pa.Schema]:
    """The columns of one file per schema version, newest version first."""
    versions = {item.footer.schema_version: item.columns for item in archives}
    return [versions[version] for version in sorted(versions, reverse=True)]


_INCOMPLETE = "rebuilt from the archives alone: without the log, other records are unknown"

# --- Chains of archives


@dataclass(frozen=True, slots=True)
class Chain:
    """Consecutive archives of one partition."""

    archives: tuple[FoundArchive, ...]
    twins: Mapping[str, tuple[FoundArchive, ...]]
    """By key: other archives of exactly the same range, whose records must be equal."""
    holes: tuple[tuple[int, int], ...] = ()
    """Ranges between archives that no archive holds."""
    why: str | None = None
    """Why there is no chain; `archives` is then empty."""

    @property
    def start(self) -> int:
        """The first offset; 0 without archives."""
        return self.archives[0].base if self.archives else 0

    @property
    def end(self) -> int:
        """The offset after the last one; 0 without archives."""
        return self.archives[-1].end if self.archives else 0


def chain_to(
    archives: Iterable[FoundArchive], start: int, end: int, without: Sequence[tuple[int, int]] = ()
) -> Chain:
    """A chain from an offset not above `start` to exactly `end`. `without`: ranges without an archive,
    because they hold no record.

    The first archive may begin below `start`, the current end of retention.
    """
    choices, twins = _by_range(archives)
    came: dict[int, tuple[int, FoundArchive | None]] = {start: (start, None)}
    # Retention may have moved the start into an archive. Of several with the same end, the shortest is used.
    for found in sorted(choices, key=lambda one: -one.base):
        if found.base < start < found.end:
            came.setdefault(found.end, (start, found))
    farthest = _walk(came, choices, without, end)
    if farthest != end:
        return Chain(
            (),
            {},
            why=f"no archive that continues there holds the offsets from {farthest} on, up to {end}",
        )
    return _chain(came, start, end, twins)


def chain_of_all(archives: Iterable[FoundArchive]) -> Chain:
    """A chain of all archives, with holes only where no archive exists."""
    choices, twins = _by_range(archives)
    taken: list[FoundArchive] = []
    holes: list[tuple[int, int]] = []
    at = 0
    while at < len(choices):
        first = at
        low, high = choices[at].base, choices[at].end
        # A group of archives without a hole between them.
        while at < len(choices) and choices[at].base <= high:
            high = max(high, choices[at].end)
            at += 1
        came: dict[int, tuple[int, FoundArchive | None]] = {low: (low, None)}
        farthest = _walk(came, choices[first:at], (), high)
        if farthest != high:
            beyond = next(one for one in choices[first:at] if one.end == high)
            return Chain(
                (),
                {},
                why=f"archives overlap and are not consecutive: a chain ends at {farthest}, but "
                f"{beyond.key} reaches {high}",
            )
        if taken:
            holes.append((taken[-1].end, low))
        taken += _chain(came, low, high, twins).archives
    return Chain(tuple(taken), {one.key: twins[one.key] for one in taken if one.key in twins}, tuple(holes))


def _by_range(
    archives: Iterable[FoundArchive],
) -> tuple[list[FoundArchive], dict[str, tuple[FoundArchive, ...]]]:
    """One archive of each range, in order, and the others of its range."""
    ranges: dict[tuple[int, int], list[FoundArchive]] = {}
    for found in archives:
        ranges.setdefault((found.base, found.end), []).append(found)
    chosen: list[FoundArchive] = []
    twins: dict[str, tuple[FoundArchive, ...]] = {}
    for key in sorted(ranges):
        # The newest epoch first; equal records are checked later (`described`).
        newest, *others = sorted(ranges[key], key=lambda one: (-one.epoch, one.key))
        chosen.append(newest)
        if others:
            twins[newest.key] = tuple(others)
    return chosen, twins


def _walk(
    came: dict[int, tuple[int, FoundArchive | None]],
    choices: Sequence[FoundArchive],
    without: Sequence[tuple[int, int]],
    end: int,
) -> int:
    """Record the predecessor of every offset that a chain can reach. Returns `end`, or the farthest offset
    before it.
    """
    by_base: dict[int, list[FoundArchive]] = {}
    for found in choices:
        by_base.setdefault(found.base, []).append(found)
    # A search over all reachable offsets: a greedy choice could miss a chain among overlapping archives.
    waiting = set(came)
    while waiting:
        at = min(waiting)
        waiting.remove(at)
        steps: list[tuple[int, FoundArchive | None]] = [(found.end, found) for found in by_base.get(at, ())]
        # A range without records may be entered anywhere, because no archive needs to begin with it.
        steps += [(high, None) for low, high in without if low <= at < high]
        for to, by in steps:
            if to <= end and to not in came:
                came[to] = (at, by)
                waiting.add(to)
    return max(one for one in came if one <= end)


def _chain(
    came: Mapping[int, tuple[int, FoundArchive | None]],
    start: int,
    end: int,
    twins: Mapping[str, tuple[FoundArchive, ...]],
) -> Chain:
    found: list[FoundArchive] = []
    at = end
    while at != start:
        at, archive = came[at]
        if archive is not None:
            found.append(archive)
    found.reverse()
    return Chain(tuple(found), {one.key: twins[one.key] for one in found if one.key in twins})


# --- Common parts and reports
State = Literal["rebuilt", "unchanged", "halted", "unfinished"]


@dataclass(frozen=True)
class RebuildParts:
    """The dependencies of a rebuild; the composition root builds it."""

    objects: ObjectStore
    cluster_id: str
    tables: Callable[[str], Tables]
    topics: Sequence[TopicSettings]
    """Of the configuration, and from templates those of topics that the log has."""
    topics_of: Callable[[Sequence[TopicState]], Sequence[TopicSettings]]
    """The same for a log with the given topics. The log may be lost."""
    leadership: Leadership
    describe: Describe
    limits: CommitLimits
    ids: IdSource
    clock: Clock
    progress: Callable[[str], None]
    """Receives one line at a time."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The outcome for one topic's table."""

    topic: str
    topic_id: str
    table: str
    state: State
    why: str = ""
    """The reason for every state except `rebuilt`, where it says what is unknown about the table."""
    files: int = 0
    rows: int = 0
    holes: tuple[tuple[int, int, int], ...] = ()
    """(partition, from, to): ranges without an archive, which may or may not have held records."""

    def to_json(self) -> Mapping[str, object]:
        """The JSON document for the command line."""
        return {
            "topic": self.topic,
            "topic_id": self.topic_id,
            "table": self.table,
            "state": self.state,
            "why": self.why,
            "files": self.files,
            "rows": self.rows,
            "holes": [list(hole) for hole in self.holes],
        }


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """The outcomes of all tables."""

    mode: Literal["ledger", "bucket"]
    tables: tuple[Rebuilt, ...]

    @property
    def exit_code(self) -> int:
        """0: every table is there; 1: some need an operator; 2: some are not finished, run again."""
        states = {item.state for item in self.tables}
        # Unfinished first: another run may finish it without an operator.
        return UNKNOWN if "unfinished" in states else WRONG if "halted" in states else FINE

    def to_json(self) -> dict[str, object]:
        """The JSON document for the command line."""
        return {"mode": self.mode, "tables": [item.to_json() for item in self.tables]}


def isolated(topic: str, topic_id: str, table: str, work: Callable[[], Rebuilt]) -> Rebuilt:
    """The outcome of one topic's `work`. Every error except `Deposed` becomes an outcome."""
    try:
        return work()
    # A newer leader ends the run; other errors concern one topic.
    except Deposed:
        raise
    except (RetryLater, OutcomeUnknown) as error:
        return Rebuilt(topic, topic_id, table, "unfinished", f"{error}; rebuild again")
    except ArchiverError as error:
        return Rebuilt(
            topic, topic_id, table, "halted", error.why if isinstance(error, TopicHalted) else str(error)
        )


def described(parts: RebuildParts, chains: Mapping[int, Chain]) -> list[DescribedArchive]:
    """The archives of all partitions in order, with their footers.

    Raises `Corrupted` if an archive does not match its key, or if archives of one range hold different
    records.
    """
    found: list[DescribedArchive] = []
    for _, chain in sorted(chains.items()):
        for archive in chain.archives:
            one = parts.describe(archive)
            twins = [one, *(parts.describe(other) for other in chain.twins.get(archive.key, ()))]
            # Each with each, because digests of two versions are not compared.
            for first, second in combinations(twins, 2):
                if not _agree(first, second):
                    raise Corrupted(
                        f"{first.found.key} and {second.found.key} hold different records of the same range; "
                        "find out which is right and move the other away"
                    )
            found.append(one)
    return found


def _agree(one: DescribedArchive, other: DescribedArchive) -> bool:
    """Whether the footers of two archives of one range say nothing that contradicts the other."""
    if one.footer.digest_version == other.footer.digest_version:
        return one.footer.records_digest == other.footer.records_digest
    # An earlier version of the program wrote one of them. Digests of two formats cannot be compared, and
    # without the topic's schema no record can be rebuilt.
    return one.footer.gaps == other.footer.gaps and one.data_file.record_count == other.data_file.record_count


def restored_files(archives: Sequence[DescribedArchive]) -> list[RestoredFile]:
    """The files for the table's restore plan."""
    return [RestoredFile(item.data_file, item.found.partition, item.found.end) for item in archives]


def topics_with_table(topics: Sequence[TopicSettings], topic: str | None) -> list[TopicSettings]:
    """The topics with a table; raises `ConfigInvalid` if the given topic has none."""
    found = [item for item in topics if topic in (None, item.name)]
    if topic is not None and (not found or found[0].archive.kind != "iceberg"):
        raise ConfigInvalid(f"topic {topic} has no table in the configuration, so there is none to rebuild")
    return [item for item in found if item.archive.kind == "iceberg"]
