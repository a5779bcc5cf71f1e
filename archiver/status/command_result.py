"""File with the newest result that a command found by itself: audit, deep audit or reconciliation (0101).

Pure. One JSON document of bounded size. Every value of a file is checked, and its texts are only shown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, get_args

from archiver.runtime.local_file import NotUsable
from archiver.runtime.redaction import EXCERPT_MAX, MESSAGE_MAX, excerpt
from archiver.status.journal import Cycle, Outcome
from reconcile.findings.finding import IDS, SEVERITIES

FORMAT: Final = 1
JOBS: Final = ("audit", "deep_audit", "reconcile")
"""The kinds, as the journal names the daemon's own."""
FINDINGS_MAX: Final = 50
"""Findings in a file, the worst; the others are counted."""
FILE_BYTES_MAX: Final = 2**20
"""More than the largest file: 50 findings with two messages each, where JSON writes a character as 12."""
AHEAD_MAX_S: Final = 60.0
"""A result from further in the future would hide the daemon's own."""
_FILE: Final = "stream-archiver result"
_VERDICTS: Final = ("valid", "invalid", "unknown")
_TEXT_MAX: Final = MESSAGE_MAX + 100
"""A message and the note of how much was cut off."""


def result_path(metadata: Path, job: str) -> Path:
    """Path of the file of one kind; `metadata` is `MetadataSettings.local_path`."""
    return metadata.with_name(f"{metadata.name}.{job}-result")


def encode(cycle: Cycle, cluster_id: str) -> bytes:
    """The file."""
    document = {
        "file": _FILE,
        "format": FORMAT,
        "cluster_id": cluster_id,
        "job": cycle.job,
        "by": excerpt(cycle.by, EXCERPT_MAX),
        "began_us": cycle.began_us,
        "seconds": cycle.seconds,
        "outcome": cycle.outcome,
        "line": excerpt(cycle.line, MESSAGE_MAX),
        **(_reconciled(cycle.document) if cycle.job == "reconcile" else _audited(cycle.document)),
    }
    return json.dumps(document).encode()


def _audited(document: Mapping[str, Any]) -> dict[str, Any]:
    found = [str(one["verdict"]) for one in document["partitions"]]
    return {"verdict": document["verdict"], "counts": {name: found.count(name) for name in _VERDICTS}}


def _reconciled(document: Mapping[str, Any]) -> dict[str, Any]:
    worst = sorted(document["findings"], key=lambda one: SEVERITIES.index(one["severity"]))
    kept = [
        {
            **{name: one[name] for name in ("id", "severity", "partition", "fixed")},
            "topic": None if one["topic"] is None else excerpt(one["topic"], MESSAGE_MAX),
            "what": excerpt(one["what"], MESSAGE_MAX),
            "repair": excerpt(one["repair"], MESSAGE_MAX),
        }
        for one in worst[:FINDINGS_MAX]
    ]
    return {"findings": kept, "findings_left": len(worst) - len(kept)}


def decode(data: bytes, job: str, now_us: int, cluster_id: str) -> Cycle:
    """The result of that kind; raises `NotUsable` with the reason."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise NotUsable("it is not JSON") from error
    if not isinstance(found, dict) or found.get("file") != _FILE:
        raise NotUsable("it is not the result of a command")
    # A bool equals 1, so the type is compared too.
    if type(found.get("format")) is not int or found["format"] != FORMAT or found.get("job") != job:
        raise NotUsable("it has another format")
    if found.get("cluster_id") != cluster_id:
        raise NotUsable("it is of another cluster")
    began_us: Any = found.get("began_us")
    seconds: Any = found.get("seconds")
    outcome: Any = found.get("outcome")
    if not _is_count(began_us) or type(seconds) not in (int, float) or not 0 <= seconds < 1e9:
        raise NotUsable("its times are none")
    if began_us / 1e6 + seconds > now_us / 1e6 + AHEAD_MAX_S:
        raise NotUsable("its time is in the future")
    if outcome not in get_args(Outcome) or outcome == "skipped":
        raise NotUsable("its outcome is none")
    document = _findings(found) if job == "reconcile" else _verdict(found)
    line, by = _text(found.get("line")), _text(found.get("by"), EXCERPT_MAX + 100)
    return Cycle(job, began_us, float(seconds), outcome, line, document, by=by)


def _verdict(found: Mapping[str, Any]) -> dict[str, Any]:
    verdict, counts = found.get("verdict"), found.get("counts")
    if verdict not in _VERDICTS or not isinstance(counts, dict) or counts.keys() != set(_VERDICTS):
        raise NotUsable("its verdict is none")
    if not all(_is_count(number) for number in counts.values()):
        raise NotUsable("its verdict is none")
    return {"verdict": verdict, "counts": counts}


def _findings(found: Mapping[str, Any]) -> dict[str, Any]:
    findings, left = found.get("findings"), found.get("findings_left")
    if not isinstance(findings, list) or len(findings) > FINDINGS_MAX or not _is_count(left):
        raise NotUsable("its findings are none")
    return {"findings": [_finding(one) for one in findings], "findings_left": left}


def _finding(one: Any) -> dict[str, Any]:
    if not isinstance(one, dict) or one.get("severity") not in SEVERITIES:
        raise NotUsable("a finding in it is of no kind")
    if not isinstance(one.get("id"), str) or one["id"] not in IDS:
        raise NotUsable("a finding in it is of no kind")
    topic, partition, fixed = one.get("topic"), one.get("partition"), one.get("fixed")
    if not (partition is None or _is_count(partition)) or type(fixed) is not bool:
        raise NotUsable("a finding in it is of no kind")
    return {
        "id": one["id"],
        "severity": one["severity"],
        "topic": None if topic is None else _text(topic),
        "partition": partition,
        "what": _text(one.get("what")),
        "repair": _text(one.get("repair")),
        "fixed": fixed,
    }


def _text(value: Any, length_max: int = _TEXT_MAX) -> str:
    if not isinstance(value, str) or not value or len(value) > length_max:
        raise NotUsable("a text in it is absent or too long")
    return value


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63
