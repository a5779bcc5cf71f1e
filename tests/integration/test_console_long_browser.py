"""Long pages of the console in a real browser: what matters is on top, and the rest is folded."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from intake.records import Record
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver
from tests.support.process.pages import check_harmless
from tests.support.process.web import Daemon
from tests.support.schema.orders import order
from tests.support.servers.browser import Browser, browsing

pytestmark = pytest.mark.timeout(300)

COMMITS = 4
MESSAGES = 50
HEIGHT = "document.documentElement.scrollHeight"
OFFSETS = "[...document.querySelectorAll('tbody td:first-child a')].map(one => one.textContent)"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as browser:
        yield browser


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A table with some commits, and a partition with a page of long messages."""
    deployment = Deployment(tmp_path_factory.mktemp("long") / "d")
    with Driver(deployment) as driver:
        for number in range(COMMITS):
            driver.send("orders", [order(number)], 1)
            driver.archive(("orders", None))
        with driver.application.intake.writer() as writer:
            for number in range(MESSAGES):
                value = b'{"number": %d, "text": "%s",\n "last": true}' % (number, b"several words " * 40)
                headers = (("trace", b"%d" % number),)
                writer.send("clicks", Record(b"key-%d" % number * 10, value, headers=headers), 0)
            writer.flush()
    with Daemon(deployment) as daemon:
        yield daemon


def opened(browser: Browser, daemon: Daemon, path: str, width: int) -> None:
    browser.screen(width, scripts=False)
    browser.open("http://{}:{}{}".format(*daemon.address, path))
    wide = browser.run("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0, "nothing is wider than the window"


@pytest.mark.parametrize("width", [360, 1600])
def test_a_table_begins_with_its_columns(browser: Browser, daemon: Daemon, width: int) -> None:
    opened(browser, daemon, "/topics/orders/table", width)
    headings = browser.run("[...document.querySelectorAll('h2')].map(one => one.textContent)")
    assert headings[-3:] == ["Columns", "Snapshots", "Data files of the current snapshot"]
    before = browser.run(HEIGHT)
    for name in ("snapshots", "data-files"):
        rows = f"[...document.querySelector('#{name}').closest('details').querySelectorAll('tbody tr')]"
        assert browser.run(f"{rows}.length") == COMMITS
        assert not browser.run(f"{rows}.some(one => one.checkVisibility())"), "closed by default"
        browser.run(f"document.querySelector('#{name}').closest('summary').click()")
        assert browser.run(f"{rows}.every(one => one.checkVisibility())")
    assert browser.run(HEIGHT) > before


@pytest.mark.parametrize(("width", "most"), [(360, 120), (1600, 40)])
def test_a_message_takes_one_line_until_it_is_unfolded(
    browser: Browser, daemon: Daemon, width: int, most: int
) -> None:
    opened(browser, daemon, "/topics/clicks/messages", width)
    assert browser.run("document.querySelectorAll('tbody tr').length") == MESSAGES
    row = "document.querySelector('tbody tr')"
    assert browser.run(f"{row}.getBoundingClientRect().height") <= most
    assert browser.run(f"{row}.querySelector('dl').checkVisibility()") is False
    browser.run(f"{row}.querySelector('summary').click()")
    shown = browser.run(f"{row}.querySelector('dl').innerText")
    assert "several words " * 40 in shown, "the whole value"
    assert "key-49" * 10 in shown
    assert "header trace" in shown


def test_the_newest_messages_stand_on_top_of_their_page(browser: Browser, daemon: Daemon) -> None:
    opened(browser, daemon, "/topics/clicks/messages?limit=3", 1280)
    assert browser.run(OFFSETS) == ["49", "48", "47"]
    assert "the newest first" in browser.run("document.body.innerText")
    browser.click("a[href*='from=44']")
    assert browser.run(OFFSETS) == ["44", "45", "46"], "other pages are in the order of offsets"
    opened(browser, daemon, "/topics/clicks/messages?limit=3&from=latest&key=" + "key-49" * 10, 1280)
    assert browser.run(OFFSETS) == ["49"]
    found = daemon.call("GET", "/v1/topics/clicks/messages?limit=3").json()["records"]
    assert [one["offset"] for one in found] == [47, 48, 49], "the document keeps its order"


def test_a_topic_says_of_when_its_numbers_are(browser: Browser, daemon: Daemon) -> None:
    opened(browser, daemon, "/topics/orders", 1280)
    text = browser.run("document.body.innerText")
    assert re.search(r"as of the newest poll, \d{4}-\d\d-\d\d [\d:]+ UTC \([^)]+ ago\)", text)
    assert f"The catalog says, at most 10 s ago: {COMMITS} rows" in text
    opened(browser, daemon, "/topics/clicks/schema", 1280)
    assert browser.run("document.querySelector('h1').textContent") == "Schema of clicks"


@pytest.mark.parametrize("path", ["/topics", "/topics/clicks"])
def test_a_page_reloads_itself_once_that_is_chosen(browser: Browser, daemon: Daemon, path: str) -> None:
    opened(browser, daemon, path, 360)
    refresh = "document.querySelector('meta[http-equiv=refresh]')"
    assert browser.run(refresh) is None
    browser.click(".reload a[href$='refresh=30']")
    assert browser.run(f"{refresh}.content") == "30"
    browser.click(".reload a")
    assert browser.run(refresh) is None


def test_an_unknown_address_is_a_page_for_browsers_only(browser: Browser, daemon: Daemon) -> None:
    opened(browser, daemon, "/nope", 360)
    assert browser.run("document.querySelector('h1').textContent") == "Not found"
    assert browser.run("document.querySelector('main a[href=\"/topics\"]') !== null")
    for accept in ("*/*", "application/json, text/html;q=0.9", "text/html;q=0"):
        reply = daemon.call("GET", "/nope", headers={"Accept": accept})
        assert (reply.status, reply.json()["error"]["type"]) == (404, "NotFound")
    page = check_harmless(daemon.call("GET", "/nope<b>", headers={"Accept": "text/html,*/*;q=0.8"}))
    assert "nothing at this address" in page.text
    reply = daemon.call("GET", "/v1/nope", headers={"Accept": "text/html"})
    assert reply.json()["error"]["type"] == "NotFound"


def test_groups_say_that_there_is_no_listener(browser: Browser, daemon: Daemon) -> None:
    opened(browser, daemon, "/groups", 1280)
    assert "no Kafka listener" in browser.run("document.body.innerText")
