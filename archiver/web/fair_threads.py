"""Threads that are shared fairly between topics: a topic whose requests take long holds up its own, and no
other topic's.

A topic never has all threads, and topics with waiting work take turns. The number of waiting requests is
bounded by the caller.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
_Work = tuple["Future[T]", Callable[[], T]]


class FairThreads:
    """Runs work of topics in threads. Thread-safe."""

    def __init__(self, threads: int, topic_threads: int, name: str) -> None:
        """`topic_threads`: of these, so many work for one topic at the same time."""
        assert 0 < topic_threads < threads
        self._free = threads
        self._topic_threads = topic_threads
        self._lock = threading.Lock()
        self._waiting: OrderedDict[str, deque[_Work[object]]] = OrderedDict()
        """By topic; the topic whose turn is next comes first."""
        self._running: Counter[str] = Counter()
        self._pool = ThreadPoolExecutor(threads, name)

    def submit(self, topic: str, work: Callable[[], T]) -> Future[T]:
        """Run the work when it is the topic's turn."""
        future: Future[T] = Future()
        with self._lock:
            self._waiting.setdefault(topic, deque()).append((future, work))  # type: ignore[arg-type]
            self._start()
        return future

    def close(self) -> None:
        """Cancel what waits; what runs ends by itself."""
        with self._lock:
            given_up = [future for works in self._waiting.values() for future, _ in works]
            self._waiting.clear()
        for future in given_up:
            future.cancel()
        self._pool.shutdown(wait=False)  # what it has is running, or begins at once

    def _start(self) -> None:
        """Give free threads to the next topics; the caller holds the lock."""
        while self._free:
            topic = next((name for name in self._waiting if self._running[name] < self._topic_threads), None)
            if topic is None:
                return
            works = self._waiting.pop(topic)
            future, work = works.popleft()
            if works:
                self._waiting[topic] = works  # at the end: the others have their turn first
            self._free -= 1
            self._running[topic] += 1
            self._pool.submit(self._run, topic, future, work)

    def _run(self, topic: str, future: Future[object], work: Callable[[], object]) -> None:
        result: object = None
        trouble: BaseException | None = None
        asked_for = future.set_running_or_notify_cancel()
        if asked_for:
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - the future carries it to the caller
                trouble = error
        # The thread is free for the next work before the caller knows of the end of this one.
        with self._lock:
            self._free += 1
            self._running[topic] -= 1
            if not self._running[topic]:
                del self._running[topic]
            self._start()
        if trouble is not None:
            future.set_exception(trouble)
        elif asked_for:
            future.set_result(result)
