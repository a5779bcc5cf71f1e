"""What a daemon opens at its start and closes at its end: application, intake writer, sources, the token of
administration.

Owns the order, and what is made where nothing was before. Every step may be taken again after an error;
`undo` gives back what the others have opened.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from archiver.app.application import Application
from archiver.config.settings import ControlTopicSettings, KafkaSourceSettings, Settings
from archiver.control_topic.destination import Destination
from archiver.control_topic.publisher import EventPublisher
from archiver.daemon.admin_token import ensure_token, token_path
from archiver.daemon.opening import Step
from archiver.daemon.storage_preflight import (
    check_data_place,
    check_metadata_place,
    check_state_folder,
    earlier_trace,
)
from archiver.objects.location import StorePlace
from archiver.objects.open import open_store
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError
from archiver.runtime.ids import IdSource
from archiver.runtime.redaction import hide
from intake.log.clock_check import check_start_clock
from intake.sources.files.pump import FileSources
from intake.sources.kafka.client_log import ClientLog
from intake.sources.kafka.pump import MirrorPump, mirror_pump, stop_all
from intake.sources.kafka.upstream import Upstream
from intake.write.writer import IntakeWriter

_log = logging.getLogger(__name__)


def connect(kafka: KafkaSourceSettings, clock: Clock, log: ClientLog) -> Upstream:
    """The cluster of a source. Its library is loaded where a source needs it."""
    from intake.sources.kafka.client import KafkaClient

    return KafkaClient(kafka, clock, log)


def connect_topic(kafka: ControlTopicSettings, clock: Clock, log: ClientLog) -> Destination:
    """The control topic. Its library is loaded where there is one."""
    from archiver.control_topic.kafka_topic import KafkaTopic

    return KafkaTopic(kafka, clock, log)


class Resources:
    """None of it before its step was taken."""

    def __init__(
        self,
        settings: Callable[[], Settings],
        environ: Mapping[str, str],
        roles: frozenset[str],
        clock: Clock,
        ids: IdSource,
    ) -> None:
        """`settings` are those in force, which a reload may change while the start still waits."""
        self.application: Application | None = None
        self.writer: IntakeWriter | None = None
        self.sources: FileSources | None = None
        self.mirrors: tuple[MirrorPump, ...] = ()
        self.token: str | None = None
        self._settings = settings
        self._environ = environ
        self._roles = roles
        self._clock = clock
        self._ids = ids

    def steps(self) -> list[Step]:
        """In their order, under the names of their checks."""
        intake = (
            [Step("intake", self._open_writer), Step("sources", self._open_sources)]
            if "intake" in self._roles
            else []
        )
        return [
            Step("objects", self._check_data),
            Step("metadata", self._check_metadata),
            Step("deployment", self._open_application),
            *intake,
        ]

    def undo(self) -> None:
        """Close what is open, before the steps are taken again."""
        self.sources, self.mirrors = None, ()
        writer, self.writer = self.writer, None
        application, self.application = self.application, None
        if writer is not None:
            self._close_writer(writer)
        if application is not None:
            application.close()

    def close_intake(self) -> None:
        """Take in nothing more; what was taken in is written and acknowledged, within
        `intake.close_timeout`.
        """
        for mirror in self.mirrors:
            mirror.begin_to_stop()
        if self.sources is not None:
            self.sources.stop(threading.TIMEOUT_MAX)
        # A cluster that does not answer is not waited for: what is not in the log is read again.
        stop_all(self.mirrors, self._settings().intake.close_timeout, self._clock)
        if self.writer is not None:
            self._close_writer(self.writer)

    def close(self) -> None:
        """Give up the leadership once the turn under way has ended, and close everything; the intake is
        closed already.
        """
        if self.application is not None:
            self.application.leadership.resign()
            self.application.close()
            self.application.archiving.abandon_spark()

    def _check_data(self) -> None:
        check_data_place(
            open_store(StorePlace.of(self._settings().data)), earlier_trace(self._settings().metadata)
        )

    def _check_metadata(self) -> None:
        if self._settings().metadata.sqlite is None:
            check_state_folder(self._beside().parent)
        else:
            check_metadata_place(self._beside(), open_store(StorePlace.of(self._settings().data)))

    def _open_application(self) -> None:
        settings, holding = self._settings(), self._roles >= {"archive", "reconcile"}
        self.application = Application(
            settings, self._environ, self._clock, self._ids, lasting=True, holding=holding
        )
        self.application.warm()
        if settings.http.admin_token is None:
            self.token = ensure_token(token_path(self._beside()), self._ids)
            hide([self.token])

    def _open_writer(self) -> None:
        assert self.application is not None, "a step before has opened it"
        application, intake = self.application, self._settings().intake
        check_start_clock(
            application.objects, self._clock, application.sequencer.fold.newest_us, intake.clock_skew_max
        )
        self.writer = application.intake.writer()

    def _open_sources(self) -> None:
        assert self.application is not None, "a step before has opened it"
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
        self.mirrors = tuple(
            self._mirror(source.kafka) for source in settings.sources if source.kafka is not None
        )

    def publisher(self, stopping: Callable[[], bool]) -> EventPublisher:
        """Of control events, for settings that name a topic; the steps were taken."""
        application, kafka = self.application, self._settings().events.kafka
        assert application is not None, "a step before has opened it"
        assert kafka is not None, "there is a topic"
        log = ClientLog(f"control topic {kafka.topic}", self._clock)
        return application.archiving.publisher(
            kafka, lambda: connect_topic(kafka, self._clock, log), stopping
        )

    def start_sources(self) -> None:
        """Begin to take in what is there; the steps were taken."""
        if self.sources is not None:
            self.sources.start()
        for mirror in self.mirrors:
            mirror.start()

    def _mirror(self, kafka: KafkaSourceSettings) -> MirrorPump:
        assert self.application is not None, "a step before has opened it"
        parts = self.application.sequencer, self.application.objects, self._clock, self._ids
        log = ClientLog(f"source {kafka.name}", self._clock)
        return mirror_pump(kafka, self._settings().intake, *parts, lambda: connect(kafka, self._clock, log))

    @staticmethod
    def _close_writer(writer: IntakeWriter) -> None:
        try:
            writer.close()
        except ArchiverError as error:
            _log.warning("%s", error)

    def _beside(self) -> Path:
        """The metadata database, or where this machine keeps its own beside etcd."""
        return self._settings().metadata.local_path
