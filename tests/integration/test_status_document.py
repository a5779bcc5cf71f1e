"""`status` and the status page over real deployments: their report on each state, and on a running daemon."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from archiver.app.status_document import daemon_document, status_document
from archiver.config.settings import load_settings
from archiver.runtime.rfc3339 import format_time
from archiver.status.journal import Journal, Refusal
from archiver.web.page import HEADERS, page
from intake.records import Record
from intake.sources.files.source import FileProblem, FilesState
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver
from tests.support.builders.status_scenes import HOSTILE, Scene, empty, healthy, many, starting, troubled
from tests.support.intake.transactions import Transactional
from tests.support.process.web import Daemon

STAGES = ["stable", "archived", "committed"]


def of(document: dict[str, Any], topic: str) -> dict[str, Any]:
    (found,) = [item for item in document["topics"] if item["topic"] == topic]
    return dict(found)


def made(driver: Driver, **more: Any) -> dict[str, Any]:
    """The document, once through JSON."""
    document = status_document(driver.application, driver.clock.now_us(), **more)
    return dict(json.loads(json.dumps(document)))


def test_stages_reasons_and_commits_of_every_kind_of_topic(tmp_path: Path) -> None:
    with Driver(Deployment(tmp_path / "d")) as driver:
        before_us = driver.clock.now_us()
        for topic in ("orders", "clicks", "files", "kept"):
            driver.send(topic, [b"\x08\x01"] * 4, 0)
        driver.archive()
        driver.clock.ahead_s += 60
        for topic in ("orders", "files", "kept"):
            driver.send(topic, [b"\x08\x01"] * 2, 0)
        document = made(driver)
        kinds = {item["topic"]: item["kind"] for item in document["topics"]}
        assert kinds == {"orders": "iceberg", "clicks": "iceberg", "files": "parquet", "kept": "none"}
        for name in ("orders", "files"):
            first, *others = of(document, name)["partitions"]
            assert list(first["stages"]) == STAGES
            assert first["stages"]["stable"] == {"offset": 6, "lag_records": 0, "lag_seconds": 0.0}
            assert [first["stages"][stage]["offset"] for stage in STAGES] == [6, 4, 4]
            assert first["stages"]["committed"]["lag_records"] == 2
            assert 0 <= first["stages"]["committed"]["lag_seconds"] < 30
            assert (first["start"], first["next"], first["cause"]) == (0, 6, "waiting")
            assert "not due yet" in first["reason"]
            assert all((other["cause"], other["reason"]) == (None, None) for other in others)
            assert of(document, name)["last_commit"] >= format_time(before_us)
        assert list(of(document, "kept")["partitions"][0]["stages"]) == ["stable"]
        assert (of(document, "kept")["last_commit"], of(document, "kept")["valid_through"]) == (None, None)
        assert of(document, "clicks")["valid_through"] is not None
        driver.archive()
        assert [one["cause"] for item in made(driver)["topics"] for one in item["partitions"]] == [None] * 7


def test_archives_in_no_table_and_what_a_daemon_knows_in_addition(tmp_path: Path) -> None:
    with troubled(tmp_path / "d") as scene:
        document = made(scene.driver, stuck=scene.stuck)
        clicks = of(document, "clicks")
        assert "dropped or renamed" in clicks["stuck"]
        assert [one["cause"] for one in clicks["partitions"]] == ["stuck", None]
        assert any(
            "topic clicks: " in line and "dropped or renamed" in line for line in document["attention"]
        )
        assert [one["cause"] for one in of(document, "orders")["partitions"]] == [
            None,
            "transaction",
            "transaction",
        ]
        assert of(document, "clicks")["partitions"][0]["stages"]["committed"]["lag_records"] == 17
        assert made(scene.driver)["topics"] != document["topics"], "a command does not know of the last round"


def test_the_running_daemon_and_its_dependencies(tmp_path: Path) -> None:
    journal = Journal(5)
    journal.becomes("serving")
    journal.checked("objects", None, 1_000_000)
    with Driver(Deployment(tmp_path / "d", overrides={"topics": [], "catalogs": []})) as driver:
        fine = daemon_document("127.0.0.1:8787", journal)
        assert made(driver, daemon=fine)["daemon"] == {
            "address": "127.0.0.1:8787",
            "state": "serving",
            "ready": True,
            "checks": [{"name": "objects", "ok": True, "why": "", "since": "1970-01-01T00:00:01.000000Z"}],
            "sources": [],
            "mirrors": [],
            "kafka": None,
            "attention": [],
        }
        assert made(driver, daemon=fine)["attention"] == []
        journal.checked("objects", "no answer within 5 s", 2_000_000)
        assert made(driver, daemon=daemon_document("127.0.0.1:8787", journal))["attention"] == [
            "the daemon at 127.0.0.1:8787 is not ready (serving): objects: no answer within 5 s"
        ]
        assert (made(driver)["daemon"], made(driver)["attention"]) == (None, [])


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon's port, and a configuration by which commands find it; its page is the real one."""
    deployment = Deployment(tmp_path / "d", overrides={"topics": [], "catalogs": []})
    with Daemon(deployment) as daemon:
        host, port = daemon.address
        deployment.write({**deployment.document(), "http": {"listen": f"{host}:{port}"}})
        yield daemon


def test_status_next_to_a_daemon(daemon: Daemon) -> None:
    deployment = daemon.deployment
    document = deployment.cli("status", "--output", "json").json()
    address = load_settings(deployment.config, {}).http.listen
    assert (document["daemon"]["address"], document["daemon"]["state"], document["daemon"]["ready"]) == (
        address,
        "serving",
        True,
    )
    assert deployment.cli("status", "--exit-code").code == 0
    assert f"daemon: at {address}, serving, ready" in deployment.cli("status").out
    daemon.journal.checked("objects", "no answer within 5 s", 1)
    reported = deployment.cli("status", "--exit-code")
    assert reported.code == 1
    assert "is not ready (serving): objects: no answer within 5 s" in reported.out
    assert deployment.cli("status").code == 0
    daemon.cluster_id = "0" * 32
    assert deployment.cli("status", "--output", "json").json()["daemon"] is None, (
        "another cluster's daemon is none of ours"
    )


def test_status_without_a_daemon(tmp_path: Path) -> None:
    deployment = Deployment(
        tmp_path / "d", overrides={"topics": [], "catalogs": [], "http": {"listen": "127.0.0.1:1"}}
    )
    assert deployment.cli("status", "--output", "json").json()["daemon"] is None
    deployment.write({**deployment.document(), "http": {"listen": "127.0.0.1:0"}})
    assert deployment.cli("status", "--output", "json").json()["daemon"] is None


def test_the_text_names_what_holds_partitions_back(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "d")
    with Driver(deployment) as driver:
        driver.send("orders", [b"\x08\x01"] * 4, 1)
        Transactional(driver.application, driver.clock, "nightly", 60).send({("orders", 2): [b"\x08\x01"]})
    reported = " ".join(deployment.cli("status").out.split())
    assert "partitions that are behind" in reported
    for part in ("not due yet", "1 offset waits for", "nightly", "0 (4 behind, "):
        assert part in reported


def test_what_the_daemon_knows_of_its_last_round_and_its_sources_is_reported_next_to_it(
    tmp_path: Path,
) -> None:
    deployment = Deployment(tmp_path / "d")
    with Daemon(deployment) as daemon:
        host, port = daemon.address
        deployment.write({**deployment.document(), "http": {"listen": f"{host}:{port}"}})
        assert daemon.writer is not None
        daemon.writer.send("orders", Record(None, b"\x08\x01"), 1).result(30)
        failed = FilesState(
            "/in/*",
            "orders",
            "jsonl",
            1,
            True,
            failed=1,
            problems=(FileProblem("/in/a.jsonl", "line 3 is no JSON; mend it"),),
        )
        daemon.journal.reloaded(Refusal(1_000_000, "line 2: topics must be a list", whole=True))

        def status() -> dict[str, Any]:
            alongside = daemon_document(f"{host}:{port}", daemon.journal, [failed])
            return status_document(
                daemon.application, daemon.face.clock.now_us(), {"orders": "the table was dropped"}, alongside
            )

        daemon.operations.status = status  # type: ignore[method-assign]
        unread = deployment.cli("status")
        assert "are on its status page (this user cannot read the admin token)" in unread.out
        assert "the table was dropped" not in unread.out
        token = deployment.root / "metadata.db.admin-token"
        token.touch(0o600)
        token.write_text(daemon.token or "")
        reported = deployment.cli("status", "--exit-code")
        assert reported.code == 1, reported.err
        words = " ".join(reported.out.split())
        assert "note: topic orders: the table was dropped" in words
        assert (
            "note: File source /in/* (topic orders) cannot ingest 1 file or folder; /in/a.jsonl: line "
            "3 is no JSON; mend it." in words
        )
        assert "was refused: line 2: topics must be a list" in words
        assert "folders from which files are ingested" in words
        assert "the admin token" not in words
        document = deployment.cli("status", "--output", "json").json()
        assert of(document, "orders")["partitions"][1]["cause"] == "stuck"
        assert document["daemon"]["sources"][0]["problems"] == [
            {"path": "/in/a.jsonl", "why": "line 3 is no JSON; mend it"}
        ]
        daemon.operations.status = lambda: {"cluster": "another document"}  # type: ignore[method-assign]
        assert "are on its status page" in deployment.cli("status").out, "what is not understood is not used"


def test_a_topic_that_the_configuration_lost_before_its_first_archive_is_reported(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "d")
    with Driver(deployment) as driver:
        driver.send("orders", [b"\x08\x01"] * 4, 1)
    document = deployment.document()
    document["topics"] = [topic for topic in document["topics"] if topic["name"] != "orders"]
    deployment.write(document)
    reported = deployment.cli("status", "--exit-code")
    assert reported.code == 1
    assert "topic orders is not configured, so nothing archives it" in " ".join(reported.out.split())
    with Scene(deployment) as scene:
        html = page(scene.values())
    assert title(html) == "No action is needed. To watch: topic orders is not in the configuration."
    text = " ".join(html.split())
    assert "a-topic-is-not-in-the-configuration" in text
    assert "not in the configuration; 4 offsets; 4 records behind" in text


def test_what_stays_in_intake_has_no_backlog(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "d")
    with Driver(deployment) as driver:
        driver.send("kept", [b"x"] * 4, 0)
    (line,) = [
        line for line in deployment.cli("status").out.splitlines() if " kept " in line and " none " in line
    ]
    assert [cell.strip() for cell in line.strip("│ ").split("│")] == ["kept", "none", "4", "-", "-", "-", "-"]


def test_without_a_daemon_no_round_is_promised(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "d", overrides={"archive": {"idle_max": 0, "start_delay_max": 0}})
    with Driver(deployment) as driver:
        driver.send("orders", [b"\x08\x01"], 1)
    words = " ".join(deployment.cli("status").out.replace("│", " ").split())
    assert "due: the next round (`archiver serve`, or `archiver archive`) archives it" in words


def test_the_page_goes_out_with_its_policy(daemon: Daemon) -> None:
    reply = daemon.call("GET", "/")
    assert reply.status == 200
    assert reply.headers["content-security-policy"] == HEADERS["Content-Security-Policy"]
    assert reply.headers["cache-control"] == "no-store"


def title(html: str) -> str:
    return html.partition("<h1>")[2].partition("</h1>")[0]


def test_pages_of_real_deployments(tmp_path: Path) -> None:
    def shown(scene: Scene, **query: str) -> str:
        with scene:
            return page(scene.values(query))

    calm = shown(healthy(tmp_path / "healthy", 4))
    assert title(calm) == "All is well."
    assert calm.count("<svg") == 8
    assert title(shown(empty(tmp_path / "empty"))) == "All is well."
    bad = shown(troubled(tmp_path / "troubled"))
    assert title(bad).startswith(
        "3 things need an operator: catalog local does not answer, topic clicks is halted, the audit says "
        "invalid."
    )
    assert HOSTILE not in bad
    assert "&lt;script&gt;" in bad
    wide = shown(many(tmp_path / "many", partitions=60, others=2))
    assert "the worst 50 of 60" in wide
    assert "waits for an open transaction" in title(wide)
    assert title(page(starting(tmp_path / "starting"))).startswith(
        "Starting, not ready yet. 2 things need an operator: java does not answer"
    )


def test_another_process_that_leads_is_named(tmp_path: Path) -> None:
    with empty(tmp_path / "d") as scene:
        html = page(replace(scene.values(), leader="other:99"))
    assert "another process, other:99: it archives and cleans" in " ".join(html.split())
