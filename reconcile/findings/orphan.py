"""orphan: neither the ledger nor any retained snapshot of the table references an archive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reconcile.audit.rules import PartitionFinding
from reconcile.findings.finding import Finding
from reconcile.snapshot.topic_snapshot import FolderSnapshot, TopicSnapshot

ID = "orphan"
SHOWN_MAX = 20
"""Objects of a topic with their own finding; one more finding sums up the rest."""

_REPAIR = (
    "nothing: `archiver clean` deletes it when it is old enough and certainly unreferenced. No table "
    "contains its rows"
)


def find(snapshot: TopicSnapshot, judged: Sequence[PartitionFinding]) -> Iterator[Finding]:
    """One per object, up to `SHOWN_MAX`."""
    del judged
    for item in snapshot.unreferenced[:SHOWN_MAX]:
        yield Finding(
            ID, "info", snapshot.topic, None, f"{item.key} ({item.size:,} bytes): {item.why}", _REPAIR
        )
    # There may be thousands, and one line each would hide other findings.
    rest = snapshot.unreferenced[SHOWN_MAX:]
    if rest:
        size = sum(item.size for item in rest)
        yield Finding(
            ID, "info", snapshot.topic, None, f"and {len(rest):,} more such objects ({size:,} bytes)", _REPAIR
        )


def of_folder(folder: FolderSnapshot) -> Iterator[Finding]:
    """One per topic id below `archive/` that the intake log does not know."""
    for item in folder.unknown:
        # A warning, because such a folder may show that the metadata store is an older copy.
        yield Finding(
            ID,
            "warning",
            None,
            None,
            f"{item.key}: {item.why}",
            "if the metadata store was restored from an older copy, put the newest one in place; otherwise "
            "the folder belongs to another deployment: keep it until its owner is known",
        )
