"""File access for table metadata that trusts no byte and no path. pyiceberg reads and writes through it.

A path in table metadata is remote text. So a path must lie in one of the catalog's places, and a local file
must be a regular one. A file has at most `RemoteLimits.bytes_max` bytes, decompressed. Manifests are complete
Avro containers before a decoder reads them (`avro_container.py`). Only for `adapter.py`.
"""

from __future__ import annotations

import io
import stat
import zlib
from pathlib import Path
from typing import Any, Final, cast

from pyarrow.fs import LocalFileSystem
from pyiceberg.io import InputFile, InputStream, OutputFile
from pyiceberg.io.pyarrow import PyArrowFile

from archiver.catalog.iceberg.avro_container import MAGIC, DamagedContainer, plain
from archiver.catalog.iceberg.local_io import DurableFileIO
from archiver.catalog.iceberg.remote_limits import JsonValues, RemoteLimits
from archiver.runtime.errors import Halt
from archiver.runtime.redaction import excerpt

IMPLEMENTATION = "archiver.catalog.iceberg.guarded_io.GuardedFileIO"
"""Value of the catalog property `py-io-impl`."""

LIMITS: Final = "archiver.limits"
"""The property that holds the catalog's `RemoteLimits`."""

_PART_BYTES: Final = 1024 * 1024
_DATA_SUFFIXES: Final = (".parquet", ".orc", ".puffin")


class GuardedFileIO(DurableFileIO):
    """Reads and writes within the limits of the catalog; without limits in its properties, within the
    defaults.
    """

    @property
    def limits(self) -> RemoteLimits:
        """The catalog's."""
        found = self.properties.get(LIMITS)
        return found if isinstance(found, RemoteLimits) else RemoteLimits()

    def check_place(self, location: str) -> None:
        """Raise `Halt` if a path of table metadata leads out of the catalog's places."""
        places = self.limits.places
        why = None if places is None else places.refusal(location)
        if why is not None:
            raise Halt(
                f"table metadata names {excerpt(location, _SHOWN_MAX)!r}, which is not opened: {why}; "
                "if tables may lie there, "
                "add it to catalogs[].locations"
            )

    def new_input(self, location: str) -> PyArrowFile:
        """A file to be read; nothing is opened yet. Raises `Halt` for a path outside of the catalog's
        places.
        """
        self.check_place(location)
        return cast("PyArrowFile", GuardedInput(super().new_input(location), self.limits.bytes_max))

    def new_output(self, location: str) -> PyArrowFile:
        """A file to be written. Raises `Halt` for a path outside of the catalog's places."""
        self.check_place(location)
        return super().new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Delete a file. Raises `Halt` for a path outside of the catalog's places."""
        self.check_place(location if isinstance(location, str) else location.location)
        super().delete(location)

    def expecting(self, location: str, size: int) -> _Expecting:
        """The same access, for one file of known size. Another size means that it was cut or replaced."""
        return _Expecting(self, location, size)


class _Expecting:
    """The part of a file access that pyiceberg uses to read one manifest."""

    def __init__(self, inner: GuardedFileIO, location: str, size: int) -> None:
        self._inner = inner
        self._location = location
        self._size = size

    def new_input(self, location: str) -> InputFile:
        """As the file access; the file has the expected size."""
        file: Any = self._inner.new_input(location)
        if location == self._location:
            file.size = self._size
        return cast("InputFile", file)


class _DataStream(io.RawIOBase):
    """A data file, which may be read in parts only."""

    def __init__(self, inner: InputStream, location: str) -> None:
        super().__init__()
        self._inner = inner
        self._location = excerpt(location, _SHOWN_MAX)

    def read(self, size: int | None = -1) -> bytes:
        """At most `size` bytes."""
        # A manifest list could name the largest file of a bucket, and a whole read would fill the memory.
        if size is None or size < 0:
            raise Halt(
                f"{self._location} is a data file, and table metadata names it where its own files belong"
            )
        return self._inner.read(size)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._inner.seek(offset, whence)

    def tell(self) -> int:
        return self._inner.tell()

    def close(self) -> None:
        self._inner.close()
        super().close()


class GuardedInput(InputFile):
    """One file, read whole and checked when it is opened."""

    def __init__(self, inner: PyArrowFile, bytes_max: int, size: int | None = None) -> None:
        super().__init__(inner.location)
        self._inner = inner
        self._bytes_max = bytes_max
        self._shown = excerpt(inner.location, _SHOWN_MAX)
        self.size = size
        """How many bytes it must have; None: not known."""

    def __len__(self) -> int:
        """Bytes of the file as it is stored."""
        return len(self._inner)

    def exists(self) -> bool:
        """Whether the file exists."""
        return self._inner.exists()

    def open(self, seekable: bool = True) -> InputStream:  # noqa: ARG002 - in memory every stream is seekable
        """Its content. Raises `Halt` for a file that is damaged, too large or not a regular one, `OSError` as
        pyiceberg's own.
        """
        self._check_kind()
        if self.location.endswith(_DATA_SUFFIXES):
            return cast("InputStream", _DataStream(self._inner.open(), self.location))
        data = self._read()
        # Compared before decompression: the manifest list states the stored size.
        if self.size is not None and len(data) != self.size:
            raise Halt(
                f"{self._shown} has {len(data)} bytes, the manifest list says {self.size}; restore it "
                "from a backup"
            )
        try:
            if self.location.endswith(".gz.metadata.json"):
                self._check_gzip(data)
            elif self.location.endswith(".json"):
                self._check_values(JsonValues(self._bytes_max), data)
            # By content too: other engines may name a manifest as they like.
            elif self.location.endswith(".avro") or data.startswith(MAGIC):
                data = plain(data, self._bytes_max)
        except DamagedContainer as error:
            raise Halt(f"{self._shown} is damaged: {error}; restore it from a backup") from error
        return cast("InputStream", io.BytesIO(data))

    def _check_kind(self) -> None:
        """Raise `Halt` unless a local path names a regular file."""
        # Opening a FIFO blocks until a writer comes, and a device may have no end.
        if not isinstance(self._inner._filesystem, LocalFileSystem):  # noqa: SLF001 - pyiceberg has no public name
            return
        path = self._inner._path  # noqa: SLF001 - as above
        mode = Path(path).stat().st_mode
        if not stat.S_ISREG(mode):
            raise Halt(
                f"{self._shown} is no regular file and is not opened; table metadata is stored in files"
            )

    def _read(self) -> bytes:
        parts: list[bytes] = []
        left = self._bytes_max
        with self._inner.open(seekable=False) as stream:
            while part := stream.read(_PART_BYTES):
                parts.append(part)
                # Counted while reading: the size that a store states is remote text as well.
                left -= len(part)
                if left < 0:
                    raise Halt(
                        f"{self._shown} has more than {self._bytes_max} bytes (catalogs[].metadata_bytes_max)"
                    )
        return b"".join(parts)

    def _check_values(self, values: JsonValues, part: bytes) -> None:
        if values.too_many(part):
            raise DamagedContainer(
                f"it has more than {values.values_max} values (catalogs[].metadata_bytes_max)"
            )

    def _check_gzip(self, data: bytes) -> None:
        """Raise `DamagedContainer` unless it decompresses within the bound."""
        # Nothing is kept: pyiceberg decompresses the file once more. 31 means a gzip header and the largest
        # window.
        decompressor, left, values = zlib.decompressobj(31), self._bytes_max, JsonValues(self._bytes_max)
        try:
            while data and not decompressor.eof:
                part = decompressor.decompress(data, _PART_BYTES)
                left -= len(part)
                self._check_values(values, part)
                data = decompressor.unconsumed_tail
                if left < 0:
                    raise DamagedContainer(
                        f"it has more than {self._bytes_max} bytes without compression "
                        "(catalogs[].metadata_bytes_max)"
                    )
        except zlib.error as error:
            raise DamagedContainer(f"it cannot be decompressed ({error})") from error
        # pyiceberg would read a second stream behind the first, which was not counted here.
        if not decompressor.eof or decompressor.unused_data:
            raise DamagedContainer("it is no single, complete gzip stream")


_SHOWN_MAX: Final = 300
"""Characters of a remote path that are repeated in a message."""
