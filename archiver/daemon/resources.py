"""Opens the resources of a daemon in order, with retries: application, token, intake writer and sources.

The start waits for missing resources, such as a folder that is not mounted yet or a metadata store that is
being restored. Only missing rights on a first start end it, after `DENIED_S`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from archiver.app.application import Application
from archiver.config.settings import ControlTopicSettings, KafkaSourceSettings, Settings
from archiver.control_topic.publisher import EventPublisher
from archiver.control_topic.waves import Destination
from archiver.daemon.admin_token import ensure_token, token_path
from archiver.daemon.storage_preflight import (
    check_data_place,
    check_metadata_place,
    check_state_folder,
    earlier_trace,
)
from archiver.objects.location import StorePlace
from archiver.objects.open import open_store
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError, NotPermitted
from archiver.runtime.ids import IdSource
from archiver.runtime.redaction import hide
from archiver.status.journal import Journal
from intake.log.clock_check import check_start_clock
from intake.sources.files.pump import FileSources
from intake.sources.kafka.client_log import ClientLog
from intake.sources.kafka.pump import MirrorPump, mirror_pump, stop_all
from intake.sources.kafka.upstream import Upstream
from intake.write.writer import IntakeWriter

if TYPE_CHECKING:
    from archiver.daemon.worker_pool import CountingWriter, WorkerPool
    from archiver.kafka.service import KafkaService

_log = logging.getLogger(__name__)

FIRST_WAIT_S = 0.1
KAFKA_STOP_S = 5.0
"""Time for the Kafka listener to write its last answers, once every record has its outcome."""
# The program that prepares a volume may still be setting its owner.
DENIED_S = 5.0
"""Time for which missing rights are tolerated."""


@dataclass(frozen=True)
class Step:
    """One step of the start."""

    name: str
    """Name of its check in the journal."""
    take: Callable[[], object]
    """Raises while it cannot be done; a retry repeats it together with the steps before it."""


class Opening:
    """Takes the steps in order, and all of them again after an error."""

    def __init__(
        self,
        steps: Sequence[Step],
        undo: Callable[[], None],
        journal: Journal,
        clock: Clock,
        retry_max_s: float,
    ) -> None:
        """`undo` closes what the steps have opened, after one of them failed."""
        self._steps = tuple(steps)
        self._undo = undo
        self._journal = journal
        self._clock = clock
        self._retry_max_s = retry_max_s
        self._logged = ""

    def run(self, stop: threading.Event) -> bool:
        """True when every step was taken; False if `stop` was set first.

        Raises `NotPermitted` if missing rights lasted for `DENIED_S`.
        """
        wait_s, denied_s = FIRST_WAIT_S, 0.0
        while not stop.is_set():
            error = self._once()
            if error is None:
                return True
            # Another error in between means that the place changes, so the time starts again.
            if not isinstance(error, NotPermitted):
                denied_s = 0.0
            elif denied_s >= DENIED_S:
                raise error
            stop.wait(wait_s)
            denied_s += wait_s
            # Exponential backoff; `stop` ends the wait at once.
            wait_s = min(2 * wait_s, self._retry_max_s)
        return False

    def _once(self) -> Exception | None:
        """Take every step; the error of the first that failed."""
        for step in self._steps:
            try:
                step.take()
            except Exception as error:  # noqa: BLE001 - the head of the start: only a request to stop ends it
                self._failed(step.name, error)
                # A retry repeats every step: a store that was remounted is another one for what is already
                # open.
                self._undo()
                return error
            self._journal.checked(step.name, None, self._clock.now_us())
        # Only if something was missing; an ordinary start needs no line.
        if self._logged:
            _log.info("what was missing at the start is there")
        return None

    def _failed(self, name: str, error: Exception) -> None:
        expected = isinstance(error, ArchiverError)
        why = str(error) if expected else f"an unexpected error: {type(error).__name__}: {error}"
        self._journal.checked(name, why, self._clock.now_us())
        # One line for each new reason, not one for each attempt.
        if why != self._logged:
            self._logged = why
            _log.warning("waiting for %s: %s", name, why, exc_info=None if expected else error)


def connect(kafka: KafkaSourceSettings, clock: Clock, log: ClientLog) -> Upstream:
    """Client of a source's Kafka cluster; imports its library."""
    from intake.sources.kafka.batch_client import connect_source

    return connect_source(kafka, clock, log)


def connect_topic(kafka: ControlTopicSettings, clock: Clock, log: ClientLog) -> Destination:
    """Client of the control topic; imports its library."""
    from archiver.control_topic.kafka_topic import KafkaTopic

    return KafkaTopic(kafka, clock, log)


class Resources:
    """Each resource is None until its step was taken."""

    def __init__(
        self,
        settings: Callable[[], Settings],
        environ: Mapping[str, str],
        roles: frozenset[str],
        clock: Clock,
        ids: IdSource,
        kafka_connections_max: int = 0,
    ) -> None:
        """`settings` returns those in force: a reload may change them while the start still waits. The Kafka
        listener has descriptors for `kafka_connections_max` connections.
        """
        self.application: Application | None = None
        self.writer: IntakeWriter | None = None
        self.sources: FileSources | None = None
        self.mirrors: tuple[MirrorPump, ...] = ()
        self.kafka: KafkaService | None = None
        self.workers: WorkerPool | None = None
        self.counting: CountingWriter | None = None
        """The writers of all processes; None without workers."""
        self.token: str | None = None
        self._settings = settings
        self._kafka_connections_max = kafka_connections_max
        self._environ = environ
        self._roles = roles
        self._clock = clock
        self._ids = ids

    def steps(self) -> list[Step]:
        """Steps of the start, in order."""
        intake = (
            [Step("intake", self._open_writer), Step("sources", self._open_sources)]
            if "intake" in self._roles
            else []
        )
        return [
            # The checks come first: opening creates what is absent, below a mount point too.
            Step("objects", self._check_data),
            Step("metadata", self._check_metadata),
            Step("deployment", self._open_application),
            *intake,
        ]

    def undo(self) -> None:
        """Close what is open, before the steps are repeated."""
        # They are not started before all steps are taken, so there is nothing to stop.
        self.sources, self.mirrors = None, ()
        writer, self.writer = self.writer, None
        application, self.application = self.application, None
        if writer is not None:
            # Before the application, whose log and store it writes to.
            self._close_writer(writer)
        if application is not None:
            application.close()

    def close_intake(self) -> None:
        """Stop intake; accepted records are written and acknowledged within `intake.close_timeout`."""
        # All begin to stop before the first wait, so that the waits overlap.
        for mirror in self.mirrors:
            mirror.begin_to_stop()
        if self.kafka is not None:
            self.kafka.close_intake()
        if self.workers is not None:
            self.workers.begin_to_stop()
        if self.sources is not None:
            self.sources.stop(threading.TIMEOUT_MAX)
        # Does not wait for a cluster without answer: records that are not in the log are read again later.
        stop_all(self.mirrors, self._settings().intake.close_timeout, self._clock)
        if self.writer is not None:
            self._close_writer(self.writer)
        if self.workers is not None:
            # As long as this process takes: they close a writer, and write their last answers.
            self.workers.wait(self._settings().intake.close_timeout + 2 * KAFKA_STOP_S)
        if self.kafka is not None:
            # After the writer, whose outcomes its clients wait for.
            self.kafka.stop(KAFKA_STOP_S)

    def close(self) -> None:
        """Resign the leadership after the current turn, and close everything. Intake must be closed
        before.
        """
        if self.application is not None:
            # Waits for the current turn. Resigning first lets the next leader start while this one closes.
            self.application.leadership.resign()
            self.application.close()
            self.application.archiving.abandon_spark()

    def _check_data(self) -> None:
        check_data_place(
            open_store(StorePlace.of(self._settings().data)), earlier_trace(self._settings().metadata)
        )

    def _check_metadata(self) -> None:
        if self._settings().metadata.sqlite is None:
            check_state_folder(self._metadata_path().parent)
        else:
            check_metadata_place(self._metadata_path(), open_store(StorePlace.of(self._settings().data)))

    def _open_application(self) -> None:
        # A daemon without both roles gives the lease back after each turn, so that another one can work.
        settings, holding = self._settings(), self._roles >= {"archive", "reconcile"}
        self.application = Application(
            settings, self._environ, self._clock, self._ids, lasting=True, holding=holding
        )
        # Cached properties are not safe for threads, so they are created before the jobs start.
        self.application.warm()
        if settings.http.admin_token is None:
            self.token = ensure_token(token_path(self._metadata_path()), self._ids)
            hide([self.token])

    def _open_writer(self) -> None:
        assert self.application is not None, "an earlier step opens it"
        application, intake = self.application, self._settings().intake
        # A wrong clock would give records wrong times, and an ingest time in the log raises all later ones.
        check_start_clock(
            application.objects, self._clock, application.sequencer.fold.newest_us, intake.clock_skew_max
        )
        self.writer = application.intake.writer()

    def _open_sources(self) -> None:
        assert self.application is not None, "an earlier step opens it"
        settings = self._settings()
        self.sources = FileSources(
            [source.files for source in settings.sources if source.files is not None],
            {topic.name: topic.partitions for topic in settings.topics},
            settings.intake,
            self.application.sequencer,
            self.application.objects,
            self._clock,
            self._ids,
            settings.daemon.watch_interval,
            judge=self.application.intake.validation,
        )
        # A Kafka source connects in its own thread, so an absent cluster does not hold back the start.
        self.mirrors = tuple(
            self._mirror(source.kafka) for source in settings.sources if source.kafka is not None
        )

    def publisher(self, stopping: Callable[[], bool]) -> EventPublisher:
        """Publisher of control events; needs the steps taken and a topic in the settings."""
        application, kafka = self.application, self._settings().events.kafka
        assert application is not None, "an earlier step opens it"
        assert kafka is not None, "there is a topic"
        log = ClientLog(f"control topic {kafka.topic}", self._clock)
        return application.archiving.publisher(
            kafka, lambda: connect_topic(kafka, self._clock, log), stopping
        )

    def start_sources(self) -> None:
        """Start ingesting; needs the steps taken."""
        if self.sources is not None:
            self.sources.start()
        for mirror in self.mirrors:
            mirror.start()
        settings = self._settings()
        if self.writer is not None:
            self._start_workers(settings, self.writer)
        if settings.kafka is not None and self.writer is not None and self.application is not None:
            # Only here: the protocol's schemas take time to load, and few deployments have a listener.
            from archiver.kafka.service import KafkaService

            self.kafka = KafkaService(
                settings.kafka,
                self.application,
                self.writer,
                settings.daemon.retry_max,
                self._kafka_connections_max,
                self.workers,
            )
            self.kafka.start()

    def _start_workers(self, settings: Settings, writer: IntakeWriter) -> None:
        if settings.intake.workers > 1:
            from archiver.daemon.worker_pool import CountingWriter, WorkerPool

            self.workers = WorkerPool(settings, self._environ, self._clock)
            self.counting = CountingWriter(writer.metrics, self.workers)
            self.workers.start()

    def _mirror(self, kafka: KafkaSourceSettings) -> MirrorPump:
        assert self.application is not None, "an earlier step opens it"
        parts = self.application.sequencer, self.application.objects, self._clock, self._ids
        log = ClientLog(f"source {kafka.name}", self._clock)
        return mirror_pump(kafka, self._settings().intake, *parts, lambda: connect(kafka, self._clock, log))

    @staticmethod
    def _close_writer(writer: IntakeWriter) -> None:
        try:
            writer.close()
        except ArchiverError as error:
            # The shutdown continues: records without an acknowledgement are sent again by their producers.
            _log.warning("%s", error)

    def _metadata_path(self) -> Path:
        """Path of the metadata database, or of the local state next to etcd."""
        return self._settings().metadata.local_path
