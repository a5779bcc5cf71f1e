"""`consume` and `produce` at a terminal: text by default, JSON lines by a switch, and the keys that end them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from archiver.cli.produce import TERMINAL_LINE_BYTES_MAX
from tests.support.builders.deployment import Deployment, text
from tests.support.process.terminal import CTRL_C, CTRL_D, Terminal

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        not sys.platform.startswith("linux"), reason="takes a controlling terminal as on Linux"
    ),
]

LATIN = {"PYTHONIOENCODING": "iso8859-1"}
HINT = "type one value per line for topic kept; --text or --base64 read JSON lines. Ctrl-D ends the input"
JSON_HINT = "type JSON lines, bytes as base64. Ctrl-D ends the input, Ctrl-C stops\n"
HOSTILE = "\x1b]0;title\x07\x1b[2J\x9b31m\rkept:0:9  1970\nkept:0:9  \u202eä"


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path / "d")


def shown(deployment: Deployment, *arguments: str, environ: dict[str, str] | None = None) -> str:
    """What `consume` leaves on the screen."""
    with Terminal(deployment, "consume", "--topic", "kept", *arguments, environ=environ) as terminal:
        assert terminal.wait() == 0, terminal.text()
        # With escape sequences, if there were any.
        return terminal.written.replace("\r\n", "\n")


def values(deployment: Deployment) -> list[str]:
    done = deployment.cli("consume", "--topic", "kept", "--text")
    return [line["value"] for line in done.lines()]


# consume


def test_text_at_a_terminal_and_json_lines_by_a_switch(deployment: Deployment) -> None:
    deployment.produce(
        [
            {
                "topic": "kept",
                "key": text(b"k"),
                "value": text(HOSTILE.encode()),
                "timestamp": "2026-01-02T03:04:05Z",
            },
            {"topic": "kept", "value": text(b"\xff"), "timestamp": None},
        ]
    )
    screen = shown(deployment)
    lines = screen.splitlines()
    assert lines[:2] == ["kept:0:0  2026-01-02T03:04:05.000000Z", "  key             k"]
    assert lines[2:4] == [
        r"  value           \u001b]0;title\u0007\u001b[2J\u009b31m\rkept:0:9  1970",
        r"                  kept:0:9  \u202eä",
    ]
    assert lines[4].startswith("kept:0:1  20")
    assert lines[5:] == ["  value (base64)  /w=="]
    assert all(line.isprintable() for line in lines)

    piped = deployment.run("consume", "--topic", "kept").out
    for switch in (["--base64"], ["--output", "json"]):
        assert shown(deployment, *switch) == piped
    assert shown(deployment, environ=LATIN) == piped, "a terminal that does not show UTF-8"
    with_text = deployment.run("consume", "--topic", "kept", "--text", "--max", "1").out
    assert shown(deployment, "--text", "--max", "1") == with_text


def test_base64_of_a_topic_with_a_schema_names_the_switch_once(deployment: Deployment) -> None:
    deployment.produce(
        [{"topic": name, "partition": 0, "value": text(b"\xff")} for name in ("orders", "kept")] * 2
    )
    hint = "topic orders has a schema: --decode prints messages instead of base64"
    with Terminal(deployment, "consume", "--topic", "orders") as terminal:
        assert terminal.wait() == 0
        assert (terminal.text().count(hint), terminal.text().count("value (base64)  /w==")) == (1, 2)
    assert deployment.cli("consume", "--topic", "orders", "--decode", "--output", "text").err == ""
    assert deployment.cli("consume", "--topic", "kept", "--output", "text").err == ""
    assert deployment.cli("consume", "--topic", "orders").err == ""


def test_only_the_screen_counts_for_the_form(deployment: Deployment) -> None:
    """In a shell, standard input and errors of `consume | tool` still are the terminal."""
    deployment.produce([{"topic": "kept", "value": text(b"v")}])
    with Terminal(deployment, "consume", "--topic", "kept", stdout=subprocess.PIPE) as terminal:
        with terminal.stdout as out:
            assert json.loads(out.read())["value"] == text(b"v")
        assert terminal.wait() == 0
        assert terminal.text() == ""


def test_following_at_a_terminal_ends_with_ctrl_c(deployment: Deployment) -> None:
    deployment.produce([{"topic": "kept", "value": text(b"old")}])
    with Terminal(deployment, "consume", "--topic", "kept", "--follow", "--from", "latest-1") as terminal:
        terminal.shows("  value           old\n")
        deployment.produce([{"topic": "kept", "value": text(b"new")}])
        terminal.shows("  value           new\n")
        terminal.type(CTRL_C)
        assert terminal.wait() == 130
        assert terminal.text().endswith("^Cinterrupted\n")


# produce


def test_typed_lines_are_values(deployment: Deployment) -> None:
    with Terminal(deployment, "produce", "--topic", "kept") as terminal:
        terminal.shows(HINT)
        terminal.type('hello\n\nwörld {"value": 1}\n')
        terminal.type(CTRL_D)
        assert terminal.wait() == 0
        assert terminal.text().endswith("2 stored and in the log: kept:0:0 kept:0:1\n")
    assert values(deployment) == ["hello", 'wörld {"value": 1}']


def test_a_line_without_its_end_counts_at_the_end_of_the_input(deployment: Deployment) -> None:
    with Terminal(deployment, "produce", "--topic", "kept") as terminal:
        terminal.shows(HINT)
        # The first hands over what stands in the line, the second ends the input.
        terminal.type("half" + CTRL_D)
        terminal.type(CTRL_D)
        assert terminal.wait() == 0
    assert values(deployment) == ["half"]


def test_ctrl_c_keeps_what_was_read_and_drops_half_a_line(deployment: Deployment) -> None:
    with Terminal(deployment, "produce", "--topic", "kept", "--output", "json") as terminal:
        terminal.shows(HINT)
        terminal.type("whole\n")
        terminal.shows('"offset":0}\n')
        # Handed over without its end, so the command has it already.
        terminal.type("half" + CTRL_D)
        terminal.type(CTRL_C)
        assert terminal.wait() == 130
        assert (
            "stopped by SIGINT: 1 record was read and acknowledged; the rest of the input was not read\n"
            in terminal.text()
        )
    assert values(deployment) == ["whole"]


def test_json_lines_at_a_terminal_by_a_switch(deployment: Deployment) -> None:
    for switch, value, hint in (
        ("--base64", "dg==", JSON_HINT),
        ("--text", "v", JSON_HINT.replace("base64", "text")),
    ):
        with Terminal(deployment, "produce", switch) as terminal:
            terminal.shows(hint)
            terminal.type(json.dumps({"topic": "kept", "value": value}) + "\n" + CTRL_D)
            assert terminal.wait() == 0
    with Terminal(deployment, "produce", environ=LATIN) as terminal:
        terminal.shows(JSON_HINT)
        terminal.type('{"topic": "kept", "value": "dg=="}\n' + CTRL_D)
        assert terminal.wait() == 0
    assert values(deployment) == ["v"] * 3


@pytest.mark.parametrize("switch", [[], ["--text"]])
def test_nothing_is_typed_for_a_topic_that_is_not_there(deployment: Deployment, switch: list[str]) -> None:
    with Terminal(deployment, "produce", "--topic", "nowhere", *switch) as terminal:
        assert terminal.wait() == 3
        assert "there is no topic nowhere; the topics are " in terminal.text()
        assert "Ctrl-D" not in terminal.text()


def test_typed_lines_need_a_topic(deployment: Deployment) -> None:
    with Terminal(deployment, "produce") as terminal:
        assert terminal.wait() == 3
        assert "name their topic with --topic; for JSON lines, give --text or --base64\n" in terminal.text()


def test_a_pasted_line_that_the_terminal_cuts_is_refused(deployment: Deployment) -> None:
    with Terminal(deployment, "produce", "--topic", "kept") as terminal:
        terminal.shows(HINT)
        terminal.type("short\n")
        terminal.type("x" * (TERMINAL_LINE_BYTES_MAX - 1) + "\n")
        terminal.shows("x\n")
        terminal.type("y" * 3000)
        terminal.type("y" * 3000 + "\n")
        assert terminal.wait() == 3
        assert f"line 3: a terminal cuts lines at {TERMINAL_LINE_BYTES_MAX} bytes" in terminal.text()
    assert values(deployment) == ["short", "x" * (TERMINAL_LINE_BYTES_MAX - 1)]


def test_a_pipe_has_json_lines_also_with_a_screen(deployment: Deployment) -> None:
    with Terminal(deployment, "produce", stdin=subprocess.PIPE) as terminal:
        with terminal.stdin as pipe:
            pipe.write(b'{"topic": "kept", "value": "dg=="}\n')
        assert terminal.wait() == 0
        assert terminal.text() == "1 stored and in the log: kept:0:0\n"
    assert values(deployment) == ["v"]


def test_lines_from_a_pipe_by_a_switch(deployment: Deployment) -> None:
    done = deployment.run("produce", "--topic", "kept", "--format", "lines", stdin="one\n\ntwo")
    assert (done.code, done.out, done.err) == (0, "2 stored and in the log: kept:0:0 kept:0:1\n", "")
    assert values(deployment) == ["one", "two"]
