"""Ends an input early on SIGINT or SIGTERM; records that were read are still processed.

A signal never interrupts the processing of a record. It only ends the input between two reads. A second
signal has its normal effect.
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
    """A request to stop, and its signal."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self.cut = False
        """The request ended the input before its end, or may have."""
        self.wakes, self.wake = os.pipe()
        """`wakes` is readable after the request, and after other signals."""
        os.set_blocking(self.wakes, False)
        os.set_blocking(self.wake, False)

    @property
    def name(self) -> str:
        """Name of the signal; empty without a request."""
        return "" if self.signal is None else self.signal.name

    def ask(self, number: int) -> None:
        """Stop reading."""
        self.signal = signal.Signals(number)
        os.write(self.wake, b"\0")

    def close(self) -> None:
        """Close the pipe."""
        os.close(self.wakes)
        os.close(self.wake)


@contextmanager
def stopped_by_signals() -> Iterator[Stop]:
    """Turn Ctrl-C and SIGTERM into a request to stop inside the block; works in the main thread only."""
    stop = Stop()
    before: dict[signal.Signals, Any] = {}

    def handle(number: int, _: FrameType | None) -> None:
        for known, handler in before.items():
            signal.signal(known, handler)
        stop.ask(number)

    is_main = threading.current_thread() is threading.main_thread()
    wakeup = -1
    if is_main:
        # A signal between Python's last check and `select` would not run `handle` before more input arrives.
        # The interpreter writes to this descriptor from the C handler, so `select` returns at once.
        wakeup = signal.set_wakeup_fd(stop.wake, warn_on_full_buffer=False)
        before.update({number: signal.signal(number, handle) for number in STOPPING})
    try:
        yield stop
    finally:
        if is_main:
            signal.set_wakeup_fd(wakeup)
        for known, handler in before.items():
            signal.signal(known, handler)
        stop.close()


class StoppableInput(io.RawIOBase):
    """Bytes of a file descriptor that end at a request to stop."""

    def __init__(self, descriptor: int, stop: Stop) -> None:
        self._descriptor = descriptor
        self._stop = stop

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Wait for bytes or for a request to stop; returns 0 after a request."""
        while self._stop.signal is None:
            ready, _, _ = select.select([self._descriptor, self._stop.wakes], [], [])
            if self._stop.wakes not in ready:
                break
            # Other signals wake too. The handler of this one runs at the latest before the next turn, so its
            # byte may be drained here.
            os.read(self._stop.wakes, BUFFER_BYTES)
        if self._stop.signal is not None:
            ready, _, _ = select.select([self._descriptor], [], [], 0)
            # This byte is dropped. It only distinguishes an input that is cut short from one at its end.
            self._stop.cut = self._stop.cut or not ready or bool(os.read(self._descriptor, 1))
            return 0
        piece = os.read(self._descriptor, len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)


def stoppable(source: BinaryIO, stop: Stop) -> tuple[BinaryIO, bool]:
    """Wrap a `source` that was not read yet so that it ends at a request to stop.

    Without a file descriptor it is returned unchanged, with False.
    """
    try:
        raw = StoppableInput(source.fileno(), stop)
    except (OSError, io.UnsupportedOperation):
        return source, False
    buffered: Any = io.BufferedReader(raw, BUFFER_BYTES)
    return buffered, True


def until_stopped(inputs: Iterator[Input], stop: Stop, ends_itself: bool) -> Iterator[Input]:
    """Pass inputs on until the request to stop; with `ends_itself`, their source ends there by itself.

    An error in a record that the stop has cut in two is ignored.
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
