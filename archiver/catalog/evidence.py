"""How far a table is complete, judged from the table alone (protocol rule C1).

Pure. Evidence is one table property, `archiver.watermarks`, set in the same atomic commit as the snapshot it
names. The property is JSON: `{"v":1,"snapshot":id,"sequence":n,"epoch":e,"commit":"uuid","offsets":[one per
partition]}`.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from archiver.catalog.table_layout import WATERMARKS
from archiver.catalog.tables import LiveFile, SnapshotView, TableView
from archiver.runtime.errors import Corrupted
from archiver.runtime.redaction import excerpt
from archiver.runtime.text import counted

VERSION = 1

Gaps = Callable[[int, int, int], Sequence[tuple[int, int]]]
"""(partition, start, end) → the ranges inside [start, end) that hold no record: ascending, never touching."""


def no_gaps(partition: int, start: int, end: int) -> Sequence[tuple[int, int]]:
    """The `Gaps` of a log in which every offset holds a record."""
    del partition, start, end
    return ()


def same_place(gaps: Gaps, partition: int, one: int, other: int) -> bool:
    """Rule C2: two offsets are the same place if no record lies between them."""
    return one == other or records_between(gaps, partition, min(one, other), max(one, other)) == 0


def records_between(gaps: Gaps, partition: int, start: int, end: int) -> int:
    """How many offsets of [start, end) hold a record."""
    if start >= end:
        return 0
    return end - start - sum(high - low for low, high in gaps(partition, start, end))


@dataclass(frozen=True, slots=True)
class Evidence:
    """The statement of our newest commit about itself."""

    snapshot_id: int
    sequence_number: int
    epoch: int
    commit_id: uuid.UUID
    offsets: tuple[int, ...]
    """Per partition: every record below is in that snapshot, none at or beyond."""

    def to_json(self) -> str:
        """The value of the table property."""
        document = {
            "v": VERSION,
            "snapshot": self.snapshot_id,
            "sequence": self.sequence_number,
            "epoch": self.epoch,
            "commit": str(self.commit_id),
            "offsets": list(self.offsets),
        }
        return json.dumps(document, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Evidence:
        """The inverse; raises `Corrupted` if it is not what this version writes."""
        try:
            document = json.loads(text)
            if document["v"] != VERSION:
                raise Corrupted(
                    f"table property {WATERMARKS} has version {document['v']!r}; this version of the "
                    f"archiver knows {VERSION}"
                )
            offsets = tuple(document["offsets"])
            numbers = (document["snapshot"], document["sequence"], document["epoch"], *offsets)
            # Not `isinstance`: JSON `true` becomes a bool, which is an int in Python.
            if any(type(number) is not int or number < 0 for number in numbers):
                raise ValueError("not a whole number")
            return cls(numbers[0], numbers[1], numbers[2], uuid.UUID(document["commit"]), offsets)
        # The property is remote text. Any program that may alter the table can write it.
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise Corrupted(
                f"table property {WATERMARKS} cannot be understood ({error}): {excerpt(text)!r}"
            ) from error

    def offset(self, partition: int) -> int:
        """The partition's watermark; 0 for one that is younger than the commit."""
        return self.offsets[partition] if partition < len(self.offsets) else 0


@dataclass(frozen=True, slots=True)
class Known:
    """The table's watermark is known."""

    watermarks: tuple[int, ...]
    """Per partition, not below retention's start."""
    evidence: Evidence | None
    """None if the table holds no commit of ours."""
    external: tuple[SnapshotView, ...] = ()
    """Snapshots of other writers on top of our newest commit, newest first."""
    by_bounds: bool = False
    """The lineage was cut. The live files' bounds confirmed the evidence, or replaced a missing one."""


@dataclass(frozen=True, slots=True)
class Doubted:
    """The table cannot be trusted; an operator must act."""

    why: str
    unconfirmed: bool = False
    """The history above our newest commit was expired, and the files do not confirm that commit. Either the
    table was rolled back before, or rows were removed; nothing shows which."""


def read_evidence(properties: Mapping[str, str]) -> Evidence | None:
    """The evidence in a table's properties, None if there is none; `Corrupted` if it cannot be understood."""
    text = properties.get(WATERMARKS)
    return None if text is None else Evidence.from_json(text)


def judge(
    view: TableView,
    partitions: int,
    live_files: Callable[[], Iterable[LiveFile]],
    starts: Mapping[int, int] | None = None,
    gaps: Gaps = no_gaps,
) -> Known | Doubted:
    """The table's watermark, or why there is none.

    `live_files` is called only where bounds are needed, because it reads manifests. `starts` are retention's
    starts per partition: rows below were removed on purpose. Bounds are compared modulo `gaps` (rule C2). A
    watermark that rests on bounds alone ends at the last record.
    """
    starts = starts or {}
    lineage = view.lineage()
    try:
        evidence = read_evidence(view.properties)
    except Corrupted as error:
        return Doubted(f"{error}; restore the property, or name another table")
    if evidence is None:
        return _without_evidence(lineage, partitions, live_files, starts)
    vector = tuple(
        max(evidence.offset(partition), starts.get(partition, 0)) for partition in range(partitions)
    )
    # Searched in the lineage only. After a rollback our newest snapshot is still in the metadata's list.
    position = next((at for at, item in enumerate(lineage) if item.snapshot_id == evidence.snapshot_id), None)
    if position is not None:
        return Known(vector, evidence, lineage[:position])
    # Expired, but still named as the parent of the oldest retained snapshot. So it is an ancestor.
    if evidence.snapshot_id in view.ancestors():
        return Known(vector, evidence, lineage)
    # Expiry never removes the current snapshot, so an empty lineage is not the result of expiry.
    if not lineage:
        return Doubted(
            f"it has no current snapshot, but snapshot {evidence.snapshot_id} of ours was committed: "
            "it was rolled back or emptied"
        )
    # The lineage reaches below our snapshot and does not contain it. Expiry cannot explain that.
    if lineage[-1].sequence_number <= evidence.sequence_number:
        return Doubted(
            f"its history up to snapshot {lineage[0].snapshot_id} (sequence number "
            f"{lineage[0].sequence_number}) does not contain our "
            f"snapshot {evidence.snapshot_id} (sequence number {evidence.sequence_number}): it was "
            "rolled back; roll it forward again"
        )
    # Expiry cut the lineage above our snapshot. A rollback that was then compacted and expired leaves the
    # same history, so the files must confirm the evidence.
    why = _disagreement(list(live_files()), evidence, partitions, starts, gaps)
    if why is not None:
        return Doubted(
            f"the history between our snapshot {evidence.snapshot_id} and the current one was expired, "
            "and the files do not confirm our "
            f"commit: {why}; audit the table",
            unconfirmed=True,
        )
    # No retained snapshot is ours, so the whole lineage counts as external.
    return Known(vector, evidence, lineage, by_bounds=True)


def _without_evidence(
    lineage: tuple[SnapshotView, ...],
    partitions: int,
    live_files: Callable[[], Iterable[LiveFile]],
    starts: Mapping[int, int],
) -> Known | Doubted:
    upper = [starts.get(partition, 0) for partition in range(partitions)]
    # A table without a snapshot has no files, and the manifests need not be read.
    for item in live_files() if lineage else ():
        partition = item.partition_min
        if (
            partition is None
            or item.offset_max is None
            or partition != item.partition_max
            or not 0 <= partition < partitions
        ):
            return Doubted(
                f"it has no {WATERMARKS} property, and file {item.path} does not show which offsets it "
                "holds; name another table"
            )
        # The upper bound is inclusive, the watermark is not.
        upper[partition] = max(upper[partition], item.offset_max + 1)
    return Known(tuple(upper), None, lineage, by_bounds=bool(lineage))


def _disagreement(
    files: list[LiveFile], evidence: Evidence, partitions: int, starts: Mapping[int, int], gaps: Gaps
) -> str | None:
    """What in the live files contradicts the evidence; None if nothing does."""
    upper: dict[int, int] = {}
    mixed = False
    for item in files:
        low, high = item.partition_min, item.partition_max
        if low is None or high is None or item.offset_max is None:
            return f"file {item.path} carries no bounds of kafka.partition and kafka.offset"
        # The evidence may cover more partitions than this process sees, if another one added them.
        if high >= max(partitions, len(evidence.offsets)):
            return f"file {item.path} holds partition {high}, which the topic does not have"
        if low == high:
            # A file of one partition gives that partition's upper bound exactly.
            upper[low] = max(upper.get(low, 0), item.offset_max + 1)
            continue
        mixed = True
        # Bounds of a mixed file are joint. They show only that none of its partitions reaches further.
        if item.offset_max >= max(evidence.offset(partition) for partition in range(low, high + 1)):
            return (
                f"file {item.path} reaches offset {item.offset_max}, beyond our watermarks of partitions "
                f"{low} to {high}"
            )
    for partition in range(partitions):
        expected, start = evidence.offset(partition), starts.get(partition, 0)
        # Retention may have removed every file of the partition. Then its start stands in for the bound.
        have = max(upper.get(partition, 0), start)
        # Mixed files hide where a partition ends, so only an excess can be seen here.
        if have > max(expected, start) or (
            not mixed and not same_place(gaps, partition, have, max(expected, start))
        ):
            return f"partition {partition} ends at {have}, our watermark is {expected}"
    if mixed:
        # The joint bounds do not show each partition's end. So the number of rows must be right as well.
        due = sum(
            records_between(gaps, partition, starts.get(partition, 0), evidence.offset(partition))
            for partition in range(partitions)
        )
        # Rows below a start may still be there: in files that reach beyond it, and in files that retention
        # has not removed yet.
        most = due + sum(
            records_between(gaps, partition, 0, min(start, evidence.offset(partition)))
            for partition, start in starts.items()
        )
        # Deletes make a row count meaningless: how many rows they hide is not in the bounds.
        rows = sum(item.record_count for item in files)
        if not due <= rows <= most or any(item.has_deletes for item in files):
            return f"its files hold {counted(rows, 'row')} and perhaps deletes, our watermarks mean {due}" + (
                "" if most == due else f" to {most}"
            )
    return None
