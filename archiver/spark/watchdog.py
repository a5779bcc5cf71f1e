"""Bounds every wait for Spark.

Owns the two timeouts of a wait: a JVM that does not respond is killed, and a job whose time is up is
cancelled repeatedly until it has ended. A waiting caller always returns with an error, in any state of the
other end. The meaning of that error is decided elsewhere.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

_ASK_EVERY_S = 1.0
ENDED_S = 2.0
"""Time for a killed process to be gone."""
_CANCEL_EVERY_S = 0.5
_HEAR_EVERY_S = 0.25
_NUMBERS = itertools.count(1)
"""Numbers for the jobs of this process."""
_Answer = TypeVar("_Answer")


def run_in_thread(work: Callable[[], _Answer], give_up: Callable[[], object], name: str) -> _Answer:
    """Run `work` in a thread of that name while this thread waits; returns its result or raises its error.

    py4j takes a Ctrl-C during a call for an error of the call, and pyspark's own handler asks the JVM from
    within that call. Here Ctrl-C reaches the thread that waits. Then `give_up` must make the other thread
    end, even if it has not begun. A second Ctrl-C does not wait for that, nor does the end of the process.
    """
    thread = _WorkThread(work, name)
    try:
        with _sigint_deferred():
            thread.start()
        thread.wait()
    except BaseException:
        # The interrupt reached this thread only; the other one ends when its work is ended.
        give_up()
        # A thread that has not begun may never begin, after an interrupt inside of `start`.
        if thread.begun:
            thread.wait()
        raise
    if thread.error is not None:
        raise thread.error
    return thread.answers[0]


@contextlib.contextmanager
def _sigint_deferred() -> Iterator[None]:
    """Defer SIGINT during the block: an interrupt inside of `Thread.start` breaks it."""
    # Signals are handled in the main thread only, which alone may set a handler.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        # The handler first, then the signal that was deferred, so that it is not lost.
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)


class _WorkThread(threading.Thread, Generic[_Answer]):
    """Runs the work. The waiting thread may be interrupted at any moment, after which `Thread.join` is
    unreliable.
    """

    def __init__(self, work: Callable[[], _Answer], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._work = work
        self._gate = threading.Lock()
        self._gate.acquire()
        self._over = False
        self.begun = False
        self.answers: list[_Answer] = []
        """One element, unless there is an error."""
        self.error: BaseException | None = None

    def run(self) -> None:
        """Run the work in the thread."""
        self.begun = True
        try:
            self.answers.append(self._work())
        except BaseException as error:  # noqa: BLE001 - raised in the waiting thread
            self.error = error
        self._over = True
        self._gate.release()

    def wait(self) -> None:
        """Wait for the end, in short pieces: a signal that comes just before a piece begins is handled only
        when it ends.
        """
        while not self._over:
            self._gate.acquire(timeout=_HEAR_EVERY_S)


class JvmHeartbeat:
    """Calls a JVM repeatedly while something waits for it. A JVM that does not respond in time is killed, so
    that the wait ends.

    Enter it around the wait. Without a JVM that was started here it does nothing.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes] | None = None,
        gateway: Any = None,
        timeout_s: float = threading.TIMEOUT_MAX,
    ) -> None:
        self.timeout_s = timeout_s
        self.silent = False
        """Whether the JVM was killed because it did not respond."""
        self._process = process
        self._gateway = gateway
        self._answered = threading.Event()
        self._done = threading.Event()

    def __enter__(self) -> Self:
        if self._process is not None:
            # Two threads: a call to a hanging JVM does not return, and the time must still be kept.
            for work in (self._ask, self._judge):
                threading.Thread(target=work, name="spark-pulse", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        # Wakes `_judge`, which would otherwise wait for the rest of its timeout.
        self._answered.set()

    def kill(self) -> None:
        """End the JVM in any state; a waiting thread gets an error."""
        if self._process is not None:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(ENDED_S)

    def _ask(self) -> None:
        # At most half of the timeout, so that a JVM that answers at once is never killed.
        while not self._done.wait(min(_ASK_EVERY_S, self.timeout_s / 2)):
            with contextlib.suppress(Py4JError, OSError):
                self._gateway.jvm.System.currentTimeMillis()
                self._answered.set()

    def _judge(self) -> None:
        while self._answered.wait(self.timeout_s):
            self._answered.clear()
            if self._done.is_set():
                return
        if not self._done.is_set():
            self.silent = True
            _log.warning("the JVM of spark gave no sign of life for %g s and is killed", self.timeout_s)
            self.kill()


class JobWatch:
    """Cancels the job of the thread that enters it, when the time is up or the caller gives up; repeatedly,
    until the job has ended.

    If the server answers but the job does not end, more drastic measures follow after the timeout of
    `heartbeat`: a JVM that was started here is killed, the client of a Spark Connect server is closed.
    """

    def __init__(self, session: SparkSession, kind: str, timeout_s: float, heartbeat: JvmHeartbeat) -> None:
        """`kind` is the prefix of the job's tag. The rest of the tag is unique, because a request to cancel
        may arrive late.
        """
        # Over Spark Connect there is no context. Without Connect, the session's own tags cancelled nothing in
        # tests.
        context = session.sparkContext if hasattr(session, "sparkContext") else None
        self._add: Callable[[str], object] = session.addTag if context is None else context.addJobTag
        self._cancel: Callable[[str], object] = (
            session.interruptTag if context is None else context.cancelJobsWithTag
        )
        self._remove: Callable[[str], object] = session.removeTag if context is None else context.removeJobTag
        self._session = session if context is None else None
        self._tag = f"{kind}-{next(_NUMBERS)}"
        self._timeout_s = timeout_s
        self._heartbeat = heartbeat
        self._done = threading.Event()
        self._over = threading.Event()
        """Set when the job has ended, or when no caller waits for it any more."""
        self._left = False
        self.overdue = False
        """Whether the time was up before the job had ended."""
        self._thread = threading.Thread(target=self._cancel_late, name="spark-watch", daemon=True)
        # A server that hangs answers neither the job nor the request to cancel it. Closing the connection
        # ends both calls.
        self._leave = threading.Timer(min(timeout_s, heartbeat.timeout_s), self._hang_up)
        self._leave.daemon = True

    def __enter__(self) -> Self:
        self._add(self._tag)
        self._thread.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._over.set()
        self._leave.cancel()
        # Bounded: the thread may be inside a request to a server that hangs.
        self._thread.join(_CANCEL_EVERY_S)
        # The JVM may be gone, and the tag with it.
        with contextlib.suppress(PySparkException, Py4JError, OSError):
            self._remove(self._tag)
        # gRPC raises `ValueError` for a channel that is closed between two requests.
        if self._left and isinstance(error, ValueError):
            raise ConnectionError(f"the client was closed: {error}") from error

    def give_up(self) -> None:
        """Cancel the job now, because no caller waits for it. Returns at once."""
        self._over.set()

    def _cancel_late(self) -> None:
        cancelled_s = 0.0
        self.overdue = not self._over.wait(self._timeout_s)
        if self._session is not None:
            # Does nothing if it was cancelled before.
            self._leave.start()
        while not self._done.is_set():
            if cancelled_s > self._heartbeat.timeout_s:
                # The JVM answers, but the job does not end; a task may hang.
                self._heartbeat.kill()
            with contextlib.suppress(PySparkException, Py4JError, OSError, ValueError):
                self._cancel(self._tag)
            # Again and again, because a call misses a job that starts only now.
            self._done.wait(_CANCEL_EVERY_S)
            cancelled_s += _CANCEL_EVERY_S

    def _hang_up(self) -> None:
        self._left = True
        hang_up(self._session)


def hang_up(session: Any) -> None:
    """Close this end of a session over Spark Connect, even while calls wait for its server. The server ends
    its part after a timeout.
    """
    client = session.client
    # Not by its own close, which first waits for the client's background requests to the server.
    client._closed = True
    client._channel.close()
