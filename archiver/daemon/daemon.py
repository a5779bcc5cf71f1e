"""The composition root of the daemon: port, application, writer, schedule, and how they begin and end.

Owns the life of one `archiver serve`. The port is up first, so that the daemon is seen to be alive while it
waits for what it needs. Then everything is opened, tried again as long as it takes; then the jobs run. A
request to stop lets in no more records, acknowledges those it has, ends the round that is under way, gives
the lease back, all within `daemon.shutdown_grace`; what takes longer is left to the next leader, who loses
nothing. The main thread only waits for signals and feeds the watchdog: it touches no dependency.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import stat
import sys
import threading
from collections.abc import Mapping
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from archiver.app.application import Application
from archiver.config.settings import Settings, load_settings
from archiver.daemon.acquire_with_timeout import acquire_with_timeout
from archiver.daemon.backoff import Backoff
from archiver.daemon.cycles import Cycles
from archiver.daemon.dependencies import Dependencies
from archiver.daemon.descriptors import connections_within, raise_limit
from archiver.daemon.garbage_collection import look_less_often
from archiver.daemon.notify import Notifier
from archiver.daemon.opening import Opening
from archiver.daemon.operations import DaemonOperations
from archiver.daemon.otlp import OtlpExport
from archiver.daemon.publication import Publication
from archiver.daemon.reload import intervals, plan_reload
from archiver.daemon.resources import Resources
from archiver.daemon.schedule import Schedule, ScheduledJob
from archiver.daemon.signals import Signals
from archiver.daemon.status_poller import StatusPoller
from archiver.daemon.tick import Pace, Tick
from archiver.daemon.upkeep import Upkeep
from archiver.daemon.watch import Beside, Watch
from archiver.publish.report import ArchiveReport
from archiver.refine.schedule import PollState
from archiver.runtime.clock import Clock, SystemClock
from archiver.runtime.errors import ArchiverError, NotPermitted, RetryLater
from archiver.runtime.exit_codes import FINE, WRONG, Done
from archiver.runtime.ids import IdSource, SystemIds
from archiver.status.document import daemon_document, status_document
from archiver.status.history import LagHistory
from archiver.status.journal import Journal, Refusal
from archiver.status.lag_metrics import Family
from archiver.status.metric_registry import Numbers, mirrors_of, sources_of
from archiver.web.app import create_app
from archiver.web.app_context import AppContext
from archiver.web.listener import CONNECTIONS_MAX
from archiver.web.metrics import counting, exposition
from archiver.web.page import PageValues, page
from archiver.web.server import WebServer
from intake.sources.files.source import FilesState
from intake.sources.kafka.state import MirrorState

_log = logging.getLogger(__name__)

PAUSE_S = 0.5
"""How often the main thread looks around."""
ALIVE_S = 30.0
"""A main thread that has not looked around for so long is stuck."""
FIRST_AUDIT_S, FIRST_CLEANUP_S = 30.0, 60.0
"""When they run first; a daemon that is restarted often must audit and clean all the same."""
FIRST_DEEP_AUDIT_S = 600.0
"""Later than what waits at a start: it reads everything."""
_FAILED = frozenset({"retry", "unknown", "halted"})
"""Ends of a commit after which it is looked what became of it."""
ANSWER_S = 10.0
"""A dependency that takes longer to answer is taken for absent."""
LOOK_S = 2 * ANSWER_S
"""A look at the logs that takes longer hangs; it may wait `ANSWER_S` for others who read them."""
LAST_SHARE = 0.25
"""The end of the grace in which what does not end by itself is cut off."""
PORT_SHARE = 0.1
"""The very end, for whoever still waits at the port to be told."""


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
    ) -> None:
        """`path` is the configuration file, which is read again at a reload; `roles` are what this process
        does.
        """
        self._settings = settings
        self._path = path
        self._environ = environ
        self._roles = roles
        self._clock = clock or SystemClock()
        self._ids = ids or SystemIds()
        self._owner = f"{socket.gethostname()}:{os.getpid()}"
        self._journal = Journal(settings.daemon.cycles_kept)
        self._cycles = Cycles(self._journal, self._clock)
        self._numbers = Numbers(self._journal, self._clock, settings.metrics, _version(), roles)
        self._numbers.declare(settings.topics)
        history = LagHistory(settings.daemon.history, settings.metrics.topics_max)
        self._sight = StatusPoller(self._numbers, history, self._clock, self._owner)
        self._pace = Pace(self._clock)
        self._tick = Tick(self._round, lambda: self._settings)
        self._again = Backoff(
            self._clock,
            lambda: self._settings.cleanup.reconcile_after,
            lambda: self._settings.cleanup.interval,
        )
        self._upkeep = Upkeep(
            self._in_service, self._cycles, self._numbers, self._sight, self._again, self._read_alone
        )
        self._operations = DaemonOperations(
            lambda: self._serving,
            self.status,
            self.reload,
            self.reconcile_soon,
            roles,
            self._cycles,
            self._tick,
            self._numbers,
            self._journal,
        )
        self._notifier = Notifier(environ, self._clock)
        self._stop = threading.Event()
        self._refused: NotPermitted | None = None
        """Why the start cannot succeed."""
        self._port_closed: str | None = None
        """Why the port is closed, as the journal says."""
        self._announced = ""
        """What the service manager shows while the daemon serves."""
        self._reloading = threading.Lock()
        self._turning = threading.Lock()
        """Held for a moment, when the start becomes serving and when that becomes the end."""
        self._opened = Resources(lambda: self._settings, environ, roles, self._clock, self._ids)
        self._publication = Publication(lambda: self._opened.publisher(self._stop.is_set))
        self._serving: Application | None = None
        self._reading = threading.Lock()
        self._dependencies = Dependencies(self._clock, environ, roles)
        beside = Beside("the look at the logs", self._look, LOOK_S, self._unheard)
        self._watch = Watch(self._questions, self._journal, self._clock, ANSWER_S, beside)
        self._schedule = self._jobs()
        self._looked_s = self._clock.monotonic_s()
        port = counting(create_app(self._face()), self._numbers.requested, self._clock)
        connections_max = connections_within(raise_limit(), CONNECTIONS_MAX)
        self._server = WebServer(
            port, settings.http.listen, settings.daemon.retry_max, settings.http.tls, connections_max
        )
        self._export = OtlpExport(settings, self._families, self._owner, _version(), self._clock)

    def run(self, signals: Signals) -> int:
        """Serve until asked to stop through `signals`, which are entered; the exit code. Raises
        `NotPermitted` where a first start may not write. Call it in the main thread.
        """
        os.umask(
            os.umask(stat.S_IRWXO) | stat.S_IWOTH
        )  # Whoever started it: what it writes is nobody else's to change.
        look_less_often()
        with contextlib.closing(self._notifier):
            self._server.start()
            self._export.start()
            opening = threading.Thread(target=self._open, name="opening", daemon=True)
            opening.start()
            while "stop" not in (asked := signals.wait(PAUSE_S)) and self._refused is None:
                self._sign_of_life()
                if "reload" in asked:
                    threading.Thread(target=self._reload_for_signal, name="reload", daemon=True).start()
            code = self._end(opening)
            if self._refused is not None:
                raise self._refused
            return code

    # what others see

    @property
    def deployment(self) -> Application | None:
        """The application, from when everything is open until the end begins."""
        return self._serving

    def _face(self) -> AppContext:
        setting = self._settings.http.admin_token
        return AppContext(
            http=self._settings.http,
            journal=self._journal,
            roles=self._roles,
            writer=lambda: self._opened.writer if self._serving is not None else None,
            operations=self._operations,
            token=lambda: self._opened.token if setting is None else setting.get_secret_value(),
            cluster_id=lambda: (
                None if (application := self._opened.application) is None else application.cluster.cluster_id
            ),
            page=self._page,
            metrics=lambda: exposition(self._families()),
            alive=self._is_alive,
            clock=self._clock,
            version=_version(),
        )

    def _families(self) -> list[Family]:
        return self._numbers.families(self._opened.writer, self._publication.state)

    def _page(self, query: Mapping[str, str]) -> str:
        seen, settings, application = self._sight.seen, self._settings, self._opened.application
        return page(
            PageValues(
                standing=seen.standing,
                journal=self._journal,
                history=self._sight.history,
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
                query=query,
            )
        )

    def _is_alive(self) -> bool:
        return self._schedule.alive and self._clock.monotonic_s() - self._looked_s < ALIVE_S

    def _sign_of_life(self) -> None:
        """What the main thread does at each look around."""
        self._looked_s = self._clock.monotonic_s()
        if self._schedule.alive:
            self._notifier.feed()
        self._check_port()
        if self._journal.state == "starting":
            missing = [f"{check.name} ({check.why})" for check in self._journal.checks() if not check.ok]
            self._notifier.waiting(f"waiting for {'; '.join(missing)}" if missing else "starting")

    def _check_port(self) -> None:
        """A closed port is a check that fails, and what the service manager shows."""
        closed = self._server.closed_because
        if closed != self._port_closed:
            self._port_closed = closed
            if closed is None:
                self._journal.unchecked("port")
            else:
                self._journal.checked("port", closed, self._clock.now_us())
        if self._journal.state == "serving" and self._serving_as() != self._announced:
            self._announce()

    def _announce(self) -> None:
        """Tell the service manager that the daemon serves, and whether its port is open."""
        self._announced = self._serving_as()
        self._notifier.ready(self._announced)

    # the start

    def _open(self) -> None:
        """Open everything, however long it takes; then begin to serve."""
        opened = self._opened
        try:
            if not Opening(
                opened.steps(), opened.undo, self._journal, self._clock, self._settings.daemon.retry_max
            ).run(self._stop):
                return
        except NotPermitted as error:
            self._refused = error
            return
        self._cycles.run("watch", self._watch.run)
        with self._turning:
            if self._stop.is_set():
                return
            self._serving = self._opened.application
            self._opened.start_sources()
            self._schedule.start()
            self._journal.becomes("serving")
        self._announce()
        level = logging.INFO if self._server.closed_because is None else logging.WARNING
        _log.log(level, "%s", self._announced, extra={"cluster": self._settings.cluster, "pid": os.getpid()})

    def _serving_as(self) -> str:
        """One line, for the log and the service manager."""
        closed = self._server.closed_because
        without = (
            ""
            if closed is None
            else f", without its port, so no command, page or record reaches it: {closed}; it is tried again"
        )
        return f"serving as {', '.join(sorted(self._roles))}{without}"

    # the jobs

    def _jobs(self) -> Schedule:
        every, cycle = intervals(self._settings), self._cycles.run
        jobs = [
            ScheduledJob("watch", every["watch"], partial(cycle, "watch", self._watch.run), every["watch"]),
            ScheduledJob("checkpoint", every["checkpoint"], self._checkpoint),
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

    def _round(self, looks: PollState) -> ArchiveReport:
        with self._pace.round() as progress:
            run = self._in_service().archiving.round(progress)
            try:
                return run.run(looks=looks)
            finally:
                self._numbers.archived(run.report)
                self._journal.schemas_changed(run.report, self._clock.now_us())
                if any(tried.end in _FAILED for tried in run.report.commits):
                    self._again.failed()
                elif run.report.commits:
                    self._again.fine()

    def _questions(self) -> dict[str, Any]:
        application = self._opened.application
        if application is None:
            return {}
        tick = (
            {"tick": lambda: self._pace.check(self._settings.daemon.silence_max)}
            if "archive" in self._roles
            else {}
        )
        return self._dependencies.questions(application) | tick

    def _look(self) -> None:
        """What the watch does besides asking. Its errors are those of a log that was asked a moment ago: the
        next look tells.

        First it reads the control log, so that whoever leads without right hears of it (rule L4). A look that
        has to wait for others who read the ledger, or for the object store behind it, counts as a log that
        cannot be read.
        """
        application = self._opened.application
        if application is None:
            return
        if self._again.due():
            self._schedule.soon("reconcile")
        try:
            with self._read_alone():
                self._sight.look(
                    application,
                    self._tick.stuck(),
                    sources_of(self._source_states()) | mirrors_of(self._mirror_states()),
                )
        except RetryLater:
            application.leadership.unheard()
        if "intake" in self._roles:
            with contextlib.suppress(RetryLater):
                application.intake.declare_missing()

    def _unheard(self) -> None:
        """A look hangs, which is as good as a log that cannot be read."""
        if (application := self._opened.application) is not None:
            application.leadership.unheard()

    def _checkpoint(self) -> None:
        """A job of its own: it waits for the object store."""
        if (application := self._opened.application) is not None:
            application.checkpointer.run_if_due()

    def _source_states(self) -> tuple[FilesState, ...]:
        return () if self._opened.sources is None else self._opened.sources.state()

    def _mirror_states(self) -> tuple[MirrorState, ...]:
        return tuple(mirror.state for mirror in self._opened.mirrors)

    def _read_alone(self) -> contextlib.AbstractContextManager[None]:
        """Of those who read the ledger beside the leader, one at a time."""
        return acquire_with_timeout(
            self._reading,
            ANSWER_S,
            "the ledger is being read by something that does not come to an end; a catalog may hang",
        )

    def _in_service(self) -> Application:
        if self._serving is None:
            raise RetryLater("the daemon is about to stop")
        return self._serving

    def reconcile_soon(self) -> None:
        """What was told of one topic may be over: look at all of them."""
        self._schedule.soon("reconcile")

    # reloading

    def _reload_for_signal(self) -> None:
        with contextlib.suppress(ArchiverError):  # told in the log
            self.reload()

    def reload(self) -> Done:
        """Read the configuration file again. Raises, and nothing has changed: `ConfigInvalid` if it is wrong,
        `RetryLater` while another reload is under way, and what declaring its topics raises.
        """
        try:
            with acquire_with_timeout(
                self._reloading,
                ANSWER_S,
                "a reload is under way that does not come to an end; the metadata store may hang",
            ):
                self._notifier.reloading()
                try:
                    return self._reload()
                finally:
                    self._announce()
        except ArchiverError as error:
            _log.error("the configuration is not reloaded, everything goes on as before: %s", error)
            self._journal.reloaded(Refusal(self._clock.now_us(), str(error), whole=True))
            raise

    def _reload(self) -> Done:
        application = self._opened.application
        existing = {} if application is None else application.intake.partitions_known()
        plan = plan_reload(self._settings, load_settings(self._path, self._environ), existing)
        if application is not None:
            application.apply_settings(plan.settings)  # first: it may fail, and then nothing has changed
        self._settings = plan.settings
        self._numbers.declare(plan.settings.topics)
        self._tick.forget()
        for change in plan.applied:
            _log.info("reloaded %s", change)
        for one in plan.refused:
            _log.warning("not reloaded: %s", one)
        if not plan.applied and not plan.refused:
            _log.info("reloaded: nothing in the configuration has changed; schemas are looked at anew")
        for name, seconds in intervals(plan.settings).items():
            self._schedule.every(name, seconds)
        self._schedule.soon("tick")
        refused = "; ".join(map(str, plan.refused))
        self._journal.reloaded(Refusal(self._clock.now_us(), refused, whole=False) if refused else None)
        return Done(plan.to_json(), WRONG if plan.refused else FINE)

    def status(self) -> dict[str, Any]:
        """The document of `archiver status`; raises `RetryLater` while not everything is open."""
        application = self._serving
        if application is None:
            raise RetryLater(
                "the daemon has not opened everything it needs, or is about to stop; /readyz says what "
                "it waits for"
            )
        daemon = daemon_document(
            self._settings.http.listen, self._journal, self._source_states(), self._mirror_states()
        )
        daemon["attention"] += self._tick.notes() + self._publication.notes()
        with self._read_alone():
            return status_document(application, self._clock.now_us(), self._tick.stuck(), daemon)

    # the end

    def _end(self, opening: threading.Thread) -> int:
        """Stop within the grace; the exit code."""
        grace_s = self._settings.daemon.shutdown_grace
        until_s = self._clock.monotonic_s() + grace_s
        _log.info("stopping within %g s", grace_s)
        with self._turning:
            self._stop.set()
            self._serving = None
            self._journal.becomes("stopping")
        self._notifier.stopping("stopping")
        self._notifier.longer(grace_s + ALIVE_S)
        self._schedule.stop()
        self._export.stop()
        ending = threading.Thread(target=self._close, args=(opening,), name="ending", daemon=True)
        ending.start()
        ended = self._ends(ending, until_s - LAST_SHARE * grace_s)
        application = self._opened.application
        if not ended and application is not None:
            _log.warning("the work under way is cut off; the next leader repeats what is not written")
            application.archiving.abandon_spark()
            ended = self._ends(ending, until_s - PORT_SHARE * grace_s)
        self._server.stop(max(0.0, until_s - self._clock.monotonic_s()))
        _log.info("stopped" if ended else "stopped, with work left to the next leader")
        if not ended:
            # Threads that hang would hold the process back; what they were at is safe to be cut off anywhere.
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(FINE)
        return FINE

    def _ends(self, thread: threading.Thread, until_s: float) -> bool:
        """Wait for the thread, alive."""
        while thread.is_alive() and (left_s := until_s - self._clock.monotonic_s()) > 0:
            thread.join(min(PAUSE_S, left_s))
            self._sign_of_life()
        return not thread.is_alive()

    def _close(self, opening: threading.Thread) -> None:
        """Everything in its order: first what others wait for."""
        opening.join()
        self._opened.close_intake()
        self._schedule.wait(threading.TIMEOUT_MAX)
        self._watch.close()
        self._publication.close()
        self._opened.close()


def _version() -> str:
    try:
        return version("stream-archiver")
    except PackageNotFoundError:
        return "unknown"
