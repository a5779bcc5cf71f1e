"""`archiver watch`: the status again and again, until Ctrl-C.

The application is opened once, so that each read costs only what is new in the logs. A read that fails is
shown and repeated after the interval. The cursor stays visible below the text, so there is nothing to restore
when the process ends, also by a signal that it cannot handle.
"""

from __future__ import annotations

import itertools
import os
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from archiver.cli.options import ConfigOption, application_of
from archiver.cli.output import ended_by_signals, is_terminal, wait_for_more
from archiver.cli.status import read_status, readable_settings
from archiver.runtime.clock import Clock, SystemClock
from archiver.runtime.errors import ArchiverError, InvalidInput
from archiver.runtime.exit_codes import FINE, UNKNOWN, exit_code
from archiver.runtime.redaction import MESSAGE_MAX, excerpt

if TYPE_CHECKING:
    from archiver.app.application import Application
    from archiver.config.settings import Settings
    from archiver.status.live_view import Failure, Rates, Sample, Size

INTERVAL_MIN_S = 0.1
INTERVAL_MAX_S = 86400.0
_HOME = "\x1b[H"
_CLEAR_LINE = "\x1b[K"
_CLEAR_BELOW = "\x1b[J"


def watch(
    config: ConfigOption = None,
    interval: Annotated[
        str, typer.Option("--interval", help="Pause between two reads, for example 500ms, 2s or 1m.")
    ] = "2s",
    count: Annotated[
        int | None,
        typer.Option("--count", min=1, help="Number of reads (default: until Ctrl-C).", show_default=False),
    ] = None,
) -> int:
    """Show the status and rates again and again, until Ctrl-C. Rates are in records per second.

    On a terminal the text is redrawn in place; in a pipe each read prints a block. A read that fails is shown
    and repeated. No table is read, so the oldest required intake file is only in `archiver status`. With
    --count, the exit code is that of the last read.
    """
    seconds = _seconds(interval)
    with ended_by_signals(), ExitStack() as closing:
        watched = _Watch(readable_settings(config), SystemClock(), closing)
        for number in itertools.count(1):
            _show(watched.read(), is_first=number == 1, is_only=count == 1)
            if number == count:
                break
            wait_for_more(watched.clock, seconds)
    return FINE if watched.error is None else exit_code_of(watched.error)


def _seconds(interval: str) -> float:
    from archiver.config.types import parse_duration

    try:
        seconds = parse_duration(interval)
    except ValueError as error:
        raise InvalidInput(f"--interval {interval}: {error}") from error
    if not INTERVAL_MIN_S <= seconds <= INTERVAL_MAX_S:
        raise InvalidInput(f"--interval {interval}: it is at least 100ms and at most 1d")
    return seconds


def exit_code_of(error: ArchiverError | OSError) -> int:
    """Exit code of a read that failed."""
    return exit_code(error) if isinstance(error, ArchiverError) else UNKNOWN


class _Watch:
    """Reads the status, and keeps what the next text compares it with: the last document and its counters."""

    def __init__(self, settings: Settings, clock: Clock, closing: ExitStack) -> None:
        self._settings = settings
        self.clock = clock
        self._closing = closing
        self._app: Application | None = None
        self._document: dict[str, Any] | None = None
        self._read_us = 0
        self._sample: Sample | None = None
        self._rates: dict[str, Rates] = {}
        self._daemon: str | None = None
        self._failure: Failure | None = None
        self.error: ArchiverError | OSError | None = None
        """Why the last read failed."""

    def read(self) -> list[str]:
        """Read once; the lines to show. Raises what opening the application raises, unless that can pass."""
        from archiver.status.live_view import frame

        try:
            if self._app is None:
                self._app = self._closing.enter_context(application_of(self._settings))
            document, _ = read_status(self._app, with_tables=False)
        except (ArchiverError, OSError) as error:
            # A wrong configuration does not become right by itself.
            if self._app is None and exit_code_of(error) != UNKNOWN:
                raise
            self._failed(error)
        else:
            self._succeeded(document)
        now_us = self.clock.now_us()
        found = None if self._document is None else self._document["daemon"]
        return frame(
            self._document,
            self._rates,
            self._read_us,
            now_us,
            failure=self._failure,
            lost_daemon=self._daemon if found is None and self._failure is None else None,
            size=_size(),
        )

    def _succeeded(self, document: dict[str, Any]) -> None:
        from archiver.status.live_view import rates_between, sample_of

        sample = sample_of(document, self.clock.monotonic_s())
        self._rates = rates_between(self._sample, sample)
        self._document, self._sample, self._read_us = document, sample, self.clock.now_us()
        self._failure = self.error = None
        if document["daemon"] is not None:
            self._daemon = document["daemon"]["address"]

    def _failed(self, error: ArchiverError | OSError) -> None:
        from archiver.status.live_view import Failure

        before = self._failure
        since_us = self.clock.now_us() if before is None else before.since_us
        times = 1 if before is None else before.times + 1
        self._failure = Failure(excerpt(str(error), MESSAGE_MAX), since_us, times)
        self.error = error


def _size() -> Size | None:
    """The present size of the terminal; None without one."""
    from archiver.status.live_view import Size

    if not is_terminal(sys.stdout):
        return None
    try:
        columns, lines = os.get_terminal_size(sys.stdout.fileno())
    except OSError:
        columns = lines = 0
    # A terminal may not know its size.
    return Size(columns or 80, lines or 24)


def _show(lines: list[str], *, is_first: bool, is_only: bool) -> None:
    """Replace the former text on a terminal; in a pipe print a block."""
    size = _size()
    if size is None:
        text = "\n".join([*lines, "", ""])
    elif is_only:
        # Nothing is drawn over it, so it needs no screen of its own.
        text = "\n".join([*lines, ""])
    else:
        # What the terminal showed before moves up, where a user can scroll to.
        room = "\n" * size.lines if is_first else ""
        text = "".join([room, _HOME, *(f"{line}{_CLEAR_LINE}\n" for line in lines), _CLEAR_BELOW])
    # In one write, so that the terminal shows no half-drawn text.
    sys.stdout.write(text)
    sys.stdout.flush()
