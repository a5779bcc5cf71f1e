"""The loop that brings a table to a recorded schema: lost responses, conflicts, other writers, bounds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from archiver.catalog.evolve import TableEvolution
from archiver.catalog.swap_retry import CommitLimits
from archiver.catalog.table_layout import table_properties
from archiver.catalog.tables import Evolved, Identifier, SwapOutcome, TableView
from archiver.ledger.leader import Leader
from archiver.runtime.clock import ManualClock
from archiver.runtime.errors import Deposed, OutcomeUnknown, RetryLater, TopicHalted
from archiver.runtime.ids import SeededIds
from archiver.schema.evolution.field_history import ids_of
from archiver.schema.evolution.state import TopicSchema, decide
from tests.support.catalog.memory_tables import MemoryTables
from tests.support.catalog.tables import (
    CLUSTER_ID,
    IDENTIFIER,
    START_US,
    TOPIC_ID,
    FaultyTables,
    SwapFault,
    log_limits,
    target_in,
)
from tests.support.log.memory_log import MemoryLogStore
from tests.support.schema.protos import F, field, file_of, source

LIMITS = CommitLimits(attempts_max=4, timeout_s=1000, backoff_s=0.01)


def sale(*fields: tuple[str, int, int]) -> Any:
    file = file_of()
    message = file.message_type.add(name="Sale")
    for name, number, kind in fields:
        field(message, name, number, kind)
    return source(file, "Sale")


FIRST = sale(("a", 1, F.TYPE_INT32))
SECOND = sale(("a", 1, F.TYPE_INT64), ("b", 2, F.TYPE_STRING))


class Scene(FaultyTables):
    """A table of the first schema, a ledger that records both, and scripted faults."""

    def __init__(
        self,
        folder: Path,
        *script: SwapFault,
        before: Callable[[Scene], None] | None = None,
        renumber: bool = False,
    ) -> None:
        self.clock, ids = ManualClock(START_US), SeededIds(3)
        self.memory = MemoryTables(ids, self.clock)
        super().__init__(self.memory)
        self.faults = list(script)
        self.before = before
        self.renumber = renumber
        self.asked = 0
        self.late: list[tuple[TableView, str]] = []
        self.away = 0
        self.log = MemoryLogStore(log_limits().entry_bytes_max).log("control")
        self.leader = Leader(self.log, ids, self.clock, "host:1", log_limits())
        self.leader.take_over()
        self.target = target_in(folder)
        self.history: list[TopicSchema] = []
        self.record(decide("flights", (), None, FIRST).schema)
        self.view = self.memory.create(
            IDENTIFIER,
            self.target.location,
            self.history[0].iceberg_json,
            "day",
            table_properties(CLUSTER_ID, TOPIC_ID, "flights"),
        )
        self.wanted = decide("flights", self.history, None, SECOND).schema

    def record(self, schema: TopicSchema) -> None:
        self.leader.append(schema.to_entry(bytes.fromhex(TOPIC_ID)))
        self.history.append(schema)

    def bring(self, written: int = 1, limits: CommitLimits = LIMITS) -> TopicSchema:
        evolution = TableEvolution(self, self.leader, limits, self.clock)
        view = self.memory.load(IDENTIFIER)
        assert view is not None
        return evolution.bring(self.target, view, self.wanted, tuple(self.history), written, self.record)

    def load(self, identifier: Identifier) -> TableView | None:
        if self.away:
            self.away -= 1
            raise RetryLater("the catalog is away")
        return super().load(identifier)

    def evolve(self, view: TableView, schema_json: str) -> Evolved:
        recorded = [entry.version for entry in self.leader.fold.topic(TOPIC_ID).schemas.values()]
        assert max(recorded) == self.history[-1].version >= 2, "the ledger first"
        self.asked += 1
        if self.before is not None:
            self.before(self)
        fault = self.faults.pop(0) if self.faults else SwapFault.NONE
        if fault is SwapFault.LATE:
            self.late.append((view, schema_json))
        if fault in (SwapFault.LATE, SwapFault.DROPPED):
            return Evolved(SwapOutcome.UNKNOWN, fault.value)
        answer = self.memory.evolve(view, _otherwise(view, schema_json) if self.renumber else schema_json)
        self.renumber = False
        if fault is SwapFault.NONE:
            return answer
        return Evolved(
            SwapOutcome.CONFLICT if fault is SwapFault.FALSE_CONFLICT else SwapOutcome.UNKNOWN, fault.value
        )

    def value_columns(self) -> dict[str, tuple[int, str]]:
        view = self.memory.load(IDENTIFIER)
        assert view is not None
        fields = json.loads(view.schema_json)["fields"][1]["type"]["fields"]
        return {one["name"]: (one["id"], one["type"]) for one in fields}


def _otherwise(view: TableView, schema_json: str) -> str:
    """The schema as a catalog returns it that assigns ids itself."""
    document = json.loads(schema_json)
    for one in document["fields"][1]["type"]["fields"]:
        if one["id"] > view.last_column_id:
            one["id"] += 50
    return json.dumps(document)


def add_foreign(scene: Scene, name: str = "mine") -> None:
    """Another writer adds a column to the value, once."""
    scene.before = None
    view = scene.memory.load(IDENTIFIER)
    assert view is not None
    document = json.loads(view.schema_json)
    document["fields"][1]["type"]["fields"].append(
        {"id": view.last_column_id + 1, "name": name, "required": False, "type": "string"}
    )
    scene.memory.set_schema(IDENTIFIER, json.dumps(document))


def check(scene: Scene, found: TopicSchema) -> None:
    """The result is recorded, and agrees with the table."""
    assert found == scene.history[-1]
    ours = {one["name"]: (one["id"], one["type"]) for one in found.schema()["fields"][1]["type"]["fields"]}
    assert ours.items() <= scene.value_columns().items()
    assert len(set(ids_of(found.schema()))) == len(list(ids_of(found.schema())))


def test_a_table_gets_what_it_lacks_with_one_request(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    found = scene.bring()
    check(scene, found)
    assert (scene.asked, [one.version for one in scene.history]) == (1, [1, 2])
    assert found is scene.wanted
    scene.wanted = found
    assert scene.bring(2) is found
    assert scene.asked == 1, "nothing is asked for twice"


@pytest.mark.parametrize(
    ("script", "asked"),
    [
        ((SwapFault.REPLY_LOST,), 1),
        ((SwapFault.FALSE_CONFLICT,), 1),
        ((SwapFault.DROPPED,), 2),
        ((SwapFault.DROPPED, SwapFault.DROPPED, SwapFault.REPLY_LOST), 3),
        ((SwapFault.LATE,), 2),
    ],
)
def test_with_any_answer_the_table_decides(tmp_path: Path, script: tuple[SwapFault, ...], asked: int) -> None:
    scene = Scene(tmp_path, *script)
    check(scene, scene.bring())
    assert scene.asked == asked
    assert [one.version for one in scene.history] == [1, 2]
    for view, text in scene.late:
        assert scene.memory.evolve(view, text).outcome is SwapOutcome.CONFLICT, "a late request lands nowhere"


def test_a_foreign_column_in_between_takes_no_id_of_ours(tmp_path: Path) -> None:
    scene = Scene(tmp_path, before=add_foreign)
    found = scene.bring()
    check(scene, found)
    assert [one.version for one in scene.history] == [1, 2, 3]
    assert scene.value_columns()["b"][0] == scene.value_columns()["mine"][0] + 1
    assert scene.asked == 2


def test_ids_that_the_catalog_assigns_are_recorded_before_anything_is_written(tmp_path: Path) -> None:
    scene = Scene(tmp_path, renumber=True)
    found = scene.bring()
    check(scene, found)
    assert (found.version, scene.asked) == (3, 1)
    assert scene.wanted.value is not None and found.value is not None
    assert found.value.field_ids["2"] == scene.wanted.value.field_ids["2"] + 50
    again = decide("flights", scene.history, None, SECOND)
    assert again.schema is found and not again.changes


def test_a_catalog_that_is_away_between_two_tries(tmp_path: Path) -> None:
    scene = Scene(tmp_path, SwapFault.DROPPED)
    scene.away = 2
    check(scene, scene.bring())


def test_the_last_request_is_looked_at(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    check(scene, scene.bring(limits=CommitLimits(attempts_max=1)))
    assert scene.asked == 1


def test_the_tries_are_bounded(tmp_path: Path) -> None:
    scene = Scene(tmp_path, *[SwapFault.DROPPED] * 9)
    with pytest.raises(
        OutcomeUnknown,
        match=r"demo\.flights was not brought to schema version 2 after 4 attempts.*the next run goes on",
    ):
        scene.bring()
    assert scene.asked == LIMITS.attempts_max
    scene.faults.clear()
    scene.wanted = scene.history[-1]
    check(scene, scene.bring())
    assert [one.version for one in scene.history] == [1, 2]


def test_a_table_that_others_change_all_the_time_is_left_for_later(tmp_path: Path) -> None:
    numbers = iter(range(100))

    def restless(scene: Scene) -> None:
        add_foreign(scene, f"mine{next(numbers)}")
        scene.before = restless

    scene = Scene(tmp_path, before=restless)
    with pytest.raises(RetryLater, match="schema version"):
        scene.bring()
    assert scene.asked == LIMITS.attempts_max


def test_the_time_is_bounded(tmp_path: Path) -> None:
    scene = Scene(tmp_path, *[SwapFault.DROPPED] * 9)
    with pytest.raises(OutcomeUnknown):
        scene.bring(limits=CommitLimits(attempts_max=1000, timeout_s=1, backoff_s=0.4))
    assert 1 < scene.asked < 6


@pytest.mark.parametrize("recorded", [False, True])
def test_who_was_deposed_asks_the_catalog_nothing(tmp_path: Path, recorded: bool) -> None:
    scene = Scene(tmp_path)
    if recorded:
        scene.record(scene.wanted)
    Leader(scene.log, SeededIds(9), scene.clock, "host:2", log_limits()).take_over()
    with pytest.raises(Deposed):
        scene.bring()
    assert scene.asked == 0 and "b" not in scene.value_columns()


def test_a_table_that_is_gone_halts(tmp_path: Path) -> None:
    scene = Scene(tmp_path, SwapFault.DROPPED, before=lambda scene: scene.memory.drop(IDENTIFIER))
    with pytest.raises(TopicHalted, match="is gone"):
        scene.bring()


def test_a_name_that_another_writer_took_halts_with_what_to_do(tmp_path: Path) -> None:
    scene = Scene(tmp_path, before=lambda scene: add_foreign(scene, "B"))
    with pytest.raises(
        TopicHalted,
        match=r"table demo\.flights: .* value\.B .*rename it in the table, or give the field another",
    ):
        scene.bring()
