"""orphan: an archive that neither the ledger nor any retained snapshot of the table names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reconcile.audit.rules import PartitionFinding
from reconcile.findings.finding import Finding
from reconcile.snapshot.topic_snapshot import FolderSnapshot, TopicSnapshot

ID = "orphan"
SHOWN_MAX = 20
"""So many objects of a topic have a finding of their own; one more sums up the rest."""

_REPAIR = (
    "nothing: `archiver clean` takes it when it is old enough and certainly nobody's. It is no row of any "
    "table"
)


def find(sight: TopicSnapshot, judged: Sequence[PartitionFinding]) -> Iterator[Finding]:
    """One per object, up to `SHOWN_MAX`."""
    del judged
    for item in sight.strays[:SHOWN_MAX]:
        yield Finding(ID, "info", sight.topic, None, f"{item.key} ({item.size:,} bytes): {item.why}", _REPAIR)
    rest = sight.strays[SHOWN_MAX:]
    if rest:
        size = sum(item.size for item in rest)
        yield Finding(
            ID, "info", sight.topic, None, f"and {len(rest):,} more such objects ({size:,} bytes)", _REPAIR
        )


def of_folder(folder: FolderSnapshot) -> Iterator[Finding]:
    """One per topic id that stands below `archive/` and that the intake log does not know."""
    for item in folder.unknown:
        yield Finding(
            ID,
            "warning",
            None,
            None,
            f"{item.key}: {item.why}",
            "if a metadata store was put back from an older copy, put the newest one in place; else "
            "the folder is another deployment's: "
            "leave it until you know whose it is",
        )
