"""From polls to pieces: order, gaps, records that cannot be stored, the size of an entry, and a cluster that
changed."""

from __future__ import annotations

import random
import struct
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from archiver.runtime.errors import InvalidInput
from archiver.runtime.ids import TopicId
from intake.batches.decoding import decode, measure, read_header
from intake.log.fold import TopicState
from intake.log.source_positions import Begun
from intake.sources.kafka.batch import POSITION_BYTES, Cursor, MirrorPiece
from intake.sources.kafka.upstream import Bounds, Polled, UpstreamBatch, UpstreamRows, UpstreamTopic
from intake.sources.kafka.upstream_changes import GoOn, MirrorFinding, judge_partition, judge_topic
from intake.write.encode import SortedFlush
from intake.write.queue import BatchItem, EncodedItem
from tests.support.kafka.record_batches import RawRecord, batch_bytes, records_bytes

ID = b"u" * 16
TOPICS = {
    name: TopicState(TopicId(f"{number:032x}"), name, 50, 0, mirrored=True)
    for number, name in enumerate("ab")
}


def cursors(*places: tuple[str, int], end: int = 0) -> dict[tuple[str, int], Cursor]:
    return {place: Cursor(place, TOPICS[place[0]], ID, end, end, 0) for place in places}


def polled(*rows: tuple[str, int, int], size: int = 3, time_ms: int = 5) -> Polled:
    values: list[bytes | None] = [b"%d" % offset * size for _, _, offset in rows]
    empty: list[bytes | None] = [None for _ in rows]
    topics, partitions, offsets = [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]
    return Polled(topics, partitions, offsets, [time_ms] * len(rows), empty, values, [None for _ in rows])


def batch(topic: str, partition: int, base: int, count: int = 3, size: int = 3) -> UpstreamBatch:
    records = records_bytes([RawRecord(value=b"%d" % (base + number) * size) for number in range(count)])
    data = batch_bytes(records, codec="zstd")
    data = struct.pack(">q", base) + data[8:]
    header = read_header(data)
    (sizes,) = measure([(header, data)], uncompressed_max=10**7)
    assert not isinstance(sizes, Exception)
    return UpstreamBatch((topic, partition), header, memoryview(data), sizes)


def values(piece: MirrorPiece) -> list[tuple[int, bytes | None]]:
    """Offset and value of the records that are rows, in the order of the items."""
    found: list[tuple[int, bytes | None]] = []
    for item in piece.items:
        assert isinstance(item, BatchItem) and item.offsets is not None
        found += zip(item.offsets.tolist(), item.columns.column("value").to_pylist(), strict=True)
    return found


def segments(piece: MirrorPiece) -> list[tuple[str, int, int | None, int]]:
    flush = SortedFlush(piece.items)
    return [
        (topic.name, one.partition, one.offset, one.rows)
        for topic, one in zip(flush.topics, flush.segments, strict=True)
    ]


def test_runs_of_offsets_become_segments_over_several_polls() -> None:
    piece, known = MirrorPiece(512 * 1024, 10**6), cursors(("a", 0), ("a", 1), ("b", 0))
    piece.add(polled(("a", 0, 5), ("b", 0, 0), ("a", 0, 6), ("a", 1, 2)), known, 1)
    piece.add(polled(("a", 0, 7), ("a", 0, 9), ("a", 1, 3)), known, 2)
    assert segments(piece) == [("a", 0, 5, 3), ("a", 0, 9, 1), ("a", 1, 2, 2), ("b", 0, 0, 1)]
    assert {(move.source[-1], move.item, move.base, move.end) for move in piece.moves(0)} == {
        ("0", "0", 0, 10),
        ("0", "1", 0, 4),
        ("1", "0", 0, 1),
    }


def test_batches_are_stored_as_they_came_and_are_cut_at_gaps() -> None:
    piece, known = MirrorPiece(512 * 1024, 10**6), cursors(("a", 0), ("a", 1), ("b", 0))
    first = [batch("a", 0, 5), batch("b", 0, 0), batch("a", 0, 8, 2)]
    piece.add(Polled(batches=first), known, 1)
    piece.add(Polled(batches=[batch("a", 0, 10), batch("a", 0, 14), batch("a", 2, 0)]), known, 2)
    assert segments(piece) == [("a", 0, 5, 8), ("a", 0, 14, 3), ("b", 0, 0, 3)]
    assert (piece.rows, known["a", 0].end, known["a", 1].end) == (14, 17, 0)
    assert piece.raw_bytes == sum(item.raw_bytes for item in piece.items) > 14
    assert all(isinstance(item, EncodedItem) for item in piece.items)
    flush = SortedFlush(piece.items)
    stored = [one for segment in flush.segments for one in segment.batches]
    assert [one.mirrored for one in stored] == [True] * 5
    assert stored[0].data == first[0].data


@pytest.mark.parametrize("order", range(3))
def test_of_a_partition_with_rows_all_are_rows(order: int) -> None:
    """Readers find rows before batches, so a batch before a row would be out of order."""
    piece, known = MirrorPiece(512 * 1024, 10**6), cursors(("a", 0), ("a", 1))
    others = Polled(batches=[batch("a", 1, 0)])
    parts = [Polled(batches=[batch("a", 0, 0), batch("a", 0, 3)]), polled(("a", 0, 6), ("a", 0, 8))]
    parts += [Polled(batches=[batch("a", 0, 9)])]
    parts.insert(order, others)
    for number, part in enumerate(parts):
        assert piece.add(part, known, number) == []
    assert segments(piece) == [("a", 0, 0, 7), ("a", 0, 8, 4), ("a", 1, 0, 3)]
    assert [type(item) for item in piece.items if isinstance(item, EncodedItem)] == [EncodedItem]
    piece.items = [item for item in piece.items if isinstance(item, BatchItem)]
    assert values(piece) == [(number, b"%d" % number * 3) for number in (*range(7), *range(8, 12))]


def decoded(topic: str, partition: int, offsets: list[int], size: int = 3) -> UpstreamRows:
    bodies = records_bytes([RawRecord(value=b"%d" % offset * size) for offset in offsets])
    data = batch_bytes(bodies)
    (columns,) = decode([(read_header(data), data)], uncompressed_max=10**7)
    assert isinstance(columns, pa.RecordBatch)
    return UpstreamRows((topic, partition), np.array(offsets), columns)


def test_decoded_records_are_as_those_that_were_read_one_by_one() -> None:
    """Through gaps, records before the position, and one that cannot be stored."""
    pieces = [MirrorPiece(512 * 1024, 15) for _ in range(2)]
    found = []
    for piece, one_by_one in zip(pieces, (True, False), strict=True):
        known = cursors(("a", 0), ("a", 1), end=5)
        for offsets in ([3, 4, 5, 6, 8], [9, 20, 1234567]):
            given = (
                polled(*[("a", 0, offset) for offset in offsets])
                if one_by_one
                else Polled(rows=[decoded("a", 0, offsets)])
            )
            given.epochs = {("a", 0): 2}
            found.append([(one.kind, one.offset, one.why) for one in piece.add(given, known, 1)])
    assert found[:2] == found[2:] and found[1][0][:2] == ("unstorable", 1234567)
    assert segments(pieces[0]) == segments(pieces[1])
    assert values(pieces[0]) == values(pieces[1])
    assert pieces[0].moves(0) == pieces[1].moves(0)
    assert (pieces[0].rows, pieces[0].raw_bytes) == (pieces[1].rows, pieces[1].raw_bytes)


def test_a_batch_with_a_record_that_cannot_be_stored_ends_its_partition_within_it() -> None:
    piece, known = MirrorPiece(512 * 1024, 15), cursors(("a", 0), ("a", 1))
    given = [batch("a", 0, 0), batch("a", 0, 8, 5, size=8), batch("a", 0, 13), batch("a", 1, 0)]
    (one,) = piece.add(Polled(batches=given, epochs={("a", 0): 4, ("a", 1): 4}), known, 1)
    # 8 and 9 are of eight bytes, 10 to 12 of sixteen.
    assert (one.kind, one.place, one.offset) == ("unstorable", ("a", 0), 10)
    assert "record_bytes_max" in one.why
    assert segments(piece) == [("a", 0, 0, 3), ("a", 0, 8, 2), ("a", 1, 0, 3)]
    assert {move.item: (move.end, move.count) for move in piece.moves(0)} == {"0": (10, 0), "1": (3, 5)}


def test_a_batch_where_none_was_means_that_the_cluster_has_lost_what_was_read() -> None:
    piece, known = MirrorPiece(512 * 1024, 10**6), cursors(("a", 0), ("a", 1), end=6)
    known["a", 0].read_from = 4
    (one,) = piece.add(Polled(batches=[batch("a", 0, 4), batch("a", 1, 4), batch("a", 0, 7)]), known, 1)
    assert (one.kind, one.place, one.offset) == ("diverged", ("a", 0), 4)
    # Of the other partition, records before its position were ingested before.
    assert segments(piece) == [("a", 1, 6, 1)] and known["a", 0].end == 6


def test_what_was_taken_in_or_is_not_read_is_left_out() -> None:
    piece, known = MirrorPiece(512 * 1024, 10**6), cursors(("a", 0), end=6)
    piece.add(polled(("a", 0, 4), ("a", 0, 5), ("a", 0, 6), ("a", 1, 0), ("b", 0, 0)), known, 1)
    assert segments(piece) == [("a", 0, 6, 1)] and piece.rows == 1


def test_a_record_that_cannot_be_stored_ends_its_partition() -> None:
    piece, known = MirrorPiece(512 * 1024, 40), cursors(("a", 0), ("a", 1))
    large = polled(("a", 0, 0), ("a", 0, 1), ("a", 1, 0), ("a", 0, 2))
    large.values[1] = b"x" * 41
    large.ends["a", 0] = 3
    (one,) = piece.add(large, known, 1)
    assert (one.place, one.offset) == (("a", 0), 1) and "record_bytes_max" in one.why
    assert segments(piece) == [("a", 0, 0, 1), ("a", 1, 0, 1)]
    assert known["a", 0].end == 1, "the end of the partition is not passed on either"
    (late,) = piece.add(polled(("a", 1, 1), time_ms=2**60), known, 1)
    assert "years" in late.why and "lost" in late.why and "limit" not in late.why


def test_a_record_that_could_not_be_read_whole_ends_its_partition() -> None:
    piece, known = MirrorPiece(512 * 1024, 10**6), cursors(("a", 0))
    batch = polled(("a", 0, 0), ("a", 0, 1), ("a", 0, 2))
    batch.broken[1] = "has a header whose name is not UTF-8"
    (one,) = piece.add(batch, known, 1)
    assert (one.kind, one.offset) == ("unstorable", 1) and "UTF-8" in one.why
    assert segments(piece) == [("a", 0, 0, 1)] and known["a", 0].end == 1


def test_a_record_where_none_was_means_that_the_cluster_has_lost_what_was_read() -> None:
    piece, known = MirrorPiece(512 * 1024, 10**6), cursors(("a", 0), ("a", 1), end=6)
    known["a", 0].read_from = known["a", 1].read_from = 4
    (one,) = piece.add(polled(("a", 0, 5), ("a", 0, 6), ("a", 1, 6)), known, 1)
    assert (one.kind, one.place, one.offset) == ("diverged", ("a", 0), 5)
    assert segments(piece) == [("a", 1, 6, 1)] and known["a", 0].end == 6


def test_a_leader_epoch_is_kept_with_its_record_only() -> None:
    piece, known = MirrorPiece(512 * 1024, 40), cursors(("a", 0), ("a", 1), ("a", 2))
    first = polled(("a", 0, 0), ("a", 1, 0), ("a", 2, 0))
    first.epochs = dict.fromkeys(known, 7)
    piece.add(first, known, 1)
    assert {move.count for move in piece.moves(0)} == {8}
    second = polled(("a", 0, 1), ("a", 0, 2), ("a", 1, 1))
    second.values[1] = b"x" * 41
    second.epochs = {("a", 0): 9}  # of the record that is not accepted; the other epochs are unknown
    second.ends = {("a", 2): 5}
    piece.add(second, known, 1)
    assert {move.item: (move.end, move.count) for move in piece.moves(0)} == {
        "0": (2, 0),
        "1": (2, 0),
        "2": (5, 8),
    }


def test_a_piece_from_before_a_topic_grew_is_refused() -> None:
    """Otherwise its partition 2 would be numbered as partition 1 of the next topic."""
    small = replace(TOPICS["a"], partitions=1)
    piece, known = MirrorPiece(512 * 1024, 10**6), cursors(("a", 0), ("a", 2), ("b", 0))
    known["a", 0].topic = small
    piece.add(polled(("a", 2, 0), ("b", 0, 0)), known, 1)
    piece.add(polled(("a", 0, 0)), known, 2)
    with pytest.raises(InvalidInput, match="partition"):
        SortedFlush(piece.items)


def test_headers_and_missing_times_are_kept() -> None:
    piece, known = MirrorPiece(512 * 1024, 10**6), cursors(("a", 0))
    batch = polled(("a", 0, 0), ("a", 0, 1))
    batch.headers[1] = [("x", None), ("x", b""), ("", b"1")]
    batch.timestamps_ms[0] = -1
    piece.add(batch, known, 1)
    (item,) = piece.items
    assert isinstance(item, BatchItem)
    rows = item.columns.to_pylist()
    assert rows[0]["event_timestamp"] is None and rows[0]["headers"] == []
    assert rows[1]["headers"] == [
        {"key": "x", "value": None},
        {"key": "x", "value": b""},
        {"key": "", "value": b"1"},
    ]


def test_an_end_behind_markers_moves_the_position_alone() -> None:
    piece, known = MirrorPiece(512 * 1024, 10**6), cursors(("a", 0), end=5)
    piece.add(Polled(ends={("a", 0): 5, ("b", 0): 3}), known, 1)
    assert not piece.moved
    piece.add(Polled(ends={("a", 0): 8}), known, 1)
    assert (piece.items, [(move.base, move.end) for move in piece.moves(0)]) == ([], [(5, 8)])


@pytest.mark.parametrize("seed", range(5))
def test_a_full_piece_fits_one_entry(seed: int) -> None:
    """The piece is filled as the mirror fills it, with records spread at random."""
    chance = random.Random(seed)
    piece = MirrorPiece(16 * 1024, 10**6)
    places = [(topic, partition) for topic in "ab" for partition in range(chance.choice([1, 20, 50]))]
    known, reached = cursors(*places), dict.fromkeys(places, 0)
    while (room := piece.records_max(len(known))) >= 1:
        rows = []
        for _ in range(chance.randint(1, room)):
            place = chance.choice(places)
            reached[place] += chance.choice([1, 1, 2])
            rows.append((*place, reached[place] - 1))
        piece.add(polled(*rows), known, 1)
    moves = piece.moves(0)
    assert len(SortedFlush(piece.items).parts(16 * 1024 - len(moves) * POSITION_BYTES)) == 1


def test_a_piece_of_batches_that_do_not_follow_each_other_fits_one_entry() -> None:
    piece, places = MirrorPiece(16 * 1024, 10**6), [("a", number) for number in range(9)]
    known, taken = cursors(*places), 0
    while (room := piece.records_max(len(known))) >= 1:
        numbers = range(taken, taken + room)
        piece.add(
            Polled(batches=[batch("a", number % 9, 3 * (number // 9) + 1, 2) for number in numbers]), known, 1
        )
        taken += room
    assert taken > 9 and len(segments(piece)) == taken
    moves = piece.moves(0)
    assert len(SortedFlush(piece.items).parts(16 * 1024 - len(moves) * POSITION_BYTES)) == 1


@pytest.mark.parametrize("partitions", [1, 4, 25, 50])
def test_a_piece_in_which_no_record_follows_another_fits_one_entry(partitions: int) -> None:
    piece, places = (
        MirrorPiece(16 * 1024, 10**6),
        [(topic, partition) for topic in "ab" for partition in range(partitions)],
    )
    known, taken = cursors(*places), 0
    while (room := piece.records_max(len(known))) >= 1:
        rows = [
            (*places[number % len(places)], 1 + 2 * (number // len(places)))
            for number in range(taken, taken + room)
        ]
        piece.add(polled(*rows), known, 1)
        taken += room
    moves = piece.moves(0)
    assert len(SortedFlush(piece.items).parts(16 * 1024 - len(moves) * POSITION_BYTES)) == 1


def test_where_a_partition_goes_on() -> None:
    def kind(position: int, low: int, high: int, given_up: int | None = None) -> object:
        found = judge_partition("t", 0, position, Bounds(low, high), given_up)
        return found.offset if isinstance(found, GoOn) else found.kind

    assert [kind(5, 0, 9), kind(5, 5, 5), kind(0, 0, 0)] == [5, 5, 0]
    assert [kind(5, 6, 9), kind(6, 0, 5)] == ["truncated", "behind"]
    given_up = [kind(5, 7, 9, 7), kind(5, 7, 9, 8), kind(5, 7, 9, 6), kind(5, 7, 9, 10), kind(5, 5, 9, 7)]
    assert given_up == [7, 7, "truncated", "truncated", 5], (
        "existing offsets are never skipped, even if they were given up"
    )
    assert kind(9, 0, 5, 9) == "behind", "giving up what was not read gives up nothing that was"


def test_whether_it_is_the_topic_that_was_begun() -> None:
    def kind(found: UpstreamTopic | None, *identities: bytes) -> str | None:
        finding = judge_topic("t", found, {number: Begun(1, 1, one) for number, one in enumerate(identities)})
        return None if finding is None else finding.kind

    assert kind(UpstreamTopic("t", ID, 1), ID, ID) is None
    assert kind(UpstreamTopic("t", ID, 1)) is None
    assert kind(UpstreamTopic("t", b"v" * 16, 1), ID) == "recreated"
    assert kind(None, ID) == "gone"
    assert kind(UpstreamTopic("t", b"", 1), b"no id") is None
    assert kind(UpstreamTopic("t", ID, 1), b"no id", ID) is None, "the cluster has got ids since"
    assert kind(UpstreamTopic("t", b"", 1), ID) == "unreadable", "an answer without an id proves nothing"
    assert MirrorFinding("gone", "t", 3, "").where == "t:3"
