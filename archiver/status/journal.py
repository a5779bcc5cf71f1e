"""Recent activity of a daemon: cycles, dependency checks and the newest audit, for people, `/readyz` and
metrics.

Memory is bounded, and a restarted daemon begins with an empty journal. Thread-safe. No decision about data
may depend on it; such facts are in the logs.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from archiver.publish.report import ArchiveReport
from archiver.runtime.redaction import MESSAGE_MAX, excerpt, redacted_document

SCHEMA_CHANGE_KEPT_S = 86400.0
"""How long an incompatible change of a schema is shown."""
FIELD_MAX = 200
"""Characters of a field's name that are kept."""
# A damaged folder can have a finding for each object, and the journal is in memory.
FINDINGS_MAX = 1000
"""Findings of the newest reconciling that are kept; `archiver reconcile` names every one."""
_WORST_FIRST = {"error": 0, "warning": 1, "info": 2}

Outcome = Literal["fine", "wrong", "untold", "skipped"]
"""fine · wrong: an operator must act · `untold`: it failed temporarily or the result is unknown, and it is
retried · skipped: another process leads."""


@dataclass(frozen=True, slots=True)
class Cycle:
    """One run of a scheduled job, or of a command that was sent to the port."""

    job: str
    """tick, reconcile, cleanup, audit, deep_audit or watch; replay and repair, which only commands start."""
    began_us: int
    seconds: float
    outcome: Outcome
    line: str
    """Summary for people, on one line."""
    document: dict[str, Any] = field(default_factory=dict)
    """The job's report, as the command of the same name prints it with `--output json`; empty if there is
    none."""
    idle: bool = False
    """There was nothing to do: counted and shown while it is the newest of its job, but not kept."""
    by: str = ""
    """host:pid of a command that did the work by itself; empty for a cycle of this daemon."""


@dataclass(frozen=True, slots=True)
class Check:
    """Result of the last check of a dependency."""

    name: str
    """For example `metadata`, `objects`, `catalog local`, `java`."""
    ok: bool
    why: str
    """Empty while it answers."""
    since_us: int
    """Start of the present state."""
    required: bool = True
    """Whether the daemon is not ready while it fails."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The part of the configuration file that the last reload did not apply."""

    at_us: int
    why: str
    whole: bool
    """True: the file is invalid and nothing was applied. False: some keys were not applied."""


@dataclass(frozen=True, slots=True)
class SchemaChanged:
    """An incompatible change of a topic's schema that this daemon recorded."""

    topic: str
    at_us: int
    was: int
    now: int
    """Versions of the schema."""
    incompatible: int
    """Number of incompatible changes."""
    fields: tuple[str, ...]
    """The first of them by name."""


class Journal:
    """Newest cycles, checks and changes. Thread-safe."""

    def __init__(self, cycles_kept: int) -> None:
        self._lock = threading.Lock()
        self._cycles: deque[Cycle] = deque(maxlen=cycles_kept)
        self._newest: dict[str, Cycle] = {}
        self._commands: dict[str, Cycle] = {}
        self._sums: dict[tuple[str, Outcome], tuple[int, float]] = {}
        self._checks: dict[str, Check] = {}
        self._schemas: dict[str, SchemaChanged] = {}
        self._state = "starting"
        self._refusal: Refusal | None = None

    def add(self, cycle: Cycle) -> None:
        """Record the end of a cycle. Its texts are kept as redacted excerpts."""
        cycle = replace(
            cycle,
            # An error may contain a whole answer of a server, and secrets in it.
            line=excerpt(cycle.line, MESSAGE_MAX),
            document=redacted_document(cycle.document, MESSAGE_MAX),
        )
        with self._lock:
            # Idle cycles would push out all others within minutes.
            if not cycle.idle:
                # Without the report: only the newest one of a job is ever read.
                self._cycles.append(replace(cycle, document={}))
            # The newest of each job stays, however many cycles of others follow.
            self._newest[cycle.job] = replace(cycle, document=_bounded(cycle.document))
            key = (cycle.job, cycle.outcome)
            # Sums and not the kept cycles, because counters must include the cycles that were dropped.
            count, seconds = self._sums.get(key, (0, 0.0))
            self._sums[key] = (count + 1, seconds + cycle.seconds)

    def schemas_changed(self, report: ArchiveReport, now_us: int) -> None:
        """Keep the newest incompatible schema change of each topic for `SCHEMA_CHANGE_KEPT_S`."""
        with self._lock:
            for topic, item in report.topics.items():
                change = item.schema_change
                if change is not None and change["incompatible"]:
                    fields = tuple(excerpt(name, FIELD_MAX) for name in change["incompatible_fields"])
                    self._schemas[topic] = SchemaChanged(
                        topic, now_us, change["from"], change["to"], change["incompatible"], fields
                    )
            # At each round, so that a topic that is never archived again also disappears.
            oldest_us = now_us - int(SCHEMA_CHANGE_KEPT_S * 1e6)
            self._schemas = {topic: one for topic, one in self._schemas.items() if one.at_us > oldest_us}

    def schema_changes(self) -> list[SchemaChanged]:
        """Schema changes, sorted by topic."""
        with self._lock:
            return [self._schemas[topic] for topic in sorted(self._schemas)]

    def cycles(self) -> list[Cycle]:
        """Cycles that were not idle, without documents, sorted by start, newest first."""
        with self._lock:
            kept = list(reversed(self._cycles))
        # They are recorded at their end, and a long cycle ends after shorter ones that began later.
        return sorted(kept, key=lambda cycle: cycle.began_us, reverse=True)

    def newest(self, job: str) -> Cycle | None:
        """Last cycle of a job, of any age; None if there was none since the daemon started."""
        with self._lock:
            return self._newest.get(job)

    def found_by_command(self, job: str, cycle: Cycle | None) -> None:
        """Record the newest result of a command that did the work by itself; None if there is none."""
        with self._lock:
            if cycle is None:
                self._commands.pop(job, None)
                return
            self._commands[job] = replace(
                cycle,
                # A file of this machine: its texts are bounded, but may hold a secret of an error.
                line=excerpt(cycle.line, MESSAGE_MAX),
                document=redacted_document(cycle.document, MESSAGE_MAX),
            )

    def latest(self, job: str) -> Cycle | None:
        """The cycle of this daemon or the result of a command, whichever began later; None without any."""
        with self._lock:
            own, command = self._newest.get(job), self._commands.get(job)
        if own is None or command is None:
            return own or command
        # Equal times: the daemon's own is certain.
        return command if command.began_us > own.began_us else own

    def counts(self) -> dict[tuple[str, Outcome], int]:
        """Number of cycles by job and outcome since the daemon started."""
        return {key: count for key, (count, _) in self.sums().items()}

    def sums(self) -> dict[tuple[str, Outcome], tuple[int, float]]:
        """Number of cycles and their total seconds, by job and outcome, since the daemon started."""
        with self._lock:
            return dict(self._sums)

    def checked(self, name: str, why: str | None, now_us: int, *, required: bool = True) -> Check:
        """Record a check of a dependency; `why` is None if it answered. Returns the check with the start of
        its state. If it is not `required`, the daemon is ready without it.
        """
        with self._lock:
            before = self._checks.get(name)
            ok = why is None
            # The start of the state stays while the result is the same, even with another reason.
            since_us = before.since_us if before is not None and before.ok == ok else now_us
            check = self._checks[name] = Check(name, ok, excerpt(why or "", MESSAGE_MAX), since_us, required)
            return check

    def unchecked(self, name: str) -> None:
        """Remove a dependency that is no longer checked."""
        with self._lock:
            # A stale failure of it would keep `/readyz` red for ever.
            self._checks.pop(name, None)

    def checks(self) -> list[Check]:
        """Checks, sorted by name."""
        with self._lock:
            return [self._checks[name] for name in sorted(self._checks)]

    def reloaded(self, refusal: Refusal | None) -> None:
        """Record a reload of the configuration file and what it refused; None if nothing."""
        with self._lock:
            self._refusal = (
                None if refusal is None else replace(refusal, why=excerpt(refusal.why, MESSAGE_MAX))
            )

    @property
    def refusal(self) -> Refusal | None:
        """What the last reload refused; None if nothing, or without a reload."""
        with self._lock:
            return self._refusal

    @property
    def state(self) -> str:
        """starting, serving or stopping."""
        with self._lock:
            return self._state

    def becomes(self, state: Literal["starting", "serving", "stopping"]) -> None:
        """Set the state of the daemon."""
        with self._lock:
            self._state = state

    @property
    def ready(self) -> bool:
        """Whether it serves and the last check of every required dependency of its roles succeeded."""
        with self._lock:
            # A daemon without any check yet is not serving, so an empty list is not ready.
            return self._state == "serving" and all(
                check.ok or not check.required for check in self._checks.values()
            )


def _bounded(document: dict[str, Any]) -> dict[str, Any]:
    """The report with the worst `FINDINGS_MAX` findings at most."""
    findings = document.get("findings")
    if not isinstance(findings, list) or len(findings) <= FINDINGS_MAX:
        return document
    # The sort is stable, so equals keep the order of the report. An unknown severity comes last.
    worst = sorted(findings, key=lambda one: _WORST_FIRST.get(one.get("severity"), len(_WORST_FIRST)))
    return {**document, "findings": worst[:FINDINGS_MAX]}
