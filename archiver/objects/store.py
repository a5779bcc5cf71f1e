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

from archiver.runtime.errors import KeyExists, NotFound, OutcomeUnknown
from archiver.runtime.text import counted


def create_once(store: ObjectStore, key: str, data: bytes, attempts_max: int = 3) -> bool:
    """Ensure that `key` holds `data`. True if this call created it, False if identical bytes existed.

    Raises `KeyExists` if other bytes exist. An unknown outcome is resolved by creating again, at most
    `attempts_max` times in all; a late first request can only store the same bytes. Then raises
    `OutcomeUnknown`. `RetryLater` passes through if no outcome was unknown.
    """
    last: OutcomeUnknown | None = None
    for _ in range(max(1, attempts_max)):
        try:
            store.create(key, data)
        except OutcomeUnknown as error:
            last = error
            continue
        except KeyExists as error:
            try:
                same = _holds(store, key, data)
            except NotFound:
                # Deleted between the create and the read.
                continue
            # The bytes decide, not the creator: identical content is all that the caller needs.
            if not same:
                raise KeyExists(key) from error
            return False
        else:
            return True
    raise OutcomeUnknown(
        f"object {key}: still unknown whether it is stored after {counted(max(1, attempts_max), 'attempt')}"
    ) from last


def _holds(store: ObjectStore, key: str, data: bytes) -> bool:
    info = store.info(key)
    if info is None:
        raise NotFound(f"there is no object {key}")
    # The size first: a large object of another size is not read.
    return info.size == len(data) and store.read(key) == data


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

        Raises `KeyExists` if the key is taken; the object there is unchanged. Raises `RetryLater` if
        certainly nothing was stored, such as on a full disk, and `OutcomeUnknown` if the reply was lost.
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
