"""Compaction that preserves the stream: small archives of closed table partitions are merged into one, in
offset order, byte for byte.

Owns the order of effects, a few archives at a time. Merged archives are stored, then recorded in the ledger
and committed to the table (`commit.py`). Can be killed at any step: an object that was stored and is in no
log is unreferenced, and cleaning deletes it. A topic that cannot continue is reported and left out. Never
deletes an object, never moves a watermark, and never merges across a hole.

The choice of archives (`smalls`, `runs`) is pure. Small archives of one table partition that follow each
other become one of up to the target size. The result must be at least half as large again as each of its
parts. So a record is rewritten a few times at most, however often compaction runs. A table partition is
compacted once it is closed. Archives that come late are merged the same way.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from archiver.catalog.evidence import Gaps
from archiver.catalog.identity import load_table, target_of
from archiver.catalog.tables import LiveFile, Tables, TableView, shown
from archiver.config.settings import CleanupSettings, TopicSettings
from archiver.ledger.archives import OldArchive
from archiver.ledger.leadership import Leadership
from archiver.ledger.views import TopicLedger
from archiver.objects.path_normalization import key_of
from archiver.objects.paths import Granularity, parse_archive_key, partition_value_of
from archiver.objects.store import ObjectStore
from archiver.refine.archive_file import Conflict
from archiver.refine.plan_writer import TopicRows
from archiver.refine.planner import known_gaps
from archiver.refine.task import RefineOptions, RefineTopic
from archiver.rewrite.commit import Remade, Rewriter
from archiver.rewrite.verified_write import Damaged, Piece, Small, merge_archives, split_run
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError, Deposed, Halt, RetryLater, TopicHalted
from archiver.runtime.text import counted
from archiver.schema.evolution.state import TopicSchema
from intake.log.backlog import Backlog
from intake.log.fold import TopicState

EXCHANGED_TOGETHER_MAX = 16
"""Merged archives that one snapshot brings …"""
EXCHANGED_BYTES = 256 * 1024 * 1024
"""… and about this many bytes of old ones: the epoch must not change while they are merged."""
SKIPPED_MAX = 100
"""At most this many skipped archives are named per topic."""


@dataclass
class TopicCompaction:
    """One topic's part of a run."""

    topic: str
    merged: int = 0
    """New archives in the table, each in place of several; in a dry run, archives that would be made."""
    archives: int = 0
    """Archives that they replace."""
    bytes_before: int = 0
    bytes_after: int = 0
    """Of the new archives; 0 in a dry run."""
    skipped: list[dict[str, str]] = field(default_factory=list)
    """Archives that stay as they are, and why."""
    more: bool = False
    """The run ended at its limit of bytes; the next one continues."""
    why: str | None = None
    """Why the topic's part ended early."""

    def skip(self, name: str, why: str) -> None:
        """Record an archive that stays as it is."""
        if len(self.skipped) < SKIPPED_MAX:
            self.skipped.append({"archive": name, "why": why})

    def to_json(self) -> dict[str, object]:
        """As `archiver clean` prints it."""
        return {
            "topic": self.topic,
            "merged": self.merged,
            "archives": self.archives,
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
            "skipped": self.skipped,
            "more": self.more,
            "why": self.why,
        }


class Compaction:
    """Merges small archives, on request."""

    def __init__(
        self,
        objects: ObjectStore,
        intake: Callable[[], Backlog],
        cluster_id: str,
        leadership: Leadership,
        tables: Callable[[str], Tables],
        topics: Sequence[TopicSettings],
        settings: CleanupSettings,
        options: RefineOptions,
        entry_bytes_max: int,
        clock: Clock,
        rewriter: Rewriter,
    ) -> None:
        """`intake` reads the intake log to its tail; `tables` opens a configured catalog; `entry_bytes_max`
        bounds an entry of the control log.
        """
        self.objects = objects
        self.cluster_id = cluster_id
        self.leadership = leadership
        self.tables = tables
        self.settings = settings
        self.options = options
        self.entry_bytes_max = entry_bytes_max
        self.clock = clock
        self.rewriter = rewriter
        self._intake = intake
        self._topics = topics
        self._bytes_left = 0

    def run(self, *, dry_run: bool = False) -> list[TopicCompaction]:
        """Merge archives of all topics with a table, at most `cleanup.compact_run_bytes_max` of them; returns
        what there is to report, by topic.

        With `dry_run` nothing is written. Raises `LeaseHeld` if another process leads, `Deposed` if a newer
        leader appears. What concerns one topic only is in the report.
        """
        if self.settings.compact_bytes == 0:
            return []
        self._bytes_left = self.settings.compact_run_bytes_max
        intake = self._intake()
        found: list[TopicCompaction] = []
        for settings in sorted(self._topics, key=lambda topic: topic.name):
            state = intake.topics_by_name.get(settings.name)
            # Only a table can replace several archives by one in a single step.
            if state is None or settings.archive.kind != "iceberg":
                continue
            report = TopicCompaction(settings.name)
            try:
                _Topic(self, settings, state, known_gaps(intake, state.topic_id), report).run(dry_run=dry_run)
            # A newer leader ends the whole run, not this topic.
            except Deposed:
                raise
            except ArchiverError as error:
                report.why = error.why if isinstance(error, TopicHalted) else str(error)
            if report.merged or report.skipped or report.more or report.why:
                found.append(report)
        return found

    def room(self, size: int, chosen: int = 0) -> bool:
        """Whether archives of that many bytes may be merged in addition to `chosen` bytes that are not spent
        yet; the first ones always may.
        """
        # Otherwise archives larger than the bound would never be merged.
        first = chosen == 0 and self._bytes_left == self.settings.compact_run_bytes_max
        return first or chosen + size <= self._bytes_left

    def spend(self, size: int) -> None:
        """Archives of that many bytes were merged. Those that could not be merged do not count: they would
        block the others for ever.
        """
        self._bytes_left -= size


class _DeleteFiles(Exception):
    """The table has delete files."""


class _Topic:
    """The compaction of one topic's table."""

    def __init__(
        self, run: Compaction, settings: TopicSettings, state: TopicState, gaps: Gaps, report: TopicCompaction
    ) -> None:
        self._run = run
        self._settings = settings
        self._state = state
        self._report = report
        self._tables = run.tables(settings.archive.catalog or "")
        self._target = target_of(settings, state.topic_id, state.partitions, run.cluster_id, run.objects)
        self._rewriter = run.rewriter(self._tables, self._target, gaps, "compact", report.skip)
        self._rows: dict[int, TopicRows] = {}

    def run(self, *, dry_run: bool) -> None:
        """Choose archives; if there are any, resolve what earlier runs left, merge, and replace, a few at a
        time.
        """
        # Without a table there is nothing to replace, and loading one would be a request for nothing.
        if self._ledger.table_uuid is None:
            return
        view = load_table(self._tables, self._target, self._ledger.table_uuid)
        if view is None:
            return
        # Chosen without the lease first: mostly nothing is small, and no turn is needed.
        found = self._chosen(view)
        if dry_run:
            self._plan(found)
            return
        # A rewrite that an earlier run left must be resolved even if nothing is small.
        if not found and not self._ledger.rewrites.under_way:
            return
        with self._run.leadership.turn("compaction"):
            self._run.leadership.lead()
            # Before the table is loaded for choosing: a merge that has landed must not be made again.
            self._rewriter.settle()
            schemas = {
                version: TopicSchema.from_entry(entry) for version, entry in self._ledger.schemas.items()
            }
            view = self._rewriter.sound()
        if view is not None:
            # Chosen again: the table may have changed before the turn began.
            self._merge(self._chosen(view), view, schemas)

    def _plan(self, found: Iterable[list[Small]]) -> None:
        """What a run would merge, as far as it can be known without opening the archives."""
        for run in found:
            if not self._run.room(sum(one.size for one in run)):
                self._report.more = True
                return
            self._run.spend(sum(one.size for one in run))
            self._note(run, 0)

    @property
    def _ledger(self) -> TopicLedger:
        return self._run.leadership.leader.fold.topic(self._state.topic_id)

    def _chosen(self, view: TableView) -> list[list[Small]]:
        """Runs of archives, each to become one. Archives that a rollback brought back are included, although
        the ledger says that they were replaced.
        """
        run, ledger, objects = self._run, self._ledger, self._run.objects
        target = CompactTarget(
            topic_id=self._state.topic_id,
            spec_id=view.spec_id,
            granularity=self._settings.archive.partition_by[0],
            bytes=run.settings.compact_bytes,
            closed_us=run.clock.now_us() - round(run.settings.grace * 1e6),
            start=ledger.start,
        )
        # Not the replaced ones: after a rollback they are live again and are merged again.
        given_up = ChainMap[str, Any](
            ledger.killed, ledger.rewrites.abandoned, run.leadership.leader.fold.condemned
        )
        try:
            found = smalls(self._files(view), lambda path: key_of(objects, path), target, given_up)
        except _DeleteFiles:
            why = (
                "the table has delete files of another engine, which name rows by their file; compact it "
                "with that engine"
            )
            self._report.skip(shown(self._target.identifier), why)
            return []
        return list(runs(found, target.bytes))

    def _files(self, view: TableView) -> Iterator[LiveFile]:
        for file in self._tables.live_files(view):
            if file.has_deletes:
                # A merged file has another path and other positions, so the deletes would be lost.
                raise _DeleteFiles
            yield file

    def _merge(
        self, found: Iterable[list[Small]], view: TableView, schemas: Mapping[int, TopicSchema]
    ) -> None:
        handful: list[tuple[list[Piece], TopicRows]] = []
        size = 0
        for together in self._pieces(found):
            bytes_ = sum(piece.small.size for piece in together)
            # Ends here instead of searching for smaller ones: the next run continues in order.
            if not self._run.room(bytes_, size):
                self._report.more = True
                break
            handful.append((together, self._rows_of(together[0].footer.schema_version, schemas, view)))
            size += bytes_
            # Without a kept lease other processes wait for this turn, so it is kept short.
            if (
                len(handful) == EXCHANGED_TOGETHER_MAX
                or size >= EXCHANGED_BYTES
                or not self._run.leadership.holding
            ):
                self._handful(handful)
                handful, size = [], 0
        if handful:
            self._handful(handful)

    def _handful(self, handful: Sequence[tuple[list[Piece], TopicRows]]) -> None:
        """Merge them, and commit them to the table."""
        leadership = self._run.leadership
        with leadership.turn("compaction"):
            epoch = leadership.lead_again()  # a new epoch, so that no key was used before (rule P2)
            # Without a kept lease another leader could begin an epoch, and what was stored would be wasted.
            if not leadership.holding:
                self._exchange(self._made(handful, epoch))
                return
        # Outside of a turn, so that archiving rounds continue while archives are merged and stored.
        made = self._made(handful, epoch)
        with leadership.turn("compaction"):
            # The ledger is read again, because it was not watched outside of the turn.
            leadership.leader.refresh()
            # Another leader, or a round of this one, may have begun an epoch while the archives were merged.
            if leadership.leader.fold.epoch != epoch:
                raise RetryLater(
                    f"{counted(len(made), 'merged archive')} given up, because another epoch began; "
                    "the next run goes on"
                )
            self._exchange(made)

    def _made(self, handful: Sequence[tuple[list[Piece], TopicRows]], epoch: int) -> list[Remade]:
        return [one for together, rows in handful for one in self._merged(together, rows, epoch)]

    def _pieces(self, found: Iterable[list[Small]]) -> Iterator[list[Piece]]:
        run = self._run
        for neighbours in found:
            # Half of an entry, because the new archive is in it as well.
            for together in split_run(
                run.objects, neighbours, run.cluster_id, run.entry_bytes_max // 2, self._report.skip
            ):
                # A change of schema or a damaged archive may have left too little.
                if is_worth_it([piece.small for piece in together]):
                    yield together

    def _rows_of(self, version: int, schemas: Mapping[int, TopicSchema], view: TableView) -> TopicRows:
        if version not in self._rows:
            if version not in schemas:
                raise Halt(
                    f"the ledger has no schema version {version} of topic {self._state.name}; the "
                    "control log is older than the archives"
                )
            topic = RefineTopic(
                self._state.topic_id,
                self._state.name,
                schemas[version],
                self._settings.archive.partition_by[0],
                view.spec_id,
            )
            self._rows[version] = TopicRows(topic, self._run.options)
        return self._rows[version]

    def _merged(self, together: Sequence[Piece], rows: TopicRows, epoch: int) -> Iterator[Remade]:
        """One archive of several. If one is damaged, one archive of those before it and one of those after
        it. What cannot be merged is reported.
        """
        run = self._run
        if not is_worth_it([piece.small for piece in together]):
            return
        try:
            written = merge_archives(run.objects, together, rows, run.cluster_id, run.options, epoch)
        except Damaged as error:
            self._report.skip(together[error.place].small.key, str(error))
            # Not merged across the damaged archive, because that would leave a hole.
            yield from self._merged(together[: error.place], rows, epoch)
            yield from self._merged(together[error.place + 1 :], rows, epoch)
            return
        if isinstance(written, Conflict):
            self._report.skip(together[0].small.key, written.why)
            return
        olds = tuple(OldArchive(piece.small.key, piece.small.size) for piece in together)
        yield Remade(olds, tuple(piece.small.path for piece in together), written)

    def _exchange(self, made: Sequence[Remade]) -> None:
        """Commit merged archives to the table, within a turn."""
        # Loaded again: the ledger's entry names the state of the table just before the swap.
        view = self._rewriter.sound() if made else None
        exchanged = None if view is None else self._rewriter.exchange(made, view)
        for item in made:
            # Only what is in the table counts; the rest is chosen again.
            if exchanged is not None and item.key in exchanged.replaced:
                self._run.spend(sum(old.size for old in item.olds))
                self._note(item.olds, item.written.archive.size)

    def _note(self, olds: Iterable[OldArchive | Small], size: int) -> None:
        sizes = [old.size for old in olds]
        self._report.merged += 1
        self._report.archives += len(sizes)
        self._report.bytes_before += sum(sizes)
        self._report.bytes_after += size


# --- The choice of archives (pure)
TOGETHER_MAX = 1000
"""At most this many archives are merged into one."""


@dataclass(frozen=True, slots=True)
class CompactTarget:
    """What an archive must fit to be merged."""

    topic_id: str
    spec_id: int
    """Of the table's default partition spec."""
    granularity: Granularity
    bytes: int
    """Target size of an archive."""
    closed_us: int
    """A table partition that ended before this time is closed."""
    start: Callable[[int], int]
    """The first offset that retention keeps, by topic partition: what begins below it is not merged."""


def smalls(
    files: Iterable[LiveFile],
    key_of: Callable[[str], str | None],
    target: CompactTarget,
    given_up: Container[str],
) -> list[Small]:
    """The archives that may be merged, ordered by topic partition, table partition and offset; none whose key
    is in `given_up`.
    """
    # The partition that contains this time is the first that is still open.
    open_from = partition_value_of(target.closed_us, target.granularity)
    found: list[Small] = []
    for file in files:
        key = key_of(file.path)
        parsed = None if key is None else parse_archive_key(key)
        # Files of other writers, and archives of another topic, are not part of this stream.
        if key is None or parsed is None or parsed.topic_id != target.topic_id or key in given_up:
            continue
        if (
            # A merged file gets the present spec, under which its rows must form one partition.
            file.spec_id != target.spec_id
            or parsed.granularity != target.granularity
            or parsed.partition_value >= open_from
        ):
            continue
        # An archive of half the target size or more stays as it is.
        if file.file_size * 2 < target.bytes and parsed.base >= target.start(parsed.partition):
            found.append(Small(file.path, key, file.file_size, parsed))
    return sorted(
        found, key=lambda one: (one.archive.partition, one.archive.partition_value, one.archive.base)
    )


def runs(found: Iterable[Small], bytes_wanted: int) -> Iterator[list[Small]]:
    """Groups of neighbours without a hole between them, each to become one archive at least half as large
    again as its largest part.
    """
    together: list[Small] = []
    size = 0
    for one in found:
        # The number is bounded as well, because each old archive is named in the ledger's entry.
        full = len(together) == TOGETHER_MAX or size + one.size > bytes_wanted
        if together and (full or not _follows(together[-1], one)):
            if is_worth_it(together):
                yield together
            together, size = [], 0
        together.append(one)
        size += one.size
    if is_worth_it(together):
        yield together


def is_worth_it(together: Sequence[Small]) -> bool:
    """Whether the merged archive is at least half as large again as each of its parts."""
    sizes = [one.size for one in together]
    # A factor of 1.5 per merge bounds how often a record is rewritten.
    return len(sizes) > 1 and 2 * sum(sizes) >= 3 * max(sizes)


def _follows(before: Small, after: Small) -> bool:
    """Whether `after` continues `before` in the same table partition."""
    one, other = before.archive, after.archive
    return (one.partition, one.partition_value, one.end) == (
        other.partition,
        other.partition_value,
        other.base,
    )
