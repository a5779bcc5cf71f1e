"""Carries out the repairs of findings: a round without a plan, or a reset of the table's watermarks.

Every repair is idempotent: it first checks whether it is still needed. It may be killed at any step; the next
run continues. A repair never drops data to make views agree: it removes no row and no object.

*Resolving* (unknown-commit, missing-in-catalog) is what the next archiving round does anyway: inspect the
table, update the ledger, commit what waits. So the same code does it, without a plan.

*Accepting a rollback* (rolled-back, and evidence-doubted if expiry has hidden it; rule T4) needs an operator.
It runs in this order:
1. A new epoch, so that no path can be used twice (P2).
2. The table's watermarks, with an empty snapshot that is also a fence (D2,
   `archiver.catalog.reset_watermark`).
3. COMMIT_TO_TABLE without an event. It sets the lower watermark and kills the waiting archives explicitly
   (T4).
4. Resolving, as above. The next round then archives the missing records again, in order.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from archiver.catalog.assessment import revived_keys
from archiver.catalog.evidence import Doubted, Gaps, Known, judge, same_place
from archiver.catalog.external_changes import property_after_repair, rows_removed
from archiver.catalog.identity import TableTarget, load_table, target_of
from archiver.catalog.reset_watermark import (
    WatermarkReset,
    is_below_own,
    is_older_copy,
    is_set_back,
    newest_own,
    outcome_of,
)
from archiver.catalog.tables import Tables, TableView, shown
from archiver.config.settings import TopicSettings
from archiver.ledger.bridge import append_table_committed
from archiver.ledger.leadership import Leadership
from archiver.ledger.views import TopicLedger
from archiver.objects.store import ObjectStore
from archiver.runtime import failpoints
from archiver.runtime.errors import RetryLater, TopicHalted
from archiver.runtime.ids import IdSource, new_uuid
from intake.log.backlog import Backlog, windows
from intake.log.fold import TopicState
from reconcile.audit.rules import held
from reconcile.snapshot.object_listing import harmed_intake
from reconcile.snapshot.observer import Observer
from reconcile.snapshot.offset_coverage import Range, cover, merge, subtract, total
from reconcile.snapshot.offset_coverage import shown as shown_ranges
from reconcile.snapshot.retention_floor import gaps_of


def lowered(
    view: TableView,
    ledger: TopicLedger,
    held: Mapping[int, Sequence[Range]],
    partitions: int,
    gaps: Gaps,
    removed: int = 0,
) -> tuple[int, ...] | str:
    """Per partition the offset up to which the table is complete, or a text that says why it is unknown.

    `held`: the offsets of the rows in the table's files, per partition; a duplicate offset is in two ranges.
    `removed`: rows that others removed on purpose, as far as the table shows.
    """
    since = _remembered_since(view)
    found: list[int] = []
    missing = 0
    for partition in range(partitions):
        start = ledger.starts.get(partition, 0)
        recorded = max(ledger.watermark(partition), start)
        # The ledger's earlier watermark at the last commit that the table still has. It is never too high.
        remembered = start if since is None else max(start, ledger.past.lowest(partition, recorded, since))
        spans = held.get(partition, ())
        # No row is at or beyond the last one, so nothing is archived twice.
        last = max((high for _, high in spans), default=start)
        # Rows above the ledger's committed watermark may be of an archive that the ledger has as written. Its
        # commit is below the rollback, and the committing process died before it updated the ledger.
        known = max(recorded, ledger.planned_to(partition))
        if last > known and not same_place(gaps, partition, known, last):
            return f"partition {partition} holds offsets up to {last - 1}, but the ledger ends at {known}"
        # Both bounds are never too high, so the greater one is used.
        at = max(remembered, last)
        coverage = cover(start, at, gaps(partition, start, at), spans)
        if coverage.doubled:
            return f"partition {partition} holds offsets {shown_ranges(coverage.doubled)} more than once"
        # Below the remembered watermark, missing rows were removed on purpose before that commit.
        holes = [item for item in coverage.missing if item[1] > remembered]
        missing += total(holes)
        # As many rows as others removed may be missing between existing rows; more would be lost records.
        if missing > removed:
            external = f", and others removed {removed} rows" if removed else ""
            return (
                f"partition {partition} was complete up to offset {remembered}; it holds rows beyond, "
                f"and offsets {shown_ranges(holes)} between them are missing{external}"
            )
        # Watermarks at both ends of a gap stand for the same records; the recorded one changes nothing.
        found.append(recorded if same_place(gaps, partition, at, recorded) else at)
    unknown = sorted(partition for partition in held if not 0 <= partition < partitions)
    return (
        f"it holds rows of partitions {unknown}, which the topic does not have" if unknown else tuple(found)
    )


def missing_below(
    ledger: TopicLedger, held: Mapping[int, Sequence[Range]], offsets: Sequence[int], gaps: Gaps
) -> int:
    """Records that the table lacks below the offsets up to which it counts as complete."""
    found = 0
    for partition, offset in enumerate(offsets):
        start = ledger.starts.get(partition, 0)
        found += total(cover(start, offset, gaps(partition, start, offset), held.get(partition, ())).missing)
    return found


def _remembered_since(view: TableView) -> int | None:
    """The sequence number at which the ledger's history is not above the current snapshot; None if there is
    none.
    """
    current, own = next(iter(view.lineage()), None), newest_own(view)
    if current is not None and is_below_own(view):
        return current.sequence_number
    return None if own is None else own.sequence_number


KILLED = "an operator accepted the rollback of the table: its range is planned again"


@dataclass(frozen=True)
class _TopicState:
    """A topic with its ledger, table and gaps."""

    state: TopicState
    ledger: TopicLedger
    tables: Tables
    target: TableTarget
    view: TableView
    gaps: Gaps


@dataclass(eq=False)
class Repairer:
    """Repairs one topic at a time."""

    objects: ObjectStore
    cluster_id: str
    tables: Callable[[str], Tables]
    topics: Sequence[TopicSettings]
    leadership: Leadership
    intake: Callable[[], Backlog]
    """Reads the intake log to its tail."""
    settle_topic: Callable[[str], str | None]
    """Runs an archiving round without a plan for one topic. Returns why it could not finish, or None."""
    ids: IdSource
    progress: Callable[[str], None]

    def __post_init__(self) -> None:
        self._settings = {topic.name: topic for topic in self.topics}

    def settle(self, topic: str) -> None:
        """Record the table's state in the ledger, and commit what waits. Raises `TopicHalted` if that could
        not finish.
        """
        why = self.settle_topic(topic)
        if why is not None:
            raise TopicHalted(topic, why)

    def accept_rollback(self, topic: str) -> None:
        """Set the lower watermarks in ledger and table if the table was rolled back; otherwise do nothing.

        Raises `TopicHalted` if that would lose records or the watermarks are unknown; `LeaseHeld`, `Deposed`,
        and the errors of log and catalog.
        """
        with self.leadership.turn("reconciling"):
            # Always a new epoch: no path of the abandoned history may be planned again (P2).
            self.leadership.leader.take_over()
            intake = self.intake()
            at = self._topic(topic, intake)
            # An earlier run, or the operator, may have repaired it since the finding.
            if not _is_behind(at):
                return
            offsets, properties = self._lowered(at)
            # Before the first write: a table with lower watermarks and lost records could not be repaired.
            self._check_intake(at, intake, offsets)
            self._write(at, offsets, properties)
        # Outside of the turn, because the round takes one of its own.
        self.settle(topic)

    def _topic(self, topic: str, intake: Backlog) -> _TopicState:
        settings, state = self._settings.get(topic), intake.topics_by_name.get(topic)
        if settings is None or state is None or settings.archive.kind != "iceberg":
            raise TopicHalted(topic, "it has no table by the configuration")
        ledger = self.leadership.leader.fold.topic(state.topic_id)
        tables = self.tables(settings.archive.catalog or "")
        target = target_of(settings, state.topic_id, state.partitions, self.cluster_id, self.objects)
        view = load_table(tables, target, ledger.table_uuid)
        if view is None:
            raise TopicHalted(topic, f"table {shown(target.identifier)} does not exist")
        return _TopicState(state, ledger, tables, target, view, gaps_of(intake, state.topic_id))

    def _lowered(self, at: _TopicState) -> tuple[tuple[int, ...], Mapping[str, str]]:
        """The offsets up to which the table is complete, and the changed property of external row changes.

        The offsets come from the table's own evidence if it is valid, otherwise from its rows and the
        ledger's history.
        """
        state = at.state
        found = _judged(at)
        # Its own evidence is exact, for example after a crash between table and ledger.
        if isinstance(found, Known) and found.evidence is not None:
            return found.watermarks, {}
        observer = Observer(self.objects, self.cluster_id, self.tables)
        seen = observer.table(state, self._settings[state.name], at.ledger, at.gaps)
        if seen.table is None:
            raise TopicHalted(state.name, seen.unreadable or seen.absent or "its table cannot be read")
        # Two loads; rows of one snapshot must not be judged with the history of another.
        if seen.table.snapshot_id != at.view.snapshot_id:
            raise RetryLater(f"table {seen.table.name} changed while it was read; run again")
        rows = held(seen.table, state.partitions)
        if rows is None:
            raise TopicHalted(
                state.name,
                "data files of its table are missing, unreadable or contradict the table, so the offset up "
                "to which it is complete is unknown; restore the files that `archiver audit` names, and run "
                "again",
            )
        # No history is left before a cut of the lineage. Rows that others removed may be the missing ones
        # between the rows that are there.
        removed = rows_removed(at.view) if isinstance(found, Doubted) and found.unconfirmed else 0
        offsets = lowered(at.view, at.ledger, rows, state.partitions, at.gaps, removed)
        if isinstance(offsets, str):
            raise TopicHalted(
                state.name, f"the offset up to which its table is complete is unknown: {offsets}"
            )
        return offsets, property_after_repair(
            at.view, missing_below(at.ledger, rows, offsets, at.gaps), offsets
        )

    def _check_intake(self, at: _TopicState, intake: Backlog, offsets: Sequence[int]) -> None:
        """Refuse unless intake still holds every record between the lower watermarks and those of the ledger
        (P1).
        """
        for partition, offset in enumerate(offsets):
            recorded = at.ledger.watermark(partition)
            # Nothing of this partition was rolled back.
            if offset >= recorded:
                continue
            tp = (at.state.topic_id, partition)
            spans: list[Range] = []
            for window in windows(intake, tp, offset, recorded):
                # Each window is limited; a rollback may concern millions of segments.
                harmed = harmed_intake(self.objects, (segment.file for segment in window.segments))
                spans += [
                    (segment.base, segment.end)
                    for segment in window.segments
                    if segment.file.key not in harmed
                ]
            lost = subtract(
                subtract(((offset, recorded),), merge(at.gaps(partition, offset, recorded))), merge(spans)
            )
            if lost:
                raise TopicHalted(
                    at.state.name,
                    f"intake no longer holds offsets {shown_ranges(lost)} of partition {partition}, so they "
                    "could not be archived again: roll the table forward again, or drop it and rebuild it "
                    "from the archives (`archiver reconcile --rebuild`)",
                )

    def _write(self, at: _TopicState, offsets: tuple[int, ...], properties: Mapping[str, str]) -> None:
        """Write the table first and then the ledger, as a commit does."""
        leader = self.leadership.leader
        outcome = outcome_of(at.view, at.view.snapshot_id, offsets)
        # Table before ledger: a conflict in the other order would leave a ledger that agrees with no table.
        if _needs_evidence(at, offsets):
            outcome = WatermarkReset(at.tables, leader).restate(
                at.target, at.view, offsets, new_uuid(self.ids), properties
            )
        inside = _inside(at)
        waiting = [item.archive.key for item in at.ledger.pending if item.archive.key]
        killed = tuple((key, KILLED) for key in waiting if key not in inside)
        # Commit id 0: no control event belongs to this entry.
        body = outcome.to_proto(uuid.UUID(int=0), at.state.topic_id)
        # One entry, so that the lower watermark and the fate of all waiting archives are recorded together.
        body.committed.extend(inside)
        for key, why in killed:
            body.killed.add(key=key, why=why)
        append_table_committed(leader, body)
        failpoints.reach("restate.append.after")
        where = ", ".join(
            f"partition {partition} to {offset}" for partition, offset in list(enumerate(offsets))[:5]
        )
        self.progress(
            f"{at.state.name}: ledger and table have lower watermarks ({where}); the missing records are "
            "archived again"
        )


def _is_behind(at: _TopicState) -> bool:
    """Whether the table was rolled back, is behind the ledger, or has lost the snapshots that would show
    which.
    """
    if is_set_back(at.view):
        return True
    found = _judged(at)
    if isinstance(found, Doubted):
        return found.unconfirmed
    return is_older_copy(at.view, found.watermarks, at.ledger, at.gaps)


def _judged(at: _TopicState) -> Known | Doubted:
    return judge(
        at.view,
        at.state.partitions,
        lambda: at.tables.live_files(at.view),
        at.ledger.starts,
        at.gaps,
    )


def _needs_evidence(at: _TopicState, offsets: Sequence[int]) -> bool:
    """Whether the table's watermarks must be written."""
    if is_set_back(at.view):
        return True
    found = _judged(at)
    # An earlier run may have written them and died before the ledger entry.
    return isinstance(found, Doubted) or tuple(found.watermarks) != tuple(offsets)


def _inside(at: _TopicState) -> tuple[str, ...]:
    """Keys that the ledger counts as waiting or refused, although the table has them below the rollback."""
    ledger = at.ledger
    # From sequence number 0: after a second rollback, a refused archive may be in an older snapshot.
    paths = at.tables.data_paths(at.view, 0) if ledger.pending or ledger.killed else frozenset()
    return (
        *(item.archive.key for item in ledger.pending if item.path in paths),
        # If they stayed refused, the table would have rows that no stream reads.
        *revived_keys(ledger, paths),
    )
