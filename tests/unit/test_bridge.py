"""Events in the ledger: interned texts, identical bytes when decoded, entries within the size limit."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pytest

from archiver.config.events import EventSettings
from archiver.events import codec
from archiver.events.types import DataFile, DataWritten, Event, PartitionField, StartCommit, TableReference
from archiver.ledger.archives import ArchiveFile
from archiver.ledger.bridge import (
    EVENTS,
    TEXT_BYTES_MAX,
    append_files_written,
    event_bytes,
    event_message,
    intern,
)
from archiver.ledger.fold import LedgerFold
from archiver.ledger.leader import Leader
from archiver.log.store import Log
from archiver.proto import control_log_pb2 as pb
from archiver.runtime.clock import ManualClock
from archiver.runtime.errors import Corrupted, Halt
from archiver.runtime.ids import SeededIds
from tests.support.catalog.tables import FIELDS, TOPIC_ID, log_limits
from tests.support.log.memory_log import MemoryLogStore

TABLE = uuid.UUID(int=3)
COMMIT = uuid.UUID(int=4)


def written_event(files: Sequence[DataFile]) -> Event:
    reference = TableReference("local", ("demo",), "flights", TABLE)
    return Event(uuid.UUID(int=5), 1, "group", DataWritten(COMMIT, reference, tuple(files)))


def archive(number: int, key: str | None = None) -> tuple[ArchiveFile, DataFile | None]:
    name = f"archive/x/{number:020}" if key is None else key
    one = ArchiveFile(name, 1, bytes(32), bytes(32), 0, number, number + 1, 1, 1, 1, 1, 1, 1)
    file = DataFile(
        path=f"file:///data/{name}",
        record_count=1,
        file_size=1,
        partition=(number,),
        lower_bounds={1: b"abc"},
    )
    return one, None if one.gap_only else file


def leading(entry_bytes_max: int = 1 << 19) -> tuple[Leader, Log]:
    log = MemoryLogStore(entry_bytes_max).log("control")
    leader = Leader(log, SeededIds(1), ManualClock(), "a:1", log_limits(entry_bytes_max=entry_bytes_max))
    leader.take_over()
    return leader, log


def append(
    leader: Leader,
    written: Sequence[tuple[ArchiveFile, DataFile | None]],
    table: bool = True,
    events: EventSettings = EVENTS,
) -> list[int]:
    return append_files_written(
        leader,
        written,
        written_event if table else None,
        FIELDS,
        commit_id=COMMIT.bytes,
        topic_id=TOPIC_ID,
        table_uuid=TABLE if table else None,
        last_sequence_number=4,
        what="demo.flights",
        events=events,
    )


def bodies(log: Log) -> list[str | None]:
    return [pb.ControlEntry.FromString(item.data).WhichOneof("body") for item in log.read(0)]


def test_a_text_is_interned_once_and_the_event_comes_back_byte_for_byte() -> None:
    leader, log = leading()
    event = Event(uuid.UUID(int=1), 2, "group", StartCommit(COMMIT))
    messages = [event_message(leader, event, (), "a round") for _ in range(3)]
    assert bodies(log) == ["epoch_started", "schema_text"]
    assert {event_bytes(leader.fold.texts, message) for message in messages} == {codec.encode(event, ())}


def test_another_leader_reads_the_same_bytes() -> None:
    leader, log = leading()
    files = [archive(number) for number in range(3)]
    append(leader, files)
    fold = LedgerFold()
    for entry in log.read(0):
        fold.apply(entry.index, entry.data)
    assert [item.data_file for item in fold.topic(TOPIC_ID).pending] == [file for _, file in files]
    assert [item.path for item in fold.topic(TOPIC_ID).pending] == [
        file.path for _, file in files if file is not None
    ]


def test_ranges_of_gaps_have_no_data_file() -> None:
    leader, _ = leading()
    append(leader, [archive(0), archive(1, key=""), archive(2)])
    pending = leader.fold.topic(TOPIC_ID).pending
    assert [item.path for item in pending] == [archive(0)[1].path, None, archive(2)[1].path]  # type: ignore[union-attr]


def test_a_large_data_written_becomes_several_entries_in_order() -> None:
    leader, log = leading(entry_bytes_max=12000)
    files = [archive(number) for number in range(150)]
    indexes = append(leader, files)
    assert len(indexes) > 2
    assert all(len(item.data) <= 12000 for item in log.read(0))
    pending = leader.fold.topic(TOPIC_ID).pending
    assert [item.archive for item in pending] == [item for item, _ in files]
    assert [item.data_file for item in pending] == [file for _, file in files]
    assert {item.last_sequence_number for item in pending} == {4}


def test_one_file_that_is_too_large_halts_and_nothing_of_it_is_written() -> None:
    leader, log = leading(entry_bytes_max=12000)
    one, file = archive(0)
    assert file is not None
    huge = DataFile(path=file.path + "x" * 13000, record_count=1, file_size=1, partition=(1,))
    with pytest.raises(Halt, match="entry_bytes_max"):
        append(leader, [(one, huge)])
    assert "files_written" not in bodies(log)


def test_without_a_table_there_is_no_event() -> None:
    leader, log = leading()
    append(leader, [archive(0), archive(1)], table=False)
    assert bodies(log) == ["epoch_started", "files_written"]
    assert leader.fold.topic(TOPIC_ID).watermarks == {0: 2}


def test_a_text_over_64_kib_halts_and_names_the_table() -> None:
    leader, log = leading()
    with pytest.raises(Halt, match=r"demo\.flights has 65536 bytes, more than 65535"):
        intern(leader, bytes(TEXT_BYTES_MAX), "demo.flights")
    assert bodies(log) == ["epoch_started"]
    intern(leader, bytes(TEXT_BYTES_MAX - 1), "demo.flights")
    assert bodies(log) == ["epoch_started", "schema_text"]


def test_an_event_whose_text_would_be_over_64_kib_halts_and_names_the_table() -> None:
    leader, log = leading()
    fields = [PartitionField(1000 + at, f"{at}_" + "x" * 600, "int") for at in range(100)]
    event = written_event([])
    with pytest.raises(
        Halt,
        match=r"demo\.flights: its control event cannot be written: the schema of the event takes \d+ bytes, "
        r"65535 fit",
    ):
        event_message(leader, event, fields, "demo.flights")
    assert bodies(log) == ["epoch_started"]


def test_events_are_not_larger_than_a_broker_takes() -> None:
    leader, log = leading(entry_bytes_max=1 << 20)
    files = [archive(number) for number in range(2500)]
    limit = EventSettings(bytes_max=1 << 17)
    assert len(append(leader, files)) == 1, "without that limit one entry holds them all"
    indexes = append(leader, files, events=limit)
    assert len(indexes) > 1
    events = [
        event_bytes(
            leader.fold.texts, pb.ControlEntry.FromString(log.read(index)[0].data).files_written.event
        )
        for index in indexes
    ]
    assert max(map(len, events)) <= limit.bytes_max
    assert max(map(len, events)) + len(codec.split(events[0])[0]) > limit.bytes_max // 2, (
        "halving does not go further than it must"
    )
    reported = [codec.decode(data).payload for data in events]
    assert [
        file for payload in reported if isinstance(payload, DataWritten) for file in payload.data_files or ()
    ] == [one for _, one in files]
    assert [item.data_file for item in leader.fold.topic(TOPIC_ID).pending] == [one for _, one in files]


def test_one_file_whose_event_no_broker_takes_halts_and_names_it() -> None:
    leader, log = leading(entry_bytes_max=1 << 20)
    one, file = archive(0)
    assert file is not None
    huge = DataFile(path=file.path + "x" * 200_000, record_count=1, file_size=1, partition=(1,))
    with pytest.raises(
        Halt,
        match=r"demo\.flights: archive archive/x/0+ needs a control event of \d+ bytes, more than "
        r"events\.bytes_max \(131072\)",
    ):
        append(leader, [(one, huge)], events=EventSettings(bytes_max=1 << 17))
    assert "files_written" not in bodies(log)


def test_without_the_table_uuid_the_event_is_that_of_release_1_10_and_is_committed_alike() -> None:
    leader, log = leading()
    append(leader, [archive(0)], events=EventSettings(table_uuid=False))
    entry = pb.ControlEntry.FromString(log.read(0)[-1].data).files_written
    found = codec.read(event_bytes(leader.fold.texts, entry.event))
    assert not found.table_uuid
    assert isinstance(found.event.payload, DataWritten)
    assert found.event.payload.table.uuid is None
    assert entry.table_uuid == TABLE.bytes
    topic = leader.fold.topic(TOPIC_ID)
    assert (topic.table_uuid, topic.pending[0].table_uuid, topic.pending[0].data_file) == (
        TABLE,
        TABLE,
        archive(0)[1],
    )


def test_an_event_whose_text_is_missing_is_corrupted() -> None:
    with pytest.raises(Corrupted, match="no schema text"):
        event_bytes({}, pb.Event(text_sha256=bytes(32), datum=b""))


def test_an_event_that_lists_other_files_than_the_entry_is_corrupted() -> None:
    leader, _ = leading()
    message = event_message(leader, written_event([]), FIELDS, "demo.flights")
    body = pb.FilesWritten(
        commit_id=COMMIT.bytes,
        event=message,
        topic_id=bytes.fromhex(TOPIC_ID),
        files=[archive(0)[0].to_proto()],
    )
    leader.append(body)
    with pytest.raises(Corrupted, match="1 archive files"):
        _ = leader.fold.topic(TOPIC_ID).pending[0].data_file
