"""pyiceberg's access to table metadata: local files survive a power cut, and metadata of buckets is cached.

Catalogs import `DurableFileIO` by its name in the property `py-io-impl`. The cache holds manifests, manifest
lists and metadata files, which never change under one name. It is shared by the tables of this process.
"""

from __future__ import annotations

import io
import os
import threading
from collections import OrderedDict
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, cast

from pyarrow.fs import FileSystem, S3FileSystem
from pyiceberg.io import InputFile, InputStream, OutputFile, OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from archiver.catalog.iceberg.io_properties import CA_FILE
from archiver.runtime.clock import Clock, SystemClock

# --- The cache of metadata files


BYTES_MAX: Final = 32 * 1024 * 1024
"""Of all entries together."""
FILE_BYTES_MAX: Final = BYTES_MAX // 4
"""A larger file is not kept, because it would take the place of most others."""
AGE_MAX_S: Final = 300.0
"""Bounds how long a file that was deleted or damaged in the store can still be read from the cache."""
_SUFFIXES: Final = (".avro", ".metadata.json")

Key = tuple[str, str]
"""Endpoint of the store, and location: two stores may have buckets of one name."""


def is_immutable(location: str) -> bool:
    """Whether a location names a manifest, a manifest list or a metadata file."""
    return location.endswith(_SUFFIXES)


class MetadataCache:
    """An LRU cache of whole files, bounded in bytes and age. Safe for several threads."""

    def __init__(
        self,
        clock: Clock,
        bytes_max: int = BYTES_MAX,
        file_bytes_max: int = FILE_BYTES_MAX,
        age_max_s: float = AGE_MAX_S,
    ) -> None:
        self.file_bytes_max = file_bytes_max
        self._clock = clock
        self._bytes_max = bytes_max
        self._age_max_s = age_max_s
        self._lock = threading.Lock()
        self._entries: OrderedDict[Key, tuple[float, bytes]] = OrderedDict()
        self._bytes = 0

    def get(self, key: Key) -> bytes | None:
        """The content, or None if it has to be read."""
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                return None
            if self._clock.monotonic_s() - found[0] > self._age_max_s:
                self._drop(key)
                return None
            # The read order is the eviction order. The time stays that of the read from the store.
            self._entries.move_to_end(key)
            return found[1]

    def put(self, key: Key, content: bytes) -> None:
        """Keep the complete content of a file."""
        if len(content) > self.file_bytes_max:
            return
        with self._lock:
            self._drop(key)
            self._entries[key] = (self._clock.monotonic_s(), content)
            self._bytes += len(content)
            while self._bytes > self._bytes_max:
                self._drop(next(iter(self._entries)))

    def drop(self, key: Key) -> None:
        """Forget a file that is written or deleted."""
        with self._lock:
            self._drop(key)

    def clear(self) -> None:
        """Forget all files, so that each is read from the store again."""
        with self._lock:
            self._entries.clear()
            self._bytes = 0

    def _drop(self, key: Key) -> None:
        found = self._entries.pop(key, None)
        if found is not None:
            self._bytes -= len(found[1])


SHARED: Final = MetadataCache(SystemClock())
"""Of this process, because pyiceberg makes a file access for each table that it loads."""


# --- File access


IMPLEMENTATION = "archiver.catalog.iceberg.local_io.DurableFileIO"
"""Value of the catalog property `py-io-impl`."""


class _SyncedStream:
    """An output stream that is on disk once it is closed."""

    def __init__(self, stream: OutputStream, path: Path) -> None:
        self._stream = stream
        self._path = path
        self._closed = False

    def write(self, b: bytes) -> int:
        return self._stream.write(b)

    def tell(self) -> int:
        return self._stream.tell()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._stream.close()
        # SQLite synchronises its pointer to the file. Without this, a power cut could leave it pointing to
        # nothing. The folder too, because a new name is an entry of the folder.
        _sync(self._path)
        _sync(self._path.parent)

    def __enter__(self) -> OutputStream:
        return self

    def __exit__(
        self, exctype: type[BaseException] | None, excinst: BaseException | None, exctb: TracebackType | None
    ) -> None:
        self.close()


class _DurableFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> OutputStream:
        return _SyncedStream(super().create(overwrite), Path(self._path))


class _KeptStream:
    """An input stream whose content is cached once it was read in order to its end."""

    def __init__(self, stream: InputStream, key: Key) -> None:
        self._stream = stream
        self._key = key
        # None once the file is cached, or cannot be: too large, or not read in order.
        self._parts: list[bytes] | None = []
        self._left = SHARED.file_bytes_max

    def read(self, size: int = -1) -> bytes:
        whole = size < 0
        data = self._stream.read() if whole else self._stream.read(size)
        if self._parts is not None:
            self._parts.append(data)
            self._left -= len(data)
            if self._left < 0:
                self._parts = None
            # The end is proven only by an empty read. A short read may be followed by more.
            elif whole or (not data and size > 0):
                SHARED.put(self._key, b"".join(self._parts))
                self._parts = None
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        # After a seek the parts are no longer the file's content in order.
        self._parts = None
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def close(self) -> None:
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exctype: type[BaseException] | None, excinst: BaseException | None, exctb: TracebackType | None
    ) -> None:
        self.close()


class _KeptFile(PyArrowFile):
    """A metadata file of a bucket, by the cache if that has it."""

    key: Key

    def __len__(self) -> int:
        # The length from the cache saves a request to the store.
        found = SHARED.get(self.key)
        return super().__len__() if found is None else len(found)

    def exists(self) -> bool:
        return SHARED.get(self.key) is not None or super().exists()

    def open(self, seekable: bool = True) -> InputStream:
        found = SHARED.get(self.key)
        if found is not None:
            return cast("InputStream", io.BytesIO(found))
        return cast("InputStream", _KeptStream(super().open(seekable), self.key))


class DurableFileIO(PyArrowFileIO):
    """pyiceberg's own file access, with local files synchronised on close and metadata of buckets cached."""

    def _initialize_s3_fs(self, netloc: str | None) -> FileSystem:
        """As pyiceberg's, with the certificate authorities of our configuration."""
        # pyiceberg has no property for them, and pyarrow accepts them only in the constructor.
        ca_file = self.properties.get(CA_FILE)
        if ca_file is None:
            return super()._initialize_s3_fs(netloc)
        named = {
            "access_key": "s3.access-key-id",
            "secret_key": "s3.secret-access-key",
            "session_token": "s3.session-token",
            "region": "s3.region",
            "endpoint_override": "s3.endpoint",
        }
        found: dict[str, Any] = {argument: self.properties.get(name) for argument, name in named.items()}
        found["tls_ca_file_path"] = ca_file
        for argument, name in {
            "connect_timeout": "s3.connect-timeout",
            "request_timeout": "s3.request-timeout",
        }.items():
            if name in self.properties:
                found[argument] = float(self.properties[name])
        # Properties are text here. Anything but "true" means path style.
        virtual = self.properties.get("s3.force-virtual-addressing") == "true"
        return S3FileSystem(force_virtual_addressing=virtual, **found)

    def new_input(self, location: str) -> PyArrowFile:
        """A file to be read, as pyiceberg's base class makes it, or its cached kind."""
        plain = super().new_input(location)
        scheme, _, path = self.parse_location(location, self.properties)
        # Data files are large and read once, so they are not cached. Local files are in the page cache.
        if scheme == "file" or not is_immutable(location):
            return plain
        found = _KeptFile(location, path, plain._filesystem, plain._buffer_size)  # noqa: SLF001 - there is no other way to them
        found.key = self._key(location)
        return found

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """As pyiceberg's base class."""
        SHARED.drop(self._key(location if isinstance(location, str) else location.location))
        super().delete(location)

    def _key(self, location: str) -> Key:
        # Two stores may have buckets of the same name.
        return str(self.properties.get("s3.endpoint", "")), location

    def new_output(self, location: str) -> PyArrowFile:
        """A file to be written, as pyiceberg's base class makes it, or its durable kind."""
        scheme, netloc, path = self.parse_location(location, self.properties)
        # Before the write: a failed one may leave other content in the store.
        SHARED.drop(self._key(location))
        if scheme != "file":
            return super().new_output(location)
        return _DurableFile(location=location, path=path, fs=self.fs_by_scheme(scheme, netloc))


def _sync(path: Path) -> None:
    # fsync works on a descriptor opened for reading, which a folder needs.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
