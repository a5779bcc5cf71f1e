"""The fold of the control log: rules L3, T2, T4, P2, against a naive model and by example."""

from __future__ import annotations

import hashlib
import itertools
import sys
import uuid
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archiver.ledger.archives import ArchiveFile
from archiver.ledger.fold import LedgerFold
from archiver.ledger.views import ArchivedRanges
from archiver.proto import control_log_pb2 as pb
from archiver.runtime.errors import Corrupted, Halt
from archiver.runtime.ids import TopicId

TOPIC = TopicId("0a" * 16)
TABLE = uuid.UUID(int=9)
TEXT = b"schema"
SHA = hashlib.sha256(TEXT).digest()


def file(partition: int, base: int, end: int, epoch: int = 1, key: str | None = None) -> ArchiveFile:
    name = f"k/{partition}/{base}-{end}-{epoch}" if key is None else key
    return ArchiveFile(name, 10, b"s", b"d", partition, base, end, epoch, 1, end - base, 7, 1, 2)


class Feed:
    """A fold and its entries."""

    def __init__(self) -> None:
        self.fold = LedgerFold()
        self.add(1, epoch_started=pb.EpochStarted())
        self.add(1, schema_text=pb.SchemaText(sha256=SHA, text=TEXT))

    def add(self, epoch: int, **body: object) -> int:
        index = self.fold.next_index
        entry = pb.ControlEntry(
            format=1,
            id=index.to_bytes(16, "big"),
            epoch=epoch,
            owner=f"o{epoch}",
            time_us=5,
            **body,  # type: ignore[arg-type]
        )
        self.fold.apply(index, entry.SerializeToString())
        return index

    def start(self, epoch: int) -> None:
        self.add(epoch, epoch_started=pb.EpochStarted())

    def written(self, epoch: int, *files: ArchiveFile, table: bool = True, token: int = 0) -> int:
        message = pb.FilesWritten(
            commit_id=bytes(16), topic_id=bytes.fromhex(TOPIC), files=[item.to_proto() for item in files]
        )
        if table:
            message.event.CopyFrom(pb.Event(text_sha256=SHA, datum=b"d"))
            message.table_uuid, message.last_sequence_number = TABLE.bytes, token
        return self.add(epoch, files_written=message)

    def committed(
        self,
        epoch: int,
        watermarks: dict[int, int],
        keys: tuple[str, ...] = (),
        killed: tuple[str, ...] = (),
        sequence: int = 3,
        more: bool = False,
    ) -> int:
        message = pb.TableCommitted(
            topic_id=bytes.fromhex(TOPIC),
            table_uuid=TABLE.bytes,
            snapshot_id=77,
            sequence_number=0 if more else sequence,
            more=more,
            watermarks=[
                pb.PartitionOffset(partition=partition, offset=offset)
                for partition, offset in watermarks.items()
            ],
            committed=keys,
            killed=[pb.TableCommitted.Killed(key=key, why="because") for key in killed],
            valid_through_us=50,
        )
        return self.add(epoch, table_committed=message)

    @property
    def topic(self):  # type: ignore[no-untyped-def]
        return self.fold.topic(TOPIC)

    def pending(self) -> list[str]:
        return [item.archive.key for item in self.topic.pending]


def test_an_unknown_topic_is_empty() -> None:
    topic = LedgerFold().topic(TOPIC)
    assert (topic.pending, topic.watermark(3), topic.schema_version, topic.table_uuid) == ((), 0, 0, None)


def test_written_then_committed() -> None:
    feed = Feed()
    files = [file(0, 0, 5), file(0, 5, 9), file(1, 0, 2)]
    index = feed.written(1, *files, token=2)
    assert [
        (item.archive, item.index, item.table_uuid, item.last_sequence_number) for item in feed.topic.pending
    ] == [(item, index, TABLE, 2) for item in files]
    assert feed.topic.planned_to(0) == 9
    assert feed.topic.watermark(0) == 0
    feed.committed(1, {0: 9, 1: 2}, tuple(item.key for item in files))
    assert feed.pending() == []
    assert feed.topic.watermarks == {0: 9, 1: 2}
    assert feed.topic.covered.ranges(0) == ((0, 9),)
    assert (feed.topic.totals.files, feed.topic.totals.rows, feed.topic.totals.stored_bytes) == (3, 11, 30)
    assert (feed.topic.snapshot_id, feed.topic.sequence_number, feed.topic.valid_through_us) == (77, 3, 50)
    assert feed.topic.table_uuid == TABLE


def test_l3_entries_of_an_older_epoch_after_a_newer_one_are_void() -> None:
    feed = Feed()
    feed.written(1, file(0, 0, 5))
    feed.start(2)
    feed.written(1, file(0, 5, 9))
    feed.committed(1, {0: 100}, (file(0, 0, 5).key,))
    feed.start(1)
    feed.start(2)
    assert feed.pending() == [file(0, 0, 5).key]
    assert feed.topic.watermark(0) == 0
    assert (feed.fold.epoch, feed.fold.owner, feed.fold.void, feed.fold.next_index) == (2, "o2", 4, 8)


def test_an_epoch_that_no_one_started_is_corrupted() -> None:
    feed = Feed()
    with pytest.raises(Corrupted, match="epoch 5"):
        feed.written(5, file(0, 0, 1, epoch=5))
    assert feed.fold.next_index == 2


def test_t2_what_is_pending_is_inherited() -> None:
    feed = Feed()
    feed.written(1, file(0, 0, 5))
    feed.start(2)
    feed.committed(2, {0: 5}, (file(0, 0, 5).key,))
    assert feed.topic.covered.ranges(0) == ((0, 5),)


def test_t4_the_watermark_is_assigned_also_downwards() -> None:
    feed = Feed()
    feed.written(1, file(0, 0, 5), file(0, 5, 9))
    feed.committed(1, {0: 9, 1: 4}, (file(0, 0, 5).key, file(0, 5, 9).key))
    feed.committed(1, {0: 5, 1: 4})
    assert feed.topic.watermarks == {0: 5, 1: 4}
    assert feed.topic.covered.ranges(0) == ((0, 5),)
    assert feed.topic.knows(file(0, 5, 9).key)  # rule P2: committed and rolled back


def test_p2_a_killed_key_is_refused_for_ever() -> None:
    feed = Feed()
    feed.written(1, file(0, 0, 5))
    feed.committed(1, {0: 0}, killed=(file(0, 0, 5).key,))
    assert feed.topic.killed[file(0, 0, 5).key].why == "because"
    feed.written(1, file(0, 0, 5))
    assert feed.pending() == []
    feed.start(2)
    feed.written(2, file(0, 0, 5))  # the old key, of the old epoch
    assert feed.pending() == []
    assert feed.fold.refused == 2
    feed.written(2, file(0, 0, 5, epoch=2))
    assert feed.pending() == [file(0, 0, 5, epoch=2).key]


def test_p2_a_committed_key_is_refused() -> None:
    feed = Feed()
    feed.written(1, file(0, 0, 5))
    feed.committed(1, {0: 5}, (file(0, 0, 5).key,))
    feed.written(1, file(0, 0, 5))
    assert feed.pending() == []


def test_a_killed_file_that_is_in_the_table_counts_as_committed() -> None:
    feed = Feed()
    feed.written(1, file(0, 0, 5))
    feed.committed(1, {0: 0}, killed=(file(0, 0, 5).key,))
    feed.committed(1, {0: 5}, (file(0, 0, 5).key,))
    assert feed.topic.killed == {}
    assert feed.topic.covered.ranges(0) == ((0, 5),)


def test_without_a_table_data_written_is_the_commit() -> None:
    feed = Feed()
    feed.written(1, file(0, 0, 5), file(0, 5, 9), table=False)
    assert feed.topic.watermarks == {0: 9}
    assert feed.topic.pending == ()
    assert feed.topic.covered.ranges(0) == ((0, 9),)


def test_without_a_table_the_chain_must_be_contiguous() -> None:
    feed = Feed()
    feed.written(1, file(0, 3, 5), table=False)
    assert feed.topic.watermark(0) == 0
    assert "watermark 0" in feed.topic.killed[file(0, 3, 5).key].why


def test_a_range_of_gaps_is_settled_by_the_watermark() -> None:
    feed = Feed()
    gap, after = file(0, 5, 7, key=""), file(0, 7, 9)
    feed.written(1, file(0, 0, 5), gap, after)
    assert [item.position for item in feed.topic.pending] == [0, -1, 1]
    feed.committed(1, {0: 5}, (file(0, 0, 5).key,))
    assert [item.archive for item in feed.topic.pending] == [gap, after]
    feed.committed(1, {0: 9}, (after.key,))
    assert feed.topic.pending == ()
    assert feed.topic.covered.ranges(0) == ((0, 9),)


def test_a_good_commit_is_one_that_brings_the_topic_further() -> None:
    feed, plain = Feed(), Feed()
    feed.written(1, file(0, 0, 5), file(0, 5, 9))
    feed.committed(1, {}, killed=(file(0, 5, 9).key,))
    plain.written(1, file(0, 3, 5), table=False)
    assert (feed.topic.committed_us, plain.topic.written_us, plain.topic.committed_us) == (0, 5, 0)
    feed.committed(1, {0: 5}, (file(0, 0, 5).key,))
    plain.written(1, file(0, 0, 3), file(0, 7, 9), table=False)
    assert (feed.topic.committed_us, plain.topic.committed_us) == (5, 5)
    feed.topic.committed_us = 0
    feed.committed(1, {0: 3})
    assert feed.topic.committed_us == 0, "another program rolled the table back"


def test_a_range_of_gaps_off_the_chain_is_forgotten() -> None:
    feed = Feed()
    feed.written(1, file(0, 0, 5), file(0, 5, 7, key=""))
    feed.committed(1, {0: 3}, killed=(file(0, 0, 5).key,))
    assert feed.topic.pending == ()


def test_t4_partitions_that_are_not_named_keep_their_watermark() -> None:
    feed = Feed()
    feed.committed(1, {0: 5, 1: 7})
    feed.committed(1, {1: 9})
    assert feed.topic.watermarks == {0: 5, 1: 9}


def test_a_part_of_a_commit_says_nothing_of_the_table_but_watermarks_and_keys() -> None:
    feed = Feed()
    gap = file(0, 5, 7, key="")
    feed.written(1, file(0, 0, 5), gap)
    message = pb.TableCommitted(
        topic_id=bytes.fromhex(TOPIC), table_uuid=TABLE.bytes, more=True, sequence_number=9
    )
    message.watermarks.add(partition=0, offset=7)
    feed.add(1, table_committed=message)
    assert (feed.topic.snapshot_id, feed.topic.sequence_number, feed.topic.valid_through_us) == (None, 0, 0)
    assert [item.archive for item in feed.topic.pending] == [file(0, 0, 5), gap], (
        "ranges of gaps are settled with the last part"
    )
    assert feed.topic.planned_to(0) == 7
    feed.committed(1, {}, (file(0, 0, 5).key,))
    assert (feed.topic.pending, feed.topic.watermarks, feed.topic.sequence_number) == ((), {0: 7}, 3)


def test_a_round_knows_what_it_moved_until_it_is_over() -> None:
    feed = Feed()
    rounds = [bytes([number]) * 16 for number in range(3)]
    for commit_id in rounds[:2]:
        feed.add(1, round_started=pb.RoundStarted(commit_id=commit_id))
        message = pb.FilesWritten(commit_id=commit_id, topic_id=bytes.fromhex(TOPIC))
        message.files.extend(
            [
                file(0, 0, 5, key=f"a{commit_id[0]}").to_proto(),
                file(2, 0, 5, key=f"b{commit_id[0]}").to_proto(),
            ]
        )
        message.event.CopyFrom(pb.Event(text_sha256=SHA, datum=b"d"))
        feed.add(1, files_written=message)
    round_ = feed.fold.round(rounds[0])
    assert round_ is not None
    assert round_.moved == {TOPIC: {0: 2, 2: 2}}
    assert feed.fold.round(rounds[2]) is None
    feed.add(1, round_settled=pb.RoundSettled(commit_id=rounds[0]))
    assert round_.moved == {}
    feed.start(2)
    assert all(item.moved == {} for item in feed.fold.rounds)


def test_a_round_is_written_when_its_last_data_complete_is() -> None:
    feed = Feed()
    feed.add(1, round_started=pb.RoundStarted(commit_id=bytes(16)))
    feed.add(1, round_written=pb.RoundWritten(commit_id=bytes(16), more=True))
    assert feed.fold.rounds[0].state == "started"
    feed.add(1, round_written=pb.RoundWritten(commit_id=bytes(16)))
    assert feed.fold.rounds[0].state == "written"


def test_unknown_formats_and_kinds_halt() -> None:
    fold = LedgerFold()
    with pytest.raises(Halt, match="format 9"):
        fold.apply(
            0,
            pb.ControlEntry(
                format=9, id=bytes(16), epoch=1, epoch_started=pb.EpochStarted()
            ).SerializeToString(),
        )
    with pytest.raises(Halt, match="kind"):
        fold.apply(0, pb.ControlEntry(format=1, id=bytes(16), epoch=1).SerializeToString())
    with pytest.raises(Corrupted, match="not an entry"):
        fold.apply(0, b"\xff\xff\xff")
    with pytest.raises(Corrupted, match="id of 3 bytes"):
        fold.apply(
            0,
            pb.ControlEntry(
                format=1, id=b"abc", epoch=1, epoch_started=pb.EpochStarted()
            ).SerializeToString(),
        )
    with pytest.raises(Halt, match="entry 0 next"):
        fold.apply(1, b"")
    assert fold.next_index == 0


def test_bad_contents_are_corrupted() -> None:
    feed = Feed()
    with pytest.raises(Corrupted, match="holds no offset"):
        feed.written(1, file(0, 5, 5))
    with pytest.raises(Corrupted, match="SHA-256"):
        feed.add(1, schema_text=pb.SchemaText(sha256=bytes(32), text=b"x"))
    with pytest.raises(Corrupted, match="never recorded"):
        feed.add(1, files_written=pb.FilesWritten(topic_id=bytes(16), event=pb.Event(text_sha256=b"no")))
    with pytest.raises(Corrupted, match="topic id"):
        feed.add(1, schema_changed=pb.SchemaChanged(topic_id=b"x", version=1))
    assert feed.fold.next_index == 2


def test_schemas_by_version() -> None:
    feed = Feed()
    for version in (1, 2):
        feed.add(
            1,
            schema_changed=pb.SchemaChanged(
                topic_id=bytes.fromhex(TOPIC), version=version, iceberg_schema=f"s{version}"
            ),
        )
    assert feed.topic.schema_version == 2
    assert [item.iceberg_schema for item in feed.topic.schemas.values()] == ["s1", "s2"]


def test_rounds_are_kept_up_to_a_number() -> None:
    fold = LedgerFold(rounds_max=2)
    feed = Feed()
    feed.fold = fold
    feed.start(1)
    for number in range(3):
        feed.add(1, round_started=pb.RoundStarted(commit_id=bytes([number]) * 16))
    feed.add(1, round_written=pb.RoundWritten(commit_id=bytes([1]) * 16))
    feed.add(1, round_settled=pb.RoundSettled(commit_id=bytes([2]) * 16))
    assert [(item.commit_id[0], item.state) for item in fold.rounds] == [(1, "written"), (2, "settled")]
    feed.start(2)
    assert [item.state for item in fold.rounds] == ["abandoned", "settled"]
    assert fold.rounds[1].to_json()["settled_us"] == 5


@given(
    st.builds(
        file,
        st.integers(0, 2**31),
        st.integers(0, 2**40),
        st.integers(2**41, 2**62),
        st.integers(0, 2**40),
        st.text(max_size=9),
    )
)
def test_archives_survive_their_stored_form(one: ArchiveFile) -> None:
    assert ArchiveFile.from_proto(pb.ArchiveFile.FromString(one.to_proto().SerializeToString())) == one


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 1), st.integers(0, 30), st.integers(1, 8)), max_size=40)
)
def test_coverage_against_a_set_of_offsets(steps: list[tuple[bool, int, int, int]]) -> None:
    coverage, naive = ArchivedRanges(), {0: set[int](), 1: set[int]()}
    for add, partition, at, size in steps:
        if add:
            coverage.add(partition, at, at + size)
            naive[partition] |= set(range(at, at + size))
        else:
            coverage.cut(partition, at)
            naive[partition] = {offset for offset in naive[partition] if offset < at}
    for partition, offsets in naive.items():
        ranges = coverage.ranges(partition)
        assert {offset for base, end in ranges for offset in range(base, end)} == offsets
        assert all(before[1] < after[0] for before, after in itertools.pairwise(ranges))
    assert coverage.partitions() == tuple(partition for partition, offsets in naive.items() if offsets)


def test_a_reader_sees_coverage_before_or_after_a_change() -> None:
    coverage = ArchivedRanges()
    seen: list[tuple[tuple[int, int], ...]] = []

    def trace(frame: FrameType, event: str, _: object) -> Any:
        # Only instructions of the method itself, as a switch of threads would come between them.
        if frame.f_code not in (ArchivedRanges.add.__code__, ArchivedRanges.cut.__code__):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            seen.append(coverage.ranges(0))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        coverage.add(0, 0, 10)
        coverage.add(0, 20, 30)
        coverage.add(0, 10, 20)
        coverage.cut(0, 5)
    finally:
        sys.settrace(before)
    assert [one for one, _ in itertools.groupby(seen)] == [
        (),
        ((0, 10),),
        ((0, 10), (20, 30)),
        ((0, 30),),
        ((0, 5),),
    ]


# The naive model: sets and lists, every key ever used, every single offset.


@dataclass
class Naive:
    epoch: int = 1
    watermarks: dict[int, int] = field(default_factory=dict)
    pending: list[ArchiveFile] = field(default_factory=list)
    killed: dict[str, ArchiveFile] = field(default_factory=dict)
    done: set[tuple[int, int]] = field(default_factory=set)
    used: set[str] = field(default_factory=set)

    def start(self, epoch: int) -> None:
        self.epoch = max(self.epoch, epoch)

    def written(self, epoch: int, one: ArchiveFile, table: bool) -> None:
        if epoch < self.epoch or one.epoch != epoch or one.key in self.used:
            return
        self.used.add(one.key)
        if table:
            self.pending.append(one)
        elif one.base != self.watermarks.get(one.partition, 0):
            self.killed[one.key] = one
        else:
            self.watermarks[one.partition] = one.end
            self.finish(one)

    def finish(self, one: ArchiveFile) -> None:
        self.done |= {(one.partition, offset) for offset in range(one.base, one.end)}

    def committed(self, epoch: int, watermarks: dict[int, int], keys: list[str], killed: list[str]) -> None:
        if epoch < self.epoch:
            return
        for key in keys:
            for one in [item for item in [*self.pending, *self.killed.values()] if item.key == key]:
                self.finish(one)
            self.pending = [item for item in self.pending if item.key != key]
            self.killed.pop(key, None)
        for key in killed:
            for one in [item for item in [*self.pending, *self.killed.values()] if item.key == key]:
                self.killed[key] = one
            self.pending = [item for item in self.pending if item.key != key]
        for partition, offset in watermarks.items():
            if offset < self.watermarks.get(partition, 0):
                self.done = {(p, o) for p, o in self.done if p != partition or o < offset}
            self.watermarks[partition] = offset


FILES = st.builds(
    file, st.integers(0, 1), st.integers(0, 6), st.integers(7, 9), st.integers(1, 3)
) | st.builds(file, st.just(0), st.sampled_from([0, 2, 4]), st.sampled_from([6, 7]), st.integers(1, 3))
STEPS = st.one_of(
    st.tuples(st.just("start"), st.integers(1, 4)),
    st.tuples(st.just("written"), st.integers(0, 1), FILES, st.booleans()),
    st.tuples(
        st.just("committed"),
        st.integers(0, 1),
        st.dictionaries(st.integers(0, 1), st.integers(0, 9)),
        st.lists(st.integers(0, 9), max_size=3),
        st.lists(st.integers(0, 9), max_size=3),
    ),
)


@given(st.lists(STEPS, max_size=40))
def test_fold_against_a_naive_model(steps: list[tuple]) -> None:  # type: ignore[type-arg]
    feed, naive, keys = Feed(), Naive(), ["none"]
    for step in steps:
        if step[0] == "start":
            feed.start(step[1])
            naive.start(step[1])
            continue
        epoch = max(1, naive.epoch - step[1])  # of the newest leader, or of the one before
        if step[0] == "written":
            feed.written(epoch, step[2], table=step[3])
            naive.written(epoch, step[2], step[3])
            keys.append(step[2].key)
        else:
            named = [keys[-1 - number % len(keys)] for number in step[3]]
            killed = [keys[-1 - number % len(keys)] for number in step[4]]
            feed.committed(epoch, step[2], tuple(named), tuple(killed))
            naive.committed(epoch, step[2], named, killed)
    topic = feed.topic
    assert [item.archive for item in topic.pending] == naive.pending
    assert topic.watermarks == naive.watermarks
    assert {key: item.archive for key, item in topic.killed.items()} == naive.killed
    for partition in (0, 1):
        covered = {
            (partition, offset)
            for base, end in topic.covered.ranges(partition)
            for offset in range(base, end)
        }
        assert covered == {one for one in naive.done if one[0] == partition}
    of_this_epoch = {key for key in naive.used if key.endswith(f"-{naive.epoch}")}
    assert {key for key in of_this_epoch if topic.knows(key)} == of_this_epoch


def test_d4_a_marked_key_is_never_taken_in() -> None:
    feed = Feed()
    written, unwritten, other = file(0, 0, 5), file(0, 5, 9), file(1, 0, 2)
    feed.written(1, written)
    index = feed.add(1, condemned=pb.Condemned(keys=[written.key, unwritten.key, "intake/x"], why="old"))
    assert [(key, item.index, item.time_us, item.why) for key, item in feed.fold.condemned.items()] == [
        (key, index, 5, "old") for key in (written.key, unwritten.key, "intake/x")
    ]
    feed.written(1, unwritten, other)
    assert feed.pending() == [written.key, other.key]
    feed.committed(1, {}, (written.key, other.key))
    assert feed.pending() == [written.key], "a condemned file is not adopted"
    assert (feed.fold.refused, feed.topic.totals.files) == (2, 1)


def test_a_marked_key_of_a_topic_without_a_table_is_never_taken_in() -> None:
    feed = Feed()
    feed.add(1, condemned=pb.Condemned(keys=[file(0, 0, 5).key]))
    feed.written(1, file(0, 0, 5), table=False)
    assert (feed.topic.watermark(0), feed.fold.refused) == (0, 1)


def test_what_is_reported_gone_is_forgotten_and_a_second_mark_keeps_the_first_time() -> None:
    feed = Feed()
    first = feed.add(1, condemned=pb.Condemned(keys=["a", "b"]))
    feed.add(1, condemned=pb.Condemned(keys=["b", "c"]))
    feed.add(1, deleted=pb.Deleted(keys=["a", "z"]))
    assert [(key, item.index) for key, item in feed.fold.condemned.items()] == [
        ("b", first),
        ("c", first + 1),
    ]


def test_l3_a_deposed_leader_marks_nothing() -> None:
    feed = Feed()
    feed.add(1, condemned=pb.Condemned(keys=["a"]))
    feed.start(2)
    feed.add(1, condemned=pb.Condemned(keys=["b"]))
    feed.add(1, deleted=pb.Deleted(keys=["a"]))
    assert list(feed.fold.condemned) == ["a"]


def test_d3_the_ledger_remembers_where_the_watermarks_stood() -> None:
    feed = Feed()
    feed.written(1, file(0, 0, 5))
    feed.committed(1, {0: 5}, (file(0, 0, 5).key,), sequence=1)
    feed.written(1, file(0, 5, 9), file(1, 0, 2))
    feed.committed(1, {0: 9}, more=True)
    feed.committed(1, {1: 2}, (file(0, 5, 9).key, file(1, 0, 2).key), sequence=2)
    lowest = [
        [feed.topic.past.lowest(partition, feed.topic.watermark(partition), since) for partition in (0, 1)]
        for since in (0, 1, 2)
    ]
    assert lowest == [[0, 0], [5, 0], [9, 2]]


def test_d3_the_past_of_another_table_says_nothing() -> None:
    feed = Feed()
    feed.committed(1, {0: 5}, sequence=1)
    feed.topic.set_table(uuid.UUID(int=10))
    assert feed.topic.past.lowest(0, 5, 0) == 5
