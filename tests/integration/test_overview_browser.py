"""The overview page in a real browser: at widths from 360 to 1,600 pixels, with trouble and without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from archiver.web.page import page
from tests.support.builders.status_scenes import SCENES, starting
from tests.support.servers.browser import Browser, browsing

pytestmark = pytest.mark.timeout(300)

HEALTHY_MAX = 5000
"""Pixels of a healthy overview with four topics at 360 pixels: 4,582 were measured. With its parts unfolded it
had 9,329.
"""
WIDTHS = (360, 500, 768, 1000, 1280, 1600)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as browser:
        yield browser


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Addresses of the states."""
    folder = tmp_path_factory.mktemp("overview")
    found = {"starting": page(starting(folder / "starting"))}
    for name in ("healthy", "troubled"):
        with SCENES[name](folder / name) as scene:
            found[name] = page(scene.values())
    for name, html in found.items():
        (folder / f"{name}.html").write_text(html, encoding="utf-8")
    return {name: Path(folder / f"{name}.html").as_uri() for name in found}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("state", ["healthy", "troubled", "starting"])
def test_what_needs_a_person_stands_on_top_at_any_width(
    browser: Browser, pages: dict[str, str], state: str, width: int
) -> None:
    browser.screen(width, dark=width == 768)
    browser.open(pages[state])
    assert browser.complaints() == []
    wide = browser.run("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0, "nothing is wider than the window"
    first = browser.run("document.querySelectorAll('.advice li.act').length")
    assert (first > 0) == (state != "healthy")
    beyond = (
        "Math.max(0, ...[...document.querySelectorAll('.advice li.act')].map(one => "
        "one.getBoundingClientRect().bottom)) <= document.querySelector('#dependencies')"
        ".getBoundingClientRect().top"
    )
    assert browser.run(beyond), "the actions end before anything else begins"
    # A folded list takes one line, also on a phone.
    assert browser.run("document.querySelector('details.card summary').getBoundingClientRect().height") < 60


@pytest.mark.parametrize("name", ["cycles", "daemon"])
def test_what_is_secondary_is_folded(browser: Browser, pages: dict[str, str], name: str) -> None:
    browser.screen(360)
    browser.open(pages["troubled"])
    inner = f"document.querySelector('#{name}').closest('details').querySelector('td, dd')"
    assert browser.run(f"{inner}.checkVisibility()") is False
    browser.run(f"document.querySelector('#{name}').closest('summary').click()")
    assert browser.run(f"{inner}.checkVisibility()") is True


def test_a_healthy_overview_is_short_on_a_phone(browser: Browser, pages: dict[str, str]) -> None:
    browser.screen(360)
    browser.open(pages["healthy"])
    partitions = "[...document.querySelectorAll('.topic details')].map(one => one.open)"
    assert not any(browser.run(partitions))
    assert browser.run("document.documentElement.scrollHeight") < HEALTHY_MAX


def test_the_list_of_healthy_dependencies_unfolds(browser: Browser, pages: dict[str, str]) -> None:
    browser.screen(360)
    browser.open(pages["healthy"])
    shown = "document.querySelector('#dependencies').parentElement.querySelector('tbody').checkVisibility()"
    assert browser.run(shown) is False
    browser.run("document.querySelector('#dependencies + details > summary').click()")
    assert browser.run(shown) is True
