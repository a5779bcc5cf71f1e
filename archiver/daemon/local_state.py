"""What the status page has from this machine: its charts over a restart, and results that commands found.

It runs as a job of its own: a full or hanging disk delays neither the watch nor the port. Nothing here
decides about data, so an error is one line of the log, and the daemon continues.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from pathlib import Path

from archiver.runtime.clock import Clock
from archiver.runtime.local_file import NotUsable, read_local_file, replace_local_file
from archiver.runtime.redaction import excerpt
from archiver.status import chart_file, command_result
from archiver.status.history import LagHistory
from archiver.status.journal import Journal

_log = logging.getLogger(__name__)

SAVE_S = 60.0
"""Minimum time between two writes of the history."""
FIRST_SAVE_S = 5.0
"""The first write: soon, so that a daemon that restarts often still keeps its history."""


def charts_path(metadata: Path) -> Path:
    """Path of the file with the charts; `metadata` is `MetadataSettings.local_path`."""
    return metadata.with_name(metadata.name + ".charts")


def _identity(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    # A replaced file is another inode, also within one tick of the clock of the file system.
    return found.st_ino, found.st_mtime_ns, found.st_size


class LocalState:
    """Loads once, then saves now and then and at the stop, and reads results that have changed. Safe for
    several threads.
    """

    def __init__(self, metadata: Path, history: LagHistory, journal: Journal, clock: Clock) -> None:
        self._metadata = metadata
        self._path = charts_path(metadata)
        self._history = history
        self._journal = journal
        self._clock = clock
        self._lock = threading.Lock()
        self._cluster_id: str | None = None
        self._due_s = 0.0
        self._reported: str | None = None
        """Last error that was logged."""
        self._read: dict[str, tuple[int, int, int] | None] = {}
        """Identity of the file that was read last, by kind of result."""
        self._began_us: dict[str, int] = {}
        """Start of the run that this file is of."""

    def load(self, cluster_id: str) -> None:
        """Continue the history of the daemon before this one. Nothing is saved before."""
        try:
            data = read_local_file(self._path, chart_file.FILE_BYTES_MAX)
            if data is not None:
                kept = chart_file.decode(data, self._clock.now_us(), cluster_id)
                self._history.restore(kept, self._clock.monotonic_s())
        except NotUsable as why:
            _log.warning("%s is ignored, and will be written again: %s", self._path, why)
        except OSError as error:
            _log.warning("%s cannot be read, so the charts begin empty: %s", self._path, error.strerror)
        self._due_s = self._clock.monotonic_s() + FIRST_SAVE_S
        self._cluster_id = cluster_id

    def run(self) -> None:
        """Read the results of commands that are new, and save if that is due."""
        for job in command_result.JOBS:
            self._read_result(job)
        if self._clock.monotonic_s() >= self._due_s:
            self.save()

    def save(self) -> None:
        """Write the history, if it has a sample."""
        # The stop may come while a write runs.
        with self._lock:
            self._due_s = self._clock.monotonic_s() + SAVE_S
            kept = None if self._cluster_id is None else self._history.dump(self._clock.monotonic_s())
            if kept is None or self._cluster_id is None:
                return
            try:
                data = chart_file.encode(kept, self._clock.now_us(), self._cluster_id)
                replace_local_file(self._path, data, 0o600)
            except OSError as error:
                self._report(f"{self._path} cannot be written, and it is tried again: {error.strerror}")
            else:
                self._reported = None

    def _read_result(self, job: str) -> None:
        path = command_result.result_path(self._metadata, job)
        identity = _identity(path)
        if self._cluster_id is None:
            return
        if identity == self._read.get(job):
            self._remove_replaced(path, job, identity)
            return
        self._read[job] = identity
        self._began_us.pop(job, None)
        cycle = None
        try:
            data = read_local_file(path, command_result.FILE_BYTES_MAX)
            if data is not None:
                cycle = command_result.decode(data, job, self._clock.now_us(), self._cluster_id)
                self._began_us[job] = cycle.began_us
                _log.info("%s by a command, %s: %s", job, excerpt(cycle.by), excerpt(cycle.line))
        except NotUsable as why:
            _log.warning("%s is ignored: %s", path, why)
        except OSError as error:
            _log.warning("%s is ignored: it cannot be read: %s", path, error.strerror)
        self._journal.found_by_command(job, cycle)

    def _remove_replaced(self, path: Path, job: str, identity: tuple[int, int, int] | None) -> None:
        """Remove a result that one of this daemon has replaced: it must not come back with a restart."""
        own = self._journal.newest(job)
        replaced = own is not None and own.began_us >= self._began_us.get(job, own.began_us + 1)
        # A cycle without a verdict proves nothing; the result of the command stays for the next daemon.
        if own is None or not replaced or own.outcome not in ("fine", "wrong"):
            return
        with contextlib.suppress(OSError):
            # Another command may have replaced it since.
            if _identity(path) == identity:
                path.unlink()

    def _report(self, line: str) -> None:
        """Log an error that lasts once."""
        if line != self._reported:
            self._reported = line
            _log.warning("%s", line)
