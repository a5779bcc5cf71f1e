"""docs/glossary.md: each term has standard terms, stored names are explained, and no headword is a private
word."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "glossary.md"
KEPT = ("intake file", "archive", "refine", "ledger", "watermark", "epoch", "checkpoint")
"""Terms of stored formats and of the public interface that keep their names."""
PRIVATE = re.compile(
    r"\b(?:whoever|whatever|whichever|nobody|somebody|anybody|told|untold|anew|besides?|meanwhile|hears|look"
    r"|wanted|mend(?:ed)?|stray|condemn(?:ed)?|witness|shelf|shelves|pin|foreign|adopt|settle|grace)\b",
    re.IGNORECASE,
)


def rows(text: str) -> list[tuple[str, str, list[str]]]:
    """Section, and term and other cells of each row."""
    found = []
    section = ""
    for line in text.splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif line.startswith("| ") and not line.startswith(("| term ", "| stored name ")):
            term, *rest = (cell.strip() for cell in line.strip("|").split("|"))
            found.append((section, term, rest))
    return found


ROWS = rows(PAGE.read_text(encoding="utf-8"))
TERMS = {term: rest for section, term, rest in ROWS if section != "Stored names"}
STORED = {term: rest for section, term, rest in ROWS if section == "Stored names"}


def test_every_term_has_a_meaning_and_a_standard_term() -> None:
    assert len(TERMS) > 80
    assert [term for term, rest in TERMS.items() if len(rest) != 2 or not all(rest)] == []


def test_terms_that_keep_their_names_are_there() -> None:
    assert [term for term in KEPT if term not in TERMS] == []


def test_no_term_stands_twice() -> None:
    names = [term for _, term, _ in ROWS]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_no_headword_is_a_private_word() -> None:
    assert [term for term in TERMS if PRIVATE.search(term)] == []


def test_private_stored_names_lead_to_a_term() -> None:
    """A stored name with a private word stays readable: its row names the term, which has a row too."""
    assert STORED
    for name, (_, term) in STORED.items():
        assert any(word in term for word in TERMS), f"{name}: {term} is no term"
