"""The text of `archiver watch`: one document of `archiver status` on few lines, with rates since an earlier
one.

Pure. What needs attention comes first, so that it is seen on a small terminal as well. The text is bounded by
the size of the terminal, or without one by constants.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from archiver.runtime.text import counted, moment, printable_text
from archiver.status.ages import age, count
from archiver.status.lag import STAGES
from archiver.status.reasons import CAUSES

NOTES_MAX = 100
TOPICS_MAX = 100
"""Notes and topics that are shown without a terminal."""
NOTE_LINES_MAX = 3
"""Lines of a note on a terminal that is too small for whole notes."""
_LEGEND = (
    "Not stable: in or after an open transaction. Not archived: in no archive. Not committed: in no table."
)
_FIXED_LINES = 4
"""Lines of a frame in addition to notes and topics."""
_ABSENT = "-"
_CAUSES_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Size:
    """Size of a terminal."""

    columns: int
    lines: int


@dataclass(frozen=True, slots=True)
class Sample:
    """Counters of a document."""

    at_s: float
    """Monotonic time of the read."""
    topics: Mapping[str, tuple[int, int]]
    """By topic: accepted and archived offsets, over all partitions."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Of one topic, in records per second; None if unknown."""

    accepted: float | None = None
    archived: float | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """Reads that failed since the last one that succeeded."""

    why: str
    since_us: int
    times: int


def sample_of(document: Mapping[str, Any], at_s: float) -> Sample:
    """The counters of a document that was read at `at_s`."""
    return Sample(at_s, {item["topic"]: (item["records"], item["archived"]) for item in document["topics"]})


def rates_between(before: Sample | None, now: Sample) -> dict[str, Rates]:
    """Rates of each topic of `now`; unknown for a new topic, and for a counter that has fallen."""
    found = dict.fromkeys(now.topics, Rates())
    if before is None or now.at_s <= before.at_s:
        return found
    seconds = now.at_s - before.at_s
    for topic, counters in now.topics.items():
        if topic in before.topics:
            accepted, archived = (
                # A topic that was created again begins at 0.
                None if new < old else (new - old) / seconds
                for old, new in zip(before.topics[topic], counters, strict=True)
            )
            found[topic] = Rates(accepted, archived)
    return found


def rate_text(rate: float | None) -> str:
    """Format as `1,234`, or below 10 as `0.5`; `-` if unknown."""
    if rate is None:
        return _ABSENT
    # Never 0 for records that arrive.
    return f"{rate:,.0f}" if rate >= 10 or rate == 0 else f"{max(rate, 0.1):.1f}"


def frame(
    document: Mapping[str, Any] | None,
    rates: Mapping[str, Rates],
    read_us: int,
    now_us: int,
    *,
    failure: Failure | None = None,
    lost_daemon: str | None = None,
    size: Size | None = None,
) -> list[str]:
    """Lines of a document that was read at `read_us`, or of the failure if there is none.

    `lost_daemon` is the address of a daemon that answered earlier and does not answer any more.
    """
    lines = [moment(now_us)] if document is None else [f"cluster {document['cluster']}, {moment(now_us)}"]
    if failure is not None:
        lines += _failed(failure, now_us)
    if document is None:
        return _within(lines, size)
    if failure is not None:
        lines.append(f"The state of {moment(read_us)}:")
    notes = [str(line) for line in document["attention"]]
    if lost_daemon is not None:
        notes.insert(0, f"the daemon at {lost_daemon} does not answer any more")
    lines.append(f"attention: {counted(len(notes), 'note')}" if notes else "nothing needs attention")
    topics: Sequence[Mapping[str, Any]] = document["topics"]
    folded = [_folded(note, size) for note in notes]
    notes_max, topics_max = _shares(len(lines), sum(map(len, folded)), len(topics), size)
    if size is not None and sum(map(len, folded)) > notes_max:
        folded = [_folded(note, size, NOTE_LINES_MAX) for note in notes]
        notes_max, topics_max = _shares(len(lines), sum(map(len, folded)), len(topics), size)
    lines += _notes(folded, notes_max)
    lines += [_daemon(document), f"leader: {document['leader'] or 'none'}, epoch {document['epoch']}"]
    lines += _topics(topics, rates, topics_max)
    # Only in room that nothing else needs.
    legend = [] if size is None or not topics else textwrap.wrap(_LEGEND, max(20, size.columns - 1))
    if size is not None and len(lines) + len(legend) < size.lines:
        lines += legend
    return _within(lines, size)


def _failed(failure: Failure, now_us: int) -> list[str]:
    since = age((now_us - failure.since_us) / 1e6)
    tries = counted(failure.times, "read")
    return [f"cannot be read ({tries} failed, for {since}); it is tried again: {failure.why}"]


def _folded(note: str, size: Size | None, lines_max: int | None = None) -> list[str]:
    """A note on lines of the terminal, at most `lines_max`."""
    text = printable_text(f"  note: {note}", kept="")
    if size is None:
        return [text]
    # For characters of double width the lines are too long, and cut off at the end.
    width = max(20, size.columns - 1)
    indent = " " * 8
    return textwrap.wrap(text, width, subsequent_indent=indent, max_lines=lines_max, placeholder=" …")


def _shares(head: int, note_lines: int, topics: int, size: Size | None) -> tuple[int, int]:
    """How many lines the notes and the topics get."""
    if size is None:
        return NOTES_MAX, TOPICS_MAX
    free = max(2, size.lines - _FIXED_LINES - head)
    # Each gets half, and what the other one does not need.
    notes_max = max(free // 2, free - topics)
    return max(1, notes_max), max(1, free - min(note_lines, notes_max))


def _notes(folded: Sequence[list[str]], lines_max: int) -> list[str]:
    if sum(map(len, folded)) <= lines_max:
        return [line for note in folded for line in note]
    shown: list[str] = []
    for number, note in enumerate(folded):
        # One line is needed for those that are left out.
        if len(shown) + len(note) >= lines_max:
            left = counted(len(folded) - number, "more note")
            return [*shown, f"  and {left}; `archiver status` shows all"]
        shown += note
    return shown


def _daemon(document: Mapping[str, Any]) -> str:
    daemon = document["daemon"]
    if daemon is None:
        return "daemon: none answers"
    return f"daemon: at {daemon['address']}, {daemon['state']}, {'ready' if daemon['ready'] else 'not ready'}"


def _topics(topics: Sequence[Mapping[str, Any]], rates: Mapping[str, Rates], topics_max: int) -> list[str]:
    """A table of the topics in their order; if they are too many, those with the greatest lag."""
    shown = topics
    if len(topics) > topics_max:
        kept = {item["topic"] for item in sorted(topics, key=_urgency)[: max(1, topics_max - 1)]}
        shown = [item for item in topics if item["topic"] in kept]
    head = (
        "topic",
        "records/s",
        "archived/s",
        *(f"not {stage}" for stage in STAGES),
        "oldest",
        "held back by",
    )
    rows = [head, *(_row(item, rates.get(item["topic"], Rates())) for item in shown)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = ["  ".join(_padded(row, widths)).rstrip() for row in rows]
    if len(shown) < len(topics):
        lines.append(f"and {counted(len(topics) - len(shown), 'more topic')} with less lag")
    return lines


def _padded(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Texts to the left, numbers to the right."""
    last = len(row) - 1
    return [
        text.ljust(width) if column in (0, last) else text.rjust(width)
        for column, (text, width) in enumerate(zip(row, widths, strict=True))
    ]


def _row(item: Mapping[str, Any], rates: Rates) -> tuple[str, ...]:
    partitions = item["partitions"]
    lags = [_lag(partitions, stage) for stage in STAGES]
    last = [one for one in lags if one is not None]
    found = {one["cause"] for one in partitions}
    causes = [cause for cause in CAUSES if cause in found]
    more = f", {len(causes) - _CAUSES_SHOWN} more" if len(causes) > _CAUSES_SHOWN else ""
    return (
        printable_text(item["topic"], kept=""),
        rate_text(rates.accepted),
        rate_text(rates.archived) if item["kind"] != "none" else _ABSENT,
        *(_ABSENT if lag is None else count(lag[0]) for lag in lags),
        _ABSENT if not last or last[-1] == (0, 0.0) else age(last[-1][1]),
        printable_text(", ".join(causes[:_CAUSES_SHOWN]) + more, kept=""),
    )


def _lag(partitions: Sequence[Mapping[str, Any]], stage: str) -> tuple[int | None, float | None] | None:
    """Records that have not reached a stage, and the age of the oldest; None without such a stage."""
    lags = [one["stages"][stage] for one in partitions if stage in one["stages"]]
    if not lags:
        return None
    records = [lag["lag_records"] for lag in lags]
    seconds = [lag["lag_seconds"] for lag in lags]
    # If one value is unknown, the sum or the maximum is.
    return (
        None if None in records else sum(records),
        None if None in seconds else max(seconds),
    )


def _urgency(item: Mapping[str, Any]) -> tuple[bool, float]:
    """Sorts an unknown age first, then the greatest."""
    lags = [lag for stage in STAGES if (lag := _lag(item["partitions"], stage)) is not None]
    seconds = lags[-1][1] if lags else 0.0
    return (seconds is not None, -(seconds or 0.0))


def _within(lines: Sequence[str], size: Size | None) -> list[str]:
    """The lines as they fit the terminal, without control characters."""
    printable = [printable_text(line, kept="") for line in lines]
    if size is None:
        return printable
    from rich.cells import cell_len, set_cell_size

    # A line of the whole width would move the cursor of some terminals to the next one.
    width = max(2, size.columns - 1)
    fitted = [line if cell_len(line) <= width else f"{set_cell_size(line, width - 1)}…" for line in printable]
    return fitted[: max(1, size.lines - 1)]
