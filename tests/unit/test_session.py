"""Which sequence number is next, after every outcome of the earlier ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from archiver.config.groups import IntakeSettings
from archiver.runtime.clock import ManualClock
from archiver.runtime.errors import InvalidInput, ProducerFenced, TransactionFailed
from archiver.runtime.ids import TopicId
from archiver.runtime.logging import METRICS
from intake.write.metrics import WriterMetrics, metrics_of
from intake.write.sequences import ProducerSession, _spans, _with, _without
from tests.support.intake.intake_rig import IntakeRig
from tests.support.intake.publishing import Publishing
from tests.support.log.faulty_log import AppendFault
from tests.support.objects.faulty_objects import ObjectFault

TP = (TopicId("a" * 32), 0)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[IntakeRig]:
    rig = IntakeRig(tmp_path, clock=ManualClock())
    rig.topic("t", 1)
    rig.topic("w", 3)
    yield rig
    rig.close()


def session(expects: int | None = 0, transactional_id: str = "") -> ProducerSession:
    return ProducerSession(1, 0, transactional_id, lambda _: expects)


def test_numbers_begin_where_the_log_has_them_and_wrap() -> None:
    one = session((1 << 31) - 2)
    assert [one.stamp(TP, None).sequence for _ in range(4)] == [(1 << 31) - 2, (1 << 31) - 1, 0, 1]
    _, numbers = session((1 << 31) - 1).stamp_rows(TP[0], np.array([0, 1, 0, 0], np.int32), None)
    assert numbers.tolist() == [(1 << 31) - 1, (1 << 31) - 1, 0, 1]


def test_a_stated_number_moves_the_counter_ahead_but_never_back() -> None:
    one = session()
    for stated, following in ((None, 1), (0, 1), (5, 6), (3, 6)):
        one.stamp(TP, stated)
        assert one._next_of(TP) == following


def test_stated_numbers_in_any_order_are_all_taken() -> None:
    one = session()
    one.stamp_rows(TP[0], np.array([0, 1, 0, 0], np.int32), np.array([7, 3, 2, 3], np.int32))
    assert (one._next_of(TP), one._next_of((TP[0], 1))) == (8, 4)


def test_spans_of_numbers() -> None:
    top = (1 << 31) - 1
    assert _spans(np.array([3, 4, 5, 9, top, 0, 1], np.int32)) == [(3, 3), (9, 1), (top, 3)]
    assert _with(_with([], (3, 2)), (5, 1)) == [(3, 3)]
    assert _with([(3, 2)], (9, 1)) == [(3, 2), (9, 1)]
    for taken, left in [
        ((0, 3), [(3, 4)]),
        ((0, 5), [(5, 2)]),
        ((4, 2), [(3, 1), (6, 1)]),
        ((5, 9), [(3, 2)]),
        ((3, 4), []),
        ((1, 99), []),
        ((7, 1), [(3, 4)]),
    ]:
        assert _without([(3, 4)], taken) == left
    assert _without([(top - 1, 5)], (0, 1)) == [(top - 1, 2), (1, 2)]


def test_a_transactional_producer_sends_inside_of_a_transaction_only() -> None:
    one = session(transactional_id="x")
    with pytest.raises(InvalidInput, match="begin one first"):
        one.stamp(TP, None)
    one.phase = "open"
    assert one.stamp(TP, None).transactional
    one.left_out()
    with pytest.raises(TransactionFailed, match="were not queued"):
        one.stamp_rows(TP[0], np.array([0], np.int32), None)
    one.fenced = "by another"
    with pytest.raises(ProducerFenced, match="by another"):
        one.stamp(TP, None)


def test_a_newer_record_is_never_taken_for_one_that_failed(rig: IntakeRig) -> None:
    """Two records are numbered and the first fails. A third batch reuses both numbers: the second record must
    not be written."""
    publishing = Publishing(rig, ManualClock(), 1)
    one = publishing.session(*publishing.sequencer.open_producer("", 1))
    first = publishing.send("t", 0, b"first", one)
    second = publishing.send("t", 0, b"second", one)
    rig.objects.fail("create", ObjectFault.REFUSED, "intake/")
    publishing.publish(1)
    assert first.result(0).outcome == "failed"
    assert second.result(0).outcome == "failed", "reported before its number is reused"
    newer = publishing.send_batch("t", [0, 0, 0], [b"a", b"b", b"c"], one)
    assert newer.sequences is not None
    assert newer.sequences.tolist() == [0, 1, 2], "over the number of the second, too"
    publishing.publish(1)
    last = publishing.send("t", 0, b"d", one)
    assert last.sequence == 3, "an older failure does not take the counter back"
    publishing.publish()
    assert (newer.result(0).offsets.tolist(), last.result(0).offset) == ([0, 1, 2], 3)
    assert rig.values("t", 0) == [b"a", b"b", b"c", b"d"]


def test_what_waits_behind_a_failure_fails_with_all_that_waits_behind_it(rig: IntakeRig) -> None:
    publishing = Publishing(rig, ManualClock(), 1)
    one, other = (publishing.session(*publishing.sequencer.open_producer("", 1)) for _ in range(2))
    first = publishing.send("w", 0, b"first", one)
    both = publishing.send_batch("w", [0, 1], [b"x", b"y"], one)
    behind = publishing.send("w", 1, b"behind", one)
    untouched = [publishing.send("w", 2, b"elsewhere", one), publishing.send("w", 0, b"other", other)]
    rig.objects.fail("create", ObjectFault.REFUSED, "intake/")
    publishing.publish(1)
    assert (first.done(), both.done(), behind.done(), untouched[0].done(), untouched[1].done()) == (
        True,
        True,
        True,
        False,
        False,
    )
    assert [publishing.send("w", partition, b"z", one).sequence for partition in (0, 1, 2)] == [0, 0, 1]
    publishing.publish()
    assert [pending.result(0).outcome for pending in untouched] == ["ok", "ok"]
    assert (rig.values("w", 0), rig.values("w", 1), rig.values("w", 2)) == (
        [b"other", b"z"],
        [b"z"],
        [b"elsewhere", b"z"],
    )


def test_all_that_is_unknown_is_sent_again_before_anything_new(rig: IntakeRig) -> None:
    publishing = Publishing(rig, ManualClock(), 1)
    one = publishing.session(*publishing.sequencer.open_producer("", 1))
    unknown = [publishing.send("t", 0, b"%d" % number, one) for number in range(2)]
    rig.log.script(*[AppendFault.DROPPED] * 3)
    publishing.publish()
    assert [pending.result(0).outcome for pending in unknown] == ["unknown"] * 2
    for number in range(2):
        new = publishing.send("t", 0, b"new", one)
        publishing.publish()
        assert new.result(0).outcome == "failed"
        assert "send those again with their sequence numbers" in (new.result(0).error or "")
        again = publishing.send("t", 0, b"%d" % number, one, sequence=number)
        publishing.publish()
        assert again.result(0).offset == number
    new = publishing.send("t", 0, b"new", one)
    publishing.publish()
    assert new.result(0).offset == 2


def test_every_metric_has_a_name_and_a_meaning() -> None:
    numbers = metrics_of(WriterMetrics(*range(13)))
    assert sorted(numbers.values()) == list(range(13))
    assert set(numbers) <= set(METRICS)
    assert all(name.startswith(("archiver_", "process_")) and METRICS[name].text for name in METRICS)
    assert IntakeSettings().record_bytes_max == 16 * 2**20
