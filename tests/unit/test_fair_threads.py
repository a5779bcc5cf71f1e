"""Threads are shared fairly between topics: a topic whose work does not end delays no other topic."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial

import pytest

from archiver.web.produce import FairThreads

WAIT_S = 120.0


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    found = threading.Event()
    yield found
    found.set()


def test_a_topic_whose_work_does_not_end_keeps_no_other_waiting(gate: threading.Event) -> None:
    threads = FairThreads(4, 2, "test")
    slow = [threads.submit("slow", partial(gate.wait, WAIT_S)) for _ in range(10)]
    assert [threads.submit("quick", partial(pow, number, 2)).result(WAIT_S) for number in range(20)] == [
        n * n for n in range(20)
    ]
    assert not any(one.done() for one in slow)
    gate.set()
    assert all(one.result(WAIT_S) for one in slow)
    threads.close()


def test_topics_take_turns(gate: threading.Event) -> None:
    """A later topic does not wait for all the work of an earlier one."""
    threads = FairThreads(2, 1, "test")
    held = [threads.submit(topic, partial(gate.wait, WAIT_S)) for topic in ("a", "b")]
    order: list[str] = []
    waiting = [
        threads.submit(topic, partial(order.append, topic)) for topic in ("a", "a", "a", "a", "c", "c")
    ]
    gate.set()
    assert all(one.result(WAIT_S) for one in held)
    assert [one.result(WAIT_S) for one in waiting] == [None] * len(waiting)
    assert order.index("c") < 4 and sorted(order) == ["a"] * 4 + ["c"] * 2
    threads.close()


def test_an_error_is_the_callers_and_what_waits_at_the_end_is_cancelled(gate: threading.Event) -> None:
    threads = FairThreads(2, 1, "test")
    failed: Future[float] = threads.submit("a", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        failed.result(WAIT_S)
    held = threads.submit("a", partial(gate.wait, WAIT_S))
    waiting = threads.submit("a", partial(gate.wait, WAIT_S))
    threads.close()
    assert waiting.cancelled()
    gate.set()
    assert held.result(WAIT_S)
