"""The ledger: an append-only record of what a process is about to do and which answers it got, as JSON lines.

Promises: when `write` returns, the lines are on disk; what is in memory only is lost with a kill, and then it
was not sent. Lines are numbered, so that a missing one is noticed; a line torn by a kill is the last of its
part. A ledger is cut into parts that stay small, because a process under a limit of file size must still be
able to write it.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Self

PART_BYTES = 32 * 1024
"""A part that has grown past this is closed and the next begun."""


class LedgerFile:
    """The ledger of one process. Thread-safe; only one process writes it."""

    def __init__(self, folder: Path, name: str, origin_s: float) -> None:
        """`name` is this process's own; `origin_s` the beginning of the run on the machine's monotonic
        clock."""
        self._folder = folder
        self._name = name
        self._origin_s = origin_s
        self._lock = threading.Lock()
        self._part = 0
        self._lines = 0
        self._file = self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, event: str, **fields: Any) -> None:
        """One line, durably."""
        self.write_all([{"event": event, **fields}])

    def write_all(self, events: list[Mapping[str, Any]]) -> None:
        """Several lines with one wait for the disk."""
        with self._lock:
            at = self.elapsed_s()
            text = ""
            for event in events:
                text += json.dumps({"n": self._lines, "at": at, **event}, separators=(",", ":")) + "\n"
                self._lines += 1
            self._file.write(text.encode())
            self._file.flush()
            os.fsync(self._file.fileno())
            if self._file.tell() > PART_BYTES:
                self._file.close()
                self._part += 1
                self._file = self._open()

    def elapsed_s(self) -> float:
        """The time that a line would have now."""
        return round(time.monotonic() - self._origin_s, 3)

    def close(self) -> None:
        """No more lines."""
        with self._lock:
            self._file.close()

    def reopen(self) -> None:
        """Go on after `close`, in another part."""
        with self._lock:
            self._part += 1
            self._file = self._open()

    def _open(self) -> BinaryIO:
        return (self._folder / f"{self._name}.{self._part:04}.jsonl").open("xb")
