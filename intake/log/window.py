"""A bounded look at a partition's backlog: some segments, the gaps among them, and how far the look reaches.

Reads, decides nothing. A backlog may have millions of segments; whoever goes through it does so window by
window. Promises that windows which begin where the one before ended show every segment and every gap of the
range, each once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from archiver.runtime.ids import TopicPartition
from intake.log.backlog import Backlog
from intake.log.partition_state import Gap
from intake.segments import Segments

WINDOW_BYTES = 16 * 2**20
"""Raw bytes of the records behind one window, where nothing else bounds it: some ten thousand segments, if
they are small."""


@dataclass(frozen=True, slots=True)
class Window:
    """What the offsets from some start to `end` consist of."""

    segments: Segments
    """In offset order; the first and the last may reach beyond the window."""
    gaps: list[Gap]
    """Inside the window; ascending."""
    end: int
    """Exclusive. Where the next segment begins, or the stop that was asked for: gaps behind the last segment
    are in the window."""


def look(backlog: Backlog, tp: TopicPartition, start: int, stop: int, bytes_max: int) -> Window:
    """What is in [start, stop), up to the segment with which the raw bytes reach `bytes_max`."""
    found = backlog.segments(tp, start, bytes_max)
    segments = found.where(found.bases < stop)
    end, reached = stop, int(found.ends[-1]) if found else stop
    if len(segments) == len(found) and reached < stop:
        behind = backlog.segments(tp, reached, 1)
        end = min(stop, int(behind.bases[0])) if behind else stop
    return Window(segments, backlog.gaps(tp, start, end), end)


def windows(
    backlog: Backlog, tp: TopicPartition, start: int, stop: int, bytes_max: int = WINDOW_BYTES
) -> Iterator[Window]:
    """[start, stop) in windows of about `bytes_max` raw bytes, each looked up when it is asked for."""
    at = start
    while at < stop:
        window = look(backlog, tp, at, stop, bytes_max)
        yield window
        at = window.end
