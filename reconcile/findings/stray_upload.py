"""stray-upload: remains of an upload that never completed."""

from __future__ import annotations

from collections.abc import Iterator

from reconcile.findings.finding import Finding
from reconcile.snapshot.topic_snapshot import FolderSnapshot

ID = "stray-upload"
SHOWN_MAX = 20


def of_folder(folder: FolderSnapshot) -> Iterator[Finding]:
    """One per upload, up to `SHOWN_MAX`."""
    for item in folder.uploads[:SHOWN_MAX]:
        yield Finding(
            ID,
            "info",
            None,
            None,
            f"{item.key} ({item.size:,} bytes): {item.why}",
            "nothing: cleaning, or the next process, removes it",
        )
    # A store without cleaning may have thousands.
    if len(folder.uploads) > SHOWN_MAX:
        yield Finding(
            ID,
            "info",
            None,
            None,
            f"and {len(folder.uploads) - SHOWN_MAX:,} more",
            "nothing: cleaning removes them",
        )
