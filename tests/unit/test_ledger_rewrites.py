"""The fold of rewrites: which it accepts, how each ends, and that nothing else changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from archiver.ledger.archives import ArchiveFile
from archiver.ledger.entries import FORMATS, format_of
from archiver.ledger.views import TopicLedger
from archiver.objects.paths import archive_key
from archiver.proto import control_log_pb2 as pb
from archiver.runtime.errors import Corrupted, Halt
from archiver.runtime.ids import TopicId
from tests.unit.test_ledger_fold import TABLE, TOPIC, Feed, file


def key(epoch: int, base: int = 0, end: int = 5) -> str:
    return archive_key(TOPIC, 0, "day", 20_000, base, end, epoch)


def archive(epoch: int, base: int = 0, end: int = 5, size: int = 10) -> ArchiveFile:
    return replace(file(0, base, end, epoch, key(epoch, base, end)), size=size)


def begun() -> Feed:
    """Offsets 0 to 4 in one archive of epoch 1, committed; epoch 2 leads."""
    feed = Feed()
    feed.written(1, archive(1))
    feed.committed(1, {0: 5}, (key(1),))
    feed.start(2)
    return feed


def topic_of(feed: Feed) -> TopicLedger:
    return feed.fold.topic(TopicId(TOPIC))


def rewritten(
    feed: Feed,
    epoch: int,
    new: ArchiveFile,
    old: str = "",
    table: bytes = TABLE.bytes,
    more: Sequence[str] = (),
) -> None:
    further = [pb.FilesRewritten.OldFile(key=one, size=20) for one in more]
    item = pb.FilesRewritten.File(old_key=old or key(1), old_size=10, archive=new.to_proto(), more=further)
    body = pb.FilesRewritten(
        topic_id=bytes.fromhex(TOPIC), table_uuid=table, last_sequence_number=3, files=[item]
    )
    feed.add(epoch, files_rewritten=body)


def settled(
    feed: Feed,
    epoch: int,
    *,
    replaced: tuple[str, ...] = (),
    abandoned: tuple[str, ...] = (),
    sequence: int = 4,
) -> None:
    named = [pb.RewriteSettled.Abandoned(key=one, why="because") for one in abandoned]
    body = pb.RewriteSettled(
        topic_id=bytes.fromhex(TOPIC), sequence_number=sequence, replaced=replaced, abandoned=named
    )
    feed.add(epoch, rewrite_settled=body)


def still(feed: Feed) -> tuple[object, ...]:
    """The state that no rewrite may change."""
    topic = topic_of(feed)
    counted = (topic.totals.files, topic.totals.rows, topic.totals.raw_bytes)
    return (
        topic.watermarks,
        topic.covered.ranges(0),
        topic.sequence_number,
        topic.snapshot_id,
        topic.pending,
        topic.committed_us,
        counted,
    )


def test_a_rewrite_takes_the_place_of_the_old_archive_and_moves_nothing_else() -> None:
    feed = begun()
    before = still(feed)
    rewritten(feed, 2, archive(2, size=17))
    topic = topic_of(feed)
    assert list(topic.rewrites.under_way) == [key(2)]
    assert (key(1) in topic.unread, key(2) in topic.unread) == (False, False)
    settled(feed, 2, replaced=(key(2),))
    assert topic.rewrites.under_way == {}
    assert (topic.rewrites.replaced[key(1)].by, topic.rewrites.replaced[key(1)].sequence_number) == (
        key(2),
        4,
    )
    assert (key(1) in topic.unread, key(2) in topic.unread) == (True, False)
    assert topic.totals.stored_bytes == 17
    assert still(feed) == before


def test_an_archive_takes_the_place_of_several() -> None:
    feed = begun()
    feed.written(2, archive(2, 5, 9, size=20))
    feed.committed(2, {0: 9}, (key(2, 5, 9),))
    feed.start(3)
    before = topic_of(feed)
    rows, marks, stored = before.totals.rows, dict(before.watermarks), before.totals.stored_bytes
    rewritten(feed, 3, archive(3, 0, 9, size=25), more=(key(2, 5, 9),))
    settled(feed, 3, replaced=(key(3, 0, 9),), sequence=6)
    topic = topic_of(feed)
    assert {old: (one.by, one.sequence_number) for old, one in topic.rewrites.replaced.items()} == {
        key(1): (key(3, 0, 9), 6),
        key(2, 5, 9): (key(3, 0, 9), 6),
    }
    assert (topic.totals.files, topic.totals.rows, topic.totals.stored_bytes) == (1, rows, stored - 30 + 25)
    assert dict(topic.watermarks) == marks
    feed.add(3, deleted=pb.Deleted(keys=[key(1), key(2, 5, 9)]))
    assert topic_of(feed).rewrites.replaced == {}


def test_p2_what_stands_for_a_marked_archive_is_refused() -> None:
    feed = begun()
    feed.add(2, condemned=pb.Condemned(keys=["other"], why="because"))
    rewritten(feed, 2, archive(2), more=("other",))
    assert (topic_of(feed).rewrites.under_way, feed.fold.refused) == ({}, 1)


def test_an_entry_with_several_old_archives_has_a_format_of_its_own() -> None:
    """A reader that knows only the first one would count the others as archives still, and their rows twice."""
    one = pb.FilesRewritten.File(old_key="a", archive=archive(2).to_proto())
    several = pb.FilesRewritten.File(
        old_key="a", archive=archive(2).to_proto(), more=[pb.FilesRewritten.OldFile(key="b")]
    )
    assert format_of(pb.FilesRewritten(files=[one])) == 2
    assert format_of(pb.FilesRewritten(files=[one, several])) == 4 < FORMATS[-1]


def test_the_ids_of_a_version_that_only_a_rewrite_was_made_with_are_fixed() -> None:
    feed = begun()
    rewritten(feed, 2, replace(archive(2), schema_version=7))
    assert topic_of(feed).written_version == 7


def test_p2_a_key_is_taken_in_once_and_only_in_its_epoch() -> None:
    feed = begun()
    rewritten(feed, 2, archive(1))
    rewritten(feed, 2, archive(3))
    assert (feed.fold.refused, topic_of(feed).rewrites.under_way) == (2, {})
    rewritten(feed, 2, archive(2))
    rewritten(feed, 2, archive(2))
    feed.written(2, archive(2))
    assert (feed.fold.refused, len(topic_of(feed).rewrites.under_way), topic_of(feed).pending) == (4, 1, ())
    settled(feed, 2, abandoned=(key(2),))
    rewritten(feed, 2, archive(2))
    assert feed.fold.refused == 5


@pytest.mark.parametrize("doomed", [1, 2])
def test_what_is_marked_is_not_exchanged(doomed: int) -> None:
    feed = begun()
    feed.add(2, condemned=pb.Condemned(keys=[key(doomed)]))
    rewritten(feed, 2, archive(2))
    assert topic_of(feed).rewrites.under_way == {}


def test_l3_an_entry_of_a_deposed_leader_is_void() -> None:
    feed = begun()
    feed.start(3)
    rewritten(feed, 2, archive(2))
    assert (feed.fold.void, topic_of(feed).rewrites.under_way) == (1, {})


def test_t2_a_rewrite_survives_a_new_epoch_and_an_abandoned_one_may_be_found_in_the_table() -> None:
    feed = begun()
    rewritten(feed, 2, archive(2))
    feed.start(3)
    topic = topic_of(feed)
    assert list(topic.rewrites.under_way) == [key(2)]
    settled(feed, 3, abandoned=(key(2),))
    assert (key(1) in topic.unread, key(2) in topic.unread, topic.totals.stored_bytes) == (False, True, 10)
    settled(feed, 3, replaced=(key(2),), sequence=9)
    assert (key(1) in topic.unread, key(2) in topic.unread, topic.rewrites.abandoned) == (True, False, {})


def test_keys_that_the_ledger_does_not_know_are_passed_over() -> None:
    feed = begun()
    before = still(feed)
    settled(feed, 2, replaced=("nobody's",), abandoned=("nor this",))
    assert (still(feed), topic_of(feed).rewrites.knows("nobody's")) == (before, False)


def test_a_deleted_archive_is_forgotten() -> None:
    feed = begun()
    rewritten(feed, 2, archive(2))
    settled(feed, 2, replaced=(key(2),))
    feed.add(2, condemned=pb.Condemned(keys=[key(1)]))
    assert key(1) in topic_of(feed).unread
    feed.add(2, deleted=pb.Deleted(keys=[key(1), "intake/x", key(1, 5, 9)]))
    assert (topic_of(feed).rewrites.replaced, feed.fold.condemned) == ({}, {})


def test_an_older_version_stops_at_a_rewrite() -> None:
    assert [
        format_of(body)
        for body in (pb.FilesRewritten(), pb.RewriteSettled(), pb.FilesWritten(), pb.Condemned())
    ] == [2, 2, 1, 1]


def test_an_entry_without_a_table_is_no_entry() -> None:
    feed = begun()
    with pytest.raises(Corrupted, match="3 bytes"):
        rewritten(feed, 2, archive(2), table=b"abc")
    with pytest.raises(Halt):
        feed.fold.apply(feed.fold.next_index, b"")
