"""Reports of jobs as one line each: pure functions.

The outcome of a cycle is that of the exit code of the command with the same name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from archiver.daemon.cycles import Summary
from archiver.publish.report import ArchiveReport, TopicReport
from archiver.rewrite.replay_report import ReplayReport
from archiver.runtime.exit_codes import FINE, UNKNOWN, USAGE, WRONG
from archiver.runtime.text import counted
from archiver.status.journal import Outcome
from reconcile.repair.run import ReconcileReport
from reconcile.vacuum.report import CleanReport

_OUTCOMES: Mapping[int, Outcome] = {FINE: "fine", WRONG: "wrong", UNKNOWN: "untold", USAGE: "wrong"}
_NAMED_MAX = 3
"""Maximum of topics with problems in a line; the document has all."""


def summarize_archiving(report: ArchiveReport, topics: Sequence[TopicReport]) -> Summary:
    """Summary of a round, with the newest report of every topic, also of those that this round did not
    check.
    """
    done = [item for item in report.topics.values() if item.archives or item.gaps]
    halted = [item for item in topics if item.state == "halted"]
    deferred = [item for item in topics if item.state == "deferred"]
    parts = [_archived(done, report)] if done else []
    parts += [
        f"{kind}: {_named(items)}" for kind, items in (("halted", halted), ("deferred", deferred)) if items
    ]
    noted = [item for item in topics if item.notes]
    parts += [f"{item.topic}: {'; '.join(dict.fromkeys(item.notes))}" for item in noted[:_NAMED_MAX]]
    parts += [f"and so of {len(noted) - _NAMED_MAX} more"] if len(noted) > _NAMED_MAX else []
    outcome: Outcome = "wrong" if halted else "untold" if deferred else "fine"
    document = report.to_json() | {"topics": [dict(vars(item)) for item in topics]}
    committed_only = report.rounds > 0 and not done
    return Summary(
        outcome,
        "; ".join(parts) or ("pending archives are resolved" if committed_only else "nothing was due"),
        document,
        idle=not report.rounds,
    )


def _archived(done: Sequence[TopicReport], report: ArchiveReport) -> str:
    rows, archives, stored = (
        sum(getattr(item, name) for item in done) for name in ("rows", "archives", "stored_bytes")
    )
    gaps = sum(item.gaps for item in done)
    waiting = sum(item.waiting or 0 for item in report.topics.values())
    line = (
        f"{counted(rows, 'record')} of {counted(len(done), 'topic')} archived in "
        f"{counted(archives, 'file')} ({stored / 1e6:,.3f} MB)"
    )
    line += f", {counted(gaps, 'offset')} of aborted transactions skipped" if gaps else ""
    return line + (f", {counted(waiting, 'record waits', 'records wait')}" if waiting else "")


def summarize_cleaning(report: CleanReport) -> Summary:
    """Summary of a run of the vacuum."""
    deleted = counted(len(report.deleted), "object")
    parts = [
        (
            f"{deleted} deleted, {len(report.condemned):,} marked for deletion, "
            f"{report.waiting:,} marked and still there"
        )
    ]
    parts += [
        f"nothing of {topic['topic']} is deleted: {topic['why']}"
        for topic in report.topics
        if topic["doubted"]
    ]
    parts += [
        f"{one.topic}: {counted(one.archives, 'archive')} merged into {one.merged:,}"
        for one in report.compacted
        if one.merged
    ]
    parts += [f"{one.topic} is not compacted: {one.why}" for one in report.compacted if one.why]
    parts += [f"finding: {finding}" for finding in report.findings]
    parts += [f"not finished: {report.error}"] if report.error is not None else []
    return Summary(_OUTCOMES[report.exit_code], "; ".join(parts), report.to_json())


def summarize_reconciling(report: ReconcileReport) -> Summary:
    """Summary of a run of the reconciler. Findings below the severity error leave the outcome fine."""
    fixed, left = sum(done for _, done in report.findings), report.left
    parts = [
        f"{counted(len(left), 'finding')} in {counted(report.topics, 'topic')}"
        + (f", {fixed:,} fixed" if fixed else "")
    ]
    parts += [
        f"{item.id}{'' if item.topic is None else f' ({item.topic})'}: {item.what}"
        for item in left[:_NAMED_MAX]
    ]
    parts += [f"{len(left) - _NAMED_MAX} more"] if len(left) > _NAMED_MAX else []
    parts += [
        f"{topic} could not be checked: {why}" for topic, why in list(report.unread.items())[:_NAMED_MAX]
    ]
    parts += [f"not finished: {report.error}"] if report.error is not None else []
    outcome: Outcome = (
        "untold"
        if report.exit_code == UNKNOWN
        else "wrong"
        if any(item.severity == "error" for item in left)
        else "fine"
    )
    return Summary(outcome, "; ".join(parts), report.to_json())


_VERDICTS: Mapping[str, Outcome] = {"valid": "fine", "invalid": "wrong", "unknown": "untold"}


def summarize_audit(document: dict[str, Any]) -> Summary:
    """Summary of an audit."""
    verdict = str(document["verdict"])
    partitions = document["partitions"]
    bad = [item for item in partitions if item["verdict"] != "valid"]
    line = (
        f"{verdict}: {counted(len(partitions), 'partition')}, "
        f"{counted(sum(item['rows'] or 0 for item in partitions), 'row')}"
    )
    named = [
        f"{item['topic']}:{item['partition']} is {item['verdict']}: {item['why']}"
        for item in bad[:_NAMED_MAX]
    ]
    more = [f"{len(bad) - _NAMED_MAX} more"] if len(bad) > _NAMED_MAX else []
    return Summary(_VERDICTS[verdict], "; ".join([line, *named, *more]), document)


def summarize_replay(report: ReplayReport) -> Summary:
    """Summary of a replay."""
    made, decoded = sum(item.archives for item in report.topics), sum(item.decoded for item in report.topics)
    line = (
        f"{counted(made, 'archive')} rewritten, {counted(decoded, 'key or value', 'keys and values')} decoded"
    )
    bad = [f"{item.topic}: {item.why}" for item in report.topics if item.state in ("halted", "deferred")][
        :_NAMED_MAX
    ]
    return Summary(_OUTCOMES[report.exit_code], "; ".join([line, *bad]), report.to_json())


def _named(items: Sequence[TopicReport]) -> str:
    named = [f"{item.topic} ({item.why})" for item in items[:_NAMED_MAX]]
    return ", ".join([*named, *([f"{len(items) - _NAMED_MAX} more"] if len(items) > _NAMED_MAX else [])])
