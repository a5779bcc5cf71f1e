"""Transactions through the writer: whole or not at all, for any failure on the way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from archiver.runtime import failpoints
from archiver.runtime.errors import (
    InvalidInput,
    OutcomeUnknown,
    ProducerFenced,
    RetryLater,
    TransactionFailed,
)
from archiver.runtime.ids import TopicPartition
from intake.records import Record
from intake.write.producer import Producer
from intake.write.writer import IntakeWriter
from tests.support.intake.intake_rig import WAIT_S, IntakeRig
from tests.support.log.faulty_log import AppendFault
from tests.support.objects.faulty_objects import ObjectFault


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[IntakeRig]:
    rig = IntakeRig(tmp_path)
    rig.topic("t", 2)
    rig.topic("u", 1)
    yield rig
    failpoints.arm("")
    rig.close()


def record(value: bytes) -> Record:
    return Record(None, value)


def tp_of(rig: IntakeRig, topic: str = "t", partition: int = 0) -> TopicPartition:
    return rig.reread().topics_by_name[topic].topic_id, partition


def visible(rig: IntakeRig, topic: str = "t", partition: int = 0) -> list[int]:
    """Offsets of the records below the stable offset."""
    fold, tp = rig.reread(), tp_of(rig, topic, partition)
    stable = fold.stable_offset(tp)
    return [offset for one in fold.segments(tp) for offset in range(one.base, one.end) if offset < stable]


def gaps(rig: IntakeRig, topic: str = "t", partition: int = 0) -> list[tuple[int, int]]:
    fold, tp = rig.reread(), tp_of(rig, topic, partition)
    return fold.gaps(tp, 0, fold.next_offset(tp))


def make_unknown(rig: IntakeRig, *last: AppendFault) -> None:
    """The next append has an unknown outcome; the retries after that follow the script."""
    rig.log.script(*[AppendFault.DROPPED] * 2, *last)


def test_committed_records_become_visible_at_once_and_aborted_ones_never(rig: IntakeRig) -> None:
    with rig.writer(delay_max=0.005) as writer:
        producer = Producer.open(writer, "x")
        with producer.transaction():
            one = producer.send("t", record(b"a"), 0)
            two = producer.send_batch("t", pa.table({"value": [b"b", b"c"], "partition": [0, 1]}))
            three = producer.send("u", record(b"d"))
            assert [
                one.result(WAIT_S).offset,
                two.result(WAIT_S).offsets.tolist(),
                three.result(WAIT_S).offset,
            ] == [0, [1, 0], 0]
            assert [visible(rig), visible(rig, "t", 1), visible(rig, "u")] == [[], [], []]
        assert [visible(rig), visible(rig, "t", 1), visible(rig, "u")] == [[0, 1], [0], [0]]
        with pytest.raises(KeyError), producer.transaction():
            _send_and_fail(producer)
        with producer.transaction():
            assert producer.send("t", record(b"e"), 0).sequence == 3
    assert (visible(rig), gaps(rig)) == ([0, 1, 3], [(2, 3)])


def _send_and_fail(producer: Producer) -> None:
    producer.send("t", record(b"x"), 0)
    raise KeyError("the caller's own")


def test_only_inside_of_a_transaction(rig: IntakeRig) -> None:
    with rig.writer(delay_max=60) as writer:
        producer = Producer.open(writer, "x")
        for wrong in (lambda: producer.send("t", record(b"a")), producer.commit, producer.abort):
            with pytest.raises(InvalidInput, match="begin one first"):
                wrong()
        producer.begin()
        with pytest.raises(InvalidInput, match="commit or abort it first"):
            producer.begin()
        entries = rig.log.tail()
        producer.commit()
        assert rig.log.tail() == entries, "nothing was sent, so there is nothing to end"
        for wrong_id in ("", "x" * 1025):
            with pytest.raises(InvalidInput, match="1 to 1024 bytes"):
                Producer.open(writer, wrong_id)
        for wrong_timeout in (0.0, -1.0, 900.001):
            with pytest.raises(InvalidInput, match="transaction_timeout_max = 900 s"):
                Producer.open(writer, "x", transaction_timeout_s=wrong_timeout)


@pytest.mark.parametrize("fault", ["upload", "append", "unknown"])
def test_a_transaction_with_a_record_that_is_not_certainly_stored_can_only_be_aborted(
    rig: IntakeRig, fault: str
) -> None:
    with rig.writer(delay_max=60) as writer:
        producer = Producer.open(writer, "x")
        producer.begin()
        good = producer.send("t", record(b"good"), 0)
        writer.flush()
        if fault == "upload":
            rig.objects.fail("create", ObjectFault.REFUSED, "intake/")
        elif fault == "append":
            rig.log.script(AppendFault.REFUSED)
        else:
            make_unknown(rig, AppendFault.REPLY_LOST)
        bad = producer.send("t", record(b"bad"), 0)
        with pytest.raises(TransactionFailed, match="abort it"):
            producer.commit()
        assert good.result(0).outcome == "ok"
        assert bad.result(0).outcome == ("unknown" if fault == "unknown" else "failed")
        with pytest.raises(TransactionFailed, match="abort it"):
            producer.send("t", record(b"more"), 0)
        producer.abort()
        with producer.transaction():
            producer.send("t", record(b"after"), 0)
    end = 3 if fault == "unknown" else 2
    assert (visible(rig), gaps(rig)) == ([end - 1], [(0, end - 1)])


def test_the_context_manager_aborts_what_cannot_be_committed(rig: IntakeRig) -> None:
    with rig.writer(delay_max=60) as writer:
        producer = Producer.open(writer, "x")
        with pytest.raises(TransactionFailed), producer.transaction():
            _send_and_spoil(rig, writer, producer)
        assert gaps(rig) == [(0, 1)]
        assert not list(rig.reread().transactions)


def _send_and_spoil(rig: IntakeRig, writer: IntakeWriter, producer: Producer) -> None:
    producer.send("t", record(b"a"), 0)
    writer.flush()
    rig.log.script(AppendFault.REFUSED)
    producer.send("t", record(b"b"), 0)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("fate", [AppendFault.REPLY_LOST, AppendFault.LATE, AppendFault.DROPPED])
def test_a_marker_of_unknown_outcome_is_settled_by_the_same_call(
    rig: IntakeRig, fate: AppendFault, commit: bool
) -> None:
    with rig.writer(delay_max=60) as writer:
        producer = Producer.open(writer, "x")
        producer.begin()
        producer.send("t", record(b"a"), 0)
        writer.flush()
        make_unknown(rig, fate)
        end, other = (producer.commit, producer.abort) if commit else (producer.abort, producer.commit)
        with pytest.raises(OutcomeUnknown, match="again to resolve it"):
            end()
        with pytest.raises(InvalidInput, match="of unknown outcome"):
            other()
        with pytest.raises(InvalidInput, match="is not ended"):
            producer.begin()
        rig.log.script(*[AppendFault.DROPPED] * 3)
        with pytest.raises(OutcomeUnknown):
            end()
        end()
        markers = [index for index, _ in rig.log.appends]
        with producer.transaction():
            producer.send("t", record(b"b"), 0)
    assert markers.count(markers[-1]) >= 6 or fate is AppendFault.DROPPED, "the same entry at the same place"
    assert visible(rig) == ([0, 1] if commit else [1])


@pytest.mark.parametrize("landed", [True, False])
def test_a_commit_of_unknown_outcome_and_then_fenced(rig: IntakeRig, landed: bool, tmp_path: Path) -> None:
    """A later opening of the id does not change a commit that is in the log. A commit that is not in the log
    comes too late."""
    with rig.writer(delay_max=0.01) as writer:
        producer = Producer.open(writer, "x")
        producer.begin()
        producer.send("t", record(b"a"), 0)
        writer.flush()
        make_unknown(rig, AppendFault.REPLY_LOST if landed else AppendFault.DROPPED)
        with pytest.raises(OutcomeUnknown):
            producer.commit()
        other = IntakeRig(tmp_path)
        other.sequencer.open_producer("x", 60_000_000)
        other.close()
        if landed:
            producer.commit()
        else:
            with pytest.raises(ProducerFenced, match="was aborted before"):
                producer.commit()
        if landed:  # the producer has not learned of the newer epoch yet
            producer.begin()
            assert producer.send("t", record(b"b"), 0).result(WAIT_S).refusal == "fenced"
        with pytest.raises(ProducerFenced):
            (producer.commit if landed else producer.begin)()
    assert visible(rig) == ([0] if landed else [])


def test_a_time_out_aborts_and_a_late_commit_comes_to_nothing(rig: IntakeRig) -> None:
    with rig.writer(delay_max=60) as writer:
        producer = Producer.open(writer, "x", transaction_timeout_s=5)
        producer.begin()
        producer.send("t", record(b"a"), 0)
        writer.flush()
        assert rig.sequencer.end_overdue(rig.clock.now_us() + 4_000_000) == []
        assert len(rig.sequencer.end_overdue(rig.clock.now_us() + 6_000_000)) == 1
        with pytest.raises(ProducerFenced):
            producer.commit()
        assert (visible(rig), gaps(rig)) == ([], [(0, 1)])
        again = Producer.open(writer, "x")
        with again.transaction():
            again.send("t", record(b"a"), 0)
    assert visible(rig) == [1]


def test_opened_again_it_aborts_what_was_left_open(rig: IntakeRig) -> None:
    with rig.writer(delay_max=60) as writer:
        crashed = Producer.open(writer, "x")
        crashed.begin()
        crashed.send("t", record(b"a"), 0)
        writer.flush()
        again = Producer.open(writer, "x")
        assert (again.producer_id, again.epoch) == (crashed.producer_id, 1)
        assert gaps(rig) == [(0, 1)]
        with again.transaction():
            assert again.send("t", record(b"a"), 0).sequence == 0, "an epoch begins with 0"
    assert visible(rig) == [1]


@pytest.mark.parametrize("commit", [True, False])
def test_resumed_inside_of_a_transaction(rig: IntakeRig, commit: bool, tmp_path: Path) -> None:
    with rig.writer(delay_max=60) as writer:
        producer = Producer.open(writer, "x")
        producer.begin()
        producer.send("t", record(b"a"), 0)
    other = IntakeRig(tmp_path)
    with other.writer(delay_max=60) as writer:
        resumed = Producer.resume(writer, producer.producer_id, producer.epoch)
        assert resumed.transactional_id == "x"
        assert resumed.send("t", record(b"b"), 0).sequence == 1
        (resumed.commit if commit else resumed.abort)()
    assert visible(other) == ([0, 1] if commit else [])
    other.close()


def test_a_commit_waits_for_records_on_their_way_and_lets_no_more_in(rig: IntakeRig) -> None:
    release, begun = threading.Event(), threading.Event()
    create = rig.objects.create

    def slow(key: str, data: bytes) -> None:
        begun.set()
        release.wait(WAIT_S)
        create(key, data)

    rig.objects.create = slow  # type: ignore[method-assign]
    with rig.writer(delay_max=0) as writer:
        producer = Producer.open(writer, "x")
        producer.begin()
        producer.send("t", record(b"a"), 0)
        assert begun.wait(WAIT_S)
        committing = threading.Thread(target=producer.commit)
        committing.start()
        _until_refused(producer)
        assert visible(rig) == []
        release.set()
        committing.join(WAIT_S)
    assert visible(rig) == [0]


def _until_refused(producer: Producer) -> None:
    for _ in range(10_000):
        try:
            producer._session._check_open()
        except InvalidInput as error:
            assert "is being ended" in str(error)  # noqa: PT017
            return
        threading.Event().wait(0.001)
    pytest.fail("the commit never began")


def test_a_slow_store_makes_a_commit_ask_for_patience(rig: IntakeRig) -> None:
    release = threading.Event()
    create = rig.objects.create

    def slow(key: str, data: bytes) -> None:
        release.wait(WAIT_S)
        create(key, data)

    rig.objects.create = slow  # type: ignore[method-assign]
    writer = rig.writer(delay_max=0, close_timeout=0.1)
    producer = Producer.open(writer, "x")
    producer.begin()
    producer.send("t", record(b"a"), 0)
    for end in (producer.commit, producer.abort):
        with pytest.raises(RetryLater, match="flush again"):
            end()
    release.set()
    _retried(producer.commit)
    writer.close()
    assert visible(rig) == [0]


def _retried(call: Callable[[], None]) -> None:
    for _ in range(100):
        try:
            return call()
        except RetryLater:
            continue
    return call()


def test_a_batch_that_found_no_room_halfway_spoils_its_transaction(rig: IntakeRig) -> None:
    release = threading.Event()
    create = rig.objects.create

    def slow(key: str, data: bytes) -> None:
        release.wait(WAIT_S)
        create(key, data)

    rig.objects.create = slow  # type: ignore[method-assign]
    writer: IntakeWriter = rig.writer(
        queue_bytes_max=10_000, delay_max_bytes=4_000, record_bytes_max=4_000, close_timeout=0.2
    )
    producer = Producer.open(writer, "x")
    producer.begin()
    pending = producer.send_batch("t", pa.table({"value": [b"x" * 2000] * 20}), 0)
    release.set()
    outcomes = [one.outcome for one in pending.result(WAIT_S)]
    assert {*outcomes} == {"ok", "failed"}
    with pytest.raises(TransactionFailed, match="were not queued"):
        _retried(producer.commit)
    _retried(producer.abort)
    writer.close()
    assert visible(rig) == []


def test_two_transactions_at_once_hold_each_other_back_but_do_not_mix(rig: IntakeRig) -> None:
    with rig.writer(delay_max=60) as writer:
        one, two = Producer.open(writer, "one"), Producer.open(writer, "two")
        one.begin()
        two.begin()
        for number in range(3):
            one.send("t", record(b"1-%d" % number), 0)
            two.send("t", record(b"2-%d" % number), 0)
            writer.flush()
        two.commit()
        assert visible(rig) == []
        blocking = rig.reread().blocking(tp_of(rig))
        assert blocking is not None
        assert blocking.transactional_id == "one"
        one.abort()
    assert (visible(rig), gaps(rig)) == ([1, 3, 5], [(0, 1), (2, 3), (4, 5)])
