"""evidence-doubted: how far the table is complete cannot be told from it, and it was not simply rolled
back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reconcile.audit.rules import PartitionFinding
from reconcile.findings.finding import Finding
from reconcile.snapshot.topic_snapshot import TopicSnapshot

ID = "evidence-doubted"
_COPIES = (
    "put the newest metadata store, or the table's property archiver.watermarks, back from a copy; "
    "`archiver audit` says which offsets the "
    "table holds. Nothing is written to the table until then"
)
_TAKE_OVER = (
    "it was rolled back before, or its newest rows were removed, and nothing tells which. `archiver "
    "reconcile --fix --topic {topic}` takes "
    "over what its files hold, and the next round archives what is missing at the end again, from "
    "intake: rows that were removed there on "
    "purpose have to be removed once more then"
)


def find(sight: TopicSnapshot, judged: Sequence[PartitionFinding]) -> Iterator[Finding]:
    """At most one: the property is damaged, live files do not confirm it, or the ledger is an older copy than
    the table.

    A topic with doubted evidence stands still. Where the ledger was written a moment ago the table may merely
    be ahead of it, so the comparison waits for a later run: the remedy (put a store back from a copy) would
    do harm.
    """
    del judged
    table = sight.table
    if table is None or table.mismatch is not None or table.rolled_back or sight.busy:
        return
    why = table.doubt or table.contradiction
    if why is not None:
        repair = _TAKE_OVER.format(topic=sight.topic) if table.unconfirmed else _COPIES
        yield Finding(ID, "error", sight.topic, None, f"table {table.name}: {why}", repair)
