"""The leader of the control log: takes over, appends, and notices that it was deposed.

Owns every append to the control log. Promises rules L1 (each entry has an id of its own), L2 (after an append
of unknown outcome the same bytes go to the same index before anything else is appended), L3 (a taken index
means: read to the tail; a newer EPOCH means: step down) and L4 (`check` reads the tail even when there is
nothing to do). The lease is trusted for nothing here. Must never append blindly at a new tail.
"""

from __future__ import annotations

import contextlib
import logging
import threading

from archiver.ledger.checkpoint import LedgerCheckpoints
from archiver.ledger.fold import LedgerFold
from archiver.ledger.formats import format_of
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
"""What an entry can say."""

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
"""How often the log may be trimmed under a reader that starts again from its newest checkpoint."""
_log = logging.getLogger(__name__)


class Leader:
    """One would-be leader. Safe to use from several threads."""

    def __init__(
        self,
        log: Log,
        ids: IdSource,
        clock: Clock,
        owner: str,
        settings: AppendSettings,
        checkpoints: LedgerCheckpoints | None = None,
    ) -> None:
        """`checkpoints` None: there are none, and the log is read from its beginning."""
        self.fold = LedgerFold()
        """The control log as far as it was read; own entries are in it when `append` returns."""
        self.checkpoint_index = 0
        """Of the newest checkpoint that this process knows; 0 for none."""
        self.bytes_since = 0
        """Of the entries that were read since that checkpoint."""
        self.owner = owner
        """host:pid, for people."""
        self.epoch = 0
        """Of this leader; 0 until `take_over` has returned."""
        self._log = log
        self._ids = ids
        self._clock = clock
        self._settings = settings
        self._checkpoints = checkpoints
        self._unread = checkpoints is not None
        self._unsettled: tuple[int, bytes] | None = None
        self._lock = threading.RLock()

    @property
    def entry_bytes_max(self) -> int:
        """Bytes of the largest entry the log takes."""
        return self._settings.entry_bytes_max

    def refresh(self) -> None:
        """Read the log to its tail, the first time from the newest checkpoint on. An append of unknown
        outcome is settled first: what is decided by a log that may get that entry yet would be decided
        without it (rule L2). Not an EPOCH, which says nothing of archives and is `take_over`'s to settle.

        Raises `OutcomeUnknown` if it cannot be settled; `Halt`, `Corrupted`: an entry cannot be understood,
        or the log was trimmed and no checkpoint leads to where it begins.
        """
        with self._lock:
            if self._unsettled is not None and not pb.ControlEntry.FromString(self._unsettled[1]).HasField(
                "epoch_started"
            ):
                self._settle_rest()
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
        """A checkpoint was made before that entry, and so many bytes of entries were read since."""
        with self._lock:
            if checkpoint_index >= self.checkpoint_index:
                self.checkpoint_index, self.bytes_since = checkpoint_index, bytes_since

    def take_over(self) -> int:
        """Read to the tail, append EPOCH(n+1), return n+1 (rule T1; the caller looks at the tables before its
        first plan).

        Raises `Deposed` if somebody else took over meanwhile, `OutcomeUnknown` if the append could not be
        settled.
        """
        with self._lock:
            self._settle_rest()
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
        """Rules L4 and C4: read the tail; `Deposed` if a newer EPOCH stands there."""
        with self._lock:
            self.refresh()
            self._must_lead()

    def follows(self, epoch: int) -> bool:
        """Whether `epoch` came after this leader's own. Waits for a take-over that is under way: it may be
        what has written that epoch.
        """
        if epoch <= self.epoch:
            return False
        with self._lock:
            return epoch > self.epoch

    def append(self, body: Body) -> int:
        """Append one entry of the own epoch and fold it; returns its index.

        Raises `Deposed` on a newer EPOCH, `OutcomeUnknown` if it could not be settled (the next call settles
        it first), `InvalidInput` if the entry is larger than the log allows, `RetryLater` if certainly
        nothing was appended.
        """
        with self._lock:
            self._must_lead()
            self._settle_rest()
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
        """Bytes the entry would have, so that a writer can split what is too large."""
        return len(self._encode(self.epoch, body, bytes(16)))

    def check_size(self, body: Body, what: str) -> None:
        """Raise `Halt`, naming `what` and the setting, if the log would not take an entry that says
        `body`.
        """
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
        """Append at the tail as this fold knows it; None if another entry stands there."""
        index = self.fold.next_index
        self._unsettled = (index, data)
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
            self._unsettled = None
            return None  # another entry stood there, and is in a checkpoint by now
        except (RetryLater, InvalidInput, Halt):
            self._unsettled = None  # the very first try was refused: nothing is in flight
            raise
        self._unsettled = None
        if outcome is Appended.TAKEN:
            return None
        self._apply(index, data)
        return index

    def _settle_rest(self) -> None:
        """Rule L2: what an earlier call left open is settled first. Whoever has that index then, the log says
        so when it is read, or its checkpoint if it was trimmed meanwhile.
        """
        if self._unsettled is None:
            return
        index, data = self._unsettled
        with contextlib.suppress(Trimmed):
            append_until_known(
                self._log,
                index,
                data,
                attempts_max=self._settings.append_attempts_max,
                backoff_s=self._settings.append_backoff,
                clock=self._clock,
            )
        self._unsettled = None
        self.refresh()
