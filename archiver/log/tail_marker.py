"""Tail marker: a file next to the metadata database that records the highest known tail of a log.

A restore of an older database rarely restores this file too, so the file proves that the log was longer. It
is written after the commit and never synced, so it is a lower bound. A lost or garbled file counts as no
marker and can therefore never stop an intact log.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from archiver.runtime.errors import Halt

_TEXT: Final = re.compile(rb"([0-9]{20}) \1\n")
"""The number is written twice: a reader may see a half-written update, and a mixture of two numbers must be
rejected."""
# Two numbers of 20 digits, a space and a line feed.
_TEXT_BYTES: Final = 42


class TailMarker:
    """The marker file of one log. One thread at a time; several processes may write it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self._recorded_tail: int | None = None

    def check(self, tail: int) -> None:
        """Raise `Halt` with the repair if `tail` is below the recorded tail."""
        # Read once: later checks compare with what this process has seen at its start.
        if self._recorded_tail is None:
            self._recorded_tail = self._read()
        # An append now would assign the offsets of the lost entries to other records.
        if tail < self._recorded_tail:
            raise Halt(
                f"the log ends at entry {tail}, but {self._path} says that it once had "
                f"{self._recorded_tail}: the metadata database is an "
                "older copy, or an empty one; put the newest one in place. Nothing is sequenced until "
                "then, because offsets would be assigned twice. "
                "(Delete that file only if the data folder is new as well)"
            )

    def note(self, tail: int) -> None:
        """Record that the log durably reaches `tail`. Errors are ignored: the marker then proves less, and
        the log is unaffected.
        """
        try:
            if self._file is None:
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            # Several processes write it, in any order. The highest tail must stay.
            if self._read() < tail:
                # In place and not synced, which takes microseconds. A lost update only proves less.
                os.pwrite(self._file, b"%020d %020d\n" % (tail, tail), 0)
        except OSError:
            # The next `note` opens the file again; it may have been removed or its disk was full.
            self.close()

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _read(self) -> int:
        """The recorded tail; 0 if the file is missing or garbled."""
        try:
            text = self._path.read_bytes() if self._file is None else os.pread(self._file, _TEXT_BYTES, 0)
        except OSError:
            # No marker proves nothing, so an unreadable file never stops an intact log.
            return 0
        match = _TEXT.fullmatch(text)
        return int(match[1]) if match else 0
