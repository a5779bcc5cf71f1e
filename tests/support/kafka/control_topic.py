"""Ledgers with real events, and control topics: one in memory that fails on request, and what a real one
holds."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from archiver.config.events import ControlTopicSettings
from archiver.control_topic.publisher import EventPublisher, Position, Positions
from archiver.control_topic.waves import Destination, TopicRecord
from archiver.events.types import (
    CommitComplete,
    CommitToTable,
    DataComplete,
    DataFile,
    DataWritten,
    Event,
    Payload,
    StartCommit,
    TableReference,
)
from archiver.ledger.archives import ArchiveFile
from archiver.ledger.bridge import event_message
from archiver.ledger.checkpoint import LedgerCheckpoints
from archiver.ledger.event_reader import EventReader, LedgerEvent
from archiver.ledger.leader import Leader
from archiver.log.lease import Lease
from archiver.log.store import Log, entries_from
from archiver.proto import control_log_pb2 as pb
from archiver.runtime.clock import Clock, ManualClock
from archiver.runtime.errors import RetryLater
from archiver.runtime.ids import SeededIds, new_uuid
from tests.support.catalog.tables import FIELDS, log_limits
from tests.support.kafka.mirroring import upstream_records
from tests.support.log.memory_log import MemoryLease
from tests.support.objects.memory_store import MemoryObjectStore

CLUSTER = "c1" * 16
VALID_THROUGH_US = 1_767_323_045_678_901


def topic_id(table: int) -> bytes:
    """Of the topic of a table."""
    return table.to_bytes(16, "big")


class LedgerWriter:
    """A leader that writes rounds as they come: the events of whole rounds, and those of each table."""

    def __init__(self, log: Log, owner: str = "a:1", seed: int = 1) -> None:
        self.log = log
        self.ids = SeededIds(seed)
        self.leader = Leader(log, self.ids, ManualClock(), owner, log_limits())
        self.leader.take_over()

    def round(self, *tables: int, padding: int = 0) -> bytes:
        """A whole round that commits to these tables; its commit id. `padding`: bytes that make the events of
        files larger."""
        commit = self.begin()
        for table in tables:
            self.write(commit, table, padding)
        done = DataComplete(commit, ())
        self.leader.append(pb.RoundWritten(commit_id=commit.bytes, event=self._message(done)))
        for table in tables:
            self.commit(commit, table)
        settled = CommitComplete(commit, VALID_THROUGH_US)
        self.leader.append(pb.RoundSettled(commit_id=commit.bytes, event=self._message(settled)))
        return commit.bytes

    def begin(self) -> uuid.UUID:
        """START_COMMIT."""
        commit = new_uuid(self.ids)
        self.leader.append(pb.RoundStarted(commit_id=commit.bytes, event=self._message(StartCommit(commit))))
        return commit

    def write(self, commit: uuid.UUID, table: int, padding: int = 0) -> None:
        """DATA_WRITTEN of one file."""
        number = self.leader.fold.next_index
        key = f"archive/{topic_id(table).hex()}/{number:020}" + "x" * padding
        file = DataFile(path=f"file:///data/{key}", record_count=1, file_size=1, partition=(number,))
        archive = ArchiveFile(
            key, 1, bytes(32), bytes(32), 0, number, number + 1, self.leader.epoch, 1, 1, 7, 1, 2
        )
        written = DataWritten(commit, _reference(table), (file,))
        self.leader.append(
            pb.FilesWritten(
                commit_id=commit.bytes,
                topic_id=topic_id(table),
                files=[archive.to_proto()],
                event=self._message(written),
            )
        )

    def commit(self, commit: uuid.UUID, table: int) -> None:
        """COMMIT_TO_TABLE."""
        reported = CommitToTable(commit, _reference(table), 77, VALID_THROUGH_US)
        self.leader.append(
            pb.TableCommitted(commit_id=commit.bytes, topic_id=topic_id(table), event=self._message(reported))
        )

    def _message(self, payload: Payload) -> pb.Event:
        return event_message(
            self.leader, Event(new_uuid(self.ids), 5, "archiver-test", payload), FIELDS, "a test"
        )


def _reference(table: int) -> TableReference:
    return TableReference("local", ("shop",), f"table_{table}", uuid.UUID(int=table + 1))


def events_of(log: Log) -> list[LedgerEvent]:
    """Every event that counts, in the order of the ledger."""
    reader = EventReader()
    taken = [reader.take(entry.index, entry.data) for entry in entries_from(log, 0)]
    return [event for event in taken if event is not None]


class MemoryTopic:
    """A topic that several connections send to, and what goes wrong with them."""

    def __init__(self) -> None:
        self.records: list[TopicRecord] = []
        self.sends: list[int] = []
        """How many records each `send` had."""
        self.id = b"1" * 16
        self.before: Callable[[Sequence[TopicRecord]], None] = lambda _: None
        """Called before the records of a `send` are there; raises."""
        self.after: Callable[[Sequence[TopicRecord]], None] = lambda _: None
        """The same after they are."""
        self.away = False
        self.open = 0

    def connect(self) -> Destination:
        """Another connection."""
        self.open += 1
        return _Connection(self)


class _Connection:
    def __init__(self, topic: MemoryTopic) -> None:
        self._topic = topic

    def topic_id(self, stopping: Callable[[], bool]) -> bytes:
        if self._topic.away:
            raise RetryLater("the broker is away")
        return self._topic.id

    def send(self, records: Sequence[TopicRecord], stopping: Callable[[], bool]) -> None:
        assert not stopping()
        if self._topic.away:
            raise RetryLater("the broker is away")
        self._topic.sends.append(len(records))
        self._topic.before(records)
        self._topic.records += records
        self._topic.after(records)

    def close(self) -> None:
        self._topic.open -= 1


@dataclass
class Rig:
    """What the publishers of several processes share."""

    control: Log
    published: Log
    objects: MemoryObjectStore
    clock: Clock

    def positions(self, owner: str = "p:1", seed: int = 100) -> Positions:
        """The position as a process sees it."""
        return Positions(self.published, owner, log_limits(), self.clock, SeededIds(seed))

    def position(self) -> Position | None:
        """What stands there now."""
        return self.positions().newest()

    def publisher(
        self,
        connect: Callable[[], Destination],
        lease: Lease | None = None,
        *,
        seed: int = 100,
        stopping: Callable[[], bool] = lambda: False,
        **chosen: str,
    ) -> EventPublisher:
        """A publisher of another process; `chosen` are keys of `events.kafka`."""
        settings = settings_of(**chosen)
        checkpoints = LedgerCheckpoints(self.objects)
        logs = self.control, checkpoints, self.positions(f"p:{seed}", seed)
        return EventPublisher(settings, CLUSTER, *logs, lease or MemoryLease("p"), connect, stopping)


def settings_of(**chosen: str) -> ControlTopicSettings:
    """Settings with quick ends; `from_` for `from`."""
    given = {"from" if name == "from_" else name: value for name, value in chosen.items()}
    return ControlTopicSettings.model_validate({"brokers": "127.0.0.1:1", "topic": "control", **given})


# a real topic


@dataclass(frozen=True)
class Seen:
    """One record of a real control topic."""

    partition: int
    offset: int
    key: bytes
    value: bytes
    headers: dict[str, str]

    @property
    def id(self) -> str:
        return self.headers["archiver.id"]


def seen_in(brokers: str, topic: str, partitions: int, **more: str) -> list[Seen]:
    """Everything in the topic, partition by partition."""
    found: list[Seen] = []
    for partition in range(partitions):
        for record in upstream_records(brokers, topic, partition, **more):
            headers = {name: (value or b"").decode() for name, value in record.headers}
            assert len(headers) == len(record.headers)
            assert record.key is not None and record.value is not None
            found.append(Seen(partition, record.offset, record.key, record.value, headers))
    return found


def deduplicated(seen: Sequence[Seen]) -> list[Seen]:
    """As a reader has them that skips known ids. What is seen twice must be the same."""
    known: dict[str, Seen] = {}
    for one in seen:
        first = known.setdefault(one.id, one)
        assert (first.partition, first.key, first.value, first.headers) == (
            one.partition,
            one.key,
            one.value,
            one.headers,
        )
    return list(known.values())


def check_is_ledger(seen: Sequence[Seen], events: Sequence[LedgerEvent]) -> int:
    """Without repetitions the topic is the ledger: the same events and bytes, those of a key in order. How
    many repetitions there were."""
    kept = deduplicated(seen)
    by_id = {event.entry_id.hex(): event for event in events}
    assert {one.id for one in kept} == by_id.keys()
    for one in kept:
        event = by_id[one.id]
        assert (one.value, one.headers["archiver.index"], one.headers["archiver.type"]) == (
            event.data,
            str(event.index),
            event.kind,
        )
        assert one.headers.get("archiver.topic-id", "") == event.topic_id.hex()
    for key in {one.key for one in kept}:
        indexes = [int(one.headers["archiver.index"]) for one in kept if one.key == key]
        assert indexes == sorted(indexes)
        assert len({one.partition for one in kept if one.key == key}) == 1
    return len(seen) - len(kept)


def raw_stream(folder: Path, seen: Sequence[Seen]) -> Path:
    """The events as a file that `ledger events --raw` could have written."""
    path = folder / "seen.raw"
    path.write_bytes(b"".join(len(one.value).to_bytes(4, "big") + one.value for one in seen))
    return path
