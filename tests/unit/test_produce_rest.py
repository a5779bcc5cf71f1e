"""What `produce` reports of the unread input after a bad record, and what a command reports after Ctrl-C."""

from __future__ import annotations

import io
import re

import pytest

from archiver.cli import app
from archiver.cli.produce import with_rest_unread
from archiver.runtime.errors import InvalidInput
from intake.inputs import InputFormat, read_inputs

GOOD = b'{"value": null}\n'


def failed(data: bytes, form: InputFormat = "jsonl", *, text: bool = False) -> str:
    read = with_rest_unread(read_inputs(io.BytesIO(data), form, "t", text, 1000), text)
    with pytest.raises(InvalidInput) as refused:
        list(read)
    return str(refused.value)


@pytest.mark.parametrize("rest", [b"", GOOD])
def test_behind_a_bad_line_it_says_that_nothing_was_read(rest: bytes) -> None:
    why = failed(GOOD + b'{"value": 1}\n' + rest)
    assert re.fullmatch("line 2: 'value' is a number; .*; nothing after it was read", why)
    assert "--format" not in why


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"plain line", "this is no JSON: "),
        (b"42", "a record is a JSON object, this is a number"),
        (b'{"carrier": "AA"}', "unknown field 'carrier'; "),
    ],
)
@pytest.mark.parametrize("text", [False, True])
def test_a_line_that_may_be_a_value_names_the_format_of_values(line: bytes, reason: str, text: bool) -> None:
    why = failed(line + b"\n", text=text)
    assert why.startswith(f"line 1: {reason}")
    instead = " instead of --text" if text else ""
    assert why.endswith(f"; if each line is a value, give --format lines{instead}; nothing after it was read")


def test_behind_a_bad_record_it_says_that_nothing_was_read() -> None:
    assert re.fullmatch("record 0 .*; nothing after it was read", failed(b"\x05ab", "delimited"))


@pytest.mark.parametrize(
    ("command", "reported"),
    [
        ("produce", "interrupted; acknowledged records are safe"),
        (
            "archive",
            "interrupted; nothing is lost: the next round completes what this one had not finished",
        ),
        ("audit", "interrupted; nothing was changed"),
        ("consume", "interrupted"),
        ("watch", "interrupted"),
        ("topics", "interrupted"),
    ],
)
def test_ctrl_c_says_what_is_true_of_the_command(
    command: str, reported: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(app, "app", interrupted)
    assert app.run([command, "--topic", "orders"]) == 130
    assert capsys.readouterr().err.strip() == reported
