"""START_MOVED and the keys of deleted objects, in the fold of the control log."""

from __future__ import annotations

import pytest

from archiver.ledger.entries import format_of
from archiver.ledger.fold import LedgerFold
from archiver.objects.paths import archive_key
from archiver.proto import control_log_pb2 as pb
from archiver.runtime.errors import Halt

TOPIC = "ab" * 16


class Feed:
    """A fold and its entries, one after the other."""

    def __init__(self) -> None:
        self.fold = LedgerFold()
        self.add(1, epoch_started=pb.EpochStarted())

    def add(self, epoch: int, **body: object) -> None:
        (message,) = body.values()
        entry = pb.ControlEntry(
            format=format_of(message),  # type: ignore[arg-type]
            id=self.fold.next_index.to_bytes(16),
            epoch=epoch,
            time_us=7,
            **body,  # type: ignore[arg-type]
        )
        self.fold.apply(self.fold.next_index, entry.SerializeToString())

    def files(self, epoch: int, *ranges: tuple[int, int, int], partition: int = 0) -> None:
        """Archives of (base, end, newest ingest time), without a table."""
        files = [
            pb.ArchiveFile(
                key=key(base, end, epoch, partition),
                base=base,
                end=end,
                epoch=epoch,
                partition=partition,
                ingest_max_us=when,
            )
            for base, end, when in ranges
        ]
        self.add(epoch, files_written=pb.FilesWritten(topic_id=bytes.fromhex(TOPIC), files=files))

    def start(self, epoch: int, *starts: tuple[int, int]) -> None:
        said = [pb.PartitionOffset(partition=partition, offset=offset) for partition, offset in starts]
        self.add(epoch, start_moved=pb.StartMoved(topic_id=bytes.fromhex(TOPIC), starts=said))


def key(base: int, end: int, epoch: int = 1, partition: int = 0) -> str:
    return archive_key(TOPIC, partition, "day", 20_000, base, end, epoch)


def test_c1_a_start_only_rises_and_stays_below_what_is_archived() -> None:
    feed = Feed()
    feed.files(1, (0, 10, 100), (10, 20, 200))
    topic = feed.fold.topic(TOPIC)  # type: ignore[arg-type]
    assert (topic.start(0), topic.ages.older_than(0, 150, topic.watermark(0))) == (0, 10)
    feed.start(1, (0, 10), (1, 5))
    assert topic.starts == {0: 10}, "nothing of partition 1 is archived"
    feed.start(1, (0, 5))
    feed.start(1, (0, 99))
    assert topic.starts == {0: 20}
    assert topic.ages.older_than(0, 10**6, topic.watermark(0)) in {0, 20}


def test_c1_no_watermark_is_below_the_start() -> None:
    """After a rollback that an operator accepts, offsets removed by retention are not archived again."""
    feed = Feed()
    feed.files(1, (0, 10, 100), (10, 20, 200))
    feed.start(1, (0, 10))
    lowered = pb.TableCommitted(
        topic_id=bytes.fromhex(TOPIC), watermarks=[pb.PartitionOffset(partition=0, offset=0)]
    )
    feed.add(1, table_committed=lowered)
    topic = feed.fold.topic(TOPIC)  # type: ignore[arg-type]
    assert (topic.watermarks[0], topic.watermark(0), topic.planned_to(0)) == (0, 10, 10)


def test_an_entry_of_a_deposed_leader_moves_no_start() -> None:
    feed = Feed()
    feed.files(1, (0, 10, 100))
    feed.add(2, epoch_started=pb.EpochStarted())
    feed.start(1, (0, 10))
    assert feed.fold.topic(TOPIC).starts == {}  # type: ignore[arg-type]


def test_older_versions_stop_at_a_moved_start() -> None:
    assert format_of(pb.StartMoved()) == 3
    assert format_of(pb.Condemned()) == 1, "cleaning alone leaves a ledger that older versions read"
    fold = LedgerFold()
    entry = pb.ControlEntry(format=7, id=bytes(16), epoch=1, epoch_started=pb.EpochStarted())
    with pytest.raises(Halt, match="knows up to 6"):
        fold.apply(0, entry.SerializeToString())


def test_p2_a_key_of_this_epoch_that_was_marked_is_used_up() -> None:
    """D4: an unreferenced object of the leader's own epoch. No archive gets its name, also after its
    deletion."""
    feed = Feed()
    feed.files(1, (0, 10, 100))
    feed.add(1, condemned=pb.Condemned(keys=[key(10, 20)]))
    topic = feed.fold.topic(TOPIC)  # type: ignore[arg-type]
    assert topic.knows(key(10, 20)), "a plan for that range needs a new epoch"
    feed.add(1, deleted=pb.Deleted(keys=[key(10, 20)]))
    assert feed.fold.condemned == {}
    feed.files(1, (10, 20, 200))
    assert (feed.fold.refused, topic.watermark(0)) == (1, 10)
    feed.add(2, epoch_started=pb.EpochStarted())
    feed.files(2, (10, 20, 200))
    assert topic.watermark(0) == 20


def test_a_marked_object_remembers_how_far_its_table_had_come() -> None:
    feed = Feed()
    feed.files(1, (0, 10, 100))
    feed.add(1, table_committed=pb.TableCommitted(topic_id=bytes.fromhex(TOPIC), sequence_number=7))
    metadata = f"archive/{TOPIC}/metadata/x.avro"
    feed.add(1, condemned=pb.Condemned(keys=[metadata, key(50, 60), "intake/x.parquet"]))
    feed.add(1, table_committed=pb.TableCommitted(topic_id=bytes.fromhex(TOPIC), sequence_number=9))
    feed.add(1, condemned=pb.Condemned(keys=[metadata]))
    reported = {name: item.sequence_number for name, item in feed.fold.condemned.items()}
    assert reported == {metadata: 7, key(50, 60): 7, "intake/x.parquet": 0}


def test_a_deleted_killed_archive_is_forgotten() -> None:
    feed = Feed()
    feed.files(1, (5, 10, 100))
    topic = feed.fold.topic(TOPIC)  # type: ignore[arg-type]
    assert list(topic.killed) == [key(5, 10)]
    feed.add(1, condemned=pb.Condemned(keys=[key(5, 10)]))
    feed.add(1, deleted=pb.Deleted(keys=[key(5, 10)]))
    assert (topic.killed, feed.fold.condemned) == ({}, {})
    assert topic.knows(key(5, 10))
