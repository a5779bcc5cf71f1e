"""Rules L1 to L4 and T1: the leader of the control log."""

from __future__ import annotations

from pathlib import Path

import pytest

from archiver.ledger.leader import Leader
from archiver.log.store import Log
from archiver.proto import control_log_pb2 as pb
from archiver.runtime import failpoints
from archiver.runtime.clock import ManualClock
from archiver.runtime.errors import Deposed, Halt, InvalidInput, OutcomeUnknown, RetryLater
from archiver.runtime.ids import SeededIds
from tests.support.catalog.tables import log_limits, text_entry
from tests.support.log.faulty_log import AppendFault, FaultyLog
from tests.support.log.memory_log import MemoryLogStore

SEEDS = iter(range(1000, 2000))


def log() -> Log:
    return MemoryLogStore(1 << 16).log("control")


def leader(on: Log, name: str = "a", **limits: int) -> Leader:
    return Leader(on, SeededIds(next(SEEDS)), ManualClock(), f"{name}:1", log_limits(**limits))


def entries(on: Log) -> list[pb.ControlEntry]:
    return [pb.ControlEntry.FromString(item.data) for item in on.read(0)]


def test_t1_taking_over_appends_the_next_epoch() -> None:
    on = log()
    assert leader(on, "a").take_over() == 1
    assert leader(on, "b").take_over() == 2
    assert [(item.epoch, item.owner, item.WhichOneof("body")) for item in entries(on)] == [
        (1, "a:1", "epoch_started"),
        (2, "b:1", "epoch_started"),
    ]


def test_l1_every_entry_has_an_id_of_its_own() -> None:
    on = log()
    one = leader(on)
    one.take_over()
    for _ in range(5):
        one.append(pb.RoundStarted(commit_id=bytes(16)))
    ids = [item.id for item in entries(on)]
    assert all(len(item) == 16 for item in ids)
    assert len(set(ids)) == len(ids) == 6


def test_own_entries_are_folded_when_append_returns() -> None:
    one = leader(log())
    one.take_over()
    index = one.append(text_entry(b"text"))
    assert index == 1
    assert one.fold.next_index == 2
    assert list(one.fold.texts.values()) == [b"text"]


def test_nothing_is_appended_before_taking_over() -> None:
    on = log()
    with pytest.raises(Halt, match="taken over"):
        leader(on).append(pb.RoundStarted())
    with pytest.raises(Halt, match="taken over"):
        leader(on).check()
    assert on.tail() == 0


def test_l3_a_newer_epoch_deposes_on_append() -> None:
    on = log()
    one, two = leader(on, "a"), leader(on, "b")
    one.take_over()
    two.take_over()
    with pytest.raises(Deposed, match="epoch 2 of b:1"):
        one.append(pb.RoundStarted())
    assert on.tail() == 2
    with pytest.raises(Deposed):
        one.append(pb.RoundStarted())
    assert two.append(pb.RoundStarted()) == 2


def test_l4_check_reads_the_tail() -> None:
    on = log()
    one = leader(on, "a")
    one.take_over()
    one.check()
    leader(on, "b").take_over()
    with pytest.raises(Deposed):
        one.check()


def test_a_deposed_leader_may_take_over_again() -> None:
    on = log()
    one = leader(on, "a")
    one.take_over()
    leader(on, "b").take_over()
    assert one.take_over() == 3
    assert one.append(pb.RoundStarted(commit_id=bytes(16))) == 3


def test_l2_a_lost_reply_is_settled_by_the_same_entry_at_the_same_index() -> None:
    on = FaultyLog(log(), [AppendFault.NONE, AppendFault.REPLY_LOST, AppendFault.DROPPED, AppendFault.NONE])
    one = leader(on)
    one.take_over()
    assert one.append(text_entry(b"x")) == 1
    assert one.append(text_entry(b"y")) == 2
    assert len(on.read(0)) == 3
    assert len({data for index, data in on.appends if index == 1}) == 1


def test_l2_after_an_unsettled_append_that_one_is_settled_first() -> None:
    on = FaultyLog(log(), [AppendFault.NONE, AppendFault.DROPPED, AppendFault.LATE])
    one = leader(on, append_attempts_max=2)
    one.take_over()
    with pytest.raises(OutcomeUnknown):
        one.append(text_entry(b"first"))
    assert one.append(text_entry(b"second")) == 2
    assert list(one.fold.texts.values()) == [b"first", b"second"]
    assert [item.schema_text.text for item in entries(on)[1:]] == [b"first", b"second"]


def test_l2_an_unsettled_append_that_lost_its_place_deposes() -> None:
    inner = log()
    on = FaultyLog(inner, [AppendFault.NONE, AppendFault.DROPPED, AppendFault.DROPPED])
    one = leader(on, append_attempts_max=2)
    one.take_over()
    with pytest.raises(OutcomeUnknown):
        one.append(text_entry(b"first"))
    leader(inner, "b").take_over()
    with pytest.raises(Deposed):
        one.append(text_entry(b"second"))
    assert [item.WhichOneof("body") for item in entries(inner)] == ["epoch_started", "epoch_started"]


def test_l2_an_unsettled_epoch_is_settled_before_the_next_one() -> None:
    on = FaultyLog(log(), [AppendFault.REPLY_LOST])
    one = leader(on, append_attempts_max=1)
    with pytest.raises(OutcomeUnknown):
        one.take_over()
    assert one.take_over() == 2
    assert [item.epoch for item in entries(on)] == [1, 2]


def test_refused_append_leaves_nothing_open() -> None:
    on = FaultyLog(log(), [AppendFault.NONE, AppendFault.REFUSED])
    one = leader(on)
    one.take_over()
    with pytest.raises(RetryLater):
        one.append(text_entry(b"x"))
    assert one.append(text_entry(b"y")) == 1


def test_too_large_an_entry_is_refused() -> None:
    one = leader(log())
    one.take_over()
    with pytest.raises(InvalidInput, match="entry_bytes_max"):
        one.append(text_entry(bytes(1 << 17)))
    assert one.append(text_entry(b"x")) == 1


def test_what_does_not_fit_is_said_before_anything_is_made() -> None:
    on = log()
    one = leader(on, entry_bytes_max=1000)
    one.take_over()
    one.check_size(pb.SchemaChanged(version=1, iceberg_schema="x" * 800), "the schema of topic orders")
    with pytest.raises(
        Halt,
        match=r"the schema of topic orders needs an entry of 1\d+ bytes, more than log.entry_bytes_max "
        r"\(1000\)",
    ):
        one.check_size(pb.SchemaChanged(version=1, iceberg_schema="x" * 1000), "the schema of topic orders")
    assert on.tail() == 1


def test_l3_void_entries_at_the_tail_do_not_stop_the_leader() -> None:
    """A deposed leader's append was in flight and arrives after the new EPOCH. It is void, and the new leader
    continues."""
    on = log()
    one, two = leader(on, "a"), leader(on, "b")
    one.take_over()
    two.take_over()
    zombie = pb.ControlEntry(format=1, id=bytes(16), epoch=1, owner="a:1", schema_text=text_entry(b"void"))
    on.append(2, zombie.SerializeToString())
    assert two.append(text_entry(b"good")) == 3
    assert two.fold.void == 1
    assert list(two.fold.texts.values()) == [b"good"]


def test_two_writers_of_one_epoch_are_a_halt() -> None:
    on = log()
    one = leader(on)
    one.take_over()
    stranger = pb.ControlEntry(format=1, id=bytes(16), epoch=1, owner="x:1", schema_text=text_entry(b"x"))
    on.append(1, stranger.SerializeToString())
    with pytest.raises(Halt, match="did not write"):
        one.append(text_entry(b"y"))


def test_l1_two_candidates_of_one_epoch_cannot_both_win() -> None:
    """Flaw 17: both read epoch 0 and propose EPOCH 1."""
    inner = log()

    class Slow(FaultyLog):
        """A log in which another leader appends first."""

        def append(self, index: int, data: bytes):  # type: ignore[no-untyped-def]
            if inner.tail() == 0:
                leader(inner, "b").take_over()
            return super().append(index, data)

    one = leader(Slow(inner))
    with pytest.raises(Deposed, match="b:1"):
        one.take_over()
    assert inner.tail() == 1


def test_failpoints_around_the_epoch(tmp_path: Path) -> None:
    on = log()
    try:
        failpoints.arm("epoch.append.before=error")
        with pytest.raises(RetryLater):
            leader(on).take_over()
        assert on.tail() == 0
        failpoints.arm("epoch.append.after=error")
        with pytest.raises(RetryLater):
            leader(on).take_over()
        assert on.tail() == 1
    finally:
        failpoints.arm("")
    assert leader(on).take_over() == 2


def test_l2_what_is_unsettled_is_settled_before_the_log_is_read_on() -> None:
    """Otherwise the vacuum would decide by a log without the entry, and its own entry would resolve that one
    first."""
    on = FaultyLog(log())
    one = leader(on, append_attempts_max=1)
    one.take_over()
    on.script(AppendFault.DROPPED)
    with pytest.raises(OutcomeUnknown):
        one.append(pb.RoundStarted(commit_id=b"r" * 16))
    assert not one.fold.rounds
    one.refresh()
    assert [item.commit_id for item in one.fold.rounds] == [b"r" * 16]
