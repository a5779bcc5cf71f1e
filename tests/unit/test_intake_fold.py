"""The fold of the intake log equals a naive reading of the same entries."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archiver.proto import intake_log_pb2 as pb
from archiver.runtime.errors import Corrupted, Halt, NotFound
from archiver.runtime.ids import TopicPartition
from intake.log.fold import IntakeFold
from tests.support.intake.intake_entries import Run, declared, named, ticked, topic_id_of

A, B = topic_id_of(1), topic_id_of(2)


def folded(*entries: bytes) -> IntakeFold:
    fold = IntakeFold()
    for index, entry in enumerate(entries):
        fold.apply(index, entry)
    return fold


def state_of(fold: IntakeFold) -> object:
    tps = [(topic.topic_id, p) for topic in fold.topics_by_id.values() for p in range(topic.partitions)]
    return (
        fold.next_index,
        fold.tick_us,
        fold.newest_us,
        dict(fold.topics_by_name),
        {tp: tuple(fold.segments(tp)) for tp in tps},
    )


def test_offsets_follow_the_order_of_entries() -> None:
    fold = folded(
        declared(1, "a", 2),
        named("f1", [Run(A, 0, rows=3), Run(A, 1, rows=2)]),
        named("f2", [Run(A, 1, rows=4)]),
    )
    assert [(s.file.key, s.base, s.end) for s in fold.segments((A, 1))] == [("f1", 0, 2), ("f2", 2, 6)]
    assert (fold.next_offset((A, 0)), fold.stable_offset((A, 1))) == (3, 6)


def test_apply_returns_the_segments_of_the_entry_in_its_order() -> None:
    fold = folded(declared(1, "a", 2), declared(2, "b", 1), named("f1", [Run(A, 1, rows=5)]))
    landed = fold.apply(3, named("f2", [Run(A, 1, rows=2), Run(B, 0, rows=1)])).landed
    assert [(one.tp, one.runs, one.segment and one.segment.file.log_index) for one in landed] == [
        ((A, 1), ((5, 2),), 3),
        ((B, 0), ((0, 1),), 3),
    ]
    assert fold.apply(4, ticked(1)).landed == ()


def test_the_first_declaration_of_a_name_wins() -> None:
    fold = folded(declared(1, "a", 2), declared(2, "a", 7))
    assert fold.topics_by_name["a"].topic_id == A
    assert fold.topics_by_name["a"].partitions == 2
    assert list(fold.topics_by_id) == [A]
    with pytest.raises(Corrupted, match="never declared"):
        fold.apply(2, named("f", [Run(B, 0)]))


def test_a_doubled_id_is_void_too() -> None:
    fold = folded(declared(1, "a", 2), declared(1, "b", 3))
    assert list(fold.topics_by_name) == ["a"]


def test_segments_reach_beyond_start() -> None:
    fold = folded(declared(1, "a", 1), *(named(f"f{n}", [Run(A, 0, rows=10)]) for n in range(3)))
    assert [s.base for s in fold.segments((A, 0), 10)] == [10, 20]
    assert [s.base for s in fold.segments((A, 0), 9)] == [0, 10, 20]
    assert fold.segments((A, 0), 30) == []


def test_the_floor_carries_the_maximum_across_files_and_ticks() -> None:
    fold = folded(
        declared(1, "a", 2),
        named("f1", [Run(A, 0, accept_max_us=500), Run(A, 1, accept_max_us=100)]),
        named("f2", [Run(A, 0, accept_max_us=300), Run(A, 1, accept_max_us=200)]),
        ticked(400),
        named("f3", [Run(A, 0, accept_max_us=600), Run(A, 1, accept_max_us=350)]),
        ticked(350),
        named("f4", [Run(A, 1, accept_max_us=1)]),
    )
    assert [s.floor_us for s in fold.segments((A, 0))] == [0, 500, 500]
    assert [s.floor_us for s in fold.segments((A, 1))] == [0, 100, 400, 400]
    assert (fold.tick_us, fold.newest_us) == (400, 600)


def test_an_unknown_format_or_body_halts() -> None:
    with pytest.raises(Halt, match=r"format 8.*upgrade"):
        folded(pb.IntakeEntry(format=8, id=b"i" * 16, tick=pb.Tick(time_us=1)).SerializeToString())
    with pytest.raises(Halt, match="upgrade"):
        folded(pb.IntakeEntry(format=1, id=b"i" * 16).SerializeToString())


def test_an_entry_out_of_turn_halts() -> None:
    with pytest.raises(Halt, match="expects entry 0"):
        IntakeFold().apply(1, ticked(1))


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (b"\xff\xff\xff", "not an intake entry"),
        (named("f", [Run(B, 0)]), "never declared"),
        (named("f", [Run(A, 0), Run(A, 2)]), "partition 2"),
        (named("f", [Run(A, 0), Run(A, 1, rows=0)]), "0 rows"),
        (named("f", [Run(A, 0), Run(A, 1, raw_bytes=2**40 + 1)]), "1099511627777 bytes"),
        (named("", [Run(A, 0)]), "without a key"),
        (declared(3, "", 1), "without a name"),
        (declared(3, "c", 0), "partitions"),
    ],
)
def test_a_contradictory_entry_is_refused_and_changes_nothing(entry: bytes, why: str) -> None:
    fold = folded(declared(1, "a", 2), named("f1", [Run(A, 0)]))
    before = state_of(fold)
    with pytest.raises(Corrupted, match=why):
        fold.apply(2, entry)
    assert state_of(fold) == before


def test_unknown_partitions_are_not_found() -> None:
    fold = folded(declared(1, "a", 2))
    with pytest.raises(NotFound, match="topic a has no partition 2"):
        fold.segments((A, 2))
    with pytest.raises(NotFound, match="no topic with the id"):
        fold.next_offset((B, 0))


_RUNS = st.lists(
    st.builds(
        Run,
        st.sampled_from([A, B]),
        st.integers(0, 2),
        st.integers(1, 5),
        st.integers(0, 100),
        st.integers(1, 50),
    ),
    min_size=1,
    max_size=5,
)
_STEPS = st.lists(st.one_of(st.integers(1, 60), _RUNS), max_size=25)


@settings(max_examples=200, deadline=None)
@given(_STEPS)
def test_the_fold_agrees_with_a_naive_model(steps: list[int | list[Run]]) -> None:
    fold = folded(declared(1, "a", 3), declared(2, "b", 3))
    rows: dict[TopicPartition, list[int]] = {}
    tick = 0
    expected: dict[TopicPartition, list[tuple[int, int, int]]] = {}
    for step in steps:
        if isinstance(step, int):
            tick = max(tick, step)
            fold.apply(fold.next_index, ticked(step))
            continue
        fold.apply(fold.next_index, named("f", step))
        for run in step:
            tp = (run.topic_id, run.partition)
            ingest = rows.setdefault(tp, [])
            floor = max([tick, *ingest])
            expected.setdefault(tp, []).append((len(ingest), run.rows, floor))
            # The naive model knows one time of a segment: its newest, which the last row has at the latest.
            # latest.
            ingest.extend([max(floor, run.accept_max_us)] * run.rows)
    for tp, segments in expected.items():
        assert [(s.base, s.rows, s.floor_us) for s in fold.segments(tp)] == segments
        assert fold.next_offset(tp) == len(rows[tp])
    assert fold.tick_us == tick
