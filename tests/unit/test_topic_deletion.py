"""A deleted topic is gone for every process from its entry on, and no other topic or process is held up or
harmed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest

from archiver.config.groups import LogSettings
from archiver.proto import intake_log_pb2 as log_pb
from archiver.proto import intake_state_pb2 as pb
from archiver.runtime.clock import ManualClock
from archiver.runtime.errors import ConfigInvalid, Corrupted, Halt, NotFound, OutcomeUnknown
from archiver.runtime.ids import SeededIds, TopicId
from intake.format import PlacedSegment
from intake.log.backlog import Backlog
from intake.log.checkpoint import MAGIC, Checkpoint, decode, encode, same
from intake.log.entries import ENTRY_FORMATS, parse_entry
from intake.log.fold import Applied, IntakeFold, Landed
from intake.log.sequencer import Sequencer
from intake.producers import EPOCH_MAX, Stamp
from reconcile.snapshot.oldest_required import oldest_required
from reconcile.snapshot.retention_floor import RetentionFloor
from reconcile.vacuum.clean import needed_files
from tests.support.intake.intake_entries import Run, declared, named, topic_id_of
from tests.support.intake.transaction_entries import TransactionEntries
from tests.support.log.faulty_log import AppendFault, FaultyLog
from tests.support.log.memory_log import MemoryLogStore

A, B = topic_id_of(1), topic_id_of(2)
NOW_US = 1_700_000_000_000_000
SETTINGS = LogSettings(append_attempts_max=3)


def deleted(topic_id: TopicId, time_us: int = 7) -> bytes:
    entry = log_pb.TopicDeleted(topic_id=bytes.fromhex(topic_id), time_us=time_us)
    return log_pb.IntakeEntry(format=3, id=b"i" * 16, deleted=entry).SerializeToString()


def apply(fold: IntakeFold, entry: bytes) -> Applied:
    return fold.apply(fold.next_index, entry)


@pytest.fixture
def fold() -> IntakeFold:
    fold = IntakeFold()
    for entry in (
        declared(1, "a", 2),
        declared(2, "b", 1),
        named("f1", [Run(A, 0, rows=3), Run(A, 1), Run(B, 0, rows=2)]),
    ):
        apply(fold, entry)
    return fold


def test_it_is_gone_and_the_others_stay(fold: IntakeFold) -> None:
    apply(fold, deleted(A))
    assert list(fold.topics_by_name) == ["b"]
    assert list(fold.topics_by_id) == [B]
    assert fold.deleted_topics[A].name == "a"
    assert (fold.deleted_topics[A].partitions, fold.deleted_topics[A].deleted_us) == (2, 7)
    backlog = Backlog(fold)
    asked: list[Callable[[], object]] = [
        lambda: backlog.next_offset((A, 0)),
        lambda: backlog.segments((A, 0)),
        lambda: backlog.summary((A, 1), 0),
        lambda: backlog.gaps((A, 1), 0, 1),
    ]
    for ask in asked:
        with pytest.raises(NotFound, match=rf"topic a \(id {A}\) was deleted"):
            ask()
    assert backlog.next_offset((B, 0)) == 2


def test_its_segments_are_refused_one_by_one(fold: IntakeFold) -> None:
    apply(fold, deleted(A))
    landed = apply(fold, named("f2", [Run(A, 1, rows=4), Run(B, 0, rows=3)])).landed
    assert landed[0] == Landed((A, 1), 4, (), None, "deleted")
    assert landed[1].runs == ((2, 3),)
    with pytest.raises(Corrupted, match="partition 2"):
        apply(fold, named("f3", [Run(A, 2)]))


def test_a_second_deletion_is_void_and_one_of_an_unknown_topic_is_damage(fold: IntakeFold) -> None:
    apply(fold, deleted(A))
    assert apply(fold, deleted(A, 8)).refusal == "deleted"
    assert fold.deleted_topics[A].deleted_us == 7
    with pytest.raises(Corrupted, match="never declared"):
        apply(fold, deleted(topic_id_of(9)))


def test_declared_again_it_is_another_topic(fold: IntakeFold) -> None:
    apply(fold, deleted(A))
    assert fold.deleted_named("a") is fold.deleted_topics[A]
    apply(fold, declared(1, "a", 2))  # A declaration of a deleted id has no effect.
    assert "a" not in fold.topics_by_name
    apply(fold, declared(3, "a", 1))
    assert fold.topics_by_name["a"].topic_id == topic_id_of(3)
    assert fold.deleted_named("a") is None
    assert fold.next_offset((topic_id_of(3), 0)) == 0
    assert apply(fold, named("f4", [Run(A, 0)])).landed[0].refusal == "deleted"


def test_an_open_transaction_that_touches_it_delays_no_one(fold: IntakeFold) -> None:
    """Its records in other topics become gaps, as after a time-out: the rest must not be committed in part."""
    sender, other = TransactionEntries(fold, "both"), TransactionEntries(fold, "b alone")
    sender.send(Run(A, 0), Run(B, 0, rows=2))
    apply(fold, named("f5", [Run(B, 0, rows=5)]))
    assert fold.stable_offset((B, 0)) == 2
    apply(fold, deleted(A))
    assert fold.stable_offset((B, 0)) == fold.next_offset((B, 0)) == 9
    assert fold.gaps((B, 0), 0, 9) == [(2, 4)]
    commit = log_pb.TransactionEnded(
        producer_id=sender.producer_id, epoch=sender.epoch, commit=True, time_us=1
    )
    late = log_pb.IntakeEntry(format=2, id=b"i" * 16, transaction=commit)
    assert apply(fold, late.SerializeToString()).refusal == "fenced"
    other.send(Run(B, 0))
    assert fold.stable_offset((B, 0)) == 9
    other.end(commit=True)
    assert fold.stable_offset((B, 0)) == 10


def test_a_producer_with_its_last_epoch_is_forgotten(fold: IntakeFold) -> None:
    sender = TransactionEntries(fold, "old")
    producer = fold.producers.get(sender.producer_id)
    assert producer is not None
    producer.epoch = sender.epoch = EPOCH_MAX
    sender.send(Run(A, 0))
    apply(fold, deleted(A))
    assert fold.producers.get(sender.producer_id) is None
    assert len(fold.transactions) == 0


def test_a_checkpoint_keeps_it(fold: IntakeFold) -> None:
    before = encode(Checkpoint(fold.state(), ()))
    TransactionEntries(fold, "t").send(Run(A, 1))
    apply(fold, deleted(A))
    data = encode(Checkpoint(fold.state(), ()))
    stored = decode(data, "here")
    assert same(stored.state, fold.state())
    assert encode(stored) == data
    again = stored.fold()
    assert apply(again, named("f6", [Run(A, 0)])).landed[0].refusal == "deleted"
    # Only a checkpoint that an older version would misread has the format that stops it.
    assert [
        pb.IntakeState.FromString(one[len(MAGIC) + hashlib.sha256().digest_size :]).format
        for one in (before, data)
    ] == [1, 2]


def test_who_learns_of_an_older_checkpoint_lets_go_of_the_rest(fold: IntakeFold) -> None:
    apply(fold, deleted(A))
    fold.release_history({(A, 0): 3, (A, 1): 1, (B, 0): 2})
    assert fold.partition((B, 0)).history_end == 2


def test_its_backlog_needs_no_file_and_pins_nothing(fold: IntakeFold) -> None:
    intake = Backlog(fold)

    def kept() -> tuple[set[str], str | None]:
        topics = fold.topics_by_id.values()
        lines = {
            topic.topic_id: RetentionFloor(topic.topic_id, topic.name, (0,) * topic.partitions, (0,))
            for topic in topics
        }
        pin = oldest_required(intake, lines)
        return set(needed_files(intake, lines).sure), None if pin is None else pin.topic

    apply(fold, named("f7", [Run(A, 0)]))
    assert kept() == ({"f1", "f7"}, "a")
    apply(fold, deleted(A))
    assert kept() == ({"f1"}, "b")
    apply(fold, deleted(B))
    assert kept() == (set(), None)


class Bench:
    """One log and any number of processes."""

    def __init__(self) -> None:
        self.log = FaultyLog(MemoryLogStore(SETTINGS.entry_bytes_max).log("intake"))
        self.clock = ManualClock(NOW_US)
        self._seed = 0

    def sequencer(self) -> Sequencer:
        self._seed += 1
        return Sequencer(self.log, SeededIds(self._seed), self.clock, SETTINGS)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def append(sequencer: Sequencer, topic_id: TopicId, stamp: Stamp | None = None) -> Landed:
    segment = PlacedSegment(topic_id, 0, 0, 0, 1, 10, NOW_US, stamp)
    return sequencer.append_file("intake/f", 100, b"d" * 32, [segment])[0]


def test_a_writer_that_has_not_heard_of_it_is_refused(bench: Bench) -> None:
    one, other = bench.sequencer(), bench.sequencer()
    topic_id = one.declare_topic("orders", 1).topic_id
    assert append(other, topic_id).refusal is None
    producer = other.open_producer("", 0)
    assert append(other, topic_id, Stamp(*producer, 0)).runs == ((1, 1),)
    one.delete_topic(topic_id)
    assert "orders" in other.fold.topics_by_name
    assert append(other, topic_id).refusal == "deleted"
    assert append(other, topic_id, Stamp(*producer, 1)).refusal == "deleted"
    assert append(other, topic_id, Stamp(*producer, 0)).refusal == "deleted"


def test_it_is_not_declared_again_without_a_request(bench: Bench) -> None:
    """A daemon with an old configuration still declares the topics in it."""
    one, stale = bench.sequencer(), bench.sequencer()
    first = stale.declare_topic("orders", 1)
    one.delete_topic(first.topic_id)
    for sequencer in (stale, bench.sequencer()):
        with pytest.raises(ConfigInvalid, match=r"topic orders was deleted.*archiver topics create orders"):
            sequencer.declare_topic("orders", 1)
    tail = bench.log.tail()
    second = one.declare_topic("orders", 2, again=True)
    assert second.topic_id != first.topic_id
    assert stale.declare_topic("orders", 2) == second
    assert bench.log.tail() == tail + 1


def test_a_declaration_that_lost_the_race_against_both_is_given_up(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one process is about to declare a topic for the first time, another declares and deletes it."""
    slow, fast = bench.sequencer(), bench.sequencer()
    fast.refresh()
    append_to = bench.log.append
    once = [True]

    def overtaken(index: int, data: bytes) -> object:
        if once and parse_entry(index, data).WhichOneof("body") == "topic":
            once.clear()
            fast.delete_topic(fast.declare_topic("orders", 1).topic_id)
        return append_to(index, data)

    monkeypatch.setattr(bench.log, "append", overtaken)
    with pytest.raises(ConfigInvalid, match="was deleted"):
        slow.declare_topic("orders", 1)
    assert bench.log.tail() == 2


def test_deleting_twice_is_one_entry_and_an_unknown_outcome_is_settled(bench: Bench) -> None:
    one, other = bench.sequencer(), bench.sequencer()
    topic_id = one.declare_topic("orders", 1).topic_id
    bench.log.script(AppendFault.REPLY_LOST, AppendFault.REPLY_LOST, AppendFault.REPLY_LOST)
    with pytest.raises(OutcomeUnknown):
        one.delete_topic(topic_id)
    one.delete_topic(topic_id)
    other.delete_topic(topic_id)
    assert bench.log.tail() == 2
    assert parse_entry(1, bench.log.read(1, 1)[0].data).format == 3
    with pytest.raises(NotFound, match="no topic with the id"):
        one.delete_topic(topic_id_of(9))


def test_an_older_version_stops(bench: Bench) -> None:
    """Readers distinguish it by format alone: the entry has format 3, and an older reader halts (as this one
    does at the next)."""
    entry = log_pb.IntakeEntry(
        format=ENTRY_FORMATS[-1] + 1,
        id=b"i" * 16,
        deleted=log_pb.TopicDeleted(topic_id=bytes.fromhex(A), time_us=1),
    )
    with pytest.raises(Halt, match="upgrade"):
        IntakeFold().apply(0, entry.SerializeToString())
