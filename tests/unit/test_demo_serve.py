"""How `demo --serve` reads answers, chooses its port, and what the command calls."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from archiver.cli import demo as command
from archiver.cli.app import run
from archiver.demo import settings
from archiver.demo.live_run import LiveProgress, Outcome, choose_port, outcome_of
from archiver.runtime.errors import Halt, InvalidInput
from archiver.spark import java

# answers

OK_LINE = b'{"topic":"live_flights","partition":0,"offset":7}\n'
FAILED_LINE = b'{"topic":"live_flights","partition":0,"offset":null,"outcome":"failed","error":"e"}\n'
UNKNOWN_LINE = b'{"topic":"live_flights","partition":0,"offset":null,"outcome":"unknown","error":"e"}\n'


@pytest.mark.parametrize(
    ("status", "body", "outcome"),
    [
        (200, 2 * OK_LINE, Outcome(2)),
        (200, b"", Outcome(unknown=2)),
        (200, b"[]\n" + b"{}\n", Outcome(unknown=2)),
        (200, 9 * OK_LINE, Outcome(2)),
        (422, OK_LINE + FAILED_LINE, Outcome(1, 1)),
        (500, OK_LINE + UNKNOWN_LINE, Outcome(1, unknown=1)),
        (500, b"\xff" * 100, Outcome(unknown=2)),
    ],
)
def test_every_record_has_one_outcome(status: int, body: bytes, outcome: Outcome) -> None:
    assert outcome_of(status, body, 2) == outcome


@pytest.mark.parametrize("status", [408, 429, 503])
def test_what_was_certainly_not_stored_may_be_sent_again(status: int) -> None:
    outcome = outcome_of(status, b"the queue is full", 2)
    assert outcome.why_not == f"the daemon answered {status}: the queue is full"
    assert (outcome.acknowledged, outcome.failed, outcome.unknown) == (0, 0, 0)


@pytest.mark.parametrize("status", [401, 404, 413])
def test_a_refusal_that_would_repeat_ends_it(status: int) -> None:
    with pytest.raises(Halt, match=f"{status}: no"):
        outcome_of(status, b"no", 2)


def test_progress_for_people() -> None:
    progress = LiveProgress(seconds=10.04).adding(Outcome(1)).adding(Outcome(1000, 2, 3))
    assert (
        progress.line()
        == "    10 s: 1,006 flights sent, 1,001 acknowledged, 2 failed, 3 unknown, 0 in the table"
    )
    assert LiveProgress(rows=None).line().endswith("0 flights sent, 0 acknowledged, the table cannot be read")
    assert set(progress.to_json()) == {"seconds", "sent", "acknowledged", "failed", "unknown", "rows"}


# ports and the command


def test_a_taken_port_is_replaced_unless_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr("archiver.demo.live_run.PORT", port)
        assert choose_port(None) not in (0, port)
        assert choose_port(0) not in (0, port)
        with pytest.raises(InvalidInput, match=f"port {port} cannot be used"):
            choose_port(port)
    assert choose_port(port) == port
    assert choose_port(None) == port
    assert choose_port(0) not in (0, port)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What `archiver demo` does, in order."""
    found: list[str] = []

    def make(directory: Path, _output: object, console: list[str]) -> int:
        found.append(", ".join(["made", *(line.strip() for line in console[-1:])]))
        settings.prepare(directory)
        return 0

    monkeypatch.setattr(java, "require_java", lambda _environ: None)
    monkeypatch.setattr(command, "_make", make)
    monkeypatch.setattr(
        command,
        "_serve",
        lambda _directory, _output, rate, seconds, port: found.append(f"served {rate} {seconds} {port}"),
    )
    return found


def test_it_is_made_once_and_served_as_often_as_one_likes(tmp_path: Path, calls: list[str]) -> None:
    directory = ["--dir", str(tmp_path / "demo")]
    assert run(["demo", "--serve", *directory]) == 0
    assert calls == ["made", "served 50 None None"]
    assert run(["demo", "--serve", "--rate", "7", "--seconds", "3", "--port", "0", *directory]) == 0
    assert calls[2:] == ["served 7 3 0"]
    assert run(["demo", *directory]) == 0
    assert calls[3].startswith("made, then open http://127.0.0.1:8788/")


def test_options_of_serve_need_serve(
    tmp_path: Path, calls: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["demo", "--rate", "7", "--dir", str(tmp_path / "demo")]) == 3
    assert "--rate, --seconds and --port need --serve" in capsys.readouterr().err
    assert run(["demo", "--serve", "--rate", "1001", "--dir", str(tmp_path / "demo")]) == 3
    assert calls == []
