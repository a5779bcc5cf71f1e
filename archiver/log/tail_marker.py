"""How far a log once reached, kept beside the metadata database and not in it.

Somebody who puts an older copy of the database back rarely puts this file back with it, so it proves that the
log was longer. Written after the commit and never synced: what it says is a lower bound, and a lost or
garbled file says nothing. It can therefore never stop a log that is whole.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from archiver.runtime.errors import Halt

_TEXT: Final = re.compile(rb"([0-9]{20}) \1\n")
"""The number stands there twice: another process may read while one writes, and a mixture of two numbers must
say nothing."""
_TEXT_BYTES: Final = 42


class TailMarker:
    """The file of one log. One thread at a time; several processes may write it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self._begun_at: int | None = None

    def check(self, tail: int) -> None:
        """Raise `Halt`, naming the repair, if the log ends before where it once ended."""
        if self._begun_at is None:
            self._begun_at = self._stated()
        if tail < self._begun_at:
            raise Halt(
                f"the log ends at entry {tail}, but {self._path} says that it once had "
                f"{self._begun_at}: the metadata database is an "
                "older copy, or an empty one; put the newest one in place. Nothing is sequenced until "
                "then, because offsets would be "
                "given twice. (Only if the data folder is new as well, delete that file)"
            )

    def note(self, tail: int) -> None:
        """The log reaches to `tail`, durably. An error is passed over: the witness is then of less use, and
        the log as good as before.
        """
        try:
            if self._file is None:
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            if self._stated() < tail:
                os.pwrite(self._file, b"%020d %020d\n" % (tail, tail), 0)
        except OSError:
            self.close()

    def close(self) -> None:
        """Let go of the file."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _stated(self) -> int:
        """What the file says; 0 if that is nothing."""
        try:
            text = self._path.read_bytes() if self._file is None else os.pread(self._file, _TEXT_BYTES, 0)
        except OSError:
            return 0
        match = _TEXT.fullmatch(text)
        return int(match[1]) if match else 0
