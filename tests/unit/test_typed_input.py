"""What `produce` reads at a terminal, and values one per line."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest

from archiver.cli.produce import (
    TERMINAL_LINE_BYTES_MAX,
    InputFormat,
    input_format,
    terminal_hint,
    uncut_by_terminal,
)
from archiver.runtime.errors import InvalidInput
from intake.inputs import InputPosition, read_lines
from intake.record_json import Input

LIMIT = 100


def read(data: bytes, cut_off: bool = False, place: InputPosition | None = None) -> Iterator[Input]:
    return read_lines(io.BytesIO(data), "t", LIMIT, place or InputPosition(), lambda: cut_off)


@pytest.mark.parametrize(
    ("form", "text", "base64", "terminal", "chosen"),
    [
        (None, False, False, True, InputFormat.LINES),
        (None, False, False, False, InputFormat.JSONL),
        (None, True, False, True, InputFormat.JSONL),
        (None, False, True, True, InputFormat.JSONL),
        (None, True, False, False, InputFormat.JSONL),
        (None, False, True, False, InputFormat.JSONL),
        (InputFormat.JSONL, False, False, True, InputFormat.JSONL),
        (InputFormat.JSONL, True, False, True, InputFormat.JSONL),
        (InputFormat.LINES, False, False, False, InputFormat.LINES),
        (InputFormat.DELIMITED, False, False, True, InputFormat.DELIMITED),
        (InputFormat.PARQUET, False, False, False, InputFormat.PARQUET),
    ],
)
def test_the_options_precede_the_terminal(
    form: InputFormat | None, text: bool, base64: bool, terminal: bool, chosen: InputFormat
) -> None:
    assert input_format(form, "t", text, base64, terminal) is chosen


@pytest.mark.parametrize(
    ("form", "topic", "text", "base64", "why"),
    [
        (None, "t", True, True, "--text and --base64 exclude each other"),
        (InputFormat.LINES, "t", True, False, "--text is for JSON lines; the values of lines input"),
        (InputFormat.DELIMITED, "t", False, True, "--base64 is for JSON lines; the values of delimited"),
        (InputFormat.LINES, None, False, False, "lines are values alone: name their topic with --topic$"),
        (None, None, False, False, "name their topic with --topic; for JSON lines, give --text or --base64$"),
    ],
)
def test_contradictions_are_refused(
    form: InputFormat | None, topic: str | None, text: bool, base64: bool, why: str
) -> None:
    with pytest.raises(InvalidInput, match=why):
        input_format(form, topic, text, base64, True)


@pytest.mark.parametrize(
    ("form", "text", "said"),
    [
        (
            InputFormat.LINES,
            False,
            "type one value per line for topic t; --text or --base64 read JSON lines. ",
        ),
        (InputFormat.JSONL, False, "type JSON lines, bytes as base64. "),
        (InputFormat.JSONL, True, "type JSON lines, bytes as text. "),
        (InputFormat.DELIMITED, False, "type delimited input. "),
    ],
)
def test_the_hint_says_what_is_expected(form: InputFormat, text: bool, said: str) -> None:
    assert terminal_hint(form, "t", text) == f"{said}Ctrl-D ends the input, Ctrl-C stops"


def test_each_line_is_a_value() -> None:
    place = InputPosition()
    data = '\ufeffa\r\n\n {"value": 1}\n\tä\n'.encode() + b"x" * LIMIT + b"\nlast"
    found = list(read(data, place=place))
    assert [(item.where, item.record.value) for item in found] == [
        ("line 1", "\ufeffa\r".encode()),
        ("line 3", b' {"value": 1}'),
        ("line 4", "\tä".encode()),
        ("line 5", b"x" * LIMIT),
        ("line 6", b"last"),
    ]
    assert {(item.topic, item.partition, item.record.key, item.record.headers) for item in found} == {
        ("t", None, None, ())
    }
    assert (place.number, place.position) == (6, len(data))


def test_half_a_line_is_no_value() -> None:
    assert [item.record.value for item in read(b"one\ntw", cut_off=True)] == [b"one"]
    assert [item.record.value for item in read(b"one\ntwo\n", cut_off=True)] == [b"one", b"two"]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"a\nb\xff\n", r"^line 2: this is no UTF-8 text \(byte 1\)$"),
        (b"x" * (LIMIT + 1) + b"\n", "^line 1: longer than intake.record_bytes_max = 100 bytes$"),
        (b"x" * 10_000, "^line 1: longer than"),
    ],
)
def test_lines_that_are_refused(data: bytes, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        list(read(data))


def test_a_line_that_a_terminal_may_have_cut_is_refused() -> None:
    def lines(length: int) -> Iterator[Input]:
        data = b"a\n" + b"x" * length + b"\n"
        return uncut_by_terminal(read_lines(io.BytesIO(data), "t", 10_000, InputPosition()))

    assert len(list(lines(TERMINAL_LINE_BYTES_MAX - 1))) == 2
    found = lines(TERMINAL_LINE_BYTES_MAX)
    assert next(found).record.value == b"a"
    with pytest.raises(InvalidInput, match=r"^line 2: a terminal cuts lines"):
        next(found)
