"""The leader of the control log: takes over, appends, and detects that it was deposed.

All appends to the control log are made here, under the rules L1 to L4 (docs/protocols/fencing.md). It does
not trust the lease, and never appends at a new tail without reading it.
"""

from __future__ import annotations

import contextlib
import logging
import threading

from archiver.config.groups import LogSettings
from archiver.ledger.checkpoint import LedgerCheckpoints
from archiver.ledger.entries import format_of
from archiver.ledger.fold import LedgerFold
from archiver.log.append_retry import append_until_known
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
        settings: LogSettings,
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
        # A reader that starts at entry 0 of a trimmed log would fail, so the newest checkpoint comes first.
        self._unread = checkpoints is not None
        # Index and bytes of an append whose outcome is unknown (rule L2).
        self._unresolved: tuple[int, bytes] | None = None
        # Reentrant: `take_over` and `append` call `refresh` while they hold it.
        self._lock = threading.RLock()

    @property
    def entry_bytes_max(self) -> int:
        """Largest entry that the log accepts, in bytes."""
        return self._settings.entry_bytes_max

    def refresh(self) -> None:
        """Read the log to its tail, the first time from the newest checkpoint.

        Raises `OutcomeUnknown` if it cannot be resolved. Raises `Halt` or `Corrupted` if an entry is not
        understood, or if the log was trimmed and no checkpoint reaches its first entry.
        """
        with self._lock:
            # Rule L2: without this, decisions would ignore an entry that the log may still get. An EPOCH is
            # excluded: it says nothing about archives, and `take_over` resolves it.
            if self._unresolved is not None and not pb.ControlEntry.FromString(self._unresolved[1]).HasField(
                "epoch_started"
            ):
                self._resolve_rest()
            # Another process may trim while this one reads. Each time a newer checkpoint exists.
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
        # An older checkpoint would set the fold back behind what this process already decided on.
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
            # Another thread may have noted a newer one already.
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
                # Two candidates may propose the same number. Only one can append at this index, and entries
                # have ids of their own (rule L1).
                epoch = self.fold.epoch + 1
                failpoints.reach("epoch.append.before")
                if self._try(self._entry(epoch, pb.EpochStarted())) is not None:
                    failpoints.reach("epoch.append.after")
                    self.epoch = epoch
                    return epoch
                # The index was taken. Only the entries there show whether another leader was faster.
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
        """Whether `epoch` is newer than this leader's."""
        if epoch <= self.epoch:
            return False
        # Compared again under the lock: a take-over in progress may have written that epoch itself.
        with self._lock:
            return epoch > self.epoch

    def append(self, body: Body) -> int:
        """Append one entry of the own epoch and fold it; returns its index.

        Raises `Deposed` after a newer EPOCH, and `OutcomeUnknown` if the outcome is unknown (the next call
        resolves it first). Raises `InvalidInput` if the entry is larger than the log allows, and `RetryLater`
        if certainly nothing was appended.
        """
        with self._lock:
            self._must_lead()
            self._resolve_rest()
            # Resolving reads the log, and may have found a newer EPOCH there.
            self._must_lead()
            # The same bytes and id in every attempt, so that a repetition is recognised as the same entry.
            data = self._entry(self.epoch, body)
            for _ in range(self._settings.append_attempts_max):
                index = self._try(data)
                if index is not None:
                    return index
                # A taken index is no failure if only void entries of deposed leaders are there (rule L3).
                before = self.fold.applied
                self.refresh()
                self._must_lead()
                # A valid entry of the own epoch from another writer. No rule permits that, so nothing can
                # continue.
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
        # Any 16 bytes do: an id has always this size.
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
        # Noted before the request: an exception of any kind in between leaves the outcome unknown.
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
            # Another entry had that index, and a checkpoint contains it by now.
            self._unresolved = None
            return None
        except (RetryLater, InvalidInput, Halt):
            # The very first attempt was refused, so nothing is in flight.
            self._unresolved = None
            raise
        self._unresolved = None
        if outcome is Appended.TAKEN:
            return None
        # The own entry is folded without being read back: index and bytes are certain.
        self._apply(index, data)
        return index

    def _resolve_rest(self) -> None:
        """Rule L2: resolve the unknown outcome of an earlier call first."""
        if self._unresolved is None:
            return
        index, data = self._unresolved
        # A trimmed index is occupied, so the outcome is certain, and a checkpoint contains the entry.
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
