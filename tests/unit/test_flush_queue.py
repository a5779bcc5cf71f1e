"""The writer's queue: when a flush is due, and how much may wait."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from archiver.runtime.clock import ManualClock, SystemClock
from archiver.runtime.errors import Halt, RetryLater
from archiver.runtime.ids import TopicId
from intake.log.fold import TopicState
from intake.records import Record
from intake.write.acknowledgements import PendingRecord
from intake.write.queue import ROW_COST_BYTES, FlushQueue, Piece, RecordItem, cut_rows

TOPIC = TopicState(TopicId("a" * 32), "a", 1, 0)


def put(
    queue: FlushQueue, raw_bytes: int, timeout_s: float = 0.01, name: int = 0, waited_s: float = 0.0
) -> None:
    pending = PendingRecord("a", 0, queue.changed)
    cost = raw_bytes + ROW_COST_BYTES
    queue.put(
        raw_bytes,
        cost,
        timeout_s,
        lambda: RecordItem(TOPIC, Record(None, None), raw_bytes, cost, name, pending),
        waited_s,
    )


def names(items: list[object]) -> list[int]:
    return [item.accept_us for item in items if isinstance(item, RecordItem)]


def test_a_flush_is_due_by_size_and_holds_no_more() -> None:
    queue = FlushQueue(ManualClock(), 3600, 100, 10_000)
    for number in range(5):
        put(queue, 40, name=number)
    assert names(list(queue.take())) == [0, 1]
    assert names(list(queue.take())) == [2, 3]


def test_a_single_item_may_be_larger_than_a_flush() -> None:
    queue = FlushQueue(ManualClock(), 3600, 100, 10_000)
    put(queue, 500, name=7)
    put(queue, 500, name=8)
    assert names(list(queue.take())) == [7]


def test_a_flush_is_due_by_age() -> None:
    clock = ManualClock()
    queue = FlushQueue(clock, 60, 100, 10_000)
    put(queue, 1)
    clock.advance(60)
    assert len(queue.take()) == 1


def test_age_includes_what_an_item_waited_before() -> None:
    """The time limit of the test ends a wait for the rest of the delay."""
    clock = ManualClock()
    queue = FlushQueue(clock, 3600, 100, 10_000)
    put(queue, 1, name=1)
    clock.advance(60)
    put(queue, 1, name=2, waited_s=3500)
    clock.advance(100)
    assert names(list(queue.take())) == [1, 2]


def test_age_is_waited_for() -> None:
    clock = SystemClock()
    queue = FlushQueue(clock, 0.05, 100, 10_000)
    put(queue, 1)
    began = clock.monotonic_s()
    assert len(queue.take()) == 1
    assert 0.03 < clock.monotonic_s() - began < 10


def test_what_is_being_written_counts_until_it_is_done() -> None:
    queue = FlushQueue(ManualClock(), 0, 100, 2 * (50 + ROW_COST_BYTES))
    put(queue, 50)
    put(queue, 50)
    taken = queue.take()
    with pytest.raises(RetryLater, match=r"the intake queue is full .* nothing was sent"):
        put(queue, 1)
    queue.done(taken)
    put(queue, 50)


def test_records_without_bytes_are_bounded_too() -> None:
    queue = FlushQueue(ManualClock(), 3600, 100, 10 * ROW_COST_BYTES)
    for _ in range(10):
        put(queue, 0)
    with pytest.raises(RetryLater):
        put(queue, 0)


def test_an_item_larger_than_the_queue_goes_in_alone() -> None:
    queue = FlushQueue(ManualClock(), 3600, 100, 200)
    put(queue, 500)
    with pytest.raises(RetryLater):
        put(queue, 1)


def test_a_sender_that_waits_makes_the_flush_due_and_gets_its_room() -> None:
    queue = FlushQueue(SystemClock(), 3600, 10_000, 50 + ROW_COST_BYTES)
    put(queue, 50, name=1)
    sender = threading.Thread(target=put, args=(queue, 50, 30, 2))
    sender.start()
    taken = queue.take()  # neither age nor size makes it due
    assert names(list(taken)) == [1]
    queue.done(taken)
    sender.join(10)
    assert not sender.is_alive()
    queue.close()
    assert names(list(queue.take())) == [2]


def test_a_refused_item_leaves_nothing_behind() -> None:
    queue = FlushQueue(ManualClock(), 3600, 100, 1000)

    def refuse() -> RecordItem:
        raise RetryLater("no")

    with pytest.raises(RetryLater, match="no"):
        queue.put(10, 10 + ROW_COST_BYTES, 1, refuse)
    queue.close()
    assert queue.take() == []


def test_closing_drains_and_refuses() -> None:
    queue = FlushQueue(ManualClock(), 3600, 100, 1000)
    put(queue, 1)
    queue.close()
    with pytest.raises(Halt, match="the writer is closed"):
        put(queue, 1)
    assert len(queue.take()) == 1
    assert queue.take() == []


def test_a_waiting_sender_learns_that_the_writer_closed() -> None:
    queue = FlushQueue(SystemClock(), 3600, 10_000, 50)
    put(queue, 50)
    seen: list[str] = []

    def send() -> None:
        try:
            put(queue, 50, 30)
        except Halt as error:
            seen.append(str(error))

    sender = threading.Thread(target=send)
    sender.start()
    queue.close()
    sender.join(10)
    assert seen == ["the writer is closed; open another one"]


def test_abandoned_items_are_never_taken() -> None:
    queue = FlushQueue(ManualClock(), 3600, 100, 1000)
    put(queue, 1, name=4)
    queue.close()
    assert names(list(queue.abandon())) == [4]
    assert queue.take() == []


def test_a_batch_is_cut_by_raw_bytes_for_a_flush_and_by_cost_for_the_queue() -> None:
    raw_bytes = np.array([10, 10, 10, 0, 0, 50], np.int64)
    light, heavy = raw_bytes, raw_bytes + np.array([0, 0, 0, 900, 900, 0], np.int64)
    each = ROW_COST_BYTES
    assert cut_rows(raw_bytes, light, 30, 100_000) == [
        Piece(0, 5, 30, 30 + 5 * each),
        Piece(5, 6, 50, 50 + each),
    ]
    assert cut_rows(raw_bytes, heavy, 30, 1000 + each) == [
        Piece(0, 3, 30, 30 + 3 * each),
        Piece(3, 4, 0, 900 + each),
        Piece(4, 5, 0, 900 + each),
        Piece(5, 6, 50, 50 + each),
    ]
    assert cut_rows(raw_bytes[:0], light[:0], 30, 1000) == []


def items(queue: FlushQueue, *raw_bytes: int) -> list[RecordItem]:
    return [
        RecordItem(
            TOPIC,
            Record(None, None),
            size,
            size + ROW_COST_BYTES,
            number,
            PendingRecord("a", 0, queue.changed),
        )
        for number, size in enumerate(raw_bytes)
    ]


def put_all(queue: FlushQueue, *raw_bytes: int) -> bool:
    made = items(queue, *raw_bytes)
    return queue.try_put_all(sum(raw_bytes), sum(item.cost for item in made), lambda: made)


def test_several_go_in_together_or_not_at_all() -> None:
    queue = FlushQueue(ManualClock(), 3600, 1000, 3 * (10 + ROW_COST_BYTES))
    assert put_all(queue, 10, 10)
    assert not put_all(queue, 10, 10), "there is room for one of them"
    assert (queue.counts().records, queue.counts().raw_bytes, queue.counts().waits) == (2, 20, 1)
    taken = queue.take()
    assert names(list(taken)) == [0, 1], (
        "what found no room has what waits written at once, and is not there itself"
    )
    queue.done(taken)
    assert put_all(queue, 10, 10, 10)
    assert queue.counts().held_bytes == 3 * (10 + ROW_COST_BYTES)


def test_those_that_found_no_room_were_never_made() -> None:
    queue = FlushQueue(ManualClock(), 3600, 1000, 100)
    assert put_all(queue, 10)
    assert not queue.try_put_all(10, 74, lambda: pytest.fail("made"))
    queue.close()
    with pytest.raises(Halt, match="the writer is closed"):
        queue.try_put_all(10, 74, lambda: pytest.fail("made"))


def test_several_are_due_by_size_and_wake_who_takes() -> None:
    queue = FlushQueue(SystemClock(), 3600, 100, 10_000)
    taken: list[list[int]] = []
    taker = threading.Thread(target=lambda: taken.append(names(list(queue.take()))))
    taker.start()
    assert put_all(queue, 60, 60, 60)
    taker.join(30)
    assert taken == [[0]]
