"""Brings a table to the columns that the ledger records, and to the partition spec of the configuration: the
one place that asks a catalog to change either.

Order (docs/protocols/schema-evolution.md): a version is in the ledger before the catalog is asked for its
columns, and the table is read again before anything is archived with it. Each try looks at the table from the
start, because only the table knows what became of the last one. Promises that the catalog is asked only for
what the table lacks, and that the schema it returns is recorded and is the table's: same ids, same types.
Must never change what is not the archiver's, or take an unknown outcome for a failure.

A partition spec stands in no entry of the ledger: every archive names its own in its key and in DATA_WRITTEN,
and the table knows all that it ever had. So nothing that is written before, during or after a change depends
on its outcome (decision 0031).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from archiver.catalog.commit import BACKOFF_GROWTH_MAX, CommitLimits
from archiver.catalog.identity import TableTarget, load_table
from archiver.catalog.tables import Evolved, SwapOutcome, Tables, TableView, shown
from archiver.ledger.leader import Leader
from archiver.runtime import failpoints
from archiver.runtime.clock import Clock
from archiver.runtime.errors import Halt, OutcomeUnknown, RetryLater, TopicHalted
from archiver.runtime.text import counted
from archiver.schema.evolution.state import TopicSchema
from archiver.schema.evolution.table_fit import Fit, fit_table

Record = Callable[[TopicSchema], None]
"""Appends a version to the ledger."""

_NOT_ASKED = Evolved(SwapOutcome.CONFLICT, "the time ran out")


class TableEvolution:
    """Brings the tables of one catalog to their topics' schemas, on behalf of one leader."""

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
        has other ids.

        `view` is the table as it was just loaded; `history` the recorded versions; `written` the newest of
        them that archives were written with (0: none). Raises `TopicHalted` if somebody must put the table
        right, `Deposed`, `RetryLater` if the catalog was not brought to the schema within the bounds,
        `OutcomeUnknown` if the last request may still land. Whoever calls again goes on.
        """
        recorded = list(history)
        answer = _NOT_ASKED
        for found, more in self._looks(target, view):
            if isinstance(found, RetryLater):
                answer = replace(answer, why=str(found))
                continue
            fit = _fit(target, found, schema, recorded, written)
            schema = self._recorded(fit, schema, recorded, record)
            if fit.lacking is None:
                return schema
            if more:
                answer = self._ask(partial(self._tables.evolve, found, fit.lacking))
        raise _given_up(target, f"schema version {schema.version}", self._limits, answer)

    def partition(self, target: TableTarget, view: TableView) -> TableView:
        """The table, partitioned by the configuration's granularity from here on. What it holds keeps its
        partitions.

        `view` is the table as it was just loaded, and found to be the topic's. Raises as `bring`.
        """
        answer = _NOT_ASKED
        for found, more in self._looks(target, view):
            if isinstance(found, RetryLater):
                answer = replace(answer, why=str(found))
            elif found.granularity == target.granularity:
                return found
            elif more:
                answer = self._ask(partial(self._tables.repartition, found, target.granularity))
        raise _given_up(target, f"partitions by {target.granularity}", self._limits, answer)

    def _looks(self, target: TableTarget, view: TableView) -> Iterator[tuple[TableView | RetryLater, bool]]:
        """The table before each request and after the last one, and whether one more request is allowed; why
        it could not be loaded.
        """
        deadline = self._clock.monotonic_s() + self._limits.timeout_s
        yield view, self._limits.attempts_max > 0
        for attempt in range(1, self._limits.attempts_max + 1):
            self._clock.sleep(self._limits.backoff_s * min(2 ** (attempt - 1), BACKOFF_GROWTH_MAX))
            if self._clock.monotonic_s() > deadline:
                return
            try:
                found: TableView | RetryLater | None = load_table(self._tables, target, view.uuid)
            except RetryLater as error:
                found = error
            assert found is not None  # load_table halts where a table of a known uuid is gone
            yield found, attempt < self._limits.attempts_max

    def _recorded(
        self, fit: Fit, schema: TopicSchema, recorded: list[TopicSchema], record: Record
    ) -> TopicSchema:
        """The schema with the ids it has after the look, in the ledger."""
        in_ledger = bool(recorded) and recorded[-1].version == schema.version
        if in_ledger and fit.schema is schema:
            return schema
        following = replace(fit.schema, version=schema.version + 1) if in_ledger else fit.schema
        record(following)
        recorded.append(following)
        return following

    def _ask(self, request: Callable[[], Evolved]) -> Evolved:
        """Ask the catalog once, after a look that nobody leads instead (rule C4). A failpoint may lose the
        reply.
        """
        self._leader.check()
        try:
            failpoints.reach("table.evolve.before")
            answer = request()
            failpoints.reach("table.evolve.after")
        except OutcomeUnknown as error:
            return Evolved(SwapOutcome.UNKNOWN, str(error))
        return answer


def _fit(
    target: TableTarget, view: TableView, schema: TopicSchema, recorded: Sequence[TopicSchema], written: int
) -> Fit:
    try:
        return fit_table(schema, recorded, view.schema_json, view.last_column_id, written)
    except Halt as error:
        raise TopicHalted(target.topic, f"table {shown(target.identifier)}: {error}") from error


def _given_up(
    target: TableTarget, wanted: str, limits: CommitLimits, answer: Evolved
) -> RetryLater | OutcomeUnknown:
    message = (
        f"table {shown(target.identifier)} was not brought to {wanted} after "
        f"{counted(limits.attempts_max, 'attempt')} or "
        f"{limits.timeout_s:g} s ({answer.why or 'the table does not show it'}); nothing is archived "
        "before it is, and the next run goes on"
    )
    return OutcomeUnknown(message) if answer.outcome is SwapOutcome.UNKNOWN else RetryLater(message)
