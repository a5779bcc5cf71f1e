"""Writes the measured figures of docs/operations/capacity.md; its text and its rows are written by hand.

A row names its figure, the result file and the path of the number: a quotient has ` / ` between paths.
"""

from __future__ import annotations

import operator
import re
import statistics
from functools import reduce

from scripts.performance.measured import Measured, Results
from scripts.performance.words import figure

_ROW = re.compile(r"^(\| [^|]+ \| )([0-9.,]+)( ?)(\w*)( \| `(\w+)\.json`: ([\w./ ]+) \|)$", re.MULTILINE)
_SCALE = {"": 1.0, "bytes": 1.0, "kB": 1e3, "MB": 1e6, "µs": 1.0, "ms": 1.0, "s": 1.0}
"""Of a unit, in what the results have. A time has the unit of its result."""


def page(written: str, results: Results) -> str:
    """The page with the figures of these results. Raises `FigureMissingError` if a result lacks one."""

    def row(found: re.Match[str]) -> str:
        before, _, space, unit, after, name, paths = found.groups()
        numbers = [_number(results(name), path) for path in paths.split(" / ")]
        return f"{before}{figure(reduce(operator.truediv, numbers) / _SCALE[unit])}{space}{unit}{after}"

    return _ROW.sub(row, written)


def _number(result: Measured, path: str) -> float:
    """The number that stands there; of a list of numbers the median."""
    if isinstance(result.at(path).value, list):
        return statistics.median(result.numbers(path))
    return result.number(path)
