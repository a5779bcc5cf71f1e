"""evidence-doubted: how far the table is complete cannot be told from it, and it was not simply rolled back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reconcile.findings import Finding
from reconcile.judge import PartitionFinding
from reconcile.sights import TopicSight

ID = "evidence-doubted"


def find(sight: TopicSight, judged: Sequence[PartitionFinding]) -> Iterator[Finding]:
    """At most one: the property is damaged, live files do not confirm it, or the ledger is an older copy than the table."""
    del judged
    table = sight.table
    if table is None or table.mismatch is not None or table.rolled_back:
        return
    why = table.doubt or table.contradiction
    if why is not None:
        yield Finding(
            ID,
            "error",
            sight.topic,
            None,
            f"table {table.name}: {why}",
            "put the newest metadata store, or the table's property archiver.watermarks, back from a copy; `archiver audit` says which "
            "offsets the table holds. Nothing is written to the table until then",
        )
