"""How far a table that was set back is complete, so that the ledger can take that over: pure (protocol rule
T4).

Two lower bounds of the truth are known. The rows that are in the table: none of its partitions ends below the
last of them. And what the ledger remembers of the watermark (`archiver.ledger.watermark_history`): at the
sequence number of our newest commit that is left, or at that of the current snapshot if a commit of ours went
on from there. It is never above what that snapshot holds. The greater of the two is taken. It is never too
low in a way that matters, because no row stands at or beyond it, so nothing is archived twice; and never too
high, because neither bound is, so nothing is left out. Rows that were deleted on purpose before are not
brought back, as far as the ledger remembers.

Must never guess: where rows beyond the remembered watermark have holes between them, or a file cannot be
told, it says no.
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
    """Per partition the offset that the table is complete up to; a text that says why it cannot be told.

    `held` are the offsets of the rows in the table's files, per partition; an offset that is there twice is
    in two ranges. `removed` is how many rows others took out on purpose, as far as the table tells: so many
    may be missing between those that are there.
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
        # Rows beyond what the ledger has seen committed may be of an archive that it has seen written: a
        # commit of ours is below the rollback, and whoever made it died before the ledger was told.
        known = max(recorded, ledger.planned_to(partition))
        if last > known and not same_place(gaps, partition, known, last):
            return (
                f"partition {partition} holds offsets up to {last - 1}, and the ledger knows of none from "
                f"{known} on"
            )
        at = max(remembered, last)
        coverage = cover(start, at, gaps(partition, start, at), spans)
        if coverage.doubled:
            return f"partition {partition} holds offsets {shown(coverage.doubled)} more than once"
        holes = [item for item in coverage.missing if item[1] > remembered]
        missing += total(holes)
        if missing > removed:
            told = f", and others removed {removed} rows" if removed else ""
            return (
                f"partition {partition} was complete up to offset {remembered}; it holds rows beyond, "
                f"and offsets {shown(holes)} between "
                f"them are missing{told}"
            )
        found.append(recorded if same_place(gaps, partition, at, recorded) else at)
    unknown = sorted(partition for partition in held if not 0 <= partition < partitions)
    return (
        f"it holds rows of partitions {unknown}, which the topic does not have" if unknown else tuple(found)
    )


def missing_below(
    ledger: TopicLedger, held: Mapping[int, Sequence[Range]], offsets: Sequence[int], gaps: Gaps
) -> int:
    """How many records the table lacks below the offsets that it is said to be complete up to."""
    found = 0
    for partition, offset in enumerate(offsets):
        start = ledger.starts.get(partition, 0)
        found += total(cover(start, offset, gaps(partition, start, offset), held.get(partition, ())).missing)
    return found


def _remembered_since(view: TableView) -> int | None:
    """The sequence number at which the ledger's memory says no more than the current snapshot holds; None if
    there is none.
    """
    current, own = next(iter(view.lineage()), None), newest_own(view)
    if current is not None and is_below_own(view):
        return current.sequence_number
    return None if own is None else own.sequence_number
