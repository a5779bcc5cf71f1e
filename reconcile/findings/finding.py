"""What a finding is: one difference between log, ledger, object store and table, with what is to be done
about it.

Owns the list of all ids: metrics, the status page and the runbook know no others. Pure values. An id names a
kind, and once given is never used for another one: alerts and runbooks go by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Severity = Literal["error", "warning", "info"]
"""error: rows are missing, doubled or in danger, or a topic stands still · warning: it goes on, and somebody
should know · info: noted."""

SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "info")
"""The worst first."""

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
"""Every id with the severity it has as a rule, in the order in which findings of one topic are told."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference."""

    id: str
    """The kind: a key of `IDS`."""
    severity: Severity
    topic: str | None
    """None: of no topic that the intake log knows."""
    partition: int | None
    """None: of the whole topic."""
    what: str
    """What differs, for people, on one line."""
    repair: str
    """What is proposed, and who does it."""
    safe: bool = False
    """The daemon carries the repair out unasked: it is what the next round would do anyway (decision
    0028)."""


def anchor(finding_id: str) -> str:
    """The heading of an id in the runbook, as an anchor."""
    return f"finding-{finding_id}"


def order(finding: Finding) -> tuple[str, int, int, str]:
    """For sorting: by topic, kind, partition."""
    return (
        finding.topic or "",
        list(IDS).index(finding.id),
        -1 if finding.partition is None else finding.partition,
        finding.what,
    )
