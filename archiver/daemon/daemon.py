"""The process of `archiver serve`: its limits, port, resources and jobs, and their start and shutdown.

A stop accepts no more records, acknowledges accepted ones, ends the current round and releases the lease,
within `daemon.shutdown_grace`. The next leader completes unfinished work; no record is lost. The main thread
only waits for signals and feeds the watchdog. It touches no dependency, so it cannot hang on one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from archiver.app.application import Application
from archiver.app.queries import Queries
from archiver.app.reading import Reading
from archiver.app.status_document import daemon_document, status_document
from archiver.config.settings import Settings, load_settings
from archiver.control_topic.publisher import EventPublisher, PublishedState
from archiver.daemon.cycles import Cycles, Summary, summarize_error
from archiver.daemon.limits import collect_less_often, connections_within, kafka_connections, raise_limit
from archiver.daemon.local_state import LocalState
from archiver.daemon.notify import Notifier
from archiver.daemon.operations import Backoff, DaemonOperations, Pace, Tick, Upkeep
from archiver.daemon.otlp import OtlpExport
from archiver.daemon.reload import intervals, plan_reload
from archiver.daemon.resources import Opening, Resources
from archiver.daemon.schedule import Schedule, ScheduledJob
from archiver.daemon.signals import Signals
from archiver.daemon.status_poller import StatusPoller
from archiver.daemon.watch import Dependencies, FollowUp, Watch
from archiver.kafka.logins import logins_of
from archiver.publish.report import ArchiveReport
from archiver.refine.triggers import PollState
from archiver.runtime.clock import Clock, SystemClock
from archiver.runtime.errors import ArchiverError, LeaseHeld, NotPermitted, RetryLater
from archiver.runtime.exit_codes import FINE, WRONG, Done
from archiver.runtime.ids import IdSource, SystemIds
from archiver.runtime.redaction import MESSAGE_MAX, excerpt
from archiver.runtime.text import counted
from archiver.status.history import LagHistory
from archiver.status.journal import Journal, Refusal
from archiver.status.kafka_port import KafkaPort
from archiver.status.lag_metrics import Family
from archiver.status.metric_registry import Numbers, mirrors_of, sources_of
from archiver.web.app import create_app
from archiver.web.app_context import AppContext
from archiver.web.forward import Forward
from archiver.web.listener import CONNECTIONS_MAX
from archiver.web.metrics import counting, exposition
from archiver.web.page import PageValues, page
from archiver.web.server import WebServer
from intake.sources.files.source import FilesState
from intake.sources.kafka.upstream_changes import MirrorState


# --- The job `control_topic`
class Publication:
    """Runs the publisher. One thread at a time runs and closes it; any thread may read its state."""

    def __init__(self, create: Callable[[], EventPublisher]) -> None:
        """`create` creates the publisher; it raises while what the publisher needs is missing."""
        self._create = create
        self._publisher: EventPublisher | None = None

    @property
    def state(self) -> PublishedState | None:
        """State of the publisher; None before the first run."""
        return None if self._publisher is None else self._publisher.state

    def notes(self) -> list[str]:
        """Notes for the operator."""
        state = self.state
        if state is None or state.trouble is None:
            return []
        behind = (
            "" if not state.lag else f"; {counted(state.lag, 'entry', 'entries')} of the control log wait"
        )
        return [f"control topic {state.topic}: {state.trouble}{behind}"]

    def run(self) -> Summary:
        """Publish once. Raises what creating the publisher raises, and unexpected errors."""
        if self._publisher is None:
            self._publisher = self._create()
        publisher = self._publisher
        try:
            events = publisher.run()
        # Publishing has a lease of its own; its holder may be a daemon that does not lead.
        except LeaseHeld as held:
            publisher.update_state(None, held.holder)
            return Summary("skipped", f"{held.holder} publishes", idle=True)
        except ArchiverError as error:
            before = publisher.state.trouble
            publisher.update_state(excerpt(str(error), MESSAGE_MAX))
            # The job runs every second: an error that lasts is logged at `DEBUG`.
            return replace(summarize_error(error), idle=publisher.state.trouble == before)
        except Exception as error:
            # `Cycles` logs the error with its traceback; here only the state for page and metrics is set.
            publisher.update_state(excerpt(summarize_error(error).line, MESSAGE_MAX))
            raise
        publisher.update_state(None)
        if not events:
            return Summary("fine", "nothing to publish", idle=True)
        return Summary("fine", f"{counted(events, 'event')} published", {"events": events})

    def close(self) -> None:
        """Stop publishing."""
        if self._publisher is not None:
            self._publisher.close()


# --- The daemon
_log = logging.getLogger(__name__)

PAUSE_S = 0.5
"""Interval of the main loop."""
ALIVE_S = 30.0
"""The main thread is stuck if its loop did not run for this time."""
FIRST_AUDIT_S, FIRST_CLEANUP_S = 30.0, 60.0
"""Time of the first run: soon, so that a daemon that restarts often still audits and cleans."""
FIRST_DEEP_AUDIT_S = 600.0
"""Later than the other first runs, because it reads every row."""
ANSWER_S = 10.0
"""A dependency that takes longer to answer counts as absent."""
POLL_S = 2 * ANSWER_S
"""Maximum time of a status poll; up to `ANSWER_S` of it may be a wait for other readers of the ledger."""
LAST_SHARE = 0.25
"""Last share of `daemon.shutdown_grace`, in which unfinished work is cut off."""
PORT_SHARE = 0.1
"""Last share of `daemon.shutdown_grace`, in which the port answers open requests."""


@contextlib.contextmanager
def acquire_with_timeout(lock: threading.Lock, wait_s: float, why: str) -> Iterator[None]:
    """Hold the lock; raises `RetryLater` with `why` after `wait_s`, because its holder may hang on a
    dependency.
    """
    if not lock.acquire(timeout=wait_s):
        raise RetryLater(why)
    try:
        yield
    finally:
        lock.release()


class Daemon:
    """One `archiver serve`."""

    def __init__(
        self,
        settings: Settings,
        path: Path,
        environ: Mapping[str, str],
        roles: frozenset[str],
        clock: Clock | None = None,
        ids: IdSource | None = None,
        port_holder: Callable[[], str | None] | None = None,
    ) -> None:
        """`path` is the configuration file, which a reload reads again; `roles` are those of this process.
        `port_holder` says who has `http.listen`, if that is in use.
        """
        self._settings = settings
        self._path = path
        self._environ = environ
        self._roles = roles
        self._clock, self._ids = clock or SystemClock(), ids or SystemIds()
        # The lease has the same text, so the poller can compare its holder with this process.
        self._owner = f"{socket.gethostname()}:{os.getpid()}"
        self._journal = Journal(settings.daemon.cycles_kept)
        self._cycles = Cycles(self._journal, self._clock)
        self._numbers = Numbers(self._journal, self._clock, settings.metrics, _version(), roles)
        self._numbers.declare(settings.topics)
        history = LagHistory(settings.daemon.history, settings.metrics.topics_max)
        self._poller = StatusPoller(self._numbers, history, self._clock, self._owner)
        self._local_state = LocalState(settings.metadata.local_path, history, self._journal, self._clock)
        self._pace = Pace(self._clock)
        # The settings come from functions: a reload replaces the object.
        self._tick = Tick(self._round, lambda: self._settings)
        self._backoff = Backoff(
            self._clock,
            lambda: self._settings.cleanup.reconcile_after,
            lambda: self._settings.cleanup.interval,
        )
        self._upkeep = Upkeep(
            self._in_service, self._cycles, self._numbers, self._poller, self._backoff, self._reading_ledger
        )
        self._operations = DaemonOperations(
            lambda: self._serving,
            self.status,
            self.reload,
            self.reconcile_soon,
            lambda: self._resources.kafka,
            roles,
            self._cycles,
            self._tick,
            self._numbers,
            self._journal,
            self._pace,
            self._backoff,
        )
        self._notifier = Notifier(environ, self._clock)
        self._stop = threading.Event()
        self._refused: NotPermitted | None = None
        """Error that makes the start impossible."""
        self._ports_closed: dict[str, str] = {}
        """Why a port is closed, by its name in the journal, as recorded there."""
        self._announced = ""
        """Status line that the service manager shows."""
        self._reloading = threading.Lock()
        # Without it, a stop at the end of the start could leave jobs running after the shutdown.
        self._phase_change = threading.Lock()
        """Held briefly at the changes from start to serving and from serving to shutdown."""
        # The soft limit is raised before a port exists, because it bounds the connections.
        limit = raise_limit()
        kafka = kafka_connections(settings, limit)
        self._resources = Resources(lambda: self._settings, environ, roles, self._clock, self._ids, kafka)
        self._publication = Publication(lambda: self._resources.publisher(self._stop.is_set))
        self._serving: Application | None = None
        self._ledger_lock = threading.Lock()
        self._dependencies = Dependencies(self._clock, environ, roles)
        follow_up = FollowUp("the status poll", self._poll_status, POLL_S, self._poll_late)
        self._watch = Watch(self._questions, self._journal, self._clock, ANSWER_S, follow_up)
        self._schedule = self._jobs()
        self._alive_s = self._clock.monotonic_s()
        self._logins = logins_of(settings.kafka, self._ids)
        self._server = self._web_server(connections_within(limit - kafka, CONNECTIONS_MAX), port_holder)
        self._export = OtlpExport(settings, self._families, self._owner, _version(), self._clock)

    def _web_server(self, connections_max: int | None, holder: Callable[[], str | None] | None) -> WebServer:
        http, retry_max_s = self._settings.http, self._settings.daemon.retry_max
        port = counting(create_app(self._app_context()), self._numbers.requested, self._clock)
        return WebServer(port, http.listen, retry_max_s, http.tls, connections_max, holder)

    def run(self, signals: Signals) -> int:
        """Serve until a stop is requested through the entered `signals`; returns the exit code.

        Raises `NotPermitted` if a first start may not write its folders. Call it in the main thread.
        """
        # The umask of the caller may be too open: other users must never write the files of the daemon.
        os.umask(os.umask(stat.S_IRWXO) | stat.S_IWOTH)
        collect_less_often()
        with contextlib.closing(self._notifier):
            # The port opens first, so that health checks see the daemon while it waits for its dependencies.
            self._server.start()
            self._export.start()
            # A store or a mount may hang while it is opened; the main loop must still handle signals.
            opening = threading.Thread(target=self._open, name="opening", daemon=True)
            opening.start()
            while "stop" not in (asked := signals.wait(PAUSE_S)) and self._refused is None:
                self._show_alive()
                if "reload" in asked:
                    # A reload appends to the intake log, which may hang. The lock of `reload` bounds
                    # parallel requests.
                    threading.Thread(target=self._reload_for_signal, name="reload", daemon=True).start()
            # Also after a refused start: the port is open, and threads run.
            code = self._end(opening)
            if self._refused is not None:
                raise self._refused
            return code

    # status

    @property
    def deployment(self) -> Application | None:
        """The application from the end of the start until the shutdown begins."""
        return self._serving

    def _app_context(self) -> AppContext:
        setting = self._settings.http.admin_token
        return AppContext(
            http=self._settings.http,
            journal=self._journal,
            roles=self._roles,
            # No record is accepted before the start ends, nor after the shutdown begins.
            writer=lambda: self._resources.writer if self._serving is not None else None,
            operations=self._operations,
            reads=Reading(
                lambda: self._serving,
                lambda: self._poller.snapshot.standing,
                self._clock,
                self._journal,
                lambda: None if (kafka := self._resources.kafka) is None else kafka.groups,
                self._poller.history,
                self._source_states,
                self._mirror_states,
            ),
            queries=Queries(lambda: self._serving, self._settings.http, self._clock, self._ids),
            logins=lambda: self._logins,
            # A generated token is known only after the deployment is open, so each request reads it.
            token=lambda: self._resources.token if setting is None else setting.get_secret_value(),
            cluster=self._settings.cluster,
            cluster_id=lambda: (
                None
                if (application := self._resources.application) is None
                else application.cluster.cluster_id
            ),
            page=self._page,
            metrics=lambda: exposition(self._families()),
            alive=self._is_alive,
            clock=self._clock,
            version=_version(),
            forward=Forward(lambda: self._resources.workers, self._settings.http),
        )

    def _families(self) -> list[Family]:
        writer = self._resources.counting or self._resources.writer
        return self._numbers.families(writer, self._publication.state, self._kafka_port())

    def _kafka_port(self) -> KafkaPort | None:
        # Read once: the start sets it in another thread.
        kafka, workers = self._resources.kafka, self._resources.workers
        if kafka is None or workers is None:
            return None if kafka is None else kafka.state
        state = kafka.state
        return replace(state, counts=workers.counts_with(state.counts), workers=workers.shown)

    def _page(self, query: Mapping[str, str]) -> str:
        # Each is read once: a poll, a reload or the shutdown replaces it in another thread.
        seen, settings, application = self._poller.snapshot, self._settings, self._resources.application
        return page(
            PageValues(
                standing=seen.standing,
                journal=self._journal,
                history=self._poller.history,
                now_us=self._clock.now_us(),
                look_interval_s=settings.daemon.watch_interval,
                version=_version(),
                owner=self._owner,
                roles=sorted(self._roles),
                cluster=settings.cluster,
                cluster_id=None if application is None else application.cluster.cluster_id,
                data=settings.data.uri,
                leader=seen.leader,
                epoch=seen.epoch,
                pin=seen.pin,
                pin_known=seen.pin_known,
                sources=self._source_states(),
                mirrors=self._mirror_states(),
                kafka=self._kafka_port(),
                groups=seen.groups,
                renewals=self._schedule.due_us(),
                query=query,
            )
        )

    def _is_alive(self) -> bool:
        return self._schedule.alive and self._clock.monotonic_s() - self._alive_s < ALIVE_S

    def _show_alive(self) -> None:
        """One pass of the main loop."""
        self._alive_s = self._clock.monotonic_s()
        if self._schedule.alive:
            # Not while the scheduler is stuck, so that the service manager restarts the daemon.
            self._notifier.feed()
        self._check_port()
        if self._journal.state == "starting":
            missing = [f"{check.name} ({check.why})" for check in self._journal.checks() if not check.ok]
            self._notifier.waiting(f"waiting for {'; '.join(missing)}" if missing else "starting")

    def _check_port(self) -> None:
        """Report a closed port as a failed check and to the service manager."""
        kafka, workers = self._resources.kafka, self._resources.workers
        for name, closed in (
            ("port", self._server.closed_because),
            ("Kafka port", None if kafka is None else kafka.server.closed_because),
            ("intake workers", None if workers is None else workers.trouble),
        ):
            if closed == self._ports_closed.get(name):
                continue
            if closed is None:
                # An open port is no dependency, so the list of checks does not keep it.
                del self._ports_closed[name]
                self._journal.unchecked(name)
            else:
                self._ports_closed[name] = closed
                # Without the Kafka port, records still arrive over HTTP; clients of Kafka go elsewhere.
                required = name == "port"
                self._journal.checked(name, closed, self._clock.now_us(), required=required)
        if self._journal.state == "serving" and self._serving_as() != self._announced:
            self._announce()

    def _announce(self) -> None:
        """Notify the service manager that the daemon serves, and whether its port is open."""
        self._announced = self._serving_as()
        self._notifier.ready(self._announced)

    # the start

    def _open(self) -> None:
        """Open the resources with retries, then start the jobs."""
        resources = self._resources
        try:
            if not Opening(
                resources.steps(), resources.undo, self._journal, self._clock, self._settings.daemon.retry_max
            ).run(self._stop):
                return
        except NotPermitted as error:
            # The main loop raises it: an exception in this thread would not end the process.
            self._refused = error
            return
        if (application := resources.application) is not None:
            # Before the first poll, whose sample follows those of the daemon before this one.
            self._local_state.load(application.cluster.cluster_id)
        # The page and `/readyz` need answers of every dependency before the daemon serves.
        self._cycles.run("watch", self._watch.run)
        with self._phase_change:
            if self._stop.is_set():
                return
            # The port accepts records from here. Under the lock, a stop comes before all of this or after
            # it.
            self._serving = self._resources.application
            self._resources.start_sources()
            self._schedule.start()
            self._journal.becomes("serving")
        self._announce()
        # A daemon without its port still archives, so this is a warning and not the end.
        level = logging.INFO if self._server.closed_because is None else logging.WARNING
        _log.log(level, "%s", self._announced, extra={"cluster": self._settings.cluster, "pid": os.getpid()})

    def _serving_as(self) -> str:
        """Line for the log and the service manager."""
        closed = self._server.closed_because
        without = (
            ""
            if closed is None
            else f", without its port, so no command, page or record reaches it: {closed}; it retries"
        )
        return f"serving as {', '.join(sorted(self._roles))}{without}"

    # the jobs

    def _jobs(self) -> Schedule:
        every, cycle = intervals(self._settings), self._cycles.run
        jobs = [
            # `_open` has already run the first watch.
            ScheduledJob("watch", every["watch"], partial(cycle, "watch", self._watch.run), every["watch"]),
            ScheduledJob("checkpoint", every["checkpoint"], self._checkpoint),
            ScheduledJob("local_state", every["local_state"], self._local_state.run),
        ]
        if "archive" in self._roles:
            jobs.append(ScheduledJob("tick", every["tick"], partial(cycle, "tick", self._tick.run)))
            if kafka := self._settings.events.kafka:
                jobs.append(
                    ScheduledJob(
                        "control_topic",
                        kafka.interval,
                        partial(cycle, "control_topic", self._publication.run),
                    )
                )
        if "reconcile" in self._roles:
            # Without interval: it runs before each cleanup, after a failed commit and on request.
            jobs.append(ScheduledJob("reconcile", None, partial(cycle, "reconcile", self._upkeep.reconcile)))
            jobs.append(ScheduledJob("cleanup", every["cleanup"], self._upkeep.clean_up, FIRST_CLEANUP_S))
            jobs.append(
                ScheduledJob(
                    "audit", every["audit"], partial(cycle, "audit", self._upkeep.audit), FIRST_AUDIT_S
                )
            )
            if deep_s := self._settings.daemon.deep_audit_interval:
                jobs.append(
                    ScheduledJob(
                        "deep_audit",
                        deep_s,
                        partial(cycle, "deep_audit", self._upkeep.deep_audit),
                        FIRST_DEEP_AUDIT_S,
                    )
                )
        return Schedule(jobs, self._clock)

    def _round(self, polls: PollState) -> ArchiveReport:
        with self._pace.round() as progress:
            run = self._in_service().archiving.round(progress)
            try:
                return run.run(polls=polls)
            finally:
                # Also after an error, because the report has the commits that were tried before it.
                self._numbers.archived(run.report)
                self._journal.schemas_changed(run.report, self._clock.now_us())
                self._backoff.note_commits(run.report.commits)

    def _questions(self) -> dict[str, Any]:
        application = self._resources.application
        if application is None:
            return {}
        tick = (
            {"tick": lambda: self._pace.check(self._settings.daemon.silence_max)}
            if "archive" in self._roles
            else {}
        )
        return self._dependencies.questions(application) | tick

    def _poll_status(self) -> None:
        """Poll the status after the questions of the watch.

        A poll that waits too long for other readers or for the object store counts as an unreadable log.
        """
        application = self._resources.application
        if application is None:
            return
        # The poll is the timer of the backoff: a missed poll only delays the retry.
        if self._backoff.due():
            self._schedule.soon("reconcile")
        try:
            # A status request may read at the same time, and may hang on a catalog, so the wait is limited.
            with self._reading_ledger():
                self._poller.poll(
                    application,
                    self._tick.stuck(),
                    sources_of(self._source_states()) | mirrors_of(self._mirror_states()),
                )
            # Topics from templates appear while the daemon runs.
            self._numbers.declare(application.settings.topics)
        # Rule L4: a leader that cannot read the ledger for `daemon.confirm_max` gives up its lease.
        except RetryLater:
            application.leadership.unheard()
        if "intake" in self._roles:
            # A topic is missing if a reload failed between two declarations. The next poll tries again.
            with contextlib.suppress(RetryLater):
                application.intake.declare_missing()

    def _poll_late(self) -> None:
        """A hanging poll counts as an unreadable log."""
        if (application := self._resources.application) is not None:
            # The hanging thread cannot report this itself (rule L4).
            application.leadership.unheard()

    def _checkpoint(self) -> None:
        """Checkpoint the intake log; a separate job, because it waits for the object store."""
        if (application := self._resources.application) is not None:
            application.checkpointer.run_if_due()

    def _source_states(self) -> tuple[FilesState, ...]:
        return () if self._resources.sources is None else self._resources.sources.state()

    def _mirror_states(self) -> tuple[MirrorState, ...]:
        return tuple(mirror.state for mirror in self._resources.mirrors)

    def _reading_ledger(self) -> contextlib.AbstractContextManager[None]:
        """Context in which one thread at a time, other than the leader's, reads the ledger."""
        return acquire_with_timeout(
            self._ledger_lock,
            ANSWER_S,
            # A reader holds the lock for the whole read, so a hanging catalog would block all others.
            "another read of the ledger does not end; a catalog may hang",
        )

    def _in_service(self) -> Application:
        if self._serving is None:
            raise RetryLater("the daemon is about to stop")
        return self._serving

    def reconcile_soon(self) -> None:
        """Reconcile all topics: a repair of one topic may have resolved findings of others."""
        self._schedule.soon("reconcile")

    # reloading

    def _reload_for_signal(self) -> None:
        # A signal has no caller who could receive the error.
        with contextlib.suppress(ArchiverError):
            self.reload()

    def reload(self) -> Done:
        """Read the configuration file again.

        If it raises, nothing has changed: `ConfigInvalid` for an invalid file, `RetryLater` during another
        reload, and what the declaration of topics raises.
        """
        try:
            with acquire_with_timeout(
                self._reloading,
                ANSWER_S,
                "another reload does not end; the metadata store may hang",
            ):
                # systemd waits for `READY=1` after `RELOADING=1`, so the announcement follows also an error.
                self._notifier.reloading()
                try:
                    return self._reload()
                finally:
                    self._announce()
        except ArchiverError as error:
            _log.error("the configuration is not reloaded, the old one stays in force: %s", error)
            self._journal.reloaded(Refusal(self._clock.now_us(), str(error), whole=True))
            raise

    def _reload(self) -> Done:
        application = self._resources.application
        existing = {} if application is None else application.intake.partitions_known()
        plan = plan_reload(self._settings, load_settings(self._path, self._environ), existing)
        if application is not None:
            # First, because it declares new topics: if that raises, nothing has changed.
            application.apply_settings(plan.settings)
        if self._resources.workers is not None:
            self._resources.workers.apply_settings(plan.settings)
        self._settings = plan.settings
        self._numbers.declare(plan.settings.topics)
        # Topics that halted may continue with the new configuration, so the next round checks every topic.
        self._tick.forget()
        for change in plan.applied:
            _log.info("reloaded %s", change)
        for one in plan.refused:
            _log.warning("not reloaded: %s", one)
        if not plan.applied and not plan.refused:
            _log.info("reloaded: nothing in the configuration has changed; schemas are checked again")
        for name, seconds in intervals(plan.settings).items():
            self._schedule.every(name, seconds)
        self._schedule.soon("tick")
        refused = "; ".join(map(str, plan.refused))
        self._journal.reloaded(Refusal(self._clock.now_us(), refused, whole=False) if refused else None)
        return Done(plan.to_json(), WRONG if plan.refused else FINE)

    def status(self) -> dict[str, Any]:
        """Document of `archiver status`; raises `RetryLater` while not everything is open."""
        # Read once: the shutdown sets it to None in another thread.
        application = self._serving
        if application is None:
            raise RetryLater(
                "the daemon has not opened everything it needs, or is about to stop; /readyz says what "
                "it waits for"
            )
        daemon = daemon_document(
            self._settings.http.listen,
            self._journal,
            self._source_states(),
            self._mirror_states(),
            self._kafka_port(),
        )
        daemon["attention"] += self._tick.notes() + self._publication.notes()
        with self._reading_ledger():
            return status_document(application, self._clock.now_us(), self._tick.stuck(), daemon)

    # shutdown

    def _end(self, opening: threading.Thread) -> int:
        """Stop within `daemon.shutdown_grace`; the exit code."""
        grace_s = self._settings.daemon.shutdown_grace
        deadline_s = self._clock.monotonic_s() + grace_s
        _log.info("stopping within %g s", grace_s)
        # Requests are refused from here; those that run keep their application until it is closed.
        with self._phase_change:
            self._stop.set()
            self._serving = None
            self._journal.becomes("stopping")
        self._notifier.stopping("stopping")
        # `TimeoutStopSec` of the unit may be shorter than the grace; a killed daemon would not acknowledge.
        self._notifier.longer(grace_s + ALIVE_S)
        self._schedule.stop()
        self._export.stop()
        # Closing may hang on a dependency, so a thread of its own closes, and this one keeps the deadline.
        ending = threading.Thread(target=self._close, args=(opening,), name="ending", daemon=True)
        ending.start()
        ended = self._ends(ending, deadline_s - LAST_SHARE * grace_s)
        application = self._resources.application
        if not ended and application is not None:
            _log.warning("the running work is cut off; the next leader repeats what is not written")
            # A round mostly waits for Spark. Without the JVM it fails at once, and closing continues.
            application.archiving.abandon_spark()
            ended = self._ends(ending, deadline_s - PORT_SHARE * grace_s)
        # The port closes last, because producers still wait for their acknowledgements.
        self._server.stop(max(0.0, deadline_s - self._clock.monotonic_s()))
        _log.info("stopped" if ended else "stopped, with work left to the next leader")
        if not ended:
            # Hanging threads would keep the process alive. Their work may be cut off at any point.
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(FINE)
        return FINE

    def _ends(self, thread: threading.Thread, until_s: float) -> bool:
        """Wait for the thread while the main loop shows life."""
        while thread.is_alive() and (left_s := until_s - self._clock.monotonic_s()) > 0:
            thread.join(min(PAUSE_S, left_s))
            self._show_alive()
        return not thread.is_alive()

    def _close(self, opening: threading.Thread) -> None:
        """Close in order: intake first, because clients wait for its acknowledgements."""
        # The start checks for a stop only between its attempts, and what it opened must be closed too.
        opening.join()
        self._resources.close_intake()
        # No limit here: `_end` limits this whole thread.
        self._schedule.wait(threading.TIMEOUT_MAX)
        self._watch.close()
        self._publication.close()
        self._resources.close()
        # Last: the next leader need not wait for a slow disk here.
        self._local_state.save()


def _version() -> str:
    try:
        return version("stream-archiver")
    except PackageNotFoundError:
        # The package is not installed when the source tree is run directly.
        return "unknown"
