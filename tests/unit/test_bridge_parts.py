"""What is too large for one entry becomes several, and each prefix of them is a ledger that a leader can
continue."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archiver.events import codec
from archiver.events.types import CommitToTable, DataComplete, DataFile, DataWritten, Event, TableReference
from archiver.ledger.archives import ArchiveFile
from archiver.ledger.bridge import append_files_written, append_table_committed, event_bytes, event_message
from archiver.ledger.fold import LedgerFold
from archiver.ledger.leader import Leader
from archiver.ledger.views import TopicLedger
from archiver.log.store import Log
from archiver.proto import control_log_pb2 as pb
from archiver.publish.events import RoundEvents
from archiver.runtime.clock import ManualClock
from archiver.runtime.errors import Halt
from archiver.runtime.ids import SeededIds, TopicId
from tests.support.catalog.tables import FIELDS, TOPIC_ID, log_limits
from tests.support.log.memory_log import MemoryLogStore

TABLE = uuid.UUID(int=3)
COMMIT = uuid.UUID(int=4)
REFERENCE = TableReference("local", ("demo",), "flights", TABLE)
PARTITIONS = 3
SMALL = 420


def leading(log: Log, entry_bytes_max: int = 1 << 19) -> Leader:
    leader = Leader(log, SeededIds(1), ManualClock(), "a:1", log_limits(entry_bytes_max=entry_bytes_max))
    leader.take_over()
    return leader


def archive(partition: int, base: int, end: int, gap: bool = False) -> ArchiveFile:
    key = "" if gap else f"archive/x/{partition:05}/{base:020}-{end:020}"
    return ArchiveFile(key, 1, bytes(32), bytes(32), partition, base, end, 1, 1, end - base, 1, 1, 7)


def write(
    leader: Leader,
    archives: Sequence[ArchiveFile],
    commit_id: bytes = COMMIT.bytes,
    topic_id: TopicId = TOPIC_ID,
) -> None:
    def event(files: Sequence[DataFile]) -> Event:
        return Event(uuid.UUID(int=5), 1, "group", DataWritten(COMMIT, REFERENCE, tuple(files)))

    files = [
        DataFile(path=f"file:///{one.key}", record_count=1, file_size=1, partition=(1,)) for one in archives
    ]
    written = [(one, None if one.gap_only else file) for one, file in zip(archives, files, strict=True)]
    append_files_written(
        leader,
        written,
        event,
        FIELDS,
        commit_id=commit_id,
        topic_id=topic_id,
        table_uuid=TABLE,
        last_sequence_number=4,
        what="demo.flights",
    )


def topic_of(log: Log, entries: int) -> TopicLedger:
    fold = LedgerFold()
    for entry in log.read(0)[:entries]:
        fold.apply(entry.index, entry.data)
    return fold.topic(TOPIC_ID)


def state(topic: TopicLedger) -> dict[str, object]:
    return {
        "watermarks": [topic.watermark(partition) for partition in range(PARTITIONS)],
        "pending": [item.archive for item in topic.pending],
        "killed": {key: (item.archive, item.why) for key, item in topic.killed.items()},
        "covered": [topic.covered.ranges(partition) for partition in range(PARTITIONS)],
        "totals": (topic.totals.files, topic.totals.rows),
        "table": (topic.table_uuid, topic.snapshot_id, topic.sequence_number, topic.valid_through_us),
    }


@dataclass
class History:
    """The archives that were written, and those that the table contains."""

    pending: list[ArchiveFile]
    committed: list[str]
    killed: list[str]
    watermarks: list[int]


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Per partition a chain of archives and ranges of gaps. The table contains the first of them and will
    never contain the rest."""
    history = History([], [], [], [])
    for partition in range(PARTITIONS):
        sizes = draw(st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=6))
        got_in, at = draw(st.integers(0, len(sizes))), 0
        history.watermarks.append(0)
        for number, (size, gap) in enumerate(sizes):
            one = archive(partition, at, at + size, gap and number % 2 == 1)
            at = one.end
            history.pending.append(one)
            if number < got_in:
                history.watermarks[partition] = one.end
            if one.key:
                (history.committed if number < got_in else history.killed).append(one.key)
    return history


def commit_to_table(leader: Leader, history: History) -> pb.TableCommitted:
    body = pb.TableCommitted(
        commit_id=COMMIT.bytes,
        topic_id=bytes.fromhex(TOPIC_ID),
        table_uuid=TABLE.bytes,
        snapshot_id=11,
        sequence_number=12,
        watermarks=[
            pb.PartitionOffset(partition=partition, offset=offset)
            for partition, offset in enumerate(history.watermarks)
        ],
        committed=history.committed,
        killed=[pb.TableCommitted.Killed(key=key, why="because") for key in history.killed],
        valid_through_us=13,
    )
    event = Event(uuid.UUID(int=6), 1, "group", CommitToTable(COMMIT, REFERENCE, 11, 13))
    body.event.CopyFrom(event_message(leader, event, (), "a round"))
    return body


@given(histories())
def test_p1_after_every_part_of_a_commit_no_plan_starts_below_what_the_table_holds(history: History) -> None:
    log = MemoryLogStore(1 << 19).log("control")
    write(leading(log), history.pending)
    event_message(
        leading(log),
        Event(uuid.UUID(int=6), 1, "group", CommitToTable(COMMIT, REFERENCE, 11, 13)),
        (),
        "a round",
    )
    leader = leading(log, SMALL)
    before = log.tail()
    whole = commit_to_table(leader, history)
    indexes = append_table_committed(leader, whole)
    assert indexes == list(range(before, log.tail()))
    assert all(len(entry.data) <= SMALL for entry in log.read(before))
    by_key = {one.key: one for one in history.pending if one.key}
    for entries in range(before, log.tail()):
        topic = topic_of(log, entries)
        pending = {item.archive.key for item in topic.pending}
        for partition, held in enumerate(history.watermarks):
            assert topic.planned_to(partition) >= held
        for key in history.committed:
            assert key in pending or topic.watermark(by_key[key].partition) >= by_key[key].end
        assert pending | topic.killed.keys() >= set(history.killed), (
            "what the table lacks is never called committed"
        )
        assert topic.sequence_number == 0, (
            "the next read of the table finds news, and goes back as far as before"
        )
    together = LedgerFold()
    for entry in log.read(0)[:before]:
        together.apply(entry.index, entry.data)
    single = pb.ControlEntry(format=1, id=bytes(16), epoch=leader.epoch, table_committed=whole)
    together.apply(before, single.SerializeToString())
    assert state(leader.fold.topic(TOPIC_ID)) == state(together.topic(TOPIC_ID))
    bodies = [pb.ControlEntry.FromString(entry.data).table_committed for entry in log.read(before)]
    assert [body.more for body in bodies] == [True] * (len(bodies) - 1) + [False]
    assert [body.sequence_number for body in bodies] == [0] * (len(bodies) - 1) + [12]
    assert [body.HasField("event") for body in bodies] == [False] * (len(bodies) - 1) + [True]


def bodies_of(log: Log, name: str) -> list[Any]:
    entries = [pb.ControlEntry.FromString(entry.data) for entry in log.read(0, 10_000)]
    return [getattr(entry, name) for entry in entries if entry.WhichOneof("body") == name]


def test_a_commit_of_ten_thousand_archives_is_reported_with_default_settings() -> None:
    log = MemoryLogStore(1 << 19).log("control")
    leader = leading(log)
    keys = [
        f"archive/{TOPIC_ID}/data/partition=00000/year=2026/month=11/day=21/{n:020}-{n + 1:020}-00000001.parquet"
        for n in range(10_000)
    ]
    indexes = append_table_committed(
        leader, pb.TableCommitted(topic_id=bytes.fromhex(TOPIC_ID), committed=keys, sequence_number=5)
    )
    assert len(indexes) > 1
    assert [key for body in bodies_of(log, "table_committed") for key in body.committed] == keys
    assert leader.fold.topic(TOPIC_ID).sequence_number == 5


def test_watermarks_of_a_hundred_thousand_partitions_fit_and_only_those_that_moved_are_reported() -> None:
    log = MemoryLogStore(1 << 19).log("control")
    leader = leading(log)
    whole = pb.TableCommitted(topic_id=bytes.fromhex(TOPIC_ID))
    for partition in range(100_000):
        whole.watermarks.add(partition=partition, offset=1 << 40)
    assert len(append_table_committed(leader, whole)) > 1
    assert len(leader.fold.topic(TOPIC_ID).watermarks) == 100_000
    whole.watermarks[7].offset += 1
    assert len(append_table_committed(leader, whole)) == 1
    (reported,) = bodies_of(log, "table_committed")[-1].watermarks
    assert (reported.partition, reported.offset) == (7, (1 << 40) + 1)


def test_a_commit_that_says_nothing_new_is_one_entry() -> None:
    log = MemoryLogStore(1 << 19).log("control")
    leader = leading(log)
    assert append_table_committed(
        leader, pb.TableCommitted(topic_id=bytes.fromhex(TOPIC_ID), sequence_number=1)
    ) == [1]


def test_an_item_that_fits_no_entry_halts_and_names_it() -> None:
    log = MemoryLogStore(1 << 19).log("control")
    leader = leading(log, SMALL)
    with pytest.raises(Halt, match="entry_bytes_max"):
        append_table_committed(
            leader, pb.TableCommitted(topic_id=bytes.fromhex(TOPIC_ID), committed=["a", "b" * 1000])
        )


# DATA_COMPLETE


def work(name: str, topic_id: TopicId = TOPIC_ID) -> Any:
    return SimpleNamespace(name=name, table=None, state=SimpleNamespace(topic_id=topic_id, partitions=5000))


def completes(leader: Leader, log: Log) -> list[DataComplete]:
    found = [
        codec.decode(event_bytes(leader.fold.texts, body.event)).payload
        for body in bodies_of(log, "round_written")
    ]
    assert all(isinstance(payload, DataComplete) for payload in found)
    return found  # type: ignore[return-value]


def test_data_complete_names_only_the_partitions_that_moved() -> None:
    log = MemoryLogStore(1 << 19).log("control")
    write(leading(log), [archive(4, 0, 6)])
    leader = leading(log)
    publisher = RoundEvents("test", leader, ManualClock(), SeededIds(2))
    commit_id = publisher.round_started()
    leader.append(
        pb.FilesWritten(
            commit_id=commit_id,
            topic_id=b"\1" * 16,
            files=[ArchiveFile.to_proto(replaced(archive(2, 0, 9), leader.epoch))],
        )
    )
    publisher.round_written(
        commit_id, [work("inherited"), work("bare", TopicId("01" * 16)), work("idle", TopicId("02" * 16))]
    )
    (complete,) = completes(leader, log)
    assert [
        (item.topic, item.partition, item.offset, item.timestamp_us) for item in complete.assignments or ()
    ] == [
        ("inherited", 4, 6, 7),
        ("bare", 2, 9, 7),
    ]
    assert leader.fold.rounds[-1].state == "written"


def replaced(one: ArchiveFile, epoch: int) -> ArchiveFile:
    message = one.to_proto()
    message.epoch = epoch
    return ArchiveFile.from_proto(message)


def test_a_large_data_complete_becomes_several_events_of_one_round() -> None:
    log = MemoryLogStore(1 << 19).log("control")
    name = "x" * 249
    write(leading(log), [archive(partition, 0, 6) for partition in range(2400)])
    leader = leading(log)
    publisher = RoundEvents("test", leader, ManualClock(), SeededIds(2))
    commit_id = publisher.round_started()
    publisher.round_written(commit_id, [work(name)])
    found = completes(leader, log)
    assert len(found) > 1
    assert {payload.commit_id.bytes for payload in found} == {commit_id}
    assert [item.partition for payload in found for item in payload.assignments or ()] == list(range(2400))
    assert [body.more for body in bodies_of(log, "round_written")] == [True] * (len(found) - 1) + [False]
    assert leader.fold.rounds[-1].state == "written"


def test_a_round_in_which_nothing_moved_still_says_so() -> None:
    log = MemoryLogStore(1 << 19).log("control")
    leader = leading(log)
    publisher = RoundEvents("test", leader, ManualClock(), SeededIds(2))
    commit_id = publisher.round_started()
    publisher.round_written(commit_id, [work("idle")])
    (complete,) = completes(leader, log)
    assert complete.assignments == ()
