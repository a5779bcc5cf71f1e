"""What `produce` reports of the unread input after a bad record, and what a command reports after Ctrl-C."""

from __future__ import annotations

import io

import pytest

from archiver.cli import app
from archiver.cli.produce import with_rest_unread
from archiver.runtime.errors import InvalidInput
from intake.inputs import InputPosition, read_inputs

GOOD = b'{"value": null}\n'


def test_behind_a_bad_line_it_says_from_which_line_nothing_was_read() -> None:
    place = InputPosition()
    read = with_rest_unread(
        read_inputs(io.BytesIO(GOOD + b"{\n" + GOOD), "jsonl", "t", False, 1000, place), place
    )
    assert next(read).where == "line 1"
    with pytest.raises(
        InvalidInput,
        match=r"^line 2: this is no JSON: .*; the rest of the input, from line 3 on, was not read$",
    ):
        next(read)


def test_behind_a_bad_record_it_says_that_nothing_was_read() -> None:
    place = InputPosition()
    read = with_rest_unread(read_inputs(io.BytesIO(b"\x05ab"), "delimited", "t", False, 1000, place), place)
    with pytest.raises(InvalidInput, match=r"^record 0 .*; the rest of the input was not read$"):
        next(read)


@pytest.mark.parametrize(
    ("command", "reported"),
    [
        ("produce", "interrupted; acknowledged records are safe"),
        (
            "archive",
            "interrupted; nothing is lost: the next round completes what this one had not finished",
        ),
        ("consume", "interrupted; nothing was changed"),
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
