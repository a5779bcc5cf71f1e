"""Ranges of gaps only, in the ledger: they have no key and no object, and the watermark advances over them
like over archives."""

from __future__ import annotations

import hashlib

import pytest

from archiver.ledger.archives import ArchiveFile
from archiver.ledger.fold import LedgerFold
from archiver.ledger.views import TopicLedger
from archiver.proto import control_log_pb2 as pb
from archiver.refine.task import gaps_archive
from archiver.runtime.ids import TopicId
from tests.support.builders.segments import plan_of, segment

TOPIC = TopicId("0a" * 16)
TEXT = b"schema"
SHA = hashlib.sha256(TEXT).digest()


def gaps(base: int, end: int, partition: int = 0) -> ArchiveFile:
    return ArchiveFile("", 0, b"", b"", partition, base, end, 1, 0, 0, 0, 0, 0, ((base, end),))


def data(base: int, end: int, holes: tuple[tuple[int, int], ...] = ()) -> ArchiveFile:
    return ArchiveFile(f"k/{base}-{end}", 10, b"s", b"d", 0, base, end, 1, 1, end - base, 7, 1, 2, holes)


class Ledger:
    """A fold, and entries for it."""

    def __init__(self) -> None:
        self.fold = LedgerFold()
        self.time_us = 5
        self._add(epoch_started=pb.EpochStarted())
        self._add(schema_text=pb.SchemaText(sha256=SHA, text=TEXT))

    def _add(self, **body: object) -> None:
        index = self.fold.next_index
        entry = pb.ControlEntry(
            format=1,
            id=index.to_bytes(16, "big"),
            epoch=1,
            owner="o",
            time_us=self.time_us,
            **body,  # type: ignore[arg-type]
        )
        self.fold.apply(index, entry.SerializeToString())

    def written(self, *files: ArchiveFile, table: bool = True) -> None:
        message = pb.FilesWritten(
            commit_id=bytes(16), topic_id=bytes.fromhex(TOPIC), files=[item.to_proto() for item in files]
        )
        if table:
            message.event.CopyFrom(pb.Event(text_sha256=SHA, datum=b"d"))
            message.table_uuid = bytes(15) + b"\1"
        self._add(files_written=message)

    def committed(self, watermark: int, *keys: str, killed: tuple[str, ...] = ()) -> None:
        message = pb.TableCommitted(topic_id=bytes.fromhex(TOPIC), sequence_number=3, committed=keys)
        message.watermarks.add(partition=0, offset=watermark)
        for key in killed:
            message.killed.add(key=key, why="because")
        self._add(table_committed=message)

    @property
    def topic(self) -> TopicLedger:
        return self.fold.topic(TOPIC)


def test_the_archive_of_a_plan_without_records() -> None:
    plan = plan_of([segment(3, 4)])
    archive = gaps_archive(plan)
    assert (archive.gap_only, archive.partition, archive.base, archive.end, archive.rows, archive.size) == (
        True,
        0,
        3,
        7,
        0,
        0,
    )
    assert ArchiveFile.from_proto(archive.to_proto()) == archive


@pytest.mark.parametrize("table", [True, False])
def test_the_watermark_passes(table: bool) -> None:
    ledger = Ledger()
    ledger.time_us = 77
    ledger.written(gaps(0, 4), data(4, 9, ((5, 6),)), gaps(9, 12), table=table)
    assert ledger.topic.planned_to(0) == 12
    assert ledger.topic.written_us == 77
    if table:
        assert ledger.topic.passed.ranges(0) == ()
        ledger.committed(12, "k/4-9")
    topic = ledger.topic
    assert (topic.watermark(0), topic.pending, topic.covered.ranges(0)) == (12, (), ((0, 12),))
    assert topic.passed.ranges(0) == ((0, 4), (9, 12)), "an archive says itself what it lacks"
    assert (topic.totals.files, topic.totals.rows) == (1, 5)


def test_ranges_behind_a_killed_file_are_forgotten_and_planned_again() -> None:
    ledger = Ledger()
    ledger.written(data(0, 4), gaps(4, 9))
    ledger.committed(0, killed=("k/0-4",))
    assert (ledger.topic.pending, ledger.topic.planned_to(0), ledger.topic.passed.ranges(0)) == ((), 0, ())


def test_a_rollback_takes_them_back() -> None:
    ledger = Ledger()
    ledger.written(gaps(0, 4), data(4, 9), gaps(9, 12))
    ledger.committed(12, "k/4-9")
    ledger.committed(10)
    assert ledger.topic.passed.ranges(0) == ((0, 4), (9, 10))
    ledger.committed(2)
    assert ledger.topic.passed.ranges(0) == ((0, 2),)


def test_without_a_table_a_range_off_the_chain_is_refused() -> None:
    ledger = Ledger()
    ledger.written(gaps(3, 4), table=False)
    assert (ledger.topic.watermark(0), ledger.fold.refused, ledger.topic.killed) == (0, 1, {})
