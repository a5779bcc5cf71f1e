"""The document of audits and findings: what is seen, what is counted, and how old it is."""

from __future__ import annotations

from typing import Any

from archiver.app.reading_audit import PARTITIONS_MAX, RANGES_MAX, Seen, audit_document
from archiver.config.daemon import DaemonSettings
from archiver.status.advice import ANCHORS
from archiver.status.journal import Cycle, Journal
from reconcile.findings.finding import IDS

BEGAN_US = 1_700_000_000_000_000
NOW_US = BEGAN_US + 100_000_000
DAEMON = DaemonSettings.model_validate({})


def partition(topic: str, number: int, verdict: str = "valid", **changes: Any) -> dict[str, Any]:
    return {
        "topic": topic,
        "topic_id": "0" * 32,
        "partition": number,
        "start": 0,
        "watermark": 10,
        "stable": 10,
        "next": 12,
        "rows": 9,
        "gaps": [[3, 4], [10, 12]],
        **{name: [] for name in ("missing", "doubled", "removed", "altered", "pending")},
        "proof": "bounds",
        "verdict": verdict,
        "why": None if verdict == "valid" else f"{topic} is {verdict}",
    } | changes


def finding(name: str, topic: str | None, severity: str = "error", **changes: Any) -> dict[str, Any]:
    return {
        "id": name,
        "severity": severity,
        "topic": topic,
        "partition": None,
        "what": f"something of {topic}",
        "repair": "do it",
        "safe": False,
        "fixed": False,
    } | changes


def audited(*partitions: dict[str, Any], verdict: str = "valid") -> dict[str, Any]:
    return {
        "verdict": verdict,
        "partitions": list(partitions),
        "checked_at": "2026-01-02T03:04:05Z",
        "snapshot_ids": {"a": 7, "b": None},
    }


def journal(**documents: dict[str, Any]) -> Journal:
    found = Journal(10)
    for job, document in documents.items():
        found.add(Cycle(job, BEGAN_US, 10.0, "fine" if document else "untold", "the line", document))
    return found


def everything(_resource: str, _name: str) -> bool:
    return True


ALL = Seen(everything, sees_all=True, topic=None)
ONLY_A = Seen(lambda _resource, name: name == "a", sees_all=False, topic=None)


def of(found: Journal, seen: Seen = ALL) -> dict[str, Any]:
    return audit_document(found, DAEMON, NOW_US, seen)


def test_before_the_first_audit_there_is_no_verdict() -> None:
    found = of(Journal(10))
    assert [(one["kind"], one["verdict"], one["age_seconds"]) for one in found["audits"]] == [
        ("audit", None, None),
        ("deep_audit", None, None),
    ]
    assert [one["interval_seconds"] for one in found["audits"]] == [3600.0, None]
    assert found["findings"] is None


def test_a_partition_has_its_verdict_proof_and_offsets() -> None:
    document = audited(partition("a", 0), partition("b", 1, "invalid", missing=[[4, 6]], rows=7))
    fast, _ = of(journal(audit=document | {"verdict": "invalid"}))["audits"]
    assert (fast["verdict"], fast["counts"]) == ("invalid", {"invalid": 1, "valid": 1})
    assert fast["section"] == ANCHORS["audit"]
    worst, good = fast["partitions"]
    assert (worst["topic"], worst["ranges"], worst["why"]) == ("b", {"missing": [[4, 6]]}, "b is invalid")
    assert (good["proof"], good["rows"], good["snapshot_id"]) == ("bounds", 9, 7)
    assert (good["gap_offsets"], good["section"]) == (3, None)
    assert (fast["age_seconds"], fast["took_seconds"]) == (90.0, 10.0)
    # An hour from its start.
    assert fast["next_at"] == "2023-11-14T23:13:20.000000Z"


def test_a_reader_sees_its_topics_and_how_many_others_there_are() -> None:
    document = audited(partition("a", 0), partition("b", 0, "invalid"), partition("b", 1, "unknown"))
    found = of(journal(audit=document | {"verdict": "invalid"}), ONLY_A)["audits"][0]
    assert [one["topic"] for one in found["partitions"]] == ["a"]
    assert (found["verdict"], found["counts"], found["partitions_hidden"]) == ("valid", {"valid": 1}, 2)
    assert "b" not in {one["topic"] for one in found["partitions"]}
    hidden = of(journal(audit=audited(partition("b", 0))), ONLY_A)["audits"][0]
    assert (hidden["verdict"], hidden["partitions"], hidden["partitions_hidden"]) == (None, [], 1)


def test_one_topic_alone() -> None:
    document = audited(partition("a", 0), partition("b", 0, "invalid"))
    findings = {"findings": [finding("gap", "a"), finding("gap", "b"), finding("stale-lease", None)]}
    found = of(journal(audit=document, reconcile=findings), Seen(everything, sees_all=True, topic="a"))
    assert [one["topic"] for one in found["audits"][0]["partitions"]] == ["a"]
    assert (found["audits"][0]["verdict"], found["audits"][0]["partitions_hidden"]) == ("valid", 0)
    assert [one["topic"] for one in found["findings"]["findings"]] == ["a"]
    assert found["findings"]["hidden"] == 0


def test_an_audit_that_failed_says_why_to_a_reader_of_everything() -> None:
    found = journal(audit={})
    assert of(found)["audits"][0]["error"] == "the line"
    assert of(found)["audits"][0]["verdict"] == "unknown"
    assert "the line" not in str(of(found, ONLY_A))


def test_findings_have_their_section_and_the_open_ones_come_first() -> None:
    reported = [
        finding("orphan", "a", "info"),
        finding("table-missing", "a", fixed=True),
        finding("gap", "a"),
        finding("stale-lease", None, "warning"),
        finding("gap", "b"),
    ]
    document = {"findings": reported, "error": None, "checked_at": "2026-01-02T03:04:05Z"}
    found = of(journal(reconcile=document))["findings"]
    assert [(one["id"], one["topic"]) for one in found["findings"]] == [
        ("gap", "a"),
        ("gap", "b"),
        ("stale-lease", None),
        ("orphan", "a"),
        ("table-missing", "a"),
    ]
    assert found["findings"][0]["section"] == "finding-gap"
    assert found["age_seconds"] == 90.0
    limited = of(journal(reconcile=document), ONLY_A)["findings"]
    assert {one["topic"] for one in limited["findings"]} == {"a"}
    assert limited["hidden"] == 2, "of another topic, and of no topic"


def test_every_section_is_one_of_the_runbook() -> None:
    reported = [finding(name, "a") for name in IDS]
    found = of(journal(reconcile={"findings": reported, "error": None, "checked_at": "x"}))["findings"]
    assert {one["section"] for one in found["findings"]} <= set(ANCHORS.values())


def test_an_answer_is_bounded() -> None:
    ranges = [[number, number + 1] for number in range(1000)]
    many = [partition("a", number, "invalid", missing=ranges, doubled=ranges) for number in range(3)]
    found = of(journal(audit=audited(*many, *(partition("a", number) for number in range(PARTITIONS_MAX)))))
    audit = found["audits"][0]
    assert (len(audit["partitions"]), audit["partitions_left"]) == (PARTITIONS_MAX, 3)
    assert audit["counts"] == {"invalid": 3, "valid": PARTITIONS_MAX}
    assert len(audit["partitions"][0]["ranges"]["missing"]) == RANGES_MAX
    assert audit["partitions"][0]["ranges_left"] == 2 * (1000 - RANGES_MAX)


def test_the_clock_may_have_been_set_back() -> None:
    found = audit_document(journal(audit=audited()), DAEMON, BEGAN_US - 10**9, ALL)
    assert found["audits"][0]["age_seconds"] == 0.0


def command(job: str, outcome: Any, document: dict[str, Any]) -> Cycle:
    return Cycle(job, BEGAN_US + 50_000_000, 10.0, outcome, "line of the command", document, by="host:7")


def test_a_later_verdict_of_a_command_is_shown_to_readers_of_everything() -> None:
    found = journal(audit=audited(partition("a", 0)))
    result = {"verdict": "invalid", "counts": {"valid": 1, "invalid": 2, "unknown": 0}}
    found.found_by_command("audit", command("audit", "wrong", result))
    audit = of(found)["audits"][0]
    assert audit["command"] == {
        **result,
        "section": ANCHORS["audit"],
        "line": "line of the command",
        "by": "host:7",
        "age_seconds": 40.0,
    }
    assert audit["verdict"] == "valid", "that of the daemon has its partitions, and its own age"
    assert of(found, ONLY_A)["audits"][0]["command"] is None
    found.add(Cycle("audit", BEGAN_US + 60_000_000, 1.0, "fine", "", audited(partition("a", 0))))
    assert of(found)["audits"][0]["command"] is None, "the daemon's own is newer"


def test_findings_of_a_command_count_what_it_did_not_keep() -> None:
    found, kept = Journal(10), finding("gap", "a")
    del kept["safe"]
    found.found_by_command(
        "reconcile", command("reconcile", "wrong", {"findings": [kept], "findings_left": 7})
    )
    findings = of(found)["findings"]
    assert (findings["by"], findings["left"], findings["error"]) == ("host:7", 7, None)
    assert [one["id"] for one in findings["findings"]] == ["gap"]
    assert of(found, ONLY_A)["findings"]["by"] is None
    found.found_by_command("reconcile", command("reconcile", "untold", {"findings": [], "findings_left": 0}))
    assert of(found)["findings"]["error"] == "line of the command"
    assert "line of the command" not in str(of(found, ONLY_A))


def test_what_a_command_did_not_keep_is_counted_for_all_topics_only() -> None:
    found = journal()
    found.found_by_command("reconcile", command("reconcile", "wrong", {"findings": [], "findings_left": 7}))
    for seen, left in (
        (Seen(lambda *_: True, True, None), 7),
        (Seen(lambda *_: True, True, "a"), 0),
        (Seen(lambda *_: False, False, None), 0),
    ):
        assert audit_document(found, DAEMON, NOW_US, seen)["findings"]["left"] == left
