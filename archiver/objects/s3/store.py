"""The object store on S3 and S3-compatible servers.

An object is created by a conditional PUT (`If-None-Match: *`), or by a multipart upload with a conditional
completion. It is therefore whole or absent, and never replaced; `conditional_create.py` has the rules. Other
requests change nothing or are idempotent, and are repeated within the bounds of the settings. The server must
support the condition, show an object once its create has returned, and list keys in order.

Nothing is written, deleted, listed or reported missing in another cluster's bucket; `ClusterCheck` decides
when that is checked. A forked process uses its own client.
"""

from __future__ import annotations

import io
import os
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from archiver.config.storage import bad_s3_uri
from archiver.objects.cluster import parse_cluster
from archiver.objects.key_rules import KEY_BYTES_MAX, check_key, check_prefix, is_key
from archiver.objects.location import S3_SCHEME, StorePlace
from archiver.objects.paths import cluster_key
from archiver.objects.s3.calls import AGAIN, S3Calls, S3Failed
from archiver.objects.s3.conditional_create import Creator, Upload
from archiver.objects.s3.errors import ErrorKind
from archiver.objects.spool import Spool
from archiver.objects.store import ObjectInfo
from archiver.runtime.clock import Clock, SystemClock
from archiver.runtime.errors import (
    ConfigInvalid,
    Corrupted,
    Halt,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    RetryLater,
)
from archiver.runtime.ids import IdSource, SystemIds
from archiver.runtime.redaction import excerpt

# --- Reading with read-ahead.
END_BYTES: Final = 256 * 1024
"""Bytes read at open: the footer of nearly every file, and all of a small one."""
AHEAD_FIRST: Final = 256 * 1024
"""Smallest read at a new position."""
AHEAD_MAX: Final = 8 * 1024 * 1024
"""Largest read-ahead. It doubles with each sequential read: eight requests for 30 MB."""
BLOCKS_KEPT: Final = 3
"""Blocks to cache: the columns of a row group are not always read in their order."""

Fetch = Callable[[int, int], bytes]
"""The bytes [start, end) of the object."""


class S3Input(io.RawIOBase):
    """A seekable, read-only file. Safe to use from several threads, one read at a time."""

    def __init__(self, size: int, end: bytes, fetch: Fetch) -> None:
        """`end` are the last bytes of the object, of any number."""
        super().__init__()
        self._size = size
        self._fetch = fetch
        self._at = 0
        self._end_start, self._end = size - len(end), end
        # A short list instead of a dictionary: a read may begin anywhere in a block.
        self._blocks: list[tuple[int, bytes]] = []
        """(start, bytes), most recently used last."""
        self._ahead = AHEAD_FIRST
        self._next = -1
        """Where the last block ended."""
        self._lock = threading.RLock()

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def size(self) -> int:
        """Bytes of the object."""
        return self._size

    def tell(self) -> int:
        """Where the next read begins."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position; no request."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError(f"cannot seek to {base + offset}")
        self._at = base + offset
        return self._at

    def read(self, size: int | None = -1, /) -> bytes:
        """Up to `size` bytes, fewer only at the end."""
        if self.closed:
            raise ValueError("the object is closed")
        with self._lock:
            left = max(0, self._size - self._at)
            # Never beyond the end: the server answers such a range with an error.
            length = left if size is None or size < 0 else min(size, left)
            found = self._range(self._at, self._at + length)
            self._at += length
            return found

    def readall(self) -> bytes:
        """The rest."""
        return self.read()

    def close(self) -> None:
        """Free the cached blocks."""
        self._blocks.clear()
        self._end = b""
        super().close()

    def _range(self, start: int, end: int) -> bytes:
        pieces: list[bytes] = []
        while start < end:
            piece = self._kept(start, end) or self._asked(start, end)
            pieces.append(piece)
            start += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _kept(self, start: int, end: int) -> bytes:
        """Cached bytes from `start` on; empty if there are none."""
        if start >= self._end_start:
            return self._end[start - self._end_start : end - self._end_start]
        for number, (first, block) in enumerate(self._blocks):
            if first <= start < first + len(block):
                # To the end, so that the least recently used block is dropped first.
                self._blocks.append(self._blocks.pop(number))
                return block[start - first : end - first]
        return b""

    def _asked(self, start: int, end: int) -> bytes:
        """One request for the range and the read-ahead, up to the next cached block."""
        # Only sequential reads earn a larger read-ahead. A jump in the file starts small again.
        self._ahead = min(AHEAD_MAX, 2 * self._ahead) if start == self._next else AHEAD_FIRST
        # The bytes of a cached block are not requested again.
        limit = min([self._end_start, *(first for first, _ in self._blocks if first > start)])
        upto = min(max(end, start + self._ahead), limit)
        block = self._fetch(start, upto)
        self._next = upto
        if len(block) <= AHEAD_MAX:  # a larger column chunk is read only once, so it is not cached
            self._blocks = [*self._blocks, (start, block)][-BLOCKS_KEPT:]
        return block[: end - start]


# --- Unfinished multipart uploads.
@dataclass(frozen=True, slots=True)
class OpenUpload:
    """One upload that is active or abandoned."""

    path: str
    """The key in the bucket."""
    upload_id: str
    begun_us: int


def open_uploads(calls: S3Calls, bucket: str, prefix: str) -> Iterator[OpenUpload]:
    """All uploads to keys that start with `prefix`, page by page."""
    marker: dict[str, str] = {}
    while True:
        where = {"Bucket": bucket, "Prefix": prefix, **marker}
        page: dict[str, Any] = calls.found(
            f"listing the open uploads of {bucket}",
            f"there is no bucket {bucket}",
            lambda client, where=where: client.list_multipart_uploads(**where),  # type: ignore[misc]
        )
        for one in page.get("Uploads", ()):
            yield OpenUpload(
                str(one["Key"]), str(one["UploadId"]), round(one["Initiated"].timestamp() * 1_000_000)
            )
        if not page.get("IsTruncated"):
            return
        # Both markers: one key may have several open uploads across two pages.
        marker = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page.get("NextUploadIdMarker", "")}


def abort_upload(calls: S3Calls, bucket: str, found: OpenUpload) -> None:
    """Abort an upload and free its parts; a missing upload is no error."""
    arguments = {"Bucket": bucket, "Key": found.path, "UploadId": found.upload_id}
    try:
        calls.repeated(
            f"aborting an upload of {found.path}", lambda client: client.abort_multipart_upload(**arguments)
        )
    except S3Failed as error:
        # The upload may have been completed or aborted in the meantime.
        if error.kind not in (ErrorKind.NO_UPLOAD, ErrorKind.MISSING):
            raise Halt(f"an upload of {found.path} cannot be aborted: {error.why}") from error


# --- The check whose bucket it is.
VALID_S: Final = 60.0
"""Seconds for which one successful check is valid."""


class ClusterCheck:
    """Checks that the bucket belongs to this cluster: at most once a minute, and after each error.

    A check before each request, as in a local folder, would double the number of requests. A bucket changes
    its owner over minutes, with errors in between. Safe to use from several threads.
    """

    def __init__(self, cluster_id: str | None, uri: str, read: Callable[[], bytes], clock: Clock) -> None:
        """`read` reads `cluster.json`; without a cluster id nothing is checked."""
        self._cluster_id = cluster_id
        self._uri = uri
        self._read = read
        self._clock = clock
        # So that the first operation checks, even if the clock starts at 0.
        self._checked_s = -VALID_S
        self._doubt = object()
        """Replaced by each error. A counter could lose one of two errors at the same time."""
        self._checked_doubt: object | None = None
        """The doubt that the last successful check removed; None: never checked."""

    def doubt(self) -> None:
        """Record an error after which another bucket may reply; the next operation checks first."""
        self._doubt = object()

    def check(self) -> None:
        """Raise `RetryLater` unless the bucket belongs to this cluster. Errors of the read pass through."""
        if self._cluster_id is None:
            return
        now_s, doubt = self._clock.monotonic_s(), self._doubt
        if self._checked_doubt is doubt and now_s - self._checked_s < VALID_S:
            return
        self._verify()
        # Read before the check: an error during it, even if a retry succeeded, causes another check.
        self._checked_s, self._checked_doubt = now_s, doubt

    def _verify(self) -> None:
        try:
            data = self._read()
        except NotFound as error:
            raise RetryLater(
                f"{self._uri} has lost its {cluster_key()}: restore it, or correct data.uri; nothing was done"
            ) from error
        try:
            found = parse_cluster(data, f"{self._uri}/{cluster_key()}").cluster_id
        except (Corrupted, ConfigInvalid) as error:
            raise RetryLater(
                f"{self._uri} has another {cluster_key()} now: {error}; nothing was done"
            ) from error
        if found != self._cluster_id:
            raise RetryLater(
                f"{self._uri} is another cluster's now (id {found}, expected {self._cluster_id}): "
                "restore the right bucket, or correct data.uri; nothing was done"
            )


# --- The store.
SPOOL: Final = "archiver-spool-"
"""Name of the spool folder below the system's temporary folder (`TMPDIR`); the user id follows."""


class S3ObjectStore:
    """Objects below `s3://bucket/prefix`. Safe to use from several threads and processes.

    With a cluster id, the prefix must belong to that cluster. Raises `ConfigInvalid` for an invalid URI;
    connects on first use.
    """

    def __init__(
        self,
        place: StorePlace,
        cluster_id: str | None = None,
        clock: Clock | None = None,
        ids: IdSource | None = None,
    ) -> None:
        if (why := bad_s3_uri(place.uri)) is not None:
            raise ConfigInvalid(f"data.uri: {why}")
        self.place = place
        self._root = place.uri.rstrip("/")
        self._bucket, _, prefix = self._root.removeprefix(S3_SCHEME).partition("/")
        self._prefix = f"{prefix}/" if prefix else ""
        ids = ids or SystemIds()
        self._check = ClusterCheck(cluster_id, self._root, self._read_identity, clock or SystemClock())
        self._calls = S3Calls(place.s3, ids, clock or SystemClock(), self._check.doubt)
        self._creator = Creator(self._calls, ids, place.s3.part_bytes)
        self._spool: Spool | None = None

    def uri(self, key: str) -> str:
        """`s3://`, bucket and key, not percent-encoded."""
        check_key(key)
        return f"{self._root}/{key}"

    def spool_dir(self) -> Path:
        """A folder of this process below `TMPDIR`; its contents are deleted when the process ends.

        Raises `RetryLater` if it cannot be created, `Halt` if another user owns its parent.
        """
        try:
            return self._spooled().folder()
        except OSError as error:
            raise RetryLater(
                f"no spool folder for uploads to {self._root}: {error}; make room there, or set TMPDIR"
            ) from error

    def create(self, key: str, data: bytes) -> None:
        """See `ObjectStore.create`."""
        path = self._path(key)
        self._check.check()
        self._creator.create(Upload.of_bytes(key, self._bucket, path, data))

    def create_in_parts(self, key: str, data: bytes) -> None:
        """As `create`, by a multipart upload for data of any size; for the check that its completion is
        conditional.
        """
        path = self._path(key)
        self._check.check()
        self._creator.create_in_parts(Upload.of_bytes(key, self._bucket, path, data))

    def create_from_file(self, key: str, path: Path) -> None:
        """See `ObjectStore`. A file in `spool_dir()` is consumed even on failure; any other file is kept."""
        # Decided first: the path may be invalid, and the file must then be removed as well.
        spooled = self._spool is not None and self._spool.owns(path)
        try:
            full = self._path(key)
            self._check.check()
            try:
                upload = Upload.of_file(key, self._bucket, full, path)
            except FileNotFoundError as error:
                raise NotFound(f"there is no file {path} to store as {key}") from error
            try:
                self._creator.create(upload)
            # Only the local file raises this here; errors of the network are mapped in `calls.py`.
            except OSError as error:
                raise RetryLater(f"object {key} was not stored: {path} cannot be read ({error})") from error
        finally:
            if spooled:
                path.unlink(missing_ok=True)

    def read(self, key: str) -> bytes:
        """The whole object, in one request."""
        where = {"Bucket": self._bucket, "Key": self._path(key)}
        data: bytes = self._found(key, lambda client: client.get_object(**where)["Body"].read())
        return data

    def read_range(self, key: str, start: int, length: int) -> bytes:
        """`length` bytes from `start`, fewer at the object's end. A negative `start` is limited to the
        object's beginning.
        """
        if length < 0:
            raise InvalidInput(f"cannot read {length} bytes of object {key}")
        path = self._path(key)
        if length == 0:
            # HTTP has no empty range. A request shows at least that the object exists.
            return self._nothing_of(key)
        # A suffix range begins `-start` bytes before the end.
        byte_range = f"bytes={start}" if start < 0 else f"bytes={start}-{start + length - 1}"
        where = {"Bucket": self._bucket, "Key": path, "Range": byte_range}
        try:
            # A suffix range may return more than `length` bytes; only the first `length` are read.
            data: bytes = self._asked(
                f"reading {key}", key, lambda client: _first(client.get_object(**where)["Body"], length)
            )
        except S3Failed as error:
            if error.kind is not ErrorKind.NO_RANGE:
                raise Halt(f"object {key} cannot be read: {error.why}") from error
            return self._nothing_of(key)
        return data

    def open_input(self, key: str) -> pa.NativeFile:
        """A reader with read-ahead. Opening takes one request, for the end of the
        object.
        """
        # A suffix range returns the footer and, in `Content-Range`, the size of the object.
        where = {"Bucket": self._bucket, "Key": self._path(key), "Range": f"bytes=-{END_BYTES}"}

        def end_of(client: Any) -> tuple[int, bytes]:
            answer = client.get_object(**where)
            data = bytes(answer["Body"].read())
            total = str(answer.get("ContentRange", "")).rpartition("/")[2]
            return int(total) if total.isdigit() else len(data), data

        try:
            size, end = self._asked(f"opening {key}", key, end_of)
        except S3Failed as error:
            if error.kind is not ErrorKind.NO_RANGE:
                raise Halt(f"object {key} cannot be read: {error.why}") from error
            size, end = 0, self._nothing_of(key)  # an empty object has no range
        if len(end) > END_BYTES:
            size, end = len(end), end[-END_BYTES:]  # the server ignored the suffix range
        source = S3Input(size, end, lambda start, upto: self._block(key, start, upto))
        return pa.PythonFile(source, mode="r")

    def info(self, key: str) -> ObjectInfo | None:
        """Size and time of one object, or None."""
        where = {"Bucket": self._bucket, "Key": self._path(key)}
        try:
            found = self._found(key, lambda client: client.head_object(**where))
        except NotFound:
            return None
        return ObjectInfo(key, int(found["ContentLength"]), _microseconds(found["LastModified"]))

    def time_us(self) -> int | None:
        """The server's time, from the `Date` header of a listing of one key; None without that header."""
        where = {"Bucket": self._bucket, "Prefix": self._prefix, "MaxKeys": 1}
        answer = self._calls.found(
            "asking for the time",
            f"there is no bucket {self._bucket}",
            lambda client: client.list_objects_v2(**where),
        )
        # `Last-Modified` of objects is by the server's clock, so their ages must be compared with it.
        stated = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        try:
            return None if stated is None else _microseconds(parsedate_to_datetime(stated))
        # A date that a proxy has garbled counts as no date.
        except (TypeError, ValueError, OverflowError):
            return None

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `ObjectStore`; a thousand keys per request. Invalid keys (such as a console's folder markers)
        are skipped.
        """
        check_prefix(prefix)
        # Now, before the first `next` of the iterator.
        self._check.check()
        return self._listed(prefix)

    def delete(self, key: str) -> None:
        """See `ObjectStore`; in a versioned bucket a delete marker hides the object. Raises `OutcomeUnknown`
        if it may be deleted.
        """
        where = {"Bucket": self._bucket, "Key": self._path(key)}
        self._check.check()
        doubtful = False
        last: S3Failed | None = None
        for _ in self._calls.tries():
            try:
                self._calls.once(lambda client: client.delete_object(**where))
            except S3Failed as error:
                # A later attempt that fails certainly does not change that an earlier one may have
                # succeeded.
                last, doubtful = error, doubtful or error.kind is ErrorKind.UNKNOWN
                # Missing after a lost reply is the result of the earlier attempt.
                if error.kind is ErrorKind.MISSING:
                    return
                if error.kind not in AGAIN:
                    break
            else:
                return
        assert last is not None, "there is at least one try"
        if doubtful:
            raise OutcomeUnknown(
                f"object {key} may or may not be deleted: {self._calls.given_up(last)}"
            ) from last
        self._calls.refuse(f"object {key} was not deleted", last)
        raise RetryLater(f"object {key} was not deleted: {self._calls.given_up(last)}") from last

    # uploads in parts

    def open_uploads(self) -> Iterator[tuple[str, OpenUpload]]:
        """Unfinished multipart uploads by key; uploads to invalid keys are skipped."""
        self._check.check()
        for found in open_uploads(self._calls, self._bucket, self._prefix):
            key = found.path.removeprefix(self._prefix)
            if is_key(key):
                yield key, found

    def abort_upload(self, upload: OpenUpload) -> None:
        """Abort an upload and free its parts; a missing upload is no error."""
        self._check.check()
        abort_upload(self._calls, self._bucket, upload)

    # one request

    def _path(self, key: str) -> str:
        check_key(key)
        path = self._prefix + key
        # The limit of S3 is for the whole key. `check_key` does not know the prefix.
        if len(path.encode()) > KEY_BYTES_MAX:
            raise InvalidInput(
                f"object key {excerpt(key, 80)!r} is too long below {self._root}: {KEY_BYTES_MAX} "
                "bytes are possible with the prefix"
            )
        return path

    def _asked(self, what: str, key: str, call: Callable[[Any], Any]) -> Any:
        """Send a request that changes nothing. Raises `NotFound` if this cluster's bucket has no such object,
        `S3Failed` as `S3Calls`.
        """
        try:
            return self._calls.repeated(f"{what} of {self._root}", call)
        except S3Failed as error:
            if error.kind is not ErrorKind.MISSING:
                raise
            # A missing object may mean that another cluster's bucket replies. The check reads
            # `cluster.json` itself, so that key is excluded.
            if key != cluster_key():
                self._check.check()
            raise NotFound(f"there is no object {key} in {self._root}") from error

    def _found(self, key: str, call: Callable[[Any], Any]) -> Any:
        try:
            return self._asked(f"reading {key}", key, call)
        except S3Failed as error:
            raise Halt(f"object {key} cannot be read: {error.why}") from error

    def _block(self, key: str, start: int, end: int) -> bytes:
        found = self.read_range(key, start, end - start)
        # An object is never replaced, so this one was deleted and created by another program.
        if len(found) != end - start:
            raise RetryLater(f"object {key} became shorter while it was read; read it again")
        return found

    def _nothing_of(self, key: str) -> bytes:
        if self.info(key) is None:
            raise NotFound(f"there is no object {key} in {self._root}")
        return b""

    def _listed(self, prefix: str) -> Iterator[ObjectInfo]:
        where: dict[str, Any] = {"Bucket": self._bucket, "Prefix": self._prefix + prefix}
        last = ""
        while True:
            page = self._calls.found(
                f"listing {self._root}/{prefix}",
                f"there is no bucket {self._bucket}",
                lambda client, where=dict(where): client.list_objects_v2(**where),  # type: ignore[misc]
            )
            # Empty pages are valid: some servers omit the field.
            for one in page.get("Contents", ()):
                path = str(one["Key"])
                # Callers depend on the order: out of order, an existing object would count as missing.
                if path <= last:
                    raise Halt(
                        f"{self._root} lists {path!r} after {last!r}: directory buckets, and servers "
                        "that do not list in key order, cannot be used"
                    )
                last = path
                key = path.removeprefix(self._prefix)
                # A server on a file system may treat the prefix as a path, so the prefix is checked here.
                if key.startswith(prefix) and is_key(key):
                    yield ObjectInfo(key, int(one["Size"]), _microseconds(one["LastModified"]))
            if not page.get("IsTruncated"):
                return
            where["ContinuationToken"] = page["NextContinuationToken"]

    def _read_identity(self) -> bytes:
        return self.read(cluster_key())

    def _spooled(self) -> Spool:
        if self._spool is None:
            # One folder per user: users share the system's temporary folder.
            folder = Path(tempfile.gettempdir()) / f"{SPOOL}{os.geteuid()}"
            folder.mkdir(mode=0o700, exist_ok=True)
            # `lstat`, because another user could have placed a link there.
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                raise Halt(
                    f"{folder} belongs to another user, who could change its files; remove it, or set TMPDIR"
                )
            self._spool = Spool(folder)
        return self._spool


def _first(body: Any, length: int) -> bytes:
    """Up to `length` bytes; the connection is closed if there are more."""
    data = bytes(body.read(length))
    # The rest would otherwise have to be read before the connection can be used again.
    body.close()
    return data


def _microseconds(time: Any) -> int:
    return int(time.timestamp() * 1_000_000)
