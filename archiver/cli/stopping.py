"""Ends an input early when the process is asked to stop, and nothing else: what was read goes its way to the
end.

Promises that no signal interrupts what is done with a record: it only makes the input end, between two reads.
A second signal does what it would have done without us.
"""

from __future__ import annotations

import io
import os
import select
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, BinaryIO

from archiver.runtime.errors import InvalidInput

if TYPE_CHECKING:
    from intake.record_json import Input

STOPPING = (signal.SIGINT, signal.SIGTERM)
BUFFER_BYTES = 64 * 1024


class Stop:
    """Whether somebody asked to stop, and by which signal."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self.cut = False
        """There was, or may have been, more to read when it ended the input."""
        self.wakes, self._wake = os.pipe()
        """Readable as soon as somebody asked."""

    @property
    def name(self) -> str:
        """Of the signal; empty if nobody asked."""
        return "" if self.signal is None else self.signal.name

    def ask(self, number: int) -> None:
        """Stop reading."""
        self.signal = signal.Signals(number)
        os.write(self._wake, b"\0")

    def close(self) -> None:
        """Let go of the pipe."""
        os.close(self.wakes)
        os.close(self._wake)


@contextmanager
def stopped_by_signals() -> Iterator[Stop]:
    """Ctrl-C and SIGTERM ask to stop, inside of the block; only the main thread can be asked."""
    stop = Stop()
    before: dict[signal.Signals, Any] = {}

    def handle(number: int, _: FrameType | None) -> None:
        for known, handler in before.items():
            signal.signal(known, handler)
        stop.ask(number)

    if threading.current_thread() is threading.main_thread():
        before.update({number: signal.signal(number, handle) for number in STOPPING})
    try:
        yield stop
    finally:
        for known, handler in before.items():
            signal.signal(known, handler)
        stop.close()


class StoppableInput(io.RawIOBase):
    """Bytes of a file descriptor, which end when somebody asks to stop."""

    def __init__(self, descriptor: int, stop: Stop) -> None:
        self._descriptor = descriptor
        self._stop = stop

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Wait for bytes, or for being asked to stop: then there are none."""
        ready, _, _ = select.select([self._descriptor, self._stop.wakes], [], [])
        if self._stop.wakes in ready:
            # What is read here goes nowhere. It only tells an input that is cut short from one that was at
            # its end anyway.
            self._stop.cut = (
                self._stop.cut or self._descriptor not in ready or bool(os.read(self._descriptor, 1))
            )
            return 0
        piece = os.read(self._descriptor, len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)


def stoppable(source: BinaryIO, stop: Stop) -> tuple[BinaryIO, bool]:
    """`source` (from which nothing was read yet), made to end when somebody asks; as it is, and False, if it
    has no file descriptor.
    """
    try:
        raw = StoppableInput(source.fileno(), stop)
    except (OSError, io.UnsupportedOperation):
        return source, False
    buffered: Any = io.BufferedReader(raw, BUFFER_BYTES)
    return buffered, True


def until_stopped(inputs: Iterator[Input], stop: Stop, ends_itself: bool) -> Iterator[Input]:
    """The inputs up to where somebody asked to stop; `ends_itself`: their source ends there.

    A record that the stop cut in two is none; nobody ever read it whole.
    """
    try:
        for item in inputs:
            if stop.signal is not None and not ends_itself:
                stop.cut = True
                return
            yield item
    except InvalidInput:
        if not stop.cut:
            raise
