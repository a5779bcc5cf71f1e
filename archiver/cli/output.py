"""Printing: JSON documents for programs, tables and progress lines for people.

Everything printed here is redacted by `archiver.runtime.redaction`. Control characters in external text are
escaped, so that it cannot set colours or move the cursor.
"""

from __future__ import annotations

import codecs
import io
import json
import os
import select
import shutil
import signal
import sys
import textwrap
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Literal, TextIO

from archiver.runtime.clock import Clock, SystemClock
from archiver.runtime.redaction import redacted, redacted_document
from archiver.runtime.text import printable_text

PIPE_COLUMNS = 160
TICK_S = 2.0
"""Between two updates of a line about a wait."""


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Raise `KeyboardInterrupt` on SIGTERM inside the block, as on Ctrl-C; neither blocks the exit."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # Python allows signal handlers in the main thread only, and tests run commands in others.
    in_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, interrupt) if in_main else None
    try:
        yield
    except KeyboardInterrupt:
        _flush_or_drop()
        raise
    finally:
        if in_main:
            signal.signal(signal.SIGTERM, before)


def wait_for_more(clock: Clock, seconds: float) -> None:
    """Wait that long; raises `BrokenPipeError` as soon as the reader closes the output."""
    try:
        # Tests and callers may replace standard output by an object without a descriptor.
        descriptor = sys.stdout.fileno()
    except (OSError, io.UnsupportedOperation):
        clock.sleep(seconds)
        return
    poll = select.poll()
    poll.register(descriptor, 0)  # no events requested: errors and hang-ups are always reported
    if any(
        events & (select.POLLERR | select.POLLHUP | select.POLLNVAL)
        for _, events in poll.poll(seconds * 1000)
    ):
        raise BrokenPipeError("the reader of the output has closed it")


def _flush_or_drop() -> None:
    """Write what the pipe accepts at once and drop the rest: a slow reader must not block the exit."""
    try:
        descriptor = sys.stdout.fileno()
        os.set_blocking(descriptor, False)
    except (OSError, io.UnsupportedOperation):
        return
    try:
        sys.stdout.flush()
    except OSError:
        # What is left in the buffer goes to the null device at the exit, so the exit does not block.
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    finally:
        os.set_blocking(descriptor, True)


def is_tty(stream: TextIO | None) -> bool:
    """Whether a standard stream is a terminal of any kind; False if the process was started without it."""
    return stream is not None and not stream.closed and stream.isatty()


def is_utf8(stream: TextIO) -> bool:
    """Whether the text of a stream is UTF-8."""
    try:
        return codecs.lookup(stream.encoding).name == "utf-8"
    # A stream without bytes, as in tests, has the encoding None.
    except (LookupError, TypeError):
        return False


def print_json(document: object) -> None:
    """Print one JSON document on standard output."""
    # `ensure_ascii=False`: names in other scripts stay readable.
    sys.stdout.write(json.dumps(redacted_document(document), ensure_ascii=False, indent=2) + "\n")


def print_line(document: object) -> None:
    """Print one JSON document as one line of standard output."""
    sys.stdout.write(
        json.dumps(redacted_document(document), ensure_ascii=False, separators=(",", ":")) + "\n"
    )


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table for people; numbers are right-aligned."""
    numeric = {
        position
        for position in range(len(columns))
        if rows and all(isinstance(row[position], int | float) for row in rows)
    }
    print_cells(title, columns, [[_cell(value) for value in row] for row in rows], numeric)


def print_noted_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    note: str,
    notes: Sequence[tuple[str, str, str]],
) -> None:
    """Print a table with a last column `note` of long texts. If the output is too narrow for it, the texts
    follow below the table, each once for the rows of a group that have it.

    `notes` has for each row the name of its group, its name in the group, and the text, which may be empty.
    """
    # Imported here: most commands have no such table.
    from archiver.query.values import table_width

    noted = [(*row, text) for row, (_, _, text) in zip(rows, notes, strict=True)]
    cells = [[_cell(value) for value in row] for row in noted]
    if table_width((*columns, note), cells) <= width_of_output():
        print_table(title, (*columns, note), noted)
        return
    print_table(title, columns, rows)
    named: dict[tuple[str, str], list[str]] = {}
    for group, name, text in notes:
        if text:
            named.setdefault((group, text), []).append(name)
    for (group, text), names in named.items():
        print_wrapped(f"{group} {', '.join(names)}: {text}")


def print_wrapped(text: str) -> None:
    """Print one line, on a terminal broken between words."""
    shown = printable_text(redacted(text))
    if sys.stdout.isatty():
        lines = textwrap.wrap(
            shown, width_of_output(), subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
        shown = "\n".join(lines)
    print(shown)


def print_cells(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], numeric: Collection[int]
) -> None:
    """Print a table of texts that are redacted and printable; the `numeric` columns are right-aligned."""
    # Imported here: commands that print no table do not need it.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(printable_text(redacted(title))), title_justify="left", title_style="bold")
    for position, name in enumerate(columns):
        justify: Literal["right", "left"] = "right" if position in numeric else "left"
        table.add_column(Text(printable_text(name)), justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    Console(file=sys.stdout, width=width_of_output()).print(table)


def is_terminal(stream: TextIO) -> bool:
    """Whether text on the stream can be replaced by escape sequences."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def width_of_output() -> int:
    """Columns of the terminal, or a fixed number in a pipe."""
    # Fixed, so that the output of a script does not depend on its environment.
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPE_COLUMNS


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return printable_text(redacted(str(value)))


def progress(text: str) -> None:
    """Print one line about work in progress on standard error; standard output has only results."""
    print(printable_text(redacted(text)), file=sys.stderr, flush=True)


@contextmanager
def spark_starting(work: str, clock: Clock | None = None) -> Iterator[None]:
    """Print on standard error what is waited for, with the seconds so far on a terminal; then how long
    it took.
    """
    clock = clock or SystemClock()
    begun_s = clock.monotonic_s()
    if not is_terminal(sys.stderr):
        progress(f"{work}...")
        yield
    else:
        ended = threading.Event()
        ticker = threading.Thread(target=_tick, args=(work, clock, begun_s, ended), daemon=True)
        _replace_line(f"{work}...")
        ticker.start()
        try:
            yield
        finally:
            ended.set()
            # Before any other text: a late line would replace it.
            ticker.join()
            _replace_line("")
    progress(f"Spark is ready after {clock.monotonic_s() - begun_s:.0f} s")


def _tick(work: str, clock: Clock, begun_s: float, ended: threading.Event) -> None:
    while not ended.wait(TICK_S):
        _replace_line(f"{work}... {clock.monotonic_s() - begun_s:.0f} s")


def _replace_line(text: str) -> None:
    """Put the text in place of the last line, which has no end yet."""
    # A terminal that is gone must not end the work.
    with suppress(OSError):
        sys.stderr.write(f"\r{text}\x1b[K")
        sys.stderr.flush()
