"""Work of the daemon, scheduled or requested by commands through the port, and its one-line summaries.

A command through the port does, prints and returns the same as without a daemon. It uses the leadership and
the journal of the jobs.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from archiver.app.application import Application
from archiver.config.settings import Settings
from archiver.daemon.cycles import Cycles, Summary
from archiver.daemon.status_poller import StatusPoller
from archiver.publish.report import ArchiveReport, CommitTry, TopicReport
from archiver.publish.scope import parse_scope
from archiver.refine.triggers import PollState
from archiver.rewrite.replay_report import FILES_MAX, ReplayReport
from archiver.runtime.clock import Clock
from archiver.runtime.errors import (
    ArchiverError,
    Deposed,
    InvalidInput,
    LeaseHeld,
    NotFound,
    RetryLater,
    no_partition,
)
from archiver.runtime.exit_codes import FINE, UNKNOWN, USAGE, WRONG, Done
from archiver.runtime.redaction import excerpt
from archiver.runtime.text import counted
from archiver.status.journal import Journal, Outcome
from archiver.status.metric_registry import Numbers
from reconcile.repair.run import ReconcileReport
from reconcile.vacuum.report import CleanReport

if TYPE_CHECKING:
    from archiver.kafka.service import KafkaService

_OUTCOMES: Mapping[int, Outcome] = {FINE: "fine", WRONG: "wrong", UNKNOWN: "untold", USAGE: "wrong"}
_NAMED_MAX = 3
"""Maximum of topics with problems in a line; the document has all."""


# --- Summaries: one line for the log, one document for the journal
def summarize_archiving(report: ArchiveReport, topics: Sequence[TopicReport]) -> Summary:
    """Summary of a round, with the newest report of every topic, also of those that this round did not
    check.
    """
    done = [item for item in report.topics.values() if item.archives or item.gaps]
    halted = [item for item in topics if item.state == "halted"]
    deferred = [item for item in topics if item.state == "deferred"]
    parts = [_archived(done, report)] if done else []
    parts += [
        f"{kind}: {_named(items)}" for kind, items in (("halted", halted), ("deferred", deferred)) if items
    ]
    noted = [item for item in topics if item.notes]
    parts += [f"{item.topic}: {'; '.join(dict.fromkeys(item.notes))}" for item in noted[:_NAMED_MAX]]
    parts += [f"and so of {len(noted) - _NAMED_MAX} more"] if len(noted) > _NAMED_MAX else []
    # A halted topic needs an operator; a deferred one is tried again by the next round.
    outcome: Outcome = "wrong" if halted else "untold" if deferred else "fine"
    document = report.to_json() | {"topics": [dict(vars(item)) for item in topics]}
    # A round of a new leader may only resolve what its predecessor left in the ledger.
    committed_only = report.rounds > 0 and not done
    return Summary(
        outcome,
        "; ".join(parts) or ("pending archives are resolved" if committed_only else "nothing was due"),
        document,
        # Nothing was due: the tick runs every few seconds, so this is logged at `DEBUG`.
        idle=not report.rounds,
    )


def _archived(done: Sequence[TopicReport], report: ArchiveReport) -> str:
    rows, archives, stored = (
        sum(getattr(item, name) for item in done) for name in ("rows", "archives", "stored_bytes")
    )
    gaps = sum(item.gaps for item in done)
    waiting = sum(item.waiting or 0 for item in report.topics.values())
    line = (
        f"{counted(rows, 'record')} of {counted(len(done), 'topic')} archived in "
        f"{counted(archives, 'file')} ({stored / 1e6:,.3f} MB)"
    )
    line += f", {counted(gaps, 'offset')} of aborted transactions skipped" if gaps else ""
    return line + (f", {counted(waiting, 'record waits', 'records wait')}" if waiting else "")


def summarize_cleaning(report: CleanReport) -> Summary:
    """Summary of a run of the vacuum."""
    deleted = counted(len(report.deleted), "object")
    parts = [
        (
            f"{deleted} deleted, {len(report.condemned):,} marked for deletion, "
            f"{report.waiting:,} marked and still there"
        )
    ]
    parts += [
        f"nothing of {topic['topic']} is deleted: {topic['why']}"
        for topic in report.topics
        if topic["doubted"]
    ]
    parts += [
        f"{one.topic}: {counted(one.archives, 'archive')} merged into {one.merged:,}"
        for one in report.compacted
        if one.merged
    ]
    parts += [f"{one.topic} is not compacted: {one.why}" for one in report.compacted if one.why]
    parts += [f"finding: {finding}" for finding in report.findings]
    parts += [f"not finished: {report.error}"] if report.error is not None else []
    return Summary(_OUTCOMES[report.exit_code], "; ".join(parts), report.to_json())


def summarize_reconciling(report: ReconcileReport) -> Summary:
    """Summary of a run of the reconciler. Findings below the severity error leave the outcome fine."""
    fixed, left = sum(done for _, done in report.findings), report.left
    parts = [
        f"{counted(len(left), 'finding')} in {counted(report.topics, 'topic')}"
        + (f", {fixed:,} fixed" if fixed else "")
    ]
    parts += [
        f"{item.id}{'' if item.topic is None else f' ({item.topic})'}: {item.what}"
        for item in left[:_NAMED_MAX]
    ]
    parts += [f"{len(left) - _NAMED_MAX} more"] if len(left) > _NAMED_MAX else []
    parts += [
        f"{topic} could not be checked: {why}" for topic, why in list(report.unread.items())[:_NAMED_MAX]
    ]
    parts += [f"not finished: {report.error}"] if report.error is not None else []
    outcome: Outcome = (
        "untold"
        # Unknown first: topics that could not be read may have findings of any severity.
        if report.exit_code == UNKNOWN
        else "wrong"
        if any(item.severity == "error" for item in left)
        else "fine"
    )
    return Summary(outcome, "; ".join(parts), report.to_json())


_VERDICTS: Mapping[str, Outcome] = {"valid": "fine", "invalid": "wrong", "unknown": "untold"}


def summarize_audit(document: dict[str, Any]) -> Summary:
    """Summary of an audit."""
    verdict = str(document["verdict"])
    partitions = document["partitions"]
    bad = [item for item in partitions if item["verdict"] != "valid"]
    line = (
        f"{verdict}: {counted(len(partitions), 'partition')}, "
        f"{counted(sum(item['rows'] or 0 for item in partitions), 'row')}"
    )
    named = [
        f"{item['topic']}:{item['partition']} is {item['verdict']}: {item['why']}"
        for item in bad[:_NAMED_MAX]
    ]
    more = [f"{len(bad) - _NAMED_MAX} more"] if len(bad) > _NAMED_MAX else []
    return Summary(_VERDICTS[verdict], "; ".join([line, *named, *more]), document)


def summarize_replay(report: ReplayReport) -> Summary:
    """Summary of a replay."""
    made, decoded = sum(item.archives for item in report.topics), sum(item.decoded for item in report.topics)
    line = (
        f"{counted(made, 'archive')} rewritten, {counted(decoded, 'key or value', 'keys and values')} decoded"
    )
    bad = [f"{item.topic}: {item.why}" for item in report.topics if item.state in ("halted", "deferred")][
        :_NAMED_MAX
    ]
    return Summary(_OUTCOMES[report.exit_code], "; ".join([line, *bad]), report.to_json())


def _named(items: Sequence[TopicReport]) -> str:
    named = [f"{item.topic} ({item.why})" for item in items[:_NAMED_MAX]]
    return ", ".join([*named, *([f"{len(items) - _NAMED_MAX} more"] if len(items) > _NAMED_MAX else [])])


# --- Scheduled work
RUNS_MAX = 100
"""Maximum of cleaning runs in a row, each of which ended at its limit."""


_FAILED = frozenset({"retry", "unknown", "halted"})
"""Results of a commit after which a reconciliation checks it."""


class Backoff:
    """Exponential backoff for reconcile retries. Safe for several threads.

    The first wait is `first_s`. It doubles with each failure that follows a retry, up to `longest_s`. A
    success resets it.
    """

    def __init__(self, clock: Clock, first_s: Callable[[], float], longest_s: Callable[[], float]) -> None:
        """The waits are functions, because a reload may change the settings."""
        self._clock = clock
        self._first_s = first_s
        self._longest_s = longest_s
        self._lock = threading.Lock()
        self._waited_s: float | None = None
        self._due_s: float | None = None

    def failed(self) -> None:
        """A failure. One retry is due after the wait; further failures until then change nothing."""
        with self._lock:
            # Failures before the retry are the same problem: they neither postpone it nor double its wait.
            if self._due_s is None:
                self._waited_s = min(
                    self._first_s() if self._waited_s is None else 2 * self._waited_s, self._longest_s()
                )
                self._due_s = self._clock.monotonic_s() + self._waited_s

    def succeeded(self) -> None:
        """A success: no retry is due, and the next failure waits `first_s`."""
        with self._lock:
            # The waited time goes too, so the next failure begins with the first wait.
            self._waited_s = self._due_s = None

    def note_commits(self, tried: Sequence[CommitTry], *, scoped: bool = False) -> None:
        """Record the commits of a round: any failed one is a failure.

        `scoped`: the round was for one topic, whose success proves nothing about the others.
        """
        if any(commit.end in _FAILED for commit in tried):
            self.failed()
        # A round without a commit proves nothing about the catalog, so it does not reset the backoff.
        elif tried and not scoped:
            self.succeeded()

    def due(self) -> bool:
        """Whether a retry is due; true once per retry. Never waits."""
        with self._lock:
            if self._due_s is None or self._clock.monotonic_s() < self._due_s:
                return False
            # Cleared before the retry: its failure must be able to schedule the next one.
            self._due_s = None
            return True


class Upkeep:
    """Reconciling, cleaning and auditing on schedule."""

    def __init__(
        self,
        application: Callable[[], Application],
        cycles: Cycles,
        numbers: Numbers,
        poller: StatusPoller,
        backoff: Backoff,
        reading_ledger: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """`application` is called at the start of each job. `reading_ledger` is held while a thread other
        than the leader's reads the ledger.
        """
        self._application = application
        self._cycles = cycles
        self._numbers = numbers
        self._poller = poller
        self._backoff = backoff
        self._reading_ledger = reading_ledger
        self._more = False
        """The newest cleaning run ended at a limit and made progress."""

    def clean_up(self) -> None:
        """Reconcile, then clean; a run that ended at a limit is followed by another."""
        # The vacuum deletes nothing of a topic in doubt, so doubts are resolved first where that is safe.
        self._cycles.run("reconcile", self.reconcile)
        # Each run takes a turn of its own, so archiving rounds can run in between.
        for _ in range(RUNS_MAX):
            # A run that raises must not repeat the answer of the one before it.
            self._more = False
            self._cycles.run("cleanup", self._clean)
            if not self._more:
                break

    def reconcile(self) -> Summary:
        """Compare the views and apply safe repairs."""
        application = self._application()
        try:
            report = application.maintenance.reconciling(_log_progress).run("safe")
        except ArchiverError:
            self._backoff.failed()
            raise
        self._numbers.reconciled(report)
        # A safe finding that is left means that its repair failed or was refused for now.
        if report.error is not None or any(finding.safe for finding in report.left):
            self._backoff.failed()
        return summarize_reconciling(report)

    def audit(self) -> Summary:
        """Fast audit of all topics."""
        application = self._application()
        summary = summarize_audit(application.maintenance.audit(None, deep=False, progress=_log_progress))
        # This thread is not the leader's; the poller may read the ledger at the same time.
        with self._reading_ledger():
            self._poller.set_oldest_required(application.oldest_required())
        return summary

    def deep_audit(self) -> Summary:
        """Audit of every row."""
        return summarize_audit(self._application().maintenance.audit(None, deep=True, progress=_log_progress))

    def _clean(self) -> Summary:
        application = self._application()
        report = application.maintenance.cleaning(_log_progress).run()
        self._more = report.more
        self._numbers.cleaned(report)
        # The vacuum has just computed it, so the poller need not load every table for it.
        self._poller.set_oldest_required(report.pin)
        application.checkpointer.run_if_due()
        return summarize_cleaning(report)


def _log_progress(line: str) -> None:
    """Progress goes to `DEBUG`; the summary of the job has its own line."""
    _log.debug("%s", line)


_log = logging.getLogger(__name__)


class Pace:
    """Detects a round without progress. Safe for several threads; rounds overlap while one waits for its
    turn.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._running = 0
        self._moved_s = 0.0

    @contextmanager
    def round(self) -> Iterator[Callable[[str], None]]:
        """Context of one round; yields the function that takes its lines of progress."""
        with self._lock:
            # The idle time before the first round is no silence. A further round may only wait for its turn,
            # so its begin must not hide that the first one hangs.
            if not self._running:
                self._moved_s = self._clock.monotonic_s()
            self._running += 1
        try:
            yield self._line
            self._moves()
        finally:
            with self._lock:
                self._running -= 1

    def check(self, silence_max_s: float) -> None:
        """Raise `RetryLater` if a round runs and no round reported progress for `silence_max_s`."""
        with self._lock:
            silent_s = self._clock.monotonic_s() - self._moved_s
            # Any progress counts for all: rounds that wait for their turn report none.
            if self._running and silent_s > silence_max_s:
                raise RetryLater(
                    f"the round under way has made no progress for {silent_s:,.0f} s; see the checks and "
                    "the log for what it waits for"
                )

    def _line(self, line: str) -> None:
        self._moves()
        _log.debug("%s", line)  # the summary of the job has its own line

    def _moves(self) -> None:
        with self._lock:
            self._moved_s = self._clock.monotonic_s()


class Tick:
    """Archives due topics. Safe for several threads; scheduled and requested rounds wait for each other."""

    def __init__(
        self, archive: Callable[[PollState], ArchiveReport], settings: Callable[[], Settings]
    ) -> None:
        """`archive` runs a round; `settings` returns the configuration in force."""
        self._archive = archive
        self._settings = settings
        self._commits_s = 0.0
        """Total time of the commits of the last scheduled round."""
        self._polls = PollState()
        self._reports: dict[str, TopicReport] = {}
        self._lock = threading.Lock()

    def run(self) -> Summary:
        """Run one round. Raises as `ArchiveRun.run`."""
        with self._lock:
            # `forget` may replace the object during the round; the next round then still checks every topic.
            polls = self._polls
        try:
            report = self._archive(polls)
            self._commits_s = sum(tried.seconds for tried in report.commits)
            return self.note(report)
        except (LeaseHeld, Deposed):
            # The new leader changes the state that the reports describe.
            self.forget()
            raise

    def note(self, report: ArchiveReport) -> Summary:
        """Record the report of a scheduled or requested round; topics that it did not check keep their last
        one.
        """
        topics = [topic.name for topic in self._settings().topics]
        with self._lock:
            self._reports |= report.topics
            # Topics that were removed from the configuration are left out.
            known = [self._reports[name] for name in sorted(topics) if name in self._reports]
        return summarize_archiving(report, known)

    def stuck(self) -> dict[str, str]:
        """Why the newest round halted or deferred a topic, by topic."""
        with self._lock:
            return {
                name: item.why or item.state
                for name, item in self._reports.items()
                if item.state in ("halted", "deferred")
            }

    def notes(self) -> list[str]:
        """Notes for the operator on topics that continue."""
        return [*self._slow_commits(), *self._of_topics()]

    def _slow_commits(self) -> list[str]:
        """Note that commits take longer than a tick: each round waits for the commits of the last one."""
        tick_s, took_s = self._settings().archive.tick, self._commits_s
        if took_s <= tick_s:
            return []
        note = (
            f"the commits of the last round took {took_s:,.0f} s, longer than archive.tick = "
            f"{tick_s:g} s: no table gets the next one "
            "sooner; longer archive delays (complete_delay_max) make fewer and larger commits"
        )
        return [note]

    def _of_topics(self) -> list[str]:
        with self._lock:
            return [
                f"topic {name}: {note}"
                for name, item in sorted(self._reports.items())
                for note in dict.fromkeys(item.notes)
            ]

    def forget(self) -> None:
        """After a change of configuration or leader: the next round checks every topic."""
        with self._lock:
            self._polls = PollState()
            self._reports.clear()
            self._commits_s = 0.0


# --- Requested work
Progress = Callable[[str], None]

_AUDIT_CODES = {"valid": FINE, "invalid": WRONG, "unknown": UNKNOWN}


class DaemonOperations:
    """Archive, replay, clean, reconcile, audit, status, reload and resets of committed offsets."""

    def __init__(
        self,
        application: Callable[[], Application | None],
        status: Callable[[], dict[str, Any]],
        reload: Callable[[], Done],
        reconcile_soon: Callable[[], None],
        kafka: Callable[[], KafkaService | None],
        roles: frozenset[str],
        cycles: Cycles,
        tick: Tick,
        numbers: Numbers,
        journal: Journal,
        pace: Pace,
        backoff: Backoff,
    ) -> None:
        """`application` returns None until everything is open, and again when the daemon stops.

        `status`, `reload` and `reconcile_soon` are those of the daemon; `kafka` is its Kafka listener, if it
        has one. `numbers` count results;
        `journal` keeps what the status page shows. `pace` and `backoff` are those of the scheduled rounds.
        """
        self._application = application
        self._status = status
        self._reload = reload
        self._reconcile_soon = reconcile_soon
        self._kafka = kafka
        self._roles = roles
        self._cycles = cycles
        self._tick = tick
        self._numbers = numbers
        self._journal = journal
        self._pace = pace
        self._backoff = backoff

    def status(self) -> dict[str, Any]:
        """The document of `archiver status`."""
        return self._status()

    def reload(self) -> Done:
        """Reload the configuration, as on SIGHUP."""
        return self._reload()

    def archive(self, topic: str | None, everything: bool, progress: Progress) -> Done:
        """Document and exit code of `archiver archive`. Raises `LeaseHeld` and what `ArchiveRun.run`
        raises.
        """
        application = self._open("archive")
        scope = None if topic is None else parse_scope(topic)
        # A list, because `work` returns the summary to the journal and the report must reach the caller.
        reports = []

        def work() -> Summary:
            with self._pace.round() as moved:

                def both(line: str) -> None:
                    moved(line)
                    progress(line)

                run = application.archiving.round(both)
                try:
                    reports.append(run.run(scope, everything=everything))
                finally:
                    # Also after an error, because the report has the commits that were tried before it.
                    self._numbers.archived(run.report)
                    self._journal.schemas_changed(run.report, self._cycles.now_us())
                    self._backoff.note_commits(run.report.commits, scoped=scope is not None)
            # The page must show this round too, not only scheduled ones.
            return self._tick.note(reports[0])

        # Only a topic in the request can make it invalid input.
        self._cycles.attempt("tick", work, asked=topic is not None)
        return Done(reports[0].to_json(), reports[0].exit_code)

    def clean(self, dry_run: bool, progress: Progress) -> Done:
        """Document and exit code of `archiver clean`. Raises `LeaseHeld` and what `CleanRun.run` raises."""
        application = self._open("reconcile")
        if dry_run:
            # A dry run changes nothing, so it is no cycle of the job.
            report = application.maintenance.cleaning(progress, dry_run=True).run(dry_run=True)
            return Done(report.to_json(), report.exit_code)
        reports = []

        def work() -> Summary:
            reports.append(application.maintenance.cleaning(progress).run())
            self._numbers.cleaned(reports[0])
            return summarize_cleaning(reports[0])

        self._cycles.attempt("cleanup", work)
        return Done(reports[0].to_json(), reports[0].exit_code)

    def reconcile(self, fix: bool, topic: str | None, progress: Progress) -> Done:
        """Document and exit code of `archiver reconcile`. Raises `LeaseHeld` and what `ReconcileRun.run`
        raises.

        A run of one topic, or without `fix`, does not count as the daemon's own reconciliation.
        """
        application = self._open("reconcile")
        if not fix:
            report = application.maintenance.reconciling(progress, dry_run=True).run("nothing", topic)
            return Done(report.to_json(), report.exit_code)
        reports = []

        def work() -> Summary:
            reports.append(application.maintenance.reconciling(progress).run("everything", topic))
            self._numbers.reconciled(reports[0], whole=topic is None)
            return summarize_reconciling(reports[0])

        # One topic is no proof for the others, so it must not appear as the newest reconciliation.
        self._cycles.attempt("reconcile" if topic is None else "repair", work, asked=topic is not None)
        if topic is not None:
            self._reconcile_soon()
        return Done(reports[0].to_json(), reports[0].exit_code)

    def replay(self, topic: str | None, files_max: int | None, progress: Progress) -> Done:
        """Document and exit code of `archiver dlq replay`. Raises `LeaseHeld` and what `ReplayRun.run`
        raises.
        """
        application = self._open("archive")
        scope = None if topic is None else parse_scope(topic)
        if files_max is not None and files_max < 1:
            raise InvalidInput(f"max_files {files_max} leaves nothing to do; it must be 1 or more")
        reports = []

        def work() -> Summary:
            reports.append(
                application.archiving.replaying(progress).run(
                    scope, FILES_MAX if files_max is None else files_max
                )
            )
            return summarize_replay(reports[0])

        self._cycles.attempt("replay", work, asked=topic is not None)
        return Done(reports[0].to_json(), reports[0].exit_code)

    def audit(self, topic: str | None, progress: Progress, *, deep: bool = False) -> Done:
        """Document and exit code of `archiver audit`."""
        application = self._open(None)
        scope = None if topic is None else parse_scope(topic)
        progress("auditing")
        # The audit of a part is no cycle: the page would show its verdict as that of the deployment.
        if scope is not None:
            document = application.maintenance.audit(scope, deep=deep, progress=progress)
        else:
            job = "deep_audit" if deep else "audit"
            summary, _ = self._cycles.attempt(
                job,
                lambda: summarize_audit(application.maintenance.audit(None, deep=deep, progress=progress)),
            )
            document = summary.document
        return Done(document, _AUDIT_CODES[str(document["verdict"])])

    def reset_offsets(self, group: str, topic: str, offsets: str) -> Done:
        """Document and exit code of a reset by `archiver groups reset`. Raises what
        `KafkaService.reset_offsets` raises.
        """
        application = self._open("intake")
        state, stated = application.topic(topic), _offsets(offsets)
        beyond = next((number for number in stated if number >= state.partitions), None)
        if beyond is not None:
            raise no_partition(topic, beyond, state.partitions)
        kafka = self._kafka()
        if kafka is None:
            raise RetryLater(f"this daemon has no Kafka listener, so it does not coordinate {excerpt(group)}")
        kafka.reset_offsets(group, state.topic_id, stated)
        _log.info("consumer group %s: %d offsets of %s were reset", excerpt(group), len(stated), topic)
        return Done({"group": group, "topic": topic, "partitions": len(stated)}, FINE)

    def _open(self, role: str | None) -> Application:
        # The port refuses this with 409 before, and the command then does the work itself.
        if role is not None and role not in self._roles:
            raise NotFound(
                f"this daemon has not the role {role}, it has {', '.join(sorted(self._roles))}; do it "
                "by a command of its own"
            )
        # Read once: the shutdown sets it to None in another thread.
        application = self._application()
        if application is None:
            raise RetryLater(
                "the daemon has not opened everything it needs, or is about to stop; /readyz says what "
                "it waits for"
            )
        return application


_OFFSET = re.compile(r"([0-9]{1,10}):([0-9]{1,19})")


def _offsets(text: str) -> dict[int, int]:
    """`0:12,1:40` as offsets by partition; raises `InvalidInput`."""
    found: dict[int, int] = {}
    for one in text.split(","):
        match = _OFFSET.fullmatch(one)
        if match is None or int(match[1]) in found:
            raise InvalidInput(
                f"the offsets have {excerpt(one, 40)!r}; each partition is there once, as partition:offset"
            )
        found[int(match[1])] = int(match[2])
    return found
