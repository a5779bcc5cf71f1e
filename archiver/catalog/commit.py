"""Commits pending archives to a table, by protocol rules C1 to C6. The only writer of new rows.

Promises that a row is never in the table twice, also with other writers. An unknown outcome deletes and kills
nothing. The caller must write the result into the ledger before it calls again.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from archiver.catalog.assessment import Choice, assess_table, choose, complete_since, pending_tokens
from archiver.catalog.evidence import Evidence, Gaps, Known, no_gaps
from archiver.catalog.expiry import expired, recorded
from archiver.catalog.identity import TableTarget, load_table
from archiver.catalog.swap_retry import Attempt, CommitLimits, Done, NotApplied, Request, retry_swap
from archiver.catalog.table_layout import (
    COMMIT_ID,
    PARTITION_BY,
    RANGES,
    RETIRED,
    VALID_THROUGH,
    WATERMARKS,
    StreamFields,
    left_by_us,
    missing_bounds,
    stream_fields,
)
from archiver.catalog.tables import LiveFile, Prepared, SnapshotView, Swapped, Tables, TableView, shown
from archiver.ledger.leader import Leader
from archiver.ledger.views import PendingFile, TopicLedger
from archiver.objects.paths import parse_archive_key
from archiver.proto import control_log_pb2 as pb
from archiver.runtime.clock import Clock
from archiver.runtime.errors import CatalogAway, Halt, OutcomeUnknown, RetryLater, TopicHalted
from archiver.runtime.ids import TopicId
from archiver.runtime.text import counted

RANGES_CHARACTERS_MAX = 1024
"""Longer range lists are not written: a summary stays in the metadata for as long as its snapshot."""


@dataclass(frozen=True, slots=True)
class CommitOutcome:
    """The state of a table after a commit or an inspection, recorded in the ledger as COMMIT_TO_TABLE."""

    table_uuid: uuid.UUID
    snapshot_id: int | None
    """Our newest snapshot in the table's lineage, else its current one."""
    sequence_number: int
    """The table's last sequence number as seen: the T3 token of what is written next."""
    watermarks: dict[int, int]
    """Of every partition. The fold assigns them (rule T4), so a rollback lowers them."""
    committed: tuple[str, ...]
    """Keys now in the table."""
    killed: tuple[tuple[str, str], ...]
    """Keys that will never be in it, with the reason."""
    valid_through_us: int
    """The table holds every record received before; 0 if that is not known."""
    findings: tuple[str, ...] = ()
    """Changes of other writers, for messages."""
    news: bool = True
    """The ledger does not record it yet."""

    def to_proto(
        self, commit_id: uuid.UUID, topic_id: TopicId, event: pb.Event | None = None
    ) -> pb.TableCommitted:
        """The body of the ledger entry, to be split where it is too large. Without an event it records an
        inspection.
        """
        body = pb.TableCommitted(
            commit_id=commit_id.bytes,
            topic_id=bytes.fromhex(topic_id),
            table_uuid=self.table_uuid.bytes,
            # Proto3 has no null: 0 means that the table has no snapshot.
            snapshot_id=self.snapshot_id or 0,
            sequence_number=self.sequence_number,
            watermarks=[
                pb.PartitionOffset(partition=partition, offset=offset)
                for partition, offset in sorted(self.watermarks.items())
            ],
            committed=self.committed,
            killed=[pb.TableCommitted.Killed(key=key, why=why) for key, why in self.killed],
            valid_through_us=self.valid_through_us,
        )
        if event is not None:
            body.event.CopyFrom(event)
        return body


@dataclass(frozen=True, slots=True)
class _Assessed:
    """The assessment of one load, and the choice that follows from it."""

    view: TableView
    known: Known
    choice: Choice
    revived: tuple[str, ...]
    """Killed keys that are in the table: a late request of an earlier leader was applied."""


class Committer:
    """Commits pending archives to the tables of one catalog, on behalf of one leader."""

    def __init__(self, tables: Tables, leader: Leader, limits: CommitLimits, clock: Clock) -> None:
        self._tables = tables
        self._leader = leader
        self._limits = limits
        self._clock = clock
        self.attempts = 0
        """Number of attempts of the newest call."""

    def settle(self, target: TableTarget, gaps: Gaps = no_gaps) -> CommitOutcome | None:
        """Inspect the table and offer nothing (rule T1). Returns what the ledger must record; None if it is
        up to date.

        Offsets are compared modulo `gaps` (rule C2). Raises `TopicHalted` if an operator must act first,
        `RetryLater` if the catalog cannot be reached.
        """
        ledger = self._leader.fold.topic(target.topic_id)
        assessed = self._assess(target, ledger, gaps)
        if assessed is None:
            return None
        outcome = self._outcome(assessed, ledger, 0)
        # Otherwise each inspection of an idle table would grow the ledger.
        return outcome if outcome.news else None

    def sound(self, target: TableTarget, gaps: Gaps = no_gaps) -> TableView | None:
        """The table as it is now, if its evidence agrees with the ledger; None if there is no table yet.
        Raises as `settle`.
        """
        assessed = self._assess(target, self._leader.fold.topic(target.topic_id), gaps)
        return None if assessed is None else assessed.view

    def commit(
        self,
        target: TableTarget,
        commit_id: uuid.UUID,
        valid_through_us: int = 0,
        fence: bool = False,
        gaps: Gaps = no_gaps,
    ) -> CommitOutcome | None:
        """Add the topic's pending archives to the table with one snapshot; None if there is no table and
        nothing is pending.

        The table claims `valid_through_us` if all of them are added. `fence` commits even if there is nothing
        to add (rule D2). Offsets are compared modulo `gaps` (rule C2). Raises `Deposed`; `TopicHalted` if an
        operator must act; `RetryLater` if nothing was committed within the bounds; `OutcomeUnknown` if the
        last request may still be applied. In each case the files stay pending, and a later call continues.
        """

        def prepare(assessed: _Assessed, ledger: TopicLedger) -> Prepared | None:
            # Nothing to add: an empty snapshot would only cost metadata, unless a fence needs it (rule D2).
            if not assessed.choice.offered and not fence:
                return None
            return self._prepare(target, assessed, ledger, commit_id, valid_through_us)

        return self._repeat(target, gaps, prepare, valid_through_us)

    def retire(self, target: TableTarget, commit_id: uuid.UUID, gaps: Gaps = no_gaps) -> CommitOutcome | None:
        """Remove the files that lie wholly below the ledger's starts, with one snapshot of operation
        `delete`. Their objects stay. If there are none, the outcome of an inspection; None if there is no
        table.

        Nothing is offered, and the evidence of all partitions is carried forward. Raises as `commit`.
        """

        def prepare(assessed: _Assessed, ledger: TopicLedger) -> Prepared | None:
            view = assessed.view
            # Null counts of the coordinates show whether files of other writers hold rows without an offset.
            fields = stream_fields(view.schema_json)
            live = (
                self._tables.live_files(view, nulls_of=(fields.partition, fields.offset))
                if view.snapshot_id is not None
                else ()
            )
            # Without a start, retention never removed anything of this topic.
            paths = list(below_start(live, ledger.starts, fields)) if ledger.starts else []
            if not paths:
                return None
            stamp = {COMMIT_ID: str(commit_id)}
            # The same commit expires snapshots that still name the files. Otherwise their objects stay on
            # disk.
            old = self._unread(view, ledger)
            changes = recorded(view, old, ledger, assessed.known.watermarks)

            def properties(snapshot_id: int, sequence_number: int) -> Mapping[str, str]:
                # The watermarks do not move: rows below a start were in the table once, and count as
                # complete.
                evidence = Evidence(
                    snapshot_id, sequence_number, self._leader.epoch, commit_id, assessed.known.watermarks
                )
                return {**stamp, **changes, WATERMARKS: evidence.to_json()}

            try:
                return self._tables.prepare_removal(
                    view, paths, properties, {**stamp, RETIRED: str(len(paths))}, old
                )
            except Halt as error:
                raise TopicHalted(target.topic, str(error)) from error

        return self._repeat(target, gaps, prepare, 0, offering=False)

    def fence(self, target: TableTarget, commit_id: uuid.UUID, gaps: Gaps = no_gaps) -> CommitOutcome | None:
        """Commit a snapshot of this epoch that changes nothing (rule D2). No request that was sent before can
        be applied after it.

        Pending archives stay pending. None if there is no table. Raises as `commit`.
        """

        def prepare(assessed: _Assessed, ledger: TopicLedger) -> Prepared:
            # With `offering=False` the choice has no files, so this snapshot is empty. It only moves the
            # base.
            return self._prepare(target, assessed, ledger, commit_id, 0)

        return self._repeat(target, gaps, prepare, 0, offering=False)

    def forget(self, target: TableTarget, commit_id: uuid.UUID, gaps: Gaps = no_gaps) -> CommitOutcome | None:
        """As `fence`, but expires all ancestors that are too old to be read by a query; nothing if there are
        none. An idle table would otherwise name for ever the files that retention removed.
        """

        def prepare(assessed: _Assessed, ledger: TopicLedger) -> Prepared | None:
            old = self._unread(assessed.view, ledger)
            # A commit that expires nothing would add a snapshot to a table in which nothing changed.
            return self._prepare(target, assessed, ledger, commit_id, 0, old) if old else None

        return self._repeat(target, gaps, prepare, 0, offering=False)

    def _unread(self, view: TableView, ledger: TopicLedger) -> tuple[int, ...]:
        """Snapshots that only `snapshots_max` keeps. With retention they must expire: the files that they
        name cannot be deleted before.
        """
        # A count of 1 makes age the only limit, so every snapshot older than that goes.
        return expired(view, ledger.pending, 1, self._limits.snapshots_age_s, self._clock.now_us())

    def _repeat(
        self,
        target: TableTarget,
        gaps: Gaps,
        prepare: Callable[[_Assessed, TopicLedger], Prepared | None],
        valid_through_us: int,
        *,
        offering: bool = True,
    ) -> CommitOutcome | None:
        """Swap in what `prepare` makes of the assessed table; None ends the loop with the outcome of an
        inspection. Without `offering`, archives that are due stay pending.
        """
        self.attempts = 0

        def step(attempt: Attempt) -> Done[CommitOutcome | None] | Request[CommitOutcome | None] | RetryLater:
            self.attempts += 1
            # Read again in every attempt: the log check before a request may have folded new entries.
            ledger = self._leader.fold.topic(target.topic_id)
            try:
                assessed = self._assess(target, ledger, gaps, offering=offering)
                if assessed is None:
                    # A table that is gone must not pass for an idle topic while archives wait for it.
                    _must_be_idle(target, ledger)
                    return Done(None)
                # Before `prepare`: this load may show that the open request can no longer be applied (rule
                # C6).
                attempt.loaded(assessed.view)
                prepared = prepare(assessed, ledger)
            # Returned, not raised: another attempt may pass, and the loop decides whether the bounds allow
            # it.
            except RetryLater as error:
                return error
            if prepared is None:
                return Done(self._outcome(assessed, ledger, valid_through_us))

            def send() -> Swapped:
                return self._tables.swap(prepared)

            def confirm() -> CommitOutcome | None:
                # A reply of 200 alone is not recorded. The ledger must never name a commit that no load
                # shows.
                view = self._verify(target, ledger, prepared)
                return None if view is None else _applied(assessed, view, prepared, valid_through_us)

            return Request(send, "table.swap", prepared, confirm)

        result = retry_swap(step, self._leader.check, self._limits, self._clock)
        if not isinstance(result, NotApplied):
            return result
        limits = f"{counted(self._limits.attempts_max, 'attempt')} or {self._limits.timeout_s:g} s"
        message = f"table {shown(target.identifier)}: not committed after {limits}"
        why = result.why or "the reply could not be verified"
        if result.is_open:
            # The last request may still be applied, so the caller must not plan or delete as if it failed
            # (rule C6).
            unknown = OutcomeUnknown(
                f"{message}; the last request may still land ({why}); the next run checks the table"
            )
            unknown.catalog_away = result.catalog_away
            raise unknown
        # `CatalogAway` lets archiving continue with the ledger's state (decision 0024).
        raise (CatalogAway if result.catalog_away else RetryLater)(f"{message} ({why}); the next run goes on")

    def _assess(
        self, target: TableTarget, ledger: TopicLedger, gaps: Gaps, *, offering: bool = True
    ) -> _Assessed | None:
        found = assess_table(self._tables, target, ledger, gaps)
        if found is None:
            return None
        try:
            known = found.trusted(target.topic)
        except TopicHalted:
            # A newer leader may have written what this ledger lacks, retention's starts among it. Then this
            # leader is deposed, and the table is right.
            self._leader.check()
            raise
        # Only commits after the oldest token can have added a pending path on a branch (rule C3).
        view, tokens = found.view, pending_tokens(found.view, ledger)
        aside = self._tables.aside_paths(view, min(tokens)) if tokens else frozenset[str]()
        choice = choose(
            ledger.pending, known.watermarks, found.paths, complete_since(view), ledger.starts, gaps, aside
        )
        # The verdicts committed and refused still count. Only the addition of files is left out.
        if not offering:
            # The evidence must not claim offsets of files that this snapshot does not add.
            choice = replace(choice, offered=(), reached=known.watermarks)
        return _Assessed(view, known, choice, found.revived)

    def _outcome(self, assessed: _Assessed, ledger: TopicLedger, valid_through_us: int) -> CommitOutcome:
        """The outcome of an inspection without a commit."""
        choice, known = assessed.choice, assessed.known
        # Revived keys were killed. The ledger must list them as committed, or streams skip their records.
        committed = (*(item.archive.key for item in choice.committed), *assessed.revived)
        watermarks = dict(enumerate(known.watermarks))
        # An archive that is killed or still due leaves records out, so the table cannot claim the time.
        complete = not choice.killed and not choice.offered
        # A snapshot of another writer moves the number too. The ledger needs it for the next T3 token.
        moved = ledger.sequence_number != assessed.view.sequence_number
        differs = any(ledger.watermark(partition) != offset for partition, offset in watermarks.items())
        return CommitOutcome(
            table_uuid=assessed.view.uuid,
            snapshot_id=known.evidence.snapshot_id
            if known.evidence is not None
            else assessed.view.snapshot_id,
            sequence_number=assessed.view.sequence_number,
            watermarks=watermarks,
            committed=committed,
            killed=_killed(choice),
            valid_through_us=valid_through_us if complete else 0,
            findings=_findings(known),
            news=bool(committed or choice.killed or moved or differs),
        )

    def _prepare(
        self,
        target: TableTarget,
        assessed: _Assessed,
        ledger: TopicLedger,
        commit_id: uuid.UUID,
        valid_through_us: int,
        old: tuple[int, ...] | None = None,
    ) -> Prepared:
        """A snapshot with the offered files; it expires the snapshots `old`, or else those beyond the
        limits.
        """
        choice, view, limits = assessed.choice, assessed.view, self._limits
        if old is None:
            old = expired(
                view, ledger.pending, limits.snapshots_max, limits.snapshots_age_s, self._clock.now_us()
            )
        # Row changes of external snapshots must survive their expiry, or the audit counts those rows as lost.
        changes = recorded(view, old, ledger, assessed.known.watermarks)
        # Records of a killed archive are missing until they are planned again.
        valid_through = 0 if choice.killed else valid_through_us
        stamp = {COMMIT_ID: str(commit_id)} | (
            {VALID_THROUGH: iso_time(valid_through)} if valid_through else {}
        )
        # Another writer changed the partition spec, and the configuration followed. From here on the spec
        # counts as ours, so that a later change of it is recognised as external.
        taken_over = (
            {PARTITION_BY: target.granularity}
            if left_by_us(view) != target.granularity == view.granularity
            else {}
        )

        def properties(snapshot_id: int, sequence_number: int) -> Mapping[str, str]:
            # One commit sets evidence and files. Set afterwards, a crash would leave evidence of an older
            # snapshot.
            evidence = Evidence(snapshot_id, sequence_number, self._leader.epoch, commit_id, choice.reached)
            return {
                **stamp,
                **taken_over,
                **changes,
                **missing_bounds(view.properties),
                WATERMARKS: evidence.to_json(),
            }

        try:
            return self._tables.prepare(
                view,
                # A range of gaps has no file. It only moves the watermark.
                [data_file for item in choice.offered if (data_file := item.data_file) is not None],
                properties,
                {**stamp, RANGES: ranges_text(choice.offered)},
                # Counted by the table, not by the process, so that a restart does not postpone the merge.
                merge=(view.sequence_number + 1) % limits.merge_every == 0,
                expire=old,
            )
        except Halt as error:
            raise TopicHalted(target.topic, str(error)) from error

    def _verify(self, target: TableTarget, ledger: TopicLedger, prepared: Prepared) -> TableView | None:
        """The table after an applied swap if our snapshot is in its lineage; else None."""
        try:
            view = load_table(self._tables, target, ledger.table_uuid)
        except RetryLater:
            return None
        # Another writer may have rolled the table back at once. Then the commit is not part of the table.
        if view is None or all(item.snapshot_id != prepared.snapshot_id for item in view.lineage()):
            return None
        return view


def iso_time(us: int) -> str:
    """Microseconds since 1970 as ISO 8601 in UTC."""
    # `fromtimestamp` takes a float, which may be off by a microsecond.
    moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=us)
    return moment.isoformat(timespec="microseconds")


def ranges_text(offered: tuple[PendingFile, ...]) -> str:
    """What a commit adds, `partition:base-end` with neighbours joined; only a count if that would be long."""
    joined: dict[int, tuple[int, int]] = {}
    for item in offered:
        # Offered files of one partition follow each other without a hole, so base and end are enough.
        base, _ = joined.get(item.archive.partition, (item.archive.base, 0))
        joined[item.archive.partition] = (base, item.archive.end)
    text = ",".join(f"{partition}:{base}-{end}" for partition, (base, end) in sorted(joined.items()))
    return text if len(text) <= RANGES_CHARACTERS_MAX else counted(len(joined), "partition")


def _must_be_idle(target: TableTarget, ledger: TopicLedger) -> None:
    if ledger.pending:
        raise TopicHalted(
            target.topic,
            f"archives are written but table {shown(target.identifier)} does not exist; check the catalog",
        )


def _killed(choice: Choice) -> tuple[tuple[str, str], ...]:
    return tuple((item.archive.key, why) for item, why in choice.killed)


def _applied(
    assessed: _Assessed, view: TableView, prepared: Prepared, valid_through_us: int
) -> CommitOutcome:
    choice = assessed.choice
    # Ranges of gaps have no key: the watermark alone resolves them in the ledger.
    keys = [item.archive.key for item in (*choice.committed, *choice.offered) if item.archive.key]
    return CommitOutcome(
        table_uuid=view.uuid,
        snapshot_id=prepared.snapshot_id,
        # Not that of the load: another writer may have committed in between, and this entry is about our
        # snapshot.
        sequence_number=prepared.base_sequence_number + 1,
        watermarks=dict(enumerate(choice.reached)),
        committed=(*keys, *assessed.revived),
        killed=_killed(choice),
        valid_through_us=0 if choice.killed else valid_through_us,
        findings=_findings(assessed.known),
    )


def _findings(known: Known) -> tuple[str, ...]:
    # A `replace` is a compaction, which keeps the rows, so it is no finding.
    return tuple(_finding(snapshot) for snapshot in known.external if snapshot.operation != "replace")


def _finding(snapshot: SnapshotView) -> str:
    return (
        f"snapshot {snapshot.snapshot_id} ({snapshot.operation or 'no operation named'}) is not the "
        "archiver's"
    )


def below_start(files: Iterable[LiveFile], starts: Mapping[int, int], fields: StreamFields) -> Iterator[str]:
    """Paths of the files of which every row has an offset below its partition's start.

    Files that other writers compacted count as well, if their bounds show it. In a file that mixes
    partitions, every partition between the bounds must have a start above the file's last offset. A file that
    reaches beyond a start stays. So does a file with rows that may lack coordinates (rows of other writers).
    """
    for file in files:
        low, high, last = file.partition_min, file.partition_max, file.offset_max
        # The last condition bounds the loop below: bounds of other writers may span any number of partitions.
        if low is None or high is None or last is None or not low <= high <= low + len(starts):
            continue
        if all(last < starts.get(partition, 0) for partition in range(low, high + 1)) and _all_placed(
            file, fields
        ):
            yield file.path


def _all_placed(file: LiveFile, fields: StreamFields) -> bool:
    """Whether each row has a partition and an offset. Our archives do; for other files the metadata must show
    it.
    """
    # The last match: the location of the table may contain the same word.
    place = file.path.rfind("archive/")
    if place >= 0 and parse_archive_key(file.path[place:]) is not None:
        return True
    # A missing count proves nothing, so only an explicit 0 counts.
    nulls = dict(file.null_counts)
    return nulls.get(fields.partition) == 0 and nulls.get(fields.offset) == 0
