"""Operations that commands request from a running daemon through its port.

They run like the jobs: with the same leadership and the same journal. A command through the port does, prints
and returns the same as without a daemon. Each call blocks until it is done. Without the role for it,
`NotFound` is raised, and the command does the work itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from archiver.app.application import Application
from archiver.daemon.cycles import Cycles, Summary
from archiver.daemon.summaries import (
    summarize_audit,
    summarize_cleaning,
    summarize_reconciling,
    summarize_replay,
)
from archiver.daemon.tick import Tick
from archiver.publish.scope import parse_scope
from archiver.rewrite.replay_report import FILES_MAX
from archiver.runtime.errors import InvalidInput, NotFound, RetryLater
from archiver.runtime.exit_codes import FINE, UNKNOWN, WRONG, Done
from archiver.status.journal import Journal
from archiver.status.metric_registry import Numbers

Progress = Callable[[str], None]

_AUDIT_CODES = {"valid": FINE, "invalid": WRONG, "unknown": UNKNOWN}


class DaemonOperations:
    """Archive, replay, clean, reconcile, audit, status and reload."""

    def __init__(
        self,
        application: Callable[[], Application | None],
        status: Callable[[], dict[str, Any]],
        reload: Callable[[], Done],
        reconcile_soon: Callable[[], None],
        roles: frozenset[str],
        cycles: Cycles,
        tick: Tick,
        numbers: Numbers,
        journal: Journal,
    ) -> None:
        """`application` returns None until everything is open, and again when the daemon stops.

        `status`, `reload` and `reconcile_soon` are those of the daemon. `numbers` count results;
        `journal` keeps what the status page shows.
        """
        self._application = application
        self._status = status
        self._reload = reload
        self._reconcile_soon = reconcile_soon
        self._roles = roles
        self._cycles = cycles
        self._tick = tick
        self._numbers = numbers
        self._journal = journal

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
        reports = []

        def work() -> Summary:
            run = application.archiving.round(progress)
            try:
                reports.append(run.run(scope, everything=everything))
            finally:
                self._numbers.archived(run.report)
                self._journal.schemas_changed(run.report, self._cycles.now_us())
            return self._tick.note(reports[0])

        self._cycles.attempt("tick", work, asked=topic is not None)
        return Done(reports[0].to_json(), reports[0].exit_code)

    def clean(self, dry_run: bool, progress: Progress) -> Done:
        """Document and exit code of `archiver clean`. Raises `LeaseHeld` and what `CleanRun.run` raises."""
        application = self._open("reconcile")
        if dry_run:
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
        """Document and exit code of `archiver audit`. An audit of a part is not the daemon's verdict."""
        application = self._open(None)
        scope = None if topic is None else parse_scope(topic)
        progress("auditing")
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

    def _open(self, role: str | None) -> Application:
        if role is not None and role not in self._roles:
            raise NotFound(
                f"this daemon has not the role {role}, it has {', '.join(sorted(self._roles))}; do it "
                "by a command of its own"
            )
        application = self._application()
        if application is None:
            raise RetryLater(
                "the daemon has not opened everything it needs, or is about to stop; /readyz says what "
                "it waits for"
            )
        return application
