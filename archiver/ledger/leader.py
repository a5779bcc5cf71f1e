"""The leader of the control log: takes over, appends, and detects that it was deposed.

All appends to the control log are made here. Enforces the rules L1 (each entry has its own id), L2 (after an
append of unknown outcome the same bytes go to the same index before any other append), L3 (if the index is
taken, read to the tail; after a newer EPOCH, step down) and L4 (`check` reads the tail even if there is
nothing to do). It does not trust the lease, and never appends at a new tail without reading it.
"""

from __future__ import annotations

import contextlib
import logging
import threading

from archiver.ledger.checkpoint import LedgerCheckpoints
from archiver.ledger.entries import format_of
from archiver.ledger.fold import LedgerFold
from archiver.log.append_retry import AppendSettings, append_until_known
from archiver.log.store import Appended, Log, entries_from
from archiver.proto import control_log_pb2 as pb
from archiver.runtime import failpoints
from archiver.runtime.clock import Clock
from archiver.runtime.errors import Deposed, Halt, InvalidInput, OutcomeUnknown, RetryLater, Trimmed
from archiver.runtime.ids import IdSource, new_entry_id
from archiver.runtime.text import counted

Body = (
    pb.EpochStarted
    | pb.SchemaChanged
    | pb.SchemaText
    | pb.RoundStarted
    | pb.FilesWritten
    | pb.RoundWritten
    | pb.TableCommitted
    | pb.RoundSettled
    | pb.Condemned
    | pb.Deleted
    | pb.FilesRewritten
    | pb.RewriteSettled
    | pb.StartMoved
)
"""The possible bodies of an entry."""

_FIELDS: dict[type, str] = {
    pb.EpochStarted: "epoch_started",
    pb.SchemaChanged: "schema_changed",
    pb.SchemaText: "schema_text",
    pb.RoundStarted: "round_started",
    pb.FilesWritten: "files_written",
    pb.RoundWritten: "round_written",
    pb.TableCommitted: "table_committed",
    pb.RoundSettled: "round_settled",
    pb.Condemned: "condemned",
    pb.Deleted: "deleted",
    pb.FilesRewritten: "files_rewritten",
    pb.RewriteSettled: "rewrite_settled",
    pb.StartMoved: "start_moved",
}

_RELOADS_MAX = 3
"""Attempts if the log is trimmed while a reader starts from its newest checkpoint."""
_log = logging.getLogger(__name__)


class Leader:
    """A candidate for leadership. Safe for several threads."""

    def __init__(
        self,
        log: Log,
        ids: IdSource,
        clock: Clock,
        owner: str,
        settings: AppendSettings,
        checkpoints: LedgerCheckpoints | None = None,
    ) -> None:
        """Without `checkpoints` the log is read from its beginning."""
        self.fold = LedgerFold()
        """The control log as far as it was read; it contains own entries when `append` returns."""
        self.checkpoint_index = 0
        """The index of the newest checkpoint that this process knows; 0 without one."""
        self.bytes_since = 0
        """Bytes of the entries read since that checkpoint."""
        self.owner = owner
        """host:pid, for messages."""
        self.epoch = 0
        """The epoch of this leader; 0 until `take_over` has returned."""
        self._log = log
        self._ids = ids
        self._clock = clock
        self._settings = settings
        self._checkpoints = checkpoints
        self._unread = checkpoints is not None
        self._unresolved: tuple[int, bytes] | None = None
        self._lock = threading.RLock()

    @property
    def entry_bytes_max(self) -> int:
        """Largest entry that the log accepts, in bytes."""
        return self._settings.entry_bytes_max

    def refresh(self) -> None:
        """Read the log to its tail, the first time from the newest checkpoint.

        An append of unknown outcome is resolved first: otherwise decisions would ignore an entry that the log
        may still get (rule L2). An EPOCH is excluded: it says nothing about archives, and `take_over`
        resolves it.

        Raises `OutcomeUnknown` if it cannot be resolved. Raises `Halt` or `Corrupted` if an entry is not
        understood, or if the log was trimmed and no checkpoint reaches its first entry.
        """
        with self._lock:
            if self._unresolved is not None and not pb.ControlEntry.FromString(self._unresolved[1]).HasField(
                "epoch_started"
            ):
                self._resolve_rest()
            for _ in range(_RELOADS_MAX):
                if self._unread:
                    self._start()
                try:
                    for entry in entries_from(self._log, self.fold.next_index):
                        self._apply(entry.index, entry.data)
                    return
                except Trimmed:
                    if self._checkpoints is None:
                        raise
                    _log.warning(
                        "log %s was trimmed past entry %d; going on from its newest checkpoint",
                        self._log.name,
                        self.fold.next_index,
                    )
                    self._unread = True
            raise Halt(f"log {self._log.name} was trimmed {_RELOADS_MAX} times while it was read; try again")

    def _start(self) -> None:
        newest = None if self._checkpoints is None else self._checkpoints.start(self._log)
        if newest is not None and newest.index > self.fold.next_index:
            self.checkpoint_index, self.bytes_since = newest.index, 0
            self.fold.become(newest.fold)
        self._unread = False

    def _apply(self, index: int, data: bytes) -> None:
        self.fold.apply(index, data)
        self.bytes_since += len(data)

    def know(self, checkpoint_index: int, bytes_since: int) -> None:
        """Note that a checkpoint exists before that entry, and the bytes of entries read since."""
        with self._lock:
            if checkpoint_index >= self.checkpoint_index:
                self.checkpoint_index, self.bytes_since = checkpoint_index, bytes_since

    def take_over(self) -> int:
        """Read to the tail, append EPOCH(n+1), return n+1 (rule T1; the caller inspects the tables before its
        first plan).

        Raises `Deposed` if another leader took over in between, `OutcomeUnknown` if the outcome of the append
        is unknown.
        """
        with self._lock:
            self._resolve_rest()
            for _ in range(self._settings.append_attempts_max):
                self.refresh()
                epoch = self.fold.epoch + 1
                failpoints.reach("epoch.append.before")
                if self._try(self._entry(epoch, pb.EpochStarted())) is not None:
                    failpoints.reach("epoch.append.after")
                    self.epoch = epoch
                    return epoch
                self.refresh()
                if self.fold.epoch >= epoch:
                    raise Deposed(
                        f"{self.fold.owner} started epoch {self.fold.epoch} first; let it work, or try again"
                    )
            raise OutcomeUnknown(
                f"the control log's tail moved {counted(self._settings.append_attempts_max, 'time')} "
                "while taking over; try again"
            )

    def check(self) -> None:
        """Rules L4 and C4: read the tail; raise `Deposed` after a newer EPOCH."""
        with self._lock:
            self.refresh()
            self._must_lead()

    def follows(self, epoch: int) -> bool:
        """Whether `epoch` is newer than this leader's. Waits for a take-over in progress, which may have
        written that epoch.
        """
        if epoch <= self.epoch:
            return False
        with self._lock:
            return epoch > self.epoch

    def append(self, body: Body) -> int:
        """Append one entry of the own epoch and fold it; returns its index.

        Raises `Deposed` after a newer EPOCH, `OutcomeUnknown` if the outcome is unknown (the next call
        resolves it first), `InvalidInput` if the entry is larger than the log allows, `RetryLater` if
        certainly nothing was appended.
        """
        with self._lock:
            self._must_lead()
            self._resolve_rest()
            self._must_lead()
            data = self._entry(self.epoch, body)
            for _ in range(self._settings.append_attempts_max):
                index = self._try(data)
                if index is not None:
                    return index
                before = self.fold.applied
                self.refresh()
                self._must_lead()
                if self.fold.applied != before:
                    raise Halt(
                        f"the control log holds an entry of epoch {self.epoch} that this leader "
                        f"({self.owner}) did not write; "
                        f"two processes use one epoch: stop both, then start one"
                    )
            raise OutcomeUnknown(
                f"void entries kept taking the control log's tail at {self.fold.next_index}; try again"
            )

    def entry_size(self, body: Body) -> int:
        """The size of the entry in bytes, so that a writer can split large ones."""
        return len(self._encode(self.epoch, body, bytes(16)))

    def check_size(self, body: Body, what: str) -> None:
        """Raise `Halt`, naming `what` and the setting, if the log would refuse an entry with `body`."""
        size = self.entry_size(body)
        if size > self.entry_bytes_max:
            raise Halt(
                f"{what} needs an entry of {size} bytes, more than log.entry_bytes_max "
                f"({self.entry_bytes_max}); raise that setting"
            )

    def _must_lead(self) -> None:
        if self.epoch == 0:
            raise Halt("nothing is appended to the control log before the leadership is taken over")
        if self.fold.epoch > self.epoch:
            raise Deposed(
                f"epoch {self.fold.epoch} of {self.fold.owner} follows epoch {self.epoch} of this "
                "leader: step down"
            )

    def _entry(self, epoch: int, body: Body) -> bytes:
        return self._encode(epoch, body, new_entry_id(self._ids))

    def _encode(self, epoch: int, body: Body, entry_id: bytes) -> bytes:
        entry = pb.ControlEntry(
            format=format_of(body), id=entry_id, epoch=epoch, owner=self.owner, time_us=self._clock.now_us()
        )
        getattr(entry, _FIELDS[type(body)]).CopyFrom(body)
        return entry.SerializeToString()

    def _try(self, data: bytes) -> int | None:
        """Append at the tail known to this fold; None if another entry has that index."""
        index = self.fold.next_index
        self._unresolved = (index, data)
        try:
            outcome = append_until_known(
                self._log,
                index,
                data,
                attempts_max=self._settings.append_attempts_max,
                backoff_s=self._settings.append_backoff,
                clock=self._clock,
            )
        except Trimmed:
            self._unresolved = None
            return None  # another entry had that index, and a checkpoint contains it by now
        except (RetryLater, InvalidInput, Halt):
            self._unresolved = None  # the very first attempt was refused: nothing is in flight
            raise
        self._unresolved = None
        if outcome is Appended.TAKEN:
            return None
        self._apply(index, data)
        return index

    def _resolve_rest(self) -> None:
        """Rule L2: resolve the unknown outcome of an earlier call first. Reading the log then shows which
        entry has that index; if it was trimmed, its checkpoint does.
        """
        if self._unresolved is None:
            return
        index, data = self._unresolved
        with contextlib.suppress(Trimmed):
            append_until_known(
                self._log,
                index,
                data,
                attempts_max=self._settings.append_attempts_max,
                backoff_s=self._settings.append_backoff,
                clock=self._clock,
            )
        self._unresolved = None
        self.refresh()
