"""Up to which offset a rolled back table is complete, so that the ledger can accept it: pure (protocol rule
T4).

There are two lower bounds. The first is the last row: no partition ends below it. The second is the ledger's
watermark history (`archiver.ledger.watermark_history`) at the sequence number of the archiver's newest
remaining commit. If an archiver commit continued from the current snapshot, that snapshot's sequence number
counts. The history is never above what the snapshot holds. The result is the greater bound. It is not too
low, because no row is at or above it, so nothing is archived twice. It is not too high, because neither bound
is, so nothing is omitted. Rows that were deleted on purpose before stay deleted, as far as the ledger's
history reaches.

The result is an error text, never a guess, if rows above the history have holes between them or a file is
unreadable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from archiver.catalog.evidence import Gaps, same_place
from archiver.catalog.reset_watermark import is_below_own, newest_own
from archiver.catalog.tables import TableView
from archiver.ledger.views import TopicLedger
from reconcile.snapshot.offset_coverage import Range, cover, total
from reconcile.snapshot.offset_ranges import shown


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
    `removed`: rows that others removed on purpose, as far as the table shows. As many may be missing between
    existing rows.
    """
    since = _remembered_since(view)
    found: list[int] = []
    missing = 0
    for partition in range(partitions):
        start = ledger.starts.get(partition, 0)
        recorded = max(ledger.watermark(partition), start)
        remembered = start if since is None else max(start, ledger.past.lowest(partition, recorded, since))
        spans = held.get(partition, ())
        last = max((high for _, high in spans), default=start)
        # Rows above the ledger's committed watermark may be of an archive that the ledger has as written. Its
        # commit is below the rollback, and the committing process died before it updated the ledger.
        known = max(recorded, ledger.planned_to(partition))
        if last > known and not same_place(gaps, partition, known, last):
            return f"partition {partition} holds offsets up to {last - 1}, but the ledger ends at {known}"
        at = max(remembered, last)
        coverage = cover(start, at, gaps(partition, start, at), spans)
        if coverage.doubled:
            return f"partition {partition} holds offsets {shown(coverage.doubled)} more than once"
        holes = [item for item in coverage.missing if item[1] > remembered]
        missing += total(holes)
        if missing > removed:
            external = f", and others removed {removed} rows" if removed else ""
            return (
                f"partition {partition} was complete up to offset {remembered}; it holds rows beyond, "
                f"and offsets {shown(holes)} between them are missing{external}"
            )
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
