"""Every rule of the publish and fencing protocols is held by a test that names it."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("publish.md", "fencing.md")
RULES = {
    f"{letter}{number}"
    for letter, last in (("L", 4), ("T", 4), ("C", 6), ("P", 2), ("D", 4))
    for number in range(1, last + 1)
}
_STATED = re.compile(r"^- \*\*([LTCPD]\d)\*\* ", re.MULTILINE)
_NAMED = re.compile(r"`(test_[a-z0-9_]+)`")
_FUNCTION = re.compile(r"^def (test_[a-z0-9_]+)\(", re.MULTILINE)
_LINKED = re.compile(r"\]\((\.\./\.\./tests/[^)#]+)\)")


def page(name: str) -> str:
    return (ROOT / "docs" / "protocols" / name).read_text()


@cache
def names_of_tests() -> frozenset[str]:
    """The names of all test functions of the project."""
    return frozenset(
        name for path in (ROOT / "tests").rglob("test_*.py") for name in _FUNCTION.findall(path.read_text())
    )


def test_the_pages_state_every_rule_once() -> None:
    stated = [rule for name in PAGES for rule in _STATED.findall(page(name))]
    assert sorted(stated) == sorted(RULES)


def test_every_rule_is_named_by_a_test() -> None:
    names = names_of_tests()
    unnamed = sorted(rule for rule in RULES if not any(f"_{rule.lower()}_" in name for name in names))
    assert not unnamed, f"no test is named test_<rule>_… for {unnamed}"


@pytest.mark.parametrize("name", PAGES)
def test_what_the_pages_name_exists(name: str) -> None:
    text, names = page(name), names_of_tests()
    assert set(_NAMED.findall(text)) - names == set()
    gone = [
        target
        for target in _LINKED.findall(text)
        if not (ROOT / "docs" / "protocols" / target).resolve().exists()
    ]
    assert gone == []


@pytest.mark.parametrize("name", PAGES)
def test_the_table_of_tests_has_a_line_for_each_rule(name: str) -> None:
    rows = dict(re.findall(r"^\| ([LTCPD]\d) \| (.*) \|$", page(name), re.MULTILINE))
    assert set(rows) == set(_STATED.findall(page(name)))
    for rule, held in rows.items():
        assert f"`test_{rule.lower()}_" in held, f"{rule} is held by no test of its name"
