"""Formats of figures, paragraphs, lists and tables."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Sequence

from scripts.performance.measured import Spread

WIDTH = 158
_TOGETHER = re.compile(r"\[[^\]]*\]\([^)]*\)|`[^`]*`")
"""A link or code, which is never split between lines."""
_HELD = "\0"
Writing = Callable[[float], str]
"""Formats a number."""


def figure(value: float, digits: int = 3) -> str:
    """The number with so many significant digits and a separator of thousands."""
    if value == 0:
        return "0"
    rounded = round(value, digits - 1 - math.floor(math.log10(abs(value))))
    # 9.996 has become 10.0, which has one digit before the point more.
    places = digits - 1 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:,.{max(0, places)}f}"


def ratio(value: float) -> str:
    """Two decimal places, fewer for large values and two significant digits for small ones."""
    return figure(value, 2) if abs(value) < 0.095 else f"{value:.2f}" if abs(value) < 9.995 else figure(value)


def tenths(value: float) -> str:
    """One decimal place."""
    return f"{value:,.1f}"


def whole(value: float) -> str:
    """No decimal places."""
    return f"{value:,.0f}"


def percent(value: float) -> str:
    """A share as a percentage."""
    return f"{figure(100 * value, 2)} %"


def seconds(value: float) -> str:
    """Seconds, in s, ms or µs."""
    for unit, length in (("s", 1.0), ("ms", 1e-3)):
        if value >= length:
            return f"{figure(value / length)} {unit}"
    return f"{figure(value * 1e6)} µs"


def milliseconds(value: float) -> str:
    """Milliseconds, in s, ms or µs."""
    return seconds(value / 1e3)


def size(value: float) -> str:
    """Bytes, in B, kB, MB or GB with a factor of 1000."""
    for unit, length in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= length:
            return f"{figure(value / length)} {unit}"
    return f"{value:,.0f} B"


def shown(spread: Spread, how: Writing = figure) -> str:
    """The median, with minimum and maximum in parentheses."""
    low, middle, high = (how(value) for value in (spread.low, spread.middle, spread.high))
    return middle if low == high else f"{middle} ({_range(low, high, middle)})"


def between(values: Sequence[float], how: Writing = figure) -> str:
    """The range of some numbers."""
    low, high = how(min(values)), how(max(values))
    return low if low == high else _range(low, high, "")


def _range(low: str, high: str, before: str) -> str:
    """The range, without a unit that the text before it or its own end has."""
    units = [text.partition(" ")[2] for text in (low, high, before)]
    low = low.partition(" ")[0] if units[0] == units[1] else low
    high = high.partition(" ")[0] if units[0] == units[1] == units[2] else high
    return f"{low} to {high}"


def listed(words: Sequence[str]) -> str:
    """An enumeration with commas and a final `and`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def paragraph(text: str) -> str:
    """The text wrapped to the width of the page, with one space between words."""
    held = _TOGETHER.sub(lambda match: match[0].replace(" ", _HELD), " ".join(text.split()))
    lines = textwrap.wrap(held, WIDTH, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace(_HELD, " ") + "\n"


def bullets(items: Sequence[str]) -> str:
    """A list, each item wrapped to the width of the page."""
    return "".join(paragraph(f"- {item}").rstrip("\n").replace("\n", "\n  ") + "\n" for item in items)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table. Each row has as many cells as the head."""
    assert all(len(row) == len(head) for row in rows), (head, rows)
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]]) + "\n"
