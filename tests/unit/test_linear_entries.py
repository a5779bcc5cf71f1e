"""Code that reads remote text takes time in proportion to its length, also for the worst text. Excerpts of it
are bounded and hide secrets."""

from __future__ import annotations

import base64
import io
import json
import logging
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.exceptions import HTTPException

from archiver.events import codec
from archiver.objects.path_normalization import tail
from archiver.runtime import redaction
from archiver.runtime.errors import ArchiverError, InvalidInput
from archiver.runtime.logging import TEXT_MAX, TRACEBACK_MAX, JsonLines, PlainLines
from archiver.runtime.redaction import EXCERPT_MAX, MESSAGE_MAX, Redactor
from archiver.runtime.text import printable_text
from archiver.schema.protobuf.column_names import column_names
from archiver.schema.protobuf.unknown_fields import Extra, learned
from archiver.status.journal import Cycle, Journal
from archiver.web import page
from archiver.web.app import _host_of
from archiver.web.bodies import BodyField, parse_body
from archiver.web.error_responses import error_document
from archiver.web.page import visible
from intake.inputs import read_inputs, read_messages
from intake.record_json import parse_record_json
from reconcile.snapshot.manifests import records
from tests.support.growth import MEGABYTE, assert_linear

SECRET = "correct-horse-battery-staple"
CODED = base64.b64encode(SECRET.encode()).decode()
REDACTOR = Redactor([SECRET, "aaaaaaaab", "https://me:hidden-word@example.com/"])
Work = Callable[[str], object]


def repeated(text: str, start: str = "", end: str = "") -> Callable[[int], str]:
    return lambda length: start + text * (length // len(text)) + end


def numbered(form: str, between: str, start: str, end: str) -> Callable[[int], str]:
    """As many different fields as fit."""
    width = len(form.format(10**6)) + len(between)
    return lambda length: (
        start + between.join(form.format(10**6 + number) for number in range(length // width)) + end
    )


def refused(work: Work) -> Work:
    """The work, where an error for the text counts as a result."""

    def run(text: str) -> object:
        try:
            return work(text)
        except (ArchiverError, HTTPException, ValueError) as error:
            return str(error)

    return run


def logged(form: logging.Formatter) -> Work:
    def run(text: str) -> str:
        try:
            raise ValueError(text)
        except ValueError:
            record = logging.LogRecord("x", logging.ERROR, __file__, 1, "asked %s", (text,), sys.exc_info())
        record.url = text
        record.rows = [text, {"a": text}]
        return form.format(record)

    return run


def one_record(text: str) -> object:
    return parse_record_json(text, "line 1", "t", False)


def lines(text: str) -> object:
    return list(read_inputs(io.BytesIO(text.encode()), "jsonl", "t", True, 1 << 22))


def delimited(text: str) -> object:
    return sum(1 for _ in read_inputs(io.BytesIO(text.encode("latin-1")), "delimited", "t", False, 1 << 22))


def messages(text: str) -> object:
    return sum(1 for _ in read_messages(io.BytesIO(text.encode("latin-1")), "t", 1 << 22))


URLS = (
    "a",
    "a://",
    "a://b:",
    "://",
    ":",
    "a://b:c@",
    "?password",
    "?password=",
    "a" * 8,
    SECRET[:-1],
    SECRET,
    CODED,
    "=",
    "A=",
    "%2f",
)
FIELDS = numbered('"k{}":1', ",", "{", "}")

ENTRIES: dict[str, tuple[Work, tuple[Callable[[int], str], ...]]] = {
    "redacted": (
        REDACTOR.redacted,
        (*map(repeated, URLS), repeated("b", "a://"), repeated("c", "a://b:"), repeated("QUJD", "", CODED)),
    ),
    "excerpt": (
        lambda text: REDACTOR.excerpt(text, len(text) // 2),
        (*map(repeated, URLS), repeated("c", "a://b:")),
    ),
    "secrets of an address": (
        lambda text: list(redaction._secret_parameters(text)),
        (repeated("?password"), repeated("password", "?"), repeated("?password="), repeated("?a=")),
    ),
    "a text that is shown": (printable_text, (repeated("\u202e"), repeated("a"))),
    "a line of the log": (logged(JsonLines()), (repeated("a://b:"), repeated("\u202e"), repeated("\n"))),
    "a line on a terminal": (logged(PlainLines()), (repeated("a://b:"), repeated("\u202e"))),
    "the Host header": (_host_of, (repeated("a"), repeated(":"), repeated("a:"), repeated(":", "["))),
    "a record": (
        refused(one_record),
        (
            FIELDS,
            lambda length: FIELDS(length).replace("}", ',"k1000000":1}'),
            numbered('["k{}","QQ=="]', ",", '{"value":null,"headers":[', "]}"),
            repeated("A", '{"value":"', '"}'),
            repeated("!", '{"value":"', '"}'),
            repeated("\\ud800", '{"value":"', '"}'),
            repeated("0", '{"value":null,"timestamp":"', '"}'),
            repeated("9", '{"value":null,"partition":', "}"),
            repeated("[", '{"value":'),
            repeated(" "),
            repeated("\\", '"'),
        ),
    ),
    "lines of records": (refused(lines), (repeated("\n"), repeated(" "), repeated('{"value":"a"}\n'))),
    "delimited values": (refused(delimited), (repeated("\0"), repeated("\1a"))),
    "messages of records": (refused(messages), (repeated("\0"), repeated("\x02\x32\0"))),
    "the body of a request of administration": (
        refused(lambda text: parse_body(text.encode(), {"topic": BodyField("text", "")})),
        (
            FIELDS,
            lambda length: FIELDS(length).replace("}", ',"k1000000":1}'),
            repeated("a", '{"topic":"', '"}'),
            repeated("["),
        ),
    ),
    "a control event": (
        refused(lambda text: codec.read(text.encode("latin-1"))),
        (repeated("\0", "\xc2\x01\xff\xff"), repeated("[", "\xc2\x01\xff\xff")),
    ),
    "an Avro file": (
        refused(lambda text: list(records(text.encode("latin-1"), "x"))),
        (repeated("\x02\x02a\0", "Obj\1"), repeated("\x80", "Obj\1"), repeated("\0", "Obj\1")),
    ),
    "a path in a table's metadata": (
        refused(lambda text: tail(text, "archive/1")),
        (
            repeated("/"),
            repeated("../"),
            repeated("archive/"),
            repeated("archive/1/"),
            repeated("%2f"),
            repeated("25", "%"),
        ),
    ),
    "names of columns": (lambda text: column_names(["a"] * (len(text) // 32), ()), (repeated("a"),)),
    "fields that a schema does not know": (
        lambda text: learned({}, [{((), number): Extra(0, False) for number in range(len(text) // 16)}] * 2),
        (repeated("a"),),
    ),
}


MANY_RECORDS = {"lines of records", "delimited values", "messages of records"}
"""A record can take one byte and costs some microseconds, so these texts are shorter."""
SHORTER = MEGABYTE // 32


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_is_linear_on_its_worst_text(name: str) -> None:
    work, texts = ENTRIES[name]
    for text_of in texts:
        assert_linear(work, text_of, SHORTER if name in MANY_RECORDS else MEGABYTE)


@pytest.mark.parametrize("work", [REDACTOR.redacted, lambda text: REDACTOR.excerpt(text, 10**9)])
def test_a_long_header_is_redacted_without_delay(work: Work) -> None:
    # Before the fix, 120 KB of a Host header held the interpreter for 31 s.
    assert_linear(work, repeated("a", "x:// "))


def test_a_doubled_field_is_named() -> None:
    with pytest.raises(InvalidInput, match="the field 'b' is there twice"):
        parse_record_json('{"a":1,"b":2,"c":3,"b":4,"a":5}', "line 1", "t", False)


@given(
    st.integers(0, 60),
    st.integers(1, 60),
    st.sampled_from([SECRET, CODED, f"x://me:{SECRET}@h", "x://me:not-known-before@h"]),
)
def test_no_cut_leaves_a_part_of_a_secret(before: int, length_max: int, written: str) -> None:
    text = " " * before + written + " " * 200
    shown = REDACTOR.excerpt(text, length_max).partition("…")[0]
    hidden = (
        "not-known-before"
        if "not-known" in written
        else written.partition("me:")[2].partition("@")[0] or written
    )
    assert not any(hidden[:size] in shown for size in range(3, len(hidden)))


@given(st.integers(1, 300), st.integers(1, 100))
def test_a_password_whose_end_is_cut_off_is_hidden(length: int, length_max: int) -> None:
    text = "x://me:" + "p" * length * 10 + "@h" + " " * 400
    assert "pp" not in REDACTOR.excerpt(text, length_max).partition("…")[0]


@given(st.text(max_size=300), st.integers(0, 100))
def test_an_excerpt_is_bounded(text: str, length_max: int) -> None:
    shown = Redactor().excerpt(text, length_max)
    assert len(shown) <= max(length_max + 40, len(text) + 3 * text.count("://"))
    if len(text) > length_max:
        assert shown.endswith(f"… ({len(text) - length_max:,} more characters)")


def test_a_log_line_is_bounded() -> None:
    for form in (JsonLines(), PlainLines()):
        line = logged(form)("x" * 10**6)
        assert len(str(line)) < 4 * TEXT_MAX + TRACEBACK_MAX + 10_000
        assert "ValueError: xxx" in str(line)


def test_messages_of_the_port_are_bounded_and_can_be_written() -> None:
    document = error_document("InvalidInput", "the Host 'a\ud800" + "b" * 10**6)
    message = document["error"]["message"]  # type: ignore[index]
    assert len(message) < MESSAGE_MAX + 100
    assert json.dumps(document, ensure_ascii=False).encode()


def test_the_page_cuts_no_secret_in_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_process", Redactor([SECRET]))
    shown = str(visible(" " * (page.TEXT_MAX - 10) + SECRET + " " * 1000))
    assert SECRET[:5] not in shown
    assert shown.endswith("more characters)")


def test_a_journal_keeps_excerpts() -> None:
    journal = Journal(10)
    journal.add(Cycle("tick", 0, 1.0, "wrong", "x" * 10**6, {"why": ["y" * 10**6]}))
    journal.checked("catalog local", "z" * 10**6, 0)
    kept = str((journal.cycles(), journal.checks()))
    assert len(kept) < 4 * MESSAGE_MAX


@pytest.mark.parametrize(
    "text",
    [
        '{"value":null,"' + "k" * 10**5 + '":1}',
        '{"value":null,"topic":"' + "k" * 10**5 + '"}',
        '{"value":null,"timestamp":"' + "k" * 10**5 + '"}',
        '{"value":null,"headers":[["' + "k" * 10**5 + '",1]]}',
        '{"value":null,"headers":[["' + "\\ud800" * 10**5 + '",""]]}',
        '{"a":1,"' + "k" * 10**5 + '":1,"' + "k" * 10**5 + '":1}',
        "1" * 10**5,
        "[" * 10**5,
    ],
)
def test_a_refusal_repeats_little_of_a_record(text: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        list(read_inputs(io.BytesIO(text.encode()), "jsonl", "t", False, 1 << 20))
    assert len(str(refusal.value)) < 10 * EXCERPT_MAX
