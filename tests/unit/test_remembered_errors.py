"""The errors that a process remembers and shows are bounded in number and in bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from archiver.app.status_document import daemon_document
from archiver.runtime.redaction import MESSAGE_MAX
from archiver.status.journal import FINDINGS_MAX, Cycle, Journal
from intake.sources.files import source
from intake.sources.files.ingest import Failed
from intake.sources.files.source import FAILED_SHOWN_MAX, REASON_MAX, SHOWN_CHARS_MAX
from intake.sources.kafka.mirror import REFUSED_MAX, Inspection
from intake.sources.kafka.upstream_changes import MirrorFinding, MirrorState
from tests.support.intake.file_sources import Inbox

MARGIN = 100
"""Characters that state how much was left out."""
LONG = "x" * 2**20


def document(journal: Journal, *parts: object) -> int:
    """Size in bytes of the daemon's status document, as `archiver status` gets it."""
    sources = [one for one in parts if not isinstance(one, MirrorState)]
    mirrors = [one for one in parts if isinstance(one, MirrorState)]
    return len(json.dumps(daemon_document("here", journal, sources, mirrors)))  # type: ignore[arg-type]


def test_files_with_megabytes_of_nonsense_are_remembered_in_a_few_characters(tmp_path: Path) -> None:
    """Each of them fails with a reason that quotes its content."""
    inbox = Inbox(tmp_path)
    for number in range(30):
        inbox.put(f"{number:02}", json.dumps({LONG: 1}).encode() + b"\n")
    taker = inbox.process()
    state = taker.look()
    assert (state.failed, len(state.problems)) == (30, 30)
    assert all(len(one.why) <= REASON_MAX + MARGIN for one in state.problems)
    assert document(Journal(5), state) < 2 * 30 * (REASON_MAX + MARGIN + len(str(tmp_path)) + 100)


def test_a_reason_from_any_source_is_cut_where_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers cut what they quote of a file. A reason that no reader cut, such as a library's, is cut here."""

    def fail(*_: object) -> bool:
        raise Failed(LONG)

    monkeypatch.setattr(source, "ingest_file", fail)
    inbox = Inbox(tmp_path)
    inbox.put("a", b"")
    taker = inbox.process()
    (problem,) = taker.look().problems
    assert len(problem.why) <= REASON_MAX + MARGIN
    assert all(len(one.why) <= REASON_MAX + MARGIN for one in taker.sources._folders[0]._failures.values())


def test_long_paths_are_shown_up_to_a_bound(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    folder = "/".join(["d" * 200] * 15)
    for number in range(FAILED_SHOWN_MAX):
        inbox.put(f"{folder}/{number:03}", b"no JSON\n")
    state = inbox.process(glob="**").look()
    assert state.failed == FAILED_SHOWN_MAX, "they are counted"
    assert 0 < len(state.problems) < FAILED_SHOWN_MAX
    assert sum(len(one.path) + len(one.why) for one in state.problems) <= SHOWN_CHARS_MAX


def test_a_source_that_cannot_go_on_keeps_an_excerpt_of_why(tmp_path: Path) -> None:
    folder = Inbox(tmp_path).process()
    folder.sources._folders[0].troubled(LONG)
    assert len(folder.state.trouble or "") <= MESSAGE_MAX + MARGIN
    folder.sources._folders[0].troubled(None)
    assert folder.state.trouble is None


def test_findings_of_a_mirror_are_bounded() -> None:
    finding = MirrorFinding("unreadable", "t", 0, LONG)
    assert len(finding.why) <= MESSAGE_MAX + MARGIN
    assert MirrorFinding("unreadable", "t", 0, "short").why == "short"
    inspection = Inspection()
    for number in range(3 * REFUSED_MAX):
        inspection.refuse(f"t{number}", "more than partitions_max")
    assert (len(inspection.findings), inspection.refused_more) == (REFUSED_MAX, 2 * REFUSED_MAX)


def test_a_journal_keeps_one_report_of_a_job_and_the_worst_findings_of_it() -> None:
    journal = Journal(200)
    findings = [{"severity": "info", "what": LONG[:3000], "fixed": False}] * (3 * FINDINGS_MAX)
    findings.append({"severity": "error", "what": "the one that counts", "fixed": False})
    for _ in range(3):
        journal.add(Cycle("reconcile", 0, 1.0, "wrong", LONG, {"findings": findings, "tables": 3}))
    newest = journal.newest("reconcile")
    assert newest is not None
    assert (len(newest.document["findings"]), newest.document["tables"]) == (FINDINGS_MAX, 3)
    assert newest.document["findings"][0]["what"] == "the one that counts"
    assert all(len(one["what"]) <= MESSAGE_MAX + MARGIN for one in newest.document["findings"])
    assert [(len(one.line) <= MESSAGE_MAX + MARGIN, one.document) for one in journal.cycles()] == [
        (True, {})
    ] * 3
