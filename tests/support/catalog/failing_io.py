"""Our file access over a store that loses the connection while a manifest is written. Named in the property
`py-io-impl` by a test."""

from __future__ import annotations

import errno
from typing import Any

from archiver.catalog.iceberg.guarded_io import GuardedFileIO

IMPLEMENTATION = f"{__name__}.FailingIO"


class FailingIO(GuardedFileIO):
    """`failing` counts the manifests whose writing still fails; `failed` those that did."""

    failing = 0
    failed = 0
    error: Exception = ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")

    def new_output(self, location: str) -> Any:
        """A file that cannot be written to, as long as writes of manifests fail."""
        file = super().new_output(location)
        if FailingIO.failing > 0 and location.endswith(".avro"):
            FailingIO.failing -= 1
            FailingIO.failed += 1
            return _Failing(file)
        return file


class _Failing:
    def __init__(self, file: Any) -> None:
        self._file = file
        self.location = file.location

    def __len__(self) -> int:
        return 0

    def create(self, overwrite: bool = False) -> Any:
        """A stream that breaks at the first byte."""
        return _Broken(self._file.create(overwrite))


class _Broken:
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, _: bytes) -> int:
        raise FailingIO.error

    def tell(self) -> int:
        return 0

    def close(self) -> None:
        self._stream.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
