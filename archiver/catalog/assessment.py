"""One assessment of a topic's table: identity, evidence and agreement with the ledger, all from one load.

Covers which pending archives may be offered (rule C3), whether table and ledger contradict each other, and
the assessment that joins both. It reads and never writes. Commits, the retention floor and the reconciler use
it, so they accept the same tables. The ledger may lack entries of a newer leader. So the caller must read the
control log's tail before it acts on an objection.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from archiver.catalog.evidence import Doubted, Gaps, Known, judge, no_gaps, same_place
from archiver.catalog.identity import TableTarget, load_table, mismatch
from archiver.catalog.tables import Tables, TableView, shown
from archiver.ledger.views import PendingFile, TopicLedger
from archiver.runtime.errors import TopicHalted
from archiver.runtime.text import counted

# --- Which pending archives may be offered (rule C3)


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
    # A lineage may have holes: snapshots that were rolled back from took numbers too.
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
    # All retained ones, not the lineage: a snapshot of a branch takes a number and may have held the file.
    retained = {item.sequence_number for item in view.snapshots}
    lost = next((number for number in range(view.sequence_number, 0, -1) if number not in retained), 0)

    def judge(item: PendingFile) -> bool:
        # A token of another table says nothing: sequence numbers start again after a drop and create.
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
        # The path decides before the offsets: a late request may have added a file below the watermark.
        if item.path is not None and item.path in paths:
            committed.append(item)
            continue
        # Each file is judged at the end of the file before it, so a refusal also refuses all that follow.
        why = _objection(item, at, starts, complete, gaps, aside)
        if why is None:
            offered.append(item)
            at[archive.partition] = max(at[archive.partition], archive.end)
        # A range of gaps has no object and no key. The ledger forgets it without an entry.
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
    # Adding it would bring back rows that retention removed.
    if archive.end <= starts.get(partition, 0):
        return f"retention removed everything below {starts[partition]}"
    if archive.gap_only and archive.end <= at[partition]:
        return "the table is past it"
    # Modulo gaps (rule C2): bounds of files do not include a marker after the last record.
    if not same_place(gaps, partition, archive.base, at[partition]):
        return f"starts at {archive.base}, but the table is complete up to {at[partition]}"
    # A lost snapshot may have held the file. If it is added again, it doubles rows or an expirer deletes it.
    # A range of gaps has no row that could be doubled.
    if not archive.gap_only and not complete(item):
        return (
            f"the table's history since sequence number {item.last_sequence_number} is not complete; it "
            "may have been in the table before"
        )
    if item.path in aside:
        return "a snapshot outside of the table's history holds it, and may become current again"
    return None


# --- Agreement of table and ledger


def seen_up_to(view: TableView, ledger: TopicLedger) -> int:
    """The sequence number up to which the ledger recorded what is in the lineage; 0 if it may be another
    lineage.

    """
    # It is the same lineage while our newest commit of that time is an ancestor. After a rollback and a roll
    # forward, refused archives may return with snapshots older than the last inspection.
    return ledger.sequence_number if ledger.snapshot_id in view.ancestors() else 0


def revived_keys(ledger: TopicLedger, paths: Collection[str]) -> tuple[str, ...]:
    """Killed keys that `paths` name: a late request of an earlier leader was applied."""
    if not ledger.killed:
        return ()
    # Grouped by file name, because comparing every path with every key is quadratic.
    by_name: dict[str, list[str]] = {}
    for path in paths:
        by_name.setdefault(path.rpartition("/")[2], []).append(path)
    return tuple(
        key
        for key in ledger.killed
        # The table names a full URI, the ledger a key below the data folder.
        if any(path.endswith(f"/{key}") for path in by_name.get(key.rpartition("/")[2], ()))
    )


def contradiction(
    view: TableView, known: Known, ledger: TopicLedger, revived: Collection[str], gaps: Gaps = no_gaps
) -> str | None:
    """Why table and ledger cannot both be the newest, worded to follow the table's name; None if they can.

    `revived` are killed keys found in the lineage. Offsets are compared modulo `gaps` (rule C2). The caller
    must check that no newer leader wrote what this ledger lacks.
    """
    # A table's last sequence number never decreases, a rollback included.
    if view.sequence_number < ledger.sequence_number:
        return (
            f"is at sequence number {view.sequence_number}, and the ledger has seen it at "
            f"{ledger.sequence_number}: the catalog was "
            "restored from an older copy; put the newest one back"
        )
    for partition, offset in enumerate(known.watermarks):
        recorded = ledger.watermark(partition)
        # Rule C2: a watermark from bounds ends at the last record, the recorded one after the gaps.
        if offset < recorded and not same_place(gaps, partition, offset, recorded):
            return (
                f"is complete up to offset {offset} of partition {partition}, and the ledger has seen "
                f"it complete up to {recorded}: it was "
                "rolled back, or the catalog was restored from an older copy; put the newest state back"
            )
        if offset > recorded and not _accounted_for(view, ledger, partition, offset, revived):
            planned = ledger.planned_to(partition)
            # Without a commit of ours in the table, an older copy of the metadata store is not the only
            # explanation.
            if known.evidence is None:
                return (
                    f"holds offsets of partition {partition} up to {offset}, the ledger has "
                    f"archives up to {planned}, and the table records no commit of the archiver: another "
                    "writer added the rows, or the metadata store is an older copy; put the newest one back, "
                    "or name another table"
                )
            return (
                f"is complete up to offset {offset} of partition {partition}, and the ledger has "
                f"archives only up to {planned}: the "
                "metadata store is an older copy than the table; put the newest one back"
            )
    return None


def _accounted_for(
    view: TableView, ledger: TopicLedger, partition: int, offset: int, revived: Collection[str]
) -> bool:
    """Whether archives that the ledger recorded as written explain a table that is complete up to
    `offset`.
    """
    if offset <= ledger.planned_to(partition):
        return True
    if any(item.archive.partition == partition and item.archive.end == offset for item in ledger.pending):
        return True
    # With a hole in the history since the last inspection, an archive may have come and gone unseen. Another
    # writer may have compacted its file and expired the snapshot that added it.
    lost_sight = ledger.sequence_number < unbroken_since(view)
    return any(
        item.archive.partition == partition and item.archive.end == offset and (lost_sight or key in revived)
        for key, item in ledger.killed.items()
    )


# --- The assessment of one load


@dataclass(frozen=True, slots=True)
class TableAssessment:
    """One loaded view of a table, and what follows from it. Each check is made only if those before it
    passed.
    """

    view: TableView
    mismatch: str | None = None
    """Why the table is not the topic's as this version writes it; None if it is."""
    evidence: Known | Doubted | None = None
    """The watermarks (rule C1), or why there are none; None only after a mismatch."""
    paths: frozenset[str] = frozenset()
    """Data files that the lineage gained since the oldest token of a pending archive (rule T3). If archives
    were killed, also those since the ledger's last record."""
    revived: tuple[str, ...] = ()
    """Killed keys among `paths`: a late request of an earlier leader was applied."""
    contradiction: str | None = None
    """Why table and ledger cannot both be the newest."""

    def trusted(self, topic: str) -> Known:
        """The evidence, if nothing speaks against the table; else raises `TopicHalted` with the reason."""
        table = f"table {shown(self.view.identifier)}"
        if self.mismatch is not None:
            raise TopicHalted(topic, f"{table} {self.mismatch}")
        if isinstance(self.evidence, Doubted):
            raise TopicHalted(topic, f"{table}: {self.evidence.why}")
        if self.contradiction is not None:
            raise TopicHalted(topic, f"{table} {self.contradiction}")
        assert self.evidence is not None, "evidence is judged unless the identity does not match"
        return self.evidence


def assess_table(
    tables: Tables, target: TableTarget, ledger: TopicLedger, gaps: Gaps = no_gaps
) -> TableAssessment | None:
    """Load the topic's table and assess it; None if there is none and the ledger records none.

    Offsets are compared modulo `gaps` (rule C2). Raises `TopicHalted` if the table is gone or is not the
    topic's, `RetryLater` if the catalog cannot be reached. Doubts and contradictions are values.
    """
    view = load_table(tables, target, ledger.table_uuid)
    return None if view is None else assess_view(tables, target, view, ledger, gaps)


def assess_view(
    tables: Tables, target: TableTarget, view: TableView, ledger: TopicLedger, gaps: Gaps = no_gaps
) -> TableAssessment:
    """Assess a view that is already loaded. Reads only files of this view, so the answer is of one
    snapshot.
    """
    # First, because the properties of a table of another topic mean nothing here.
    why = mismatch(view, target, ledger.table_uuid)
    if why is not None:
        return TableAssessment(view, mismatch=why)
    # A lambda: manifests are read only if the lineage does not decide.
    evidence = judge(view, target.partitions, lambda: tables.live_files(view), ledger.starts, gaps)
    if isinstance(evidence, Doubted):
        return TableAssessment(view, evidence=evidence)
    since = pending_tokens(view, ledger)
    # Killed archives have no token in the ledger. They can appear only after its last record of the lineage.
    since += [seen_up_to(view, ledger)] if ledger.killed else []
    # No commit since the oldest token means no new paths, and saves the manifests.
    has_newer = bool(since) and min(since) < view.sequence_number
    paths = tables.data_paths(view, min(since)) if has_newer else frozenset[str]()
    revived = revived_keys(ledger, paths)
    why = contradiction(view, evidence, ledger, revived, gaps)
    return TableAssessment(view, None, evidence, paths, revived, why)


def pending_tokens(view: TableView, ledger: TopicLedger) -> list[int]:
    """Sequence numbers of this table as the writers of the pending archives saw it (rule T3)."""
    # A token of a dropped table with the same name must not widen or narrow the search.
    return [item.last_sequence_number for item in ledger.pending if item.table_uuid == view.uuid]
