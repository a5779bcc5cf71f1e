"""The thread that takes files in by itself, for as long as a daemon runs.

Promises that every file is taken in exactly once, whoever else works on the same folder and whenever this
process dies (the fold sees to that, `intake.log.source_positions`); that at most one piece of one file is in
memory; and that no error ends the thread: what cannot be done now is said in `state` and tried again. Nothing
waits for it, and it waits for nothing without a bound.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from archiver.objects.store import ObjectStore
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError, ConfigInvalid, no_topic
from archiver.runtime.ids import IdSource
from intake.log.fold import TopicState
from intake.log.sequencer import Sequencer
from intake.sources.files.finished_files import Sweep
from intake.sources.files.ingest import Ways
from intake.sources.files.seen_folders import Homes
from intake.sources.files.source import FileSettings, FilesState, FolderSource, PieceSettings, source_name
from intake.write.accept_clock import AcceptClock
from intake.write.flush import FlushWriter
from intake.write.partitioner import Placement
from intake.write.validation import Judge

REST_SHARE = 4
"""A look that took long is followed by a rest this many times as long: a folder of a million files must not
keep a core busy."""

_log = logging.getLogger(__name__)


class SourceSettings(PieceSettings, Protocol):
    """What the sources need of the `intake` settings; durations in seconds, sizes in bytes."""

    @property
    def row_group_bytes(self) -> int:
        """Raw bytes at which a row group closes."""

    @property
    def clock_skew_max(self) -> float:
        """How far the clock may be ahead of its reference."""

    @property
    def clock_settle(self) -> float:
        """How long the clock must run evenly before the reference is taken anew."""


class FileSources:
    """Takes in the files of some folders. `start` it, and `stop` it before the log is closed."""

    def __init__(
        self,
        files: Sequence[FileSettings],
        partitions: Mapping[str, int],
        settings: SourceSettings,
        sequencer: Sequencer,
        objects: ObjectStore,
        clock: Clock,
        ids: IdSource,
        interval_s: float,
        prepare: Callable[[], object] = lambda: None,
        judge: Judge | None = None,
    ) -> None:
        """`partitions`: of each topic, in case it is not there yet. `prepare` is called before the first look
        that is to write anything, and again if it raises an error of ours. `judge` decides about records that
        do not decode.
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
        homes = Homes()
        ways = Ways(sequencer, publisher, accept_clock, self._stopping, homes, judge)
        placement = Placement(ids)
        sweeps: dict[str, Sweep] = {}
        self._folders: list[FolderSource] = []
        for one in files:
            sweep = (
                None
                if one.topic in sweeps
                else sweeps.setdefault(one.topic, Sweep(source_name(one.topic), sequencer, homes))
            )
            self._folders.append(FolderSource(one, settings, ways, placement, clock, sweep))
        self._thread = threading.Thread(target=self._run, name="file-sources", daemon=True)

    def start(self) -> None:
        """Begin; at once, and then every `interval_s`."""
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """End after the piece in work; whether it has ended within the time. What it leaves is taken in by
        whoever comes next.
        """
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def state(self) -> tuple[FilesState, ...]:
        """Each folder as of its last look, in the order of the settings."""
        return tuple(folder.state for folder in self._folders)

    def look(self) -> bool:
        """Look at every folder once; whether to look again at once. Raises nothing of ours: it is in
        `state`.
        """
        try:
            if not self._is_prepared:
                self._prepare()
                self._is_prepared = True
            self._sequencer.resolve()
        except ArchiverError as error:
            for folder in self._folders:
                folder.troubled(str(error))
            return False
        more = False
        for folder in self._folders:
            if not self._stopping.is_set():
                more = self._look(folder) or more
        return more

    def _look(self, folder: FolderSource) -> bool:
        try:
            more = folder.look(self._topic(folder.topic))
        except ArchiverError as error:
            folder.troubled(str(error))
            return False
        folder.troubled(None)
        return more

    def _topic(self, name: str) -> TopicState:
        """The topic, declared if it is not there; raises `ConfigInvalid` if it was deleted."""
        known = self._sequencer.fold.topics_by_name.get(name)
        if known is not None:
            return known
        if name not in self._partitions:
            raise ConfigInvalid(str(no_topic(name, self._partitions)))
        return self._sequencer.declare_topic(name, self._partitions[name])

    def _run(self) -> None:
        pause_s = 0.0
        while not self._stopping.wait(pause_s):
            began_s = self._clock.monotonic_s()
            more = False
            try:
                more = self.look()
            except Exception as error:  # noqa: BLE001
                # The head of the loop: nobody else would learn of it, and the next look begins with what the
                # log says.
                _log.exception("taking in files ended in an error nobody expected")
                for folder in self._folders:
                    folder.troubled(f"{type(error).__name__}: {error}")
            took_s = self._clock.monotonic_s() - began_s
            pause_s = 0.0 if more else max(self._interval_s, REST_SHARE * took_s)
