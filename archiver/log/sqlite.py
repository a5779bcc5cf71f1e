"""The log in a SQLite database: the embedded default, for one machine and a local disk.

The file has application id "arch" and `user_version` 1. Table `logs` holds the floor of each log, table
`log_<name>` its entries by index. The database uses WAL and `synchronous=FULL`. Every append is one `BEGIN
IMMEDIATE` transaction that reads floor and tail itself. An acknowledged entry is therefore on disk, and there
is never a hole.

Never put the database on a network file system. A database that another program made is never changed.
"""

from __future__ import annotations

import logging
import os
import re
import sqlite3
import threading
import weakref
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final, TypeVar

from archiver.log.store import Appended, Entry
from archiver.log.tail_marker import TailMarker
from archiver.runtime.clock import Clock, SystemClock
from archiver.runtime.errors import (
    ArchiverError,
    Corrupted,
    Halt,
    InvalidInput,
    OutcomeUnknown,
    RetryLater,
    Trimmed,
)

FORMAT: Final = 1
"""The `user_version` this code reads and writes."""

# The letters "arch". It tells our database from that of another program.
_APPLICATION_ID: Final = 0x61726368
# One below the largest integer of SQLite, so that the tail after the last entry fits as well.
_INDEX_MAX: Final = 2**63 - 2
_FREE_BYTES_MIN: Final = 1024 * 1024
"""Free space to leave in addition to twice the entry: once for the WAL, once for the database at a WAL
checkpoint."""
# Pause between two tries of the switch to WAL, for which SQLite has no wait of its own (`_use_wal`).
_JOURNAL_MODE_WAIT_S: Final = 0.01
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,39}")

# Primary result codes after which a repetition may succeed.
_TRANSIENT: Final = {
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_INTERRUPT,
}
_LOCKED: Final = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
# Codes that a repetition does not change: the file or its folder has the wrong owner or mode.
_REFUSED: Final = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_AUTH}

_logger = logging.getLogger(__name__)
_T = TypeVar("_T")


class _Handle:
    """One thread's connection, opened on first use. The lock delays a `close` by another thread until an
    operation ends.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.connection: sqlite3.Connection | None = None
        # Device and inode at the open. A different file at the path later would not receive our writes.
        self.file_id: tuple[int, int] = (0, 0)
        # SQLite's POSIX locks belong to a process, so a connection must not be used after a fork.
        self.pid = os.getpid()

    def discard(self) -> None:
        """Close the connection, which undoes an open transaction."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()

    def __del__(self) -> None:
        if self.connection is None:
            return
        if self.pid == os.getpid():
            self.connection.close()
        else:
            # Closing the parent's connection in a child process could delete the WAL that the parent uses.
            _inherited.append(self.connection)


# Never read: a reference keeps the garbage collector from closing these connections.
_inherited: list[sqlite3.Connection] = []
# Of all stores: a fork is dangerous while any of them has a connection.
_handles: weakref.WeakSet[_Handle] = weakref.WeakSet()
_handles_lock = threading.Lock()
# The lock is taken around a fork: a child that inherits it locked would wait for it forever.
os.register_at_fork(
    before=_handles_lock.acquire, after_in_parent=_handles_lock.release, after_in_child=_handles_lock.release
)


def _refuse_after_fork() -> None:
    # Only open connections count. A fork before the first use, or after `release`, is safe.
    with _handles_lock:
        parent_pid = next(
            (
                handle.pid
                for handle in _handles
                if handle.connection is not None and handle.pid != os.getpid()
            ),
            None,
        )
    if parent_pid is not None:
        raise Halt(
            f"process {os.getpid()} was forked from {parent_pid} while the metadata database was open, "
            "which SQLite's locks do not survive; "
            "start a new process instead of forking"
        )


class SqliteLogStore:
    """All logs of one database file. Safe to use from several threads and processes.

    `busy_timeout_s` bounds the wait for another writer, `entry_bytes_max` the size of an entry. The file and
    its parent folder are created. Raises `Halt` if the file is not a metadata database, is of another format,
    or cannot be opened.
    """

    def __init__(
        self, path: Path, busy_timeout_s: float, entry_bytes_max: int, clock: Clock | None = None
    ) -> None:
        self.path = path
        self.entry_bytes_max = entry_bytes_max
        self._busy_timeout_s = busy_timeout_s
        self._clock = clock or SystemClock()
        # One connection per thread: a transaction belongs to a connection, and threads would mix theirs.
        self._local = threading.local()
        self._own: weakref.WeakSet[_Handle] = weakref.WeakSet()
        self._logs: list[SqliteLog] = []
        self._closed = False
        # Kept as text: every append checks this folder, and converting a Path costs more than the check.
        self._folder = os.fspath(path.parent)
        _create_folder(path.parent)
        # Opens the file now, so that a wrong database stops the start and not the first append.
        self.transact("begin", lambda _: None)

    def log(self, name: str) -> SqliteLog:
        """The log of that name, created if new. A name has lower-case letters, digits and underscores."""
        if not _NAME.fullmatch(name):
            raise InvalidInput(f"log name {name!r} must match {_NAME.pattern}")

        def exists(connection: sqlite3.Connection) -> bool:
            return connection.execute("select 1 from logs where name = ?", (name,)).fetchone() is not None

        def create(connection: sqlite3.Connection) -> None:
            connection.execute(
                f"create table if not exists log_{name} (idx integer primary key, data blob not null)"
            )
            connection.execute("insert into logs (name, floor) values (?, 0) on conflict do nothing", (name,))

        # A read first: the lock of a writer is not needed at each start.
        if not self.transact("begin", exists):
            self.transact("begin immediate", create)
        log = SqliteLog(self, name)
        self._logs.append(log)
        return log

    def close(self) -> None:
        """Close every connection; the store and its logs cannot be used afterwards."""
        self._closed = True
        for log in self._logs:
            log.close()
        self.release()

    def release(self) -> None:
        """Close every connection; the next use opens a new one."""
        with _handles_lock:
            # Only handles of this process: closing those of the parent could delete its WAL.
            own = [handle for handle in self._own if handle.pid == os.getpid()]
        for handle in own:
            # Waits until a running operation of that thread has ended.
            with handle.lock:
                handle.discard()

    def transact(self, begin: str, work: Callable[[sqlite3.Connection], _T], entry_bytes: int = 0) -> _T:
        """Run `work` in one transaction. Errors of `work` pass through.

        Raises `RetryLater` if certainly nothing was applied, `OutcomeUnknown` if COMMIT failed, `Halt` if the
        database is unusable. `entry_bytes` > 0 announces a write of that size, so file and free space are
        checked before.
        """
        if self._closed:
            raise Halt(f"the metadata database {self.path} was closed by this process")
        handle = self._handle()
        with handle.lock:
            connection = self._connection(handle)
            if entry_bytes:
                self._check_place(handle, entry_bytes)
            try:
                connection.execute(begin)
                result = work(connection)
            except sqlite3.Error as error:
                # Before COMMIT. Closing undoes the transaction, so certainly nothing was applied.
                handle.discard()
                raise self._translated(error) from error
            except BaseException:
                handle.discard()
                raise
            try:
                connection.execute("commit")
            except sqlite3.Error as error:
                # The commit frame may be in the WAL file, where the next open would find it. Hence unknown,
                # not failed.
                handle.discard()
                raise OutcomeUnknown(
                    f"metadata database {self.path}: commit failed, it may have been applied: {error}"
                ) from error
            except BaseException:
                handle.discard()
                raise
            return result

    def _handle(self) -> _Handle:
        handle: _Handle | None = getattr(self._local, "handle", None)
        # In a forked child the thread's handle is the parent's.
        if handle is None or handle.pid != os.getpid():
            _refuse_after_fork()
            handle = _Handle()
            self._local.handle = handle
            with _handles_lock:
                self._own.add(handle)
                _handles.add(handle)
        return handle

    def _connection(self, handle: _Handle) -> sqlite3.Connection:
        if handle.connection is None:
            connection: sqlite3.Connection | None = None
            try:
                # Autocommit, because the transactions are explicit. Any thread may close the connection
                # (`release`).
                connection = sqlite3.connect(
                    self.path,
                    timeout=self._busy_timeout_s,
                    isolation_level=None,
                    check_same_thread=False,
                    cached_statements=16,
                )
                self._prepare(connection)
                # After the open, which may create the file.
                found = self.path.stat()
            except (sqlite3.Error, OSError, ArchiverError) as error:
                if connection is not None:
                    connection.close()
                if isinstance(error, ArchiverError):
                    raise
                raise self._translated(error) from error
            handle.connection = connection
            handle.file_id = (found.st_dev, found.st_ino)
        return handle.connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        # Checked before the switch to WAL: a database of another program must not be changed.
        connection.execute("begin")
        fresh = _is_fresh(connection, self.path)
        connection.execute("commit")
        self._use_wal(connection)
        # SQLite's default in WAL mode may lose the last commits in a power cut.
        connection.execute("pragma synchronous = full")
        if fresh:
            connection.execute("begin immediate")
            # Checked again under the write lock: another process may have prepared the file.
            if _is_fresh(connection, self.path):
                connection.execute(
                    "create table logs (name text primary key, floor integer not null) without rowid"
                )
                connection.execute(f"pragma application_id = {_APPLICATION_ID}")
                connection.execute(f"pragma user_version = {FORMAT}")
            connection.execute("commit")

    def _use_wal(self, connection: sqlite3.Connection) -> None:
        # When two processes switch the mode of a new file at once, SQLite answers "locked" without its usual
        # wait.
        deadline_s = self._clock.monotonic_s() + self._busy_timeout_s
        while True:
            try:
                mode = connection.execute("pragma journal_mode = wal").fetchone()[0]
                break
            except sqlite3.OperationalError as error:
                if _primary(error) not in _LOCKED or self._clock.monotonic_s() >= deadline_s:
                    raise
                self._clock.sleep(_JOURNAL_MODE_WAIT_S)
        # SQLite reports a refused switch by the old mode and not by an error.
        if mode != "wal":
            raise Halt(
                f"metadata database {self.path}: its file system does not support WAL (mode is "
                f"{mode}); use a local disk"
            )

    def _check_place(self, handle: _Handle, entry_bytes: int) -> None:
        """Check the file and its disk before a write.

        An entry in a deleted or replaced file would be lost. A full disk found here is a clear error; during
        COMMIT the outcome would be unknown.
        """
        try:
            found = self.path.stat()
            disk = os.statvfs(self._folder)
        except OSError as error:
            handle.discard()
            raise self._translated(error) from error
        if (found.st_dev, found.st_ino) != handle.file_id:
            handle.discard()
            raise Halt(
                f"metadata database {self.path} was replaced by another file while it was open; "
                "restart after finding out why"
            )
        free_bytes = disk.f_bavail * disk.f_frsize
        # Some file systems report no blocks at all; then nothing is known.
        if disk.f_blocks and free_bytes < 2 * entry_bytes + _FREE_BYTES_MIN:
            raise RetryLater(
                f"metadata database {self.path}: the disk is full ({free_bytes} bytes free, an entry "
                f"of {entry_bytes} bytes was not "
                "appended); free some space"
            )

    def _translated(self, error: sqlite3.Error | OSError) -> ArchiverError:
        """Map an error outside COMMIT to the error tree."""
        return _translated(error, self.path, self._busy_timeout_s)


def _is_fresh(connection: sqlite3.Connection, path: Path) -> bool:
    """True for an empty database, False for an archiver database; raises `Halt` for any other. Runs inside a
    transaction.
    """
    application = connection.execute("pragma application_id").fetchone()[0]
    version = connection.execute("pragma user_version").fetchone()[0]
    tables = connection.execute("select count(*) from sqlite_master").fetchone()[0]
    # Compared before the other checks: our own database also has tables.
    if application == _APPLICATION_ID:
        if version != FORMAT:
            raise Halt(
                f"metadata database {path} has format {version}, this version reads format {FORMAT}; "
                "use the archiver version that wrote it"
            )
        return False
    if application or version or tables:
        raise Halt(
            f"{path} is a database of another program (application id {application}, {tables} tables), "
            "not archiver metadata; "
            "give metadata.sqlite.path a file of its own"
        )
    return True


def _translated(error: sqlite3.Error | OSError, path: Path, busy_timeout_s: float) -> ArchiverError:
    """Map an error outside COMMIT to the error tree."""
    place = f"metadata database {path}"
    if isinstance(error, OSError):
        return Halt(f"{place} cannot be used: {error.strerror}; restore it or check the path")
    primary = _primary(error)
    if primary in _LOCKED:
        return RetryLater(
            f"{place} was locked by another process for more than {busy_timeout_s} s; nothing was written"
        )
    if primary == sqlite3.SQLITE_FULL:
        return RetryLater(f"{place}: the disk is full, nothing was written; free some space")
    if primary in _TRANSIENT:
        return RetryLater(f"{place}: {error}; nothing was written")
    if primary == sqlite3.SQLITE_NOTADB:
        return Halt(f"{path} is not a database; give metadata.sqlite.path a file of its own, or restore it")
    if primary == sqlite3.SQLITE_CORRUPT:
        return Corrupted(f"{place} is damaged: {error}; restore it from a backup")
    if primary in _REFUSED:
        return Halt(
            f"{place} cannot be opened or written: {error}; check that file and folder exist and "
            "belong to this user"
        )
    return Halt(f"{place}: {error}")


def tails(path: Path, busy_timeout_s: float) -> dict[str, int]:
    """The tail of each log in the database. Creates and changes nothing; raises as `SqliteLogStore`."""
    # Without a WAL file no process has the database open. `immutable` stops SQLite from creating one.
    unused = not path.with_name(f"{path.name}-wal").exists()
    try:
        with closing(
            sqlite3.connect(
                f"{path.as_uri()}?mode=ro{'&immutable=1' if unused else ''}", busy_timeout_s, uri=True
            )
        ) as connection:
            if _is_fresh(connection, path):
                return {}
            names = [
                name
                for (name,) in connection.execute("select name from logs limit 100")
                if _NAME.fullmatch(name)
            ]
            question = (
                "select max(floor, ifnull((select max(idx) + 1 from log_{0}), 0)) from logs where name = "
                "'{0}'"
            )
            return {name: int(connection.execute(question.format(name)).fetchone()[0]) for name in names}
    except (sqlite3.Error, OSError) as error:
        raise _translated(error, path, busy_timeout_s) from error


class SqliteLog:
    """One log of a `SqliteLogStore`; see `archiver.log.store.Log`."""

    def __init__(self, store: SqliteLogStore, name: str) -> None:
        self.name: str = name
        self._store = store
        # Built once: SQLite caches prepared statements by their text.
        self._select_bounds = f"select floor, (select max(idx) from log_{name}) from logs where name = ?"  # noqa: S608
        self._insert = f"insert into log_{name} (idx, data) values (?, ?)"  # noqa: S608
        self._marker = TailMarker(store.path.with_name(f"{store.path.name}.{name}.tail"))
        self._marker_lock = threading.Lock()

    def append(self, index: int, data: bytes) -> Appended:
        """See `Log.append`. `UNKNOWN` if COMMIT failed."""
        limit = self._store.entry_bytes_max
        if len(data) > limit:
            raise InvalidInput(
                f"an entry of {len(data)} bytes for log {self.name} is over log.entry_bytes_max ({limit})"
            )
        if not 0 <= index <= _INDEX_MAX:
            raise InvalidInput(f"{index} is no index of log {self.name}")

        def put(connection: sqlite3.Connection) -> Appended:
            # In the transaction that inserts, so no other writer can come between.
            floor, tail = self._bounds(connection)
            with self._marker_lock:
                # On every append, not once: another process on this machine may have exchanged the
                # database.
                self._marker.check(tail)
            if index < floor:
                raise Trimmed(
                    f"log {self.name} was trimmed below {floor}; index {index} is gone and cannot be appended"
                )
            if index > tail:
                raise Halt(f"log {self.name} ends at {tail}; an entry at {index} would leave a hole")
            # An earlier attempt of this entry, or another entry (rule L1). The bytes decide, because each
            # entry has its own id.
            if index < tail:
                row = connection.execute(
                    f"select data from log_{self.name} where idx = ?",  # noqa: S608
                    (index,),
                ).fetchone()
                if row is None:
                    raise Corrupted(
                        f"log {self.name} has no entry {index} although it reaches from {floor} to {tail}"
                    )
                return Appended.OK if row[0] == data else Appended.TAKEN
            connection.execute(self._insert, (index, data))
            return Appended.OK

        try:
            # At least 1: 0 would mean a transaction without a write, whose place is not checked.
            outcome = self._store.transact("begin immediate", put, entry_bytes=max(1, len(data)))
        # Not an error here: the caller resolves it by the same append (rule L2).
        except OutcomeUnknown as error:
            _logger.warning("log %s: the append at %d has an unknown outcome: %s", self.name, index, error)
            return Appended.UNKNOWN
        if outcome is Appended.OK:
            # After the commit, so the marker never exceeds the log.
            with self._marker_lock:
                self._marker.note(index + 1)
        return outcome

    def read(self, start: int, limit: int = 1000) -> list[Entry]:
        """See `Log.read`; fewer than `limit` only at the tail. `Halt` beyond the tail: the log is older than
        its reader.
        """
        if start < 0 or limit < 1:
            raise InvalidInput(f"cannot read {limit} entries from {start} of log {self.name}")

        def fetch(connection: sqlite3.Connection) -> list[Entry]:
            floor, tail = self._bounds(connection)
            if start < floor:
                raise Trimmed(f"log {self.name} was trimmed below {floor}; it cannot be read from {start}")
            # An older copy of the database: its next entries would differ from those the reader has seen.
            if start > tail:
                raise Halt(
                    f"log {self.name} ends at {tail} but its reader is at {start}; was an older "
                    "metadata database put in place?"
                )
            rows = connection.execute(
                f"select idx, data from log_{self.name} where idx >= ? order by idx limit ?",  # noqa: S608
                (start, limit),
            )
            entries = [Entry(index, data) for index, data in rows]
            # A missing entry would shift the offsets of all later records.
            for expected, entry in enumerate(entries, start):
                if entry.index != expected:
                    raise Corrupted(f"log {self.name} has no entry {expected}, the next one is {entry.index}")
            return entries

        return self._store.transact("begin", fetch)

    def tail(self) -> int:
        """The index of the next entry."""
        return self._store.transact("begin", self._bounds)[1]

    def floor(self) -> int:
        """The lowest index that can still be read."""
        return self._store.transact("begin", self._bounds)[0]

    def trim(self, below: int) -> None:
        """See `Log.trim`. `InvalidInput`, and nothing is trimmed, if `below` is past the tail. Idempotent."""

        def forget(connection: sqlite3.Connection) -> None:
            floor, tail = self._bounds(connection)
            if below > tail:
                raise InvalidInput(
                    f"cannot trim log {self.name} below {below}: it ends at {tail}; nothing was trimmed"
                )
            # One transaction, so a reader never sees the floor without the deletion, or the reverse.
            if below > floor:
                connection.execute("update logs set floor = ? where name = ?", (below, self.name))
                connection.execute(f"delete from log_{self.name} where idx < ?", (below,))  # noqa: S608

        self._store.transact("begin immediate", forget)

    def close(self) -> None:
        """Release the store's connections; the next use of any of its logs opens new ones."""
        with self._marker_lock:
            self._marker.close()
        self._store.release()

    def _bounds(self, connection: sqlite3.Connection) -> tuple[int, int]:
        """Floor and tail, read in the current transaction."""
        row = connection.execute(self._select_bounds, (self.name,)).fetchone()
        if row is None:
            raise Corrupted(f"log {self.name} has vanished from the metadata database {self._store.path}")
        floor, newest = row
        # An empty table after a trim: the tail is the floor, because indexes are never reused.
        return floor, floor if newest is None else newest + 1


def _primary(error: sqlite3.Error) -> int:
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    # The upper bytes hold SQLite's extended result code.
    return code & 0xFF


def _create_folder(folder: Path) -> None:
    """Create the folder and its parents durably. SQLite syncs only the folder that contains its files."""
    # Listed before any is created, because each new folder needs a sync of its parent.
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    try:
        for parent in reversed(missing):
            parent.mkdir(exist_ok=True)
            # The entry of the new folder is in its parent.
            descriptor = os.open(parent.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
    except OSError as error:
        raise Halt(f"cannot create the folder {folder} of the metadata database: {error.strerror}") from error
