"""What a bench has written, asked by a path of names and places in lists; what is not there is an error that
says where.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class FigureMissingError(Exception):
    """A result lacks what the page says of it."""


@dataclass(frozen=True)
class Spread:
    """Of some repetitions."""

    low: float
    middle: float
    high: float

    def by(self, unit: float) -> Spread:
        """In another unit."""
        return Spread(self.low / unit, self.middle / unit, self.high / unit)


@dataclass(frozen=True)
class Measured:
    """A result, or a part of it."""

    name: str
    """Of the file, without its ending."""
    value: Any
    path: str = ""
    """Of the part."""

    @property
    def file(self) -> str:
        """Where the result stands."""
        return f"bench/results/{self.name}.json"

    def has(self, path: str) -> bool:
        """Does something stand there, and is it not null?"""
        try:
            return self.at(path).value is not None
        except FigureMissingError:
            return False

    def at(self, path: str) -> Measured:
        """The part that stands there; `path` has dots between its names."""
        value, walked = self.value, self.path
        for key in path.split("."):
            walked = f"{walked}.{key}" if walked else key
            try:
                value = value[int(key)] if isinstance(value, list) else value[key]
            except (KeyError, IndexError, TypeError, ValueError):
                message = f"{self.file}: there is no {walked}"
                raise FigureMissingError(message) from None
        return Measured(self.name, value, walked)

    def named(self, path: str, name: str) -> Measured:
        """The part of that name, which may have dots itself."""
        parts = self.parts(path)
        if name not in parts:
            message = f"{self.file}: there is no {self.at(path).path}.{name}"
            raise FigureMissingError(message)
        return parts[name]

    def number(self, path: str) -> float:
        """The number that stands there."""
        found = self.at(path)
        if isinstance(found.value, bool) or not isinstance(found.value, int | float):
            message = f"{self.file}: {found.path} is not a number but {found.value!r}"
            raise FigureMissingError(message)
        return float(found.value)

    def spread(self, path: str) -> Spread:
        """Least, middle and most of some repetitions, as `min`, `median` and `max`."""
        return Spread(*(self.number(f"{path}.{name}") for name in ("min", "median", "max")))

    def parts(self, path: str) -> dict[str, Measured]:
        """What has names there."""
        found = self.at(path)
        if not isinstance(found.value, dict):
            message = f"{self.file}: {found.path} has no names"
            raise FigureMissingError(message)
        return {
            name: Measured(self.name, value, f"{found.path}.{name}") for name, value in found.value.items()
        }

    def each(self, path: str) -> list[Measured]:
        """What stands in a list there."""
        found = self.at(path)
        if not isinstance(found.value, list):
            message = f"{self.file}: {found.path} is no list"
            raise FigureMissingError(message)
        return [self.at(f"{path}.{place}") for place in range(len(found.value))]

    def numbers(self, path: str) -> list[float]:
        """A list of numbers."""
        return [self.number(f"{path}.{place}") for place, _ in enumerate(self.each(path))]


Results = Callable[[str], Measured]
"""The result of a name."""


def results_in(folder: Path) -> Results:
    """Those of a folder."""

    def result(name: str) -> Measured:
        try:
            return Measured(name, json.loads((folder / f"{name}.json").read_text(encoding="utf-8")))
        except FileNotFoundError:
            message = f"bench/results/{name}.json is not there"
            raise FigureMissingError(message) from None

    return result
