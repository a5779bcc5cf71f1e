"""The position of each partition, against a model that inspects every single offset."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archiver.ledger.fold import LedgerFold
from archiver.ledger.views import TopicLedger
from archiver.publish.progress import positions, troubles, whole_backlog
from archiver.runtime.errors import Corrupted, RetryLater
from archiver.runtime.rfc3339 import parse_time
from intake.log.backlog import Backlog
from intake.log.fold import IntakeFold
from tests.support.intake.intake_entries import Run, declared, named, topic_id_of
from tests.support.intake.transaction_entries import HOUR_US, TransactionEntries
from tests.support.intake.unread_history import UnreadHistory

ONE = topic_id_of(1)
SEGMENTS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), max_size=12)


@given(segments=SEGMENTS, data=st.data())
def test_positions(segments: list[tuple[int, int]], data: st.DataObject) -> None:
    fold, ledger = IntakeFold(), LedgerFold()
    fold.apply(0, declared(1, "one", 3))
    rows = {0: 0, 1: 0, 2: 0}
    for partition, count in segments:
        fold.apply(
            fold.next_index,
            named(f"intake/{fold.next_index}", [Run(ONE, partition, rows=count, raw_bytes=10 * count)]),
        )
        rows[partition] += count
    marks = {partition: data.draw(st.integers(0, count)) for partition, count in rows.items()}
    ledger.topics[ONE] = TopicLedger(
        ONE, watermarks={partition: mark for partition, mark in marks.items() if mark}
    )
    for found in positions(Backlog(fold), ledger, ONE):
        count, mark = rows[found.partition], marks[found.partition]
        assert (found.start, found.watermark, found.written, found.stable, found.next) == (
            0,
            mark,
            mark,
            count,
            count,
        )
        assert (found.backlog_rows, found.backlog_bytes) == (count - mark, 10 * (count - mark))
    assert [found.partition for found in positions(Backlog(fold), ledger, ONE)] == [0, 1, 2]


def test_the_oldest_open_transaction_is_what_holds_a_partition_back() -> None:
    fold, ledger = IntakeFold(), LedgerFold()
    fold.apply(0, declared(1, "one", 2))
    first, second = TransactionEntries(fold, "first"), TransactionEntries(fold, "second")
    fold.apply(fold.next_index, named("intake/a", [Run(ONE, 0, rows=3)]))
    first.send(Run(ONE, 0, rows=2, accept_max_us=5_000_000))
    second.send(Run(ONE, 0, rows=4, accept_max_us=7_000_000), Run(ONE, 1, rows=1, accept_max_us=7_000_000))
    fold.apply(fold.next_index, named("intake/b", [Run(ONE, 0, rows=1)]))

    def held() -> list[tuple[str, int] | None]:
        found = [item.held for item in positions(Backlog(fold), ledger, ONE)]
        return [None if item is None else (item.transactional_id, item.waiting) for item in found]

    assert held() == [("first", 7), ("second", 1)]
    (item, _) = positions(Backlog(fold), ledger, ONE)
    assert (item.stable, item.next, item.backlog_rows) == (3, 10, 3)
    assert item.held is not None
    reported = item.held.to_json()
    assert (reported["producer_id"], reported["epoch"]) == (first.producer_id, 0)
    assert (parse_time(str(reported["since"])), parse_time(str(reported["deadline"]))) == (
        5_000_000,
        5_000_000 + HOUR_US,
    )
    assert item.held.described(65_000_000) == f"first (producer {first.producer_id}, epoch 0, open for 60 s)"
    first.end(commit=False)
    assert held() == [("second", 5), ("second", 1)]
    second.end(commit=True)
    assert held() == [None, None]
    assert [(item.stable, item.backlog_rows) for item in positions(Backlog(fold), ledger, ONE)] == [
        (10, 8),
        (1, 1),
    ]


def test_what_a_damaged_shelf_hides_is_said_and_everything_else_is_reported() -> None:
    fold, ledger = IntakeFold(), LedgerFold()
    fold.apply(0, declared(1, "one", 4))
    fold.apply(1, named("intake/a", [Run(ONE, number, rows=3, raw_bytes=30) for number in range(4)]))
    damaged = Corrupted("shelf is damaged")
    history = UnreadHistory({(ONE, 0): damaged, (ONE, 2): damaged, (ONE, 3): Corrupted("shelf is gone")})
    view = history.release_history(fold)
    fold.apply(2, named("intake/b", [Run(ONE, 0, rows=2)]))
    found = positions(view, ledger, ONE)
    assert [(item.stable, item.next, item.written) for item in found] == [
        (5, 5, 0),
        (3, 3, 0),
        (3, 3, 0),
        (3, 3, 0),
    ]
    assert [(item.backlog_rows, item.backlog_bytes) for item in found] == [
        (None, None),
        (3, 30),
        (None, None),
        (None, None),
    ]
    assert whole_backlog(found) == (None, None)
    assert whole_backlog(found[1:2]) == (3, 30)
    assert troubles("one", found) == [
        "topic one partitions 0, 2: the backlog cannot be counted: shelf is damaged",
        "topic one partition 3: the backlog cannot be counted: shelf is gone",
    ]
    ledger.topics[ONE] = TopicLedger(ONE, watermarks={0: 3, 2: 3, 3: 3})
    archived = positions(view, ledger, ONE)
    assert [item.backlog_rows for item in archived] == [2, 3, 0, 0], "archived offsets are not read"
    assert troubles("one", archived) == []
    history.errors[ONE, 1] = RetryLater("no answer")
    with pytest.raises(RetryLater):
        positions(view, ledger, ONE)
