"""An object on S3 as a file for pyarrow, in few requests.

Owns what is read ahead. A Parquet reader asks for the end of the file first, then for a few bytes here and
there, then for one column chunk after the other: as a request each that would be some twenty for an intake
file. So opening takes one request, for the end of the object (with it comes the size), and a reader that goes
on where it stopped gets ever larger blocks. Promises that memory stays within `BLOCKS_KEPT` blocks and the
end, and that one read is at most one request unless it straddles what is kept. An error of the store leaves
`read` as our own (pyarrow hands it through), so that trouble on the way is never taken for a damaged file.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from typing import Final

END_BYTES: Final = 256 * 1024
"""Read when the object is opened: the footer of nearly every file, and all of a small one."""
AHEAD_FIRST: Final = 256 * 1024
"""Read at a new place at least …"""
AHEAD_MAX: Final = 8 * 1024 * 1024
"""… and, doubled each time the reader goes on behind what was read, at most: eight requests for a sequential
read of 30 MB."""
BLOCKS_KEPT: Final = 3
"""Places that a reader may come back to: columns of one row group are not always asked for in their order."""

Fetch = Callable[[int, int], bytes]
"""The bytes [start, end) of the object."""


class S3Input(io.RawIOBase):
    """A seekable, read-only file. Safe to use from several threads, one read at a time."""

    def __init__(self, size: int, end: bytes, fetch: Fetch) -> None:
        """`end` are the last bytes of the object, as many as there are."""
        super().__init__()
        self._size = size
        self._fetch = fetch
        self._at = 0
        self._end_start, self._end = size - len(end), end
        self._blocks: list[tuple[int, bytes]] = []
        """(start, bytes), the one used last at the end."""
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
        """As files do it; no request."""
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
            wanted = left if size is None or size < 0 else min(size, left)
            found = self._range(self._at, self._at + wanted)
            self._at += wanted
            return found

    def readall(self) -> bytes:
        """The rest."""
        return self.read()

    def close(self) -> None:
        """Let go of what is kept."""
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
        """What is there of it, from `start` on; empty if nothing is."""
        if start >= self._end_start:
            return self._end[start - self._end_start : end - self._end_start]
        for number, (first, block) in enumerate(self._blocks):
            if first <= start < first + len(block):
                self._blocks.append(self._blocks.pop(number))
                return block[start - first : end - first]
        return b""

    def _asked(self, start: int, end: int) -> bytes:
        """One request: what is wanted, and what may be wanted next, up to where bytes are kept already."""
        self._ahead = min(AHEAD_MAX, 2 * self._ahead) if start == self._next else AHEAD_FIRST
        limit = min([self._end_start, *(first for first, _ in self._blocks if first > start)])
        upto = min(max(end, start + self._ahead), limit)
        block = self._fetch(start, upto)
        self._next = upto
        if len(block) <= AHEAD_MAX:  # a large column chunk is not asked for again
            self._blocks = [*self._blocks, (start, block)][-BLOCKS_KEPT:]
        return block[: end - start]
