"""What the publisher's position retains in the control log, and where publication begins after a trim or a
new topic.

The topic is in memory and fails at chosen places.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from archiver.config.groups import LogSettings
from archiver.control_topic.publisher import Position
from archiver.control_topic.waves import TopicRecord
from archiver.daemon.daemon import Publication
from archiver.ledger.checkpoint import LedgerCheckpoints
from archiver.ledger.checkpointer import LedgerCheckpointer
from archiver.ledger.event_reader import EventReader, Mark, needed_for
from archiver.log.store import Log
from archiver.runtime.clock import ManualClock
from archiver.runtime.errors import Halt, OutcomeUnknown, RetryLater
from tests.support.catalog.tables import log_limits
from tests.support.kafka.control_topic import LedgerWriter, MemoryTopic, Rig
from tests.support.log.memory_log import MemoryLease, MemoryLogStore
from tests.support.objects.memory_store import MemoryObjectStore


def log_spans(entries: int = 50, size: int = 1 << 30) -> LogSettings:
    """`log:` with a checkpoint after so many entries, or bytes of them."""
    return log_limits(checkpoint_entries=entries, checkpoint_bytes=size)


class Scene:
    """A ledger with many rounds of seven entries, trimmed as the daemon does it, and all events ever in it."""

    def __init__(self, spans: LogSettings | None = None) -> None:
        logs = MemoryLogStore(512 * 1024)
        self.at = Rig(logs.log("control"), logs.log("published"), MemoryObjectStore(), ManualClock())
        self.topic = MemoryTopic()
        self.ledger = LedgerWriter(self.at.control)
        self.checkpoints = LedgerCheckpoints(self.at.objects)
        self.spans = spans or log_spans()
        self.reader = EventReader()
        self.events: list[tuple[int, str]] = []

    def rounds(self, count: int) -> None:
        for _ in range(count):
            self.ledger.round(1, 2)
        for entry in self.at.control.read(self.reader.mark.next_index, 100_000):
            event = self.reader.take(entry.index, entry.data)
            self.events += [(event.index, event.entry_id.hex())] if event else []

    def needed(self) -> int:
        position = self.at.position()
        return 0 if position is None else needed_for(position.mark.next_index, self.checkpoints)

    def keep_short(self, *, held: bool = True) -> None:
        """Run checkpoints, trim and cleanup. Without `held`, the process has no control topic configured."""
        held_by = (self.needed,) if held else ()
        LedgerCheckpointer(self.at.control, self.checkpoints, self.ledger.leader, self.spans, *held_by).run()
        for key in self.checkpoints.superseded(self.at.control):
            self.at.objects.delete(key)

    def sent(self) -> list[str]:
        return [dict(record.headers)["archiver.id"].decode() for record in self.topic.records]

    def since(self, index: int) -> list[str]:
        return [entry_id for at, entry_id in self.events if at >= index]


def made_again(scene: Scene, change: str) -> str:
    """Replace the topic by another one; returns its name."""
    scene.topic.records.clear()
    scene.topic.sends.clear()
    scene.topic.id = b"2" * 16
    return "other" if change == "renamed" else "control"


# what stays in the log


@pytest.mark.parametrize("change", ["made anew", "renamed"])
def test_a_new_topic_gets_all_that_the_log_kept_while_the_broker_was_away(change: str) -> None:
    scene = Scene()
    scene.rounds(30)
    first = scene.at.publisher(scene.topic.connect)
    first.run()
    first.close()
    scene.keep_short()
    assert scene.at.control.floor() == 149, "in front of a checkpoint, so the log can be read from there"
    for _ in range(10):
        scene.rounds(10)
        scene.keep_short()
    assert scene.at.control.floor() == 199
    name = made_again(scene, change)
    scene.at.publisher(scene.topic.connect, seed=7, topic=name).run()
    assert scene.sent() == scene.since(200)
    scene.keep_short()
    assert scene.at.control.floor() == 849
    assert scene.checkpoints.indexes() == [850, 900], "what was kept for the publisher goes with its entries"


def test_a_topic_on_a_trimmed_ledger_holds_it_from_the_first_try_on() -> None:
    scene = Scene()
    scene.rounds(30)
    scene.keep_short(held=False)
    assert scene.at.control.floor() == 149
    scene.topic.away = True
    for seed in range(5):
        publisher = scene.at.publisher(scene.topic.connect, seed=50 + seed)
        with pytest.raises(RetryLater, match="away"):
            publisher.run()
        publisher.close()
        scene.rounds(10)
        scene.keep_short()
        assert scene.at.control.floor() == 149
    scene.topic.away = False
    scene.at.publisher(scene.topic.connect, seed=60).run()
    assert scene.sent() == scene.since(150)


def test_the_first_position_is_written_before_the_broker_is_asked() -> None:
    scene = Scene()
    scene.rounds(30)
    scene.keep_short(held=False)
    scene.topic.away = True
    with pytest.raises(RetryLater, match="away"):
        scene.at.publisher(scene.topic.connect).run()
    position = scene.at.position()
    assert position is not None
    assert (position.topic, position.topic_id, position.mark.next_index) == ("control", b"", 150)


def test_a_position_in_place_of_one_that_the_log_lost_is_written_before_the_broker_is_asked() -> None:
    scene = Scene()
    scene.rounds(5)
    scene.at.publisher(scene.topic.connect).run()
    scene.rounds(30)
    scene.keep_short(held=False)
    scene.topic.away = True
    with pytest.raises(RetryLater, match="away"):
        scene.at.publisher(scene.topic.connect, seed=5).run()
    position = scene.at.position()
    assert position is not None
    assert (position.topic_id, position.mark.next_index) == (scene.topic.id, 200)
    for _ in range(5):
        scene.rounds(10)
        scene.keep_short()
    scene.topic.away = False
    scene.topic.records.clear()
    scene.at.publisher(scene.topic.connect, seed=6).run()
    assert scene.sent() == scene.since(200)


def test_where_the_log_begins_at_the_position_a_new_topic_begins_there() -> None:
    """The log was trimmed up to the position, which is not at a checkpoint."""
    scene = Scene()
    scene.rounds(30)
    first = scene.at.publisher(scene.topic.connect)
    first.run()
    first.close()
    reached = first._mark.next_index
    assert reached % 50
    scene.rounds(30)
    scene.keep_short()
    scene.at.control.trim(reached - 1)
    made_again(scene, "made anew")
    scene.at.publisher(scene.topic.connect, seed=7).run()
    assert scene.sent() == scene.since(reached)


def test_a_checkpoint_from_which_the_log_can_be_read_is_not_superseded() -> None:
    scene = Scene()
    scene.at.positions().move(Position("control", scene.topic.id, Mark(120, b"", 1)))
    scene.rounds(60)
    assert scene.checkpoints.superseded(scene.at.control) == []
    scene.keep_short()
    assert scene.at.control.floor() == 99
    assert scene.checkpoints.indexes() == [100, 150, 200, 250, 300, 350, 400]
    scene.keep_short(held=False)
    assert scene.checkpoints.indexes() == [350, 400]


def test_a_damaged_checkpoint_holds_nothing_and_no_process_starts_from_it() -> None:
    scene = Scene()
    scene.rounds(30)
    scene.keep_short()
    key = scene.checkpoints.key(100)
    scene.at.objects.delete(key)
    scene.at.objects.create(key, b"damaged")
    assert [needed_for(index, scene.checkpoints) for index in (49, 50, 51, 149, 150, 1000)] == [
        0,
        49,
        49,
        49,
        149,
        199,
    ]
    scene.at.control.trim(99)
    assert EventReader.first(scene.at.control, scene.checkpoints).mark.next_index == 150


def test_a_reader_begins_with_the_oldest_entry_that_can_be_read() -> None:
    scene = Scene()
    assert EventReader.first(scene.at.control, scene.checkpoints).mark.next_index == 0
    scene.rounds(60)
    scene.keep_short()
    scene.at.control.trim(99)
    reader = EventReader.first(scene.at.control, scene.checkpoints)
    entries = scene.at.control.read(reader.mark.next_index, 100_000)
    taken = [reader.take(entry.index, entry.data) for entry in entries]
    assert [event.entry_id.hex() for event in taken if event] == scene.since(100)
    for index in scene.checkpoints.indexes():
        scene.at.objects.delete(scene.checkpoints.key(index))
    with pytest.raises(Halt, match="has no intact checkpoint"):
        EventReader.first(scene.at.control, scene.checkpoints)


# while it runs


def test_a_topic_made_again_is_published_to_while_a_trim_is_due() -> None:
    scene = Scene(log_spans(150))
    scene.rounds(60)
    first = scene.at.publisher(scene.topic.connect)
    first.run()
    first.close()
    made_again(scene, "made anew")

    def trims(_: Sequence[TopicRecord]) -> None:
        if len(scene.topic.sends) == 2:
            scene.keep_short()

    scene.topic.before = trims
    scene.at.publisher(scene.topic.connect, seed=5).run()
    assert scene.sent() == scene.since(0)


def test_a_log_that_others_trimmed_past_the_position_is_published_by_the_same_process() -> None:
    scene = Scene()
    scene.rounds(1)
    publisher = scene.at.publisher(scene.topic.connect)
    publisher.run()
    scene.rounds(1)
    scene.topic.away = True
    with pytest.raises(RetryLater, match="away"):
        publisher.run()
    scene.rounds(30)
    scene.keep_short(held=False)
    floor = scene.at.control.floor()
    scene.topic.away = False
    scene.topic.records.clear()
    publisher.run()
    assert scene.sent() == scene.since(floor + 1)
    publisher.update_state(None)
    assert publisher.state.lag == 0


@pytest.mark.parametrize("error", [RetryLater, OutcomeUnknown, Halt])
def test_what_was_acknowledged_before_an_error_is_not_sent_again(error: type[Exception]) -> None:
    scene = Scene()
    scene.rounds(50)
    tries = 0

    def breaks(_: Sequence[TopicRecord]) -> None:
        nonlocal tries
        tries += 1
        if tries % 30 == 0:
            raise error("no")

    scene.topic.before = breaks
    publisher = scene.at.publisher(scene.topic.connect)
    failures = 0
    while True:
        try:
            publisher.run()
            break
        except error:
            failures += 1
            assert failures < 20, "no run gets further than the one before"
    assert failures > 3
    assert scene.sent() == scene.since(0)


@pytest.mark.parametrize("worse", ["broker", "topic", "position"])
def test_the_first_error_is_the_one_that_is_reported(worse: str, caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    scene.rounds(1)

    def breaks(_: Sequence[TopicRecord]) -> None:
        if len(scene.topic.sends) < 3:
            return
        if worse == "broker":
            scene.topic.away = True
        elif worse == "topic":
            scene.topic.id = b"2" * 16
        else:
            other = scene.at.positions(seed=9)
            assert other.newest() is not None
            other.move(Position("control", scene.topic.id, Mark(0, b"", 0)))
        raise OutcomeUnknown("why it really ended")

    scene.topic.before = breaks
    publisher = scene.at.publisher(scene.topic.connect)
    with pytest.raises(OutcomeUnknown, match="why it really ended"):
        publisher.run()
    assert "published again, because the position was not stored" in caplog.text


# what is seen of it


class Busy(MemoryLease):
    def acquire(self) -> None:
        raise RetryLater("the lease cannot be asked for")


class Unread:
    """A log that cannot be read while `away` is set."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.away = False

    def __getattr__(self, name: str) -> object:
        if self.away and name in ("tail", "floor", "read"):
            raise RetryLater("the metadata store is away")
        return getattr(self._log, name)


def test_why_nothing_is_published_is_reported_on_a_trimmed_ledger_too() -> None:
    scene = Scene()
    scene.rounds(30)
    scene.keep_short(held=False)
    publication = Publication(lambda: scene.at.publisher(scene.topic.connect, Busy("b")))
    assert publication.run().line == "the lease cannot be asked for"
    assert publication.state is not None
    waiting = scene.at.control.tail() - scene.at.control.floor()
    assert (publication.state.lag, publication.state.since_us) == (waiting, ManualClock().now_us())
    assert publication.notes() == [
        f"control topic control: the lease cannot be asked for; {waiting} entries of the control log wait"
    ]


def test_why_nothing_is_published_is_reported_where_the_log_cannot_be_read() -> None:
    scene = Scene()
    scene.rounds(1)
    log = Unread(scene.at.control)
    scene.at.control = log  # type: ignore[assignment]
    publication = Publication(lambda: scene.at.publisher(scene.topic.connect))
    publication.run()
    log.away = True
    scene.topic.away = True
    reported = publication.run()
    assert (reported.outcome, reported.line) == ("untold", "the metadata store is away")
    assert publication.notes() == ["control topic control: the metadata store is away"]
    assert publication.state is not None
    assert publication.state.lag is None
    assert publication.run().idle
