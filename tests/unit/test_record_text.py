"""The form of records for people: what it shows, and that no record can imitate another one or command the
terminal."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archiver.cli.options import Output
from archiver.cli.record_text import RecordForm, record_form, record_text
from archiver.runtime.errors import InvalidInput
from archiver.stream.records import StreamRecord

TEXT, BASE64, AS_TEXT = RecordForm.TEXT, RecordForm.JSON_BASE64, RecordForm.JSON_TEXT


def record(
    value: bytes | None = b"v",
    key: bytes | None = None,
    headers: tuple[tuple[str, bytes | None], ...] = (),
    **others: Any,
) -> StreamRecord:
    fields: dict[str, Any] = {
        "topic": "orders",
        "partition": 3,
        "offset": 41,
        "timestamp_us": 1_700_000_000_000_001,
        "ingest_us": 1,
        "batch_start": 41,
        "source": "intake",
    }
    return StreamRecord(key=key, value=value, headers=headers, **{**fields, **others})


@pytest.mark.parametrize(
    ("output", "text", "base64", "terminal", "form"),
    [
        (None, False, False, True, TEXT),
        (None, False, False, False, BASE64),
        (None, False, True, True, BASE64),
        (None, False, True, False, BASE64),
        (None, True, False, True, AS_TEXT),
        (None, True, False, False, AS_TEXT),
        (Output.TEXT, False, False, False, TEXT),
        (Output.TEXT, False, False, True, TEXT),
        (Output.JSON, False, False, True, BASE64),
        (Output.JSON, True, False, True, AS_TEXT),
        (Output.JSON, False, True, True, BASE64),
    ],
)
def test_the_options_precede_the_terminal(
    output: Output | None, text: bool, base64: bool, terminal: bool, form: RecordForm
) -> None:
    assert record_form(output, text, base64, terminal) is form


@pytest.mark.parametrize(
    ("output", "text", "base64", "why"),
    [
        (None, True, True, "exclude each other"),
        (Output.TEXT, True, False, "--text is for JSON lines"),
        (Output.TEXT, False, True, "--base64 is for JSON lines"),
    ],
)
def test_contradictions_are_refused(output: Output | None, text: bool, base64: bool, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        record_form(output, text, base64, True)


def test_all_parts_of_a_record() -> None:
    headers = (("trace", b"17"), ("none", None), ("empty", b""), ("odd", b"\xff"))
    assert record_text(record(b"one\ntwo \xc3\xa4", b"ada", headers)).splitlines() == [
        "orders:3:41  2023-11-14T22:13:20.000001Z",
        "  key             ada",
        "  header          trace: 17",
        "  header (null)   none",
        "  header (empty)  empty",
        "  header (base64) odd: /w==",
        "  value           one",
        "                  two ä",
    ]


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (None, "  value (null)"),
        (b"", "  value (empty)"),
        (b"\xff\x00", "  value (base64)  /wA="),
        (b"(null)", "  value           (null)"),
        (b" ", "  value            "),
    ],
)
def test_the_label_says_what_a_value_is(value: bytes | None, line: str) -> None:
    assert record_text(record(value, timestamp_us=None)).splitlines() == [
        "orders:3:41  no timestamp",
        line,
    ]


def test_long_parts_are_cut_with_a_mark() -> None:
    long = record(b"\xc3\xa4" * 5000, b"\xff" * 5000, tuple((f"{n}", b"x") for n in range(30)))
    lines = record_text(long).splitlines()
    assert lines[2] == "  (cut: 750 of 5,000 bytes; --full shows all)"
    assert "  (10 more headers; --full shows all)" in lines
    assert lines[-2] == "  value           " + "ä" * 1000
    assert lines[-1] == "  (cut: 1,000 of 5,000 characters; --full shows all)"
    whole = record_text(long, full=True)
    assert "cut" not in whole
    assert whole.count("header") == 30
    assert whole.endswith("ä" * 5000)
    many = record_text(record(b"\n".join(b"%d" % number for number in range(100)))).splitlines()
    assert len(many) == 22
    assert many[-1].startswith("  (cut: 49 of 289 characters")
    (name,) = record_text(record(headers=(("n" * 5000, None),))).splitlines()[1:2]
    assert name == "  header (null)   " + "n" * 100 + "…"


def test_what_fits_exactly_is_not_cut() -> None:
    assert "cut" not in record_text(record(b"x" * 1000, b"\xff" * 750))
    assert "cut" not in record_text(record(b"\n" * 19))
    assert "more" not in record_text(record(headers=(("a", b""),) * 20))


def test_a_decoded_side_replaces_its_bytes_unless_it_is_an_error() -> None:
    shown = record_text(record(b"\xff", b"k"), {"key": None, "value": {"id": "1", "note": "\u202eä"}})
    assert shown.splitlines()[1:] == [
        "  key             k",
        '  value (decoded) {"id": "1", "note": "\\u202eä"}',
    ]
    failed = record_text(record(b"\xff"), {"key": None, "value": {"error": "no order"}})
    assert failed.splitlines()[1:] == ['  value (decoded) {"error": "no order"}', "  value (base64)  /w=="]
    assert record_text(record(None), {"key": None, "value": None}).endswith("value (null)")


HOSTILE = "\x1b[31m\x9b2J\x07\r\b\t\x00\u202e\u2066\u200b\u2028\ufeff\ue000"


def test_terminal_controls_are_escaped_everywhere() -> None:
    bytes_ = HOSTILE.encode()
    shown = record_text(record(bytes_, bytes_, ((HOSTILE + "\n", bytes_),), topic="a" + HOSTILE + "\n"))
    assert all(line.isprintable() for line in shown.split("\n"))
    assert len(shown.split("\n")) == 4
    assert (
        shown.count("\\u001b[31m\\u009b2J\\u0007\\r\\b\\t\\u0000\\u202e\\u2066\\u200b\\u2028\\ufeff\\ue000")
        == 5
    )
    decoded = record_text(record(b""), {"value": {HOSTILE: HOSTILE}})
    assert all(line.isprintable() for line in decoded.split("\n"))


@given(
    st.one_of(st.binary(max_size=60), st.text(max_size=60).map(lambda text: text.encode("utf-8", "replace"))),
    st.text(max_size=20),
    st.booleans(),
)
def test_only_the_first_line_begins_at_the_left_edge(value: bytes, name: str, full: bool) -> None:
    imitation = b"x\norders:3:42  2023-11-14T22:13:20.000001Z\n  value           "
    shown = record_text(record(imitation + value, value, ((name, value),)), full=full)
    first, *others = shown.split("\n")
    assert re.fullmatch(r"orders:3:41  2023-\S+Z", first)
    assert all(line.startswith("  ") for line in others)
    labels = [line for line in others if not line.startswith(" " * 18)]
    assert all(re.match(r"  (key|header|value|\(cut: )", line) for line in labels)
    assert sum(line.startswith("  value") for line in labels) == 1
