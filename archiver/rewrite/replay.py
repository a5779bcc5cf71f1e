"""Replay: decodes again what could not be decoded. Each archive with records that decode now is rewritten.

Owns the order of effects (`docs/protocols/replay.md`): archive → FILES_REWRITTEN → the table's swap →
REWRITE_SETTLED. Can be killed at any step; the next run resolves the outcome and continues. Works in this
process, file by file. A topic that cannot continue is reported and left out. Never deletes an object, and
never moves a watermark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass

from archiver.catalog.evidence import Gaps
from archiver.catalog.tables import Tables, TableView
from archiver.config.settings import Settings, TopicSettings
from archiver.ledger.archives import OldArchive
from archiver.ledger.fold import LedgerFold
from archiver.ledger.leadership import Leadership
from archiver.ledger.views import TopicLedger
from archiver.objects.paths import Granularity
from archiver.objects.store import ObjectStore
from archiver.publish.events import RoundEvents
from archiver.publish.scope import Scope, check_scope
from archiver.refine.archive_file import Conflict
from archiver.refine.column_stats import leaves
from archiver.refine.plan_writer import TopicRows
from archiver.refine.planner import known_gaps
from archiver.refine.prepare_topic import TopicSetup, TopicTable, TopicWork
from archiver.refine.task import RefineOptions, RefineTopic, WrittenFile
from archiver.rewrite.commit import Remade, Rewriter
from archiver.rewrite.replay_report import ReplayReport, TopicReplay
from archiver.rewrite.undecoded import DoubtedFile, Search, doubted_files, topic_table
from archiver.rewrite.verified_write import Probe, decode_again, open_source, probe
from archiver.runtime.errors import ArchiverError, Corrupted, Deposed, Halt
from archiver.runtime.ids import TopicId
from archiver.runtime.text import counted
from archiver.schema.codec import RecordCodec
from archiver.schema.evolution.state import TopicSchema, arrow_schema
from archiver.stream.rebuild import Layout
from intake.log.backlog import Backlog
from intake.log.fold import TopicState
from intake.log.sequencer import Sequencer

EXCHANGED_TOGETHER_MAX = 16
"""Archives that one snapshot replaces."""


@dataclass(frozen=True)
class _Made:
    """A rewritten archive that is in no log yet."""

    file: DoubtedFile
    written: WrittenFile
    probe: Probe

    @property
    def remade(self) -> Remade:
        """As the rewriter of the table needs it."""
        assert self.file.key is not None, "only archives are rewritten"
        return Remade((OldArchive(self.file.key, self.file.size),), (self.file.path,), self.written)


class ReplayRun:
    """A replay, on request."""

    def __init__(
        self,
        settings: Settings,
        cluster_id: str,
        objects: ObjectStore,
        sequencer: Sequencer,
        leadership: Leadership,
        tables: Callable[[str], Tables],
        setup: TopicSetup,
        events: RoundEvents,
        options: RefineOptions,
        rewriter: Rewriter,
        progress: Callable[[str], None],
    ) -> None:
        """`tables` opens a configured catalog; `progress` takes a line at a time."""
        self.cluster_id = cluster_id
        self.objects = objects
        self.events = events
        self.options = options
        self.rewriter = rewriter
        self._settings = settings
        self._sequencer = sequencer
        self._leadership = leadership
        self._leader = leadership.leader
        self._tables = tables
        self._setup = setup
        self._progress = progress
        self._layouts: dict[tuple[TopicId, int], Layout] = {}
        self._fresh = False
        """Whether this run has an epoch of its own, so that its keys are new (rule P2)."""
        self._files_left = 0

    def run(self, scope: Scope | None, files_max: int, *, dry_run: bool = False) -> ReplayReport:
        """Rewrite at most `files_max` archives of the topics in `scope` (None: all). With `dry_run` nothing
        is written.

        What concerns one topic only is in the report. Raises `LeaseHeld` if another process leads (a dry run
        needs no lease), and `Deposed` if a newer leader appears. Raises `NotFound` for an unknown topic or
        partition in `scope`. Raises `RetryLater` or `OutcomeUnknown` if a log cannot be reached.
        """
        self._files_left, self._fresh = files_max, False
        report = ReplayReport(dry_run)
        chosen = self._chosen(scope)
        if dry_run:
            # Read without the lease: nothing is written, so no epoch is needed.
            self._leader.refresh()
            report.epoch = self._leader.fold.epoch
            self._topics(report, chosen, scope)
            return report
        with self._leadership.turn("replaying"):
            report.epoch = self._leadership.lead()
            self._topics(report, chosen, scope)
            # A new epoch may have begun before the first archive.
            report.epoch = self._leader.epoch
        return report

    def _chosen(self, scope: Scope | None) -> list[TopicSettings]:
        topics = self._settings.topics
        if scope is not None:
            check_scope(scope, topics, self._sequencer.refresh().topics_by_name)
        found = [
            topic
            for topic in topics
            if topic.archive.kind != "none" and (scope is None or topic.name == scope[0])
        ]
        return sorted(found, key=lambda topic: topic.name)

    def _topics(self, report: ReplayReport, chosen: Sequence[TopicSettings], scope: Scope | None) -> None:
        self._sequencer.refresh()
        intake = self._sequencer.backlog()
        for settings in chosen:
            state = intake.topics_by_name.get(settings.name)
            # The intake log does not have the topic yet.
            if state is None:
                continue
            found = TopicReplay(settings.name)
            report.topics.append(found)
            try:
                self._topic(
                    settings,
                    state,
                    intake,
                    found,
                    None if scope is None else scope[1],
                    dry_run=report.dry_run,
                )
            # A newer leader ends the whole run, not this topic.
            except Deposed:
                raise
            except ArchiverError as error:
                found.failed(error)
            # Why something still does not decode stands in the report; as progress it would be there twice.
            if found.state != "idle" or (found.why and not found.left):
                self._progress(f"{found.topic}: {found.state}: {_summary(found)}")

    def _topic(
        self,
        settings: TopicSettings,
        state: TopicState,
        intake: Backlog,
        report: TopicReplay,
        partitions: frozenset[int] | None,
        *,
        dry_run: bool,
    ) -> None:
        ledger = self._leader.fold.topic(state.topic_id)
        if not _is_replayed(settings, ledger, report):
            return
        if dry_run:
            self._look(settings, state, ledger, report, partitions)
            return
        # The newest schema must be recorded, and its columns in the table, before a file has them.
        work = self._setup.prepare(settings, self._settings.archive_for(settings), state)
        if work.table is None:
            return
        _Topic(self, work, work.table, known_gaps(intake, state.topic_id), report, partitions).run()

    def preview(
        self,
        intake: Backlog,
        ledger: LedgerFold,
        topics: Sequence[TopicSettings],
        files_max: int,
        search: Search,
    ) -> ReplayReport:
        """A dry run of these topics by these states of both logs, within the bounds of `search`.

        Unlike `run` it moves no state that other threads use.
        """
        self._files_left = files_max
        report = ReplayReport(dry_run=True, epoch=ledger.epoch)
        for settings in sorted(topics, key=lambda topic: topic.name):
            state = intake.topics_by_name.get(settings.name)
            if state is None or settings.archive.kind == "none":
                continue
            if search.is_over:
                search.topics_left.append(settings.name)
                continue
            found = TopicReplay(settings.name)
            report.topics.append(found)
            known = ledger.topic(state.topic_id)
            try:
                if _is_replayed(settings, known, found):
                    self._look(settings, state, known, found, None, search)
            except ArchiverError as error:
                found.failed(error)
        return report

    def _look(
        self,
        settings: TopicSettings,
        state: TopicState,
        ledger: TopicLedger,
        report: TopicReplay,
        partitions: frozenset[int] | None,
        search: Search | None = None,
    ) -> None:
        """What a replay would do, by the schema that it would put in force."""
        tables, view = topic_table(settings, state, ledger, self.cluster_id, self.objects, self._tables)
        if view is None:
            return
        rows = self.rows(state, self._setup.newest_schema(settings, ledger, view), settings, view)
        for file, probed in self.candidates(tables, view, rows, report, partitions, search):
            # A file beyond the limit was found, so another run has work.
            if not self.room():
                report.more = True
                return
            self.note(report, file, probed, None)

    # --- What a replay and a dry run do

    def rows(
        self, state: TopicState, schema: TopicSchema, settings: TopicSettings, view: TableView
    ) -> TopicRows:
        """The layout of rewritten archives."""
        topic = RefineTopic(
            state.topic_id, state.name, schema, settings.archive.partition_by[0], view.spec_id
        )
        return TopicRows(topic, self.options)

    def candidates(
        self,
        tables: Tables,
        view: TableView,
        rows: TopicRows,
        report: TopicReplay,
        partitions: frozenset[int] | None,
        search: Search | None = None,
    ) -> Iterator[tuple[DoubtedFile, Probe]]:
        """Archives with something that decodes now and did not before; files that stay as they are go into
        the report.
        """
        report.schema_version = rows.topic.schema.version
        target = ReplayTarget(view.spec_id, rows.topic.granularity, partitions)
        files = doubted_files(self.objects, rows.topic.topic_id, tables, view)
        causes: Counter[tuple[str, str]] = Counter()
        for place, file in enumerate(files):
            # By the key alone, before the file is opened.
            if not is_requested(file, target):
                continue
            if search is not None and not search.take():
                report.more = True
                search.files_left[report.topic] = len(files) - place
                return
            try:
                probed = probe(self.objects, file, rows)
            except Corrupted as error:
                report.skip(file.name, str(error))
                continue
            # Probed first: a file that cannot be rewritten is reported only if it would have to be.
            why = refusal(file, target)
            if probed.decoded and why is not None:
                report.skip(file.name, why)
            if probed.decoded == 0 or why is not None:
                # What would decode but stays as it is counts as left.
                report.left += probed.left + (probed.decoded if why is not None else 0)
            else:
                yield file, probed
            # After the caller took the file: one beyond its limit is not in the report.
            causes.update(probed.causes)
            report.explain(causes)

    def note(self, report: TopicReplay, file: DoubtedFile, probed: Probe, key: str | None) -> None:
        """Report one archive that was rewritten, or would be."""
        assert file.archive is not None, "only archives are rewritten"
        report.state = "replayed"
        report.archives += 1
        report.decoded += probed.decoded
        report.left += probed.left
        report.ranges.append(
            {
                "partition": file.archive.partition,
                "base": file.archive.base,
                "end": file.archive.end,
                "archive": key,
            }
        )
        # In a dry run the note stands for the rewrite; else `_make` has counted it.
        if key is None:
            self.spend()

    def room(self) -> bool:
        """Whether another archive may be rewritten."""
        return self._files_left > 0

    def spend(self) -> None:
        """One archive was rewritten. Archives that stay as they are do not count: they would block those
        after them for ever.
        """
        self._files_left -= 1

    def own_epoch(self) -> int:
        """The epoch of the new keys: one of this run's own, so that no key was used before."""
        if not self._fresh:
            # Once per run, before its first archive, so a run without work adds no further one.
            self._leader.take_over()
            self._fresh = True
        return self._leader.epoch

    def layout(self, topic_id: TopicId, version: int) -> Layout:
        """How archives of that schema version are read."""
        known = self._layouts.get((topic_id, version))
        if known is None:
            entry = self._leader.fold.topic(topic_id).schemas.get(version)
            if entry is None:
                raise Halt(
                    f"the ledger has no schema version {version} of topic id {topic_id}; the control "
                    "log is older than the archives"
                )
            schema = TopicSchema.from_entry(entry)
            known = self._layouts[(topic_id, version)] = Layout(arrow_schema(schema), RecordCodec(schema))
        return known


class _Topic:
    """The replay of one topic, by its leader."""

    def __init__(
        self,
        run: ReplayRun,
        work: TopicWork,
        table: TopicTable,
        gaps: Gaps,
        report: TopicReplay,
        partitions: frozenset[int] | None,
    ) -> None:
        self._run = run
        self._work = work
        self._table = table
        self._gaps = gaps
        self._report = report
        self._partitions = partitions
        self._rewriter = run.rewriter(table.tables, table.target, gaps, "replay", report.skip)

    def run(self) -> None:
        """Resolve what earlier leaders left, then rewrite and replace, a few archives at a time."""
        # Rule T1, as a round: what an earlier leader left comes first.
        outcome = self._rewriter.committer.settle(self._table.target, self._gaps)
        if outcome is not None:
            self._run.events.table_committed(None, self._work, outcome)
        # Then earlier rewrites: one that has landed must not be made again.
        self._rewriter.settle()
        # Loaded after both, so that the files are chosen from their result.
        view = self._rewriter.sound()
        if view is None:
            return
        # Built once, because it compiles descriptors.
        rows = self._run.rows(self._work.state, self._work.schema, self._work.settings, view)
        made: list[_Made] = []
        for file, probed in self._run.candidates(
            self._table.tables, view, rows, self._report, self._partitions
        ):
            if not self._run.room():
                self._report.more = True
                break
            again = self._make(file, probed, rows)
            if again is not None:
                made.append(again)
            # A few at a time: a crash then loses little, and the ledger's entry stays small.
            if len(made) == EXCHANGED_TOGETHER_MAX:
                self._exchange(made, view)
                made = []
        if made:
            self._exchange(made, view)

    def _make(self, file: DoubtedFile, probed: Probe, rows: TopicRows) -> _Made | None:
        """Rewrite one archive; None, with the reason in the report, if that is not possible."""
        run = self._run
        assert file.archive is not None, "only archives are rewritten"
        try:
            source = open_source(run.objects, file, file.archive, run.cluster_id)
            # After the footer was checked: a damaged archive needs no epoch.
            epoch = run.own_epoch()
            written = decode_again(
                run.objects,
                source,
                run.layout,
                rows,
                run.cluster_id,
                run.options,
                epoch,
                probed.left,
            )
        except Corrupted as error:
            self._left(file, probed, str(error))
            return None
        if isinstance(written, Conflict):
            self._left(file, probed, written.why)
            return None
        # Counted when it is stored, even if the exchange fails: the work was done.
        self._run.spend()
        self._report.emptied = sorted(
            {*self._report.emptied, *self._emptied(source.footer.schema_version, rows)}
        )
        return _Made(file, written, probed)

    def _left(self, file: DoubtedFile, probed: Probe, why: str) -> None:
        """Report an archive that stays as it is."""
        self._report.skip(file.name, why)
        self._report.left += probed.left + probed.decoded

    def _emptied(self, version: int, rows: TopicRows) -> list[str]:
        """Columns that archives of that version have and the new ones do not."""
        kept = {leaf.field_id for leaf in rows.columns.leaves}
        return [
            leaf.path
            for leaf in leaves(self._run.layout(self._work.state.topic_id, version).columns)
            if leaf.field_id not in kept
        ]

    def _exchange(self, made: Sequence[_Made], view: TableView) -> None:
        """Replace the archives in the table, and count the outcome."""
        exchanged = self._rewriter.exchange([item.remade for item in made], view)
        if exchanged is None:
            return
        # A batch without a snapshot must not hide that of an earlier one.
        self._report.snapshot_id = exchanged.snapshot_id or self._report.snapshot_id
        for item in made:
            key = item.written.archive.key
            # What was given up stays undecoded in the table.
            if key in exchanged.replaced:
                self._run.note(self._report, item.file, item.probe, key)
            else:
                self._report.left += item.probe.left + item.probe.decoded


def _is_replayed(settings: TopicSettings, ledger: TopicLedger, report: TopicReplay) -> bool:
    """Whether a topic has what a replay rewrites; the report says why not."""
    if settings.archive.kind == "parquet":
        report.why = (
            "kind: parquet is not replayed: without a table two objects cannot be replaced in one step"
        )
        return False
    # Without it, the topic is not archived to a table yet.
    return ledger.table_uuid is not None


def _summary(report: TopicReplay) -> str:
    """One line for people."""
    counts = (
        f"{counted(report.decoded, 'key or value', 'keys and values')} decoded, {report.left:,} left as "
        "they were"
    )
    return counts if report.why is None or report.state == "replayed" else report.why


# --- Which files may be rewritten (pure)
@dataclass(frozen=True, slots=True)
class ReplayTarget:
    """What a file must match to be rewritten."""

    spec_id: int
    """Of the table's default partition spec."""
    granularity: Granularity
    partitions: Set[int] | None = None
    """The requested partitions; None: all."""


def is_requested(file: DoubtedFile, target: ReplayTarget) -> bool:
    """Whether the file is requested. A file of another writer may hold any partition."""
    return file.archive is None or target.partitions is None or file.archive.partition in target.partitions


def refusal(file: DoubtedFile, target: ReplayTarget) -> str | None:
    """Why a file stays as it is, regardless of its content; None if it may be rewritten."""
    if file.archive is None:
        return "another engine wrote it (a compaction); only archives are rewritten"
    if file.has_deletes:
        return (
            "the table has delete files of another engine, which name rows by their file; compact the "
            "table, which applies them"
        )
    # A rewritten file would get the present spec, under which its rows may be of several partitions.
    if file.spec_id != target.spec_id or file.archive.granularity != target.granularity:
        return "it was written for another partition spec than the table has now"
    return None
