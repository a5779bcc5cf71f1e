"""The console in a real browser: with scripts off and on, at three widths, light and dark, by mouse and keys."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pydantic import SecretStr

from intake.records import Record
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver
from tests.support.process.web import Daemon
from tests.support.schema.orders import order
from tests.support.servers.browser import Browser, browsing

pytestmark = pytest.mark.timeout(300)

MACHINE_TIME = re.compile(r"\d-\d\dT\d\d:\d\d")
WIDTHS = (360, 800, 1600)
PAGES_MAX = 200
HOSTILE = (
    b"<script>window.ran = 1; alert(1)</script>",
    b"<img src=x onerror='window.ran = 1'>",
    b"<svg onload='window.ran = 1'>",
    b'" autofocus onfocus="window.ran = 1" x="',
    b"'><style>body { display: none }</style>",
    b"<base href='//192.0.2.1/'><meta http-equiv=refresh content='0;url=//192.0.2.1/'>",
    b"<iframe srcdoc='<script>parent.ran = 1</script>'></iframe>",
    b"</textarea></code><form action='//192.0.2.1/'><button>x",
    b"x" * 3000,
)
START = ["/topics"]
"""Pages from which all others can be reached."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as browser:
        yield browser


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Archived and unarchived records, some of them hostile, and one that does not decode."""
    deployment = Deployment(tmp_path_factory.mktemp("console") / "d")
    with Driver(deployment) as driver:
        driver.send("orders", [order(1), b"\xff\xff\xff", order(2)], 1)
        driver.send("clicks", [b"%d" % number for number in range(7)], 0)
        driver.archive()
        with driver.application.intake.writer() as writer:
            for hostile in HOSTILE:
                headers = ((hostile.decode(), hostile), ("null", None))
                writer.send("clicks", Record(hostile, hostile, headers=headers), 1)
            writer.flush()
    with Daemon(deployment) as daemon:
        yield daemon


def at(daemon: Daemon, path: str) -> str:
    return "http://{}:{}{}".format(*daemon.address, path)


def links(browser: Browser) -> list[str]:
    """Paths that the page links to, with their queries."""
    found: list[str] = browser.run("Array.from(document.links, one => one.getAttribute('href'))")
    return found


def pages(browser: Browser, daemon: Daemon) -> list[str]:
    """Every page that can be reached by links, each kind of page with few of its addresses."""
    seen, left, kinds = list[str](), list(START), dict[str, int]()
    while left and len(seen) < PAGES_MAX:
        path = left.pop(0)
        # A list of messages links to each message; three of a kind are enough.
        parts = ["0" if part.isdigit() else part for part in urlsplit(path).path.split("/")]
        kind = "/".join(parts) + "?" * bool(urlsplit(path).query)
        kinds[kind] = kinds.get(kind, 0) + 1
        if (
            path in seen
            or kinds[kind] > 3
            or path.startswith(("/v1/", "/openapi", "#"))
            or urlsplit(path).path == "/"
        ):
            continue
        browser.open(at(daemon, path))
        assert browser.run("document.querySelector('h1') !== null"), path
        seen.append(path)
        left += links(browser)
    return seen


def test_every_page_is_reached_by_links_and_fits(browser: Browser, daemon: Daemon) -> None:
    browser.screen(1280, scripts=False)
    reached = pages(browser, daemon)
    assert len(reached) >= 10
    assert any("/messages/" in path for path in reached)
    for path in reached:
        for width in WIDTHS:
            browser.screen(width, dark=width == 800, scripts=False)
            browser.open(at(daemon, path))
            assert browser.complaints() == [], (path, width)
            # What is wider than the window needs sideways scrolling, which hides it on a phone.
            wide = browser.run("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wide <= 0, (path, width)
            assert browser.run("document.querySelectorAll('h1').length") == 1, path
            assert browser.run("document.title") not in ("", None), path
            if not path.startswith("/runbook"):
                text = browser.run("document.body.innerText")
                assert MACHINE_TIME.search(text) is None, (path, "times are for people")
            assert browser.run("document.documentElement.lang") == "en"
            loaded = {urlsplit(one).path for one in browser.requested()}
            assert loaded <= {urlsplit(path).path, "/style.css", "/favicon.ico"}, loaded


def test_colours_follow_the_reader(browser: Browser, daemon: Daemon) -> None:
    grounds = []
    for dark in (False, True):
        browser.screen(1280, dark=dark)
        browser.open(at(daemon, "/topics"))
        grounds.append(browser.run("getComputedStyle(document.body).backgroundColor"))
    assert len(set(grounds)) == 2


def test_nothing_of_a_record_runs(browser: Browser, daemon: Daemon) -> None:
    browser.screen(1280, scripts=True)
    browser.open("data:text/html,<script>window.ran = 1</script>")
    assert browser.run("window.ran") == 1, "scripts run where a page lets them"
    paths = ["/topics/clicks/messages?partition=1&from=earliest"]
    paths += [f"/topics/clicks/messages/1/{offset}" for offset in range(len(HOSTILE))]
    for path in paths:
        browser.open(at(daemon, path))
        assert browser.run("window.ran") is None, path
        assert browser.complaints() == [], path
        assert browser.run("document.querySelectorAll('script, style, iframe, base, img, svg').length") == 0
        assert browser.run("document.querySelectorAll('[onfocus], [onload], [onerror]').length") == 0
        assert browser.run("getComputedStyle(document.body).display") == "block"
        assert {urlsplit(one).hostname for one in browser.requested()} == {"127.0.0.1"}
    assert browser.run("document.body.textContent").count("x" * 100) > 0


def test_messages_are_chosen_by_the_form(browser: Browser, daemon: Daemon) -> None:
    browser.screen(1280, scripts=False)
    browser.open(at(daemon, "/topics/clicks/messages"))
    browser.fill("input[name=partition]", "0")
    browser.fill("input[name=from]", "2")
    browser.fill("input[name=limit]", "3")
    browser.click("form button")
    offsets = "Array.from(document.querySelectorAll('tbody td:first-child a'), one => one.textContent)"
    assert browser.run(offsets) == ["2", "3", "4"]
    assert browser.run("document.querySelector('input[name=from]').value") == "2", "what was asked stays"
    browser.click("a[href*='from=5']")
    assert browser.run(offsets) == ["5", "6"]
    browser.click("tbody td:first-child a")
    assert browser.run("document.querySelector('h1').textContent") == "Offset 5 of partition 0"
    browser.click(".trail a:last-of-type")
    assert browser.run(offsets)[0] == "5"


def test_a_wrong_form_says_what_is_accepted(browser: Browser, daemon: Daemon) -> None:
    browser.screen(1280, scripts=False)
    browser.open(at(daemon, "/topics/clicks/messages"))
    browser.fill("input[name=from]", "yesterday")
    browser.click("form button")
    assert "from yesterday is not accepted; give earliest, latest (the newest records), end" in browser.run(
        "document.querySelector('[role=alert]').textContent"
    )
    wrong = "document.querySelector('input[aria-describedby=problem]')"
    assert browser.run(f"{wrong}.name + ' ' + {wrong}.value") == "from yesterday", "what was typed stays"
    for width in WIDTHS:
        browser.screen(width, scripts=False)
        wide = browser.run("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, width
    browser.fill("input[name=from]", "earliest")
    browser.click("form button")
    assert browser.run("document.querySelectorAll('[role=alert]').length") == 0


def test_keys_reach_everything(browser: Browser, daemon: Daemon) -> None:
    browser.screen(1280, scripts=False)
    browser.open(at(daemon, "/topics"))
    browser.press("Tab", 9)
    assert browser.run("document.activeElement.textContent") == "To the content"
    assert browser.run("getComputedStyle(document.activeElement).position") == "static", "it is seen"
    wanted = set(browser.run("Array.from(document.querySelectorAll('a'), one => one.href)"))
    reached = set()
    for _ in range(3 * len(wanted)):
        reached.add(browser.run("document.activeElement.href"))
        browser.press("Tab", 9)
    assert wanted <= reached


def test_the_list_can_reload_itself(browser: Browser, daemon: Daemon) -> None:
    browser.screen(1280, scripts=False)
    browser.open(at(daemon, "/topics/clicks/messages?partition=0&refresh=1"))
    browser.events.clear()
    browser.wait_for("Page.loadEventFired")
    assert browser.run("document.querySelector('h1').textContent") == "Messages of clicks"


def test_a_reader_logs_in(browser: Browser, tmp_path: Path) -> None:
    with Daemon(Deployment(tmp_path / "d"), read_token=SecretStr("the token of readers")) as daemon:
        host = "{}:{}".format(*daemon.address)
        browser.screen(1280, scripts=False)
        browser.open(f"http://{host}/topics")
        assert browser.run("document.querySelector('h1').textContent") == "Log in"
        browser.open(f"http://any:the%20token%20of%20readers@{host}/topics")
        assert browser.run("document.querySelector('h1').textContent") == "Topics"
        browser.click("tbody a")
        assert browser.run("document.querySelector('h1').textContent") == "clicks"


def until_heading(browser: Browser, heading: str) -> None:
    """Wait until the page, which loads itself again, has this heading."""
    while browser.run("document.querySelector('h1').textContent") != heading:
        browser.events.clear()
        browser.wait_for("Page.loadEventFired")


def test_a_query_is_run_by_its_form(browser: Browser, daemon: Daemon) -> None:
    browser.screen(1280, scripts=False)
    browser.open(at(daemon, "/topics/clicks"))
    browser.click("a[href*='query?table']")
    assert "FROM shop.clicks" in browser.run("document.querySelector('textarea').value")
    sql = "SELECT range AS r, NULL AS n, '' AS e, '</textarea><script>window.ran = 1</script>' AS s FROM range(250)"
    browser.fill("textarea", sql)
    browser.click("form button")
    until_heading(browser, "Result")
    assert browser.run("document.querySelector('textarea').value") == sql, "the query can be changed"
    assert browser.run("document.querySelectorAll('tbody tr').length") == 200
    cells = "Array.from(document.querySelector('tbody tr').cells, one => one.textContent.trim())"
    assert browser.run(cells)[:3] == ["0", "NULL", "empty"]
    for width in WIDTHS:
        browser.screen(width, scripts=False)
        wide = browser.run("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, width
    assert browser.complaints() == []
    browser.click("a[href*='from=200']")
    assert browser.run("document.querySelectorAll('tbody tr').length") == 50
    browser.click(".trail a")
    assert "range(250)" in browser.run("document.querySelector('tbody a').textContent")


def test_the_caret_is_below_the_wrong_word(browser: Browser, daemon: Daemon) -> None:
    browser.screen(360, scripts=False)
    browser.open(at(daemon, "/query"))
    browser.fill("textarea", "SELECT 1 FROM shop.clicks iii WHERE WHERE")
    browser.click("form button")
    until_heading(browser, "The query has failed")
    widths = (
        "(() => { const text = document.querySelector('pre.place code').firstChild; const range = "
        "document.createRange(); return text.data.split('\\n').map((line, row, all) => { const start = "
        "all.slice(0, row).join('\\n').length + (row ? 1 : 0); range.setStart(text, start); range.setEnd(text, "
        "start + all[1].length); return range.getBoundingClientRect().width; }); })()"
    )
    above, below = browser.run(widths)
    assert above == pytest.approx(below, abs=1)
    wide = browser.run("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0


def test_a_wide_result_scrolls_by_itself(browser: Browser, daemon: Daemon) -> None:
    browser.screen(1280, scripts=False)
    browser.open(at(daemon, "/query"))
    columns = ", ".join(f"{number} AS a_column_with_a_long_name_{number}" for number in range(40))
    browser.fill("textarea", f"SELECT {columns}")
    browser.click("form button")
    until_heading(browser, "Result")
    wide = "{0}.scrollWidth - {0}.clientWidth"
    assert browser.run(wide.format("document.documentElement")) <= 0
    assert browser.run(wide.format("document.querySelector('.scroll')")) > 0


def test_a_running_query_is_cancelled_by_its_button(browser: Browser, daemon: Daemon) -> None:
    browser.screen(360, scripts=False)
    browser.open(at(daemon, "/query"))
    browser.fill(
        "textarea", "SELECT count(*) FROM range(100000000000) a, range(1000) b WHERE a.range % 7 = 1"
    )
    browser.click("form button")
    until_heading(browser, "The query runs")
    browser.click("form[action$=cancel] button")
    until_heading(browser, "The query was cancelled")
    assert browser.run("document.querySelector('meta[http-equiv=refresh]')") is None
