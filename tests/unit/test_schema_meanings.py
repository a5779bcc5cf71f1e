"""The state machine against an independent model: in 200 changes each column keeps one meaning. A broken rule
is detected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from archiver.schema.columns import column_type
from archiver.schema.evolution import evolve
from archiver.schema.evolution.field_history import Former
from archiver.schema.evolution.state import TopicSchema, decide
from tests.support.schema.protos import message_class
from tests.support.schema.schema_history import Level
from tests.support.schema.schema_walks import walk

CHANGES = 200


def hold(seed: int, changes: int = CHANGES, every: int = 1) -> int:
    """Walk, and compare the ids of each version with the model. Returns the number of versions."""
    history: list[TopicSchema] = []
    level, owners = Level(), dict[int, tuple[int, str]]()
    for number, source in enumerate(walk(seed, changes)):
        if number % every == 0:
            schema = decide("walk", history, None, source).schema
            if not history or schema is not history[-1]:
                history.append(schema)
            level.advance(message_class(source).DESCRIPTOR)
            assert schema.value is not None
            level.claim(schema.value.field_ids, owners)
    return len(history)


@pytest.mark.parametrize("seed", range(3))
def test_a_column_keeps_its_meaning(seed: int) -> None:
    assert hold(seed, every=4) > CHANGES // 5


def test_every_single_change_is_seen() -> None:
    assert hold(7, changes=40) > 30


def by_name(self: Any, place: Any, field: Any, columns: dict[int, Any]) -> Former | None:
    """A broken rule: a field continues in the column that has its name."""
    same = [
        one
        for one in columns.values()
        if one["name"] == field.name and evolve.widened(one["type"], column_type(field)) is not None
    ]
    return Former(same[0]["id"], field.name, field) if same else None


def any_type(self: Any, place: Any, field: Any, columns: dict[int, Any]) -> Former | None:
    """A broken rule: a field continues in its last column, of any type, whose id now means something else."""
    return next(iter(self._past.formers.get((place.owner, field.number), ())), None)


@pytest.mark.parametrize("broken", [by_name, any_type])
def test_a_broken_rule_is_noticed(
    broken: Callable[..., Former | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evolve.SideEvolution, "_former", broken)
    if broken is any_type:
        fitting = evolve.widened
        monkeypatch.setattr(evolve, "widened", lambda column, wanted: fitting(column, wanted) or wanted)
    with pytest.raises(AssertionError, match=r"had id|of another field|paths differ"):
        hold(1, changes=60)


def test_an_id_that_is_used_twice_is_noticed() -> None:
    level, owners = Level(), dict[int, tuple[int, str]]()
    source = next(iter(walk(3, 1)))
    schema = decide("walk", (), None, source).schema
    level.advance(message_class(source).DESCRIPTOR)
    assert schema.value is not None
    ids = dict(schema.value.field_ids)
    level.claim(ids, owners)
    (one, other), ids_swapped = list(ids)[:2], dict(ids)
    ids_swapped[one], ids_swapped[other] = ids[other], ids[one]
    with pytest.raises(AssertionError, match="had id"):
        level.claim(ids_swapped, owners)
