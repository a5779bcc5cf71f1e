"""Gives a table the columns that the ledger records and the partition spec of the configuration.

Order (docs/protocols/schema-evolution.md): a version is in the ledger before its columns are requested, and
the table is loaded again before anything is archived with it. Promises that only missing columns are
requested, and that the returned schema is recorded and is the table's: same ids, same types. Must never
change columns of other writers, or treat an unknown outcome as a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from archiver.catalog.identity import TableTarget, load_table
from archiver.catalog.swap_retry import Attempt, CommitLimits, Done, NotApplied, Request, retry_swap
from archiver.catalog.tables import Evolved, Tables, TableView, shown
from archiver.ledger.leader import Leader
from archiver.runtime.clock import Clock
from archiver.runtime.errors import Halt, OutcomeUnknown, RetryLater, TopicHalted
from archiver.runtime.text import counted
from archiver.schema.evolution.state import TopicSchema
from archiver.schema.evolution.table_fit import Fit, fit_table

Record = Callable[[TopicSchema], None]
"""Appends a version to the ledger."""

T = TypeVar("T")


class TableEvolution:
    """Changes columns and partition specs of the tables of one catalog, for one leader."""

    def __init__(self, tables: Tables, leader: Leader, limits: CommitLimits, clock: Clock) -> None:
        self._tables = tables
        self._leader = leader
        self._limits = limits
        self._clock = clock

    def bring(
        self,
        target: TableTarget,
        view: TableView,
        schema: TopicSchema,
        history: Sequence[TopicSchema],
        written: int,
        record: Record,
    ) -> TopicSchema:
        """The schema that is recorded and that the table has: `schema`, or a later version where the catalog
        assigned other ids.

        `view` is the table as it was just loaded. `history` are the recorded versions, and `written` is the
        newest one that archives were written with (0: none). Raises `Deposed`, and `TopicHalted` if an
        operator must correct the table. Raises `RetryLater` if the table did not get the schema within the
        bounds, and `OutcomeUnknown` if the last request may still be applied. A later call continues.
        """
        recorded = list(history)

        def step(found: TableView) -> Done[TopicSchema] | Callable[[], Evolved]:
            nonlocal schema
            fit = _fit(target, found, schema, recorded, written)
            # The ledger comes first: archives must never have field ids that no recorded version explains.
            schema = self._recorded(fit, schema, recorded, record)
            return Done(schema) if fit.lacking is None else partial(self._tables.evolve, found, fit.lacking)

        result = self._repeat(target, view, step)
        if isinstance(result, NotApplied):
            raise self._error(target, f"schema version {schema.version}", result)
        return result

    def partition(self, target: TableTarget, view: TableView) -> TableView:
        """The table, partitioned by the configuration's granularity from here on. Existing files keep their
        partitions.

        `view` is the table as it was just loaded and identified as the topic's. Raises as `bring`.
        """

        def step(found: TableView) -> Done[TableView] | Callable[[], Evolved]:
            # The ledger records no spec: every archive names its own, and the table keeps all. So no write
            # depends on the outcome of this change (decision 0031).
            if found.granularity == target.granularity:
                return Done(found)
            return partial(self._tables.repartition, found, target.granularity)

        result = self._repeat(target, view, step)
        if isinstance(result, NotApplied):
            raise self._error(target, f"partitions by {target.granularity}", result)
        return result

    def _repeat(
        self,
        target: TableTarget,
        view: TableView,
        step: Callable[[TableView], Done[T] | Callable[[], Evolved]],
    ) -> T | NotApplied:
        """Decide by `step` what the table still lacks, beginning with `view` and then with a load after each
        request.
        """

        def prepare(attempt: Attempt) -> Done[T] | Request[T] | RetryLater | None:
            found: TableView | None = view
            # The first attempt uses the view that the caller just loaded.
            if attempt.number:
                try:
                    found = load_table(self._tables, target, view.uuid)
                except RetryLater as error:
                    return error
            assert found is not None, "load_table halts where a table of a known uuid is gone"
            decided = step(found)
            if isinstance(decided, Done):
                return decided
            # A reply "applied" does not prove that the table has it. The loop waits, loads and compares.
            return None if attempt.is_last else Request(decided, "table.evolve", confirm=lambda: None)

        return retry_swap(prepare, self._leader.check, self._limits, self._clock, load_after_last=True)

    def _error(self, target: TableTarget, required: str, result: NotApplied) -> RetryLater | OutcomeUnknown:
        limits = f"{counted(self._limits.attempts_max, 'attempt')} or {self._limits.timeout_s:g} s"
        return result.error(
            f"table {shown(target.identifier)} was not brought to {required} after {limits} "
            f"({result.why or 'the table does not show it'}); nothing is archived before it is, and the next "
            "run goes on"
        )

    def _recorded(
        self, fit: Fit, schema: TopicSchema, recorded: list[TopicSchema], record: Record
    ) -> TopicSchema:
        """The schema with the ids of the loaded table, after it is in the ledger."""
        in_ledger = bool(recorded) and recorded[-1].version == schema.version
        if in_ledger and fit.schema is schema:
            return schema
        # A recorded version never changes, so other ids of the catalog become a new version.
        following = replace(fit.schema, version=schema.version + 1) if in_ledger else fit.schema
        record(following)
        recorded.append(following)
        return following


def _fit(
    target: TableTarget, view: TableView, schema: TopicSchema, recorded: Sequence[TopicSchema], written: int
) -> Fit:
    try:
        return fit_table(schema, recorded, view.schema_json, view.last_column_id, written)
    except Halt as error:
        raise TopicHalted(target.topic, f"table {shown(target.identifier)}: {error}") from error
