"""From what was seen to findings: pure.

Owns which kinds there are: each is a file of this folder that says one thing and looks at nothing else.
Promises that a state in which log, ledger, objects and table agree gives no finding, that the same state
gives the same findings in the same order, and that what merely follows from a finding (the rows that a rolled
back table lacks) is not told a second time. Must never guess: what could not be looked at gives no finding,
the report says so. Nor do views of different moments (`TopicSnapshot.moving`): then a finding needs one view
alone.
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
"""Kinds that the table's metadata, or an object that it names, shows without the ledger. All others compare
the ledger with something."""


def differences(topics: Sequence[TopicSnapshot], folder: FolderSnapshot) -> list[Finding]:
    """Every finding, by topic, kind and partition."""
    return sorted(chain(_of_topics(topics), _of_folder(folder)), key=order)


def _of_topics(topics: Sequence[TopicSnapshot]) -> Iterator[Finding]:
    for sight in topics:
        judged = judge_topic(sight.view)
        for issue in _OF_TOPIC:
            if issue in _OF_ONE_VIEW or not sight.moving:
                yield from issue.find(sight, judged)


def _of_folder(folder: FolderSnapshot) -> Iterator[Finding]:
    for issue in _OF_FOLDER:
        yield from issue.of_folder(folder)
