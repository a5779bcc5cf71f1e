"""Content of table metadata files of buckets, kept in memory, because they never change under their name.

Metadata files, manifest lists and manifests get names that are used once. Each commit, reconciliation and
cleanup reads those of a table again, with a HEAD and a GET for each. An entry is made only of a file that was
read to its end. It lasts for `AGE_MAX_S`, so that a file that is lost, damaged or restored is noticed by a
running process within that time. A deep audit forgets all entries first. Safe for several threads.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

from archiver.runtime.clock import Clock, SystemClock

BYTES_MAX: Final = 32 * 1024 * 1024
"""Of all entries together."""
FILE_BYTES_MAX: Final = BYTES_MAX // 4
"""A larger file is not kept, because it would take the place of most others."""
AGE_MAX_S: Final = 300.0
_SUFFIXES: Final = (".avro", ".metadata.json")

Key = tuple[str, str]
"""Endpoint of the store, and location: two stores may have buckets of one name."""


def is_immutable(location: str) -> bool:
    """Whether a location names a manifest, a manifest list or a metadata file."""
    return location.endswith(_SUFFIXES)


class MetadataCache:
    """The entries read least recently make room for others."""

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
"""Of this process: pyiceberg makes a file access for each table that it loads."""
