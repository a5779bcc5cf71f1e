"""Audits, findings and the runbook through the read API, with real audits of a real deployment."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from archiver.status.journal import Cycle
from tests.integration.test_read_access import deployment, quick
from tests.integration.test_read_api import HOSTILE
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver
from tests.support.process.pages import check_harmless
from tests.support.process.web import Daemon, basic

__all__ = ["deployment", "quick"]

ALICE = basic("alice", "wonderland") | {"X-Forwarded-For": "192.0.2.1"}
"""May read `clicks`."""


@pytest.fixture
def daemon(deployment: Deployment) -> Iterator[Daemon]:
    with Driver(deployment) as driver:
        driver.send("kept", [b"1"], 0)
        driver.send("orders", [b"\xff"], 1)
        driver.archive()
    with Daemon(deployment) as daemon:
        yield daemon


def audit(daemon: Daemon) -> dict[str, Any]:
    """Audit and compare, as the jobs of a daemon do."""
    app, now_us = daemon.application, daemon.face.clock.now_us()
    document = app.maintenance.audit(None)
    outcome: Any = {"valid": "fine", "invalid": "wrong"}.get(str(document["verdict"]), "untold")
    daemon.journal.add(Cycle("audit", now_us, 0.5, outcome, "the line", document))
    found = app.maintenance.reconciling(lambda _: None, dry_run=True).run("nothing").to_json()
    daemon.journal.add(Cycle("reconcile", now_us, 0.5, "fine", "the line", found))
    return document


def get(daemon: Daemon, path: str, headers: dict[str, str] | None = None) -> tuple[Any, str]:
    reply, page = (daemon.call("GET", f"{begin}{path}", headers=headers) for begin in ("/v1", ""))
    assert (reply.status, page.status) == (200, 200), reply.body
    check_harmless(page)
    return reply.json(), page.body.decode()


def test_before_the_first_audit_the_page_says_how_to_make_one(daemon: Daemon) -> None:
    document, page = get(daemon, "/audit")
    assert document["findings"] is None
    assert "none since this daemon started" in page
    assert "archiver audit --deep" in page


def test_a_valid_audit_says_what_it_rests_on(daemon: Daemon) -> None:
    expected = audit(daemon)
    document, page = get(daemon, "/audit")
    fast = document["audits"][0]
    assert (fast["verdict"], fast["counts"]) == ("valid", {"valid": len(expected["partitions"])})
    shown = {(one["topic"], one["partition"]): one for one in fast["partitions"]}
    for one in expected["partitions"]:
        for name in ("verdict", "proof", "rows", "start", "watermark", "stable", "next", "why"):
            assert shown[one["topic"], one["partition"]][name] == one[name]
    assert shown["clicks", 0]["snapshot_id"] == expected["snapshot_ids"]["clicks"]
    assert document["findings"]["findings"] == []
    assert "names, bounds and row counts" in page
    assert f"snapshot {expected['snapshot_ids']['clicks']}" in page
    assert "every 1 h" in page


def test_a_lost_file_leads_to_its_remedy(daemon: Daemon, deployment: Deployment) -> None:
    folder = deployment.data / "archive" / daemon.application.topic("orders").topic_id
    next(folder.rglob("*.parquet")).unlink()
    audit(daemon)
    document, page = get(daemon, "/audit")
    assert document["audits"][0]["verdict"] == "invalid"
    worst = document["audits"][0]["partitions"][0]
    assert (worst["topic"], worst["partition"], worst["ranges"]) == ("orders", 1, {"missing": [[0, 1]]})
    assert worst["why"]
    assert "dangling-reference" in {one["id"] for one in document["findings"]["findings"]}
    assert 'href="/runbook#the-audit-says-invalid"' in page
    assert 'href="/runbook#finding-dangling-reference"' in page
    assert 'href="/topics/orders/messages/1/0"' in page
    _, runbook = get(daemon, "/runbook")
    anchors = set(re.findall(r'id="([^"]+)"', runbook))
    assert set(re.findall(r'href="/runbook#([^"]+)"', page)) <= anchors
    one_topic, _ = get(daemon, "/audit?topic=clicks")
    assert one_topic["audits"][0]["verdict"] == "valid"
    assert one_topic["findings"]["findings"] == []


def test_rules_decide_what_is_named(daemon: Daemon, deployment: Deployment) -> None:
    folder = deployment.data / "archive" / daemon.application.topic("orders").topic_id
    next(folder.rglob("*.parquet")).unlink()
    audit(daemon)
    document, page = get(daemon, "/audit", ALICE)
    fast = document["audits"][0]
    assert {one["topic"] for one in fast["partitions"]} == {"clicks"}
    assert (fast["verdict"], fast["partitions_hidden"] > 0) == ("valid", True)
    assert document["findings"]["findings"] == []
    assert document["findings"]["hidden"] > 0
    assert "orders" not in page
    assert "orders" not in str(document)
    replies = [daemon.call("GET", f"/v1/audit?topic={name}", headers=ALICE) for name in ("orders", "nowhere")]
    assert [one.status for one in replies] == [403, 403]
    assert replies[0].body == replies[1].body
    assert "orders" in get(daemon, "/audit")[1]


def test_an_audit_that_failed_is_unknown(daemon: Daemon) -> None:
    daemon.journal.add(Cycle("audit", 0, 0.5, "untold", "the store of orders does not answer"))
    daemon.journal.add(Cycle("reconcile", 0, 0.5, "untold", "the store of orders does not answer"))
    document, page = get(daemon, "/audit")
    assert (document["audits"][0]["verdict"], document["findings"]["findings"]) == ("unknown", [])
    assert "does not answer" in page
    assert "There are no differences" not in page
    assert "orders" not in get(daemon, "/audit", ALICE)[1]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_reasons_are_shown_and_do_nothing(daemon: Daemon, hostile: bytes) -> None:
    document, text = audit(daemon), hostile.decode("utf-8", "replace")
    document["partitions"][0] |= {"why": text, "verdict": "invalid"}
    found = {
        "id": "gap",
        "severity": "error",
        "topic": text,
        "partition": 0,
        "what": text,
        "repair": text,
        "safe": False,
        "fixed": False,
    }
    daemon.journal.add(Cycle("audit", 0, 0.5, "wrong", text, document))
    daemon.journal.add(Cycle("reconcile", 0, 0.5, "wrong", text, {"findings": [found], "error": text}))
    assert get(daemon, "/audit")[0]["findings"]["findings"][0]["what"] == text


def test_the_runbook_is_served_with_its_sections(daemon: Daemon) -> None:
    document, page = get(daemon, "/runbook", ALICE)
    assert document["title"] == "Runbook"
    assert len(document["sections"]) > 40
    assert page.count("<h2 ") == len(document["sections"]) - 1
    assert len(page) < 200_000


def test_a_later_result_of_a_command_is_shown(daemon: Daemon) -> None:
    audit(daemon)
    now_us = daemon.face.clock.now_us() + 10
    result = {"verdict": "invalid", "counts": {"valid": 1, "invalid": 1, "unknown": 0}}
    daemon.journal.found_by_command("audit", Cycle("audit", now_us, 0.0, "wrong", "<b>", result, by="h:1"))
    document, page = get(daemon, "/audit")
    assert document["audits"][0]["command"]["verdict"] == "invalid"
    assert "later, by a command" in page
    assert "h:1" in page
    assert "h:1" not in get(daemon, "/audit", ALICE)[1]
