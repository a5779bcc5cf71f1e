"""Compares the views of all topics and returns the findings: pure.

Each kind of finding is one module of this folder. Consistent views give no finding, and equal views give
equal findings in the same order. A consequence of a finding, such as the missing rows of a rolled back table,
is not reported again. What could not be read gives no finding; the report lists it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from reconcile.audit.rules import judge_topic
from reconcile.findings import (
    altered_object,
    dangling_reference,
    doubled_file,
    evidence_doubted,
    foreign_rows,
    format_changed,
    gap,
    log_ahead,
    missing_in_catalog,
    orphan,
    overlap,
    rolled_back,
    rows_removed,
    schema_drift,
    spec_changed,
    stale_lease,
    stray_upload,
    table_missing,
    table_replaced,
    topic_recreated,
    unknown_commit,
)
from reconcile.findings.finding import Finding, order
from reconcile.snapshot.topic_snapshot import FolderSnapshot, TopicSnapshot

_OF_TOPIC = (
    table_missing,
    table_replaced,
    topic_recreated,
    format_changed,
    spec_changed,
    schema_drift,
    rolled_back,
    evidence_doubted,
    dangling_reference,
    altered_object,
    gap,
    doubled_file,
    overlap,
    unknown_commit,
    missing_in_catalog,
    foreign_rows,
    stale_lease,
    orphan,
    rows_removed,
)
_OF_FOLDER = (log_ahead, orphan, stray_upload)
_OF_ONE_VIEW = frozenset(
    {
        table_replaced,
        topic_recreated,
        format_changed,
        spec_changed,
        dangling_reference,
        altered_object,
        doubled_file,
        overlap,
        foreign_rows,
        rows_removed,
    }
)
"""Kinds that one view shows without the ledger: the table's metadata, or an object that it references. All
others compare the ledger with another view."""


def differences(topics: Sequence[TopicSnapshot], folder: FolderSnapshot) -> list[Finding]:
    """Every finding, by topic, kind and partition."""
    # Sorted, so that equal views give the findings in the same order.
    return sorted(chain(_of_topics(topics), _of_folder(folder)), key=order)


def _of_topics(topics: Sequence[TopicSnapshot]) -> Iterator[Finding]:
    for snapshot in topics:
        # The rules of the audit, so that both report the same offsets.
        judged = judge_topic(snapshot.view)
        for issue in _OF_TOPIC:
            # If the views are of different moments, a comparison of two of them proves nothing.
            if issue in _OF_ONE_VIEW or not snapshot.moving:
                yield from issue.find(snapshot, judged)


def _of_folder(folder: FolderSnapshot) -> Iterator[Finding]:
    for issue in _OF_FOLDER:
        yield from issue.of_folder(folder)
