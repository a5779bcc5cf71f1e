"""Writes checkpoints of the control log, and trims it.

Order of writes; each step follows only after the previous one was read back and compared:

1. The log is folded from the newest checkpoint to the entry where the next one is due. That index follows
   from the log and the settings.
2. The checkpoint is stored. From here on a reader may start from it. The entries that it replaces are still
   in the log, so all readers agree. A crash here leaves a log that is longer than necessary.
3. At the end of a run the log is trimmed below the *older* of the last two intact checkpoints, so a damaged
   newest one costs time but no data. One more entry is kept: its id proves that the checkpoint is of this
   log. Entries that a reader still needs are kept (`needed_from`).

A checkpoint is a function of the log. So several processes, leaders or not, may write it at the same time,
and a process that slept may continue: it finds its own bytes. The store does the fencing: an append below the
floor is refused (rule L1).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from archiver.ledger.checkpoint import LedgerCheckpoints, encode
from archiver.ledger.fold import LedgerFold
from archiver.ledger.leader import Leader
from archiver.log.checkpoints import KEPT, Span, SpanSettings
from archiver.log.store import Log, entries_from
from archiver.objects.store import create_once
from archiver.runtime import failpoints
from archiver.runtime.errors import ArchiverError, Corrupted, Halt, KeyExists, Trimmed

CHECKPOINTS_PER_RUN_MAX = 10
"""A log without checkpoints may need hundreds. This limits the wait for one run; the next run continues."""
_log = logging.getLogger(__name__)


def _everything() -> int | None:
    return None


class LedgerCheckpointer:
    """Makes due checkpoints on request. Safe for several threads; one thread of a process works, the others
    return at once.

    `leader` knows how far the log was read. `needed_from` is called before the log is trimmed: the lowest
    entry that a reader still needs, or None.
    """

    def __init__(
        self,
        log: Log,
        checkpoints: LedgerCheckpoints,
        leader: Leader,
        settings: SpanSettings,
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
        """Make the due checkpoints; returns whether there are new ones. A leader that has read nothing yet
        first reads the log.

        Raises no `ArchiverError`: an error is logged, and the next call tries again. Does nothing if another
        thread is at work.
        """
        if not self._busy.acquire(blocking=False):
            return False
        try:
            if self._leader.fold.next_index == 0:
                self._leader.refresh()
            return self.due and bool(self.run())
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

        Raises `Corrupted` if a stored object does not read back correctly, `Halt` with a remedy if another
        object has its key, and the errors of log and store. The log is then as long as before.
        """
        made: list[int] = []
        try:
            newest = self._checkpoints.start(self._log)
            fold, span, size = newest.fold if newest else LedgerFold(), Span(self._settings), 0
            reached = fold.next_index
            for entry in entries_from(self._log, fold.next_index):
                fold.apply(entry.index, entry.data)
                size += len(entry.data)
                if not span.add(len(entry.data)):
                    continue
                self._store(fold)
                made.append(fold.next_index)
                reached, size = fold.next_index, 0
                if len(made) == CHECKPOINTS_PER_RUN_MAX:
                    size = (
                        self._settings.checkpoint_bytes
                    )  # the rest was not read: the next run must check it
                    break
            self._leader.know(reached, size)
        except Trimmed as error:
            _log.info("another process made checkpoints in between: %s", error)
        # even if nothing was made: the process that made the last checkpoint may have been stopped before its
        # trim
        self._trim()
        return made

    def _store(self, fold: LedgerFold) -> None:
        """Store the checkpoint, or reuse the existing one; verify that it reads back as the same state."""
        data, key = encode(fold), self._checkpoints.key(fold.next_index)
        failpoints.reach("ledger-checkpoint.upload.before")
        try:
            create_once(self._checkpoints.objects, key, data)
        except KeyExists as error:
            if self._checkpoints.objects.read(key) != data:
                raise Halt(
                    f"{self._checkpoints.objects.uri(key)} differs from the control log: it was damaged, "
                    "or another deployment's log was used with this data folder. Find out which; if it is "
                    "damaged, delete it and it is made again. The log is not trimmed until then"
                ) from error
        if encode(self._checkpoints.load(fold.next_index).fold) != data:
            raise Corrupted(
                f"{self._checkpoints.objects.uri(key)} does not read back as it was made; the log is "
                "not trimmed"
            )
        failpoints.reach("ledger-checkpoint.upload.after")

    def _trim(self) -> None:
        """Trim below the older of the last two checkpoints, if both are intact and of this log."""
        last = self._checkpoints.last()
        if len(last) < KEPT:
            return
        needed = self._needed_from()
        below = last[-1].index - 1 if needed is None else min(last[-1].index - 1, needed)
        if below <= self._log.floor():
            return
        self._checkpoints.check_of(last, self._log)
        failpoints.reach("ledger.trim.before")
        self._log.trim(below)
        failpoints.reach("ledger.trim.after")
