"""The publishing rig itself: each predicate finds what it is for, the catalog gives false answers as it
should, and broken code is noticed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from uuid import UUID

import pytest

from archiver.catalog import commit
from archiver.catalog.evidence import Evidence
from archiver.catalog.table_layout import COMMIT_ID, WATERMARKS
from archiver.catalog.tables import SwapOutcome
from archiver.runtime.clock import ManualClock
from archiver.runtime.ids import SeededIds
from tests.simulation.__main__ import main
from tests.simulation.faults import Profile
from tests.simulation.publish import predicates
from tests.simulation.publish.catalog_twin import SimulatedTables, WatchedTables
from tests.simulation.publish.foreign_book import ForeignBook, told_once
from tests.simulation.publish.predicates import SnapshotSeen
from tests.simulation.publish.publish_ground import Ground
from tests.simulation.schedule import Process, Schedule, Trace
from tests.support.catalog.tables import IDENTIFIER, schema_json
from tests.support.intake.intake_entries import declared

DATA = ((0, 1, 3), (0, 1))
"""Offset 2 of the first partition is a gap."""
GOOD = SnapshotSeen(1, True, ("a", "b"), ("b",), ((0, 1, 3), (0,)))


def doubled(held: tuple[tuple[int, ...], ...]) -> SnapshotSeen:
    return replace(GOOD, held=held)


@pytest.mark.parametrize(
    ("predicate", "wrong"),
    [
        (predicates.no_offset_twice, doubled(((0, 1, 1), ()))),
        (predicates.no_path_twice, replace(GOOD, paths=("a", "a"))),
        (
            lambda seen: predicates.no_path_again(seen, {"x", *(["b"] if seen is not GOOD else [])}),
            replace(GOOD),
        ),
        (lambda seen: predicates.no_hole(seen, DATA), doubled(((0, 3), ()))),
        (lambda seen: predicates.no_hole(seen, DATA), doubled(((0, 1, 2, 3), ()))),
        (lambda seen: predicates.evidence_is_rows(seen, (4, 1), DATA), doubled(((0, 1), (0,)))),
        (lambda seen: predicates.evidence_is_rows(seen, (4, 1), DATA), doubled(((0, 1, 3), (0, 1)))),
        (
            lambda seen: predicates.ledger_within_table(lambda at: (4, 1)[at], seen, DATA),
            doubled(((0, 1, 3), ())),
        ),
        (
            lambda seen: predicates.referenced_exist(seen, lambda path: path != "c"),
            replace(GOOD, paths=("a", "c")),
        ),
        (lambda seen: predicates.vacuumed_is_in_table([seen], 0, [1]), doubled(((0,), ()))),
    ],
)
def test_a_predicate_finds_what_it_is_for(
    predicate: Callable[[SnapshotSeen], str | None], wrong: SnapshotSeen
) -> None:
    assert predicate(GOOD) is None
    assert predicate(wrong) is not None


def test_removed_rows_count_as_held() -> None:
    removed = replace(GOOD, held=((0, 3), (0,)), removed=frozenset({(0, 1)}))
    assert predicates.no_hole(removed, DATA) is None
    assert predicates.evidence_is_rows(removed, (4, 1), DATA) is None
    assert predicates.complete_once(replace(removed, held=((0, 3), (0, 1))), DATA) is None
    assert predicates.complete_once(removed, DATA) is not None
    assert predicates.complete_once(None, DATA) is not None


def test_what_is_vacuumed_needs_a_table() -> None:
    assert predicates.vacuumed_is_in_table([], 0, [1]) is not None


def test_streams_find_what_is_held_and_not_retired() -> None:
    held = {0, 2}.__contains__
    assert predicates.streams_find((0, 2), 0, held) is None
    assert predicates.streams_find((0, 1, 2), 2, held) is None
    assert predicates.streams_find((0, 1, 2), 1, held) is not None


def test_what_strangers_changed_is_told_once_and_by_nobody_else() -> None:
    book = ForeignBook()
    for number, rows, changes in ((1, 5, False), (2, 3, True), (3, 3, False), (4, 7, True), (5, 9, False)):
        book.saw(number, number - 1 or None, rows, changes=changes)
    book.saw(6, 1, 0, changes=True)
    assert book.expired(5, {1, 2, 3, 4, 5, 6}) == {}
    assert book.expired(5, {3, 5, 6}) == {2: -2, 4: 4}
    book.forgot([4])
    gone = book.expired(5, {3, 5})
    assert gone == {2: -2}, "what a stranger expired is lost, and 6 is no ancestor"

    assert book.descends(5, 5)
    assert book.descends(5, 4), "also of one that is expired"
    assert not book.descends(6, 5)
    assert not book.descends(None, 1)

    def told(*changes: tuple[int, int]) -> str:
        return json.dumps({"v": 1, "changes": [{"rows": rows, "added": added} for rows, added in changes]})

    assert told_once(gone, told((2, 0)), retired=False) is None
    assert told_once({2: -2, 4: 4, 7: -1}, told((2, 4), (1, 0)), retired=False) is None
    assert told_once({}, None, retired=False) is None
    for wrong in (None, told(), told((2, 0), (2, 0)), told((1, 0)), told((2, 4))):
        assert told_once(gone, wrong, retired=False) is not None
    assert told_once(gone, None, retired=True) is None
    assert told_once(gone, told((3, 0)), retired=True) is not None


def committed(ground: Ground) -> int:
    """An empty commit of ours, with its evidence; the id of its snapshot."""
    view = ground.tables.load(IDENTIFIER)
    assert view is not None
    commit_id = UUID(int=view.sequence_number + 1)

    def properties(snapshot_id: int, sequence_number: int) -> dict[str, str]:
        return {WATERMARKS: Evidence(snapshot_id, sequence_number, 1, commit_id, (0,)).to_json()}

    prepared = ground.tables.prepare(view, [], properties, {COMMIT_ID: str(commit_id)}, False, ())
    assert ground.tables.swap(prepared).outcome is SwapOutcome.APPLIED
    return prepared.snapshot_id


def test_a_report_of_a_repair_is_no_repair_of_a_later_rollback() -> None:
    """Seed 179776 found it: the repair's snapshot has no files, so the one below it holds the same rows."""
    ground = Ground(1, {"flights": IDENTIFIER})
    ground.intake.append(0, declared(1, "flights", 1))
    ground.tables.create(IDENTIFIER, "memory:///t", schema_json(), "day", {})
    below = committed(ground)
    committed(ground)

    def roll_back() -> None:
        ground.ever_rolled_back.add(IDENTIFIER)
        ground.tables.roll_back(IDENTIFIER, below)

    roll_back()
    ground.taken_over("flights")
    assert ground.may_halt("flights"), "nothing was repaired"
    committed(ground)
    roll_back()
    ground.taken_over("flights")
    assert ground.may_halt("flights"), "the report is of the first rollback"
    committed(ground)
    ground.tables.expire(IDENTIFIER, [below])
    ground.taken_over("flights")
    assert not ground.may_halt("flights")


def test_times() -> None:
    assert predicates.times_never_step_back({0: 5, 3: 5, 7: 6}) is None
    assert predicates.times_never_step_back({0: 5, 3: 4}) is not None


def test_broken_code_is_noticed_and_the_seed_shows_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Evidence that forgets a partition, or says less than the rows."""

    def lying(*arguments: object) -> Evidence:
        return replace(Evidence(*arguments), offsets=(0, 0))  # type: ignore[arg-type]

    monkeypatch.setattr(commit, "Evidence", lying)
    assert main(["--rig", "publish", "--runs", "30"]) == 1
    said = capsys.readouterr().out
    assert "VIOLATION evidence = rows" in said
    seed = said.split("--seed ")[1].split()[0]
    assert main(["--rig", "publish", "--seed", seed, "--trace"]) == 1
    assert said.split("VIOLATION ")[1].splitlines()[0] in capsys.readouterr().out


def test_a_kind_of_trouble_belongs_to_a_rig(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--rig", "publish", "--profile", "damage"])
    assert "rig publish knows the kinds of trouble calm, " in capsys.readouterr().err


class Swapper:
    """Swaps an empty commit many times, each after a fresh load, and notes the answer and the truth."""

    name = "swapper"

    def __init__(self, tables: WatchedTables) -> None:
        self.tables = tables
        self.told: Counter[tuple[SwapOutcome, bool]] = Counter()

    def live(self, process: Process) -> None:
        mine = SimulatedTables(self.tables, process)
        for _ in range(60):
            view = self.tables.load(IDENTIFIER)
            assert view is not None
            prepared = self.tables.prepare(view, [], lambda *_: {}, {}, False, ())
            told = mine.swap(prepared).outcome
            self.told[told, self.tables.current(IDENTIFIER) == prepared.snapshot_id] += 1


APPLIED, CONFLICT, UNKNOWN = SwapOutcome.APPLIED, SwapOutcome.CONFLICT, SwapOutcome.UNKNOWN


@pytest.mark.parametrize(
    ("profile", "possible"),
    [
        (Profile("calm"), {(APPLIED, True)}),
        (Profile("refused", refused=0.5), {(APPLIED, True), (CONFLICT, False), (UNKNOWN, False)}),
        (Profile("lost", reply_lost=0.5), {(APPLIED, True), (CONFLICT, True), (UNKNOWN, True)}),
        (Profile("dropped", dropped=0.5), {(APPLIED, True), (UNKNOWN, False)}),
        (Profile("twice", twice=0.5), {(APPLIED, True)}),
    ],
    ids=lambda item: item.name if isinstance(item, Profile) else "",
)
def test_what_a_swap_is_told_and_what_is_so(
    profile: Profile, possible: Collection[tuple[SwapOutcome, bool]]
) -> None:
    looked: list[object] = []
    tables = WatchedTables(SeededIds(1), ManualClock(), looked.append)
    tables.create(IDENTIFIER, "memory:///t", schema_json(), "day", {})
    swapper, schedule = Swapper(tables), Schedule(1, profile, Trace())
    schedule.add(swapper)
    schedule.run(1000, 1000)
    assert set(swapper.told) == set(possible)
    view = tables.load(IDENTIFIER)
    assert view is not None
    assert len(looked) == 1 + len(view.snapshots), "every change is looked at once"


def test_a_swap_that_lands_late_lands_while_its_base_stands() -> None:
    tables = WatchedTables(SeededIds(1), ManualClock(), lambda _: None)
    tables.create(IDENTIFIER, "memory:///t", schema_json(), "day", {})
    swapper, schedule = Swapper(tables), Schedule(3, Profile("late", late=1.0), Trace())
    schedule.add(swapper)
    schedule.run(1000, 1000)
    view = tables.load(IDENTIFIER)
    assert view is not None
    assert view.sequence_number == len(view.snapshots) < 60, "of those on one base only the first"
    assert swapper.told[UNKNOWN, False] > 0
