"""Drives archiving: from what both logs say to rows in tables, top to bottom.

One call of `ArchiveRun.run` takes the lease, starts an epoch and resolves what an earlier leader left. Then
it carries out one round, or as many as are needed until nothing stable is left. Order of writes in a round:
archives → DATA_WRITTEN → the table's swap → COMMIT_TO_TABLE. While a catalog is unavailable the last two
wait: archives are written up to a bound (`catalog_outage.py`), and the first round after its return commits
them. A run can be killed at any step; the next run continues from the logs and the table. A topic that cannot
continue is reported and left out. A newer leader ends the run (`Deposed`).

Each round begins with a tick of the intake log. Before it, overdue transactions are aborted. Idempotent
producers are forgotten if they were idle for `intake.producer_idle_max`, and the least recently used ones if
there are more than `intake.producers_max`. None of this is done, and the run ends, while the clock is ahead
by more than `intake.clock_skew_max`.
"""

from __future__ import annotations

import logging
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from archiver.catalog.commit import CommitOutcome, Committer
from archiver.catalog.evidence import Gaps
from archiver.catalog.tables import Tables
from archiver.config.settings import Settings, TopicSettings
from archiver.ledger.bridge import Written
from archiver.ledger.leader import Leader
from archiver.ledger.leadership import Leadership
from archiver.objects.location import StorePlace
from archiver.publish.events import RoundEvents
from archiver.publish.progress import positions, troubles, whole_backlog
from archiver.publish.report import ArchiveReport, CommitEnd, CommitTry, RoundStep, TopicReport, commit_end
from archiver.publish.scope import Scope, check_scope
from archiver.refine.catalog_outage import limit_plans, outage_text, pending_capacity
from archiver.refine.plan import Plan, PlanKey, bundle
from archiver.refine.planner import (
    Planned,
    RoundLimits,
    choose_plans,
    has_work,
    known_gaps,
    paths_used,
    valid_through_us,
)
from archiver.refine.prepare_topic import KnownIds, TopicSetup, TopicWork, ends
from archiver.refine.task import PlanResult, RefineJob, RefineOptions, RefineTopic, gaps_archive
from archiver.refine.triggers import PollState
from archiver.runtime.clock import Clock
from archiver.runtime.errors import (
    ArchiverError,
    CatalogAway,
    ConfigInvalid,
    Deposed,
    Halt,
    InvalidInput,
    OutcomeUnknown,
    RetryLater,
    TopicHalted,
)
from archiver.runtime.ids import TopicId, TopicPartition
from archiver.runtime.redaction import MESSAGE_MAX, excerpt
from archiver.runtime.text import counted
from archiver.schema.protobuf.error_causes import cause_counts
from intake.log.backlog import Backlog
from intake.log.sequencer import Sequencer
from intake.write.accept_clock import AcceptClock

_log = logging.getLogger(__name__)

FRUITLESS_ROUNDS_MAX = 3
"""Rounds in a row that may pass without anything written or committed: files that can no longer enter a table
are killed and archived again."""

Refine = Callable[[RefineJob], Sequence[PlanResult]]
"""Carries out a job; results in any order, one per plan."""


@dataclass(eq=False)
class ArchiveRun:
    """Archiving, on request."""

    settings: Settings
    cluster_id: str
    sequencer: Sequencer
    leadership: Leadership
    setup: TopicSetup
    publisher: RoundEvents
    committer: Callable[[Tables], Committer]
    refine: Refine
    options: RefineOptions
    cores: Callable[[], int]
    """How many tasks run at a time; called when there is work, because the answer may start Spark."""
    memory_bytes: int
    clock: Clock
    progress: Callable[[str], None]
    times: AcceptClock | None = None
    """The process's accept clock; None: a new one that begins with the run."""

    def __post_init__(self) -> None:
        intake = self.settings.intake
        self._times = self.times or AcceptClock(self.clock, intake.clock_skew_max, intake.clock_settle)
        self._report = ArchiveReport()
        self._halted: set[str] = set()
        self._broken: set[TopicPartition] = set()
        self._known_ids = KnownIds()
        self._outages: dict[str, CatalogAway] = {}

    @property
    def leader(self) -> Leader:
        """The leader of the control log."""
        return self.leadership.leader

    @property
    def report(self) -> ArchiveReport:
        """What the newest run has done so far, also when it raised."""
        return self._report

    def run(
        self, scope: Scope | None = None, *, everything: bool = False, polls: PollState | None = None
    ) -> ArchiveReport:
        """One round of what is due, or with `everything` rounds until nothing stable is left.

        With `polls` (a daemon's), only topics are prepared that have due or pending work, and those that were
        not ready when they were last prepared. If there is none, nothing is written: no tick, and no epoch.
        What concerns one topic only is in the report. Raises `LeaseHeld` if another process archives, and
        `Deposed` if a newer leader appears. Raises `NotFound` for an unknown topic or partition in `scope`.
        Raises `RetryLater` or `OutcomeUnknown` if a log cannot be reached, and `RetryLater` if the clock runs
        ahead.
        """
        self._report = ArchiveReport()
        # The report, these sets and the outages are of one run: the next one tries every topic again.
        self._halted.clear()
        self._broken.clear()
        self._outages.clear()
        if scope is not None:
            check_scope(scope, self.settings.topics, self.sequencer.refresh().topics_by_name)
        with self.leadership.turn("archiving"):
            with self._timed("look"):
                chosen = self._choose(scope, polls)
            # Ends before `lead`, so that an idle daemon does not add an epoch with every tick.
            if not chosen and polls is not None:
                self._report.epoch = self.leader.fold.epoch
                return self._report
            # Preparing appends schemas and alters tables, so it needs the epoch.
            self._report.epoch = self.leadership.lead()
            with self._timed("prepare"):
                works = self._prepare(chosen)
                for work in works:
                    self._guard(work, partial(self._resolve_inherited, work))
            self._rounds(works, self._limits(scope, everything))
            self._report_waiting(works, chosen)
        if polls is not None:
            for item in self._report.topics.values():
                polls.ended(item.topic, item.state)
        return self._report

    @contextmanager
    def _timed(self, step: RoundStep) -> Iterator[None]:
        """Measures the time of a step."""
        began_s = self.clock.monotonic_s()
        try:
            yield
        finally:
            self._report.took(step, self.clock.monotonic_s() - began_s)

    def _rounds(self, works: Sequence[TopicWork], limits: RoundLimits) -> None:
        """One round, or as many as there is work for."""
        fruitless = 0
        while fruitless <= FRUITLESS_ROUNDS_MAX:
            # Progress is measured, because refused archives are made again and a loop would never end.
            before = self._reached(works)
            if not self._round(works, limits) or not limits.everything:
                return
            fruitless = 0 if self._reached(works) > before else fruitless + 1
        for work in works:
            if self.leader.fold.topic(work.state.topic_id).killed:
                self._report.of(work.name).defer(
                    "archives were made that could not enter the table, several times over; run it again"
                )

    def _report_waiting(self, works: Sequence[TopicWork], chosen: Sequence[TopicSettings]) -> None:
        """Report how much of each chosen topic is left, what holds it back, and for an idle topic why."""
        intake, now_us = self.sequencer.backlog(), self.clock.now_us()
        for work in works:
            report = self._report.of(work.name)
            found = positions(intake, self.leader.fold, work.state.topic_id)
            for trouble in troubles(work.name, found):
                report.halt(trouble)
            report.waiting, _ = whole_backlog(found)
            self._report_outage(work, report)
            if report.waiting and report.state == "idle":
                quiet, delay = work.archive.idle_max, work.archive.complete_delay_max
                report.why = (
                    f"not due yet: after {quiet:g} s without a new record, or {delay:g} s after the first; "
                    "--all archives at once"
                )
            report.hold(
                {position.partition: position.held for position in found if position.held is not None}, now_us
            )
            report.add_notes()
        # Topics that could not be prepared.
        for name in {topic.name for topic in chosen} - {work.name for work in works}:
            state = intake.topics_by_name.get(name)
            if state is not None:
                self._report.of(name).waiting, _ = whole_backlog(
                    positions(intake, self.leader.fold, state.topic_id)
                )

    def _report_outage(self, work: TopicWork, report: TopicReport) -> None:
        """Report what is pending for a table whose catalog is unavailable; nothing for a topic that was
        committed before.
        """
        away, ledger = self._outage(work), self.leader.fold.topic(work.state.topic_id)
        if (
            work.table is not None
            and away is not None
            and (work.table.away is not None or ledger.pending_by_id)
        ):
            report.defer(outage_text(ledger, work.archive.pending_files_max, away))

    def _limits(self, scope: Scope | None, everything: bool) -> RoundLimits:
        return RoundLimits(
            memory_bytes=self.memory_bytes,
            round_bytes_max=self.settings.archive.round_bytes_max,
            everything=everything,
            partitions=None if scope is None else scope[1],
        )

    def _worth_preparing(self, topic: TopicSettings, polls: PollState, intake: Backlog) -> bool:
        """Whether a daemon has something to do for the topic; False until its poll is due."""
        now_us, archive = self.clock.now_us(), self.settings.archive_for(topic)
        if not polls.due(topic.name, now_us, archive.start_delay_max):
            return False
        # Counted as polled even without work: the delay bounds how often idle topics cost anything.
        polls.polled(topic.name, now_us)
        state = intake.topics_by_name.get(topic.name)
        return (
            # A topic that the intake log does not have yet must be declared.
            state is None
            or not polls.was_ready(topic.name)
            or has_work(state, archive, intake, self.leader.fold, now_us)
        )

    def _choose(self, scope: Scope | None, polls: PollState | None) -> list[TopicSettings]:
        """The archived topics in scope, ordered by name; in a daemon's round those with work."""
        topics = [topic for topic in self.settings.topics if scope is None or topic.name == scope[0]]
        topics = sorted(
            (topic for topic in topics if topic.archive.kind != "none"), key=lambda topic: topic.name
        )
        if polls is None:
            return topics
        # Read without an epoch: whether there is work decides whether this process leads.
        self.leader.refresh()
        intake = self.sequencer.backlog()  # once for all topics: each call costs a request to the log
        return [topic for topic in topics if self._worth_preparing(topic, polls, intake)]

    def _prepare(self, chosen: Sequence[TopicSettings]) -> list[TopicWork]:
        """The topics that can be archived, prepared."""
        self.sequencer.refresh()
        works: list[TopicWork] = []
        for settings in chosen:
            self._report.of(settings.name)
            try:
                state = self.sequencer.declare_topic(settings.name, settings.partitions)
                # Before the schemas are fetched: only earlier records can be judged by their ids
                # (`KnownIds`).
                reached = ends(self.sequencer.backlog(), state.topic_id, state.partitions)
                work = self.setup.prepare(settings, self.settings.archive_for(settings), state, self._outages)
                self._known_ids.prepared(work, reached)
                self._report.of(settings.name).notes = [
                    one.note for one in work.fetched if one is not None and one.note is not None
                ]
                works.append(work)
            # A newer leader ends the whole run, not this topic.
            except Deposed:
                raise
            except ArchiverError as error:
                self._report_error(settings.name, error)
            finally:
                self._note_change(settings.name)
        return works

    def _note_change(self, topic: str) -> None:
        """Report a change of the topic's schema, also if the topic could not be prepared after it."""
        change = self.setup.take_change(topic)
        if change is not None:
            self._report.of(topic).schema_change = change.to_json()

    def _guard(self, work: TopicWork, step: Callable[[], None]) -> None:
        """Carry out a step that concerns one topic."""
        try:
            step()
        except Deposed:
            raise
        except ArchiverError as error:
            self._report_error(work.name, error)

    def _report_error(self, topic: str, error: ArchiverError) -> None:
        """Report an error of one topic, which is left out for the rest of the run."""
        self._halted.add(topic)
        report = self._report.of(topic)
        report.misconfigured |= isinstance(error, ConfigInvalid)
        if isinstance(error, TopicHalted):
            report.halt(error.why)
        elif isinstance(error, Halt | InvalidInput):
            report.halt(str(error))
        else:
            report.defer(str(error))
        self.progress(f"{topic}: {report.state}: {report.why}")

    def _resolve_inherited(self, work: TopicWork) -> None:
        """Rule T1: before the first plan of an epoch, record which inherited files are in the table and which
        never can be.
        """
        if work.table is None or self._outage(work) is not None:
            return  # without it more may be planned than is needed, which is harmless
        outcome = self.committer(work.table.tables).settle(work.table.target, self._gaps(work))
        if outcome is not None:
            self._report_outcome(work, outcome)
            self.publisher.table_committed(None, work, outcome)

    def _gaps(self, work: TopicWork) -> Gaps:
        return known_gaps(self.sequencer.backlog(), work.state.topic_id)

    def _report_outcome(self, work: TopicWork, outcome: CommitOutcome) -> None:
        for key, why in outcome.killed:
            self.progress(f"{work.name}: {key} cannot enter the table any more and is archived again: {why}")
        for finding in outcome.findings:
            self.progress(f"{work.name}: {finding}")

    # --- One round

    def _round(self, works: Sequence[TopicWork], limits: RoundLimits) -> bool:
        """One round; False if there was nothing to do."""
        able = [work for work in works if work.name not in self._halted]
        tick_us = self._tick()
        # Rule L4: also a turn in which nothing is due notices a newer leader.
        self.leader.check()
        # After the tick: `valid_through_us` needs a view that has read at least that far.
        intake = self.sequencer.backlog()
        with self._timed("plan"):
            planned = self._plan(able, intake, limits)
        inherited = [
            work
            for work in able
            if self._outage(work) is None and self.leader.fold.topic(work.state.topic_id).pending_by_id
        ]
        if not planned.plans and not inherited:
            return False
        # Ask before the round is in the ledger: if Spark cannot start, a daemon would append a new round with
        # every tick.
        cores = self.cores() if any(not plan.gap_only for plan in planned.plans) else 0
        self._report.rounds += 1
        commit_id = self.publisher.round_started()
        with self._timed("refine"):
            written = self._refine(able, planned.plans, cores)
        # Pending files of an earlier round or leader are committed together with the new ones.
        affected = {plan.topic_id for plan in planned.plans} | {work.state.topic_id for work in inherited}
        due = [work for work in able if work.state.topic_id in affected]
        with self._timed("write"):
            for work in due:
                files = written.get(work.state.topic_id, [])
                if files:
                    self._guard(work, partial(self.publisher.files_written, commit_id, work, files))
            # After the last DATA_WRITTEN, because it states what the round has reached.
            self.publisher.round_written(commit_id, due)
        with self._timed("commit"):
            for work in due:
                # Without a catalog the archives stay pending; the first round after its return commits them.
                if work.table is None or self._outage(work) is not None:
                    self._count(work, None)
                else:
                    self._guard(work, partial(self._commit, commit_id, work, intake, tick_us))
        # Also if a table did not commit: its archives stay pending, and a later round offers them.
        self.publisher.round_settled(commit_id, due)
        return True

    def _reached(self, works: Sequence[TopicWork]) -> int:
        """A number that grows with everything written or committed."""
        topics = [(work, self.leader.fold.topic(work.state.topic_id)) for work in works]
        return sum(
            topic.planned_to(p) + topic.watermark(p)
            for work, topic in topics
            for p in range(work.state.partitions)
        )

    def _tick(self) -> int:
        """Read the intake log to its tail and return its newest tick. A new tick is appended unless there was
        one within `archive.tick`.

        Before it, overdue transactions are aborted and idle producers forgotten. Raises `RetryLater`, and
        does none of this, while the clock is ahead by more than `intake.clock_skew_max`.
        """
        fold = self.sequencer.refresh()
        known_us, now_us = fold.tick_us, self._now_us(fold.newest_us)
        # Transactions, producers and ticks are permanent in the log, hence the check of the clock before.
        for ended in self.sequencer.end_overdue(now_us):
            text = (
                f"transaction {ended.transactional_id} of producer {ended.producer_id} (epoch "
                f"{ended.epoch}) was open for "
                f"{(now_us - ended.started_us) / 1e6:,.0f} s, longer than it may be: aborted"
            )
            _log.warning("%s", text)
            self.progress(text)
        kept = self.settings.intake
        self.sequencer.forget_producers(
            now_us - round(kept.producer_idle_max * 1e6),
            kept.producers_max,
            now_us - round(min(kept.producer_idle_min, kept.producer_idle_max) * 1e6),
        )
        # A tick in the future does not count as recent: the clock was set back.
        if 0 <= now_us - known_us < self.settings.archive.tick * 1e6:
            return known_us
        return self.sequencer.tick(now_us)

    def _now_us(self, log_newest_us: int) -> int:
        """The present time, if it may be written to the log."""
        try:
            return self._times.accept_us(log_newest_us)
        except RetryLater as error:
            raise RetryLater(
                "archiving ends here: a clock that may be wrong puts no time into the intake log, "
                "aborts no transaction and forgets no "
                f"producer: {error}"
            ) from error

    def _plan(self, works: Sequence[TopicWork], intake: Backlog, limits: RoundLimits) -> Planned:
        """Plans of the round; takes a new epoch first where a key would be used twice (rule P2)."""
        now_us = self.clock.now_us()
        planned = choose_plans(
            works, intake, self.leader.fold, self.leader.fold.epoch, now_us, limits, self._broken
        )
        # The epoch is part of every plan, so they are chosen again under the new one.
        if paths_used(self.leader.fold, planned.plans):
            self._report.epoch = self.leader.take_over()
            planned = choose_plans(
                works, intake, self.leader.fold, self.leader.fold.epoch, now_us, limits, self._broken
            )
        for halted in planned.halted:
            self._report_error(halted.topic, halted)
        # Limited after planning: the bound counts archives, and only plans say how many there will be.
        away = [work for work in works if self._outage(work) is not None]
        rooms = {
            work.name: pending_capacity(
                self.leader.fold.topic(work.state.topic_id), work.archive.pending_files_max
            )
            for work in away
        }
        return replace(planned, plans=limit_plans(planned.plans, rooms)) if rooms else planned

    def _outage(self, work: TopicWork) -> str | None:
        """Why the topic's catalog could not be asked in this run; None if it answered so far, and for topics
        without a table.
        """
        if work.table is None or work.table.away is not None:
            return None if work.table is None else work.table.away
        # The topic was prepared before another one found the catalog to be unavailable.
        found = self._outages.get(work.table.catalog)
        return None if found is None else str(found)

    def _refine(
        self, works: Sequence[TopicWork], plans: Sequence[Plan], cores: int
    ) -> dict[TopicId, list[Written]]:
        """Refine the plans. Per topic: the files that continue their partition's chain, in offset order.
        Plans of gaps need no worker.
        """
        return self._chain(
            plans, self._refine_records(works, [plan for plan in plans if not plan.gap_only], cores)
        )

    def _refine_records(
        self, works: Sequence[TopicWork], plans: Sequence[Plan], cores: int
    ) -> dict[PlanKey, PlanResult]:
        if not plans:
            return {}
        bundles = bundle(plans, cores, self.settings.spark.task_bytes, self.options.open_writers_max)
        topics = {work.state.topic_id: self._refine_topic(work) for work in works}
        rows = sum(plan.rows for plan in plans)
        self.progress(
            f"refining {counted(rows, 'record')} of "
            f"{counted(len({plan.topic_id for plan in plans}), 'topic')}: "
            f"{counted(len(plans), 'plan')} in {counted(len(bundles), 'task')}"
        )
        job = RefineJob(
            self.cluster_id,
            StorePlace.of(self.settings.data),
            self.leader.fold.epoch,
            topics,
            bundles,
            self.options,
        )
        return {result.plan_key: result for result in self.refine(job)}

    def _refine_topic(self, work: TopicWork) -> RefineTopic:
        topic_id = work.state.topic_id
        judged_to = self._known_ids.judged_to(topic_id, range(work.state.partitions))
        return RefineTopic(
            topic_id, work.name, work.schema, work.granularity, work.spec.spec_id, judged_to=judged_to
        )

    def _chain(
        self, plans: Sequence[Plan], results: dict[PlanKey, PlanResult]
    ) -> dict[TopicId, list[Written]]:
        """Drop the files after a plan that failed: they would not begin where the partition's archives
        end.
        """
        written: dict[TopicId, list[Written]] = defaultdict(list)
        # In offset order, so that a failed plan comes before those that continue it.
        for plan in sorted(plans, key=lambda plan: (plan.topic_id, plan.partition, plan.base)):
            tp = (plan.topic_id, plan.partition)
            result = results.get(plan.plan_key)
            report = self._report.of(plan.topic)
            # A file after a failed plan would leave a hole before it.
            if tp in self._broken:
                continue
            if plan.gap_only:
                # The ledger entry alone moves the watermark over gaps.
                _take(report, written[plan.topic_id], [(gaps_archive(plan), None)])
            elif result is None:
                self._broken.add(tp)
                report.defer(
                    f"partition {plan.partition}: the refinement of [{plan.base}, {plan.end}) gave no "
                    "answer; run it again"
                )
            elif result.error is not None:
                # The partition is left out of the run: a later round would plan the same range again.
                self._broken.add(tp)
                why = f"partition {plan.partition}, offsets {plan.base} to {plan.end - 1}: {result.why}"
                if result.error == "retry":
                    report.defer(why)
                else:
                    report.halt(why)
                self.progress(f"{plan.topic}: {report.state}: {why}")
            else:
                _take(
                    report, written[plan.topic_id], [(item.archive, item.data_file) for item in result.files]
                )
                for item in result.files:
                    report.not_decoded(cause_counts(item.decode_errors))
        return written

    def _commit(self, commit_id: bytes, work: TopicWork, intake: Backlog, tick_us: int) -> None:
        """Commit the pending files of one topic to its table, and record the table's answer."""
        table = work.table
        assert table is not None, "only topics with a table are committed"
        ledger = self.leader.fold.topic(work.state.topic_id)
        # Where the watermarks will be if every pending archive is committed.
        reached = {partition: ledger.planned_to(partition) for partition in range(work.state.partitions)}
        through_us = valid_through_us(work, intake, reached, tick_us)
        committer, began_s = self.committer(table.tables), self.clock.monotonic_s()
        # The value for errors outside of the error tree, such as a broken invariant.
        end: CommitEnd = "halted"
        try:
            outcome = committer.commit(
                table.target, uuid.UUID(bytes=commit_id), through_us, gaps=self._gaps(work)
            )
            end = "committed" if outcome is not None and outcome.committed else "nothing"
        except ArchiverError as error:
            end = commit_end(error)
            # Spares the other tables of this catalog the wait for the same timeout.
            if isinstance(error, CatalogAway):
                self._outages[table.catalog] = error
            elif isinstance(error, OutcomeUnknown) and error.catalog_away:
                self._outages[table.catalog] = CatalogAway(str(error))
            raise
        except AssertionError:
            raise  # a broken invariant is a defect, not trouble of one table
        except Exception as error:
            # An error that the adapter does not know concerns this table only: the round continues. The
            # request may have been sent.
            end = "unknown"
            _log.exception("the commit of a table ended in an unexpected error", extra={"topic": work.name})
            what = f"{type(error).__name__}: {excerpt(str(error), MESSAGE_MAX)}"
            raise OutcomeUnknown(f"the commit may or may not have been applied: {what}") from error
        finally:
            # Recorded for every outcome, because metrics count attempts and durations.
            self._report.committing(
                CommitTry(work.name, self.clock.monotonic_s() - began_s, committer.attempts, end)
            )
        if outcome is not None:
            self._report_outcome(work, outcome)
            # After the catalog: in the other order a crash could plan beyond rows that are in no table.
            self.publisher.table_committed(commit_id, work, outcome)
            self._count(work, outcome.snapshot_id)

    def _count(self, work: TopicWork, snapshot_id: int | None) -> None:
        report = self._report.of(work.name)
        # A topic that was halted or deferred in this run keeps that state.
        if report.state == "idle":
            report.state = "archived"
        report.snapshot_id = snapshot_id
        self.progress(
            f"{work.name}: {counted(report.rows, 'record')} in {counted(report.archives, 'archive')}"
            + (
                f", {counted(report.gaps, 'offset')} of aborted transactions passed over"
                if report.gaps
                else ""
            )
            + (f", snapshot {snapshot_id}" if snapshot_id else "")
        )


def _take(report: TopicReport, written: list[Written], files: Sequence[Written]) -> None:
    """Add files to the chain, and their sums to the report."""
    written.extend(files)
    for archive, _ in files:
        report.archives += not archive.gap_only
        report.gaps += sum(high - low for low, high in archive.gaps)
        report.rows += archive.rows
        report.raw_bytes += archive.raw_bytes
        report.stored_bytes += archive.size
