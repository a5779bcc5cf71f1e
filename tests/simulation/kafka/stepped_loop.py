"""An event loop and threads for simulated processes: one thread runs them all, and time is the schedule's.

The callbacks of the loop run between two steps of a process and take no simulated time. Work for threads waits
until the process runs it, one piece at a time. So the product's coroutines run unchanged, and a seed decides
what comes first.
"""

from __future__ import annotations

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

from archiver.runtime.clock import Clock

_P = ParamSpec("_P")
_T = TypeVar("_T")


_ROUNDS_MAX = 100
"""How often `close` cancels tasks that go on."""


class _NoSelector:
    """There are no sockets."""

    def select(self, timeout: float | None) -> list[object]:
        del timeout
        return []


class SteppedLoop(asyncio.BaseEventLoop):
    """Runs callbacks when `pump` is called. Close it."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._selector = _NoSelector()
        self._own_clock = clock
        self.set_exception_handler(lambda _loop, _context: None)
        self.set_task_factory(_task)

    def time(self) -> float:
        return self._own_clock.monotonic_s()

    def _process_events(self, event_list: list[object]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nothing sleeps in `select`."""

    def pump(self) -> None:
        """Run every callback that is ready or due, and those that these make ready."""
        events._set_running_loop(self)
        try:
            self._run_once()  # type: ignore[attr-defined]
            while self._ready:  # type: ignore[attr-defined]
                self._run_once()  # type: ignore[attr-defined]
        finally:
            events._set_running_loop(None)

    def close(self) -> None:
        """Cancel the tasks that are left, and close.

        A task that the garbage collector ends raises in its `finally`, because the loop is closed by then.
        """
        for _ in range(_ROUNDS_MAX):
            tasks = asyncio.all_tasks(self)
            if not tasks:
                break
            for task in tasks:
                task.cancel()
            self.pump()
        super().close()

    def due_in_s(self) -> float | None:
        """Time until the next timer; None without one."""
        times = [handle.when() for handle in self._scheduled if not handle.cancelled()]  # type: ignore[attr-defined]
        return max(0.0, min(times) - self.time()) if times else None


def _task(loop: asyncio.AbstractEventLoop, coroutine: Any, **more: Any) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **more)
    # A process that crashes leaves its tasks as they are.
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    return task


class SteppedThreads(Executor):
    """A pool of threads whose work waits for `run_one`."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        future: Future[_T] = Future()
        self._waiting.append((future, lambda: fn(*args, **kwargs)))
        return future

    @property
    def ready(self) -> int:
        """How many pieces of work could be next."""
        return min(self._threads, len(self._waiting))

    def run_one(self, place: int) -> None:
        """Run the work at that place, below `ready`."""
        future, work = self._waiting[place]
        del self._waiting[place]
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - as a pool does
            future.set_exception(error)
        else:
            future.set_result(result)
