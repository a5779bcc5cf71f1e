"""log-ahead: the intake log has times that are ahead of this machine's clock."""

from __future__ import annotations

from collections.abc import Iterator

from intake.log.clock_check import log_ahead_text
from reconcile.findings.finding import Finding
from reconcile.snapshot.topic_snapshot import FolderSnapshot

ID = "log-ahead"


def of_folder(folder: FolderSnapshot) -> Iterator[Finding]:
    """At most one. It ends when the clock reaches that time."""
    # The collector compares with `intake.clock_skew_max`, so a small skew gives no finding.
    if folder.log_ahead is None:
        return
    yield Finding(
        ID,
        "warning",
        None,
        None,
        log_ahead_text(*folder.log_ahead),
        "nothing is repaired, because ingest times never decrease: check the clock of every machine that "
        "writes, and see the runbook for what to expect until then",
    )
