"""The catalog as it is, with every change checked, and as one process sees it: each request is a step at
which anything may happen.

A swap may be refused before it is applied, applied with the answer lost, or answered by a conflict after it
was applied. It may be dropped, delivered twice, or land later, as long as what it asserts still holds.
Promises that a table changes only through the rules of `MemoryTables`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from archiver.catalog.tables import (
    Evolved,
    Identifier,
    LiveFile,
    NewProperties,
    Prepared,
    SwapOutcome,
    Swapped,
    TableView,
)
from archiver.events.types import DataFile
from archiver.objects.paths import Granularity
from archiver.runtime.clock import Clock
from archiver.runtime.errors import OutcomeUnknown, RetryLater
from archiver.runtime.ids import IdSource
from tests.simulation.schedule import Process
from tests.simulation.twins import Requests
from tests.support.catalog.memory_tables import MemoryTables


class WatchedTables(MemoryTables):
    """All tables; `look` is called with every change of one."""

    def __init__(self, ids: IdSource, clock: Clock, look: Callable[[Identifier], None]) -> None:
        super().__init__(ids, clock)
        self._look = look

    def state(self, identifier: Identifier) -> Any:
        """A table's inner state, None if there is none."""
        return self._tables.get(identifier)

    def current(self, identifier: Identifier) -> int | None:
        """The id of a table's current snapshot."""
        state = self._tables.get(identifier)
        return None if state is None else state.current

    def create(
        self,
        identifier: Identifier,
        location: str,
        schema_json: str,
        granularity: Granularity,
        properties: Mapping[str, str],
    ) -> TableView:
        view = super().create(identifier, location, schema_json, granularity, properties)
        self._look(identifier)
        return view

    def swap(self, prepared: Prepared) -> Swapped:
        swapped = super().swap(prepared)
        if swapped.outcome is SwapOutcome.APPLIED:
            self._look(prepared.identifier)
        return swapped

    def evolve(self, view: TableView, schema_json: str) -> Evolved:
        evolved = super().evolve(view, schema_json)
        if evolved.outcome is SwapOutcome.APPLIED:
            self._look(view.identifier)
        return evolved

    # what an external client does

    def replace_files(
        self,
        identifier: Identifier,
        remove: Sequence[str],
        add: Sequence[DataFile],
        operation: str = "replace",
    ) -> int:
        snapshot_id = super().replace_files(identifier, remove, add, operation)
        self._look(identifier)
        return snapshot_id

    def roll_back(self, identifier: Identifier, snapshot_id: int) -> None:
        super().roll_back(identifier, snapshot_id)
        self._look(identifier)

    def commit_to_branch(self, identifier: Identifier) -> int:
        snapshot_id = super().commit_to_branch(identifier)
        self._look(identifier)
        return snapshot_id

    def expire(self, identifier: Identifier, gone: Collection[int]) -> None:
        """Forget some snapshots, as an expirer that cares for metadata only."""
        super().expire(identifier, gone)
        self._look(identifier)

    def drop(self, identifier: Identifier) -> None:
        super().drop(identifier)
        self._look(identifier)

    def make_anew(self, identifier: Identifier, table: uuid.UUID) -> None:
        """An external client creates a table of the same name and properties, without rows."""
        state = self._known(identifier)
        self._tables[identifier] = replace(
            state, uuid=table, current=None, last_sequence=0, snapshots={}, version=state.version + 1
        )
        self._look(identifier)


class SimulatedTables:
    """The shared catalog as one process sees it; see `archiver.catalog.tables.Tables`."""

    def __init__(self, tables: WatchedTables, process: Process) -> None:
        self._tables = tables
        self._process = process
        self._requests = Requests(process)

    def close(self) -> None:
        """Nothing to release."""

    def load(self, identifier: Identifier) -> TableView | None:
        return self._requests.look("loads the table", lambda: self._tables.load(identifier))

    def create(
        self,
        identifier: Identifier,
        location: str,
        schema_json: str,
        granularity: Granularity,
        properties: Mapping[str, str],
    ) -> TableView:
        create = self._tables.create
        return self._requests.change(
            "creates the table", lambda: create(identifier, location, schema_json, granularity, properties)
        )

    def prepare(
        self,
        view: TableView,
        files: Sequence[DataFile],
        properties: NewProperties,
        summary: Mapping[str, str],
        merge: bool,
        expire: Sequence[int],
    ) -> Prepared:
        prepare = self._tables.prepare
        return self._requests.look(
            f"prepares {len(files)} files on {view.sequence_number}",
            lambda: prepare(view, files, properties, summary, merge, expire),
        )

    def prepare_exchange(
        self, view: TableView, removed: Collection[str], added: Sequence[DataFile], summary: Mapping[str, str]
    ) -> Prepared:
        return self._requests.look(
            "prepares an exchange", lambda: self._tables.prepare_exchange(view, removed, added, summary)
        )

    def prepare_removal(
        self,
        view: TableView,
        paths: Collection[str],
        properties: NewProperties,
        summary: Mapping[str, str],
        expire: Sequence[int],
    ) -> Prepared:
        prepare = self._tables.prepare_removal
        return self._requests.look(
            "prepares a removal", lambda: prepare(view, paths, properties, summary, expire)
        )

    def named_paths(self, view: TableView) -> Iterator[str]:
        return iter(self._requests.look("reads what is named", lambda: list(self._tables.named_paths(view))))

    def swap(self, prepared: Prepared) -> Swapped:
        outcomes: list[Swapped] = []

        def apply() -> Swapped:
            outcomes.append(self._tables.swap(prepared))
            return outcomes[-1]

        base = prepared.base_sequence_number
        try:
            swapped = self._requests.change(f"swaps on {base}", apply)
        except (OutcomeUnknown, RetryLater) as error:
            outcome = self._told(error, bool(outcomes) and outcomes[0].outcome is SwapOutcome.APPLIED)
            self._process.schedule.note(self._process.name, f"is told {outcome.value}: {error}")
            return Swapped(outcome, prepared.snapshot_id, str(error))
        self._process.schedule.note(self._process.name, f"is told {swapped.outcome.value} {swapped.why}")
        return swapped

    def _told(self, error: Exception, applied: bool) -> SwapOutcome:
        """The answer that the process gets. A conflict is false where the swap was applied; real catalogs
        were seen to answer so."""
        if isinstance(error, RetryLater) or applied:
            return (
                SwapOutcome.CONFLICT if self._process.schedule.random.random() < 0.5 else SwapOutcome.UNKNOWN
            )
        return SwapOutcome.UNKNOWN

    def repartition(self, view: TableView, granularity: Granularity) -> Evolved:
        try:
            return self._requests.change(
                "changes the partition spec", lambda: self._tables.repartition(view, granularity)
            )
        except (OutcomeUnknown, RetryLater) as error:
            return Evolved(SwapOutcome.UNKNOWN, str(error))

    def evolve(self, view: TableView, schema_json: str) -> Evolved:
        try:
            return self._requests.change(
                "changes the columns", lambda: self._tables.evolve(view, schema_json)
            )
        except (OutcomeUnknown, RetryLater) as error:
            return Evolved(SwapOutcome.UNKNOWN, str(error))

    def live_files(
        self, view: TableView, snapshot_id: int | None = None, nulls_of: Collection[int] = ()
    ) -> Iterator[LiveFile]:
        return iter(
            self._requests.look(
                "reads manifests", lambda: list(self._tables.live_files(view, snapshot_id, nulls_of))
            )
        )

    def retained_paths(self, view: TableView, names: Collection[str]) -> frozenset[str]:
        return self._requests.look("reads all manifests", lambda: self._tables.retained_paths(view, names))

    def count_rows(self, view: TableView, partition: int, offset: int) -> int:
        return self._requests.look("counts rows", lambda: self._tables.count_rows(view, partition, offset))

    def data_paths(self, view: TableView, since_sequence: int) -> frozenset[str]:
        return self._requests.look(
            "reads new manifests", lambda: self._tables.data_paths(view, since_sequence)
        )

    def aside_paths(self, view: TableView, since_sequence: int) -> frozenset[str]:
        if all(item.sequence_number <= since_sequence for item in view.aside()):
            return frozenset()  # there is nothing to ask for
        return self._requests.look(
            "reads manifests of branches", lambda: self._tables.aside_paths(view, since_sequence)
        )
