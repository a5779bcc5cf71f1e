"""`archiver clean` and what `status` says of the oldest intake file: outputs and exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from archiver.log.lease import FileLease
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import AheadClock, Driver

DOCUMENT = {
    "dry_run",
    "barrier_ms",
    "condemned",
    "deleted",
    "waiting",
    "kept",
    "pinned",
    "topics",
    "findings",
    "starts",
    "kinds",
    "uploads",
}
DOCUMENT |= {"compacted", "error"}


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    """What was sent three hours ago is archived, except what is only kept."""
    made = Deployment(tmp_path / "d")
    with _at(made, -3.0) as driver:
        for topic in ("orders", "clicks", "files", "kept"):
            driver.send(topic, [b"1", b"2"], 0)
        driver.archive()
    return made


def _at(deployment: Deployment, hours: float) -> Driver:
    clock = AheadClock()
    clock.ahead_s = hours * 3600
    return Driver(deployment, clock)


def test_one_json_document(deployment: Deployment) -> None:
    dry = deployment.cli("clean", "--dry-run", "--output", "json")
    done = deployment.cli("clean", "--output", "json")
    assert (dry.code, done.code) == (0, 0), (dry.err, done.err)
    reported = done.json()
    assert set(reported) == set(dry.json()) == DOCUMENT
    assert (dry.json()["dry_run"], reported["dry_run"]) == (True, False)
    assert dry.json()["condemned"] == reported["condemned"]
    assert (
        len(reported["condemned"]),
        reported["deleted"],
        reported["waiting"],
        reported["kept"]["needed"],
    ) == (3, [], 3, 1)
    assert reported["topics"] == [
        {"topic": "kept", "why": "the topic has archive kind none", "doubted": False}
    ]
    pinned = reported["pinned"]
    assert (pinned["topic"], pinned["partition"]) == ("kept", 0)
    assert 10_700 < pinned["age_seconds"] < 11_400
    assert "archive kind none" in pinned["why"]


def test_text(deployment: Deployment) -> None:
    dry = deployment.cli("clean", "--dry-run")
    assert dry.code == 0
    assert "would be marked for deletion: 3" in dry.out
    done = deployment.cli("clean")
    assert done.code == 0
    for line in (
        "deleted: 0",
        "marked for deletion: 3",
        "marked and not deleted yet: 3",
        "kept in intake: 1 needed",
        "nothing of kept is deleted",
    ):
        assert line in done.out, done.out
    assert done.out.count("  intake/") == 3
    assert "is needed by kept partition 0" in done.out
    assert "3 objects marked for deletion; the first run after cleanup.grace = 1h deletes them" in done.err
    with _at(deployment, 2.0) as driver:
        assert len(driver.application.maintenance.cleaning(print).run().deleted) == 3
    assert deployment.cli("audit").code == 0
    assert [len(deployment.consume(topic)) for topic in ("orders", "clicks", "files", "kept")] == [2, 2, 2, 2]


def test_what_is_too_young_is_reported_with_the_delay(deployment: Deployment) -> None:
    with _at(deployment, 0) as driver:
        driver.send("files", [b"3"], 0)
        driver.archive()
    assert (
        "kept in intake: 1 needed, 1 younger than cleanup.grace = 1h"
        in deployment.cli("clean", "--dry-run").out
    )


def test_a_held_lease_is_exit_code_2_and_names_its_holder(deployment: Deployment) -> None:
    lease = FileLease(deployment.root / "metadata.db.lease", "elsewhere:4711")
    lease.acquire()
    try:
        held = deployment.cli("clean")
        assert deployment.cli("clean", "--dry-run").code == 0, "a dry run leads nobody"
    finally:
        lease.release()
    assert held.code == 2
    assert "elsewhere:4711" in held.err


def test_a_table_that_cannot_be_looked_at_is_exit_code_2_and_keeps_its_topic(deployment: Deployment) -> None:
    document = deployment.document()
    document["topics"][1]["archive"]["table"] = "shop.other"
    deployment.write(document)
    done = deployment.cli("clean", "--output", "json")
    assert done.code == 2, (done.out, done.err)
    reported = done.json()
    assert [topic["topic"] for topic in reported["topics"] if topic["doubted"]] == ["clicks"]
    assert (len(reported["condemned"]), reported["kept"]["needed"]) == (2, 2)


def test_status_names_the_pin(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = deployment.cli("status", "--output", "json").json()["pinned"]
    assert (pinned["topic"], pinned["partition"]) == ("kept", 0)
    kept = f"intake files are kept from {pinned['written_at'][:10]} {pinned['written_at'][11:19]} UTC on"
    reported = deployment.cli("status").out
    assert (
        f"{kept}, for kept partition 0 (nothing of it is deleted: the topic has archive kind none)\n"
        in reported
    )
    document = deployment.document()
    kind_none = document["topics"].pop()
    deployment.write(document)
    assert "the topic is not in the configuration" in deployment.cli("status").out
    deployment.write({**document, "topics": [*document["topics"], kind_none]})
    monkeypatch.setattr("archiver.cli.status.OLD_PIN_S", pinned["age_seconds"] + 3600)
    assert f"{kept}\n" in deployment.cli("status").out, (
        "that an intake file is needed for a while is no matter"
    )


def test_nothing_is_pinned_in_an_empty_deployment(tmp_path: Path) -> None:
    empty = Deployment(tmp_path / "e")
    assert empty.cli("status", "--output", "json").json()["pinned"] is None
    done = empty.cli("clean", "--output", "json")
    assert done.code == 0, done.err
    assert (done.json()["pinned"], done.json()["condemned"]) == (None, [])
