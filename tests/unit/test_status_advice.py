"""The advice for operators: each problem with its remedy and its place in the runbook, the worst first.

Ages and numbers are formatted for people.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from archiver.app.status_document import daemon_document
from archiver.publish.progress import HeldBack
from archiver.runtime.text import counted, moment
from archiver.status.advice import ANCHORS, RUNBOOK, SEVERITIES, Advice, advice, verdict
from archiver.status.ages import age, age_at, count, numbers
from archiver.status.journal import Cycle, Journal, Refusal
from archiver.status.lag import LagReport
from archiver.status.reasons import CAUSES, Cause
from intake.sources.files.source import FileProblem, FilesState
from intake.sources.kafka.upstream_changes import FindingKind, MirrorFinding, MirrorState
from tests.support.builders.standings import NOW_US, journal_of, of, partition, topic

ROOT = Path(__file__).resolve().parents[2]


def test_many_things_are_counted_in_the_first_line() -> None:
    found = [
        Advice("act", "dependency", f"thing {number}", "what", "todo") for number in (1, 2, 3, 3, 4, 5, 6)
    ]
    assert (
        verdict(found, "serving")
        == "6 things need an operator: thing 1, thing 2, thing 3, thing 4, and 2 more."
    )
    assert (
        verdict([Advice("watch", "pending", "a waits", "what", "todo")], "serving")
        == "No action is needed. To watch: a waits."
    )
    assert verdict([Advice("note", "off", "a is off", "what", "todo")], "serving") == "All is well."


def kinds(
    standing: LagReport | None, journal: Journal | None = None, now_us: int = NOW_US
) -> list[tuple[str, str]]:
    return [(one.severity, one.kind) for one in advice(standing, journal or journal_of(), now_us, 5.0)]


@pytest.mark.parametrize("cause", CAUSES)
def test_every_cause_has_its_advice(cause: Cause) -> None:
    standing = of(
        topic(partition(3, 5, 1e6, cause, "because"), stuck="because" if cause == "stuck" else None)
    )
    found = advice(standing, journal_of(), NOW_US, 5.0)
    if cause == "waiting":
        assert found == []
        return
    (one,) = found
    assert (one.kind, one.topic) == (cause, "orders")
    assert one.what == ("Topic orders: because" if cause == "stuck" else "Topic orders, partition 3: because")
    assert one.todo
    assert one.section.lower().replace(" ", "-") == ANCHORS[cause]


def test_what_is_due_falls_behind_only_after_a_while() -> None:
    assert kinds(of(topic(partition(0, 5, 899.0, "due", "due")))) == []
    assert kinds(of(topic(partition(0, 5, 901.0, "due", "due")))) == [("watch", "due")]


def test_partitions_with_one_cause_are_one_advice_and_transactions_are_distinguished() -> None:
    def held(name: str) -> HeldBack:
        return HeldBack(name, 7, 0, 0, NOW_US + 1, 5)

    rows = [
        partition(
            number, 1, float(number), "transaction", f"held {number}", held=held("a" if number < 3 else "b")
        )
        for number in range(5)
    ]
    found = advice(of(topic(*rows, partition(9, 2, 3.0, "pending", "pending"))), journal_of(), NOW_US, 5.0)
    assert [one.what for one in found] == [
        "Topic orders, partitions 0 to 2 (the worst is 2): held 2",
        "Topic orders, partitions 3, 4 (the worst is 4): held 4",
        "Topic orders, partition 9: pending",
    ]


def test_a_topic_that_the_next_round_tries_again_is_only_watched() -> None:
    standing = of(topic(partition(0, 1, 1.0, "stuck", "the catalog is away"), stuck="the catalog is away"))
    deferred = journal_of(
        ("tick", "untold", "deferred", {"topics": [{"topic": "orders", "state": "deferred"}]})
    )
    assert kinds(standing, deferred) == [("watch", "deferred")]
    halted = journal_of(("tick", "wrong", "halted", {"topics": [{"topic": "orders", "state": "halted"}]}))
    assert kinds(standing, halted) == [("act", "stuck")]
    assert kinds(of(topic(partition(), stuck="the table is gone"))) == [("act", "stuck")], (
        "also if nothing waits"
    )


def test_findings_of_the_reconciler_are_reported_until_they_are_gone() -> None:
    def finding(name: str, severity: str, topic: str | None, *, fixed: bool = False) -> dict[str, Any]:
        what = {
            "what": "something differs",
            "repair": "do this",
            "safe": False,
            "fixed": fixed,
            "partition": None,
        }
        return {"id": name, "severity": severity, "topic": topic, **what}

    found = [
        finding("orphan", "info", None),
        finding("rolled-back", "error", "orders"),
        finding("foreign-rows", "warning", "orders"),
        finding("unknown-commit", "warning", "orders", fixed=True),
    ]
    journal = journal_of(("reconcile", "wrong", "3 findings", {"findings": found}))
    assert kinds(of(topic(partition())), journal) == [
        ("act", "finding-rolled-back"),
        ("watch", "finding-foreign-rows"),
        ("note", "finding-orphan"),
    ]
    one = advice(of(topic(partition())), journal, NOW_US, 5.0)[0]
    assert (one.what, one.todo, one.section) == (
        "Topic orders: something differs",
        "Do this.",
        "Finding rolled back",
    )
    stuck = kinds(of(topic(partition(), stuck="rolled back")), journal)
    assert ("act", "stuck") in stuck
    assert ("act", "finding-rolled-back") not in stuck, "the call for action is reported once"
    many = journal_of(
        (
            "reconcile",
            "wrong",
            "x",
            {"findings": [finding("gap", "error", f"t{number}") for number in range(50)]},
        )
    )
    assert len(kinds(of(topic(partition())), many)) == 21
    assert kinds(of(topic(partition())), journal_of(("reconcile", "untold", "the catalog is away", {}))) == [
        ("watch", "job")
    ]


def test_jobs_and_audits() -> None:
    calm = of(topic(partition()))
    assert kinds(
        calm,
        journal_of(("tick", "wrong", "x", {}), ("cleanup", "untold", "x", {}), ("watch", "fine", "x", {})),
    ) == [
        ("act", "job"),
        ("watch", "job"),
    ]
    assert kinds(calm, journal_of(("audit", "wrong", "x", {}))) == [("act", "audit")]
    assert kinds(calm, journal_of(("audit", "untold", "x", {}))) == [("watch", "untold")]
    assert (
        kinds(
            calm,
            journal_of(("audit", "wrong", "x", {}), ("audit", "fine", "x", {}), ("tick", "fine", "x", {})),
        )
        == []
    )
    assert kinds(calm, journal_of(("tick", "skipped", "there:2 leads", {}))) == [("note", "follower")]
    away = journal_of(("watch", "untold", "x", {}))
    away.checked("objects", "away", NOW_US)
    assert kinds(calm, away) == [("act", "dependency")], "said once"


def test_the_advice_on_undecoded_records_helps_also_if_no_schema_decodes_them() -> None:
    journal = journal_of(("audit", "fine", "x", {"undecoded": [{"topic": "orders", "records": 8}]}))
    (found,) = advice(of(topic(partition())), journal, NOW_US, 5.0)
    assert (found.severity, found.kind) == ("watch", "undecoded")
    for part in ("a replay decodes nothing", "as raw bytes, without loss", "`retention`"):
        assert part in found.todo, found.todo


def test_a_job_that_failed_for_a_dependency_is_reported_with_it() -> None:
    journal = journal_of(
        ("tick", "wrong", "Java 17 or newer is needed and none was found; set JAVA_HOME", {})
    )
    assert kinds(of(topic(partition())), journal) == [("act", "job")]
    journal.checked("java", "Java 17 or newer is needed and none was found; set JAVA_HOME", NOW_US)
    assert kinds(of(topic(partition())), journal) == [("act", "dependency")]
    journal.add(Cycle("tick", NOW_US, 0.1, "wrong", "the disk is full"))
    assert kinds(of(topic(partition())), journal) == [("act", "dependency"), ("act", "job")], (
        "a second cause is reported too"
    )


def source(**more: Any) -> FilesState:
    return FilesState("/in/*.jsonl", "orders", "jsonl", looked_us=NOW_US, folder_found=True, **more)


def test_files_that_cannot_be_ingested_need_an_operator() -> None:
    journal, calm = journal_of(), of(topic(partition()))
    assert advice(calm, journal, NOW_US, 5.0, [source(finished=7)]) == []
    failed = source(
        failed=2,
        problems=(FileProblem("/in/a.jsonl", "line 3 is no JSON; mend it"), FileProblem("/in/b.jsonl", "x")),
    )
    (one,) = advice(calm, journal, NOW_US, 5.0, [failed])
    assert (one.severity, one.kind, one.topic) == ("act", "source", "orders")
    assert (
        "cannot ingest 2 files and folders; the first is /in/a.jsonl: line 3 is no JSON; mend it" in one.what
    )
    assert (
        verdict([one], "serving")
        == "1 thing needs an operator: file source /in/*.jsonl has files that cannot be ingested."
    )
    (one,) = advice(calm, journal, NOW_US, 5.0, [source(trouble="the topic was deleted")])
    assert (one.severity, one.what) == (
        "act",
        "File source /in/*.jsonl (topic orders) ingests nothing: the topic was deleted",
    )
    (one,) = advice(calm, journal, NOW_US, 5.0, [replace(source(), folder_found=False)])
    assert (one.severity, one.kind) == ("watch", "source")
    document = daemon_document("127.0.0.1:1", journal, [failed])
    assert document["ready"] is True
    assert len(document["attention"]) == 1
    assert "/in/a.jsonl: line 3 is no JSON" in document["attention"][0]
    assert (document["sources"][0]["failed"], document["sources"][0]["problems"][1]["path"]) == (
        2,
        "/in/b.jsonl",
    )


def test_a_reload_that_was_refused_is_reported_until_one_succeeds() -> None:
    journal, calm = journal_of(), of(topic(partition()))
    journal.reloaded(Refusal(NOW_US, "line 3: topics must be a list", whole=True))
    (one,) = advice(calm, journal, NOW_US, 5.0)
    assert (one.severity, one.kind) == ("act", "reload")
    assert one.what == f"The reload of {moment(NOW_US)} was refused: line 3: topics must be a list"
    assert journal.ready, "it serves with what it had"
    assert daemon_document("127.0.0.1:1", journal)["attention"] == [f"{one.what}. {one.todo}"]
    journal.reloaded(Refusal(NOW_US, "http.listen: it needs a restart", whole=False))
    (one,) = advice(calm, journal, NOW_US, 5.0)
    assert "refused in part: http.listen: it needs a restart" in one.what
    assert "restart" in one.todo
    journal.reloaded(
        Refusal(NOW_US, "topics.a.partitions: the topic has 4; set `partitions: 4`", whole=False)
    )
    (one,) = advice(calm, journal, NOW_US, 5.0)
    assert one.todo == "Correct those keys in archiver.yaml and `systemctl reload stream-archiver`.", (
        "a restart would halt the topic"
    )
    journal.reloaded(None)
    assert advice(calm, journal, NOW_US, 5.0) == []


def test_a_topic_that_was_never_archived_and_is_not_configured_is_only_watched() -> None:
    never = of(topic(partition(0, 100, 9.0, "unconfigured", "nothing archives it"), kind="unconfigured"))
    assert kinds(never) == [("watch", "unconfigured")]
    begun = of(
        topic(
            partition(0, 100, 9.0, "unconfigured", "x"),
            partition(1, 5, 9.0, "unconfigured", "x"),
            kind="unconfigured",
        )
    )
    assert kinds(begun) == [("act", "unconfigured")]


def test_an_old_look_and_a_difference() -> None:
    assert kinds(of(), now_us=NOW_US + 57_000_000) == []
    assert kinds(of(), now_us=NOW_US + 62_000_000) == [("act", "stale")]
    assert kinds(of(differences=("topic new is not created yet",))) == [("note", "differences")]


def every_advice() -> list[Advice]:
    """At least one of each kind, with every cause, check, job, finding of a mirror, and difference."""
    journal = journal_of(
        ("audit", "wrong", "x", {"undecoded": [{"topic": f"t{n}", "records": 1} for n in range(30)]}),
        ("deep_audit", "untold", "x", {}),
        *((job, "wrong", "x", {}) for job in ("tick", "cleanup", "control_topic")),
    )
    checks = ("metadata", "objects", "catalog local", "java", "spark", "tick", "clock", "port", "Kafka port")
    for name in (*checks, "intake workers", "intake", "sources", "deployment", "another"):
        journal.checked(name, f"{name} is away", NOW_US)
    journal.reloaded(Refusal(NOW_US, "line 3", whole=True))
    rows = [partition(number, 1, 1e6, cause, "why") for number, cause in enumerate(CAUSES)]
    kinds: tuple[FindingKind, ...] = get_args(FindingKind)
    mirror = MirrorState(
        "upstream",
        trouble="no broker answers",
        stopped=99,
        findings=tuple(MirrorFinding(kind, "orders", 1, "why") for kind in kinds),
    )
    sources = [
        source(failed=2, problems=(FileProblem("/in/a", "x"),)),
        source(trouble="denied"),
        replace(source(), folder_found=False),
    ]
    differences = ("topic a has 1 partition; set `partitions: 1` in archiver.yaml", "no action of its own")
    found = advice(
        of(topic(*rows), differences=differences), journal, NOW_US + 100_000_000, 5.0, sources, [mirror]
    )
    jobs = ("tick", "watch", "reconcile")
    retried = journal_of(*((job, "untold", "x", {}) for job in jobs))
    found += advice(None, retried, NOW_US, 5.0)
    retried.reloaded(Refusal(NOW_US, "http.listen: it needs a restart", whole=False))
    found += advice(None, retried, NOW_US, 5.0)
    deferred = journal_of(
        ("tick", "untold", "deferred", {"topics": [{"topic": "orders", "state": "deferred"}]})
    )
    found += advice(of(topic(partition(), stuck="later")), deferred, NOW_US, 5.0)
    for state in ("starting", "stopping"):
        late = Journal(10)
        late.becomes(state)
        found += advice(None, late, NOW_US, 5.0)
        late.checked("metadata", "away", NOW_US)
        found += advice(None, late, NOW_US, 5.0)
    return found + advice(None, journal_of(("tick", "skipped", "there:2 leads", {})), NOW_US, 5.0)


IMPERATIVES = frozenset(
    [
        "Add",
        "Check",
        "Correct",
        "Create",
        "Install",
        "Make",
        "Mount",
        "Nothing",
        "Nothing:",
        "Read",
        "Reload",
        "Remove",
        "Rename",
        "Repair",
        "Restart",
        "Restore",
        "Run",
        "Send",
        "Set",
        "Start",
        "Stop",
        "Wait",
        "Wait:",
    ]
)


def test_every_action_is_in_the_imperative_and_names_a_command_or_a_setting() -> None:
    found = every_advice()
    assert {one.kind for one in found} >= ANCHORS.keys() - {one for one in ANCHORS if "finding" in one} - {
        "schema"
    }
    for one in found:
        first = one.todo.split()[0].rstrip(",")
        assert first in IMPERATIVES, one
        assert "follow the message" not in one.todo.lower(), one
        if first not in ("Nothing:", "Nothing", "Wait", "Wait:"):
            assert "`" in one.todo or "archiver.yaml" in one.todo, one
        assert one.todo.endswith("."), one
        assert one.runbook.startswith(f"{RUNBOOK}#")


def test_an_action_that_names_a_setting_names_the_file() -> None:
    (found,) = advice(
        of(differences=("topic a has 4 partitions; set `partitions: 4` in archiver.yaml",)),
        journal_of(),
        NOW_US,
        5.0,
    )
    assert (found.what, found.todo) == (
        "topic a has 4 partitions",
        "Set `partitions: 4` in archiver.yaml.",
    )
    stuck = advice(of(topic(partition(), stuck="the table was rolled back")), journal_of(), NOW_US, 5.0)[0]
    assert "Run `archiver reconcile --topic orders` for the repair." in stuck.todo
    gone = MirrorFinding("gone", "{file}", None, "is not there")
    (lost,) = advice(of(), journal_of(), NOW_US, 5.0, (), [MirrorState("a", stopped=1, findings=(gone,))])
    assert "Remove `{file}` from the `topics` of the source in archiver.yaml" in lost.todo, (
        "a name is never a place for another value"
    )


def test_advice_is_ordered_and_every_anchor_is_one() -> None:
    rows = [partition(number, 1, 1e6, cause, "why") for number, cause in enumerate(reversed(CAUSES))]
    severities = [one.severity for one in advice(of(topic(*rows)), journal_of(), NOW_US, 5.0)]
    assert severities == sorted(severities, key=SEVERITIES.index)
    headings = re.findall(r"^## (.+)$", (ROOT / RUNBOOK).read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert set(ANCHORS.values()) <= {heading.lower().replace(" ", "-") for heading in headings}, (
        "the runbook says more of each"
    )
    assert {Advice("act", kind, "", "", "").section for kind in ANCHORS} <= set(headings), (
        "and is named as it stands there"
    )


AGES = [
    (None, "unknown"),
    (-5, "0 s"),
    (0, "0 s"),
    (0.85, "850 ms"),
    (1, "1 s"),
    (59.4, "59 s"),
    (59.6, "1 min"),
    (200, "3 min 20 s"),
    (3600, "1 h"),
    (18_120, "5 h 2 min"),
    (86_399, "23 h 59 min"),
    (86_400, "1 d"),
    (1_051_000, "12 d 3 h"),
]


@pytest.mark.parametrize(("seconds", "text"), AGES)
def test_ages(seconds: float | None, text: str) -> None:
    assert age(seconds) == text


def test_numbers_and_times() -> None:
    assert age_at(NOW_US - 5_000_000, NOW_US) == "5 s"
    assert age_at(NOW_US + 5_000_000, NOW_US) == "0 s", "a time in the future is no age"
    assert (count(12345), count(None), moment(NOW_US)) == (
        "12,345",
        "unknown",
        "2026-01-02 03:04:05 UTC",
    )
    assert (counted(1, "record"), counted(1000, "record"), counted(0, "record")) == (
        "1 record",
        "1,000 records",
        "0 records",
    )
    assert (counted(1, "dependency", "dependencies"), counted(2, "it waits", "they wait")) == (
        "1 dependency",
        "2 they wait",
    )
    assert numbers([0, 2, 3, 5, 6, 7]) == "0, 2, 3, 5 to 7"
    assert numbers(list(range(0, 100, 2)), 3) == "0, 2, 4 and 47 more"
