"""The examples in the documentation do what the pages say."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from archiver.runtime.logging import METRICS
from archiver.status.advice import ANCHORS
from tests.support.pages import ROOT, blocks, matches, run_page


def free_port() -> int:
    """A port that was free a moment ago; the pages name a fixed one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_the_python_page(tmp_path: Path) -> None:
    run_page(ROOT / "docs" / "python.md", tmp_path, {}, timeout_s=100)


def test_the_http_page(tmp_path: Path) -> None:
    run_page(ROOT / "docs" / "http.md", tmp_path, {"8787": str(free_port())}, timeout_s=100)


def test_the_page_about_kafka_clients(tmp_path: Path) -> None:
    ports = {"8787": str(free_port()), "9092": str(free_port())}
    run_page(ROOT / "docs" / "kafka.md", tmp_path, ports, timeout_s=100)


def test_the_page_about_schemas(tmp_path: Path) -> None:
    run_page(ROOT / "docs" / "schemas.md", tmp_path, {}, timeout_s=100)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_quick_start(tmp_path: Path) -> None:
    ports = {"8787": str(free_port()), "9092": str(free_port())}
    run_page(ROOT / "docs" / "quickstart.md", tmp_path, ports, timeout_s=280)


_FOR_READERS = {
    "a-query-misses-nan",
    "adding-partitions",
    "what-fails-what-you-see-what-you-do",
    "external-changes-to-a-table",
    "findings-by-id",
    "erasure-on-request",
    "the-catalog-is-gone",
    "catalog-and-metadata-store-are-both-gone",
}
"""Sections of the runbook that no message points to."""
_FOR_ALERTS = {
    "control-events-are-not-published",
    "senders-wait",
    "the-clock-runs-ahead",
    "intake-grows",
    "kafka-clients-are-not-served",
    "a-consumer-group-falls-behind",
}
"""Those that only alert rules point to (tests/system/test_alert_rules.py)."""


def test_the_runbook_has_every_section_that_the_page_points_to() -> None:
    headings = re.findall(
        r"^## (.*)$", (ROOT / "docs" / "operations" / "runbook.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    found = {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert found - _FOR_READERS - _FOR_ALERTS == set(ANCHORS.values())


@pytest.mark.parametrize("page", ["python.md", "http.md", "quickstart.md", "operations/runbook.md"])
def test_metrics_that_pages_name_exist(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    named = {name for name in re.findall(r"\barchiver_[a-z_]+", text) if not name.endswith("_")}
    assert named <= set(METRICS)


def test_what_a_page_promises_is_compared(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```sh\necho one\n```\n\n```text\ntwo\n```\n")
    with pytest.raises(AssertionError, match="instead of"):
        run_page(page, tmp_path, {}, timeout_s=20)


def test_a_failing_example_names_its_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A page\n\n```sh\ntrue\n```\n\n```sh\nfalse\n```\n")
    with pytest.raises(AssertionError, match="block of line 7: exit code 1"):
        run_page(page, tmp_path, {}, timeout_s=20)


@pytest.mark.parametrize(
    ("printed", "wanted", "same"),
    [
        ("a b\n", "a  b", True),
        ("a b", "a", False),
        ("x 1 y", "x … y", True),
        ("x 1", "x … y", False),
        ("a\nb\nc", "a\n…\nc", True),
    ],
)
def test_dots_stand_for_anything(printed: str, wanted: str, same: bool) -> None:
    assert matches(printed, wanted) is same


def test_blocks_have_titles_and_options(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```yaml title=a.yaml\nx: 1\n```\n```sh no-run\nrm -rf /\n```\n")
    first, second = blocks(page)
    assert (first.title, first.text, second.options) == ("a.yaml", "x: 1\n", ("no-run",))
