"""Pages about groups, undecoded records, audits and the runbook in a real browser: at three widths, and with
long and hostile names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from archiver.app.group_reset import reset_alone
from archiver.status.group_members import ShownGroup, ShownMember
from archiver.status.journal import Cycle
from tests.integration.test_console_browser import HOSTILE, WIDTHS, at
from tests.integration.test_read_groups import Members
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver
from tests.support.builders.undecoded import NEVER
from tests.support.process.web import Daemon
from tests.support.servers.browser import Browser, browsing

pytestmark = pytest.mark.timeout(300)

GROUPS = ["readers", "x" * 1000, *(text.decode()[:250] for text in HOSTILE)]
PAGES = [
    "/groups",
    *(f"/group?group={quote(name, safe='')}" for name in GROUPS),
    "/dead-letters",
    "/dead-letters/replay",
    "/audit",
    "/runbook",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as browser:
        yield browser


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    deployment = Deployment(
        tmp_path_factory.mktemp("console") / "d", overrides={"kafka": {"listen": "127.0.0.1:0"}}
    )
    with Driver(deployment) as driver:
        driver.send("orders", [NEVER, b"\xff"], 1)
        driver.send("clicks", [b"%d" % number for number in range(7)], 0)
        driver.archive()
    with Daemon(deployment) as daemon:
        app = daemon.application
        assert app.settings.kafka is not None
        for name in GROUPS:
            reset_alone(app, app.settings.kafka, name, app.topic("clicks").topic_id, {0: 3})
        folder = deployment.data / "archive" / app.topic("clicks").topic_id
        next(folder.rglob("*.parquet")).unlink()
        now_us = daemon.face.clock.now_us()
        audited = app.maintenance.audit(None)
        daemon.journal.add(Cycle("audit", now_us, 0.5, "wrong", "", audited))
        found: dict[str, Any] = app.maintenance.reconciling(lambda _: None, dry_run=True).run().to_json()
        found["findings"] += [
            {**found["findings"][0], "what": text.decode(), "topic": text.decode()} for text in HOSTILE
        ]
        daemon.journal.add(Cycle("reconcile", now_us, 0.5, "wrong", "", found))
        members = [
            ShownMember(name, "i" * 200, name, "/127.0.0.1", ["clicks"] * 9, "p" * 300, {"clicks": [0, 1]})
            for name in GROUPS
        ]
        daemon.members = Members(ShownGroup("Stable", "consumer", "uniform", 7, False, members, 3))
        yield daemon


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path[:20])
def test_pages_fit_and_run_nothing(browser: Browser, daemon: Daemon, path: str) -> None:
    for width in WIDTHS:
        browser.screen(width, dark=width == 800)
        browser.open(at(daemon, path))
        assert browser.complaints() == [], (path, width)
        wide = browser.run("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, (path, width)
        assert browser.run("window.ran === undefined")
        assert browser.run("document.querySelectorAll('h1').length") == 1


def test_a_finding_leads_to_its_section(browser: Browser, daemon: Daemon) -> None:
    browser.screen(1280, scripts=False)
    browser.open(at(daemon, "/audit"))
    browser.click("a[href='/runbook#finding-dangling-reference']")
    browser.wait_for("Page.loadEventFired")
    assert browser.run("location.pathname + location.hash") == "/runbook#finding-dangling-reference"
    assert browser.run("document.querySelector(':target').textContent") == "Finding dangling reference"
