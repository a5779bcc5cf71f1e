"""Counts the file system requests for table metadata and the bytes of each; catalogs import
`CountingIO` by name.

The counters are global to the process. A request is one that an object store would receive: read a
file, write a file, check for existence, delete a file. Counting happens where pyiceberg opens and
closes files, above the product's `GuardedFileIO`. So it includes every request.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

from pyiceberg.io import InputStream, OutputStream
from pyiceberg.io.pyarrow import PyArrowFile

from archiver.catalog.iceberg.guarded_io import GuardedFileIO

IMPLEMENTATION = "bench.counting_io.CountingIO"
"""Value of the catalog property `py-io-impl`."""


@dataclass
class Counted:
    """Counters since the process started."""

    requests: int = 0
    bytes_read: int = 0
    bytes_written: int = 0

    def since(self, earlier: Counted) -> Counted:
        """Return the difference to `earlier`."""
        return Counted(*(getattr(self, one.name) - getattr(earlier, one.name) for one in fields(self)))

    def copy(self) -> Counted:
        """Return a copy of the current counters."""
        return Counted(*(getattr(self, one.name) for one in fields(self)))


TOTAL = Counted()


class _CountedInput:
    """Delegates to a stream; counts one request and the bytes read."""

    def __init__(self, stream: InputStream) -> None:
        self._stream = stream
        TOTAL.requests += 1

    def read(self, size: int = 0) -> bytes:
        data = self._stream.read(size) if size else self._stream.read()
        TOTAL.bytes_read += len(data)
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stream.close()


class _CountedOutput:
    """Delegates to a stream; counts one request and the bytes written."""

    def __init__(self, stream: OutputStream) -> None:
        self._stream = stream
        TOTAL.requests += 1

    def write(self, data: bytes) -> int:
        TOTAL.bytes_written += len(data)
        return self._stream.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stream.close()


class _CountedFile:
    """Delegates to a file and counts its requests; every stream that it opens is counted too."""

    def __init__(self, file: PyArrowFile) -> None:
        self._file = file

    @property
    def location(self) -> str:
        return self._file.location

    def __len__(self) -> int:
        TOTAL.requests += 1
        return len(self._file)

    def exists(self) -> bool:
        TOTAL.requests += 1
        return self._file.exists()

    def open(self, seekable: bool = True) -> Any:
        return _CountedInput(self._file.open(seekable))

    def create(self, overwrite: bool = False) -> Any:
        return _CountedOutput(self._file.create(overwrite))

    def to_input_file(self) -> Any:
        return _CountedFile(self._file.to_input_file())


class CountingIO(GuardedFileIO):
    """The product's file access with counters."""

    def new_input(self, location: str) -> Any:
        return _CountedFile(super().new_input(location))

    def new_output(self, location: str) -> Any:
        return _CountedFile(super().new_output(location))

    def delete(self, location: Any) -> None:
        TOTAL.requests += 1
        super().delete(location if isinstance(location, str) else location.location)
