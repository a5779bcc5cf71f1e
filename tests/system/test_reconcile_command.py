"""`archiver reconcile` as people and programs call it: wrong input, both outputs, exit codes, and while a
daemon runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from archiver.log.lease import FileLease
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver
from tests.support.builders.reconciling import archived, control_tail, roll_back
from tests.support.process.web import TOKEN, Daemon

DOCUMENT = {"findings", "looked", "fix", "error", "checked_at"}
FINDING = {"id", "severity", "topic", "partition", "what", "repair", "safe", "fixed"}


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return archived(tmp_path / "d")


def test_the_document_is_frozen(deployment: Deployment) -> None:
    good = deployment.cli("reconcile", "--output", "json")
    assert good.code == 0, good.err
    document = good.json()
    assert set(document) == DOCUMENT
    assert (document["findings"], document["fix"], document["error"]) == ([], False, None)
    assert set(document["looked"]) == {"topics", "tables", "objects", "unread"}
    roll_back(deployment)
    found = deployment.cli("reconcile", "--output", "json")
    assert found.code == 1
    (finding,) = found.json()["findings"]
    assert set(finding) == FINDING
    assert {name: finding[name] for name in FINDING - {"what", "repair"}} == {
        "id": "rolled-back", "severity": "error", "topic": "clicks", "partition": None, "safe": False, "fixed": False,
    }  # fmt: skip
    fixed = deployment.cli("reconcile", "--fix", "--topic", "clicks", "--output", "json")
    assert fixed.code == 0, fixed.err
    document = fixed.json()
    assert (document["fix"], [item["fixed"] for item in document["findings"]]) == (True, [True])
    assert "ledger and table have lower watermarks" in fixed.err


def test_text(deployment: Deployment) -> None:
    assert "compared 4 topics, 2 tables, " in deployment.cli("reconcile").out
    roll_back(deployment)
    reported = deployment.cli("reconcile")
    assert reported.code == 1
    assert reported.out.startswith("error: rolled-back clicks: table shop.clicks: its history ")
    assert "  if it was a mistake, roll the table forward again" in reported.out
    assert reported.out.endswith(": 1 finding\n")
    assert "compared 1 topic, 1 table, " in deployment.cli("reconcile", "--topic", "orders").out
    fixed = deployment.cli("reconcile", "--fix")
    assert fixed.code == 0
    assert fixed.out.startswith("fixed: rolled-back clicks")
    assert fixed.out.endswith(": 0 findings, 1 fixed\n")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--topic", "nothing"], 3, "there is no topic nothing"),
        (["--topic", ""], 3, "there is no topic"),
        (["--topic", "clicks:0"], 3, "there is no topic clicks:0"),
        (["--fix", "--topic", "nothing"], 3, "there is no topic nothing"),
        (["--repair"], 3, "No such option: --repair\nSee `archiver reconcile --help`.\n"),
        (["clicks"], 3, "unexpected extra argument"),
        (["--output", "yaml"], 3, "yaml"),
    ],
)
def test_wrong_input(arguments: list[str], code: int, says: str, deployment: Deployment) -> None:
    tail = control_tail(deployment)
    done = deployment.cli("reconcile", *arguments)
    assert (done.code, done.out) == (code, "")
    assert says in done.err
    assert control_tail(deployment) == tail


def test_a_held_lease_is_exit_code_2_and_names_its_holder(deployment: Deployment) -> None:
    roll_back(deployment)
    lease = FileLease(deployment.root / "metadata.db.lease", "elsewhere:4711")
    lease.acquire()
    try:
        held = deployment.cli("reconcile", "--fix")
        assert (held.code, deployment.cli("reconcile").code) == (2, 1), "whoever only looks needs no lease"
    finally:
        lease.release()
    assert "elsewhere:4711" in held.err


def test_a_catalog_that_is_away_is_exit_code_2(deployment: Deployment) -> None:
    (deployment.root / "catalog.db").rename(deployment.root / "away.db")
    (deployment.root / "catalog.db").mkdir()
    away = deployment.cli("reconcile")
    assert away.code == 2
    assert "clicks could not be read: " in away.out


def test_next_to_a_daemon_the_daemon_does_it(deployment: Deployment) -> None:
    roll_back(deployment)
    with Daemon(deployment) as daemon:
        host, port = daemon.address
        document = deployment.document() | {
            "http": {"listen": f"{host}:{port}", "admin_token": {"file": "token"}}
        }
        (deployment.root / "token").write_text(TOKEN)
        (deployment.root / "token").chmod(0o600)
        deployment.write(document)
        asked: list[str] = []
        daemon.operations.gate = lambda _: asked.append("reconcile")
        assert deployment.cli("reconcile").code == 1
        assert asked == [], "whoever only looks asks nobody"
        assert deployment.cli("reconcile", "--fix", "--topic", "orders").code == 0
        done = deployment.cli("reconcile", "--fix")
        assert (done.code, asked) == (0, ["reconcile", "reconcile"]), done.err
        assert done.out.startswith("fixed: rolled-back clicks")
        assert "ledger and table have lower watermarks" in done.err
        wrong = deployment.cli("reconcile", "--fix", "--topic", "nothing")
        assert (wrong.code, "there is no topic nothing" in wrong.err) == (3, True)
    with Driver(deployment) as driver:
        driver.archive()
        driver.check_complete("clicks")
