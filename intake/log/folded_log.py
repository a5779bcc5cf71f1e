"""The fold of the intake log with its history files: read from the newest checkpoint, and read on.

Not thread-safe: its owner, the sequencer, holds a lock. Readers may use `fold` and `backlog` at any time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from archiver.config.groups import LogSettings
from archiver.log.checkpoints import Span
from archiver.log.store import Log, entries_from
from archiver.runtime.errors import Halt, Trimmed
from archiver.runtime.ids import TopicPartition
from intake.log.backlog import Backlog, Counted
from intake.log.checkpoint import Checkpoint, CheckpointStore
from intake.log.fold import Applied, IntakeFold
from intake.log.history import History

_RELOADS_MAX = 3
"""How often in a row the log may be trimmed below the checkpoint just loaded."""
_log = logging.getLogger(__name__)


class FoldedLog:
    """The fold of a log with its history files.

    Without `store` there are no checkpoints, and the log is read from its beginning. `applied` is called for
    every entry with its result.
    """

    def __init__(
        self,
        log: Log,
        store: CheckpointStore | None,
        settings: LogSettings,
        applied: Callable[[int, bytes, Applied], None],
    ) -> None:
        self._log = log
        self._store = store
        self._settings = settings
        self._applied = applied
        self._fold = IntakeFold()
        # The list of the newest checkpoint is fetched again only if a known history file is gone.
        self._history: History | None = (
            None if store is None else History(store.objects, lambda: store.newest_history(log))
        )
        self._counted: dict[TopicPartition, Counted] = {}
        self._started = False
        self._checkpoint_index = 0
        self._span = Span(settings)
        self._due_at: list[int] = []

    @property
    def fold(self) -> IntakeFold:
        """The state as of the last entry read. A new object after the log was trimmed past this process."""
        return self._fold

    @property
    def backlog(self) -> Backlog:
        """The fold together with the history files."""
        return Backlog(self._fold, self._history, self._counted)

    @property
    def checkpoint_index(self) -> int:
        """Index of the newest checkpoint that this process knows; 0 for none."""
        return self._checkpoint_index

    @property
    def checkpoint_due(self) -> bool:
        """Whether enough entries were read since the newest checkpoint that this process knows."""
        return bool(self._due_at)

    def apply(self, index: int, data: bytes) -> Applied:
        """Apply the next entry; raises as `IntakeFold.apply`."""
        applied = self._fold.apply(index, data)
        self._applied(index, data, applied)
        # Where a checkpoint is due follows from log and settings alone, so all processes agree on the index.
        if self._span.add(len(data)):
            self._due_at.append(index + 1)
        return applied

    def read_on(self) -> None:
        """Read up to the present tail of the log; the first time from the newest checkpoint.

        Raises `Halt` with the repair if the log was trimmed and no checkpoint reaches its floor.
        """
        for _ in range(_RELOADS_MAX):
            if not self._started:
                self._start()
            try:
                self._read_to_tail()
            except Trimmed:
                # Without checkpoints the trimmed entries are lost to this process.
                if self._store is None:
                    raise
                _log.warning(
                    "log %s was trimmed past entry %d; going on from its newest checkpoint",
                    self._log.name,
                    self._fold.next_index,
                )
                self._started = False
            else:
                return
        raise Halt(f"log {self._log.name} was trimmed {_RELOADS_MAX} times while it was read; try again")

    def reload(self) -> None:
        """Start again from the newest checkpoint and read on, because the log was trimmed past this process.
        Without checkpoints nothing is done.
        """
        if self._store is not None:
            self._started = False
            self.read_on()

    def learn(self, checkpoint: Checkpoint, read_to: int) -> None:
        """Use a new checkpoint of this process or another: drop what its history files hold. Nothing below
        entry `read_to` is due any more.

        The log must have been read to the checkpoint. An older checkpoint than the known one changes nothing.
        """
        self._due_at = [index for index in self._due_at if index > max(read_to, checkpoint.index)]
        # Another thread may have used a newer checkpoint in the meantime.
        if checkpoint.index <= self._checkpoint_index or self._history is None:
            return
        assert checkpoint.index <= self._fold.next_index, "the log must be read to the checkpoint first"
        self._history.learn(checkpoint.history)  # before the fold drops anything: readers read the fold first
        self._counted.clear()  # it holds references to segments that the fold drops
        self._fold.release_history(
            {tp: state.history_end for tp, state in checkpoint.state.partitions.items()}
        )
        self._checkpoint_index = checkpoint.index

    def _start(self) -> None:
        checkpoint = None if self._store is None else self._store.start(self._log)
        if checkpoint is None or self._history is None:
            self._fold, self._checkpoint_index = IntakeFold(), 0
        else:
            # The history files first: readers of the new fold need them at once.
            self._history.learn(checkpoint.history)
            self._fold, self._checkpoint_index = checkpoint.fold(), checkpoint.index
        self._span, self._due_at = Span(self._settings), []
        self._started = True

    def _read_to_tail(self) -> None:
        # If the tail moved back (a restored backup), this ends early; the next append reports it.
        for entry in entries_from(self._log, self._fold.next_index, self._log.tail()):
            self.apply(entry.index, entry.data)
