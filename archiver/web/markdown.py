"""Reads the Markdown of our own pages: headings, paragraphs, lists, tables, code, emphasis and links.

It gives values and no HTML, so a template escapes every text of it. Reading takes linear time. What is not
one of these constructs stays text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

_HEADING: Final = re.compile(r"(#{1,6}) (.*)")
_ANCHOR: Final = re.compile(r'<a id="([a-z0-9-]+)"></a>')
_ITEM: Final = re.compile(r"(?:([-*])|[0-9]{1,9}\.) (.*)")
_DIVIDER: Final = re.compile(r"\|[-:| ]*\|")
_INLINE: Final = re.compile(
    r"(?P<code>`[^`]+`)|(?P<link>\[[^\[\]]*\]\([^()\s]*\))|(?P<strong>\*\*)|(?P<em>\*)"
)
_FENCE: Final = "```"


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of text."""

    text: str
    code: bool = False
    strong: bool = False
    em: bool = False
    target: str = ""
    """Of a link; empty: no link."""


Spans = tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """A paragraph, a list, a table, or lines of code."""

    kind: Literal["paragraph", "list", "numbered", "table", "code"]
    spans: Spans = ()
    """Of a paragraph; the lines of code are one text."""
    items: tuple[Spans, ...] = ()
    """Of a list; the heads of a table."""
    rows: tuple[tuple[Spans, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, and what follows it up to the next one."""

    heading: str
    level: int
    anchor: str
    """As GitHub makes it from the heading."""
    aliases: tuple[str, ...]
    """Former anchors."""
    text: str
    """Markdown."""


def sections(text: str) -> list[Section]:
    """The sections of a page. Lines before the first heading are dropped."""
    found: list[tuple[Section, list[str]]] = []
    aliases: list[str] = []
    is_code = False
    for line in text.splitlines():
        is_code ^= line.startswith(_FENCE)
        heading = None if is_code else _HEADING.fullmatch(line)
        if heading is not None:
            name = heading[2].strip()
            section = Section(name, len(heading[1]), anchor_of(name), tuple(aliases), "")
            found.append((section, []))
            aliases = []
        elif not is_code and (anchor := _ANCHOR.fullmatch(line.strip())) is not None:
            # It stands before the heading that it is of.
            aliases.append(anchor[1])
        elif found:
            found[-1][1].append(line)
    return [replace(section, text="\n".join(lines).strip("\n")) for section, lines in found]


def anchor_of(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    kept = (letter for letter in heading.lower() if letter.isalnum() or letter in " -_")
    return "".join(kept).replace(" ", "-")


def blocks(text: str) -> list[Block]:
    """The blocks of a section."""
    found: list[Block] = []
    lines = text.splitlines()
    place = 0
    while place < len(lines):
        line = lines[place]
        if not line.strip():
            place += 1
        elif line.startswith(_FENCE):
            end = next(
                (at for at in range(place + 1, len(lines)) if lines[at].startswith(_FENCE)), len(lines)
            )
            found.append(Block("code", (Span("\n".join(lines[place + 1 : end])),)))
            place = end + 1
        else:
            end = place + 1
            while end < len(lines) and lines[end].strip() and not lines[end].startswith(_FENCE):
                end += 1
            found.extend(_together(lines[place:end]))
            place = end
    return found


def _together(lines: Sequence[str]) -> Iterator[Block]:
    """The blocks of lines without an empty one between them."""
    if lines[0].startswith("|") and len(lines) > 1 and _DIVIDER.fullmatch(lines[1].strip()):
        yield Block("table", items=_cells(lines[0]), rows=tuple(_cells(line) for line in lines[2:]))
        return
    first = _ITEM.fullmatch(lines[0])
    if first is None:
        yield Block("paragraph", inline(" ".join(line.strip() for line in lines)))
        return
    items: list[list[str]] = []
    for line in lines:
        item = _ITEM.fullmatch(line)
        if item is not None:
            items.append([item[2]])
        else:
            # The further lines of an item.
            items[-1].append(line.strip())
    yield Block(
        "numbered" if first[1] is None else "list", items=tuple(inline(" ".join(one)) for one in items)
    )


def _cells(line: str) -> tuple[Spans, ...]:
    return tuple(inline(cell.strip()) for cell in line.strip().strip("|").split("|"))


def plain(spans: Spans) -> str:
    """The text without emphasis and links."""
    return "".join(span.text for span in spans)


def inline(text: str) -> Spans:
    """The pieces of a paragraph, an item or a cell."""
    return tuple(_inline(text, Span("")))


def _inline(text: str, style: Span) -> Iterator[Span]:
    at = 0
    for match in _INLINE.finditer(text):
        if match.start() > at:
            yield replace(style, text=text[at : match.start()])
        at = match.end()
        kind, found = match.lastgroup, match[0]
        if kind == "code":
            yield replace(style, text=found[1:-1], code=True)
        elif kind == "strong":
            style = replace(style, strong=not style.strong)
        elif kind == "em":
            style = replace(style, em=not style.em)
        else:
            label, _, target = found[1:-1].partition("](")
            # A label has no brackets, so no link is inside of another.
            yield from _inline(label, replace(style, target=target))
    if at < len(text):
        yield replace(style, text=text[at:])
