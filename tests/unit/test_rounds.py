"""Which partitions a round archives, and up to which ingest time a table is complete."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archiver.config.settings import ArchiveSettings
from archiver.ledger.fold import LedgerFold
from archiver.ledger.views import TopicLedger
from archiver.refine.planner import Planned, RoundLimits, choose_plans, valid_through_us
from archiver.refine.prepare_topic import TopicWork
from archiver.runtime.errors import Corrupted, NotFound, RetryLater
from archiver.runtime.ids import TopicId, TopicPartition
from intake.log.backlog import Backlog, BacklogSummary, summed
from intake.log.fold import IntakeFold, TopicState
from intake.segments import Segments
from tests.support.intake.intake_entries import Run, declared, named, ticked, topic_id_of
from tests.support.intake.transaction_entries import TransactionEntries
from tests.support.intake.unread_history import UnreadHistory

S = 1_000_000
NOW = 1_000 * S
ONE, TWO = topic_id_of(1), topic_id_of(2)
EPOCH = 7
ALL = RoundLimits(memory_bytes=2**40, round_bytes_max=2**40, everything=True)
DUE = RoundLimits(memory_bytes=2**40, round_bytes_max=2**40)


class Logs:
    """Two topics, `one` with three partitions and `two` with two, and the state of both logs."""

    def __init__(self) -> None:
        self.intake = IntakeFold()
        self.backlog = Backlog(self.intake)
        self.ledger = LedgerFold()
        self.add(declared(1, "one", 3))
        self.add(declared(2, "two", 2))

    def add(self, data: bytes) -> None:
        self.intake.apply(self.intake.next_index, data)

    def file(self, *runs: Run) -> None:
        self.add(named(f"intake/{self.intake.next_index}", runs))

    def archived(self, topic_id: TopicId, **watermarks: int) -> None:
        offsets = {int(name[1:]): offset for name, offset in watermarks.items()}
        self.ledger.topics[topic_id] = TopicLedger(topic_id, watermarks=offsets)

    def works(self, **settings: Any) -> list[TopicWork]:
        return [work_of(state, **settings) for state in self.intake.topics_by_name.values()]

    def choose(
        self, limits: RoundLimits = ALL, skip: Sequence[TopicPartition] = (), **settings: Any
    ) -> Planned:
        return choose_plans(self.works(**settings), self.backlog, self.ledger, EPOCH, NOW, limits, set(skip))


def work_of(state: TopicState, **settings: Any) -> TopicWork:
    archive = ArchiveSettings.model_validate(
        {"max_bytes": 1000, "idle_max": 30, "complete_delay_max": 300, **settings}
    )
    nothing: Any = None
    return TopicWork(nothing, archive, state, nothing, "day", None)


def places(planned: Planned) -> list[tuple[str, int, int, int]]:
    return [(plan.topic, plan.partition, plan.base, plan.end) for plan in planned.plans]


# which partitions


def test_nothing_to_do() -> None:
    backlog = Logs()
    assert places(backlog.choose()) == []
    backlog.file(Run(ONE, 0, rows=5, accept_max_us=0))
    backlog.archived(ONE, p0=5)
    assert places(backlog.choose()) == []


def test_only_what_is_due_unless_everything_is_asked_for() -> None:
    backlog = Logs()
    backlog.file(
        Run(ONE, 0, rows=5, accept_max_us=NOW - 31 * S), Run(ONE, 1, rows=5, accept_max_us=NOW - 29 * S)
    )
    backlog.file(Run(TWO, 1, rows=2, raw_bytes=1000, accept_max_us=NOW))
    assert places(backlog.choose(DUE)) == [("one", 0, 0, 5), ("two", 1, 0, 2)]
    assert places(backlog.choose(ALL)) == [("one", 0, 0, 5), ("one", 1, 0, 5), ("two", 1, 0, 2)]
    assert places(backlog.choose(DUE, min_bytes=-1)) == []
    assert len(places(backlog.choose(ALL, min_bytes=-1))) == 3, "--all ignores the triggers"


def test_plans_go_on_where_the_archives_end_and_carry_the_epoch() -> None:
    backlog = Logs()
    backlog.file(Run(ONE, 2, rows=10, raw_bytes=600))
    backlog.file(Run(ONE, 2, rows=10, raw_bytes=600))
    backlog.archived(ONE, p2=4)
    planned = backlog.choose(max_bytes=100)
    assert places(planned) == [("one", 2, 4, 10), ("one", 2, 10, 20)]
    assert {plan.epoch for plan in planned.plans} == {EPOCH}
    assert planned.raw_bytes == sum(plan.raw_bytes for plan in planned.plans) == 360 + 600


def test_scope_and_skipped_partitions() -> None:
    backlog = Logs()
    backlog.file(*(Run(ONE, number) for number in range(3)), *(Run(TWO, number) for number in range(2)))
    some = RoundLimits(
        memory_bytes=2**40, round_bytes_max=2**40, everything=True, partitions=frozenset({1, 2})
    )
    assert [(topic, partition) for topic, partition, _, _ in places(backlog.choose(some))] == [
        ("one", 1),
        ("one", 2),
        ("two", 1),
    ]
    skipped = backlog.choose(ALL, [(ONE, 0), (TWO, 1)])
    assert [(topic, partition) for topic, partition, _, _ in places(skipped)] == [
        ("one", 1),
        ("one", 2),
        ("two", 0),
    ]
    assert not skipped.halted


def test_who_waits_longest_goes_first_and_its_topic_with_it() -> None:
    backlog = Logs()
    backlog.file(Run(ONE, 0, accept_max_us=30), Run(ONE, 1, accept_max_us=20), Run(ONE, 2, accept_max_us=50))
    backlog.file(Run(TWO, 0, accept_max_us=40), Run(TWO, 1, accept_max_us=10))
    order = [("two", 1), ("two", 0), ("one", 1), ("one", 0), ("one", 2)]
    assert [(topic, partition) for topic, partition, _, _ in places(backlog.choose())] == order
    one_each = backlog.choose(concurrent_max=1)
    assert [(topic, partition) for topic, partition, _, _ in places(one_each)] == [("two", 1), ("one", 1)], (
        "the limit is per topic"
    )
    two_each = backlog.choose(concurrent_max=2)
    assert [(topic, partition) for topic, partition, _, _ in places(two_each)] == order[:4]
    little = RoundLimits(memory_bytes=1, round_bytes_max=2**40, everything=True)
    assert len(backlog.choose(little).plans) == 2, (
        "at least one partition of each topic, however small the machine"
    )


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from([(ONE, 0), (ONE, 1), (ONE, 2), (TWO, 0), (TWO, 1)]), min_size=1, max_size=30),
    st.integers(1, 900),
)
def test_the_oldest_of_all_is_in_every_round(runs: list[TopicPartition], bytes_max: int) -> None:
    backlog = Logs()
    for accept_us, (topic_id, partition) in enumerate(runs, 1):
        backlog.file(Run(topic_id, partition, raw_bytes=100, accept_max_us=accept_us))
    reached: Counter[TopicPartition] = Counter()
    limits = RoundLimits(memory_bytes=2**40, round_bytes_max=bytes_max, everything=True)
    names = {"one": ONE, "two": TWO}
    while planned := places(backlog.choose(limits, max_bytes=100)):
        waiting = {
            tp: backlog.backlog.summary(tp, reached[tp]).first_accept_us
            for tp in runs
            if backlog.backlog.stable_offset(tp) > reached[tp]
        }
        topic, partition, _, _ = planned[0]
        assert waiting[names[topic], partition] == min(waiting.values())
        topics = [plan[0] for plan in planned]
        assert topics == sorted(topics, key=topics.index), "the plans of a topic stand together"
        for topic, partition, _, end in planned:
            reached[names[topic], partition] = end
        for topic_id in (ONE, TWO):
            backlog.archived(
                topic_id, **{f"p{number}": end for (of, number), end in reached.items() if of == topic_id}
            )


def test_a_topic_with_gaps_is_no_older_for_them() -> None:
    logs = Logs()
    logs.file(Run(ONE, 0, raw_bytes=100, accept_max_us=20))
    logs.file(Run(TWO, 0, raw_bytes=100, accept_max_us=30))
    aborting = TransactionEntries(logs.intake, "aborting")
    aborting.send(Run(TWO, 1, rows=4, accept_max_us=10))
    aborting.end(commit=False)
    limits = RoundLimits(memory_bytes=2**40, round_bytes_max=100, everything=True)
    assert places(logs.choose(limits)) == [("one", 0, 0, 1), ("two", 1, 0, 4)]


def test_the_age_that_counts_is_that_of_what_is_not_archived() -> None:
    backlog = Logs()
    backlog.file(Run(ONE, 0, rows=3, accept_max_us=10), Run(ONE, 1, rows=3, accept_max_us=20))
    backlog.file(Run(ONE, 0, rows=3, accept_max_us=90))
    backlog.archived(ONE, p0=3)
    assert places(backlog.choose(concurrent_max=1)) == [("one", 1, 0, 3)]


def test_a_round_ends_at_its_bytes() -> None:
    backlog = Logs()
    for _ in range(4):
        backlog.file(Run(ONE, 0, rows=2, raw_bytes=100), Run(TWO, 0, rows=2, raw_bytes=100))

    def rounds(bytes_max: int) -> list[tuple[str, int, int, int]]:
        limits = RoundLimits(memory_bytes=2**40, round_bytes_max=bytes_max, everything=True)
        return places(backlog.choose(limits, max_bytes=100))

    assert rounds(1) == [("one", 0, 0, 2)], "one plan is always taken"
    assert rounds(100) == [("one", 0, 0, 2)]
    assert rounds(101) == [("one", 0, 0, 2), ("one", 0, 2, 4)]
    assert rounds(450) == [("one", 0, number, number + 2) for number in (0, 2, 4, 6)] + [("two", 0, 0, 2)]
    assert len(rounds(800)) == 8


def test_a_ledger_ahead_of_the_log_halts_its_topic_alone() -> None:
    backlog = Logs()
    backlog.file(Run(ONE, 0, rows=5), Run(ONE, 1, rows=5), Run(TWO, 0, rows=5))
    backlog.archived(ONE, p1=6)
    planned = backlog.choose()
    assert places(planned) == [("two", 0, 0, 5)]
    (halted,) = planned.halted
    assert halted.topic == "one"
    assert "partition 1 is archived up to offset 6, but the intake log ends at 5" in halted.why


class Holey(Backlog):
    """A log whose first segment of partition 1 of topic `one` cannot be found."""

    def segments(self, tp: TopicPartition, start: int = 0, bytes_max: int | None = None) -> Segments:
        found = super().segments(tp, start, bytes_max)
        return found if tp != (ONE, 1) else found.where(found.bases > 0)


@pytest.mark.parametrize("ages", [(10, 20), (20, 10)])
def test_missing_intake_halts_the_whole_topic_and_no_other(ages: tuple[int, int]) -> None:
    backlog = Logs()
    backlog.backlog = Holey(backlog.intake)
    backlog.file(
        Run(ONE, 0, rows=5, accept_max_us=ages[0]),
        Run(ONE, 1, rows=5, accept_max_us=ages[1]),
        Run(TWO, 0, rows=5),
    )
    backlog.file(Run(ONE, 1, rows=5, accept_max_us=99))
    planned = backlog.choose()
    assert places(planned) == [("two", 0, 0, 5)], "what was planned of the topic before is dropped"
    (halted,) = planned.halted
    assert halted.topic == "one"
    assert "offsets 0 to 4" in halted.why


# gaps


def test_gaps_alone_go_along_with_their_topic_or_once_in_a_delay() -> None:
    logs = Logs()
    aborting = TransactionEntries(logs.intake, "aborting")
    aborting.send(Run(ONE, 0, rows=4), Run(TWO, 1, rows=3))
    aborting.end(commit=False)
    for topic in (ONE, TWO):
        logs.archived(topic)
        logs.ledger.topics[topic].written_us = NOW - 299 * S
    assert places(logs.choose(DUE)) == []
    logs.file(Run(TWO, 0, rows=2))
    assert places(logs.choose(DUE, idle_max=0)) == [("two", 1, 0, 3), ("two", 0, 0, 2)]
    logs.ledger.topics[ONE].written_us = NOW - 300 * S
    (alone,) = [plan for plan in logs.choose(DUE).plans if plan.topic == "one"]
    assert (alone.gap_only, alone.base, alone.end, alone.gaps, alone.rows) == (True, 0, 4, ((0, 4),), 0)
    assert [place[0] for place in places(logs.choose(DUE, min_bytes=-1))] == [], "never means never"
    everything = places(
        logs.choose(RoundLimits(memory_bytes=1, round_bytes_max=1, everything=True), min_bytes=-1)
    )
    assert everything == [("one", 0, 0, 4), ("two", 1, 0, 3), ("two", 0, 0, 2)], "gaps are under no limit"


def test_gaps_before_an_open_transaction_are_passed() -> None:
    logs = Logs()
    aborting = TransactionEntries(logs.intake, "aborting")
    aborting.send(Run(ONE, 0, rows=4))
    aborting.end(commit=False)
    aborting.send(Run(ONE, 0, rows=5))
    assert places(logs.choose()) == [("one", 0, 0, 4)]


def test_a_hole_next_to_a_gap_halts_the_topic() -> None:
    logs = Logs()
    logs.backlog = Holey(logs.intake)
    logs.file(Run(ONE, 1, rows=5))
    aborting = TransactionEntries(logs.intake, "aborting")
    aborting.send(Run(ONE, 1, rows=4))
    aborting.end(commit=False)
    (halted,) = logs.choose().halted
    assert "offsets 0 to 4" in halted.why


def test_aborted_records_hold_no_time_back_and_open_ones_do() -> None:
    logs = Logs()
    logs.add(ticked(10))
    aborting = TransactionEntries(logs.intake, "aborting")
    aborting.send(Run(ONE, 0, rows=4, accept_max_us=15))
    logs.add(ticked(20))
    work = work_of(logs.intake.topics_by_id[ONE])
    assert valid_through_us(work, logs.backlog, {}, 20) == 10
    aborting.end(commit=False)
    assert valid_through_us(work, logs.backlog, {}, 20) == 20


# long backlogs


class Counting(Backlog):
    """Counts the segments it returns, and refuses to return all of them."""

    def __init__(self, fold: IntakeFold) -> None:
        super().__init__(fold)
        self.segments_of: Counter[TopicPartition] = Counter()
        self.most = 0

    def segments(self, tp: TopicPartition, start: int = 0, bytes_max: int | None = None) -> Segments:
        assert bytes_max is not None, "an unbounded read"
        found = super().segments(tp, start, bytes_max)
        self.segments_of[tp] += len(found)
        self.most = max(self.most, len(found))
        return found


def long_backlog(segments: int, rows: int = 3) -> tuple[Logs, Counting]:
    logs = Logs()
    for number in range(segments):
        logs.file(
            *(Run(ONE, partition, rows, 10, accept_max_us=1 + number) for partition in range(3)),
            Run(TWO, 0, rows, 10),
        )
    logs.backlog = counting = Counting(logs.intake)
    return logs, counting


def test_a_partition_that_is_not_due_costs_no_segment() -> None:
    logs, counting = long_backlog(200)
    assert places(logs.choose(DUE, max_bytes=10**6, idle_max=10**5, complete_delay_max=10**5)) == []
    assert not counting.segments_of, "the summary is enough"


def test_finding_when_a_partition_was_opened_reads_to_min_bytes() -> None:
    logs, counting = long_backlog(200)
    logs.choose(DUE, min_bytes=50, max_bytes=10**6, idle_max=10**5, complete_delay_max=10**5)
    assert set(counting.segments_of.values()) == {6}, "five to reach them, and where the next one begins"
    due_at = NOW - 5  # the fifth segment is of time 5
    assert not logs.choose(
        DUE, min_bytes=50, max_bytes=10**6, idle_max=10**5, complete_delay_max=(due_at + 1) / S
    ).plans
    assert logs.choose(
        DUE, min_bytes=50, max_bytes=10**6, idle_max=10**5, complete_delay_max=due_at / S
    ).plans


@pytest.mark.parametrize(("bytes_max", "archive_bytes"), [(200, 50), (50, 200), (1, 1), (500, 100)])
def test_segments_are_looked_up_for_as_much_as_a_round_takes(bytes_max: int, archive_bytes: int) -> None:
    logs, counting = long_backlog(500)
    limits = RoundLimits(memory_bytes=2**40, round_bytes_max=bytes_max, everything=True)
    planned = logs.choose(limits, max_bytes=archive_bytes)
    assert planned.plans
    (tp,) = counting.segments_of
    assert tp in {(ONE, 0), (TWO, 0)}, "the oldest"
    assert counting.segments_of[tp] <= 2 * (bytes_max + archive_bytes) // 10 + 3
    whole = plans_of(logs, archive_bytes)
    assert (
        places(planned)
        == [place for place in whole if place[:2] == planned_place(planned)][: len(planned.plans)]
    ), "cut as ever"
    assert sum(plan.raw_bytes for plan in planned.plans[:-1]) < bytes_max


def planned_place(planned: Planned) -> tuple[str, int]:
    return planned.plans[0].topic, planned.plans[0].partition


def plans_of(logs: Logs, archive_bytes: int) -> list[tuple[str, int, int, int]]:
    logs.backlog = Backlog(logs.intake)
    return places(logs.choose(ALL, max_bytes=archive_bytes))


@pytest.mark.parametrize("rows", [1, 7])
def test_a_round_of_tiny_segments_ends_at_their_number(rows: int) -> None:
    logs, counting = long_backlog(500, rows)
    limits = RoundLimits(memory_bytes=2**40, round_bytes_max=2**40, everything=True, segments_max=120)
    planned = logs.choose(limits, max_bytes=1000)
    assert 120 <= planned.segments <= 130
    assert counting.most <= 130
    assert sum(counting.segments_of.values()) <= 3 * 130
    done: dict[tuple[str, int], int] = {}
    for _ in range(40):
        planned = logs.choose(limits, max_bytes=1000)
        for topic, partition, base, end in places(planned):
            assert base == done.get((topic, partition), 0)
            done[topic, partition] = end
        for topic_id, name in ((ONE, "one"), (TWO, "two")):
            logs.archived(
                topic_id,
                **{f"p{partition}": end for (topic, partition), end in done.items() if topic == name},
            )
    assert done == {
        ("one", 0): 500 * rows,
        ("one", 1): 500 * rows,
        ("one", 2): 500 * rows,
        ("two", 0): 500 * rows,
    }


# how far a table is complete


@dataclass
class Model:
    """The same history by record: the ingest time of each one, computed without segments."""

    fold: IntakeFold = field(default_factory=IntakeFold)
    ingest: dict[int, list[int]] = field(default_factory=dict)
    tick: int = 0

    def __post_init__(self) -> None:
        self.fold.apply(0, declared(1, "one", 2))
        self.ingest = {0: [], 1: []}

    def send(self, runs: Sequence[tuple[int, Sequence[int]]]) -> None:
        entry = [
            Run(ONE, partition, rows=len(accepted), accept_max_us=max(accepted))
            for partition, accepted in runs
        ]
        self.fold.apply(self.fold.next_index, named(f"intake/{self.fold.next_index}", entry))
        for partition, accepted in runs:
            for accept_us in accepted:
                before = self.ingest[partition][-1] if self.ingest[partition] else 0
                self.ingest[partition].append(max(before, self.tick, accept_us))

    def ticked(self, time_us: int) -> None:
        self.fold.apply(self.fold.next_index, ticked(time_us))
        self.tick = max(self.tick, time_us)

    def through_us(self, watermarks: Mapping[int, int], tick_us: int) -> int:
        return valid_through_us(
            work_of(self.fold.topics_by_id[ONE]), Backlog(self.fold), dict(watermarks), tick_us
        )


TIMES = st.integers(1, 60)
RUNS = st.lists(
    st.tuples(st.integers(0, 1), st.lists(TIMES, min_size=1, max_size=4)),
    min_size=1,
    max_size=3,
    unique_by=lambda run: run[0],
)
HISTORIES = st.lists(st.one_of(RUNS, TIMES), max_size=12)


@given(before=HISTORIES, tick=TIMES, after=HISTORIES, data=st.data())
def test_no_record_before_valid_through_is_outside_of_the_table(
    before: list[Any], tick: int, after: list[Any], data: st.DataObject
) -> None:
    model = Model()
    for step in [*before, tick]:
        model.ticked(step) if isinstance(step, int) else model.send(step)
    tick_us = model.fold.tick_us
    known = {partition: len(times) for partition, times in model.ingest.items()}
    watermarks = {
        partition: data.draw(st.integers(0, count), label=f"watermark {partition}")
        for partition, count in known.items()
    }
    for step in after:
        model.ticked(step) if isinstance(step, int) else model.send(step)
    through_us = model.through_us(watermarks, tick_us)
    assert through_us <= tick_us
    for partition, times in model.ingest.items():
        outside = times[watermarks[partition] :]
        assert all(ingest_us >= through_us for ingest_us in outside), (
            partition,
            watermarks,
            times,
            through_us,
        )
    assert model.through_us({}, tick_us) <= through_us, "a missing watermark is 0"
    if watermarks == known:
        assert through_us == tick_us, "a table that holds everything before the tick may say so"


def test_a_backlog_holds_the_time_back_only_as_far_as_it_is_old() -> None:
    model = Model()
    model.send([(0, [5, 9])])
    model.ticked(20)
    model.send([(0, [25]), (1, [30])])
    model.ticked(40)
    assert model.through_us({0: 3, 1: 1}, 40) == 40
    assert model.through_us({0: 2, 1: 1}, 40) == 20
    assert model.through_us({0: 0, 1: 1}, 40) == 0


# history files that cannot be read


class FootersOnly(UnreadHistory):
    """The sums of the index can be read; the rows are damaged."""

    def summary(self, tp: TopicPartition, start: int, end: int) -> BacklogSummary:
        return summed(Segments.of(self.kept[tp]), start)


@pytest.mark.parametrize("error", [Corrupted("shelf is damaged"), NotFound("no such shelf")])
@pytest.mark.parametrize("kind", [UnreadHistory, FootersOnly])
@pytest.mark.parametrize("limits", [ALL, DUE])
def test_a_shelf_that_cannot_be_read_halts_only_its_topic(
    kind: type[UnreadHistory], error: Corrupted, limits: RoundLimits
) -> None:
    logs = Logs()
    logs.file(
        *(Run(ONE, number, accept_max_us=0) for number in range(3)),
        Run(TWO, 0, accept_max_us=5),
        Run(TWO, 1, accept_max_us=5),
    )
    logs.backlog = kind({(ONE, 1): error}).release_history(logs.intake)
    planned = logs.choose(limits)
    assert places(planned) == [("two", 0, 0, 1), ("two", 1, 0, 1)], (
        "also not the partitions of the topic that came before it"
    )
    assert [(halted.topic, halted.why) for halted in planned.halted] == [("one", str(error))]
    logs.archived(ONE, p1=1)
    planned = logs.choose(limits)
    assert not planned.halted, "archived offsets are not read"
    assert len(planned.plans) == 4


def test_a_store_that_cannot_be_reached_is_no_halt() -> None:
    logs = Logs()
    logs.file(Run(ONE, 0), Run(TWO, 0))
    logs.backlog = UnreadHistory({(ONE, 0): RetryLater("no answer")}).release_history(logs.intake)
    with pytest.raises(RetryLater, match="no answer"):
        logs.choose()
