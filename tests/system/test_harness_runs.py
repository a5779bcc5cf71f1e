"""The product keeps its promises under faults, as an external program sees them. One small run; a long one is
`python -m tests.harness run --seed N --minutes M`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.harness.fault_plan import FAULTS
from tests.harness.supervisor import SENDERS

REPOSITORY = Path(__file__).parents[2]
SEED = 4
SECONDS = 15


def harness(*arguments: str, code: int) -> Any:
    """The program's document."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.harness", *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=270,
        check=False,
    )
    assert done.returncode == code, (done.returncode, done.stdout[-4000:], done.stderr[-4000:])
    return json.loads(done.stdout) if done.stdout else done.stderr


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_with_every_fault(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    reported = harness(
        "run",
        "--seed",
        str(SEED),
        "--minutes",
        str(SECONDS / 60),
        "--workers",
        "2",
        "--folder",
        str(folder),
        code=0,
    )
    assert (reported["verdict"], reported["seed"], reported["violations"]) == ("valid", SEED, [])
    counts = reported["counts"]
    assert set(counts["faults"]) == set(FAULTS)
    assert counts["outcomes"]["ok"] > 100
    assert counts["table_rows"] > 100
    assert counts["sequenced"] > 100
    assert counts["transactions"]["committed"] > 5
    assert counts["unsettled"] == 0, "a record with a number is sent again until it is told what became of it"
    assert {sender.partition("-")[2] for sender in counts["senders"]} == set(SENDERS)
    assert harness("judge", str(folder), code=0)["counts"] == counts
    _spoil(folder)


def _spoil(folder: Path) -> None:
    """The program finds the fault if the same run's history is changed."""
    table = next(path for path in sorted(folder.glob("table-*.jsonl")) if path.stat().st_size)
    rows = table.read_text(encoding="utf-8").splitlines()
    row = json.loads(rows[0])
    row[2] = "0" * 16
    table.write_text("\n".join([json.dumps(row), *rows[1:]]) + "\n", encoding="utf-8")
    reported = harness("judge", str(folder), code=1)
    assert list(reported["violated"]) == ["H8"]
    table.write_text("\n".join(rows[1:]) + "\n", encoding="utf-8")
    reported = harness("judge", str(folder), code=2)
    assert reported["verdict"] == "unknown"


def test_a_saved_history_is_judged_by_the_program(tmp_path: Path) -> None:
    saved = next(
        folder
        for folder in sorted((REPOSITORY / "tests" / "harness" / "histories").iterdir())
        if folder.is_dir()
    )
    assert harness("judge", str(saved), code=0)["verdict"] == "valid"
    half = tmp_path / "half"
    shutil.copytree(saved, half)
    next(half.glob("worker-*.0000.jsonl")).unlink()
    assert harness("judge", str(half), code=2)["verdict"] == "unknown"
    empty = tmp_path / "empty"
    empty.mkdir()
    assert harness("judge", str(empty), code=2)["verdict"] == "unknown"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "required"),
        (("judge", "nowhere"), "is not a folder"),
        (("run", "--faults", "kill,earthquake"), "there is no earthquake"),
        (("run", "--senders", "nobody"), "there is no nobody"),
        (("run", "--minutes", "0"), "must be positive"),
        (("run", "--folder", "tests"), "is not empty"),
        (("run", "--deployment", "moon"), "invalid choice"),
        (("run", "--deployment", "bucket", "--faults", "disk"), "--faults is for --deployment local"),
        (("run", "--deployment", "mirror", "--folder", "tests"), "is not empty"),
    ],
)
def test_bad_usage(arguments: tuple[str, ...], said: str) -> None:
    assert said in harness(*arguments, code=3)


def test_the_judge_is_apart_from_the_product() -> None:
    """Only workers load it; the code that supervises, watches, reads tables and judges imports none of it."""
    program = (
        "import sys, tests.harness.__main__, tests.harness.visitor\nassert not {'archiver', 'intake', 'reconcile', 'pyiceberg'} & "
        "set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
