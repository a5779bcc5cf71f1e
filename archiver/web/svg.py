"""Geometry of the charts: points, ticks and texts from samples. The template draws them.

Pure. A step without a value is a gap in the line, never a zero. Each chart has a description in words for
screen readers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from archiver.runtime.text import counted
from archiver.status.ages import age, count
from archiver.status.history import STEPS, LagSample

WIDTH, HEIGHT = 360, 150
LEFT, RIGHT, TOP, BOTTOM = 64, 10, 24, 24
"""Margins, in units of the drawing."""

# The axis grows in steps that read well, so a young history does not sit in a corner.
_SPANS_S = (300.0, 900.0, 1800.0, 3600.0, 7200.0, 10800.0, 21600.0, 43200.0, 86400.0, 172800.0, 345600.0)
# Each half is a round time as well, for the tick in the middle.
_NICE_S = (
    1.0,
    2.0,
    4.0,
    10.0,
    20.0,
    60.0,
    120.0,
    240.0,
    600.0,
    1200.0,
    3600.0,
    7200.0,
    14400.0,
    28800.0,
    86400.0,
)


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on an axis."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    """One line over time."""

    title: str
    description: str
    """What the line shows, in words."""
    paths: tuple[str, ...]
    """The line, in pieces; between them the value is unknown."""
    areas: tuple[str, ...]
    """Area under each piece."""
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    unit: str
    """Unit of the y axis."""


def seconds_chart(topic: str, samples: Sequence[LagSample], known_s: float, span_s: float) -> Chart:
    """Age of the topic's oldest record that has not passed the last stage."""
    points = [(sample.age_s, sample.seconds) for sample in samples]
    return _chart(
        f"Lag of topic {topic} in time",
        "age of the oldest",
        points,
        min(span_s, _span(known_s)),
        _nice_seconds,
        age,
        f"up to {{}} in the newest {age(span_s / STEPS)}",
    )


def records_chart(topic: str, samples: Sequence[LagSample], known_s: float, span_s: float) -> Chart:
    """Number of the topic's records that have not passed the last stage."""
    points = [(sample.age_s, None if sample.records is None else float(sample.records)) for sample in samples]
    return _chart(
        f"Lag of topic {topic} in records",
        "records",
        points,
        min(span_s, _span(known_s)),
        _nice_number,
        _records,
        f"up to {{}} in the newest {age(span_s / STEPS)}",
    )


def traffic_charts(
    topic: str, samples: Sequence[LagSample], known_s: float, span_s: float
) -> tuple[Chart, Chart]:
    """Records and raw bytes that the topic accepted per second."""
    newest, span_s = f"{{}} on average in the newest {age(span_s / STEPS)}", min(span_s, _span(known_s))
    return (
        _chart(
            f"Records accepted by topic {topic}",
            "records/s",
            [(sample.age_s, sample.records_per_s) for sample in samples],
            span_s,
            _nice_rate,
            _per_second,
            newest,
            idle="no record was accepted",
        ),
        _chart(
            f"Bytes accepted by topic {topic}",
            "bytes/s",
            [(sample.age_s, sample.bytes_per_s) for sample in samples],
            span_s,
            _nice_rate,
            _bytes_per_second,
            newest,
            idle="no record was accepted",
        ),
    )


def _chart(
    title: str,
    unit: str,
    points: Sequence[tuple[float, float | None]],
    span_s: float,
    nice: Callable[[float], float],
    label: Callable[[float], str],
    newest: str,
    idle: str = "nothing was behind",
) -> Chart:
    """`newest` says of which time the last point is, with `{}` for its value."""
    inside = [(age_s, value) for age_s, value in points if age_s <= span_s]
    values = [(value, -age_s) for age_s, value in inside if value is not None]
    top = nice(max(values)[0] if values else 0.0)

    def x(age_s: float) -> int:
        # Whole units, because `_thinned` keeps one point for each.
        return round(WIDTH - RIGHT - (WIDTH - LEFT - RIGHT) * age_s / span_s)

    def y(value: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top, 1)

    pieces = [_thinned([(x(age_s), y(value)) for age_s, value in piece]) for piece in _pieces(inside)]
    floor = y(0)
    return Chart(
        title=title,
        description=_described(inside, span_s, label, newest, idle),
        paths=tuple(_line(piece) for piece in pieces),
        areas=tuple(
            # From the axis up to the line, along it, and back down to the axis.
            f"M{piece[0][0]} {floor:g}{_line(piece).replace('M', 'L', 1)}L{piece[-1][0]} {floor:g}Z"
            for piece in pieces
        ),
        x_ticks=(
            Tick(x(span_s), f"{age(span_s)} ago"),
            Tick(x(span_s / 2), age(span_s / 2)),
            Tick(x(0), "now"),
        ),
        y_ticks=tuple(Tick(y(part), label(part)) for part in (0.0, top / 2, top)),
        unit=unit,
    )


def _pieces(points: Sequence[tuple[float, float | None]]) -> list[list[tuple[float, float]]]:
    """Runs of known points."""
    found: list[list[tuple[float, float]]] = [[]]
    for age_s, value in points:
        if value is not None:
            found[-1].append((age_s, value))
        elif found[-1]:
            found.append([])
    return [piece for piece in found if piece]


def _thinned(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """The highest point of each unit of width (the smallest y), and of a level stretch its two ends."""
    highest: dict[int, float] = {}
    for x, y in points:
        # The y axis of SVG points down. The peak stays, because a short one is what the chart is for.
        highest[x] = min(y, highest.get(x, y))
    kept = list(highest.items())
    # Inner points of a level stretch add bytes to the page and nothing to the picture.
    level = {
        place
        for place in range(1, len(kept) - 1)
        if kept[place - 1][1] == kept[place][1] == kept[place + 1][1]
    }
    return [point for place, point in enumerate(kept) if place not in level]


def _line(points: Sequence[tuple[int, float]]) -> str:
    """A path through the points; a single one is a dot."""
    # SVG draws nothing for a path without length.
    text = "L".join(f"{x} {y:g}" for x, y in points)
    return f"M{text}h0.1" if len(points) == 1 else f"M{text}"


def _described(
    points: Sequence[tuple[float, float | None]],
    span_s: float,
    label: Callable[[float], str],
    newest: str,
    idle: str,
) -> str:
    # Negative ages: of equal values, `max` finds the newest.
    known = [(value, -age_s) for age_s, value in points if value is not None]
    if not known:
        return f"Nothing is known of the last {age(span_s)}."
    peak, minus_age_s = max(known)
    last = points[-1][1]
    unknown = len(points) - len(known)
    holes = f" Not known for {unknown} of {counted(len(points), 'sample')}." if unknown else ""
    if not peak:
        return f"Over the last {age(span_s)}: {idle}.{holes}"
    # A point is of a step of time, so it is not the number of this moment, which stands elsewhere.
    now = "not known at the end" if last is None else newest.format(label(last))
    most = (
        "the most of this time"
        if peak == last
        else f"the most was {label(peak)}, {age(-minus_age_s)} earlier"
    )
    return f"Over the last {age(span_s)}: {now}, {most}.{holes}"


def _span(known_s: float) -> float:
    return next((span_s for span_s in _SPANS_S if known_s <= span_s), math.inf)


def _nice_seconds(peak: float) -> float:
    """Upper end of an axis in seconds; its half is a round time too."""
    found = next((step for step in _NICE_S if peak <= step), None)
    return 2 * 86400.0 * math.ceil(peak / (2 * 86400)) if found is None else found


def _nice_number(peak: float) -> float:
    """Upper end of an axis of whole numbers; its half is a whole number too."""
    if peak <= 2:
        return 2.0
    # Each factor has a whole half; the factor 1 is reached only from 10 on.
    power = 10.0 ** math.floor(math.log10(peak))
    return next(factor * power for factor in (1, 2, 4, 6, 10) if peak <= factor * power)


def _nice_rate(peak: float) -> float:
    """Upper end of an axis of rates, which may be far below 1."""
    if peak > 2 or not peak:
        return _nice_number(peak)
    power = 10.0 ** math.floor(math.log10(peak))
    return next((factor * power for factor in (1, 2, 4, 6) if peak <= factor * power), 10 * power)


def _records(value: float) -> str:
    return count(round(value))


def _per_second(value: float) -> str:
    # One record a minute is a rate too, and not 0.
    return f"{value:.2g}" if 0 < value < 10 else count(round(value))


def _bytes_per_second(value: float) -> str:
    """`850`, `12 k`, `3.4 M`: the axis has room for few characters."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return _per_second(value)
