"""Results of commands: the file gives back what was found, all else is refused, and the newest counts."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archiver.daemon.local_state import LocalState
from archiver.daemon.operations import summarize_audit
from archiver.runtime.clock import ManualClock
from archiver.runtime.local_file import NotUsable
from archiver.runtime.redaction import MESSAGE_MAX
from archiver.status.advice import advice, verdict
from archiver.status.command_result import FILE_BYTES_MAX, FINDINGS_MAX, JOBS, decode, encode, result_path
from archiver.status.history import LagHistory
from archiver.status.journal import Cycle, Journal
from tests.support.builders.standings import journal_of, of, partition, topic
from tests.support.builders.status_scenes import HOSTILE

CLUSTER = "c" * 32
START_US = ManualClock().now_us()


def finding(number: int = 0, severity: str = "error", text: str = "offsets are gone") -> dict[str, Any]:
    return {
        "id": "gap",
        "severity": severity,
        "topic": f"orders-{number}",
        "partition": number,
        "what": text,
        "repair": text,
        "safe": False,
        "fixed": False,
    }


def audited(verdict: str = "invalid", began_us: int = START_US, by: str = "there:7") -> Cycle:
    partitions = [{"verdict": verdict, "topic": "orders", "partition": 0, "rows": 5, "why": HOSTILE}]
    partitions.append(partitions[0] | {"verdict": "valid"})
    summary = summarize_audit({"verdict": verdict, "partitions": partitions})
    return Cycle("audit", began_us, 2.5, summary.outcome, summary.line, summary.document, by=by)


def reconciled(*findings: dict[str, Any], began_us: int = START_US) -> Cycle:
    return Cycle("reconcile", began_us, 1.0, "wrong", "findings", {"findings": list(findings)}, by="there:7")


def test_an_audit_comes_back_with_its_verdict_and_counts() -> None:
    found = decode(encode(audited(), CLUSTER), "audit", START_US + 10_000_000, CLUSTER)
    assert (found.job, found.by, found.outcome, found.began_us, found.seconds) == (
        "audit",
        "there:7",
        "wrong",
        START_US,
        2.5,
    )
    assert found.document == {"verdict": "invalid", "counts": {"valid": 1, "invalid": 1, "unknown": 0}}
    assert HOSTILE in found.line


def test_a_reconciliation_keeps_the_worst_findings_and_counts_the_others() -> None:
    many = [finding(number, "info" if number < 40 else "error", "x" * 100_000) for number in range(100)]
    data = encode(reconciled(*many), CLUSTER)
    assert len(data) < FILE_BYTES_MAX
    found = decode(data, "reconcile", START_US + 10_000_000, CLUSTER).document
    assert (len(found["findings"]), found["findings_left"]) == (FINDINGS_MAX, 50)
    assert {one["severity"] for one in found["findings"]} == {"error"}
    assert all(len(one["what"]) < MESSAGE_MAX + 100 for one in found["findings"])
    emoji = [finding(number, text="\U0001f600" * 100_000) for number in range(60)]
    data = encode(reconciled(*emoji), CLUSTER)
    assert len(data) > FILE_BYTES_MAX // 2, "it is the largest"
    decode(data, "reconcile", START_US + 10_000_000, CLUSTER)


def changed(cycle: Cycle, **values: Any) -> bytes:
    return json.dumps(json.loads(encode(cycle, CLUSTER)) | values).encode()


def with_finding(**values: Any) -> bytes:
    return changed(reconciled(finding()), findings=[finding() | values])


REFUSED: list[tuple[str, bytes, str]] = [
    ("audit", b"", "it is not JSON"),
    ("audit", b"\xff", "it is not JSON"),
    ("audit", b"[" * 100_000, "it is not JSON"),
    ("audit", b"[]", "it is not the result of a command"),
    ("audit", b'{"file": "x"}', "it is not the result of a command"),
    ("audit", changed(audited(), format=2), "it has another format"),
    ("audit", changed(audited(), format=True), "it has another format"),
    ("deep_audit", encode(audited(), CLUSTER), "it has another format"),
    ("audit", changed(audited(), cluster_id=None), "it is of another cluster"),
    ("audit", changed(audited(), began_us=-1), "its times are none"),
    ("audit", changed(audited(), began_us=10**400), "its times are none"),
    ("audit", changed(audited(), seconds=float("nan")), "its times are none"),
    ("audit", changed(audited(), seconds=True), "its times are none"),
    ("audit", changed(audited(), began_us=START_US + 10**9), "its time is in the future"),
    ("audit", changed(audited(), seconds=1e8), "its time is in the future"),
    ("audit", changed(audited(), outcome="skipped"), "its outcome is none"),
    ("audit", changed(audited(), outcome=[]), "its outcome is none"),
    ("audit", changed(audited(), verdict="fine"), "its verdict is none"),
    ("audit", changed(audited(), verdict={}), "its verdict is none"),
    ("audit", changed(audited(), counts={"valid": 1}), "its verdict is none"),
    ("audit", changed(audited(), counts={"valid": 1, "invalid": "<b>", "unknown": 0}), "its verdict is none"),
    ("audit", changed(audited(), line="x" * 5000), "a text in it is absent or too long"),
    ("audit", changed(audited(), line=None), "a text in it is absent or too long"),
    ("audit", changed(audited(), by="x" * 400), "a text in it is absent or too long"),
    ("reconcile", changed(reconciled(), findings={}), "its findings are none"),
    ("reconcile", changed(reconciled(), findings=[finding()] * 51), "its findings are none"),
    ("reconcile", changed(reconciled(), findings_left=-1), "its findings are none"),
    ("reconcile", changed(reconciled(), findings=[5]), "a finding in it is of no kind"),
    ("reconcile", with_finding(id="nothing"), "a finding in it is of no kind"),
    ("reconcile", with_finding(id=[]), "a finding in it is of no kind"),
    ("reconcile", with_finding(severity="worst"), "a finding in it is of no kind"),
    ("reconcile", with_finding(partition="0"), "a finding in it is of no kind"),
    ("reconcile", with_finding(fixed=1), "a finding in it is of no kind"),
    ("reconcile", with_finding(topic=5), "a text in it is absent or too long"),
    ("reconcile", with_finding(repair=""), "a text in it is absent or too long"),
]


@pytest.mark.parametrize(("job", "data", "why"), REFUSED)
def test_a_file_that_is_not_ours_is_refused_with_the_reason(job: str, data: bytes, why: str) -> None:
    with pytest.raises(NotUsable) as caught:
        decode(data, job, START_US + 10_000_000, CLUSTER)
    assert str(caught.value) == why


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
KEYS = sorted(json.loads(encode(audited(), CLUSTER))) + sorted(json.loads(encode(reconciled(), CLUSTER)))


@given(st.sampled_from(JOBS), st.dictionaries(st.sampled_from(KEYS), JSON, max_size=4))
def test_any_value_is_read_or_refused(job: str, values: dict[str, Any]) -> None:
    cycle = reconciled(finding()) if job == "reconcile" else audited()
    try:
        decode(changed(cycle, **values), job, START_US + 10_000_000, CLUSTER)
    except NotUsable:
        pass


class Daemon:
    """The local state of a daemon whose clock only a test moves."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.clock.advance(10)
        self.journal = Journal(10)
        self.journal.becomes("serving")
        self.metadata = folder / "metadata.db"
        self.state = LocalState(self.metadata, LagHistory(3600.0, 10), self.journal, self.clock)
        self.state.load(CLUSTER)

    def write(self, cycle: Cycle) -> Path:
        path = result_path(self.metadata, cycle.job)
        draft = path.with_suffix(".draft")
        draft.write_bytes(encode(cycle, CLUSTER))
        draft.chmod(0o644)
        draft.replace(path)
        return path

    def own(self, job: str, outcome: str, began_us: int) -> None:
        self.journal.add(Cycle(job, began_us, 0.1, outcome, outcome, {}))  # type: ignore[arg-type]


def test_the_newest_of_daemon_and_command_counts(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path)
    daemon.own("audit", "fine", START_US - 5)
    path = daemon.write(audited())
    daemon.state.run()
    latest = daemon.journal.latest("audit")
    assert latest is not None
    assert (latest.by, latest.outcome) == ("there:7", "wrong")
    newest = daemon.journal.newest("audit")
    assert newest is not None
    assert newest.outcome == "fine", "the metrics stay those of the daemon"
    daemon.state.run()
    assert path.exists()
    daemon.own("audit", "untold", START_US + 5)
    daemon.state.run()
    assert path.exists(), "an audit without a verdict replaces nothing for the next daemon"
    daemon.own("audit", "fine", START_US + 6)
    daemon.state.run()
    assert not path.exists(), "it must not come back with a restart"
    daemon.state.run()
    latest = daemon.journal.latest("audit")
    assert latest is not None
    assert (latest.by, latest.outcome) == ("", "fine")
    daemon.write(audited("valid", START_US + 7))
    daemon.state.run()
    latest = daemon.journal.latest("audit")
    assert latest is not None
    assert (latest.by, latest.outcome) == ("there:7", "fine")


def test_a_result_that_is_removed_is_forgotten(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path)
    path = daemon.write(reconciled(finding()))
    daemon.state.run()
    assert daemon.journal.latest("reconcile") is not None
    path.unlink()
    daemon.state.run()
    assert daemon.journal.latest("reconcile") is None


@pytest.mark.parametrize("kind", ["damaged", "pipe", "link", "large", "writable"])
def test_what_is_no_result_is_one_line_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    daemon = Daemon(tmp_path)
    path = daemon.write(audited())
    if kind == "damaged":
        path.write_bytes(b"{}")
    elif kind == "pipe":
        path.unlink()
        os.mkfifo(path)
    elif kind == "link":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    elif kind == "large":
        path.write_bytes(b" " * (FILE_BYTES_MAX + 1))
    else:
        path.chmod(0o666)
    for _ in range(3):
        daemon.state.run()
    assert daemon.journal.latest("audit") is None
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert line.startswith(f"{path} is ignored: ")
    assert path.exists() or kind == "link"


def test_the_advice_says_who_found_it() -> None:
    journal = journal_of(("audit", "fine", "valid", {}))
    latest = journal.newest("audit")
    assert latest is not None
    found = decode(encode(audited(began_us=START_US), CLUSTER), "audit", START_US + 10_000_000, CLUSTER)
    journal.found_by_command("audit", replace(found, began_us=latest.began_us + 1))
    calm = of(topic(partition()))
    (one,) = advice(calm, journal, calm.now_us, 5.0)
    assert (one.severity, one.kind) == ("act", "audit")
    assert "(by a command, there:7): invalid: 2 partitions" in one.what
    assert verdict([one], "serving") == "1 thing needs an operator: the audit says invalid."
    left = {"findings": [finding(n) | {"fixed": False} for n in range(25)], "findings_left": 3}
    journal.found_by_command("reconcile", Cycle("reconcile", 5, 0.1, "wrong", "x", left, by="there:7"))
    texts = [item.what for item in advice(calm, journal, calm.now_us, 5.0)]
    assert "The reconciler has 8 findings more." in texts
