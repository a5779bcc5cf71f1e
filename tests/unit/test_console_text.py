"""Texts of the console's pages: addresses, bytes and messages are shown harmlessly and within bounds."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest

from archiver.schema.protobuf.error_causes import CAUSES
from archiver.web import page
from archiver.web.console import as_json, cause_words, in_file, json_line, line, shown, time, without_nulls
from archiver.web.page import link, style


def side(content: bytes, *, cut: bool = False, size: int | None = None) -> dict[str, object]:
    try:
        text: str | None = content.decode()
    except UnicodeDecodeError:
        text = None
    return {
        "base64": base64.b64encode(content).decode(),
        "text": text,
        "bytes": len(content) if size is None else size,
        "cut": cut,
    }


def test_parts_of_an_address_are_quoted_whole() -> None:
    assert link("/topics/{}", "a.b-c_1") == "/topics/a.b-c_1"
    assert link("/topics/{}", "../x?y#z&<") == "/topics/..%2Fx%3Fy%23z%26%3C"
    assert link("/topics/{}/messages", "a", partition=0, from_="latest", key="") == (
        "/topics/a/messages?partition=0&from=latest"
    )
    assert link("/group", group="a&b=c\r\n") == "/group?group=a%26b%3Dc%0D%0A"


def test_bytes_are_text_or_base64() -> None:
    assert "null" in shown(None)
    assert "empty" in shown(side(b""))
    assert shown(side(b"<b>&")) == "<code>&lt;b&gt;&amp;</code>"
    assert "//8=" in shown(side(b"\xff\xff"))
    assert "base64" in shown(side(b"\xff\xff"))


def test_binary_data_that_is_utf_8_by_chance_is_base64() -> None:
    assert "base64" in shown(side(b"\x08\x01\x12\x03ada"))
    assert shown(side(b"a\tb\r\n")).startswith("<code>a")


def test_settings_without_a_value_are_left_out() -> None:
    assert without_nulls({"a": None, "b": [{"c": None, "d": 0}], "e": ""}) == {"b": [{"d": 0}], "e": ""}


def test_settings_have_their_units() -> None:
    found = in_file({"retention": 7200.0, "archive": {"max_bytes": 2**20, "min_bytes": -1, "idle_max": 0.2}})
    assert found == {
        "retention": "2h",
        "archive": {"max_bytes": "1MiB", "min_bytes": -1, "idle_max": "200ms"},
    }
    assert in_file({"partitions": 4, "a": [True, "b"]}) == {"partitions": 4, "a": [True, "b"]}


def test_a_time_is_that_of_all_pages_and_keeps_its_fraction() -> None:
    found = time("2026-11-29T08:58:54.428898Z")
    assert re.sub("<.*?>", "", found) == "2026-11-29 08:58:54 UTC"
    assert 'datetime="2026-11-29T08:58:54.428898Z"' in found
    assert time(None, "never & <b>") == "never &amp; &lt;b&gt;"


def test_every_cause_has_words() -> None:
    assert cause_words("value:malformed", 8) == "8 values that are no messages of the type"
    assert cause_words("key:malformed", 1) == "1 key that is no message of the type"
    for cause in CAUSES:
        assert "_" not in cause_words(f"value:{cause}", 2)
        assert cause_words(f"value:{cause}", 2) != f"2 values {cause}", "it has words of its own"


def test_the_line_of_a_message_is_one_line_and_short() -> None:
    found = line(side(b"<b>\n" + b"x" * 3000))
    assert found.startswith("<code>&lt;b&gt;\\nxxx")
    assert found.endswith("…</code>")
    assert len(found) < 300
    assert line(side(b"ab")) == "<code>ab</code>"
    assert "//8=" in line(side(b"\xff\xff"))
    assert "null" in line(None)
    assert json_line({"a": "\n" + "\u202e"}) == "<code>{&#34;a&#34;: &#34;\\n\\u202e&#34;}</code>"


@pytest.mark.parametrize("character", ["\x1b", "\u202e", "\u200b", "\x00", "\r"])
def test_characters_that_are_not_seen_are_escaped(character: str) -> None:
    assert character not in shown(side(f"a{character}b".encode()))
    assert character not in as_json({"a": f"{character}b"})


def test_what_is_cut_says_so() -> None:
    assert "cut, 10,000 bytes in all" in shown(side(b"x" * 10_000), 100)
    assert shown(side(b"x" * 10_000), 100).count("x") == 100
    assert "cut, 99 bytes in all" in shown(side(b"x" * 10, cut=True, size=99))
    assert "(cut)" in as_json({"a": "x" * 1000}, 50)
    assert "(cut)" not in as_json({"a": 1}, 50)


def test_line_ends_of_a_text_are_kept() -> None:
    assert "a\nb" in shown(side(b"a\nb"))


def test_the_style_is_that_of_the_overview_and_more() -> None:
    assert "prefers-color-scheme: dark" in style()
    assert "nav {" in style()


def test_numbers_have_the_right_noun() -> None:
    nouns = (
        "rows|bytes|records|offsets|topics|files|partitions|messages|rounds|groups|members|findings|workers"
    )
    # `counted` writes "1 row"; `count` leaves the noun to the template, which would say "1 rows".
    wrong = re.compile(rf"\| ?(count|length) ?\}}\}}(</\w+>)? (\w+ )?({nouns})\b")
    folder = Path(page.__file__).parent / "templates"
    templates = list(folder.rglob("*.html"))
    assert len(templates) > 20
    assert {one.name: found[0] for one in templates if (found := wrong.search(one.read_text()))} == {}
    assert wrong.search("{{ topic.rows | count }} rows")
