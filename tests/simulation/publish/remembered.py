"""A cache for pure functions of the product that get the same arguments again and again in a million rounds.

A run spends most of its time on comparing one and the same schema with itself otherwise. Only functions that
depend on nothing but their arguments stand here, and no caller changes what they return. One seed of many
plays without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar
from unittest.mock import patch

from archiver.catalog import commit, evolve, identity
from archiver.catalog.evidence import Evidence
from archiver.catalog.table_layout import stream_fields
from archiver.catalog.tables import Identifier, TableView
from archiver.events import codec
from archiver.ledger import fold
from archiver.objects import paths
from archiver.refine import demultiplexer, prepare_topic
from archiver.refine.plan_writer import TopicRows
from archiver.refine.task import RefineOptions, RefineTopic
from archiver.schema.evolution.recorded import TopicSchema
from archiver.schema.evolution.state import Decision
from archiver.schema.evolution.table_fit import Fit, fit_table
from reconcile.snapshot import collector, unreferenced_objects
from tests.support.catalog import memory_tables

_T = TypeVar("_T")
_SIZE = 4096


@contextmanager
def remembered() -> Iterator[None]:
    """Inside, the answers are remembered, also from run to run."""
    with ExitStack() as stack:
        for owner, name, stand_in in _STAND_INS:
            stack.enter_context(patch.object(owner, name, stand_in))
        yield


class _Beside:
    """An argument that is no part of the key: what it would say stands in the others."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Beside)


def _remember(function: Callable[..., _T]) -> Callable[..., _T]:
    return lru_cache(maxsize=_SIZE)(function)


_fits = _remember(fit_table)


def _fit_table(
    schema: TopicSchema, history: Sequence[TopicSchema], table_json: str, last_column_id: int, written: int
) -> Fit:
    fit = _fits(schema, tuple(history), table_json, last_column_id, written)
    return (
        replace(fit, schema=schema) if fit.schema == schema else fit
    )  # the caller asks whether it is the same object


_recorded_entry = _remember(lambda _, entry: TopicSchema.from_entry(entry.value))


def _recorded_schemas(ledger: Any) -> tuple[TopicSchema, ...]:
    entries = (entry for _, entry in sorted(ledger.schemas.items()))
    return tuple(
        _recorded_entry(entry.SerializeToString(deterministic=True), _Beside(entry)) for entry in entries
    )


_decide: Callable[..., Decision] = prepare_topic.decide_schema
_decided = _remember(lambda topic, history, _, view: _decide(topic, history, (None, None), view.value))


def _decide_schema(
    topic: str, history: Sequence[TopicSchema], fetched: tuple[None, None], view: Any
) -> Decision:
    assert fetched == (None, None), "no topic of a run has a schema of its own"
    decided: Decision = _decided(
        topic, tuple(history), 0 if view is None else view.last_column_id, _Beside(view)
    )
    return decided


_rows = _remember(lambda schema, granularity, topic_id, topic, options: TopicRows(topic.value, options.value))


def _topic_rows(topic: RefineTopic, options: RefineOptions) -> TopicRows:
    rows: TopicRows = _rows(topic.schema, topic.granularity, topic.topic_id, _Beside(topic), _Beside(options))
    return rows


_views: dict[int, tuple[Any, TableView]] = {}
_view = memory_tables._view


def _seen(identifier: Identifier, state: Any) -> TableView:
    """A state of a table never changes, so every load gives the same view."""
    known = _views.get(id(state))
    if known is None:
        if len(_views) >= _SIZE:
            _views.clear()
        known = _views[id(state)] = (state, _view(identifier, state))
    return known[1]


_STAND_INS: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
    (evolve, "fit_table", _fit_table),
    (collector, "fit_table", _fit_table),
    (prepare_topic, "recorded_schemas", _recorded_schemas),
    (prepare_topic, "decide_schema", _decide_schema),
    (demultiplexer, "TopicRows", _topic_rows),
    (memory_tables, "stream_fields", _remember(stream_fields)),
    (identity, "stream_fields", _remember(stream_fields)),
    (memory_tables, "_numbered", _remember(memory_tables._numbered)),
    (memory_tables, "_view", _seen),
    (commit, "stream_fields", _remember(stream_fields)),
    (Evidence, "from_json", staticmethod(_remember(Evidence.from_json))),
    (codec, "read", _remember(codec.read)),
    *(
        (module, "parse_archive_key", _remember(paths.parse_archive_key))
        for module in (paths, fold, unreferenced_objects)
    ),
)
