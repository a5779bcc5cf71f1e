"""Publishing control events: what the position guarantees, and what is repeated after a failure. The topic is
in memory and fails at chosen places; tests/integration/test_control_topic.py has a real one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from archiver.control_topic.publisher import READ_ENTRIES, Position
from archiver.control_topic.waves import TopicRecord
from archiver.ledger.checkpoint import LedgerCheckpoints, encode
from archiver.ledger.entries import parse_entry
from archiver.ledger.event_reader import EventReader, Mark
from archiver.ledger.fold import LedgerFold
from archiver.log.store import entries_from
from archiver.proto import control_log_pb2 as pb
from archiver.proto import control_topic_pb2
from archiver.runtime.clock import ManualClock
from archiver.runtime.errors import Corrupted, Halt, LeaseHeld, OutcomeUnknown, RetryLater
from tests.support.kafka.control_topic import LedgerWriter, MemoryTopic, Rig, events_of
from tests.support.log.memory_log import LeasePlace, MemoryLease, MemoryLogStore
from tests.support.objects.memory_store import MemoryObjectStore


def rig() -> Rig:
    logs = MemoryLogStore(512 * 1024)
    return Rig(logs.log("control"), logs.log("published"), MemoryObjectStore(), ManualClock())


def ids(topic: MemoryTopic) -> list[str]:
    return [dict(record.headers)["archiver.id"].decode() for record in topic.records]


def first_seen(topic: MemoryTopic) -> list[str]:
    return list(dict.fromkeys(ids(topic)))


def wanted(at: Rig) -> list[str]:
    return [event.entry_id.hex() for event in events_of(at.control)]


# the reader


def test_events_are_those_of_entries_that_count() -> None:
    at = rig()
    old = LedgerWriter(at.control, "old:1", 1)
    commit = old.begin()
    old.write(commit, 1)
    tail = at.control.tail()
    late = pb.ControlEntry.FromString(at.control.read(tail - 1)[0].data)
    LedgerWriter(at.control, "new:1", 2).round(1)
    late.id = b"z" * 16
    # An entry from the deposed leader, after the newer EPOCH.
    at.control.append(at.control.tail(), late.SerializeToString())
    fold, counted = LedgerFold(), set[int]()
    for entry in entries_from(at.control, 0):
        before = fold.applied
        fold.apply(entry.index, entry.data)
        counted |= {entry.index} if fold.applied > before else set()
    found = {event.index for event in events_of(at.control)}
    assert found < counted
    assert at.control.tail() - 1 not in found
    assert late.id not in {event.entry_id for event in events_of(at.control)}
    topic = MemoryTopic()
    at.publisher(topic.connect).run()
    assert ids(topic) == wanted(at)


def test_an_entry_that_is_not_understood_stops_the_reader() -> None:
    reader = EventReader()
    with pytest.raises(Halt, match="needs entry 0 next"):
        reader.take(1, b"")
    with pytest.raises(Halt, match="format 99"):
        reader.take(0, pb.ControlEntry(format=99).SerializeToString())
    with pytest.raises(Corrupted, match="which no leader started"):
        reader.take(
            0,
            pb.ControlEntry(format=1, id=bytes(16), epoch=4, schema_text=pb.SchemaText()).SerializeToString(),
        )


# the position


def test_the_log_of_positions_stays_short_and_says_the_newest() -> None:
    at = rig()
    positions = at.positions()
    assert positions.newest() is None
    for number in range(10):
        positions.move(Position("t", b"i", Mark(number, b"l", 3)))
    assert at.published.tail() - at.published.floor() == 2
    assert at.position() == Position("t", b"i", Mark(9, b"l", 3))


def test_a_position_that_another_writer_moved_is_read_again_first() -> None:
    at = rig()
    one, other = at.positions(seed=1), at.positions(seed=2)
    assert one.newest() is other.newest() is None
    other.move(Position("t", b"", Mark(7, b"", 1)))
    for _ in range(2):  # first an index that is taken, then one that is trimmed
        with pytest.raises(RetryLater, match="another process"):
            one.move(Position("t", b"", Mark(3, b"", 1)))
        for number in range(8, 12):
            other.move(Position("t", b"", Mark(number, b"", 1)))
    assert one.newest() == Position("t", b"", Mark(11, b"", 1))
    one.move(Position("t", b"", Mark(12, b"", 1)))


@pytest.mark.parametrize(
    ("data", "why"),
    [(b"\xff", "is not a position"), (control_topic_pb2.Published(format=2).SerializeToString(), "format 2")],
)
def test_a_position_that_is_not_understood_is_not_guessed_at(data: bytes, why: str) -> None:
    at = rig()
    at.published.append(0, data)
    with pytest.raises(Halt, match=why):
        at.positions().newest()


# publishing


def test_everything_is_published_once_in_order_and_then_what_comes() -> None:
    at, topic = rig(), MemoryTopic()
    ledger = LedgerWriter(at.control)
    publisher = at.publisher(topic.connect)
    for _ in range(40):
        ledger.round(1, 2)
    assert publisher.run() == len(wanted(at)) == 280
    assert ids(topic) == wanted(at)
    assert [record.value for record in topic.records] == [event.data for event in events_of(at.control)]
    assert publisher.run() == 0
    ledger.round(3)
    assert publisher.run() == 5
    assert ids(topic) == wanted(at)
    entries = at.published.tail()
    assert publisher.run() == 0
    assert at.published.tail() == entries  # a run without events adds no entry
    publisher.close()
    assert topic.open == 0


@pytest.mark.parametrize("error", [RetryLater, OutcomeUnknown])
@pytest.mark.parametrize("after", [False, True])
def test_after_a_failure_it_goes_on_at_the_position(error: type[Exception], after: bool) -> None:
    at, topic = rig(), MemoryTopic()
    ledger = LedgerWriter(at.control)
    for _ in range(50):
        ledger.round(1, 2)
    publisher = at.publisher(topic.connect)
    sends = 0

    def breaks(_: Sequence[TopicRecord]) -> None:
        nonlocal sends
        sends += 1
        if sends % 7 == 3 and sends < 60:
            raise error("no")

    setattr(topic, "after" if after else "before", breaks)
    failures = 0
    while True:
        try:
            publisher.run()
            break
        except error:
            failures += 1
            assert topic.open == 0
    assert failures
    assert first_seen(topic) == wanted(at)
    assert at.position() == Position("control", topic.id, publisher._mark)
    assert publisher._mark.next_index == at.control.tail()


def test_a_process_that_dies_before_the_position_repeats_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    at, topic = rig(), MemoryTopic()
    ledger = LedgerWriter(at.control)
    ledger.round(1, 2)
    at.publisher(topic.connect).run()
    once = len(topic.records)
    ledger.round(2)
    dying = at.publisher(topic.connect, seed=7)

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(dying._positions, "move", dies)
    with pytest.raises(KeyboardInterrupt):
        dying.run()
    assert len(topic.records) == once + 5
    at.publisher(topic.connect, seed=8).run()
    assert ids(topic)[once:] == 2 * wanted(at)[once:]


def test_an_event_that_is_refused_is_never_passed_over_and_nothing_before_it_repeated() -> None:
    at, topic = rig(), MemoryTopic()
    ledger = LedgerWriter(at.control)
    ledger.round(1)
    ledger.round(2, padding=50_000)
    ledger.round(1)
    large = next(event.entry_id.hex() for event in events_of(at.control) if len(event.data) > 50_000)

    def refuses(records: Sequence[TopicRecord]) -> None:
        if any(len(record.value) > 50_000 for record in records):
            raise Halt("too large")

    topic.before = refuses
    publisher = at.publisher(topic.connect)
    for _ in range(3):
        with pytest.raises(Halt, match="too large"):
            publisher.run()
    assert ids(topic) == wanted(at)[: wanted(at).index(large)]
    reader = publisher._reader
    with pytest.raises(Halt, match="too large"):
        publisher.run()
    assert publisher._reader is reader  # retries do not read the ledger from its beginning
    published = [event.index for event in events_of(at.control)][len(topic.records) - 1]
    publisher.update_state("too large")
    assert (publisher.state.lag, publisher.state.trouble) == (at.control.tail() - published - 1, "too large")
    topic.before = lambda _: None
    publisher.run()
    assert ids(topic) == wanted(at)


def test_a_request_to_stop_ends_it_behind_what_was_acknowledged() -> None:
    at, topic = rig(), MemoryTopic()
    LedgerWriter(at.control).round(1, 2, 3)
    stopped = [False]
    publisher = at.publisher(topic.connect, stopping=lambda: stopped[0])

    def stop(_: Sequence[TopicRecord]) -> None:
        stopped[0] = len(topic.sends) == 2

    topic.after = stop
    assert publisher.run() == 4  # START_COMMIT, and DATA_WRITTEN for three tables
    at.publisher(topic.connect, seed=9).run()
    assert ids(topic) == wanted(at)


def test_only_who_holds_the_lease_publishes_and_two_that_both_do_disorder_nothing() -> None:
    at, topic, place = rig(), MemoryTopic(), LeasePlace()
    ledger = LedgerWriter(at.control)
    for _ in range(2 * READ_ENTRIES // 10):
        ledger.round(1, 2)
    one = at.publisher(topic.connect, MemoryLease("one", place), seed=1)
    two = at.publisher(topic.connect, MemoryLease("two", place), seed=2)
    zombie = at.publisher(topic.connect, seed=3)  # holds a lease of its own
    interleaved = [False]

    def in_between(_: Sequence[TopicRecord]) -> None:
        if not interleaved[0] and len(topic.sends) > 20:
            interleaved[0] = True
            with pytest.raises(LeaseHeld):
                two.run()
            zombie.run()

    topic.after = in_between
    with pytest.raises(RetryLater, match="another process"):
        one.run()
    assert interleaved[0]
    one.run()
    assert len(ids(topic)) > len(wanted(at))
    for key in {record.key for record in topic.records}:
        mine = [dict(record.headers)["archiver.id"].decode() for record in topic.records if record.key == key]
        assert list(dict.fromkeys(mine)) == [one for one in wanted(at) if one in set(mine)]
    assert set(ids(topic)) == set(wanted(at))
    one.close()
    ledger.round(2)
    assert two.run() == 5


# where it begins


def test_latest_begins_where_the_ledger_ends_at_the_first_start_also_while_the_broker_is_away() -> None:
    at, topic = rig(), MemoryTopic()
    ledger = LedgerWriter(at.control)
    ledger.round(1)
    topic.away = True
    publisher = at.publisher(topic.connect, from_="latest")
    with pytest.raises(RetryLater, match="away"):
        publisher.run()
    before = len(wanted(at))
    ledger.round(1)
    publisher.update_state("away")
    assert publisher.state.lag == 5
    with pytest.raises(RetryLater, match="away"):
        publisher.run()
    assert topic.open == 1  # the same connection is used again
    topic.away = False
    again = at.publisher(topic.connect, seed=4, from_="latest")
    assert again.run() == 5
    assert ids(topic) == wanted(at)[before:]


@pytest.mark.parametrize(("begins", "whole"), [("earliest", True), ("latest", False)])
@pytest.mark.parametrize("change", ["made anew", "renamed"])
def test_a_new_topic_gets_everything_or_what_was_not_published(begins: str, whole: bool, change: str) -> None:
    at, topic = rig(), MemoryTopic()
    ledger = LedgerWriter(at.control)
    ledger.round(1)
    first = at.publisher(topic.connect, from_="earliest")
    first.run()
    first.close()
    old = len(wanted(at))
    ledger.round(2)
    topic.records.clear()
    topic.id = b"2" * 16 if change == "made anew" else topic.id
    name = "other" if change == "renamed" else "control"
    at.publisher(topic.connect, seed=4, from_=begins, topic=name).run()
    assert ids(topic) == (wanted(at) if whole else wanted(at)[old:])
    at.publisher(topic.connect, seed=5, from_=begins, topic=name).run()
    assert ids(topic) == (wanted(at) if whole else wanted(at)[old:])


def test_a_topic_that_is_made_again_in_between_is_noticed_before_the_position() -> None:
    at, topic = rig(), MemoryTopic()
    LedgerWriter(at.control).round(1)

    def made_again(_: Sequence[TopicRecord]) -> None:
        if len(topic.sends) == 3:
            topic.records.clear()
            topic.id = b"2" * 16

    topic.after = made_again
    publisher = at.publisher(topic.connect)
    with pytest.raises(OutcomeUnknown, match="was recreated"):
        publisher.run()
    assert at.position() == Position("control", b"", Mark(0, b"", 0))
    publisher.run()
    assert ids(topic)[-len(wanted(at)) :] == wanted(at)


def test_a_topic_that_was_made_again_between_two_runs_gets_nothing_before_the_rest() -> None:
    at, topic = rig(), MemoryTopic()
    ledger = LedgerWriter(at.control)
    ledger.round(1)
    publisher = at.publisher(topic.connect)
    publisher.run()
    topic.records.clear()
    topic.id = b"2" * 16
    ledger.round(1)
    with pytest.raises(OutcomeUnknown, match="was recreated"):
        publisher.run()
    assert topic.records == []
    publisher.run()
    assert ids(topic) == wanted(at)


def test_a_cluster_without_topic_ids_is_taken_for_the_same() -> None:
    at, topic = rig(), MemoryTopic()
    ledger = LedgerWriter(at.control)
    ledger.round(1)
    at.publisher(topic.connect).run()
    topic.id = b""
    ledger.round(1)
    assert at.publisher(topic.connect, seed=6).run() == 5


def test_a_position_of_another_ledger_begins_again() -> None:
    at, topic = rig(), MemoryTopic()
    LedgerWriter(at.control).round(1)
    at.publisher(topic.connect).run()
    other = Rig(MemoryLogStore(512 * 1024).log("control"), at.published, at.objects, at.clock)
    ledger = LedgerWriter(other.control, seed=55)
    ledger.round(1)
    topic.records.clear()
    other.publisher(topic.connect, seed=6).run()
    assert ids(topic) == wanted(other)
    shorter = Rig(MemoryLogStore(512 * 1024).log("control"), at.published, at.objects, at.clock)
    LedgerWriter(shorter.control, seed=66).begin()
    topic.records.clear()
    shorter.publisher(topic.connect, seed=7).run()
    assert ids(topic) == wanted(shorter)


# a ledger that was trimmed


def trimmed(at: Rig, checkpoint_at: Sequence[int], below: int) -> None:
    fold = LedgerFold()
    for entry in entries_from(at.control, 0):
        if entry.index in checkpoint_at:
            at.objects.create(LedgerCheckpoints(at.objects).key(entry.index), encode(fold))
        fold.apply(entry.index, entry.data)
    at.control.trim(below)


@pytest.mark.parametrize("reached", [9, 14, 19, 26])
def test_it_goes_on_in_a_ledger_that_was_trimmed_up_to_the_position(reached: int) -> None:
    at, topic = rig(), MemoryTopic()
    ledger = LedgerWriter(at.control)
    for _ in range(4):
        ledger.round(1, 2)
    everything = wanted(at)
    reader = EventReader()
    while reader.mark.next_index < reached:
        entry = at.control.read(reader.mark.next_index, 1)[0]
        reader.take(entry.index, entry.data)
    left = [event.entry_id.hex() for event in events_of(at.control) if event.index >= reached]
    at.positions().move(Position("control", topic.id, reader.mark))
    trimmed(at, (10, 20), below=min(9, reached - 1))
    at.publisher(topic.connect).run()
    assert ids(topic) == left
    assert set(left) < set(everything)


@pytest.mark.parametrize("reached", [9, 19])
def test_nothing_is_left_out_where_others_trimmed_just_up_to_the_position(
    reached: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The entry that identifies the position is gone, and the oldest checkpoint is one entry later."""
    at, topic = rig(), MemoryTopic()
    ledger = LedgerWriter(at.control)
    for _ in range(4):
        ledger.round(1, 2)
    LedgerWriter(at.control, "b:1", 2).round(1)
    before = at.control.read(reached - 1, 1)[0]
    left = [event for event in events_of(at.control) if event.index >= reached]
    assert left[0].index == reached, "else nothing could be left out"
    at.positions().move(
        Position("control", topic.id, Mark(reached, parse_entry(before.index, before.data).id, 1))
    )
    trimmed(at, (10, 20, 33), below=reached)
    at.publisher(topic.connect).run()
    assert ids(topic) == [event.entry_id.hex() for event in left]
    assert "does not continue at entry" not in caplog.text


@pytest.mark.parametrize("epoch", [0, 2])
def test_a_position_of_other_epochs_is_of_another_log(epoch: int, caplog: pytest.LogCaptureFixture) -> None:
    at, topic = rig(), MemoryTopic()
    ledger = LedgerWriter(at.control)
    for _ in range(4):
        ledger.round(1, 2)
    left = [event.entry_id.hex() for event in events_of(at.control) if event.index >= 10]
    at.positions().move(Position("control", topic.id, Mark(9, b"another log's id", epoch)))
    trimmed(at, (10, 20), below=9)
    at.publisher(topic.connect).run()
    assert ids(topic) == left
    assert "does not continue at entry 9, up to which events were published" in caplog.text


def test_the_first_start_in_a_trimmed_ledger_begins_with_what_is_left() -> None:
    at, topic = rig(), MemoryTopic()
    ledger = LedgerWriter(at.control)
    for _ in range(4):
        ledger.round(1, 2)
    left = [event.entry_id.hex() for event in events_of(at.control) if event.index >= 10]
    trimmed(at, (10, 20), below=9)
    at.publisher(topic.connect).run()
    assert ids(topic) == left


def test_a_position_below_the_ledger_is_reported_and_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    at, topic = rig(), MemoryTopic()
    ledger = LedgerWriter(at.control)
    for _ in range(4):
        ledger.round(1, 2)
    entry = pb.ControlEntry.FromString(at.control.read(4, 1)[0].data)
    at.positions().move(Position("control", topic.id, Mark(5, entry.id, 1)))
    left = [event.entry_id.hex() for event in events_of(at.control) if event.index >= 10]
    trimmed(at, (10, 20), below=9)
    at.publisher(topic.connect).run()
    assert ids(topic) == left
    assert "does not continue at entry 5, up to which events were published" in caplog.text
