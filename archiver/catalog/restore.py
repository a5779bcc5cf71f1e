"""Rebuilds a lost table from its archives: the table itself, then its files in commits of bounded size.

Promises that a file is in the table at most once, for any number of interrupted runs. Deletes nothing. Must
never change a table that it did not begin: a property of the table names the lost one that it replaces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from archiver.catalog.evidence import Evidence
from archiver.catalog.identity import TableTarget, check_identity, load_table
from archiver.catalog.swap_retry import Attempt, CommitLimits, Done, NotApplied, Request, retry_swap
from archiver.catalog.table_layout import (
    COMMIT_ID,
    REBUILT,
    WATERMARKS,
    named_granularity,
    newest_spec,
    table_properties,
)
from archiver.catalog.tables import Identifier, Prepared, SwapOutcome, Tables, TableView, shown
from archiver.events.types import DataFile
from archiver.objects.paths import Granularity
from archiver.runtime import failpoints
from archiver.runtime.clock import Clock
from archiver.runtime.errors import KeyExists, OutcomeUnknown, RetryLater, TopicHalted
from archiver.runtime.ids import IdSource, new_uuid

FILES_MAX = 1000
"""Most files that one commit adds. Bounds its memory and the size of its request."""


@runtime_checkable
class Registers(Protocol):
    """A catalog that can register a table with given field ids."""

    def register(
        self,
        identifier: Identifier,
        location: str,
        schema_json: str,
        last_column_id: int,
        granularity: Granularity,
        properties: Mapping[str, str],
    ) -> TableView:
        """As `Tables.create`, but the columns keep the ids in `schema_json`, and later columns get ids above
        `last_column_id`. Raises the same errors, and `Halt` if the catalog has no such request.
        """


@dataclass(frozen=True, slots=True)
class RestoredFile:
    """One archive that the table must get."""

    data_file: DataFile
    partition: int
    end: int
    """Exclusive: with this file, and all before it, the partition is complete up to here."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The table that the rebuild must produce."""

    schema_json: str
    """With the field ids that the files have."""
    last_column_id: int
    in_place_of: str
    """The value of the property that identifies this table: the uuid of the lost one, or `bucket` if
    that is unknown."""
    files: Sequence[RestoredFile]
    """In the order in which they are added: in each partition by offset."""
    starts: Mapping[int, int]
    """Per partition: where the first file begins, or retention's head."""
    reached: Mapping[int, int]
    """Per partition: the watermark when every file is in; above the last file's end where only gaps
    follow."""
    proven: bool = True
    """False: it is unknown whether the files are complete up to there. Then the table gets no watermarks."""


class TableRestore:
    """Rebuilds tables of one catalog. `check` is called before each request. It raises if a newer leader
    exists (rule C4).
    """

    def __init__(
        self,
        tables: Tables,
        check: Callable[[], None],
        epoch: int,
        limits: CommitLimits,
        ids: IdSource,
        clock: Clock,
        files_max: int | None = None,
    ) -> None:
        self._tables = tables
        self._check = check
        self._epoch = epoch
        self._limits = limits
        self._ids = ids
        self._clock = clock
        self._files_max = files_max or FILES_MAX

    def run(self, target: TableTarget, plan: Plan) -> TableView:
        """The table with every file of the plan in it.

        Raises `TopicHalted` if another table has the name; `RetryLater` if the rebuild did not finish within
        the bounds of a commit; `OutcomeUnknown` if a request may still be applied. A later call continues.
        """
        view = self._begun(target, plan)
        self._check_begun(view, target, plan)
        view = self._partitioned(view, target, plan)
        # An interrupted run may have added files already. They are not offered again.
        have = {item.path for item in self._tables.live_files(view)}
        waiting = [item for item in plan.files if item.data_file.path not in have]
        # Every live file must be one of the plan. Otherwise another writer compacted or added rows.
        if len(have) + len(waiting) != len(plan.files):
            raise TopicHalted(
                target.topic,
                f"table {shown(target.identifier)} holds files that are not among the archives; {_DROP}",
            )
        done = {item.partition: item.end for item in plan.files if item.data_file.path in have}
        # Bounded parts, because a topic may have any number of archives.
        parts = [waiting[at : at + self._files_max] for at in range(0, len(waiting), self._files_max)]
        for part in parts or ([[]] if self._unfinished(view, plan) else []):
            # Each commit has the watermarks that it reaches, so a partly rebuilt table is recognised.
            done |= {item.partition: item.end for item in part}
            view = self._add(target, plan, view, part, done, last=part is parts[-1] if parts else True)
        return view

    def _unfinished(self, view: TableView, plan: Plan) -> bool:
        """A table without a file needs no snapshot, unless it must state watermarks."""
        return view.snapshot_id is None and plan.proven and any(plan.reached.values())

    def _begun(self, target: TableTarget, plan: Plan) -> TableView:
        view = self._tables.load(target.identifier)
        if view is not None:
            return view
        if not isinstance(self._tables, Registers):
            raise TopicHalted(
                target.topic,
                f"the catalog of table {shown(target.identifier)} cannot register a table with given field "
                "ids",
            )
        # The property marks the table as begun by this rebuild, so a later run may continue it.
        properties = table_properties(
            target.cluster_id, target.topic_id, target.topic, {REBUILT: plan.in_place_of}
        )
        self._check()
        failpoints.reach("table.create.before")
        try:
            view = self._tables.register(
                target.identifier,
                target.location,
                plan.schema_json,
                plan.last_column_id,
                target.granularity,
                properties,
            )
        # A run before this one, or this request, may have registered it. `_check_begun` decides whose it is.
        except (KeyExists, OutcomeUnknown):
            view = self._tables.load(target.identifier)
            if view is None:
                raise
        failpoints.reach("table.create.after")
        return view

    def _partitioned(self, view: TableView, target: TableTarget, plan: Plan) -> TableView:
        """The table with a partition spec for every file, and the configuration's as its default."""
        # Archives keep the partition spec of their time, so the table needs each of those specs.
        named = {named_granularity(item.data_file.path) for item in plan.files}
        lacking = sorted(one for one in named if one is not None and newest_spec(view, one) is None)
        # The configured one comes last, because each request also makes its spec the default.
        for granularity in (*lacking, target.granularity):
            if view.granularity == granularity:
                continue
            self._check()
            answer = self._tables.repartition(view, granularity)
            # Only the table shows the outcome, for an applied answer as well.
            found = load_table(self._tables, target, view.uuid)
            if found is None or found.granularity != granularity:
                why = (
                    f"table {shown(target.identifier)} is not partitioned by {granularity} yet "
                    f"({answer.why}); the next run goes on"
                )
                raise (OutcomeUnknown if answer.outcome is SwapOutcome.UNKNOWN else RetryLater)(why)
            view = found
        return view

    def _check_begun(self, view: TableView, target: TableTarget, plan: Plan) -> None:
        if view.properties.get(REBUILT) != plan.in_place_of:
            raise TopicHalted(
                target.topic,
                f"there is a table {shown(target.identifier)} (uuid {view.uuid}) already, and it was "
                "not begun to be made in the place "
                f"of the lost one; {way_out(view, target)}, or name another table in the "
                "configuration, then rebuild again",
            )
        check_identity(view, target, view.uuid)

    def _add(
        self,
        target: TableTarget,
        plan: Plan,
        view: TableView,
        part: Sequence[RestoredFile],
        done: Mapping[int, int],
        *,
        last: bool,
    ) -> TableView:
        """One commit, repeated until the table shows it."""
        paths = {item.data_file.path for item in part}
        name = shown(target.identifier)

        def step(attempt: Attempt) -> Done[TableView] | Request[TableView]:
            # The first attempt uses the view of the caller, which saves one load for each part.
            found = view if attempt.number == 0 else self._tables.load(target.identifier)
            if found is None or found.uuid != view.uuid:
                raise TopicHalted(
                    target.topic, f"table {name} disappeared during the rebuild; run the rebuild again"
                )
            if found.sequence_number > view.sequence_number:
                # The reply was lost, the commit was not.
                if not paths or paths <= {one.path for one in self._tables.live_files(found)}:
                    return Done(found)
                # Our commit may be in the table, and another writer may have compacted its files since. Only
                # the checks at the beginning of a run can distinguish the two.
                raise RetryLater(f"another writer changed table {name} during the rebuild")
            attempt.loaded(found)
            prepared = self._prepared(target, plan, found, part, done, last=last)

            def confirm() -> TableView | None:
                after = self._tables.load(target.identifier)
                is_in = after is not None and any(
                    one.snapshot_id == prepared.snapshot_id for one in after.lineage()
                )
                return after if is_in else None

            return Request(lambda: self._tables.swap(prepared), "table.swap", prepared, confirm)

        result = retry_swap(step, self._check, self._limits, self._clock)
        if isinstance(result, NotApplied):
            why = result.why or "the table does not show it"
            raise result.error(f"table {name} is not rebuilt yet ({why}); the next rebuild goes on from here")
        return result

    def _prepared(
        self,
        target: TableTarget,
        plan: Plan,
        view: TableView,
        part: Sequence[RestoredFile],
        done: Mapping[int, int],
        *,
        last: bool,
    ) -> Prepared:
        commit_id = new_uuid(self._ids)
        # Only the last part covers the gaps after the last file. Before it, a partition ends with its file.
        reached = plan.reached if last else {**plan.starts, **done}
        offsets = tuple(reached.get(partition, 0) for partition in range(target.partitions))

        def properties(snapshot_id: int, sequence_number: int) -> Mapping[str, str]:
            stamp = {COMMIT_ID: str(commit_id)}
            # Watermarks that may be too high would let records be skipped, so the table gets none.
            if not plan.proven:
                return stamp
            return {
                **stamp,
                WATERMARKS: Evidence(snapshot_id, sequence_number, self._epoch, commit_id, offsets).to_json(),
            }

        summary = {COMMIT_ID: str(commit_id), REBUILT: str(len(part))}
        return self._tables.prepare(
            view, [item.data_file for item in part], properties, summary, merge=False, expire=()
        )


def way_out(view: TableView, target: TableTarget) -> str:
    """What an operator can do with a table that occupies the name."""
    # In the topic's own folder it must not be renamed. Cleaning deletes every file there that the topic's
    # table does not name.
    if view.location.rstrip("/") != target.location.rstrip("/"):
        return "rename or drop it"
    return (
        "drop it without purging (it lies in the topic's own folder: under another name, cleaning would "
        "take its files)"
    )


_DROP = "another writer changed it: drop it, then rebuild again"
