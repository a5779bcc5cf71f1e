"""Pictures of the status page and of every page of the console, in their states, at three widths, light and
dark, for visual review.

All values come from real applications on scratch folders. The pictures go to a folder that version control
ignores; see `make screenshots`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from archiver.app.group_reset import reset_alone  # noqa: E402 - after the path is known
from archiver.status.group_members import ShownGroup, ShownMember  # noqa: E402
from archiver.status.journal import Cycle  # noqa: E402
from archiver.web.page import page  # noqa: E402
from intake.records import Record  # noqa: E402
from tests.integration.test_read_groups import Members  # noqa: E402
from tests.support.absent import Absent  # noqa: E402
from tests.support.builders.deployment import Deployment  # noqa: E402
from tests.support.builders.driver import Driver  # noqa: E402
from tests.support.builders.status_scenes import SCENES, starting  # noqa: E402
from tests.support.builders.undecoded import NEVER, unmended  # noqa: E402
from tests.support.process.web import Daemon  # noqa: E402
from tests.support.schema.orders import order  # noqa: E402
from tests.support.servers.browser import Browser, fetch  # noqa: E402

WIDTHS = (360, 800, 1600)
REFUSED_ORDERS = (3, 4)
"""Orders that could not be decoded at first, so that a replay has something to do."""
PAGES = {
    "topics": "/topics",
    "topic": "/topics/orders",
    "topic-without-table": "/topics/kept",
    "messages-archive": "/topics/orders/messages?partition=1&from=earliest",
    "messages-intake": "/topics/clicks/messages?partition=1",
    "messages-by-key": "/topics/clicks/messages?partition=1&from=earliest&key=user-3",
    "messages-without-hits": "/topics/clicks/messages?partition=1&from=earliest&key=absent",
    "messages-empty": "/topics/files/messages",
    "messages-wrong-form": "/topics/clicks/messages?from=yesterday",
    "message-archive": "/topics/orders/messages/1/0",
    "message-intake": "/topics/clicks/messages/1/3",
    "message-undecodable": "/topics/orders/messages/1/1",
    "table": "/topics/orders/table",
    "schema": "/topics/orders/schema",
    "schema-of-bytes": "/topics/clicks/schema",
    "dead-letters": "/dead-letters",
    "dead-letters-of-topic": "/dead-letters?topic=orders",
    "dead-letters-none": "/dead-letters?topic=clicks",
    "replay-preview": "/dead-letters/replay",
    "groups": "/groups",
    "group": "/group?group=readers",
    "group-without-members": "/group?group=nightly-export",
    "runbook": "/runbook",
    "query": "/query",
    "not-found": "/topics/absent",
}
"""Pages that need nothing but their address; orders and clicks are the topics of `Deployment`."""
QUERIES = {
    "query-result": "SELECT range AS number, NULL AS nothing, '' AS empty, "
    "repeat('long ', range) AS text FROM range(30)",
    "query-error": "SELECT absent FROM shop.orders",
}


def overview(folder: Path) -> Iterator[tuple[str, str]]:
    """Every state of the status page by its name, as the address of a file."""
    for name, html in _status_pages(folder):
        file = folder / f"{name}.html"
        file.write_text(html, encoding="utf-8")
        yield f"overview-{name}", file.as_uri()


def _status_pages(folder: Path) -> Iterator[tuple[str, str]]:
    yield "starting", page(starting(folder / "starting"))
    for name, scene in SCENES.items():
        with scene(folder / name) as made:
            yield name, page(made.values())
            if name == "many":
                yield "one-topic", page(made.values({"topic": "telemetry", "refresh": "30"}))


def console(folder: Path, browser: Browser) -> Iterator[tuple[str, str]]:
    """Every page of the console by the name of its state, as an address that answers until the next is taken."""
    deployment = Deployment(folder / "console", overrides={"kafka": {"listen": "127.0.0.1:0"}})
    _fill(deployment)
    with Daemon(deployment) as daemon:
        host = "http://{}:{}".format(*daemon.address)
        _add_groups(daemon)
        for name, path in PAGES.items():
            yield name, host + path
        yield "audit-without-result", f"{host}/audit"
        _add_audit(daemon, deployment)
        yield "audit", f"{host}/audit"
        yield "audit-of-topic", f"{host}/audit?topic=clicks"
        for name, sql in QUERIES.items():
            yield name, _ended_query(browser, host, sql)
        yield "queries", f"{host}/query"
    with Daemon(Deployment(folder / "closed"), read_token=SecretStr("token of readers")) as daemon:
        yield "login", "http://{}:{}/topics".format(*daemon.address)


def _fill(deployment: Deployment) -> None:
    """Archived records, some of which do not decode, and records in intake."""
    with Driver(deployment) as driver:
        orders = [order(number, lines=number % 4) for number in range(12)]
        driver.send("orders", [orders[0], NEVER, *orders[1:]], 1)
        driver.send("clicks", [b'{"page": "/start", "number": %d}' % number for number in range(70)], 0)
        with pytest.MonkeyPatch.context() as patch, unmended(patch, REFUSED_ORDERS):
            driver.archive()
        with driver.application.intake.writer() as writer:
            for number in range(30):
                headers = (("trace", b"%032x" % number), ("null", None))
                value = b'{"page": "/offers/%d", "text": "%s"}' % (number, b"several words " * number)
                writer.send("clicks", Record(b"user-%d" % (number % 5), value, headers=headers), 1)
            writer.send("clicks", Record(b"\x00\xff", None), 1)
            writer.flush()


def _add_groups(daemon: Daemon) -> None:
    app = daemon.application
    assert app.settings.kafka is not None
    for name in ("readers", "nightly-export", "team-of-checkout.recommendations.v2-" + "x" * 60):
        reset_alone(app, app.settings.kafka, name, app.topic("clicks").topic_id, {0: 30, 1: 5})
    members = [
        ShownMember(
            f"reader-{number}-6f1d8c0e-97f4-4c7e-8d6c-2f3d1a0b9c8e",
            None,
            f"reader-{number}",
            f"/10.0.0.{number}",
            ["clicks"],
            None,
            {"clicks": [number]},
        )
        for number in range(2)
    ]
    daemon.members = Members(ShownGroup("Stable", "consumer", "uniform", 7, False, members, 0))


def _add_audit(daemon: Daemon, deployment: Deployment) -> None:
    """Results that report a lost archive."""
    app = daemon.application
    next((deployment.data / "archive" / app.topic("clicks").topic_id).rglob("*.parquet")).unlink()
    now_us = daemon.face.clock.now_us()
    daemon.journal.add(Cycle("audit", now_us, 0.5, "wrong", "", app.maintenance.audit(None)))
    found: dict[str, Any] = app.maintenance.reconciling(lambda _: None, dry_run=True).run().to_json()
    daemon.journal.add(Cycle("reconcile", now_us, 0.5, "wrong", "", found))


def _ended_query(browser: Browser, host: str, sql: str) -> str:
    """Run a query by its form; the address of its page once it has ended."""
    browser.open(f"{host}/query")
    browser.fill("textarea", sql)
    browser.click("form button")
    # The page loads itself again until its query has ended.
    while browser.run("document.querySelector('meta[http-equiv=refresh]') !== null"):
        browser.events.clear()
        browser.wait_for("Page.loadEventFired")
    address: str = browser.run("location.href")
    return address


def take(browser: Browser, name: str, address: str, folder: Path) -> None:
    """Pictures of one state."""
    for width in WIDTHS:
        for dark in (False, True):
            browser.screen(width, dark=dark, scripts=False)
            browser.open(address)
            target = folder / f"{name}-{width}-{'dark' if dark else 'light'}.png"
            browser.picture(target)
            print(target, flush=True)


def main() -> int:
    """Take all pictures, or those of the states that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, default=ROOT / "build" / "screenshots")
    parser.add_argument("states", nargs="*")
    given = parser.parse_args()
    try:
        program = fetch()
    except Absent as error:
        print(f"there is no browser: {error}", file=sys.stderr)
        return 1
    given.to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="scenes-") as scratch, Browser(program) as browser:
        for made in (overview(Path(scratch)), console(Path(scratch), browser)):
            for name, address in made:
                if not given.states or name in given.states:
                    take(browser, name, address, given.to)
    return 0


if __name__ == "__main__":
    sys.exit(main())
