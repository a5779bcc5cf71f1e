"""One assessment of a topic's table: identity, evidence and agreement with the ledger, all from one load.

Commits, the retention floor and the reconciler use it, so they give one answer to one question: may this
table be trusted as the continuation of what the ledger records? It reads and never writes. Where the ledger
may lack what a newer leader wrote, the caller must read the control log's tail before it believes an
objection.
"""

from __future__ import annotations

from dataclasses import dataclass

from archiver.catalog.consistency import contradiction, revived_keys, seen_up_to
from archiver.catalog.evidence import Doubted, Gaps, Known, judge, no_gaps
from archiver.catalog.identity import TableTarget, load_table, mismatch
from archiver.catalog.tables import Tables, TableView, shown
from archiver.ledger.views import TopicLedger
from archiver.runtime.errors import TopicHalted


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
    why = mismatch(view, target, ledger.table_uuid)
    if why is not None:
        return TableAssessment(view, mismatch=why)
    evidence = judge(view, target.partitions, lambda: tables.live_files(view), ledger.starts, gaps)
    if isinstance(evidence, Doubted):
        return TableAssessment(view, evidence=evidence)
    since = pending_tokens(view, ledger)
    # Killed archives have no token in the ledger. They can appear only after its last record of the lineage.
    since += [seen_up_to(view, ledger)] if ledger.killed else []
    has_newer = bool(since) and min(since) < view.sequence_number
    paths = tables.data_paths(view, min(since)) if has_newer else frozenset[str]()
    revived = revived_keys(ledger, paths)
    why = contradiction(view, evidence, ledger, revived, gaps)
    return TableAssessment(view, None, evidence, paths, revived, why)


def pending_tokens(view: TableView, ledger: TopicLedger) -> list[int]:
    """Sequence numbers of this table as the writers of the pending archives saw it (rule T3)."""
    return [item.last_sequence_number for item in ledger.pending if item.table_uuid == view.uuid]
