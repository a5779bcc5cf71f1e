"""Checkpoints keep the control log short, and trimming loses no state."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from archiver.config.groups import LogSettings
from archiver.ledger.checkpoint import MAGIC, LedgerCheckpoints, encode, state_of
from archiver.ledger.checkpointer import CHECKPOINTS_PER_RUN_MAX, LedgerCheckpointer
from archiver.ledger.fold import LedgerFold
from archiver.ledger.leader import Leader
from archiver.log.checkpoints import seal
from archiver.proto import control_log_pb2 as pb
from archiver.runtime.clock import ManualClock
from archiver.runtime.errors import Corrupted, Deposed, Halt, OutcomeUnknown, RetryLater
from archiver.runtime.ids import SeededIds
from tests.support.catalog.tables import log_limits
from tests.support.log.faulty_log import AppendFault, FaultyLog
from tests.support.log.memory_log import MemoryLog, MemoryLogStore
from tests.support.objects.memory_store import MemoryObjectStore

SEEDS = iter(range(5000, 6000))


def log_spans(entries: int = 10, size: int = 1 << 30) -> LogSettings:
    """`log:` with a checkpoint after so many entries, or bytes of them."""
    return log_limits(checkpoint_entries=entries, checkpoint_bytes=size)


@dataclass
class Scene:
    spans: LogSettings = field(default_factory=log_spans)
    needed_from: int | None = None

    def __post_init__(self) -> None:
        self.log = MemoryLogStore(1 << 16).log("control")
        self.objects = MemoryObjectStore()
        self.checkpoints = LedgerCheckpoints(self.objects)
        self.leader = self.another()
        self.leader.take_over()
        self.checkpointer = self.alongside(self.leader)
        self.whole = LedgerFold()

    def another(self, **limits: int) -> Leader:
        return Leader(
            self.log, SeededIds(next(SEEDS)), ManualClock(), "a:1", log_limits(**limits), self.checkpoints
        )

    def alongside(self, leader: Leader) -> LedgerCheckpointer:
        return LedgerCheckpointer(self.log, self.checkpoints, leader, self.spans, lambda: self.needed_from)

    def fill(self, entries: int) -> None:
        for number in range(entries):
            self.leader.append(pb.RoundStarted(commit_id=number.to_bytes(16, "big")))

    def keep(self) -> None:
        """Fold the new entries before they are trimmed."""
        for entry in self.log.read(self.whole.next_index, 100_000):
            self.whole.apply(entry.index, entry.data)


def test_it_is_made_where_it_is_due_and_the_log_is_trimmed_below_the_older_one() -> None:
    scene = Scene()
    scene.fill(8)
    assert not scene.checkpointer.run_if_due()
    scene.fill(26)  # 35 with that of the epoch
    scene.keep()
    assert scene.checkpointer.run_if_due()
    assert scene.checkpoints.indexes() == [10, 20, 30]
    assert scene.log.floor() == 19, "one entry before the older of the last two"
    assert not scene.checkpointer.due
    late = scene.another()
    late.refresh()
    assert encode(late.fold) == encode(scene.whole) == encode(scene.leader.fold)
    assert (late.checkpoint_index, late.fold.next_index) == (30, 35)
    dues = []
    for _ in range(2):
        scene.fill(4)
        dues.append(scene.checkpointer.due)
        scene.fill(1)
    assert dues == [False, True], "what was read behind the newest one counts"
    assert scene.checkpoints.superseded(scene.log) == [scene.checkpoints.key(10)]


def test_bytes_make_it_due_as_well() -> None:
    scene = Scene(log_spans(1000, 400))
    scene.fill(5)
    assert not scene.checkpointer.due
    scene.fill(20)
    assert scene.checkpointer.run_if_due()
    assert len(scene.checkpoints.indexes()) > 2
    assert scene.log.floor() > 0


def test_a_run_makes_so_many_and_the_next_goes_on() -> None:
    scene = Scene(log_spans(2))
    scene.fill(2 * CHECKPOINTS_PER_RUN_MAX + 5)
    assert len(scene.checkpointer.run()) == CHECKPOINTS_PER_RUN_MAX
    assert scene.checkpointer.due
    assert scene.checkpointer.run() == [22, 24, 26]
    assert not scene.checkpointer.due


def test_a_run_trims_once_behind_all_that_it_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    scene, trims, trim = Scene(), list[tuple[int, list[int]]](), MemoryLog.trim

    def reported(log: MemoryLog, below: int) -> None:
        trims.append((below, scene.checkpoints.indexes()))
        trim(log, below)

    scene.fill(49)
    monkeypatch.setattr(MemoryLog, "trim", reported)
    made = scene.checkpointer.run()
    assert made == [10, 20, 30, 40, 50]
    assert trims == [(39, made)]


def test_what_does_not_read_back_is_not_trimmed_for() -> None:
    scene = Scene()
    scene.fill(34)
    create, other = scene.objects.create, LedgerFold()
    other.next_index = 20

    def spoilt(key: str, data: bytes) -> None:
        create(key, encode(other) if key == scene.checkpoints.key(20) else data)

    scene.objects.create = spoilt  # type: ignore[method-assign]
    with pytest.raises(Corrupted, match="does not read back"):
        scene.checkpointer.run()
    assert (scene.checkpoints.indexes(), scene.log.floor()) == ([10, 20], 0)


def test_what_still_has_to_be_read_stays() -> None:
    scene = Scene(needed_from=7)
    scene.fill(40)
    scene.checkpointer.run()
    assert scene.log.floor() == 7
    scene.needed_from = 1000
    scene.fill(10)
    scene.checkpointer.run()
    assert scene.log.floor() == 39


def test_a_damaged_newest_one_costs_time_and_no_data() -> None:
    scene = Scene()
    scene.fill(34)
    scene.keep()
    scene.checkpointer.run()
    newest = scene.checkpoints.key(30)
    data = bytearray(scene.objects.read(newest))
    data[-1] ^= 1
    scene.objects.delete(newest)
    scene.objects.create(newest, bytes(data))
    late = scene.another()
    late.refresh()
    assert (late.checkpoint_index, encode(late.fold)) == (20, encode(scene.whole))
    with pytest.raises(Halt, match="delete it and it is made again"):
        scene.alongside(late).run()
    assert scene.log.floor() == 19
    scene.objects.delete(newest)
    assert scene.alongside(late).run() == [30]


def test_without_any_checkpoint_a_trimmed_log_is_not_read() -> None:
    scene = Scene()
    scene.fill(34)
    scene.checkpointer.run()
    for index in (10, 20, 30):
        scene.objects.delete(scene.checkpoints.key(index))
    with pytest.raises(Halt, match="has no intact checkpoint"):
        scene.another().refresh()


def test_a_checkpoint_of_another_log_does_not_count() -> None:
    scene, other = Scene(), Scene()
    other.fill(34)
    other.checkpointer.run()
    scene.fill(34)
    for index in (10, 20, 30):
        scene.objects.create(scene.checkpoints.key(index), other.objects.read(other.checkpoints.key(index)))
    late = scene.another()
    late.refresh()
    assert (late.checkpoint_index, encode(late.fold)) == (0, encode(scene.leader.fold))
    with pytest.raises(Halt, match="another deployment's"):
        scene.checkpointer.run()
    assert scene.log.floor() == 0


def test_nothing_is_trimmed_by_checkpoints_of_another_log() -> None:
    """An older copy of a metadata store was restored next to checkpoints of its later state. The spans
    differ, so that no index occurs twice."""
    other, scene = Scene(log_spans(3)), Scene(log_spans(25))
    other.fill(32)
    other.checkpointer.run()
    scene.fill(33)
    for index in other.checkpoints.indexes()[-3:]:
        scene.objects.create(scene.checkpoints.key(index), other.objects.read(other.checkpoints.key(index)))
    with pytest.raises(Halt, match="is of another control log"):
        scene.checkpointer.run()
    assert scene.log.floor() == 0
    late = scene.another()
    late.refresh()
    assert encode(late.fold) == encode(scene.leader.fold)
    for index in set(scene.checkpoints.indexes()) - {25}:
        scene.objects.delete(scene.checkpoints.key(index))
    assert scene.checkpointer.run() == []
    scene.fill(25)
    assert scene.checkpointer.run() == [50]
    assert scene.log.floor() == 24


def test_who_begins_while_others_trim_looks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the checkpoints that it listed reaches the floor of the trimmed log."""
    scene = Scene(log_spans(5))
    scene.fill(12)
    scene.checkpointer.run()
    listed, lists = scene.checkpoints.indexes, []

    def indexes() -> list[int]:
        found = listed()
        lists.append(found)
        if len(lists) == 1:
            scene.fill(20)
            scene.checkpointer.run()
        return found

    late = scene.another()
    monkeypatch.setattr(scene.checkpoints, "indexes", indexes)
    late.refresh()
    assert lists[0][-1] < scene.log.floor() == 24
    assert encode(late.fold) == encode(scene.leader.fold)


def test_a_reader_that_slept_goes_on_from_the_newest_checkpoint() -> None:
    scene = Scene()
    sleeper = scene.another()
    sleeper.refresh()
    held = sleeper.fold
    scene.fill(34)
    scene.keep()
    scene.checkpointer.run()
    sleeper.refresh()
    assert sleeper.fold is held, "a user of the fold sees the new entries"
    assert encode(held) == encode(scene.whole)


def test_a_leader_whose_entry_was_trimmed_unsettled_finds_out_that_it_was_deposed() -> None:
    """Its entry did arrive, others led, and the log was trimmed beyond it."""
    scene = Scene()
    spoilt = FaultyLog(scene.log)
    old = Leader(
        spoilt,
        SeededIds(next(SEEDS)),
        ManualClock(),
        "old:1",
        log_limits(append_attempts_max=1),
        scene.checkpoints,
    )
    old.take_over()
    spoilt.script(AppendFault.REPLY_LOST)
    with pytest.raises(OutcomeUnknown):
        old.append(pb.RoundStarted(commit_id=b"o" * 16))
    scene.leader.take_over()
    scene.fill(34)
    scene.keep()
    scene.checkpointer.run()
    assert scene.log.floor() > 3
    with pytest.raises(Deposed):
        old.append(pb.RoundStarted(commit_id=b"x" * 16))
    assert encode(old.fold) == encode(scene.whole)
    assert old.take_over() == 4


def test_a_deposed_leader_behind_the_floor_appends_nothing() -> None:
    scene = Scene()
    old = scene.another()
    old.take_over()
    scene.leader.take_over()
    scene.fill(34)
    scene.checkpointer.run()
    tail = scene.log.tail()
    with pytest.raises(Deposed):
        old.append(pb.RoundStarted(commit_id=b"x" * 16))
    assert scene.log.tail() == tail


def test_two_next_to_each_other_meet_their_own_bytes() -> None:
    scene = Scene()
    scene.fill(34)
    second = scene.alongside(scene.another())
    assert scene.checkpointer.run() == [10, 20, 30]
    before = {key: scene.objects.read(key) for key in map(scene.checkpoints.key, scene.checkpoints.indexes())}
    assert second.run() == []
    assert before == {key: scene.objects.read(key) for key in before}


def test_by_bytes_too_a_run_makes_so_many_and_the_next_goes_on() -> None:
    scene = Scene(log_spans(1000, 200))
    scene.fill(200)
    runs = 0
    while scene.checkpointer.run_if_due():
        runs += 1
    assert runs > 1
    assert scene.leader.bytes_since < 200, "nothing is left that is due"


def test_what_could_not_be_stored_is_due_at_the_next_call() -> None:
    scene = Scene(log_spans(1000, 400))
    scene.fill(20)
    create, away = scene.objects.create, [True]

    def spoilt(key: str, data: bytes) -> None:
        if away:
            raise RetryLater("the store is away")
        create(key, data)

    scene.objects.create = spoilt  # type: ignore[method-assign]
    assert not scene.checkpointer.run_if_due()
    away.clear()
    assert scene.checkpointer.run_if_due()


def test_one_that_contradicts_itself_does_not_count() -> None:
    scene = Scene()
    scene.fill(34)
    scene.keep()
    scene.checkpointer.run()
    newest = state_of(scene.checkpoints.load(30).fold)
    newest.events.add(index=1, text=99, datum=b"d", files=1)
    scene.objects.delete(scene.checkpoints.key(30))
    scene.objects.create(scene.checkpoints.key(30), seal(MAGIC, newest.SerializeToString()))
    late = scene.another()
    late.refresh()
    assert (late.checkpoint_index, encode(late.fold)) == (20, encode(scene.whole))


def test_an_epoch_of_unknown_outcome_is_left_to_taking_over() -> None:
    """If `refresh` resolved it, the leader would mistake its own EPOCH for that of another leader."""
    scene = Scene()
    spoilt = FaultyLog(scene.log)
    one = Leader(
        spoilt,
        SeededIds(next(SEEDS)),
        ManualClock(),
        "one:1",
        log_limits(append_attempts_max=1),
        scene.checkpoints,
    )
    one.take_over()
    spoilt.script(AppendFault.DROPPED)
    with pytest.raises(OutcomeUnknown):
        one.take_over()
    one.refresh()
    assert one.fold.epoch == one.epoch
    before = one.epoch
    assert one.take_over() > before
    one.check()
