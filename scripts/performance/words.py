"""How figures are written, and paragraphs and tables of them."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Sequence

from scripts.performance.measured import Spread

WIDTH = 158
_TOGETHER = re.compile(r"\[[^\]]*\]\([^)]*\)|`[^`]*`")
"""A link or code, which no line ends in."""
_HELD = "\0"
Writing = Callable[[float], str]
"""How a number is written."""


def figure(value: float, digits: int = 3) -> str:
    """So many digits that count, and thousands apart."""
    if value == 0:
        return "0"
    rounded = round(value, digits - 1 - math.floor(math.log10(abs(value))))
    # 9.996 has become 10.0, which has one digit before the point more.
    places = digits - 1 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:,.{max(0, places)}f}"


def ratio(value: float) -> str:
    """Two places behind the point, fewer where they say nothing."""
    return figure(value, 2) if abs(value) < 0.095 else f"{value:.2f}" if abs(value) < 9.995 else figure(value)


def tenths(value: float) -> str:
    """One place behind the point."""
    return f"{value:,.1f}"


def whole(value: float) -> str:
    """Without a fraction."""
    return f"{value:,.0f}"


def percent(value: float) -> str:
    """Of a share."""
    return f"{figure(100 * value, 2)} %"


def seconds(value: float) -> str:
    """In the unit that suits."""
    for unit, length in (("s", 1.0), ("ms", 1e-3)):
        if value >= length:
            return f"{figure(value / length)} {unit}"
    return f"{figure(value * 1e6)} µs"


def milliseconds(value: float) -> str:
    """What was measured in them, in the unit that suits."""
    return seconds(value / 1e3)


def size(value: float) -> str:
    """Bytes in the unit that suits, of a thousand each."""
    for unit, length in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= length:
            return f"{figure(value / length)} {unit}"
    return f"{value:,.0f} B"


def shown(spread: Spread, how: Writing = figure) -> str:
    """The middle, and between what it lies."""
    low, middle, high = (how(value) for value in (spread.low, spread.middle, spread.high))
    return middle if low == high else f"{middle} ({_range(low, high, middle)})"


def between(values: Sequence[float], how: Writing = figure) -> str:
    """The least and the most of some numbers."""
    low, high = how(min(values)), how(max(values))
    return low if low == high else _range(low, high, "")


def _range(low: str, high: str, before: str) -> str:
    """A unit stands once, and not again where it was said before."""
    units = [text.partition(" ")[2] for text in (low, high, before)]
    low = low.partition(" ")[0] if units[0] == units[1] else low
    high = high.partition(" ")[0] if units[0] == units[1] == units[2] else high
    return f"{low} to {high}"


def listed(words: Sequence[str]) -> str:
    """As in a sentence."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def paragraph(text: str) -> str:
    """Lines of no more than a page's width; exactly one space between words."""
    held = _TOGETHER.sub(lambda match: match[0].replace(" ", _HELD), " ".join(text.split()))
    lines = textwrap.wrap(held, WIDTH, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace(_HELD, " ") + "\n"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Each row as long as the head."""
    assert all(len(row) == len(head) for row in rows), (head, rows)
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]]) + "\n"
