"""Rule D3: the offset below which no rollback needs intake, against a table whose every snapshot is known."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from archiver.catalog.evidence import Known
from archiver.catalog.tables import SnapshotView, TableView
from archiver.ledger.views import TopicLedger, WatermarkHistory
from archiver.runtime.ids import TopicId
from reconcile.snapshot.retention_floor import oldest_sequence, retained_line

PARTITIONS = 3


@dataclass
class Table:
    """A table and its ledger, after any order of commits, expiry and rollbacks."""

    offsets_max: int = 1 << 20
    sequence: int = 0
    current: int | None = None
    retained: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Sequence number (it serves as the id) → the watermarks of the snapshot."""
    ledger: TopicLedger = field(init=False)

    def __post_init__(self) -> None:
        self.ledger = TopicLedger(TopicId("ab" * 16))
        self.ledger.past = WatermarkHistory(self.offsets_max)

    @property
    def watermarks(self) -> tuple[int, ...]:
        return (0,) * PARTITIONS if self.current is None else self.retained[self.current]

    def commit(self, moved: dict[int, int], reported: bool = True) -> None:
        """Commit so many more offsets per partition. With `told`, COMMIT_TO_TABLE follows."""
        marks = tuple(mark + moved.get(partition, 0) for partition, mark in enumerate(self.watermarks))
        self.snapshot(marks)
        if reported:
            self.tell()

    def snapshot(self, marks: tuple[int, ...]) -> None:
        self.sequence += 1
        self.current = self.sequence
        self.retained[self.sequence] = marks

    def foreign(self) -> None:
        """Another writer compacts: the watermarks stay."""
        self.snapshot(self.watermarks)

    def expire(self, which: set[int]) -> None:
        for sequence in which - {self.current}:
            self.retained.pop(sequence, None)

    def roll_back(self, to: int) -> None:
        """Another writer rolls back, and an operator records the lower watermark (rule T4)."""
        self.current = to
        self.tell()

    def tell(self, complete: bool = True) -> None:
        """Apply COMMIT_TO_TABLE as the fold does. Without `complete`, its last entry is missing."""
        for partition, mark in enumerate(self.watermarks):
            self.ledger.past.moves(partition, self.ledger.watermark(partition), mark)
            self.ledger.watermarks[partition] = mark
        if complete:
            self.ledger.past.moved(self.sequence)

    def view(self) -> TableView:
        snapshots = tuple(
            SnapshotView(number, None, number, 0, "append", {}) for number in sorted(self.retained)
        )
        return TableView(
            identifier=("n", "t"),
            uuid=uuid.UUID(int=1),
            location="file:///t",
            metadata_location="file:///t/m",
            schema_json="{}",
            schema_id=0,
            format_version=2,
            spec_id=0,
            granularity="day",
            snapshot_id=self.current,
            sequence_number=self.sequence,
            properties={},
            snapshots=snapshots,
        )

    def line(self) -> tuple[int, ...]:
        return retained_line(self.view(), Known(self.watermarks, None), self.ledger)

    def needed(self) -> tuple[int, ...]:
        """The naive model: the lowest watermark of all retained snapshots."""
        return tuple(
            min((marks[partition] for marks in self.retained.values()), default=0)
            for partition in range(PARTITIONS)
        )


moves = st.dictionaries(st.integers(0, PARTITIONS - 1), st.integers(0, 5))
recorded = (
    st.tuples(st.just("commit"), moves),
    st.tuples(st.just("foreign"), st.none()),
    st.tuples(st.just("expire"), st.sets(st.integers(1, 30))),
    st.tuples(st.just("expire all"), st.none()),
)
steps = st.one_of(
    *recorded,
    st.tuples(st.just("unreported"), moves),
    st.tuples(st.just("half reported"), moves),
    st.tuples(st.just("roll back"), st.integers(0, 100)),
)


def play(table: Table, step: tuple[str, object]) -> None:
    name, what = step
    if name == "commit":
        table.commit(what)  # type: ignore[arg-type]
    elif name == "unreported":
        table.commit(what, reported=False)  # type: ignore[arg-type]
    elif name == "half reported":
        table.commit(what, reported=False)  # type: ignore[arg-type]
        table.tell(complete=False)
    elif name == "foreign":
        table.foreign()
    elif name == "expire":
        table.expire(what)  # type: ignore[arg-type]
    elif name == "expire all":
        table.expire(set(table.retained))
    elif table.retained and isinstance(what, int):
        table.roll_back(sorted(table.retained)[what % len(table.retained)])


@given(st.lists(steps, max_size=30), st.sampled_from([1, 4, 1 << 20]))
def test_d3_the_line_is_never_above_what_a_rollback_needs(
    history: list[tuple[str, object]], offsets_max: int
) -> None:
    table = Table(offsets_max)
    before, exact = table.line(), True
    for step in history:
        play(table, step)
        line = table.line()
        assert all(here <= needed for here, needed in zip(line, table.needed(), strict=True)), (
            step,
            line,
            table.retained,
        )
        exact = exact and oldest_sequence(table.view()) >= table.ledger.past.exact_since
        if exact:
            assert all(was <= here for was, here in zip(before, line, strict=True)), "a line was taken back"
        before = line


@given(st.lists(st.one_of(*recorded), max_size=30))
def test_d3_the_line_is_exact_while_the_ledger_records_everything(history: list[tuple[str, object]]) -> None:
    table = Table()
    for step in history:
        play(table, step)
        assert table.line() == table.needed()


def test_d3_the_line_rises_when_the_old_snapshot_expires() -> None:
    table = Table()
    table.commit({0: 10})
    table.commit({0: 5, 1: 7})
    assert table.line() == (10, 0, 0)
    table.expire({1})
    assert table.line() == (15, 7, 0)


def test_d3_a_snapshot_outside_of_the_lineage_counts() -> None:
    table = Table()
    table.commit({0: 10})
    table.commit({0: 5})
    table.roll_back(1)
    table.commit({0: 20})
    assert table.line() == (10, 0, 0)
    table.expire({1})
    assert table.line()[0] <= 15, "the abandoned snapshot ends at 15, and a rollback to it is possible"


def test_a_long_past_is_bounded_and_says_that_it_is_not_exact() -> None:
    past = WatermarkHistory(offsets_max=10)
    for sequence in range(1, 101):
        past.moves(0, sequence - 1, sequence)
        past.moved(sequence)
    assert past._offsets <= 10
    assert len(past._moves) <= 10
    assert past.exact_since == 91
    assert past.lowest(0, 100, 95) == 95
    assert past.lowest(0, 100, 91) == 91
    assert past.lowest(0, 100, 50) == 0, "merged: too low, never too high"


def test_a_commit_that_was_recorded_halfway_counts_as_the_newest() -> None:
    past = WatermarkHistory()
    past.moves(0, 3, 8)
    assert past.lowest(0, 8, 99) == 3
    past.moved(7)
    assert (past.lowest(0, 8, 6), past.lowest(0, 8, 7)) == (3, 8)
