"""Whether a topic has come meanwhile: asked by anybody, answered by the log at most once in a while.

Promises that whoever asks for topics that do not exist cannot make this process read the log as often as they
ask, nor wait for a log that does not answer: one of them waits, and the others are told to come back.
"""

from __future__ import annotations

import threading

from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError, RetryLater
from intake.log.sequencer import Sequencer

LOOK_AGAIN_S = 1.0
"""For so long an answer of the log counts: a topic that was made elsewhere is found that much later."""


class TopicLookup:
    """Of one process. Thread-safe."""

    def __init__(self, sequencer: Sequencer, clock: Clock) -> None:
        self._sequencer = sequencer
        self._clock = clock
        self._asking = threading.Lock()
        self._fresh_until_s = float("-inf")
        self._failed: ArchiverError | None = None

    def refresh(self) -> None:
        """Read the log to its tail, if that was not done just now.

        Raises `RetryLater` if it could not be read, or if another thread is at it.
        """
        if not self._asking.acquire(blocking=False):
            raise RetryLater(
                "the intake log is being asked for new topics, and has not answered yet; ask again"
            )
        try:
            if self._clock.monotonic_s() >= self._fresh_until_s:
                self._read()
            elif self._failed is not None:
                raise RetryLater(f"the intake log could not be asked for new topics just now: {self._failed}")
        finally:
            self._asking.release()

    def _read(self) -> None:
        try:
            self._sequencer.refresh()
            self._failed = None
        except ArchiverError as error:
            self._failed = error
            raise
        finally:
            self._fresh_until_s = self._clock.monotonic_s() + LOOK_AGAIN_S
