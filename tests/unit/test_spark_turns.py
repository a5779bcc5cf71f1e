"""Turns on the Spark session: one at a time, in the order of requests, with a limited wait."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from archiver.runtime.errors import RetryLater
from archiver.spark.fair_lock import SparkTurns
from tests.support.process.processes import until


def test_turns_come_in_the_order_of_asking() -> None:
    turns, go = SparkTurns(30), threading.Event()
    order: list[int] = []
    inside = 0

    def work(number: int) -> None:
        nonlocal inside
        with turns.turn(f"work {number}"):
            inside += 1
            assert inside == 1
            order.append(number)
            go.wait(30)
            inside -= 1

    def asked(count: int) -> bool:
        return len(turns._queue._tickets) == count

    threads = []
    for number in range(4):
        threads.append(threading.Thread(target=work, args=(number,)))
        threads[-1].start()
        until("it has asked", partial(asked, number + 1))
    go.set()
    for thread in threads:
        thread.join(30)
    assert order == [0, 1, 2, 3]


def test_a_turn_that_does_not_come_is_not_waited_for() -> None:
    turns = SparkTurns(0.05)
    with (
        turns.turn("refinement"),
        pytest.raises(RetryLater, match=r"not been free for a deep audit within 0\.05 s"),
        turns.turn("a deep audit"),
    ):
        pass
    with turns.turn("a deep audit"):
        pass


def test_work_that_fails_gives_its_turn_back() -> None:
    turns = SparkTurns(0.05)

    def fail(_: int) -> int:
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        turns.taking(fail, "work")(1)

    def double(number: int) -> int:
        return 2 * number

    assert turns.taking(double, "work")(1) == 2
