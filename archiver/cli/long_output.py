"""A long output that somebody reads: how it waits for more, and how it ends.

Promises that a reader who has gone ends it, also while there is nothing to write; that SIGTERM ends it as
Ctrl-C does, in the middle of a wait or of a write; and that whoever reads on gets whole lines, as long as
they read at all.
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
    """Inside of the block SIGTERM raises `KeyboardInterrupt`, as Ctrl-C does; either leaves nothing behind
    that could block the exit.
    """

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    in_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, interrupt) if in_main else None
    try:
        yield
    except KeyboardInterrupt:
        _let_go()
        raise
    finally:
        if in_main:
            signal.signal(signal.SIGTERM, before)


def wait_for_more(clock: Clock, seconds: float) -> None:
    """Wait that long; raises `BrokenPipeError` as soon as nobody reads the output any more."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, io.UnsupportedOperation):
        clock.sleep(seconds)
        return
    poll = select.poll()
    poll.register(descriptor, 0)  # errors and hang-ups are told in any case
    if any(
        events & (select.POLLERR | select.POLLHUP | select.POLLNVAL)
        for _, events in poll.poll(seconds * 1000)
    ):
        raise BrokenPipeError("nobody reads the output any more")


def _let_go() -> None:
    """Write what fits, and drop the rest if the reader does not take it: the process is asked to end now."""
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
