"""Output of a following command: waiting for more, and a clean end.

The command ends when the reader closes the pipe, even while there is nothing to write. SIGTERM ends it like
Ctrl-C, also during a wait or a write. A reader that still reads gets whole lines.
"""

from __future__ import annotations

import io
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from archiver.runtime.clock import Clock


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Raise `KeyboardInterrupt` on SIGTERM inside the block, as on Ctrl-C; neither blocks the exit."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

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
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    finally:
        os.set_blocking(descriptor, True)
