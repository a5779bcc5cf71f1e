"""What the status page keeps on this machine over a restart: the history of lag and traffic.

It runs as a job of its own: a full or hanging disk delays neither the watch nor the port. Nothing here
decides about data, so an error is one line of the log, and the daemon continues.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from archiver.runtime.clock import Clock
from archiver.runtime.local_file import NotUsable, read_local_file, replace_local_file
from archiver.status.chart_file import FILE_BYTES_MAX, decode, encode
from archiver.status.history import LagHistory

_log = logging.getLogger(__name__)

SAVE_S = 60.0
"""Minimum time between two writes of the history."""
FIRST_SAVE_S = 5.0
"""The first write: soon, so that a daemon that restarts often still keeps its history."""


def charts_path(metadata: Path) -> Path:
    """Path of the file with the charts; `metadata` is `MetadataSettings.local_path`."""
    return metadata.with_name(metadata.name + ".charts")


class LocalState:
    """Loads once, then saves now and then and at the stop. Safe for several threads."""

    def __init__(self, metadata: Path, history: LagHistory, clock: Clock) -> None:
        self._path = charts_path(metadata)
        self._history = history
        self._clock = clock
        self._lock = threading.Lock()
        self._cluster_id: str | None = None
        self._due_s = 0.0
        self._reported: str | None = None
        """Last error that was logged."""

    def load(self, cluster_id: str) -> None:
        """Continue the history of the daemon before this one. Nothing is saved before."""
        try:
            data = read_local_file(self._path, FILE_BYTES_MAX)
            if data is not None:
                kept = decode(data, self._clock.now_us(), cluster_id)
                self._history.restore(kept, self._clock.monotonic_s())
        except NotUsable as why:
            _log.warning("%s is ignored, and will be written again: %s", self._path, why)
        except OSError as error:
            _log.warning("%s cannot be read, so the charts begin empty: %s", self._path, error.strerror)
        self._due_s = self._clock.monotonic_s() + FIRST_SAVE_S
        self._cluster_id = cluster_id

    def run(self) -> None:
        """Save if that is due."""
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
                data = encode(kept, self._clock.now_us(), self._cluster_id)
                replace_local_file(self._path, data, 0o600)
            except OSError as error:
                self._report(f"{self._path} cannot be written, and it is tried again: {error.strerror}")
            else:
                self._reported = None

    def _report(self, line: str) -> None:
        """Log an error that lasts once."""
        if line != self._reported:
            self._reported = line
            _log.warning("%s", line)
