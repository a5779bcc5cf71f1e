"""The object store on S3, and on servers that speak its language.

An object is created by a conditional PUT (`If-None-Match: *`), or by an upload in parts whose completion is
conditional, so it is whole or absent and never replaced; `s3_upload.py` has the rules. Other requests change
nothing, or the same each time, and are repeated within the bounds of the settings. Needs a server that keeps
the condition, shows an object as soon as its create has returned, and lists in the order of the keys;
`guarantees.py` asks for that at the start, and the order is watched.

Must never write, delete, list or miss anything in a bucket that is another cluster's: see `s3_identity.py`
for when that is looked at. A process that was forked goes on with a client of its own.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from archiver.config.storage import bad_s3_uri
from archiver.objects.key_rules import KEY_BYTES_MAX, check_key, check_prefix, is_key
from archiver.objects.location import S3_SCHEME, StorePlace
from archiver.objects.paths import cluster_key
from archiver.objects.s3.bucket_identity import ClusterCheck
from archiver.objects.s3.calls import AGAIN, S3Calls, S3Failed
from archiver.objects.s3.conditional_create import Creator, Upload
from archiver.objects.s3.errors import ErrorKind
from archiver.objects.s3.input_file import END_BYTES, S3Input
from archiver.objects.s3.unfinished_uploads import OpenUpload, abort_upload, open_uploads
from archiver.objects.spool import Spool
from archiver.objects.store import ObjectInfo
from archiver.runtime.clock import Clock, SystemClock
from archiver.runtime.errors import ConfigInvalid, Halt, InvalidInput, NotFound, OutcomeUnknown, RetryLater
from archiver.runtime.ids import IdSource, SystemIds
from archiver.runtime.redaction import excerpt

SPOOL: Final = "archiver-spool-"
"""The folder for files on their way, below the system's folder for temporary files (`TMPDIR`); the user's
number follows."""


class S3ObjectStore:
    """Objects below `s3://bucket/prefix`. Safe to use from several threads and processes.

    With a cluster's id, the prefix must be that cluster's. Raises `ConfigInvalid` for a URI that is none;
    connects at the first use.
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
        """`s3://`, bucket and key, with nothing encoded: no character of it needs to be."""
        check_key(key)
        return f"{self._root}/{key}"

    def spool_dir(self) -> Path:
        """A folder of this process alone below `TMPDIR`; what is left in it goes when the process ends.

        Raises `RetryLater` if it cannot be made, `Halt` if somebody else has made it.
        """
        try:
            return self._spooled().folder()
        except OSError as error:
            raise RetryLater(
                f"no folder for files on their way to {self._root}: {error}; make room there, or set TMPDIR"
            ) from error

    def create(self, key: str, data: bytes) -> None:
        """As the Protocol says."""
        path = self._path(key)
        self._check.check()
        self._creator.create(Upload.of_bytes(key, self._bucket, path, data))

    def create_in_parts(self, key: str, data: bytes) -> None:
        """As `create`, by an upload in parts however small it is: for those who ask whether its completion
        keeps the condition.
        """
        path = self._path(key)
        self._check.check()
        self._creator.create_in_parts(Upload.of_bytes(key, self._bucket, path, data))

    def create_from_file(self, key: str, path: Path) -> None:
        """As the Protocol says: a file in `spool_dir()` is consumed whatever happens, one from elsewhere is
        left alone.
        """
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
        """`length` bytes from `start`, cut at the object's end; a negative `start` before the object's begin
        means its begin.
        """
        if length < 0:
            raise InvalidInput(f"cannot read {length} bytes of object {key}")
        path = self._path(key)
        if length == 0:
            return self._nothing_of(key)
        wanted = f"bytes={start}" if start < 0 else f"bytes={start}-{start + length - 1}"
        where = {"Bucket": self._bucket, "Key": path, "Range": wanted}
        try:
            # Of an end longer than what is wanted, only the begin is taken off the connection.
            data: bytes = self._asked(
                f"reading {key}", key, lambda client: _first(client.get_object(**where)["Body"], length)
            )
        except S3Failed as error:
            if error.verdict is not ErrorKind.NO_RANGE:
                raise Halt(f"object {key} cannot be read: {error.why}") from error
            return self._nothing_of(key)
        return data

    def open_input(self, key: str) -> pa.NativeFile:
        """A reader that asks for blocks (`s3_input.py`). One request, which brings the end of the object."""
        where = {"Bucket": self._bucket, "Key": self._path(key), "Range": f"bytes=-{END_BYTES}"}

        def end_of(client: Any) -> tuple[int, bytes]:
            answer = client.get_object(**where)
            data = bytes(answer["Body"].read())
            total = str(answer.get("ContentRange", "")).rpartition("/")[2]
            return int(total) if total.isdigit() else len(data), data

        try:
            size, end = self._asked(f"opening {key}", key, end_of)
        except S3Failed as error:
            if error.verdict is not ErrorKind.NO_RANGE:
                raise Halt(f"object {key} cannot be read: {error.why}") from error
            size, end = 0, self._nothing_of(key)  # an empty object has no range
        if len(end) > END_BYTES:
            size, end = len(end), end[-END_BYTES:]  # the server knows no ranges from the end
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
        """The time of the server, by the `Date` of an answer to a listing of one key; None if it states
        none.
        """
        where = {"Bucket": self._bucket, "Prefix": self._prefix, "MaxKeys": 1}
        answer = self._calls.found(
            "asking for the time",
            f"there is no bucket {self._bucket}",
            lambda client: client.list_objects_v2(**where),
        )
        stated = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        try:
            return None if stated is None else _microseconds(parsedate_to_datetime(stated))
        except (TypeError, ValueError, OverflowError):
            return None

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """As the Protocol says, a thousand to a request. What is no valid key (a console's folder) is left
        out.
        """
        check_prefix(prefix)
        self._check.check()
        return self._listed(prefix)

    def delete(self, key: str) -> None:
        """As the Protocol says; in a bucket that keeps versions, a marker hides the object. Raises
        `OutcomeUnknown` if it may be gone.
        """
        where = {"Bucket": self._bucket, "Key": self._path(key)}
        self._check.check()
        doubtful = False
        last: S3Failed | None = None
        for _ in self._calls.tries():
            try:
                self._calls.once(lambda client: client.delete_object(**where))
            except S3Failed as error:
                last, doubtful = error, doubtful or error.verdict is ErrorKind.UNKNOWN
                if error.verdict is ErrorKind.MISSING:
                    return
                if error.verdict not in AGAIN:
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
        """Uploads in parts that have not ended, by key; not those of keys that are none of ours."""
        self._check.check()
        for found in open_uploads(self._calls, self._bucket, self._prefix):
            key = found.path.removeprefix(self._prefix)
            if is_key(key):
                yield key, found

    def abort_upload(self, upload: OpenUpload) -> None:
        """Give back what an upload holds; one that is gone is no error."""
        self._check.check()
        abort_upload(self._calls, self._bucket, upload)

    # one request

    def _path(self, key: str) -> str:
        check_key(key)
        path = self._prefix + key
        if len(path.encode()) > KEY_BYTES_MAX:
            raise InvalidInput(
                f"object key {excerpt(key, 80)!r} is too long below {self._root}: {KEY_BYTES_MAX} "
                "bytes are possible with the prefix"
            )
        return path

    def _asked(self, what: str, key: str, call: Callable[[Any], Any]) -> Any:
        """A request that changes nothing; raises `NotFound` if the bucket is ours and has no such object,
        `S3Failed` as `S3Calls`.
        """
        try:
            return self._calls.repeated(f"{what} of {self._root}", call)
        except S3Failed as error:
            if error.verdict is not ErrorKind.MISSING:
                raise
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
            for one in page.get("Contents", ()):
                path = str(one["Key"])
                if path <= last:
                    raise Halt(
                        f"{self._root} lists {path!r} after {last!r}: directory buckets, and servers "
                        "that list in another order than that "
                        "of the keys, cannot be used"
                    )
                last = path
                key = path.removeprefix(self._prefix)
                if key.startswith(prefix) and is_key(
                    key
                ):  # a server over a file system may take a prefix for a path
                    yield ObjectInfo(key, int(one["Size"]), _microseconds(one["LastModified"]))
            if not page.get("IsTruncated"):
                return
            where["ContinuationToken"] = page["NextContinuationToken"]

    def _read_identity(self) -> bytes:
        return self.read(cluster_key())

    def _spooled(self) -> Spool:
        if self._spool is None:
            folder = Path(tempfile.gettempdir()) / f"{SPOOL}{os.geteuid()}"
            folder.mkdir(mode=0o700, exist_ok=True)
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                raise Halt(
                    f"{folder} is somebody else's, who could change what is in it; remove it, or set TMPDIR"
                )
            self._spool = Spool(folder)
        return self._spool


def _first(body: Any, length: int) -> bytes:
    """Up to `length` bytes; the connection is given up if there is more."""
    data = bytes(body.read(length))
    body.close()
    return data


def _microseconds(time: Any) -> int:
    return int(time.timestamp() * 1_000_000)
