"""The runbook as a page: its Markdown is read whole, in linear time, and any text is harmless."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from archiver.status.advice import ANCHORS, RUNBOOK
from archiver.web.console import _template
from archiver.web.markdown import Block, Span, anchor_of, blocks, inline, plain, sections
from archiver.web.page import link
from archiver.web.runbook import COPY, page_of, runbook
from tests.support.growth import assert_linear
from tests.support.process.pages import Seen

ROOT = Path(__file__).resolve().parents[2]


def page(document: dict[str, Any]) -> str:
    html: str = _template("runbook.html").render(
        document=document, asked={}, path="/runbook", cluster="c", now_us=0, refresh=None, link=link
    )
    return html


def test_the_copy_in_the_package_is_the_runbook() -> None:
    copy = ROOT / "archiver" / "web" / COPY
    assert copy.read_bytes() == (ROOT / RUNBOOK).read_bytes(), "run make docs"


def test_every_anchor_and_every_link_leads_somewhere() -> None:
    html = page(runbook())
    seen = Seen(html)
    ids = re.findall(r'id="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    assert set(ANCHORS.values()) <= set(ids)
    inside = {address for address in seen.links if address.startswith("#")} - {"#content"}
    assert len(inside) > 30
    assert {address[1:] for address in inside} <= set(ids)
    for address in seen.links:
        assert address.startswith(("#", "/")), address


def test_nothing_of_the_markdown_is_left() -> None:
    document = runbook()
    text = "\n".join(
        span.text
        for section in document["sections"]
        for block in blocks(section["markdown"])
        for spans in (block.spans, *block.items, *(cell for row in block.rows for cell in row))
        for span in spans
        if not span.code and block.kind != "code"
    )
    assert "](" not in text
    assert "**" not in text
    assert "`" not in text
    assert not re.search(r"^(#|\||[-*] |[0-9]+\. )", text, re.MULTILINE)
    assert "<a id" not in text


def test_nothing_of_the_text_is_lost() -> None:
    source = (ROOT / RUNBOOK).read_text(encoding="utf-8")
    shown = unescape(re.sub(r"<[^>]*>", " ", page(runbook())))
    words = re.findall(r"[A-Za-z]{3,}", re.sub(r"\]\([^)]*\)|<a id[^>]*>|```sql", " ", source))
    known = set(re.findall(r"[A-Za-z]{3,}", shown))
    assert set(words) <= known
    assert len(re.findall(r"[A-Za-z]{3,}", shown)) >= len(words)


def test_tables_lists_and_code() -> None:
    found = blocks(
        "| a | *b* |\n|---|---:|\n| `x` | y |\n\n1. one\n   more\n2. two\n\n- three\n\n```sql\nSELECT 1\n```\nend"
    )
    assert [one.kind for one in found] == ["table", "numbered", "list", "code", "paragraph"]
    table, numbered = found[0], found[1]
    assert [plain(one) for one in table.items] == ["a", "b"]
    assert table.rows == (((Span("x", code=True),), (Span("y"),)),)
    assert [plain(one) for one in numbered.items] == ["one more", "two"]
    assert found[3].spans == (Span("SELECT 1"),)


def test_emphasis_and_links() -> None:
    assert inline("a **b `c`** *d* [e `f`](#g)") == (
        Span("a "),
        Span("b ", strong=True),
        Span("c", code=True, strong=True),
        Span(" "),
        Span("d", em=True),
        Span(" "),
        Span("e ", target="#g"),
        Span("f", code=True, target="#g"),
    )
    assert inline("`[a](b)` and [c]") == (Span("[a](b)", code=True), Span(" and [c]"))


def test_a_page_is_cut_at_its_headings() -> None:
    found = sections(
        'dropped\n# A page\nintro\n<a id="old-name"></a>\n\n## What fails, what you do\ntext\n```\n# code\n```'
    )
    assert [(one.heading, one.anchor, one.aliases) for one in found] == [
        ("A page", "a-page", ()),
        ("What fails, what you do", "what-fails-what-you-do", ("old-name",)),
    ]
    assert found[1].text == "text\n```\n# code\n```"
    assert anchor_of("Finding table missing") == "finding-table-missing"


def test_links_to_other_pages_are_named_and_lead_nowhere() -> None:
    assert page_of("../http.md#read") == "docs/http.md"
    assert page_of("backup.md") == "docs/operations/backup.md"
    assert page_of("#here") == ""
    html = page(one_section("see [the backup](backup.md#x), [http.md](../http.md), [all](#all)"))
    assert 'the backup <span class="soft">(docs/operations/backup.md)</span>' in html
    assert "backup.md#x" not in html
    assert '<a href="#all">all</a>' in html


def one_section(text: str) -> dict[str, Any]:
    section = {"heading": "H", "anchor": "h", "aliases": [], "markdown": text}
    return {"title": "H", "source": "s", "sections": [section, section | {"anchor": "i"}]}


HOSTILE = [
    "<script>alert(1)</script>",
    "[x](javascript:alert(1))",
    '[x](#"onclick=alert(1))',
    "[<img src=x>](#a)",
    "[x](//evil)",
    "[x](https://evil)",
    "`<script>`",
    "**<b>**",
    "| <script> |\n|---|\n| <script> |",
    "- <script>",
    '1. "><svg onload=1>',
    "```\n</code><script>\n```",
    "\u202egnp\u200b\x1b",
    "{{ 7 * 7 }}{% raw %}",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_shown_and_does_nothing(text: str) -> None:
    seen = Seen(page(one_section(text)))
    assert not set(seen.tags) & {"script", "img", "svg", "b"}
    assert seen.handlers == []
    for address in seen.links:
        assert address.startswith(("#", "/")), address
        assert not address.startswith("//"), address


@pytest.mark.parametrize(
    "piece",
    [
        "[",
        "]",
        "[](",
        "[a](b",
        "`",
        "``",
        "*",
        "**",
        "***",
        "|",
        "| ",
        "- a\n",
        "- ",
        "```\n",
        "#",
        "# a\n",
        "a\n",
        "\n",
        "<a id=",
    ],
)
def test_reading_is_linear(piece: str) -> None:
    def read(text: str) -> None:
        for section in sections(f"# a\n{text}"):
            blocks(section.text)

    assert_linear(read, lambda length: piece * (length // len(piece)), 2**17)


def test_values_and_no_html() -> None:
    (found,) = blocks("<b>&amp;</b>")
    assert found == Block("paragraph", (Span("<b>&amp;</b>"),))
