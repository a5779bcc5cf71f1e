"""Kill a process that ingests files, at each step it makes: the next process goes on, and every record is
there once, in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from archiver.log.sqlite import SqliteLogStore
from archiver.objects.local import LocalObjectStore
from archiver.runtime import failpoints
from intake.sources.files.source import FilesState
from tests.support.intake.file_sources import FORMATS, TOPIC, Inbox, file_of, numbered
from tests.support.intake.source_process import LOOKS, process

ROOT = Path(__file__).resolve().parents[2]
TAKING = [name for name in failpoints.NAMES if name.startswith(("writer.", "source.", "checkpoint.", "log."))]
FILES = {"a": 9, "b": 0, "c": 5}


@contextmanager
def inbox_of(root: Path) -> Iterator[Inbox]:
    logs = SqliteLogStore(root / "metadata.db", 30, 512 * 1024)
    try:
        yield Inbox(root, logs.log("intake"), LocalObjectStore(root / "data"))
    finally:
        logs.close()


def killed(root: Path, form: str, armed: str) -> None:
    """A separate process that ingests files and dies."""
    command = [sys.executable, "-m", "tests.support.intake.source_process", str(root), form, armed]
    environ = {name: value for name, value in os.environ.items() if name != failpoints.VARIABLE}
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr


def look(inbox: Inbox, form: str, armed: str = "") -> FilesState:
    """A process that lives, in this one."""
    taker = process(inbox, form)
    failpoints.arm(armed)
    try:
        for _ in range(LOOKS):
            taker.look()
            taker.checkpointer.run_if_due()
    finally:
        failpoints.arm("")
    return taker.state


def prepare(root: Path, form: str) -> None:
    """Files, and one that was finished and is gone."""
    with inbox_of(root) as inbox:
        inbox.put("0", file_of([b"gone"], form))
        inbox.put("00", file_of([b"stays"], form))
        assert look(inbox, form).finished == 2
        (inbox.folder / "0").unlink()
        for name, count in FILES.items():
            inbox.put(name, file_of(numbered(name, count), form))


def check(root: Path, state: FilesState) -> None:
    assert (state.finished, state.failed, state.trouble) == (4, 0, None)
    with inbox_of(root) as inbox:
        assert inbox.values() == [
            b"gone",
            b"stays",
            *(value for name, count in FILES.items() for value in numbered(name, count)),
        ]
        known = inbox.fold().positions.source(f"files:{TOPIC}")
        assert (sorted(known.finished), known.begun) == ([f"{root}/in/{name}" for name in ("00", *FILES)], {})


def cases() -> list[Any]:
    found = [pytest.param(name, FORMATS[number % 3], 1, id=name) for number, name in enumerate(TAKING)]
    writing = [name for name in TAKING if name.startswith("writer.append.")]
    return found + [
        pytest.param(name, form, 3, id=f"{name}-{form}-third") for name in writing for form in FORMATS
    ]


@pytest.mark.parametrize(("name", "form", "at"), cases())
def test_killed_while_taking_files_in(name: str, form: str, at: int, tmp_path: Path) -> None:
    prepare(tmp_path, form)
    killed(tmp_path, form, f"{name}=kill@{at}")
    with inbox_of(tmp_path) as inbox:
        state = look(inbox, form)
    check(tmp_path, state)


@pytest.mark.parametrize("name", ["topic.append.before", "topic.append.after"])
def test_killed_while_the_topic_is_declared(name: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "00").write_bytes(file_of([b"x"], "jsonl"))
    killed(tmp_path, "jsonl", f"{name}=kill")
    with inbox_of(tmp_path) as inbox:
        assert look(inbox, "jsonl").finished == 1
        assert inbox.values() == [b"x"]


@pytest.mark.parametrize("action", ["error", "unknown"])
@pytest.mark.parametrize("name", [name for name in TAKING if name.startswith(("writer.", "source."))])
def test_a_step_that_fails_or_loses_its_reply(name: str, action: str, tmp_path: Path) -> None:
    """The same process polls again."""
    prepare(tmp_path, "jsonl")
    with inbox_of(tmp_path) as inbox:
        state = look(inbox, "jsonl", f"{name}={action}")
    check(tmp_path, state)
