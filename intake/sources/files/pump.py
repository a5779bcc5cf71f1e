"""The thread of a daemon that ingests files.

Every file is ingested exactly once with any number of processes on a folder and after any crash; the fold
ensures this (`intake.log.source_positions`). At most one piece of one file is in memory. No error ends the
thread: problems are in `state` and the work is retried. Every wait is bounded.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence

from archiver.config.daemon import FileSourceSettings
from archiver.config.groups import IntakeSettings
from archiver.objects.store import ObjectStore
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError, ConfigInvalid, no_topic
from archiver.runtime.ids import IdSource
from intake.log.fold import TopicState
from intake.log.sequencer import Sequencer
from intake.sources.files.finished_files import Sweep
from intake.sources.files.ingest import IngestContext, SeenFolders
from intake.sources.files.source import FilesState, FolderSource, source_name
from intake.write.accept_clock import AcceptClock
from intake.write.flush import FlushWriter
from intake.write.partitioner import Placement
from intake.write.validation import Judge

REST_SHARE = 4
"""A poll is followed by a pause at least this many times as long: a folder of a million files must not keep a
core busy."""

_log = logging.getLogger(__name__)


class FileSources:
    """Ingests the files of all patterns. `start` it, and `stop` it before the log is closed."""

    def __init__(
        self,
        files: Sequence[FileSourceSettings],
        partitions: Mapping[str, int],
        settings: IntakeSettings,
        sequencer: Sequencer,
        objects: ObjectStore,
        clock: Clock,
        ids: IdSource,
        interval_s: float,
        prepare: Callable[[], object] = lambda: None,
        judge: Judge | None = None,
    ) -> None:
        """`partitions` has the partitions of each topic that may have to be created. `prepare` is called
        before the first poll, and again after an `ArchiverError`. `judge` decides about records that do not
        decode.
        """
        self._partitions = partitions
        self._sequencer = sequencer
        self._clock = clock
        self._interval_s = interval_s
        self._prepare = prepare
        self._is_prepared = False
        self._stopping = threading.Event()
        accept_clock = AcceptClock(clock, settings.clock_skew_max, settings.clock_settle)
        publisher = FlushWriter(objects, sequencer, settings.row_group_bytes, clock, ids, accept_clock)
        seen_folders = SeenFolders()
        context = IngestContext(sequencer, publisher, accept_clock, self._stopping, seen_folders, judge)
        placement = Placement(ids)
        sweeps: dict[str, Sweep] = {}
        self._folders: list[FolderSource] = []
        for one in files:
            # One sweep per topic: several patterns of a topic share its finished files in the log.
            sweep = (
                None
                if one.topic in sweeps
                else sweeps.setdefault(one.topic, Sweep(source_name(one.topic), sequencer, seen_folders))
            )
            self._folders.append(FolderSource(one, settings, context, placement, clock, sweep))
        # One thread for all patterns, so at most one piece is in memory.
        self._thread = threading.Thread(target=self._run, name="file-sources", daemon=True)

    def start(self) -> None:
        """Start polling: at once, then every `interval_s`."""
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Stop after the current piece; whether it ended in time. The next process ingests the rest."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def state(self) -> tuple[FilesState, ...]:
        """The state of each source at its last poll, in the order of the settings."""
        return tuple(folder.state for folder in self._folders)

    def poll(self) -> bool:
        """Poll every folder once; whether to poll again at once. An `ArchiverError` goes into `state`."""
        try:
            if not self._is_prepared:
                self._prepare()
                # Not after an error, so the next poll prepares again.
                self._is_prepared = True
            # An entry of unknown outcome may have moved positions; they must be known before a file is read.
            self._sequencer.resolve()
        except ArchiverError as error:
            for folder in self._folders:
                folder.troubled(str(error))
            return False
        more = False
        for folder in self._folders:
            if not self._stopping.is_set():
                more = self._poll(folder) or more
        return more

    def _poll(self, folder: FolderSource) -> bool:
        try:
            more = folder.poll(self._topic(folder.topic))
        except ArchiverError as error:
            folder.troubled(str(error))
            return False
        folder.troubled(None)
        return more

    def _topic(self, name: str) -> TopicState:
        """The topic, declared if it does not exist; raises `ConfigInvalid` if it was deleted."""
        known = self._sequencer.fold.topics_by_name.get(name)
        if known is not None:
            return known
        # Only a configured topic is created; its number of partitions is known from there.
        if name not in self._partitions:
            raise ConfigInvalid(str(no_topic(name, self._partitions)))
        return self._sequencer.declare_topic(name, self._partitions[name])

    def _run(self) -> None:
        pause_s = 0.0
        while not self._stopping.wait(pause_s):
            began_s = self._clock.monotonic_s()
            more = False
            try:
                more = self.poll()
            except Exception as error:  # noqa: BLE001
                # Head of the loop: log it and go on. The next poll starts from the log's state.
                _log.exception("ingesting files ended in an unexpected error")
                for folder in self._folders:
                    folder.troubled(f"{type(error).__name__}: {error}")
            took_s = self._clock.monotonic_s() - began_s
            # A long listing is followed by a long pause, or a large folder would keep a core busy.
            pause_s = 0.0 if more else max(self._interval_s, REST_SHARE * took_s)
