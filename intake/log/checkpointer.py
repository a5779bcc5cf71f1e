"""Makes checkpoints of the intake log, stores history files, and trims the log.

Order of writes; each step begins only after the one before it was read back and compared:

1. The log is folded from the newest checkpoint to the entry where the next one is due. That index follows
   from the log and the settings.
2. The history file of that span is stored, still unreferenced. After a crash here the next run writes the
   same bytes again, or `superseded` lists the object once no reader can need it.
3. The checkpoint is stored; it names the history file. From here on a reader may start from it. The entries
   that it replaces are still in the log, so readers of log and checkpoint agree. After a crash here the
   log is longer than necessary.
4. The log is trimmed below the *older* of the last two intact checkpoints, so a damaged newest one costs time
   but no data. One more entry is kept: its id shows that the checkpoint is of this log.

Trimming earlier would lose entries. Naming a history file before it is stored would leave a checkpoint that
cannot be used. Every object is a function of the log, so several processes may do this at once, and a process
that slept may continue: it finds its own bytes. The store does the fencing: an append below the floor is
refused (rule L1).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from archiver.config.groups import LogSettings
from archiver.log.checkpoints import KEPT, Span
from archiver.log.lease import Lease
from archiver.log.store import Entry, Log, entries_from
from archiver.objects.paths import history_key
from archiver.objects.store import create_once
from archiver.runtime import failpoints
from archiver.runtime.errors import ArchiverError, Corrupted, Halt, KeyExists, LeaseHeld, Trimmed
from intake.log import history_file
from intake.log.checkpoint import Checkpoint, CheckpointStore, HistoryRef, encode, same
from intake.log.fold import IntakeFold
from intake.log.sequencer import Sequencer

LEASE_TRIES_MAX = 5
"""How often another process may hold the lease before this one makes checkpoints all the same: the holder may
be stopped, and metadata must not grow without bound. Making them twice is harmless."""
CHECKPOINTS_PER_RUN_MAX = 10
"""A log without any checkpoint may need hundreds. A run stops after this many so that its caller can
continue; the next run makes more."""
_log = logging.getLogger(__name__)


class Checkpointer:
    """Makes checkpoints that are due, on request. Callable from any thread; one thread of a process works,
    others return at once.

    `lease` avoids duplicate work between the processes of one machine; correctness does not depend on it.
    """

    def __init__(
        self,
        log: Log,
        store: CheckpointStore,
        sequencer: Sequencer,
        settings: LogSettings,
        lease: Lease | None = None,
    ) -> None:
        self._log = log
        self._store = store
        self._sequencer = sequencer
        self._settings = settings
        self._lease = lease
        self._lease_tries = 0
        self._busy = threading.Lock()

    @property
    def due(self) -> bool:
        """Whether enough was read since the newest checkpoint that this process knows."""
        return self._sequencer.checkpoint_due

    def run_if_due(self) -> bool:
        """Make the checkpoints that are due, and let the sequencer drop what is in history files. True if
        there are new ones.

        Raises nothing: an error is logged, and the next call tries again. Does nothing if another thread or
        process is working.
        """
        if not self._sequencer.checkpoint_due or not self._busy.acquire(blocking=False):
            return False
        try:
            # First use what another process made; often nothing is due after that.
            before = self._sequencer.checkpoint_index
            self._learn_newest()
            if self._sequencer.checkpoint_due:
                self._run_alone()
            return self._sequencer.checkpoint_index > before
        except ArchiverError as error:
            _log.error(
                "no checkpoint of the intake log was made, so its entries stay in the metadata store: %s",
                error,
            )
        except Exception:  # noqa: BLE001 - no caller waits for a checkpoint, so the error must be logged here
            _log.exception("unexpected error while making a checkpoint of the intake log")
        finally:
            self._busy.release()
        return False

    def learn(self) -> None:
        """Use a due checkpoint that another process made. For processes that only read.

        Raises no error of log and store: keeping entries in memory longer is harmless.
        """
        if self._sequencer.checkpoint_due and self._busy.acquire(blocking=False):
            try:
                self._learn_newest()
            except ArchiverError as error:
                _log.warning("the newest checkpoint of the intake log could not be read: %s", error)
            finally:
                self._busy.release()

    def _run_alone(self) -> None:
        held = False
        try:
            if self._lease is not None:
                self._lease.acquire()
                held = True
            # Another process did not hold it, so the count of its refusals starts again.
            self._lease_tries = 0
        except LeaseHeld as error:
            self._lease_tries += 1
            if self._lease_tries < LEASE_TRIES_MAX:
                return  # `_learn_newest` will use the holder's checkpoints
            _log.warning(
                "%s makes no checkpoint of the intake log although it holds the lease; "
                "making one without the lease",
                error.holder,
            )
        try:
            # Read before the run: entries that arrive during it may make another checkpoint due.
            read_to = self._sequencer.fold.next_index
            made = self.run()
            newest = self._store.start(self._log)
            if newest is not None:
                self._sequencer.learn(
                    # After a full run more may be due below `read_to`, so those stay due.
                    newest,
                    newest.index if len(made) == CHECKPOINTS_PER_RUN_MAX else read_to,
                )
        finally:
            # Not after `LeaseHeld`: then the lease belongs to another process.
            if held and self._lease is not None:
                self._lease.release()

    def _learn_newest(self) -> None:
        indexes = self._store.indexes()
        if indexes and indexes[-1] > self._sequencer.checkpoint_index:
            newest = self._store.start(self._log)
            if newest is not None:
                self._sequencer.learn(newest, newest.index)

    def run(self) -> list[int]:
        """Make up to `CHECKPOINTS_PER_RUN_MAX` checkpoints that are due, and trim; returns their indexes.

        Raises `Corrupted` if a stored object does not read back as written. Raises `Halt` with instructions
        if another object has its key, and errors of log and store. The log then keeps its length.
        """
        made: list[int] = []
        newest = self._store.start(self._log)
        try:
            while (
                len(made) < CHECKPOINTS_PER_RUN_MAX
                and (entries := self._span_from(newest.index if newest else 0)) is not None
            ):
                # Trim after each one: the metadata store shrinks during a long run, and a crash keeps that
                # progress.
                newest = self._make(newest, entries)
                made.append(newest.index)
                self._trim()
        # Not an error: another process made the same checkpoints, because they follow from the log.
        except Trimmed as error:
            _log.info("another process made checkpoints and trimmed the log: %s", error)
        if not made:
            self._trim()  # the process that made the last checkpoint may have stopped before it trimmed
        return made

    def _span_from(self, index: int) -> list[Entry] | None:
        """The entries from `index` up to where the next checkpoint is due; None if it is not due yet."""
        span, found = Span(self._settings), list[Entry]()
        for entry in entries_from(self._log, index):
            found.append(entry)
            # The same rule as in `FoldedLog`, so every process cuts the log at the same entries.
            if span.add(len(entry.data)):
                return found
        return None

    def _make(self, before: Checkpoint | None, entries: list[Entry]) -> Checkpoint:
        """The checkpoint that follows `before`, which must not be used afterwards."""
        named = before.history if before else ()
        for earlier in named:
            # This process may have slept since the listing, and the file may have been deleted.
            self._check_stored(earlier)
        fold = before.fold() if before else IntakeFold()
        for entry in entries:
            fold.apply(entry.index, entry.data)
        # Archived or not: what is moved must not depend on the watermarks, or two processes would write
        # different bytes.
        content = history_file.decided(fold)
        # Stored before the checkpoint that names it. A crash in between leaves an object that no checkpoint
        # names.
        ref = self._store_history(entries[0].index, fold.next_index, content)
        # The checkpoint must not contain what the history file holds.
        fold.release_history({tp: part.end for tp, part in content.items()})
        checkpoint = Checkpoint(fold.state(), (*named, ref))
        failpoints.reach("checkpoint.upload.before")
        stored = self._store_checkpoint(checkpoint)
        failpoints.reach("checkpoint.upload.after")
        return stored

    def _store_history(self, start: int, end: int, content: history_file.Content) -> HistoryRef:
        """Store the history file, or reuse an existing one with the same content."""
        key, data = history_key(start, end), history_file.encode(content)
        failpoints.reach("checkpoint.shelf.before")
        try:
            create_once(self._store.objects, key, data)
        except KeyExists as error:
            data = self._store.objects.read(key)  # another version may have written other bytes
            if not _holds(start, end, data, content):
                raise _other(self._store.objects.uri(key)) from error
        ref = history_file.ref_of(start, end, data)
        # Read back and compared before the log is trimmed: afterwards these objects are the only copy.
        if history_file.decode(ref, self._store.objects.read(key)) != content:
            raise Corrupted(
                f"{self._store.objects.uri(key)} does not read back as it was made; the log is not trimmed"
            )
        failpoints.reach("checkpoint.shelf.after")
        return ref

    def _store_checkpoint(self, checkpoint: Checkpoint) -> Checkpoint:
        """Store the checkpoint, or reuse an existing one; it reads back as the given state."""
        key = self._store.key(checkpoint.index)
        try:
            create_once(self._store.objects, key, encode(checkpoint))
        except KeyExists as error:
            try:
                found = self._store.load(checkpoint.index)
            except Corrupted:
                raise _other(self._store.objects.uri(key)) from error
            # Compared by state, because its history files may cover other spans.
            if not same(found.state, checkpoint.state):
                raise _other(self._store.objects.uri(key)) from error
            return found  # the same state, with history files of other spans
        # Read back and compared, as the history file.
        stored = self._store.load(checkpoint.index)
        if not same(stored.state, checkpoint.state) or stored.history != checkpoint.history:
            raise Corrupted(
                f"{self._store.objects.uri(key)} does not read back as it was made; the log is not trimmed"
            )
        return stored

    def _trim(self) -> None:
        """Trim below the older of the last two checkpoints, if both are intact and of this log, and their
        history files exist.
        """
        last = self._store.last()
        if len(last) < KEPT:
            return
        # One entry below the older checkpoint stays: its id shows that the checkpoint is of this log.
        below = last[-1].index - 1
        if below <= self._log.floor():
            return
        # After a restore of the metadata store alone, checkpoints of the lost newer log may exist.
        self._store.check_of(last, self._log)
        # Existence and size are enough: the content was compared when the file was stored.
        for checkpoint in last:
            for ref in checkpoint.history:
                self._check_stored(ref)
        failpoints.reach("log.trim.before")
        self._log.trim(below)
        failpoints.reach("log.trim.after")

    def _check_stored(self, ref: HistoryRef) -> None:
        key = history_key(ref.start, ref.end)
        info = self._store.objects.info(key)
        if info is None or info.size != ref.size:
            raise history_file.damaged(
                ref, "it is gone" if info is None else f"it has {info.size} bytes instead of {ref.size}"
            )


class CheckpointLoop:
    """A thread that makes checkpoints when they are due, so that no other thread waits for them. Close it.

    `before_each` is called before every poll; an `ArchiverError` from it is logged. `interval_s` is the
    polling interval; a poll costs nothing. While a due checkpoint fails, the interval doubles up to
    `interval_max_s`. `closing_s` bounds the wait for an unfinished checkpoint in `close`.
    """

    def __init__(
        self,
        checkpointer: Checkpointer,
        interval_s: float = 1.0,
        interval_max_s: float = 60.0,
        closing_s: float = 30.0,
        before_each: Callable[[], object] | None = None,
    ) -> None:
        self._checkpointer = checkpointer
        self._before_each = before_each
        self._interval_s = interval_s
        self._interval_max_s = interval_max_s
        self._closing_s = closing_s
        self._closing = threading.Event()
        # Daemon thread: an unfinished checkpoint must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Make what is due, then stop. A checkpoint that takes too long is abandoned: it may be interrupted
        at any point.
        """
        self._closing.set()
        self._thread.join(self._closing_s)
        if self._thread.is_alive():
            _log.warning(
                "a checkpoint of the intake log was not finished within %g s; the next process makes it",
                self._closing_s,
            )

    def _run(self) -> None:
        wait_s = self._interval_s
        while not self._closing.wait(wait_s):
            if self._before_each is not None:
                try:
                    self._before_each()
                except ArchiverError as error:
                    _log.warning("%s", error)
            self._checkpointer.run_if_due()
            # Still due after a run means that the run failed, or that another process is making it.
            wait_s = min(2 * wait_s, self._interval_max_s) if self._checkpointer.due else self._interval_s
        # Once more at close, so that the next start reads less of the log.
        self._checkpointer.run_if_due()


def _holds(start: int, end: int, data: bytes, content: history_file.Content) -> bool:
    try:
        # The digest in this reference is of the bytes just read, so only the content decides.
        return history_file.content_of(history_file.ref_of(start, end, data), data) == content
    except (Corrupted, ValueError, LookupError, TypeError):
        return False  # its digest is unknown, so a wrong bit may be anywhere, even in a column name


def _other(where: str) -> Halt:
    return Halt(
        f"{where} does not match the intake log: it was damaged, or another deployment's log was "
        "used with this data folder. Find out "
        "which; if it is damaged, delete it, and it is made again. The log is not trimmed until then"
    )
