"""Formats ages and numbers for people, on the status page and in messages.

An age has at most two units. An unknown value is shown as unknown, never as 0.
"""

from __future__ import annotations

UNKNOWN = "unknown"
"""Text of a value that is None."""

_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def age(seconds: float | None) -> str:
    """Format as `850 ms`, `12 s`, `3 min 20 s`, `5 h 2 min`, `12 d 4 h`; a negative age counts as 0."""
    if seconds is None:
        return UNKNOWN
    if seconds < 1:
        # Not below 1 ms: 0 would claim that nothing waits.
        return "0 s" if seconds < 0.0005 else f"{max(1, round(seconds * 1000))} ms"
    # Rounded before the units are chosen, so that 59.7 s becomes 1 min and not 60 s.
    left = round(seconds)
    place = next(place for place, (size, _) in enumerate(_UNITS) if left >= size)
    size, unit = _UNITS[place]
    whole, rest = divmod(left, size)
    if place + 1 == len(_UNITS):
        return f"{whole} {unit}"
    smaller, smaller_unit = _UNITS[place + 1]
    return f"{whole} {unit} {rest // smaller} {smaller_unit}" if rest // smaller else f"{whole} {unit}"


def age_at(time_us: int, now_us: int) -> str:
    """Age of a time."""
    return age((now_us - time_us) / 1e6)


def count(number: int | None) -> str:
    """Format as `12,345`."""
    return UNKNOWN if number is None else f"{number:,}"


def numbers(values: list[int], most: int = 8) -> str:
    """Format ascending numbers as runs: `0, 2, 5 to 9`; after `most` runs `and 12 more`."""
    runs: list[tuple[int, int]] = []
    for value in values:
        if runs and runs[-1][1] == value - 1:
            runs[-1] = (runs[-1][0], value)
        else:
            runs.append((value, value))
    # Two neighbours are listed, because "2 to 3" is no shorter.
    shown = [
        f"{low}" if low == high else f"{low} to {high}" if high > low + 1 else f"{low}, {high}"
        for low, high in runs[:most]
    ]
    rest = sum(high - low + 1 for low, high in runs[most:])
    return ", ".join(shown) + (f" and {rest:,} more" if rest else "")
