"""The results that the status page shows together: readiness, lag, audits and reconciliation.

Each has its age and the time of its next renewal. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from archiver.runtime.text import counted
from archiver.status.ages import age
from archiver.status.journal import Cycle, Journal
from archiver.status.lag import LagReport

_VERDICTS = ("invalid", "unknown", "valid")
"""The worst first."""


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the table."""

    name: str
    word: str
    """The word of its pill; empty before the first result."""
    line: str
    at_us: int | None
    """When it was found; None before the first."""
    renewal: str
    """When or how it is renewed."""
    by: str = ""
    """host:pid of the command that found it; empty for this daemon."""


def results(
    journal: Journal,
    standing: LagReport | None,
    troubled: int,
    renewals: Mapping[str, int | None],
    now_us: int,
    roles: Collection[str],
) -> list[Result]:
    """All of them. `troubled` is the number of topics with partitions that are held back; `renewals` has the
    wall time of each job's next run, None for one that runs now.
    """
    checks = journal.checks()
    failed = sum(not check.ok for check in checks)
    watch = journal.newest("watch")
    polled = _next("watch", renewals, now_us, "when the daemon serves")
    cleanup = _next("cleanup", renewals, now_us, "")
    interval = "" if "reconcile" in roles else "this daemon has not the role reconcile; "
    return [
        Result(
            "readiness",
            "" if not checks else "ok" if journal.ready else "down",
            f"{journal.state}; {len(checks) - failed} of "
            + counted(len(checks), "dependency answers", "dependencies answer"),
            None if watch is None else watch.began_us,
            polled,
        ),
        Result(
            "lag",
            "" if standing is None else "watch" if troubled else "ok",
            ""
            if standing is None
            else f"{counted(len(standing.topics), 'topic')}, {troubled or 'none'} with partitions held back",
            None if standing is None else standing.now_us,
            polled,
        ),
        _audit(
            "audit",
            journal.latest("audit"),
            _next("audit", renewals, now_us, f"{interval}only by command: `archiver audit`"),
        ),
        _audit(
            "deep audit",
            journal.latest("deep_audit"),
            _next(
                "deep_audit",
                renewals,
                now_us,
                f"{interval}only by command: `archiver audit --deep`"
                + ("" if interval else ", or set `daemon.deep_audit_interval` in archiver.yaml"),
            ),
        ),
        _reconciliation(
            journal.latest("reconcile"),
            f"{cleanup}, before the cleanup"
            if cleanup
            else f"{interval}only by command: `archiver reconcile`",
        ),
    ]


def _audit(name: str, cycle: Cycle | None, renewal: str) -> Result:
    if cycle is None:
        return Result(name, "", "", None, renewal)
    verdicts = [str(one.get("verdict")) for one in cycle.document.get("partitions") or []]
    # A command counts them itself.
    numbers = cycle.document.get("counts") or {word: verdicts.count(word) for word in _VERDICTS}
    counts = ", ".join(f"{numbers[word]:,} {word}" for word in _VERDICTS if numbers[word])
    # An audit that failed has no document; its outcome still says how it ended.
    word = cycle.document.get("verdict") or {"fine": "valid", "wrong": "invalid"}.get(
        cycle.outcome, "unknown"
    )
    line = cycle.line + (f" ({counts})" if counts else "")
    return Result(name, str(word), line, cycle.began_us, renewal, cycle.by)


def _reconciliation(cycle: Cycle | None, renewal: str) -> Result:
    if cycle is None:
        return Result("reconcile", "", "", None, renewal)
    return Result("reconcile", cycle.outcome, cycle.line, cycle.began_us, renewal, cycle.by)


def _next(job: str, renewals: Mapping[str, int | None], now_us: int, otherwise: str) -> str:
    if job not in renewals:
        return otherwise
    due_us = renewals[job]
    if due_us is None:
        return "runs now"
    # The scheduler starts a job within moments of its time.
    return "due now" if due_us <= now_us else f"next in {age((due_us - now_us) / 1e6)}"
