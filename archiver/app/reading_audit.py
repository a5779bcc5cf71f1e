"""Document of the read API about the newest audits: verdicts with their proof and age, and findings.

Pure: it follows from the journal of the daemon. Of a topic that the reader may not describe, partitions and
findings are counted, and never named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from archiver.runtime.rfc3339 import format_time
from archiver.status.advice import ANCHORS
from reconcile.findings.finding import anchor

if TYPE_CHECKING:
    from archiver.app.reading_groups import May
    from archiver.config.daemon import DaemonSettings
    from archiver.status.journal import Cycle, Journal

PARTITIONS_MAX: Final = 2000
"""Partitions of an audit that are shown; its counts are of all."""
FINDINGS_MAX: Final = 500
RANGES_MAX: Final = 20
"""Ranges of offsets of one kind that are shown of a partition."""
_WORST_FIRST: Final = {"invalid": 0, "unknown": 1, "valid": 2}
_SEVERITIES: Final = {"error": 0, "warning": 1, "info": 2}
_RANGES: Final = ("missing", "doubled", "altered", "removed", "pending")
_SECTIONS: Final = {"invalid": ANCHORS["audit"], "unknown": ANCHORS["untold"]}

Kind = Literal["audit", "deep_audit"]


@dataclass(frozen=True, slots=True)
class Seen:
    """What a reader asked for and may see."""

    may: May
    sees_all: bool
    """No rule limits the reader."""
    topic: str | None
    """The requested topic; None: all."""

    def asked(self, entries: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Those of the requested topic."""
        return [one for one in entries if self.topic is None or one["topic"] == self.topic]

    def visible(self, entries: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Those that the reader may describe."""
        return [
            one
            for one in entries
            # What belongs to no topic may name objects of any.
            if (self.sees_all if one["topic"] is None else self.may("topic", one["topic"]))
        ]

    def error(self, line: str) -> str:
        """Why a job failed. The message may name any topic."""
        return line if self.sees_all else "it could not be finished; the daemon's log says why"


def audit_document(journal: Journal, daemon: DaemonSettings, now_us: int, seen: Seen) -> dict[str, Any]:
    """The newest audits, and the findings of the newest comparison."""
    intervals: dict[Kind, float] = {
        "audit": daemon.audit_interval,
        "deep_audit": daemon.deep_audit_interval,
    }
    return {
        "as_of": format_time(now_us),
        "topic": seen.topic,
        "audits": [
            # 0 of the deep audit: none on schedule.
            {
                "kind": kind,
                **_times(journal.newest(kind), interval_s or None, now_us),
                **_audit(journal.newest(kind), seen),
                "command": _of_command(journal.latest(kind), now_us, seen),
            }
            for kind, interval_s in intervals.items()
        ],
        "findings": _findings(journal.latest("reconcile"), now_us, seen),
    }


def _times(cycle: Cycle | None, interval_s: float | None, now_us: int) -> dict[str, Any]:
    # Intervals count from start to start.
    next_us = None if cycle is None or interval_s is None else cycle.began_us + round(interval_s * 1e6)
    return {
        "age_seconds": None if cycle is None else _age_s(cycle, now_us),
        "took_seconds": None if cycle is None else cycle.seconds,
        "interval_seconds": interval_s,
        "next_at": None if next_us is None else format_time(next_us),
    }


def _age_s(cycle: Cycle, now_us: int) -> float:
    """Since its end, not below 0: the clock may have been set."""
    return max(0.0, (now_us - cycle.began_us) / 1e6 - cycle.seconds)


def _audit(cycle: Cycle | None, seen: Seen) -> dict[str, Any]:
    found: dict[str, Any] = {
        "verdict": None,
        "section": None,
        "checked_at": None,
        "error": None,
        "counts": {},
        "partitions": [],
        "partitions_left": 0,
        "partitions_hidden": 0,
    }
    if cycle is None:
        return found
    document = cycle.document
    if "verdict" not in document:
        return found | {
            "verdict": "unknown",
            "section": _SECTIONS["unknown"],
            "error": seen.error(cycle.line),
        }
    asked = seen.asked(document["partitions"])
    mine = sorted(seen.visible(asked), key=lambda one: _WORST_FIRST.get(one["verdict"], -1))
    verdicts = [str(one["verdict"]) for one in mine]
    # Of what the reader sees: that of the whole would tell about the rest.
    verdict = verdicts[0] if verdicts else str(document["verdict"]) if seen.sees_all else None
    return found | {
        "verdict": verdict,
        "section": _SECTIONS.get(verdict or ""),
        "checked_at": document["checked_at"],
        "counts": {name: verdicts.count(name) for name in _WORST_FIRST if name in verdicts},
        "partitions": [_partition(one, document.get("snapshot_ids", {})) for one in mine[:PARTITIONS_MAX]],
        "partitions_left": max(0, len(mine) - PARTITIONS_MAX),
        "partitions_hidden": len(asked) - len(mine),
    }


def _of_command(cycle: Cycle | None, now_us: int, seen: Seen) -> dict[str, Any] | None:
    """A verdict that a command found after the newest one of this daemon."""
    # It is of all topics together, so it is for readers that see all of them.
    if cycle is None or not cycle.by or not seen.sees_all or seen.topic is not None:
        return None
    verdict = str(cycle.document.get("verdict", "unknown"))
    return {
        "verdict": verdict,
        "section": _SECTIONS.get(verdict),
        "counts": cycle.document.get("counts", {}),
        "line": cycle.line,
        "by": cycle.by,
        "age_seconds": _age_s(cycle, now_us),
    }


def _partition(one: Mapping[str, Any], snapshot_ids: Mapping[str, Any]) -> dict[str, Any]:
    ranges = {name: one[name] for name in _RANGES if one.get(name)}
    kept = ("topic", "partition", "verdict", "why", "proof", "rows", "start", "watermark", "stable", "next")
    return {
        **{name: one[name] for name in kept},
        "section": _SECTIONS.get(one["verdict"]),
        "snapshot_id": snapshot_ids.get(one["topic"]),
        "gap_offsets": sum(end - begin for begin, end in one["gaps"]),
        "ranges": {name: found[:RANGES_MAX] for name, found in ranges.items()},
        "ranges_left": sum(max(0, len(found) - RANGES_MAX) for found in ranges.values()),
    }


def _findings(cycle: Cycle | None, now_us: int, seen: Seen) -> dict[str, Any] | None:
    """Of the newest comparison; None without one."""
    if cycle is None:
        return None
    document = cycle.document
    # What a command found has no error of its own.
    failed = not document or (bool(cycle.by) and cycle.outcome == "untold")
    error = cycle.line if failed else document.get("error")
    asked = seen.asked(document.get("findings", []))
    mine = sorted(seen.visible(asked), key=lambda one: (one["fixed"], _SEVERITIES.get(one["severity"], -1)))
    kept = ("id", "severity", "topic", "partition", "what", "repair", "fixed")
    # A command keeps the worst ones, and the number of the others is of all topics together.
    not_kept = document.get("findings_left", 0) if seen.sees_all and seen.topic is None else 0
    return {
        "checked_at": document.get("checked_at"),
        "age_seconds": _age_s(cycle, now_us),
        "by": cycle.by if cycle.by and seen.sees_all else None,
        "error": None if error is None else seen.error(error),
        "findings": [
            {**{name: one[name] for name in kept}, "section": anchor(one["id"])}
            for one in mine[:FINDINGS_MAX]
        ],
        "left": max(0, len(mine) - FINDINGS_MAX) + not_kept,
        "hidden": len(asked) - len(mine),
    }
