"""The object store on a local file system.

An object is a file at that path below the root. It is written and synced in a spool folder on the same file
system, then hard-linked to its name. The link is atomic and fails if the name exists, which is the
conditional create. Then the folder is synced, and once per process every folder above it, so a returned
`create` survives a power cut.

The store never shows a half-written object, never replaces one, and never follows a key out of the root. That
includes symbolic links, through which external files could be read or written. Only the root itself may be a
link. Folders stay when their last object is deleted. One key cannot be the folder of another (`a` and `a/b`).
Network file systems are not supported.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

import pyarrow as pa

from archiver.objects.cluster import parse_cluster
from archiver.objects.key_rules import RESERVED, check_key, check_prefix, goes_on
from archiver.objects.paths import cluster_key
from archiver.objects.spool import Spool
from archiver.objects.store import ObjectInfo
from archiver.runtime.errors import (
    ArchiverError,
    ConfigInvalid,
    Corrupted,
    Halt,
    InvalidInput,
    KeyExists,
    NotFound,
    OutcomeUnknown,
    RetryLater,
)

# Errors after which the same write succeeds once there is space.
_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# Errors that may be gone at the next attempt.
_TRANSIENT: Final = {
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EIO,
    errno.EINTR,
    errno.EAGAIN,
    errno.EBUSY,
    errno.EMLINK,
}
_WRITE_BYTES: Final = 256 * 1024
"""Bytes of one write. For larger writes, Linux gets larger blocks of memory for its page cache. Free ones of
that size are rarer, and a virtual machine may have to get them from its host."""
_LINK_ATTEMPTS_MAX: Final = 3
"""Attempts when another process removes the folder or the spool file before the link."""

_T = TypeVar("_T")


class LocalObjectStore:
    """Objects below `root`. Safe to use from several threads and processes.

    With a cluster id, the root must belong to that cluster. Its `cluster.json` is read before each object is
    written, again before the object gets its name, and before each delete and listing. While the folder is
    unmounted, emptied or exchanged, these operations raise `RetryLater`. Nothing is then created below the
    mount point, and no object is reported missing. Without an id, the first write creates the root.
    """

    def __init__(self, root: Path, cluster_id: str | None = None) -> None:
        if not root.is_absolute():
            raise InvalidInput(f"the data folder {root} must be an absolute path")
        self.root = root
        # Resolved once: the root may be a link itself.
        self._real_root: str | None = None
        self._spool = Spool(root / RESERVED)
        # Folders that this process has synced together with their parents.
        self._durable: set[Path] = set()
        self._durable_lock = threading.Lock()
        self._cluster_id = cluster_id
        self._below = f"{str(root).rstrip('/')}/"
        """What the path of everything below the root begins with."""
        self._cluster_path = root / cluster_key()
        self._cluster_bytes: bytes | None = None
        """The last content of `cluster.json` that was this cluster's."""

    def uri(self, key: str) -> str:
        """`file://` and the plain path; not percent-encoded, because table readers do not decode it."""
        check_key(key)
        return f"file://{self.root}/{key}"

    def spool_dir(self) -> Path:
        """A folder of this process on the data's file system; its contents are deleted when the process ends.

        Raises as `create` if the folder cannot be created.
        """
        return self._spooling(self._spool.folder)

    def create(self, key: str, data: bytes) -> None:
        """As the Protocol says."""
        path = self._path(key)
        self._check_cluster()
        self._refuse_existing(key, path)
        temporary = self._spooling(self._spool.new_path)

        def write() -> None:
            with temporary.open("xb", buffering=0) as file:
                # An unbuffered write may store fewer bytes than given. The sync precedes the link, because
                # a name must never lead to bytes that a power cut can lose.
                rest = memoryview(data)
                while rest:
                    rest = rest[file.write(rest[:_WRITE_BYTES]) :]
                os.fsync(file.fileno())

        try:
            self._writing(key, write)
            self._publish(key, temporary, path)
        finally:
            # Also after success: the object has its own link to the same file.
            temporary.unlink(missing_ok=True)

    def create_from_file(self, key: str, path: Path) -> None:
        """See `ObjectStore`. A file in `spool_dir()` is consumed even on failure; any other file is copied
        and kept.
        """
        final = self._path(key)
        temporary = path if self._spool.owns(path) else self._spooling(self._spool.new_path)
        try:
            self._check_cluster()
            self._refuse_existing(key, final)
            if not path.is_file():
                self._check_cluster()  # a spool file is lost with the folder: report that first
                raise NotFound(f"there is no file {path} to store as {key}")

            def write() -> None:
                if temporary is not path:
                    shutil.copyfile(path, temporary)
                _sync(temporary)

            self._writing(key, write)
            self._publish(key, temporary, final)
        finally:
            temporary.unlink(missing_ok=True)

    def time_us(self) -> int | None:
        """The file system's current time, taken from a new file."""
        temporary = self._spooling(self._spool.new_path)

        def write() -> int:
            with temporary.open("xb", buffering=0) as file:
                # A new file: its time is by the clock of the file system, which also dates the objects.
                file.write(b"\n")
                os.fsync(file.fileno())
                return os.fstat(file.fileno()).st_mtime_ns // 1000

        try:
            return self._writing(str(temporary), write)
        finally:
            temporary.unlink(missing_ok=True)

    def read(self, key: str) -> bytes:
        """The whole object."""
        check_key(key)

        def read() -> bytes:
            with self._open(key) as file:
                return file.read()

        return self._reading(key, read)

    def read_range(self, key: str, start: int, length: int) -> bytes:
        """`length` bytes from `start`, fewer at the object's end. A negative `start` is limited to the
        object's beginning.
        """
        if length < 0:
            raise InvalidInput(f"cannot read {length} bytes of object {key}")
        check_key(key)

        def read() -> bytes:
            with self._open(key) as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(max(0, size + start) if start < 0 else start)
                return file.read(length)

        return self._reading(key, read)

    def open_input(self, key: str) -> pa.NativeFile:
        """An open file, not a memory map: a truncated file is then an error instead of a killed process
        (SIGBUS).
        """
        path = self._path(key)

        def open_file() -> pa.NativeFile:
            # A folder of objects is no object either.
            if not path.is_file():
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            return pa.OSFile(str(path), "rb")

        return self._reading(key, open_file)

    def info(self, key: str) -> ObjectInfo | None:
        """Size and time of one object, or None."""
        path = self._path(key)
        try:
            found = self._reading(key, path.stat)
        except NotFound:
            return None
        # A folder has a `stat` too, and is no object.
        return ObjectInfo(key, found.st_size, found.st_mtime_ns // 1000) if path.is_file() else None

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `ObjectStore`. Files whose path is not a valid key are skipped."""
        check_prefix(prefix)
        self._check_cluster()
        folder, _, _ = prefix.rpartition("/")
        # Checked now, before the first `next` of the iterator.
        self._refuse_way_out(folder)
        return self._walk(f"{folder}/" if folder else "", prefix)

    def delete(self, key: str) -> None:
        """See `ObjectStore`. Not synced: after a power cut the object may reappear, which is harmless."""
        check_key(key)
        path = self.root / key
        self._refuse_way_out(key.rpartition("/")[0])
        self._check_cluster()

        def remove() -> None:
            # A key that names a folder of objects is no object: nothing to delete.
            if path.is_file():
                path.unlink(missing_ok=True)

        self._writing(key, remove)

    def _path(self, key: str) -> Path:
        check_key(key)
        self._refuse_way_out(key)
        return self.root / key

    def _open(self, key: str) -> BinaryIO:
        """Open for reading. `/proc/self/fd` shows in one call whether a link was followed, instead of a walk
        over all folders.
        """
        try:
            file = io.BufferedReader(io.FileIO(f"{self.root}/{key}"))
        except OSError:
            self._refuse_way_out(key)
            raise
        try:
            if self._real_root is None:
                self._real_root = os.path.realpath(self.root)
            # False if a link was followed, or without `/proc`. Only then the walk over all folders is
            # needed.
            if not _is_at(file, f"{self._real_root}/{key}"):
                self._refuse_way_out(key)
        except BaseException:
            file.close()
            raise
        return file

    def _refuse_way_out(self, key: str) -> None:
        """Raise `Halt` if a link takes the key, or the folder of keys, out of the root."""
        at = str(self.root)
        for component in key.split("/"):
            at = f"{at}/{component}"
            try:
                mode = os.lstat(at).st_mode
            except OSError:
                return  # a missing path is no way out; any other error is reported by the open
            if stat.S_ISLNK(mode):
                break
        else:
            return
        # A link that stays inside of the root is allowed.
        real = os.path.realpath(self.root / key)
        if not Path(real).is_relative_to(os.path.realpath(self.root)):
            raise Halt(
                f"the link {at} leads to {real}, out of the data folder {self.root}; nothing is read, "
                "written or deleted there. Remove the link"
            )

    def _refuse_existing(self, key: str, path: Path) -> None:
        """Fail early, before the bytes are written. The link makes the final decision."""
        try:
            mode = path.stat().st_mode
        except OSError:
            # Mostly there is nothing. Any other error is reported by the write.
            return
        if stat.S_ISDIR(mode):
            raise InvalidInput(f"object key {key} is the folder of other objects")
        raise KeyExists(key)

    def _publish(self, key: str, temporary: Path, path: Path) -> None:
        for attempt in range(_LINK_ATTEMPTS_MAX):
            # Again, right before the object gets its name: the folder may have been exchanged during a long
            # write.
            self._check_cluster()
            # Before the link: a synced entry in a folder that is lost in a power cut would be lost with it.
            self._writing(key, lambda: self._make_durable(path.parent))
            try:
                # Atomic, and fails if the name exists. A rename would replace an existing object.
                os.link(temporary, path, follow_symlinks=False)
                break
            except FileExistsError as error:
                if path.is_dir():
                    raise InvalidInput(f"object key {key} is the folder of other objects") from error
                raise KeyExists(key) from error
            except FileNotFoundError as error:
                # The folder was removed after it was created. If the spool file is missing, a retry cannot
                # help.
                # The folders that were synced may be gone too, so they are created and synced again.
                with self._durable_lock:
                    self._durable.clear()
                if attempt == _LINK_ATTEMPTS_MAX - 1 or not temporary.exists():
                    raise RetryLater(
                        f"object {key} was not stored: another process removed its folder or its spool file"
                    ) from error
            except OSError as error:
                raise _not_applied(key, error) from error
        try:
            # The link is in the folder, so the folder must be synced before the create returns.
            _sync(path.parent)
        except OSError as error:
            # Readers may already see the object, but a power cut may still remove it.
            raise OutcomeUnknown(
                f"object {key} is in place but its folder could not be synced: {error.strerror}"
            ) from error

    def _make_durable(self, folder: Path) -> None:
        """Create the folder and sync its parents. Existing ones are synced too: another process may not have
        done so yet.
        """
        # Not held during the syncs. Two threads may sync the same folder, which is harmless.
        with self._durable_lock:
            if folder in self._durable:
                return
        made = not folder.is_dir()
        # `Path.is_relative_to` takes ten times as long.
        inside = folder == self.root or str(folder).startswith(self._below)
        # Parents first. Above the root the walk ends at the first existing folder.
        if (folder != self.root and inside) or not folder.parent.is_dir():
            self._make_durable(folder.parent)
        if made:
            # A root that had an identity is unmounted or deleted. Objects must not be written below an
            # empty mount point.
            if self._cluster_id is not None and (folder == self.root or not inside):
                raise FileNotFoundError(errno.ENOENT, "the data folder is gone", str(folder))
            folder.mkdir(exist_ok=True)
        try:
            _sync(folder.parent)
        except PermissionError:
            # The parent of an existing root need not be readable for this user.
            if made or folder != self.root:
                raise
        with self._durable_lock:
            self._durable.add(folder)

    def _walk(self, folder: str, prefix: str) -> Iterator[ObjectInfo]:
        """Objects below the folder (a key prefix that ends in a slash, or empty), in key order."""
        # A stack instead of recursion. Each iterator continues where the walk left its folder.
        left = [(folder, iter(self._entries(folder)))]
        while left:
            folder, entries = left[-1]
            for name, entry in entries:
                key = folder + name
                # Files of other programs, and the spool folder.
                if not goes_on(folder, entry.name):
                    continue
                if name.endswith("/"):
                    # Other folders cannot contain a key with the prefix, so they are not read.
                    if key.startswith(prefix) or prefix.startswith(key):
                        left.append((key, iter(self._entries(key))))
                        break
                # Links are skipped: an object is always a regular file.
                elif key.startswith(prefix) and entry.is_file(follow_symlinks=False):
                    try:
                        found = entry.stat(follow_symlinks=False)
                    # Deleted since the folder was read.
                    except FileNotFoundError:
                        continue
                    yield ObjectInfo(key, found.st_size, found.st_mtime_ns // 1000)
            else:
                left.pop()

    def _entries(self, folder: str) -> Sequence[tuple[str, os.DirEntry[str]]]:
        """The entries of a folder by name; empty if it does not exist."""
        try:
            with os.scandir(self.root / folder) as scan:
                # A folder sorts as its name with a slash, as its keys do.
                return sorted(
                    (entry.name + "/" if entry.is_dir(follow_symlinks=False) else entry.name, entry)
                    for entry in scan
                )
        except (FileNotFoundError, NotADirectoryError):
            # A folder is also missing if the data folder is unmounted. Its objects must not be reported as
            # missing.
            self._check_cluster()
            return ()
        except OSError as error:
            raise _not_applied(folder or str(self.root), error) from error

    def _check_cluster(self) -> None:
        """Raise `RetryLater` unless the root belongs to this cluster. Read every time, which costs less than
        a sync.
        """
        if self._cluster_id is None:
            return
        path = self._cluster_path
        try:
            # Called several times for each object: the same bytes are not parsed again.
            if self._cluster_bytes is not None and _holds(path, self._cluster_bytes):
                return
            data = path.read_bytes()
            found = parse_cluster(data, str(path)).cluster_id
        except (FileNotFoundError, NotADirectoryError) as error:
            raise RetryLater(
                f"the data folder {self.root} has lost its {cluster_key()}: mount it, or restore "
                "it; nothing was done"
            ) from error
        except OSError as error:
            raise _not_applied(cluster_key(), error) from error
        except (Corrupted, ConfigInvalid) as error:
            raise RetryLater(
                f"the data folder {self.root} has another {cluster_key()} now: {error}; nothing was done"
            ) from error
        if found != self._cluster_id:
            raise RetryLater(
                f"the data folder {self.root} is another cluster's now (id {found}, expected "
                f"{self._cluster_id}): "
                "restore the right folder, or correct data.uri; nothing was done"
            )
        self._cluster_bytes = data

    def _spooling(self, work: Callable[[], _T]) -> _T:
        try:
            self._check_cluster()
            # The spool folder could be a link, too.
            self._refuse_way_out(RESERVED)
            self._make_durable(self.root)
            return work()
        except (NotADirectoryError, FileExistsError) as error:
            raise ConfigInvalid(f"the data folder {self.root} is not a folder; correct data.uri") from error
        except OSError as error:
            raise _not_applied(str(self.root), error) from error

    def _reading(self, key: str, work: Callable[[], _T]) -> _T:
        try:
            return work()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            # The check reads that key itself.
            if key != cluster_key():
                self._check_cluster()
            raise NotFound(f"there is no object {key} in {self.root}") from error
        except OSError as error:
            raise _not_applied(key, error) from error

    def _writing(self, key: str, work: Callable[[], _T]) -> _T:
        try:
            return work()
        except (NotADirectoryError, FileExistsError) as error:
            raise InvalidInput(
                f"object key {key} goes through another object as if it were a folder"
            ) from error
        except OSError as error:
            raise _not_applied(key, error) from error


def _holds(path: Path, data: bytes) -> bool:
    """Whether the file has exactly these bytes; with fewer calls of the system than `Path.read_bytes`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # One byte more, so that a longer file differs.
        return os.read(descriptor, len(data) + 1) == data
    finally:
        os.close(descriptor)


def _not_applied(key: str, error: OSError) -> ArchiverError:
    """Map an error after which certainly nothing was stored to the error tree."""
    if error.errno in _FULL:
        return RetryLater(
            f"object {key} was not stored: the disk is full ({error.strerror}); free some space"
        )
    if error.errno in _TRANSIENT or isinstance(error, FileNotFoundError):
        return RetryLater(f"object {key}: {error.strerror}; nothing was stored")
    return Halt(
        f"object {key}: {error.strerror}; check that the data folder is writable for this user and "
        "allows hard links"
    )


def _is_at(file: BinaryIO, path: str) -> bool:
    """Whether the open file is at that path and not behind a link; False if the system cannot tell."""
    try:
        return os.readlink(f"/proc/self/fd/{file.fileno()}") == path  # noqa: PTH115 - for every small read
    except OSError:
        return False


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
