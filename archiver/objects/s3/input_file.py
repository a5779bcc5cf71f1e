"""An S3 object as a file for pyarrow, with read-ahead to save requests.

A Parquet reader reads the end of the file first, then a few bytes here and there, then one column chunk after
the other. With one request each, an intake file would take about twenty. So opening takes one request for the
end of the object, which also returns its size, and a sequential reader gets growing blocks. Memory is bounded
by `BLOCKS_KEPT` blocks and the end. One read is at most one request unless it crosses a cached block. An
error of the store passes through pyarrow unchanged, so a connection problem is never reported as a damaged
file.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from typing import Final

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
                self._blocks.append(self._blocks.pop(number))
                return block[start - first : end - first]
        return b""

    def _asked(self, start: int, end: int) -> bytes:
        """One request for the range and the read-ahead, up to the next cached block."""
        self._ahead = min(AHEAD_MAX, 2 * self._ahead) if start == self._next else AHEAD_FIRST
        limit = min([self._end_start, *(first for first, _ in self._blocks if first > start)])
        upto = min(max(end, start + self._ahead), limit)
        block = self._fetch(start, upto)
        self._next = upto
        if len(block) <= AHEAD_MAX:  # a larger column chunk is read only once, so it is not cached
            self._blocks = [*self._blocks, (start, block)][-BLOCKS_KEPT:]
        return block[: end - start]
