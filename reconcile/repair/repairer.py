"""Carries out what findings propose, through the writers that there are: a round of archiving that plans
nothing, and evidence put anew.

Every repair is idempotent: it looks first, so one that was carried out already, or that somebody else was
quicker with, does nothing. Each can be killed at any step; the next one goes on. Must never drop data to make
views agree: nothing here removes a row or an object.

*Settling* (unknown-commit, missing-in-catalog) is what the next round of archiving does anyway: look at the
table, tell the ledger, commit what waits. So it is done by that very code, without a plan.

*Taking over a rollback* (rolled-back, and evidence-doubted where expiry has hidden it; rule T4) is only done
for an operator. In this order: a new epoch, so that no path can be used twice (P2); the table's evidence,
with an empty snapshot that is a fence as well (D2, `archiver.catalog.reset_watermark`); COMMIT_TO_TABLE
without an event, which assigns the lower watermark and kills what waited, in the open (T4); settling. A crash
between table and ledger leaves the topic halted as before, and the finding stands, so the next run goes on.
Before anything is written, it must be sure that the records come back: every one that the ledger counted as
archived and the table lacks must still stand in intake (P1; rule D3 keeps it as long as a retained snapshot
is older). Then the next round archives them again, in order, and each is in the table once.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from archiver.catalog.consistency import revived_keys
from archiver.catalog.evidence import Doubted, Gaps, Known, judge
from archiver.catalog.external_changes import rows_removed, told_after_repair
from archiver.catalog.identity import TableTarget, load_table, target_of
from archiver.catalog.reset_watermark import WatermarkReset, is_older_copy, is_set_back, outcome_of
from archiver.catalog.tables import Tables, TableView, shown
from archiver.config.settings import TopicSettings
from archiver.ledger.bridge import append_table_committed
from archiver.ledger.leadership import Leadership
from archiver.ledger.views import TopicLedger
from archiver.objects.store import ObjectStore
from archiver.runtime import failpoints
from archiver.runtime.errors import RetryLater, TopicHalted
from archiver.runtime.ids import IdSource, new_uuid
from intake.log.backlog import Backlog
from intake.log.fold import TopicState
from intake.log.window import windows
from reconcile.audit.rules import held
from reconcile.repair.rollback import lowered, missing_below
from reconcile.snapshot.object_listing import harmed_intake
from reconcile.snapshot.observer import Observer
from reconcile.snapshot.offset_coverage import Range, merge, subtract
from reconcile.snapshot.offset_ranges import shown as shown_ranges
from reconcile.snapshot.retention_floor import gaps_of

KILLED = "the table was set back, and an operator had that taken over: its range is planned again"


@dataclass(frozen=True)
class RepairParts:
    """What repairs need; put together by the composition root."""

    objects: ObjectStore
    cluster_id: str
    tables: Callable[[str], Tables]
    topics: Sequence[TopicSettings]
    leadership: Leadership
    intake: Callable[[], Backlog]
    """Reads the intake log to its tail."""
    settle: Callable[[str], str | None]
    """Carries out a round of archiving for one topic that plans nothing; why it could not be ended, None if
    it was."""
    ids: IdSource
    progress: Callable[[str], None]


@dataclass(frozen=True)
class _Place:
    """A topic with what stands for it."""

    state: TopicState
    ledger: TopicLedger
    tables: Tables
    target: TableTarget
    view: TableView
    gaps: Gaps


class Repairer:
    """Repairs one topic at a time."""

    def __init__(self, parts: RepairParts) -> None:
        self._parts = parts
        self._settings = {topic.name: topic for topic in parts.topics}

    def settle(self, topic: str) -> None:
        """What is in the table goes into the ledger, and what waits into the table. Raises `TopicHalted` if
        it could not be ended.
        """
        why = self._parts.settle(topic)
        if why is not None:
            raise TopicHalted(topic, why)

    def take_over_rollback(self, topic: str) -> None:
        """Ledger and table get the lower watermarks, if the table was set back; else nothing is done.

        Raises `TopicHalted` if that would lose records, or cannot be told; `LeaseHeld`, `Deposed`, and what
        log and catalog raise.
        """
        parts = self._parts
        with parts.leadership.turn("reconciling"):
            parts.leadership.leader.take_over()
            intake = parts.intake()
            place = self._place(topic, intake)
            if not _is_behind(place):
                return
            offsets, told = self._lowered(place)
            self._must_come_back(place, intake, offsets)
            self._write(place, offsets, told)
        self.settle(topic)

    def _place(self, topic: str, intake: Backlog) -> _Place:
        parts = self._parts
        settings, state = self._settings.get(topic), intake.topics_by_name.get(topic)
        if settings is None or state is None or settings.archive.kind != "iceberg":
            raise TopicHalted(topic, "it has no table by the configuration")
        ledger = parts.leadership.leader.fold.topic(state.topic_id)
        tables = parts.tables(settings.archive.catalog or "")
        target = target_of(settings, state.topic_id, state.partitions, parts.cluster_id, parts.objects)
        view = load_table(tables, target, ledger.table_uuid)
        if view is None:
            raise TopicHalted(topic, f"table {shown(target.identifier)} is not there")
        return _Place(state, ledger, tables, target, view, gaps_of(intake, state.topic_id))

    def _lowered(self, place: _Place) -> tuple[tuple[int, ...], Mapping[str, str]]:
        """How far the table is complete: by its own evidence if that counts, else by its rows and the
        ledger's memory; and what it is to tell of rows that others removed, where that changes.
        """
        parts, state = self._parts, place.state
        found = _judged(place)
        if isinstance(found, Known) and found.evidence is not None:
            return found.watermarks, {}
        observer = Observer(parts.objects, parts.cluster_id, parts.tables)
        seen = observer.table(state, self._settings[state.name], place.ledger, place.gaps)
        if seen.table is None:
            raise TopicHalted(state.name, seen.unreadable or seen.absent or "its table cannot be looked at")
        if seen.table.snapshot_id != place.view.snapshot_id:
            raise RetryLater(f"table {seen.table.name} was changed while it was looked at; look again")
        rows = held(seen.table, state.partitions)
        if rows is None:
            raise TopicHalted(
                state.name,
                "not every file of its table can be told (`archiver audit` names them): mend that first",
            )
        # Behind a cut nobody remembers which rows were there: what others removed is what may be missing
        # between those that are.
        removed = rows_removed(place.view) if isinstance(found, Doubted) and found.unconfirmed else 0
        offsets = lowered(place.view, place.ledger, rows, state.partitions, place.gaps, removed)
        if isinstance(offsets, str):
            raise TopicHalted(state.name, f"how far its table is complete cannot be told: {offsets}")
        return offsets, told_after_repair(
            place.view, missing_below(place.ledger, rows, offsets, place.gaps), offsets
        )

    def _must_come_back(self, place: _Place, intake: Backlog, offsets: Sequence[int]) -> None:
        """Refuse unless intake still holds every record between the lower watermarks and those of the ledger
        (P1).
        """
        for partition, offset in enumerate(offsets):
            recorded = place.ledger.watermark(partition)
            if offset >= recorded:
                continue
            tp = (place.state.topic_id, partition)
            spans: list[Range] = []
            for window in windows(intake, tp, offset, recorded):
                harmed = harmed_intake(self._parts.objects, (segment.file for segment in window.segments))
                spans += [
                    (segment.base, segment.end)
                    for segment in window.segments
                    if segment.file.key not in harmed
                ]
            lost = subtract(
                subtract(((offset, recorded),), merge(place.gaps(partition, offset, recorded))), merge(spans)
            )
            if lost:
                raise TopicHalted(
                    place.state.name,
                    f"intake does not hold offsets {shown_ranges(lost)} of partition {partition} any "
                    "more, so they could not be archived "
                    "again: roll the table forward again, or drop it and make it anew from the "
                    "archives (`archiver reconcile --rebuild`)",
                )

    def _write(self, place: _Place, offsets: tuple[int, ...], told: Mapping[str, str]) -> None:
        """First the table, then the ledger, as a commit does."""
        leader = self._parts.leadership.leader
        outcome = outcome_of(place.view, place.view.snapshot_id, offsets)
        if _needs_evidence(place, offsets):
            outcome = WatermarkReset(place.tables, leader).restate(
                place.target, place.view, offsets, new_uuid(self._parts.ids), told
            )
        inside = _inside(place)
        waiting = [item.archive.key for item in place.ledger.pending if item.archive.key]
        killed = tuple((key, KILLED) for key in waiting if key not in inside)
        body = outcome.to_proto(uuid.UUID(int=0), place.state.topic_id)
        body.committed.extend(inside)
        for key, why in killed:
            body.killed.add(key=key, why=why)
        append_table_committed(leader, body)
        failpoints.reach("restate.append.after")
        where = ", ".join(
            f"partition {partition} to {offset}" for partition, offset in list(enumerate(offsets))[:5]
        )
        self._parts.progress(
            f"{place.state.name}: ledger and table are set back ({where}); what is missing is archived again"
        )


def _is_behind(place: _Place) -> bool:
    """Was the table set back, is it behind the ledger, or has somebody hidden by expiry which of both?"""
    if is_set_back(place.view):
        return True
    found = _judged(place)
    if isinstance(found, Doubted):
        return found.unconfirmed
    return is_older_copy(place.view, found.watermarks, place.ledger, place.gaps)


def _judged(place: _Place) -> Known | Doubted:
    return judge(
        place.view,
        place.state.partitions,
        lambda: place.tables.live_files(place.view),
        place.ledger.starts,
        place.gaps,
    )


def _needs_evidence(place: _Place, offsets: Sequence[int]) -> bool:
    """Not if an earlier run got so far: the table says these offsets already, and only the ledger was not
    told.
    """
    if is_set_back(place.view):
        return True
    found = _judged(place)
    return isinstance(found, Doubted) or tuple(found.watermarks) != tuple(offsets)


def _inside(place: _Place) -> tuple[str, ...]:
    """Keys that the ledger takes for waiting or refused and that are in the table all the same, below the
    rollback: they stay there.

    Refused, they would be in the table and yet not be read by any stream. The whole lineage is looked at:
    after a second turn of the table, a refused archive may have come with a snapshot that is older than the
    ledger's last look.
    """
    ledger = place.ledger
    paths = place.tables.data_paths(place.view, 0) if ledger.pending or ledger.killed else frozenset()
    return (
        *(item.archive.key for item in ledger.pending if item.path in paths),
        *revived_keys(ledger, paths),
    )
