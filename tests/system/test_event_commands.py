"""`ledger decode` and `ledger encode`, as a user has them: files in, documents and bytes out, and what is
wrong is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from archiver.cli.app import run
from tests.support.builders.deployment import ROOT

GOLDEN = ROOT / "tests" / "compat" / "golden_events"
SAMPLES = [GOLDEN / "events-1.12" / "data-written-partitioned", GOLDEN / "events-1.10" / "commit-to-table"]
SAMPLES += [GOLDEN / "legacy" / "legacy-commit-response-partitioned"]


def archiver(folder: Path, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """The command in a process of its own, in a folder without a configuration."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    environ.pop("ARCHIVER_CONFIG", None)
    command = [sys.executable, "-m", "archiver", "ledger", *arguments]
    return subprocess.run(
        command, input=stdin, capture_output=True, timeout=60, cwd=folder, env=environ, check=False
    )


def test_events_are_printed_and_written_again(tmp_path: Path) -> None:
    done = archiver(tmp_path, "decode", *(f"{one}.bin" for one in SAMPLES))
    assert (done.returncode, done.stderr) == (0, b"")
    golden = [json.loads(one.with_suffix(".json").read_text(encoding="utf-8")) for one in SAMPLES]
    assert [json.loads(line) for line in done.stdout.splitlines()] == [one["event"] for one in golden]
    for one in SAMPLES:
        done = archiver(tmp_path, "encode", f"{one}.json")
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout == one.with_suffix(".bin").read_bytes()


def test_what_was_printed_can_be_written_from_a_pipe(tmp_path: Path) -> None:
    data = SAMPLES[0].with_suffix(".bin").read_bytes()
    printed = archiver(tmp_path, "decode", "-", stdin=data)
    assert printed.returncode == 0
    assert archiver(tmp_path, "encode", "-", stdin=printed.stdout).stdout == data


def test_a_stream_of_events_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = [one.with_suffix(".bin").read_bytes() for one in SAMPLES]
    stream = tmp_path / "events.raw"
    stream.write_bytes(b"".join(len(data).to_bytes(4, "big") + data for data in events))
    assert run(["ledger", "decode", "--raw", str(stream)]) == 0
    assert [json.loads(line)["type"] for line in capsys.readouterr().out.splitlines()] == [1, 3, 1]
    stream.write_bytes(stream.read_bytes()[:-1])
    assert run(["ledger", "decode", "--raw", str(stream)]) == 3
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 2, "what is whole is printed"
    assert "ends after the file" in captured.err


def test_encode_writes_a_new_file_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = tmp_path / "event.bin"
    assert run(["ledger", "encode", f"{SAMPLES[0]}.json", "--to", str(to)]) == 0
    assert to.read_bytes() == SAMPLES[0].with_suffix(".bin").read_bytes()
    assert run(["ledger", "encode", f"{SAMPLES[1]}.json", "--to", str(to)]) == 3
    assert "name a new file in a folder that exists" in capsys.readouterr().err
    assert to.read_bytes() == SAMPLES[0].with_suffix(".bin").read_bytes()


def test_bytes_do_not_go_to_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert run(["ledger", "encode", f"{SAMPLES[0]}.json"]) == 3
    assert "name a file with --to" in capsys.readouterr().err


def test_a_bad_file_is_named_and_the_others_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.bin"
    bad.write_bytes(SAMPLES[0].with_suffix(".bin").read_bytes()[:-1])
    assert run(["ledger", "decode", str(bad), str(tmp_path / "none.bin"), f"{SAMPLES[1]}.bin"]) == 3
    captured = capsys.readouterr()
    assert [json.loads(line)["type_name"] for line in captured.out.splitlines()] == ["COMMIT_TO_TABLE"]
    first, second = captured.err.splitlines()
    assert first.startswith(f"error: {bad}: the event ends")
    assert second == f"error: {tmp_path / 'none.bin'}: cannot be read: No such file or directory"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not json"),
        ("\udcff", "is not json"),
        ("[" * 100_000, "is not json"),
        ("[]", "an event is a json object"),
        ('{"event": {"payload": {"class": "Other"}}}', "the payload class 'Other' is unknown"),
    ],
)
def test_bad_json_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    file = tmp_path / "event.json"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert run(["ledger", "encode", str(file)]) == 3
    captured = capsys.readouterr()
    assert captured.err.startswith(f"error: {file}")
    assert message in captured.err
    assert captured.out == ""
