"""The `ObjectStore` Protocol: immutable objects with conditional create.

An object is created once, under a key that does not exist, and perhaps deleted later. Keys are relative to
`data.uri` and are built only in `paths.py`. A store opened for a cluster (`open.py`) refuses to create,
delete or list in another cluster's folder, and to report an object as missing there. That is `RetryLater`.
Adapters map their SDK's errors to `RetryLater`, `OutcomeUnknown`, `Halt`, `KeyExists` and `NotFound`, and
bound every wait by a setting.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa


@dataclass(frozen=True)
class ObjectInfo:
    """Key, size and modification time of one object."""

    key: str
    size: int
    modified_us: int


class ObjectStore(Protocol):
    """A flat, durable map from key to bytes with conditional create."""

    def uri(self, key: str) -> str:
        """The absolute URI of `key`, as it is written into table metadata."""

    def spool_dir(self) -> Path:
        """An existing local folder for files that will be passed to `create_from_file`; creating from there
        is cheap.
        """

    def create(self, key: str, data: bytes) -> None:
        """Store `data` durably under `key`.

        Raises `KeyExists` if the key is taken (the object there is unchanged), `RetryLater` if certainly
        nothing was stored (a full disk, for one), `OutcomeUnknown` if the reply was lost.
        """

    def create_from_file(self, key: str, path: Path) -> None:
        """As `create`, with the bytes of a closed local file. The caller must not use the file afterwards."""

    def read(self, key: str) -> bytes:
        """The whole object; `NotFound` if there is none."""

    def read_range(self, key: str, start: int, length: int) -> bytes:
        """`length` bytes from `start` (fewer at the end of the object); `start` < 0 counts from the end."""

    def open_input(self, key: str) -> pa.NativeFile:
        """A random-access reader for pyarrow; `NotFound` if there is no such object."""

    def info(self, key: str) -> ObjectInfo | None:
        """Size and time of one object, or None."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """All objects whose key starts with `prefix`, in key order. An object is listed once its create has
        returned.
        """

    def delete(self, key: str) -> None:
        """Remove the object; a missing one is no error."""
