"""A finding: one difference between log, ledger, object store and table, with a proposed repair.

This module lists all ids; metrics, the status page and the runbook use no others. An id names one kind and is
never reused: alerts and runbooks depend on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Severity = Literal["error", "warning", "info"]
"""error: rows are missing, duplicated or in danger, or a topic is halted · warning: archiving continues, but
an operator should know · info: for the record."""

SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "info")
"""From worst to mildest."""

IDS: Final[Mapping[str, Severity]] = {
    "table-missing": "error",
    "table-replaced": "error",
    "topic-recreated-on-old-table": "error",
    "format-changed": "error",
    "spec-changed": "error",
    "schema-drift": "error",
    "rolled-back": "error",
    "evidence-doubted": "error",
    "dangling-reference": "error",
    "altered-object": "error",
    "gap": "error",
    "doubled-file": "error",
    "overlap": "error",
    "unknown-commit": "warning",
    "missing-in-catalog": "warning",
    "foreign-rows": "warning",
    "stale-lease": "warning",
    "log-ahead": "warning",
    "orphan": "info",
    "stray-upload": "info",
    "rows-removed": "info",
}
"""Every id with its usual severity, in the order of a topic's findings."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference between the views."""

    id: str
    """The kind: a key of `IDS`."""
    severity: Severity
    topic: str | None
    """None: no topic that the intake log knows."""
    partition: int | None
    """None: the whole topic."""
    what: str
    """The difference as one line of text."""
    repair: str
    """The proposed repair, and who does it."""
    safe: bool = False
    """Whether the daemon repairs it on its own: the next round would do the same (decision 0028)."""


def anchor(finding_id: str) -> str:
    """The anchor of an id's heading in the runbook."""
    return f"finding-{finding_id}"


def order(finding: Finding) -> tuple[str, int, int, str]:
    """The sort key: topic, kind, partition."""
    return (
        finding.topic or "",
        # The order of `IDS`: the most severe kinds come first.
        list(IDS).index(finding.id),
        # Findings of the whole topic come before those of its partitions.
        -1 if finding.partition is None else finding.partition,
        finding.what,
    )
