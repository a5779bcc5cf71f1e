"""In-memory twin of the local object store: the same promises except durability."""

from __future__ import annotations

import bisect
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from archiver.objects.key_rules import check_key, check_prefix
from archiver.objects.store import ObjectInfo
from archiver.runtime.clock import Clock, SystemClock
from archiver.runtime.errors import InvalidInput, KeyExists, NotFound


class MemoryObjectStore:
    """Objects that live as long as this object. Safe to use from several threads."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._objects: dict[str, tuple[bytes, int]] = {}
        self._keys: list[str] = []
        self._spool: Path | None = None
        self._lock = threading.Lock()

    def uri(self, key: str) -> str:
        """A URI that nothing else can open."""
        check_key(key)
        return f"memory:///{key}"

    def spool_dir(self) -> Path:
        """A temporary folder; it goes with this object."""
        with self._lock:
            if self._spool is None:
                self._spool = Path(tempfile.mkdtemp(prefix="spool-"))
                weakref.finalize(self, shutil.rmtree, self._spool, ignore_errors=True)
            return self._spool

    def create(self, key: str, data: bytes) -> None:
        """As the Protocol says, with the local store's rule that a key is not the folder of another."""
        check_key(key)
        with self._lock:
            if key in self._objects:
                raise KeyExists(key)
            self._refuse_folder(key)
            self._objects[key] = (bytes(data), self._clock.now_us())
            bisect.insort(self._keys, key)

    def create_from_file(self, key: str, path: Path) -> None:
        """As the Protocol says; a file in `spool_dir()` is consumed, one from elsewhere is left alone."""
        check_key(key)
        spooled = self._spool is not None and path.absolute().is_relative_to(self._spool)
        try:
            try:
                data = path.read_bytes()
            except FileNotFoundError as error:
                raise NotFound(f"there is no file {path} to store as {key}") from error
            self.create(key, data)
        finally:
            if spooled:
                path.unlink(missing_ok=True)

    def read(self, key: str) -> bytes:
        """The whole object."""
        check_key(key)
        with self._lock:
            if key not in self._objects:
                raise NotFound(f"there is no object {key}")
            return self._objects[key][0]

    def read_range(self, key: str, start: int, length: int) -> bytes:
        """`length` bytes from `start`, cut at the object's end; a negative `start` before the object's begin
        means its begin.
        """
        if length < 0:
            raise InvalidInput(f"cannot read {length} bytes of object {key}")
        data = self.read(key)
        first = max(0, len(data) + start) if start < 0 else start
        return data[first : first + length]

    def open_input(self, key: str) -> pa.NativeFile:
        """A reader over the bytes."""
        return pa.BufferReader(self.read(key))

    def info(self, key: str) -> ObjectInfo | None:
        """Size and time of one object, or None."""
        check_key(key)
        with self._lock:
            if key not in self._objects:
                return None
            data, modified_us = self._objects[key]
            return ObjectInfo(key, len(data), modified_us)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """As the Protocol says, as of the call."""
        check_prefix(prefix)
        found = []
        with self._lock:
            for key in self._keys[bisect.bisect_left(self._keys, prefix) :]:
                if not key.startswith(prefix):
                    break
                data, modified_us = self._objects[key]
                found.append(ObjectInfo(key, len(data), modified_us))
        return iter(found)

    def delete(self, key: str) -> None:
        """As the Protocol says."""
        check_key(key)
        with self._lock:
            if self._objects.pop(key, None) is not None:
                del self._keys[bisect.bisect_left(self._keys, key)]

    def _refuse_folder(self, key: str) -> None:
        position = bisect.bisect_left(self._keys, key + "/")
        if position < len(self._keys) and self._keys[position].startswith(key + "/"):
            raise InvalidInput(f"object key {key} is the folder of other objects")
        components = key.split("/")
        for depth in range(1, len(components)):
            if "/".join(components[:depth]) in self._objects:
                raise InvalidInput(f"object key {key} goes through another object as if it were a folder")
