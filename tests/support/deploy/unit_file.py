"""A systemd unit as its settings, and its system call filter as one that a test can put on a process."""

from __future__ import annotations

import re
from pathlib import Path

_UNITS = {"": 1.0, "s": 1.0, "ms": 0.001, "min": 60.0, "m": 60.0, "h": 3600.0}


class Unit:
    """The settings of a unit file, of all its sections together."""

    def __init__(self, path: Path) -> None:
        self._values: dict[str, list[str]] = {}
        for line in path.read_text(encoding="utf-8").splitlines():
            if line and line[0] not in "#;[":
                name, _, value = line.partition("=")
                self._values.setdefault(name, []).append(value)

    def all(self, name: str) -> list[str]:
        """Every value that was given, in order."""
        return self._values.get(name, [])

    def one(self, name: str) -> str:
        """The only value that was given."""
        (value,) = self.all(name)
        return value

    def seconds(self, name: str) -> float:
        """A time span of one unit."""
        match = re.fullmatch(r"(\d+)\s*([a-z]*)", self.one(name))
        assert match is not None, f"{name}={self.one(name)}"
        return int(match[1]) * _UNITS[match[2]]
