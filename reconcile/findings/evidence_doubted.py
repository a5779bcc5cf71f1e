"""evidence-doubted: the table does not show up to which offset it is complete, and it was not simply rolled
back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reconcile.audit.rules import PartitionFinding
from reconcile.findings.finding import Finding
from reconcile.snapshot.topic_snapshot import TopicSnapshot

ID = "evidence-doubted"
_COPIES = (
    "restore the newest metadata store, or the table's property archiver.watermarks, from a copy; "
    "`archiver audit` lists the offsets in the table. Nothing is written to the table until then"
)
_TAKE_OVER = (
    "it was rolled back, or its newest rows were removed; the snapshots that could show which are gone. "
    "`archiver reconcile --fix --topic {topic}` accepts the offsets in its files, and the next round "
    "archives the missing ones at the end again, from intake. Rows that were removed there on purpose "
    "must then be removed again"
)


def find(snapshot: TopicSnapshot, judged: Sequence[PartitionFinding]) -> Iterator[Finding]:
    """At most one: the property is damaged, live files contradict it, or the ledger is an older copy than the
    table.
    """
    del judged
    table = snapshot.table
    # Busy: the table may merely be newer than the ledger, and the remedy (a restore from a copy) would do
    # harm.
    if table is None or table.mismatch is not None or table.rolled_back or snapshot.busy:
        return
    why = table.doubt or table.contradiction
    if why is not None:
        # Without the snapshots a rollback cannot be excluded, so an operator may accept it as one.
        repair = _TAKE_OVER.format(topic=snapshot.topic) if table.unconfirmed else _COPIES
        yield Finding(ID, "error", snapshot.topic, None, f"table {table.name}: {why}", repair)
