"""The intake log as one process has read it: the fold, the shelves behind it, and how much came since the
newest checkpoint.

Promises that the fold is that of the whole log up to `next_index`, whether it was read from the beginning or
from a checkpoint, and whether or not others trimmed meanwhile. Not thread-safe: the sequencer, whose part it
is, lets one thread at a time change it. Others may read the fold and the shelves at any time.
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
from intake.log.checkpoint import Checkpoint
from intake.log.checkpoint_store import CheckpointStore
from intake.log.fold import Applied, IntakeFold
from intake.log.history import History

_RELOADS_MAX = 3
"""How often in a row the log may be trimmed below what a newly loaded checkpoint needs."""

_log = logging.getLogger(__name__)


class FoldedLog:
    """The fold of a log and what belongs to it.

    `store` None: there are no checkpoints, the log is read from its beginning. `applied` is told of every
    entry and what it brought about.
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
        """The state as of the last entry that was read. Another object after the log was trimmed under this
        process.
        """
        return self._fold

    @property
    def backlog(self) -> Backlog:
        """The fold together with the shelves."""
        return Backlog(self._fold, self._history, self._counted)

    @property
    def checkpoint_index(self) -> int:
        """Of the newest checkpoint that this process knows; 0 for none."""
        return self._checkpoint_index

    @property
    def checkpoint_due(self) -> bool:
        """Whether enough entries were read since the newest checkpoint that this process knows."""
        return bool(self._due_at)

    def apply(self, index: int, data: bytes) -> Applied:
        """Take in the next entry; raises as `IntakeFold.apply`."""
        applied = self._fold.apply(index, data)
        self._applied(index, data, applied)
        if self._span.add(len(data)):
            self._due_at.append(index + 1)
        return applied

    def read_on(self) -> None:
        """Read up to the tail that the log has now, the first time from the newest checkpoint on.

        Raises `Halt`, naming the repair, if the log was trimmed and no checkpoint leads to where it begins.
        """
        for _ in range(_RELOADS_MAX):
            if not self._started:
                self._start()
            try:
                self._read_to_tail()
            except Trimmed:
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
        """Start again from the newest checkpoint and read on: the log was trimmed under this process. Without
        checkpoints nothing is done.
        """
        if self._store is not None:
            self._started = False
            self.read_on()

    def learn(self, checkpoint: Checkpoint, looked_to: int) -> None:
        """A checkpoint was made, by this process or another: let go of what is shelved. Nothing is due any
        more below entry `looked_to`.

        The log must have been read to the checkpoint. An older one than is known changes nothing.
        """
        self._due_at = [index for index in self._due_at if index > max(looked_to, checkpoint.index)]
        if checkpoint.index <= self._checkpoint_index or self._history is None:
            return
        assert checkpoint.index <= self._fold.next_index, (
            "the log is read to a checkpoint before it is learnt"
        )
        self._history.learn(
            checkpoint.history
        )  # before anything is let go of: readers look into the fold first
        self._counted.clear()  # or it would keep what the fold lets go of
        self._fold.release_history(
            {tp: state.history_end for tp, state in checkpoint.state.partitions.items()}
        )
        self._checkpoint_index = checkpoint.index

    def _start(self) -> None:
        checkpoint = None if self._store is None else self._store.start(self._log)
        if checkpoint is None or self._history is None:
            self._fold, self._checkpoint_index = IntakeFold(), 0
        else:
            self._history.learn(checkpoint.history)
            self._fold, self._checkpoint_index = checkpoint.fold(), checkpoint.index
        self._span, self._due_at = Span(self._settings), []
        self._started = True

    def _read_to_tail(self) -> None:
        # If the tail moved back (a restored backup), this ends early; the next append says so.
        for entry in entries_from(self._log, self._fold.next_index, self._log.tail()):
            self.apply(entry.index, entry.data)
