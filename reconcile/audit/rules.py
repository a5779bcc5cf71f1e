"""Judges one topic: from views to one finding per partition, without effects.

*valid*: every offset from the start to the watermark is in the table exactly once, or is a gap, or was
explicitly removed by a snapshot. Every later offset is in an existing intake file. *invalid*: some offset is
not, and the verdict names it. *unknown*: the views do not show it. A verdict is never valid for data that was
not read, and never invalid without an offset, a file or a contradiction.

The proof `bounds` rests on the writer's invariants: an archive holds each offset of the range in its name
once, so its name, bounds and row count prove its content. Other files need the proof `rows`. After the deep
audit (`reconcile.audit.deep`) all files have it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from archiver.runtime.text import counted
from reconcile.snapshot.offset_coverage import (
    SHOWN_MAX,
    Range,
    cover,
    intersect,
    merge,
    shown,
    subtract,
    total,
)
from reconcile.snapshot.topic_views import FileView, PartitionView, TableState, TopicView

Verdict = Literal["valid", "invalid", "unknown"]
Proof = Literal["bounds", "rows"]


@dataclass
class PartitionFinding:
    """The audit's result for one topic partition."""

    view: PartitionView
    rows: int = 0
    """Rows of the partition in the table."""
    gaps: tuple[Range, ...] = ()
    missing: tuple[Range, ...] = ()
    doubled: tuple[Range, ...] = ()
    outside: tuple[Range, ...] = ()
    """Offsets from the start on that have unexpected rows."""
    removed: tuple[Range, ...] = ()
    altered: tuple[Range, ...] = ()
    """Rows in files of other writers that differ from the archived ones."""
    pending: tuple[Range, ...] = ()
    proof: Proof = "bounds"
    wrong: list[str] = field(default_factory=list)
    """Reasons for invalid."""
    unclear: list[str] = field(default_factory=list)
    """Reasons for unknown."""
    notes: list[str] = field(default_factory=list)
    """Information without effect on the verdict."""

    @property
    def verdict(self) -> Verdict:
        """The worst result: invalid before unknown before valid."""
        return "invalid" if self.wrong else "unknown" if self.unclear else "valid"

    @property
    def why(self) -> str | None:
        """All reasons and notes."""
        return "; ".join([*self.wrong, *self.unclear, *self.notes]) or None


def judge_topic(view: TopicView) -> list[PartitionFinding]:
    """One finding per partition, in order; then one per partition that only the table's rows have."""
    if view.unreadable is not None:
        findings = [_unknown(partition, view.unreadable) for partition in view.partitions]
    elif view.table is None:
        findings = [_without_table(view, partition) for partition in view.partitions]
    else:
        findings = _judge_table(view, view.table)
    for found in findings:
        # Archived records do not need intake, so only offsets above both watermarks count as lost.
        own = (
            None
            if view.table is None or view.table.watermarks is None
            else view.table.watermarks.get(found.view.partition)
        )
        _judge_lost(found, max(found.view.watermark, own or 0))
        found.unclear += found.view.doubts
        found.proof = "rows" if view.by_rows else found.proof
    return findings


def _judge_table(view: TopicView, table: TableState) -> list[PartitionFinding]:
    count = len(view.partitions) if view.count is None else view.count
    contents = _Contents(table, range(count))
    partitions = list(view.partitions)
    # Only a scope with every partition allows sums over the whole table.
    whole = len(partitions) == count
    if whole:
        partitions += [
            # Rows of partitions that the topic does not have need a finding too.
            PartitionView(number, 0, 0, 0, 0)
            for number in contents.partitions()
            if not 0 <= number < count
        ]
    findings = [_with_table(table, partition, contents) for partition in partitions]
    unexpected = contents.unplaced() + sum(total(found.outside) + total(found.doubled) for found in findings)
    # Rows that others added and that are still there explain no removal.
    explained = _explain_removals(table, findings, min(unexpected, table.additions), whole=whole)
    for found in findings:
        seen_all = (
            # Otherwise a missing offset may be a gap, removed, or in an unread file.
            explained and found.view.gaps is not None and not contents.unclear.get(found.view.partition)
        )
        _judge_missing(found, seen_all=seen_all)
    return findings


def _unknown(partition: PartitionView, why: str) -> PartitionFinding:
    return PartitionFinding(
        partition, gaps=_gaps(partition, ()), pending=merge(partition.pending), unclear=[why]
    )


def _without_table(view: TopicView, partition: PartitionView) -> PartitionFinding:
    """Without a table of this topic: valid while nothing was archived."""
    found = PartitionFinding(partition, gaps=_gaps(partition, ()), pending=merge(partition.pending))
    found.missing = subtract(merge([(partition.start, partition.watermark)]), found.gaps)
    if found.missing:
        found.wrong.append(
            view.absent or f"offsets {shown(found.missing)} are archived by the ledger, and there is no table"
        )
    elif view.absent is not None:
        found.unclear.append(view.absent)
    return found


def held(table: TableState, partitions: int) -> Mapping[int, tuple[Range, ...]] | None:
    """The offsets of the table's rows per partition; a duplicate offset is in two ranges. None if a file is
    unreadable or contradicts the table.
    """
    contents = _Contents(table, range(partitions))
    if contents.wrong or contents.unclear:
        return None
    return {partition: tuple(spans) for partition, spans in contents.spans.items()}


class _Contents:
    """The offsets in a table's files, per partition, and the faults of single files."""

    def __init__(self, table: TableState, partitions: range) -> None:
        self.spans: dict[int, list[Range]] = {}
        self.gaps: dict[int, list[Range]] = {}
        self.wrong: dict[int, list[str]] = {}
        self.unclear: dict[int, list[str]] = {}
        self.removed: dict[int, list[Range]] = {}
        self.rewriters: dict[int, set[int]] = {}
        """Per partition: snapshots that added files of other writers of which only the offsets were read."""
        self.by_rows: set[int] = set()
        self._counted = 0
        self._partitions = partitions
        for file in table.files:
            self._add(file)
        # Rows of other writers' files were read together and belong to no single file.
        for into, found in ((self.spans, table.spans), (self.removed, table.removed)):
            for partition, ranges in found.items():
                into.setdefault(partition, []).extend(ranges)
        for one in table.faults:
            self._add_reason(self.unclear if one.unclear else self.wrong, self._of(one.partition), one.why)

    def partitions(self) -> list[int]:
        """Every partition with rows, faults or doubts."""
        return sorted({*self.spans, *self.wrong, *self.unclear})

    def unplaced(self) -> int:
        """The number of rows without a partition and offset, in readable files."""
        placed = sum(
            high - low
            for found in (self.spans, self.removed)
            for ranges in found.values()
            for low, high in ranges
        )
        # Row counts of the files minus rows with coordinates; the rest lacks a partition or offset.
        return max(0, self._counted - placed)

    def _add(self, file: FileView) -> None:
        concerned = self._concerned(file)
        fault = _object_fault(file)
        for one in file.faults:
            self._add_reason(
                self.unclear if one.unclear else self.wrong,
                concerned if one.partition is None else [one.partition],
                one.why,
            )
        if fault is not None:
            self._add_reason(self.wrong, concerned, fault)
        if file.rows is not None:
            self._counted += file.record_count
            self._add_rows(file, file.rows)
        # The fault is reported; bounds of a file that does not match its object prove nothing.
        elif fault is not None or file.faults:
            return
        elif file.unread is not None or file.key is None:
            self._add_reason(
                self.unclear,
                concerned,
                f"{file.path} was written by another writer, and its rows were not read: "
                f"{file.unread or 'not tried'}",
            )
        else:
            self._add_bounds(file)

    def _add_rows(self, file: FileView, rows: Mapping[int, tuple[Range, ...]]) -> None:
        if file.rows_in_file is not None and file.rows_in_file != file.record_count:
            self._add_reason(
                self.wrong,
                self._concerned(file),
                f"{file.path} holds {counted(file.rows_in_file, 'row')}, the table says "
                f"{file.record_count:,}",
            )
        found = 0
        for partition, ranges in rows.items():
            self.spans.setdefault(partition, []).extend(ranges)
            self.by_rows.add(partition)
            # The fast audit reads only offsets of such files, and a note says so.
            if file.key is None and file.snapshot_id and ranges:
                self.rewriters.setdefault(partition, set()).add(file.snapshot_id)
            found += sum(high - low for low, high in ranges)
        for partition, ranges in (file.removed or {}).items():
            self.removed.setdefault(partition, []).extend(ranges)
            found += sum(high - low for low, high in ranges)
        if file.key is not None:
            self.gaps.setdefault(file.key.partition, []).extend(file.gaps)
            # A wrong row count in the footer was reported above; one reason per fault.
            if found != file.record_count and file.rows_in_file in (None, file.record_count):
                self._add_reason(
                    self.wrong,
                    self._concerned(file),
                    f"{file.path} holds {counted(found, 'row')}, the table says {file.record_count:,}",
                )
            if set(rows) - {file.key.partition}:
                self._add_reason(
                    self.wrong, [file.key.partition], f"{file.path} holds rows of partitions {sorted(rows)}"
                )

    def _add_bounds(self, file: FileView) -> None:
        key = file.key
        assert key is not None
        fault = _bounds_fault(file)
        if fault is not None:
            self._add_reason(self.wrong, [key.partition], fault)
            return
        self._counted += file.record_count
        # Readers use only a part of an archive that overlaps another.
        low, high = file.part or (key.base, key.end)
        self.gaps.setdefault(key.partition, []).extend(file.gaps)
        self.spans.setdefault(key.partition, []).extend(_without((low, high), file.gaps))

    def _concerned(self, file: FileView) -> list[int]:
        """The partitions that may have rows in a file."""
        if file.key is not None:
            return [file.key.partition]
        # Its rows were read, so its bounds do not matter.
        if file.rows:
            return sorted(file.rows)
        low, high = file.partition_min, file.partition_max
        within = [
            partition
            for partition in self._partitions
            if (low is None or partition >= low) and (high is None or partition <= high)
        ]
        # The bounds match no partition of the topic, but the fault must be reported for some partition.
        return within or [number for number in (low, high) if number is not None][:1]

    def _of(self, partition: int | None) -> list[int]:
        return list(self._partitions) if partition is None else [partition]

    @staticmethod
    def _add_reason(where: dict[int, list[str]], partitions: Sequence[int], why: str) -> None:
        for partition in partitions:
            where.setdefault(partition, []).append(why)


def _object_fault(file: FileView) -> str | None:
    """The fault of the object behind a file; None if it matches the table."""
    if file.object_size is None:
        return f"the table names {file.path}, which is not in the object store"
    if file.file_size is not None and file.object_size != file.file_size:
        return f"{file.path} has {file.object_size} bytes, the table says {file.file_size}"
    return None


def _without(whole: Range, gaps: Sequence[Range]) -> tuple[Range, ...]:
    """A file's range without its gaps; most files have none."""
    return subtract((whole,), merge(gaps)) if gaps else (whole,)


def _bounds_fault(file: FileView) -> str | None:
    """A contradiction between an archive and its name; None if its bounds and row count prove its content."""
    key = file.key
    assert key is not None
    # The name has the range; gaps have no rows.
    held = _without((key.base, key.end), file.gaps)
    if file.record_count != total(held):
        rows = counted(file.record_count, "row")
        return f"{file.path} has {rows} by the table, its name means {total(held):,}"
    # The table's metadata may omit bounds; then name and row count are the proof.
    if (file.partition_min, file.partition_max) not in ((None, None), (key.partition, key.partition)):
        return (
            f"{file.path} has partitions {file.partition_min} to {file.partition_max} by the table's bounds"
        )
    bounds = (file.offset_min, file.offset_max)
    if held and bounds not in ((None, None), (held[0][0], held[-1][1] - 1)):
        return f"{file.path} has offsets {file.offset_min} to {file.offset_max} by the table's bounds"
    return None


def _with_table(table: TableState, view: PartitionView, contents: _Contents) -> PartitionFinding:
    number = view.partition
    found = PartitionFinding(view, proof="rows" if number in contents.by_rows else "bounds")
    found.wrong += contents.wrong.get(number, [])
    found.unclear += contents.unclear.get(number, [])
    spans = contents.spans.get(number, [])
    own = None if table.watermarks is None else table.watermarks.get(number, 0)
    # A table may be ahead of the ledger: its newest commit is not recorded yet.
    end = max(view.watermark, own or 0)
    found.gaps = _gaps(view, contents.gaps.get(number, ()))
    coverage = cover(view.start, end, found.gaps, spans)
    found.rows = sum(high - low for low, high in spans)
    found.missing = coverage.missing
    _classify_hidden(found, table, merge(contents.removed.get(number, ())))
    # Pending archives below the end are in the table already; only the ledger entry is missing.
    found.pending = subtract(merge(view.pending), merge([(0, end)]))
    _judge_claims(found, contents.gaps.get(number, ()))
    if table.has_deletes:
        # Delete files may hide the duplicates: an engine that updates rows this way leaves both versions in
        # data files.
        found.unclear.append(
            "the table has delete files of another writer: its manifests do not show which rows they remove"
        )
    else:
        _judge_doubled(found, coverage.doubled)
        _judge_outside(found, coverage.outside, merge(spans), end)
    _judge_watermarks(found, table, own)
    _judge_rewritten(found, table, contents.rewriters.get(number, ()))
    return found


def _judge_rewritten(found: PartitionFinding, table: TableState, uncompared: Collection[int]) -> None:
    """Judge the content of rows in other writers' files. `uncompared`: snapshots with files of which only
    offsets were read.
    """
    expected = subtract(merge([(found.view.start, found.view.watermark)]), found.gaps)
    runs_of: dict[tuple[int, str], list[Range]] = {}
    for one in table.rewritten.get(found.view.partition, ()):
        # Unexpected rows are reported already, and no archive can have them.
        ranges = intersect(one.ranges, expected) if one.why else one.ranges
        runs_of.setdefault((one.snapshot_id, one.why), []).extend(ranges)
    for (snapshot_id, why), runs in sorted(runs_of.items()):
        ranges = merge(runs)
        by = f"snapshot {snapshot_id}" if snapshot_id else "another writer"
        if ranges and not why:
            found.altered = merge([*found.altered, *ranges])
            found.wrong.append(
                f"offsets {shown(ranges)} were altered by {by}: the table's rows are not the ones "
                "that were archived"
            )
        elif ranges:
            found.unclear.append(f"offsets {shown(ranges)} were rewritten by {by}: {why}")
    # No reason for unknown: the fast audit proves only offsets, in archives too (decision 0067).
    if uncompared:
        by = _snapshots(sorted(uncompared, reverse=True)[:SHOWN_MAX])
        found.notes.append(
            f"rows were rewritten by {by}; their offsets were read, `archiver audit --deep` compares their "
            "content"
        )


def _judge_doubled(found: PartitionFinding, doubled: tuple[Range, ...]) -> None:
    found.doubled = doubled
    if doubled:
        found.wrong.append(f"offsets {shown(doubled)} are in the table more than once")


def _classify_hidden(found: PartitionFinding, table: TableState, hidden: tuple[Range, ...]) -> None:
    """Rows that delete files hide are not missing: another writer removed them."""
    retained = [number for number in table.removed_by if number not in _expired(table)]
    by = _snapshots(retained, [number for number in table.removed_by if number not in retained])
    found.removed = intersect(found.missing, hidden)
    # Such rows are not missing: another writer removed them.
    found.missing = subtract(found.missing, found.removed)
    if found.removed:
        found.notes.append(f"offsets {shown(found.removed)} were removed by external {by}")


def _snapshots(retained: Sequence[int], expired: Sequence[int] = ()) -> str:
    """Snapshot ids as text, newest first, with a mark for expired ones."""
    gone = [f"{number} (which has expired)" for number in expired]
    return "snapshot " + ", ".join([*map(str, retained), *gone])


def _expired(table: TableState) -> list[int]:
    """Ids of expired snapshots that removed rows, newest first."""
    return [number for one in table.removals for number in reversed(one.expired)]


def _gaps(view: PartitionView, footers: Sequence[Range]) -> tuple[Range, ...]:
    """The offsets without a record."""
    others = merge([*footers, *view.passed])
    if view.gaps is None:
        return others
    # Below the stable offset only the log counts: every offset is decided there.
    return merge([*view.gaps, *subtract(others, merge([(0, view.stable)]))])


def _judge_claims(found: PartitionFinding, footers: Sequence[Range]) -> None:
    """Report offsets that are missing because archives or the ledger treat them as gaps, and unknown gaps."""
    # The log has a record there, so it was lost when the archive was written.
    claimed = intersect(found.missing, merge([*footers, *found.view.passed]))
    if claimed:
        found.wrong.append(
            f"offsets {shown(claimed)} were archived as gaps, and the intake log has records there"
        )
    if found.view.gaps is None and found.missing:
        found.unclear.append("the intake log does not show which offsets are gaps")


def _judge_outside(
    found: PartitionFinding, outside: Sequence[Range], held: Sequence[Range], end: int
) -> None:
    """Unexpected rows: at offsets that are not stable, in gaps, and beyond the watermark."""
    view = found.view
    # Records of an open transaction may still be aborted, so they must not be in the table.
    unstable = subtract(held, merge([(0, view.stable)]))
    if unstable:
        found.wrong.append(
            f"the table holds offsets {shown(unstable)}, but only those below {view.stable} are "
            "stable in the intake log"
        )
    found.outside = subtract(outside, merge([(0, view.start)]))
    # Reported already.
    outside = subtract(outside, unstable)
    in_gaps = intersect(outside, merge([(view.start, end)]))
    if in_gaps:
        found.wrong.append(f"the table holds rows at offsets {shown(in_gaps)}, which are gaps")
    beyond = subtract(outside, merge([(0, end)]))
    # A commit that the ledger has as pending may be in the table already.
    unwritten = subtract(beyond, merge(view.pending))
    if unwritten:
        found.wrong.append(
            f"the table holds offsets {shown(unwritten)}, beyond its watermark {end} and unknown to "
            "the ledger"
        )
    elif beyond:
        found.unclear.append(
            f"the table holds offsets {shown(beyond)} beyond its watermark {end}, which the ledger has "
            "not resolved yet"
        )


def _judge_watermarks(found: PartitionFinding, table: TableState, own: int | None) -> None:
    """Compare the ledger's watermark with the table's own evidence and with the log."""
    view = found.view
    if table.doubt is not None or table.watermarks is None:
        found.unclear.append(
            f"table {table.name}: {table.doubt or 'it does not show up to which offset it is complete'}"
        )
    if own is not None and own < view.watermark:
        reason = (
            f"the table is complete up to offset {own} by its own evidence, the ledger says {view.watermark}"
        )
        # An older table that still has every offset has lost nothing; only its evidence is old.
        (found.wrong if found.missing else found.unclear).append(f"{reason}: it was rolled back or replaced")
    if own is not None and own > view.watermark:
        unknown = subtract(((view.watermark, own),), merge(view.pending))
        if unknown:
            found.unclear.append(
                f"the table holds commits up to offset {own} that the ledger does not know (it ends "
                f"at {view.watermark})"
            )
        else:
            found.notes.append(
                f"the newest commit (up to offset {own}) is not in the ledger yet; the next archiving "
                "run records it"
            )
    # A watermark cannot be above the stable offset in one history of the log.
    if view.watermark > view.stable and not found.wrong and not found.missing:
        found.unclear.append(
            f"the ledger is at offset {view.watermark}, the intake log ends at {view.stable}: one of "
            "them is an old copy"
        )


def _explain_removals(
    table: TableState, findings: Sequence[PartitionFinding], still_there: int, *, whole: bool
) -> bool:
    """Classify missing offsets as removed if external snapshots removed exactly as many rows.

    Rows that other writers added and that are no longer there are subtracted (`still_there` are). Returns
    False if the cause is unknown: the changes of expired snapshots are unknown, or only some partitions were
    audited (`whole`).
    """
    if table.changes_unknown is not None:
        for found in findings:
            found.unclear.append(table.changes_unknown)
        return False
    # A compaction removes hidden rows from data files and does not report it, so both are counted.
    dropped, hidden = sum(item.rows for item in table.removals), sum(item.hidden for item in table.removals)
    removed = dropped + max(hidden, 0)
    if removed <= 0:
        return True
    by = _snapshots([item.snapshot_id for item in table.removals if not item.expired], _expired(table))
    missing = sum(total(found.missing) for found in findings)
    # The removed rows may be of partitions outside of the scope.
    if not whole and missing <= removed:
        for found in findings:
            if found.missing:
                found.unclear.append(
                    f"external {by} removed {removed} rows of the table; audit the whole topic to find out "
                    "whether these"
                )
        return False
    gone = missing + sum(total(found.removed) for found in findings)
    # Rows that others added and removed again are no rows of the topic.
    came_and_went = max(table.additions - still_there, 0)
    explained = missing == dropped - came_and_went or gone == dropped + hidden - came_and_went
    for found in findings:
        # A snapshot cannot remove rows that were appended after it.
        later = _appended_later(table, found)
        if later:
            explained = False
            found.wrong.append(
                f"external {by} came before offsets {shown(later)} were in the table, and cannot have "
                "removed them"
            )
    # Retention also removes rows that other writers added, and their number is unknown.
    passed = any(found.view.start for found in findings)
    short = not explained and passed and gone <= removed
    for found in findings:
        if explained and found.missing:
            found.notes.append(f"offsets {shown(found.missing)} were removed by external {by}")
            found.removed, found.missing = merge([*found.removed, *found.missing]), ()
        elif not explained:
            _report_difference(found, by, removed, gone, short=short)
    return not short


def _report_difference(found: PartitionFinding, by: str, removed: int, gone: int, *, short: bool) -> None:
    """Report that the numbers of removed and missing rows differ."""
    if gone > removed and found.missing:
        found.wrong.append(f"external {by} removed {removed} rows, but {gone} are missing")
    if gone < removed:
        found.unclear.append(f"external {by} removed {removed} rows, but only {gone} offsets are missing")
    if short and found.missing:
        found.unclear.append(
            f"it is unknown how many of the rows that others added and removed ({by}) retention has removed"
        )


def _appended_later(table: TableState, found: PartitionFinding) -> tuple[Range, ...]:
    """Missing offsets that entered the table after every removal."""
    ends = [None if one.below is None else one.below.get(found.view.partition, 0) for one in table.removals]
    known = [end for end in ends if end is not None]
    # The ledger lacks a watermark for some removal, so none can be excluded.
    if len(known) < len(ends):
        return ()
    return subtract(found.missing, merge([(0, max(known, default=0))]))


def _judge_lost(found: PartitionFinding, archived_to: int) -> None:
    """Report offsets that neither an archive nor an intake file holds."""
    whys: dict[str, list[Range]] = {}
    for item in found.view.lost:
        whys.setdefault(item.why, []).extend(
            # The vacuum deletes intake below the watermark; that is no loss.
            subtract(merge([(item.low, item.high)]), merge([(0, archived_to)]))
        )
    for why, ranges in whys.items():
        if ranges:
            found.wrong.append(f"{why}; nothing else holds offsets {shown(merge(ranges))}")
            found.missing = merge([*found.missing, *ranges])


def _judge_missing(found: PartitionFinding, *, seen_all: bool) -> None:
    """Report offsets that are still missing after removals were explained."""
    if found.missing and seen_all:
        # First: it is the reason that an operator needs.
        found.wrong.insert(0, f"offsets {shown(found.missing)} are not in the table")
    elif found.missing:
        found.unclear.append(
            f"offsets {shown(found.missing)} were not seen, or it is unknown who removed them"
        )
