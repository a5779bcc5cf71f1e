"""Checkpoints: folding the rest of the entries onto one gives the fold of all entries, for any history and
any cut."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archiver.log.checkpoints import unseal
from archiver.proto import intake_log_pb2 as log_pb
from archiver.proto import intake_state_pb2 as pb
from archiver.runtime.errors import Corrupted, Halt
from archiver.runtime.ids import TopicId, TopicPartition
from intake.log import history_file
from intake.log.checkpoint import MAGIC, Checkpoint, HistoryRef, decode, encode, same
from intake.log.entries import format_of, parse_entry
from intake.log.fold import IDS_REMEMBERED, Applied, IntakeFold
from intake.log.state import Gap, PartitionState, TopicState, merged
from intake.producers import SEQUENCE_COUNT, LastEnd, Producer, Stamp
from intake.segments import SegmentRef
from tests.support.intake.intake_entries import topic_id_of
from tests.support.intake.intake_history import RandomHistory

History = dict[TopicPartition, tuple[list[SegmentRef], list[Gap]]]


def folded(entries: list[bytes], fold: IntakeFold | None = None) -> tuple[IntakeFold, list[Applied]]:
    fold = fold or IntakeFold()
    applied = [fold.apply(index, entries[index]) for index in range(fold.next_index, len(entries))]
    return fold, applied


def history(seed: int, steps: int) -> list[bytes]:
    return RandomHistory(random.Random(seed)).grow(steps)


def cut_here(
    fold: IntakeFold, history_refs: tuple[HistoryRef, ...], moved: History
) -> tuple[IntakeFold, tuple[HistoryRef, ...]]:
    """Encode and decode a checkpoint and its history file."""
    start = history_refs[-1].end if history_refs else 0
    content = history_file.decided(fold)
    data = history_file.encode(content)
    ref = history_file.ref_of(start, fold.next_index, data)
    for tp, part in history_file.decode(ref, data).items():
        segments, gaps = moved.setdefault(tp, ([], []))
        segments += part.segments
        gaps += part.gaps
    fold.release_history({tp: part.end for tp, part in content.items()})
    history_refs = (*history_refs, ref)
    data = encode(Checkpoint(fold.state(), history_refs))
    stored = decode(data, "here")
    assert stored.history == history_refs
    assert same(stored.state, fold.state())
    assert encode(stored) == data
    return stored.fold(), history_refs


def check_same(whole: IntakeFold, cut: IntakeFold, moved: History) -> None:
    expected, found = whole.state(), cut.state()
    for name in ("next_index", "cluster_id", "tick_us", "newest_us", "newest_key", "barrier_ms"):
        assert getattr(found, name) == getattr(expected, name), name
    for name in (
        "topics",
        "deleted",
        "producers",
        "transactions",
        "slot_claims",
        "consumer_groups",
        "pending_offsets",
        "ids",
    ):
        assert list(getattr(found, name)) == list(getattr(expected, name)), name
    assert {source.name: source for source in found.sources} == {
        source.name: source for source in expected.sources
    }
    assert found.partitions.keys() == expected.partitions.keys()
    for tp, twin in expected.partitions.items():
        held = found.partitions[tp]
        assert (held.next_offset, held.ingest_max_us) == (twin.next_offset, twin.ingest_max_us)
        assert held.history_end <= whole.stable_offset(tp) == cut.stable_offset(tp)
        segments, gaps = moved.get(tp, ([], []))
        assert all(segment.end <= held.history_end for segment in segments)
        assert all(segment.base >= held.history_end for segment in held.segments)
        assert [*segments, *held.segments] == list(twin.segments)
        assert merged([*gaps, *held.gaps], 0, twin.next_offset) == merged(twin.gaps, 0, twin.next_offset)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 120), st.lists(st.integers(0, 122), max_size=4))
def test_the_fold_from_a_checkpoint_is_the_fold_from_the_start(
    seed: int, steps: int, cuts: list[int]
) -> None:
    entries = history(seed, steps)
    whole, expected = folded(entries)
    fold, history_refs, moved, applied = IntakeFold(), tuple[HistoryRef, ...](), History(), list[Applied]()
    for cut in sorted({cut for cut in cuts if 0 < cut <= len(entries)}):
        fold, more = folded(entries[:cut], fold)
        applied += more
        fold, history_refs = cut_here(fold, history_refs, moved)
    fold, more = folded(entries, fold)
    assert applied + more == expected
    check_same(whole, fold, moved)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(20, 120), st.integers(1, 120))
def test_a_fold_that_went_on_forgets_as_much(seed: int, steps: int, cut: int) -> None:
    """A running process reads a checkpoint of an earlier index than its own."""
    entries = history(seed, steps)
    whole, _ = folded(entries)
    living, _ = folded(entries)
    moved = History()
    at_cut, _ = folded(entries[: min(cut, len(entries))])
    stored, _ = cut_here(at_cut, (), moved)
    living.release_history({tp: state.history_end for tp, state in stored.state().partitions.items()})
    check_same(whole, living, moved)
    assert same(living.state(), folded(entries, stored)[0].state())


def test_the_histories_hold_what_matters() -> None:
    seen: Counter[str] = Counter()
    for seed in range(60):
        entries = history(seed, 120)
        fold, applied = folded(entries)
        seen["gaps"] += sum(len(state.gaps) for state in fold.state().partitions.values())
        seen["deleted topics"] += len(fold.deleted_topics)
        seen["committed offsets"] += len(fold.consumer_groups)
        seen["open at the end"] += len(fold.transactions)
        seen["raised"] += sum(producer.newest_epoch > producer.epoch for producer in fold.state().producers)
        seen["behind an open one"] += sum(
            fold.stable_offset(tp) < fold.next_offset(tp) for tp in fold.state().partitions
        )
        for index, one in enumerate(applied):
            seen[one.refusal or "marker or else"] += 1
            parsed = parse_entry(index, entries[index])
            seen["pending offsets"] += parsed.HasField("offsets_pending") and one.commits == (None,)
            stated = [segment.producer for group in parsed.file.topics for segment in group.segments]
            for landed, batch in zip(one.landed, stated, strict=True):
                seen[landed.refusal or ("repeated" if landed.segment is None else "landed")] += 1
                seen["covered"] += landed.segment is not None and batch.covered > 0
                seen["without records"] += landed.rows == 0 and landed.refusal is None
                seen["wrapped"] += (
                    landed.segment is not None and batch.sequence + landed.rows > SEQUENCE_COUNT
                )
    wanted = {
        "gaps",
        "open at the end",
        "behind an open one",
        "fenced",
        "unknown_producer",
        "out_of_order",
        "wrong_kind",
        "barrier",
        "position",
    }
    wanted |= {
        "deleted",
        "deleted topics",
        "raised",
        "covered",
        "without records",
        "committed offsets",
        "pending offsets",
    }
    assert not [name for name in [*wanted, "repeated", "landed", "wrapped"] if seen[name] < 10], seen


def test_a_wrong_bit_is_noticed() -> None:
    fold, _ = folded(history(1, 30))
    data = encode(Checkpoint(fold.state(), ()))
    chance = random.Random(2)
    for place in [*range(60), *(chance.randrange(len(data)) for _ in range(500)), len(data) - 1]:
        altered = bytearray(data)
        altered[place] ^= 1 << chance.randrange(8)
        with pytest.raises(Corrupted, match="checkpoint there is damaged"):
            decode(bytes(altered), "there")
    for cut in (0, 10, 40, len(data) - 1):
        with pytest.raises(Corrupted, match="damaged"):
            decode(data[:cut], "there")


def test_a_newer_format_halts() -> None:
    payload = pb.IntakeState(format=7, next_index=1).SerializeToString()
    with pytest.raises(Halt, match=r"format 7, this version knows 6; upgrade"):
        decode(MAGIC + hashlib.sha256(payload).digest() + payload, "there")


def test_only_raised_epochs_need_the_newer_format() -> None:
    """The bytes of a state without them are those of earlier versions."""
    tp = (TopicId("a" * 32), 0)
    fold = IntakeFold()
    fold.restore(
        replace(
            fold.state(),
            next_index=1,
            topics=[TopicState(tp[0], "orders", 2, 1)],
            partitions={(tp[0], number): PartitionState() for number in range(2)},
            producers=[Producer(1, 0, "", 1, 1), Producer(2, 3, "x", 1, 1)],
        )
    )
    fold.producers.appended(tp, Stamp(1, 0, 0), 2, 0, 1)
    fold.producers.appended(tp, Stamp(2, 3, 0, transactional=True), 2, 2, 1)

    def stored() -> pb.IntakeState:
        return pb.IntakeState.FromString(unseal(MAGIC, encode(Checkpoint(fold.state(), ())), "here"))

    assert stored().format == 1
    assert [batches.epoch for producer in stored().producers for batches in producer.batches] == [0, 0]
    for epoch, partition in ((1, 1), (2, 0)):
        fold.producers.appended((tp[0], partition), Stamp(1, epoch, 0), 2, 4, 1)
        assert stored().format == 4
        found = decode(encode(Checkpoint(fold.state(), ())), "here")
        assert same(found.state, fold.state())
        known = found.fold().producers.get(1)
        assert known is not None
        assert known.newest_epoch == epoch
    assert [batches.epoch for producer in stored().producers for batches in producer.batches] == [2, 1, 0]


def test_a_producer_that_the_log_knows_from_a_raised_epoch_needs_the_newer_format() -> None:
    tp = (TopicId("a" * 32), 0)
    fold = IntakeFold()
    partitions = {tp: PartitionState()}
    fold.restore(
        replace(fold.state(), next_index=1, topics=[TopicState(tp[0], "orders", 1, 1)], partitions=partitions)
    )
    fold.producers.appended(tp, Stamp(7, 3, 0), 2, 0, 1)
    data = encode(Checkpoint(fold.state(), ()))
    assert pb.IntakeState.FromString(unseal(MAGIC, data, "here")).format == 4
    found = decode(data, "here")
    assert same(found.state, fold.state())
    known = found.fold().producers.get(7)
    assert known is not None
    assert known.newest_epoch == 3


def test_how_a_client_came_to_its_epoch_and_ended_its_transaction_is_kept() -> None:
    fold, index = IntakeFold(), 0

    def stored(**body: object) -> Producer:
        """The producer in the checkpoint behind another entry."""
        nonlocal index
        entry = log_pb.IntakeEntry(id=bytes(16), **body)  # type: ignore[arg-type]
        entry.format = format_of(entry)
        fold.apply(index, entry.SerializeToString())
        index += 1
        data = encode(Checkpoint(fold.state(), ()))
        found = decode(data, "here")
        assert same(found.state, fold.state())
        producer = found.fold().producers.get(0)
        assert producer is not None
        newer = producer.resumed or producer.last_end is not None
        assert entry.format == (7 if entry.producer.resumed or entry.transaction.by_client else 2)
        assert pb.IntakeState.FromString(unseal(MAGIC, data, "here")).format == (6 if newer else 1)
        return producer

    def opened(*, resumed: bool) -> log_pb.ProducerOpened:
        return log_pb.ProducerOpened(transactional_id="x", transaction_timeout_us=1, resumed=resumed)

    def ended(epoch: int, *, commit: bool, by_client: bool = True) -> log_pb.TransactionEnded:
        return log_pb.TransactionEnded(producer_id=0, epoch=epoch, commit=commit, by_client=by_client)

    assert not stored(producer=opened(resumed=False)).resumed
    assert stored(producer=opened(resumed=True)).resumed
    assert stored(transaction=ended(1, commit=True)).last_end == LastEnd(2, commit=True)
    assert stored(transaction=ended(1, commit=False)).last_end == LastEnd(3, commit=False)
    # An earlier epoch changes nothing.
    assert stored(transaction=ended(0, commit=True)).last_end == LastEnd(3, commit=False)
    assert stored(transaction=ended(1, commit=True, by_client=False)).last_end is None
    assert stored(transaction=ended(1, commit=True)).last_end == LastEnd(6, commit=True)
    again = stored(producer=opened(resumed=False))
    assert (again.resumed, again.last_end) == (False, None)


def test_covered_numbers_need_the_newer_format() -> None:
    tp = (TopicId("a" * 32), 0)
    fold = IntakeFold()
    fold.restore(
        replace(
            fold.state(),
            next_index=1,
            topics=[TopicState(tp[0], "orders", 1, 1)],
            partitions={tp: PartitionState()},
            producers=[Producer(1, 0, "", 1, 1)],
        )
    )
    for sequence, rows, covered in ((0, 2, 0), (2, 1, 3), (5, 0, 1)):
        fold.producers.appended(tp, Stamp(1, 0, sequence, covered=covered), rows, 0, 1)
        data = encode(Checkpoint(fold.state(), ()))
        assert pb.IntakeState.FromString(unseal(MAGIC, data, "here")).format == (4 if covered else 1)
        found = decode(data, "here")
        assert same(found.state, fold.state())
        assert encode(found) == data
    assert found.fold().producers.next_sequence(tp, 1, 0) == 6


def test_a_fresh_fold_has_a_checkpoint() -> None:
    stored = decode(encode(Checkpoint(IntakeFold().state(), ())), "here")
    assert same(stored.state, IntakeFold().state())


def test_400_partitions_with_a_producer_each_are_small() -> None:
    """A checkpoint has the random ids of the last 65,536 entries: 16 bytes and 2 of framing each. The rest is
    small."""
    topic_id = topic_id_of(1)
    fold = IntakeFold()

    def apply(**body: object) -> None:
        entry = log_pb.IntakeEntry(format=2, id=fold.next_index.to_bytes(16, "big"), **body)  # type: ignore[arg-type]
        fold.apply(fold.next_index, entry.SerializeToString())

    apply(
        topic=log_pb.TopicDeclared(
            topic_id=bytes.fromhex(topic_id), name="orders", partitions=400, created_us=1_767_323_045_000_000
        )
    )
    opened = {}
    for partition in range(400):
        opened[partition] = fold.next_index
        apply(producer=log_pb.ProducerOpened(time_us=1_767_323_045_000_000))
    for sequence in range(0, 60_000_000, 10_000_000):
        segments = [
            log_pb.Segment(
                partition=partition,
                rows=10_000_000,
                accept_max_us=1_767_323_045_000_000 + sequence,
                producer=log_pb.ProducerBatch(
                    producer_id=opened[partition], epoch=3 if sequence < 0 else 0, sequence=sequence
                ),
            )
            for partition in range(400)
        ]
        topics = [log_pb.TopicSegments(topic_id=bytes.fromhex(topic_id), segments=segments)]
        apply(
            file=log_pb.IntakeFile(key=f"intake/{sequence}", size=1, footer_sha256=b"d" * 32, topics=topics)
        )
    content = history_file.decided(fold)
    fold.release_history({tp: part.end for tp, part in content.items()})
    data = encode(Checkpoint(fold.state(), ()))
    ids = 18 * fold.next_index
    assert 0 < len(data) - ids < 50_000, len(data) - ids
    assert 18 * IDS_REMEMBERED < 1_200_000
