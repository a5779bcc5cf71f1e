"""Where checkpoints of a log are due: places that follow from the log and the settings alone, so that all who
make them agree.
"""

from __future__ import annotations

from typing import Protocol


class SpanSettings(Protocol):
    """When the next checkpoint is due."""

    @property
    def checkpoint_entries(self) -> int:
        """Entries since the last one."""

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of entries since the last one."""


class Span:
    """Counts entries until a checkpoint is due. The places follow from the log and the settings, so that all
    who count agree.
    """

    def __init__(self, settings: SpanSettings) -> None:
        self._settings = settings
        self._entries = 0
        self._bytes = 0

    def add(self, size: int) -> bool:
        """Count an entry of so many bytes; True if a checkpoint is due behind it, and then the next span
        begins.
        """
        self._entries += 1
        self._bytes += size
        if (
            self._entries < self._settings.checkpoint_entries
            and self._bytes < self._settings.checkpoint_bytes
        ):
            return False
        self._entries = self._bytes = 0
        return True
