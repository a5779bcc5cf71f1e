"""The history of lags is bounded, keeps the worst value of each step, and ignores steps of the wall clock."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from archiver.runtime.ids import TopicId
from archiver.status.history import STEPS, LagHistory, LagSample
from archiver.status.lag import LagReport, PartitionLag, StageLag, TopicLag
from archiver.status.rates import Accepted

SPAN_S = 480.0
"""With this span a step is one second."""


def topic(name: str, seconds: float | None, records: int | None = 1) -> TopicLag:
    lag = StageLag(0, records, seconds)
    partition = PartitionLag(
        name, 0, 0, 10, {"stable": StageLag(10, 0, 0.0), "committed": lag}, None, None, None
    )
    return TopicLag(name, TopicId("0" * 32), "iceberg", (partition,), None, None, 0, None)


def look(seconds: float | None, records: int | None = 1, *names: str, now_us: int = 0) -> LagReport:
    return LagReport(now_us, tuple(topic(name, seconds, records) for name in names or ("a",)), ())


def known(samples: list[LagSample]) -> list[float | None]:
    return [sample.seconds for sample in samples]


def test_of_each_step_the_worst_is_kept() -> None:
    history = LagHistory(SPAN_S, 10)
    assert (history.samples("a"), history.topics(), history.known_s) == ([], [], 0.0)
    history.add(look(5, 50), 1000.0)
    history.add(look(2, 70), 1000.9)
    history.add(look(1, 10), 1001.0)
    assert known(history.samples("a")) == [5, 1]
    assert [sample.records for sample in history.samples("a")] == [70, 10]
    assert history.known_s == 1.0


def test_the_last_stage_counts_and_the_worst_partition() -> None:
    history = LagHistory(SPAN_S, 10)
    only = topic("a", 3, 4)
    two = replace(only, partitions=(*only.partitions, *topic("a", 9, 6).partitions))
    history.add(LagReport(0, (two,), ()), 0.0)
    assert [(sample.seconds, sample.records) for sample in history.samples("a")] == [(9, 10)]
    stays = replace(only.partitions[0], stages={"stable": StageLag(7, 3, 2.5)})
    history.add(LagReport(0, (replace(only, partitions=(stays,)),), ()), 5.0)
    assert known(history.samples("a"))[-1] == 2.5


def test_what_is_unknown_and_what_was_not_inspected_is_a_hole() -> None:
    history = LagHistory(SPAN_S, 10)
    history.add(look(1, None), 0.0)
    history.add(look(None, 3), 1.0)
    history.add(look(4, 5), 4.0)
    assert [(sample.seconds, sample.records) for sample in history.samples("a")] == [
        (1, None),
        (None, 3),
        (None, None),
        (None, None),
        (4, 5),
    ]
    assert [sample.age_s for sample in history.samples("a")] == [3.5, 2.5, 1.5, 0.5, 0.0]


def test_a_topic_that_is_gone_falls_out_and_makes_room() -> None:
    history = LagHistory(SPAN_S, 2)
    history.add(look(1, 1, "a", "b", "c"), 0.0)
    assert history.topics() == ["a", "b"]
    history.add(look(1, 1, "b", "c"), STEPS - 1)
    assert history.topics() == ["a", "b"]
    assert known(history.samples("a"))[0] == 1
    history.add(look(1, 1, "b", "c"), STEPS)
    assert history.topics() == ["b", "c"]
    assert known(history.samples("c"))[-1] == 1
    assert known(history.samples("c"))[:-1] == [None] * (STEPS - 1)


def test_after_a_long_pause_nothing_old_is_left() -> None:
    history = LagHistory(SPAN_S, 10)
    for second in range(600):
        history.add(look(second), float(second))
    assert len(history.samples("a")) == STEPS
    assert known(history.samples("a")) == list(range(120, 600))
    history.add(look(7), 10_000.0)
    assert [value for value in known(history.samples("a")) if value is not None] == [7]
    assert history.known_s == SPAN_S


@given(
    st.lists(
        st.tuples(
            st.floats(0, 200), st.one_of(st.none(), st.integers(0, 1000)), st.integers(-(10**15), 10**15)
        ),
        max_size=60,
    )
)
def test_against_a_naive_model_with_a_wall_clock_that_steps(
    steps: list[tuple[float, int | None, int]],
) -> None:
    history, at_s, seen = LagHistory(SPAN_S, 5), 50.0, dict[int, list[int | None]]()
    for passed_s, seconds, wall_us in steps:
        at_s += passed_s
        history.add(look(seconds, now_us=wall_us), at_s)
        seen.setdefault(int(at_s), []).append(seconds)
        newest = int(at_s)
        expected: list[float | None] = []
        for second in range(max(min(seen), newest - STEPS + 1), newest + 1):
            values = [value for value in seen.get(second, []) if value is not None]
            expected.append(max(values) if values else None)
        assert known(history.samples("a")) == expected
        ages = [sample.age_s for sample in history.samples("a")]
        assert ages == sorted(ages, reverse=True)
        assert all(0 <= age_s <= SPAN_S for age_s in ages)


def test_memory_stays_what_it_is() -> None:
    history, chance = LagHistory(SPAN_S, 3), random.Random(1)
    for call in range(20_000):
        names = [f"topic-{chance.randrange(50)}" for _ in range(3)]
        history.add(look(1, 1, *names), call / 10)
        assert len(history.topics()) <= 3
    assert all(len(history.samples(name)) <= STEPS for name in history.topics())


@given(
    st.lists(
        st.tuples(st.integers(0, 700), st.none() | st.integers(0, 9), st.sampled_from("ab")), max_size=12
    )
)
def test_the_newest_traffic_is_that_of_the_samples(added: list[tuple[int, int | None, str]]) -> None:
    history, now_s = LagHistory(SPAN_S, 2), 0.0
    for pause_s, records, name in added:
        now_s += pause_s
        accepted = {} if records is None else {name: Accepted(records=records, bytes=1, seconds=2.0)}
        history.add(look(1, 1, name), now_s, accepted)
        for one in "ab":
            samples = history.samples(one)
            known_ones = [sample for sample in samples if sample.records_per_s is not None]
            assert history.newest_traffic(one) == (known_ones[-1] if known_ones else None)
    assert history.newest_traffic("other") is None
