"""Which pending archives a table may be offered (protocol rule C3).

Pure. Each pending file gets exactly one of three verdicts. Committed: its path is in the lineage. Offered: it
starts exactly at the watermark, and certainly was never in the table. Killed: anything else. A file is never
"covered, so done", and never stays pending.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from archiver.catalog.evidence import Gaps, no_gaps, same_place
from archiver.catalog.tables import TableView
from archiver.ledger.views import PendingFile
from archiver.runtime.text import counted


@dataclass(frozen=True, slots=True)
class Choice:
    """The verdicts on all pending files of a topic."""

    committed: tuple[PendingFile, ...]
    """In the table already."""
    offered: tuple[PendingFile, ...]
    """In order. Each starts where the one before it in its partition ends, the first at the watermark."""
    killed: tuple[tuple[PendingFile, str], ...]
    """With the reason. Ranges of gaps are never killed: the ledger forgets them by itself."""
    reached: tuple[int, ...]
    """Per partition: the watermark once the offered files are committed. Partitions without any are carried
    forward (rule C5)."""


def unbroken_since(view: TableView) -> int:
    """The lowest sequence number from which on every commit is a retained ancestor of the current
    snapshot.
    """
    have = {item.sequence_number for item in view.lineage()}
    at = view.sequence_number
    while at in have:
        at -= 1
    return at


def complete_since(view: TableView) -> Callable[[PendingFile], bool]:
    """Whether every commit after a file's token (rule T3) is retained, in the lineage or outside of it, for
    example on a branch.

    Only then a path that none of them added proves that the file was never in the table.
    """
    retained = {item.sequence_number for item in view.snapshots}
    lost = next((number for number in range(view.sequence_number, 0, -1) if number not in retained), 0)

    def judge(item: PendingFile) -> bool:
        return item.table_uuid == view.uuid and item.last_sequence_number >= lost

    return judge


def choose(
    pending: Sequence[PendingFile],
    watermarks: Sequence[int],
    paths: Collection[str],
    complete: Callable[[PendingFile], bool],
    starts: Mapping[int, int] | None = None,
    gaps: Gaps = no_gaps,
    aside: Collection[str] = (),
) -> Choice:
    """Judge `pending`, in the order of the log, against a table that is complete up to `watermarks` and whose
    lineage holds `paths`.

    `aside` are paths that retained snapshots outside of the lineage brought.
    """
    starts = starts or {}
    at = list(watermarks)
    committed: list[PendingFile] = []
    offered: list[PendingFile] = []
    killed: list[tuple[PendingFile, str]] = []
    for item in pending:
        archive = item.archive
        if item.path is not None and item.path in paths:
            committed.append(item)
            continue
        why = _objection(item, at, starts, complete, gaps, aside)
        if why is None:
            offered.append(item)
            at[archive.partition] = max(at[archive.partition], archive.end)
        elif not archive.gap_only:
            killed.append((item, why))
    return Choice(tuple(committed), tuple(offered), tuple(killed), tuple(at))


def _objection(
    item: PendingFile,
    at: Sequence[int],
    starts: Mapping[int, int],
    complete: Callable[[PendingFile], bool],
    gaps: Gaps,
    aside: Collection[str],
) -> str | None:
    archive = item.archive
    partition = archive.partition
    if partition >= len(at):
        return f"the topic has {counted(len(at), 'partition')}, not {partition + 1}"
    if archive.end <= starts.get(partition, 0):
        return f"retention removed everything below {starts[partition]}"
    if archive.gap_only and archive.end <= at[partition]:
        return "the table is past it"
    if not same_place(gaps, partition, archive.base, at[partition]):
        return f"starts at {archive.base}, but the table is complete up to {at[partition]}"
    if not archive.gap_only and not complete(item):  # there is no row that could be doubled
        return (
            f"the table's history since sequence number {item.last_sequence_number} is not complete; it "
            "may have been in the table before"
        )
    if item.path in aside:
        return "a snapshot outside of the table's history holds it, and may become current again"
    return None
