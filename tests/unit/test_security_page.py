"""docs/operations/security.md: a test holds every line, and each test that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

from tests.unit.test_rules_named import names_of_tests

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "operations" / "security.md").read_text(encoding="utf-8")
LINES = PAGE.partition("## The lines")[2].partition("## What is not protected")[0]
_NAMED = re.compile(r"`(test_[a-z0-9_]+)`")
HEADS = {"line", "client", "---"}


def rows() -> list[list[str]]:
    """The cells of each row of the tables of lines."""
    found = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in LINES.splitlines()
        if line.startswith("|")
    ]
    return [cells for cells in found if cells[0] not in HEADS]


def test_each_line_names_a_test() -> None:
    assert len(rows()) > 30
    assert [cells[0] for cells in rows() if not _NAMED.search("|".join(cells[1:]))] == []


def test_what_the_page_names_is_there() -> None:
    assert set(_NAMED.findall(PAGE)) - names_of_tests() == set()


def test_every_demand_has_its_tables() -> None:
    sections = re.split(r"(?m)^### ", LINES)[1:]
    assert len(sections) >= 7
    assert [one.splitlines()[0] for one in sections if not _NAMED.search(one)] == []
