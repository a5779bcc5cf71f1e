"""Writes checkpoints of the control log, and trims it.

Order of writes: the log is folded to the entry where a checkpoint is due, the checkpoint is stored and read
back, and the log is trimmed. A crash in between leaves a log that is longer than necessary. A checkpoint is a
function of the log. So several processes, leaders or not, may write it at the same time, and a process that
slept may continue (decision 0045). The store does the fencing: an append below the floor is refused (rule
L1).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from archiver.config.groups import LogSettings
from archiver.ledger.checkpoint import LedgerCheckpoints, encode
from archiver.ledger.fold import LedgerFold
from archiver.ledger.leader import Leader
from archiver.log.checkpoints import KEPT, Span
from archiver.log.store import Log, entries_from
from archiver.objects.store import create_once
from archiver.runtime import failpoints
from archiver.runtime.errors import ArchiverError, Corrupted, Halt, KeyExists, Trimmed

CHECKPOINTS_PER_RUN_MAX = 10
"""A log without checkpoints may need hundreds. This bounds the time of one run; the next run continues."""
_log = logging.getLogger(__name__)


def _everything() -> int | None:
    return None


class LedgerCheckpointer:
    """Makes due checkpoints on request. Safe for several threads; one thread of a process works, the others
    return at once.

    `leader` has the position up to which the log was read. `needed_from` is called before the log is trimmed,
    and returns the lowest entry that a reader still needs, or None.
    """

    def __init__(
        self,
        log: Log,
        checkpoints: LedgerCheckpoints,
        leader: Leader,
        settings: LogSettings,
        needed_from: Callable[[], int | None] = _everything,
    ) -> None:
        self._log = log
        self._checkpoints = checkpoints
        self._leader = leader
        self._settings = settings
        self._needed_from = needed_from
        self._busy = threading.Lock()

    @property
    def due(self) -> bool:
        """Whether enough was read since the newest checkpoint that this process knows."""
        entries = self._leader.fold.next_index - self._leader.checkpoint_index
        return (
            entries >= self._settings.checkpoint_entries
            or self._leader.bytes_since >= self._settings.checkpoint_bytes
        )

    def run_if_due(self) -> bool:
        """Make the due checkpoints; returns whether there are new ones.

        Raises no `ArchiverError`: an error is logged, and the next call tries again. Does nothing if another
        thread is at work.
        """
        if not self._busy.acquire(blocking=False):
            return False
        try:
            # A leader that has read nothing yet would never find a checkpoint due.
            if self._leader.fold.next_index == 0:
                self._leader.refresh()
            return self.due and bool(self.run())
        # A missing checkpoint costs time at the next start and no data, so the caller must go on.
        except ArchiverError as error:
            _log.error(
                "no checkpoint of the control log was made, so its entries stay in the metadata store: %s",
                error,
            )
            return False
        finally:
            self._busy.release()

    def run(self) -> list[int]:
        """Make the due checkpoints, at most `CHECKPOINTS_PER_RUN_MAX`, and trim. Returns their indexes.

        Raises `Corrupted` if a stored object does not read back correctly, and `Halt` with a remedy if
        another object has its key. Raises the errors of log and store as well. Then the log is not trimmed.
        """
        made: list[int] = []
        try:
            # A fold of its own: that of the leader may be past the entry where a checkpoint is due.
            newest = self._checkpoints.start(self._log)
            fold, span, size = newest.fold if newest else LedgerFold(), Span(self._settings), 0
            reached = fold.next_index
            for entry in entries_from(self._log, fold.next_index):
                fold.apply(entry.index, entry.data)
                size += len(entry.data)
                # The place follows from log and settings alone, so all processes make the same checkpoints.
                if not span.add(len(entry.data)):
                    continue
                self._store(fold)
                # From here on a reader may start from it. The replaced entries are still there, so all
                # readers agree.
                made.append(fold.next_index)
                reached, size = fold.next_index, 0
                if len(made) == CHECKPOINTS_PER_RUN_MAX:
                    # The rest was not read. This size makes the next run due, which then reads it.
                    size = self._settings.checkpoint_bytes
                    break
            self._leader.know(reached, size)
        except Trimmed as error:
            _log.info("another process made checkpoints in between: %s", error)
        # Even if nothing was made: the process that made the last checkpoint may have been stopped before its
        # trim.
        self._trim()
        return made

    def _store(self, fold: LedgerFold) -> None:
        """Store the checkpoint, or reuse the existing one; verify that it reads back as the same state."""
        data, key = encode(fold), self._checkpoints.key(fold.next_index)
        failpoints.reach("ledger-checkpoint.upload.before")
        try:
            create_once(self._checkpoints.objects, key, data)
        # Another process made it, or this one before a restart. Then the bytes must be the same.
        except KeyExists as error:
            if self._checkpoints.objects.read(key) != data:
                raise Halt(
                    f"{self._checkpoints.objects.uri(key)} differs from the control log: it was damaged, "
                    "or another deployment's log was used with this data folder. Find out which; if it is "
                    "damaged, delete it and it is made again. The log is not trimmed until then"
                ) from error
        # Read back before the trim: until then the log holds the same state.
        if encode(self._checkpoints.load(fold.next_index).fold) != data:
            raise Corrupted(
                f"{self._checkpoints.objects.uri(key)} does not read back as it was made; the log is "
                "not trimmed"
            )
        failpoints.reach("ledger-checkpoint.upload.after")

    def _trim(self) -> None:
        """Trim below the older of the last two checkpoints, if both are intact and of this log."""
        # Below the older of two, so a damaged newest one costs time and no data.
        last = self._checkpoints.last()
        if len(last) < KEPT:
            return
        needed = self._needed_from()
        # One more entry is kept: its id proves that the checkpoint is of this log.
        below = last[-1].index - 1 if needed is None else min(last[-1].index - 1, needed)
        if below <= self._log.floor():
            return
        # A checkpoint of another log in this folder must never be a reason to trim this one.
        self._checkpoints.check_of(last, self._log)
        failpoints.reach("ledger.trim.before")
        self._log.trim(below)
        failpoints.reach("ledger.trim.after")
