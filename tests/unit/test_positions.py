"""How far each partition is, against a look at every single offset."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from archiver.jobs.positions import positions
from archiver.ledger.fold import LedgerFold
from archiver.ledger.views import TopicLedger
from intake.fold import IntakeFold
from tests.support.intake_entries import Run, declared, named, topic_id_of

ONE = topic_id_of(1)
SEGMENTS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), max_size=12)


@given(segments=SEGMENTS, data=st.data())
def test_positions(segments: list[tuple[int, int]], data: st.DataObject) -> None:
    fold, ledger = IntakeFold(), LedgerFold()
    fold.apply(0, declared(1, "one", 3))
    rows = {0: 0, 1: 0, 2: 0}
    for partition, count in segments:
        fold.apply(fold.next_index, named(f"intake/{fold.next_index}", [Run(ONE, partition, rows=count, raw_bytes=10 * count)]))
        rows[partition] += count
    marks = {partition: data.draw(st.integers(0, count)) for partition, count in rows.items()}
    ledger.topics[ONE] = TopicLedger(ONE, watermarks={partition: mark for partition, mark in marks.items() if mark})
    for found in positions(fold, ledger, ONE):
        count, mark = rows[found.partition], marks[found.partition]
        assert (found.start, found.watermark, found.written, found.stable, found.next) == (0, mark, mark, count, count)
        assert (found.backlog_rows, found.backlog_bytes) == (count - mark, 10 * (count - mark))
    assert [found.partition for found in positions(fold, ledger, ONE)] == [0, 1, 2]
