"""The daemon stays well under load and under faults. Three minutes of the soak; an hour is `make soak`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.harness.loading import SUPERVISOR, read_ledger
from tests.harness.rough_phase import ACTS
from tests.harness.soak_report import RULES
from tests.harness.watching import SAMPLES
from tests.support.process.processes import until

REPOSITORY = Path(__file__).parents[2]
MINUTES = 3
SEED = 11
LIMIT_S = 900
"""Of load, settling and reading, on a machine that does other things too."""
WAYS = {"plain", "idempotent", "transactional", "http-json", "http-protobuf", "files-jsonl", "files-parquet"}


@contextmanager
def soak(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The program; asked to end if the test ends before it, and it ends what it started."""
    command = [sys.executable, "-m", "tests.harness", "soak", "--folder", str(folder), *arguments]
    said = folder.with_suffix(".said")
    with (
        said.open("w") as stderr,
        subprocess.Popen(
            command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=stderr, text=True
        ) as program,
    ):
        try:
            yield program
        finally:
            if program.poll() is None:
                program.terminate()
                try:
                    program.wait(60)
                except subprocess.TimeoutExpired:
                    program.kill()


def judged(folder: Path, code: int) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "tests.harness", "judge", str(folder)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == code, (done.returncode, done.stdout[-3000:], done.stderr[-3000:])
    return json.loads(done.stdout)


def left(folder: Path) -> list[str]:
    """Processes that were started with this deployment's configuration, and all that those started."""
    found = []
    for process in psutil.process_iter():
        try:
            if (
                process.environ().get("ARCHIVER_CONFIG", "").startswith(f"{folder}{os.sep}")
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(" ".join(process.cmdline())[:200])
        except psutil.Error:  # gone, or another user's
            continue
    return found


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(2 * LIMIT_S + 100)
@pytest.mark.turns(
    4
)  # each day one of the long runs under faults: this one, the mirror, the bucket, Kafka clients
def test_three_minutes_under_load_and_hurt(tmp_path: Path) -> None:
    for seed in (SEED, SEED + 1):
        folder = tmp_path / f"soak{seed}"
        with soak(folder, "--minutes", str(MINUTES), "--seed", str(seed)) as program:
            out, _ = program.communicate(timeout=LIMIT_S)
        if program.returncode != 2:
            break  # 2: the machine was too busy to measure anything, which says nothing of the daemon
    said = folder.with_suffix(".said").read_text()
    assert program.returncode == 0, said[-8000:]
    reported = json.loads(out)
    assert (reported["verdict"], reported["invalid"], reported["unknown"]) == ("valid", [], [])
    assert {kind for _, kind, _ in reported["acts"]} == set(ACTS)
    assert [found["name"] for found in reported["series"]] == [rule.name for _, _, rule in RULES]
    assert {way for way, numbers in reported["ways"].items() if numbers["records"] > 100} == WAYS
    assert reported["history"]["counts"]["table_rows"] > 1000
    assert reported["history"]["counts"]["files"] > 20
    until("everything has ended", lambda: not left(folder), 60)
    assert judged(folder, 0)["history"]["counts"] == reported["history"]["counts"]
    _spoil(folder)


def _spoil(folder: Path) -> None:
    """The program finds the fault if the same soak's history is changed."""
    samples = folder / SAMPLES
    whole = samples.read_text(encoding="utf-8")
    lines = [json.loads(line) for line in whole.splitlines()]
    leaking = [{**line, "fds": line["fds"] and line["fds"] + line["at"] / 3} for line in lines]
    samples.write_text("".join(json.dumps(line) + "\n" for line in leaking), encoding="utf-8")
    assert any(reason.startswith("daemon descriptors") for reason in judged(folder, 1)["invalid"])
    samples.write_text(
        "".join(whole.splitlines(keepends=True)[:40]), encoding="utf-8"
    )  # As if sampling had stopped.
    assert judged(folder, 2)["verdict"] == "unknown"
    samples.write_text(whole, encoding="utf-8")
    dropped = {
        event["file"] for event in read_ledger(folder, "worker-v0-0").events if event["event"] == "dropped"
    }
    assert dropped
    _rewrite(folder, SUPERVISOR, lambda event: None if event["event"] == "fault" else event)
    assert any("asked for and not played" in reason for reason in judged(folder, 2)["unknown"])


def _rewrite(folder: Path, name: str, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    """A ledger with some lines changed or left out."""
    events = [changed for event in read_ledger(folder, name).events if (changed := change(event)) is not None]
    for path in folder.glob(f"{name}.*.jsonl"):
        path.unlink()
    lines = [json.dumps({**event, "n": number}) + "\n" for number, event in enumerate(events)]
    (folder / f"{name}.0000.jsonl").write_text("".join(lines), encoding="utf-8")


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_soak_leaves_nothing_behind(number: signal.Signals, tmp_path: Path) -> None:
    if number is signal.SIGKILL and shutil.which("setpriv") is None:
        pytest.skip("without setpriv nobody ends the children of a killed program")
    folder = tmp_path / "soak"
    said = folder.with_suffix(".said")
    with soak(folder, "--minutes", "5", "--seed", "1") as program:
        until(
            "the steady phase has begun",
            lambda: "steady" in said.read_text() or program.poll() is not None,
            150,
        )
        assert left(folder)
        program.send_signal(number)
        program.wait(100)
    assert program.returncode == (2 if number is signal.SIGTERM else -number)
    until("everything has ended", lambda: not left(folder), 90)
    judged(folder, 2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--minutes", "0.5"), "must be 1 or more"),
        (("--pause", "-1"), "not negative"),
        (("--folder", "tests"), "is not empty"),
        (("now",), "unrecognized"),
    ],
)
def test_bad_usage_of_the_soak(arguments: tuple[str, ...], said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.harness", "soak", *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 3
    assert said in done.stderr
