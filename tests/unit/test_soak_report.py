"""Checks the verdicts of the soak's report: wrong is invalid, unmeasured is unknown, and only complete checks
are valid.

The soak folder is made of a saved history of the outside harness and invented samples.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness.errands import ERRANDS
from tests.harness.ledger_file import LedgerFile
from tests.harness.loading import read_ledger
from tests.harness.soak_report import as_text, report_on
from tests.harness.watching import HEAPS, SAMPLES, SCRAPES, lags

SAVED = Path(__file__).parents[1] / "harness" / "histories" / "plain"
STEADY_S = 1500.0
ROUGH_AT_S = 10.0 + STEADY_S
LEVELS: dict[str, float] = {
    "rss_mb": 260,
    "fds": 40,
    "threads": 30,
    "children": 5,
    "workers": 3,
    "jvm_rss_mb": 700,
    "jvm_fds": 340,
    "jvm_threads": 200,
    "worker_rss_mb": 180,
    "metadata_mb": 5,
    "intake_files": 900,
}
Change = Callable[[Path], None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A soak without any fault."""
    made = tmp_path / "soak"
    shutil.copytree(SAVED, made)
    rng = random.Random(1)
    times = [10.0 + second for second in range(int(STEADY_S))]
    write(
        made / SAMPLES,
        [
            {
                "at": at,
                "daemon": "daemon-0",
                **{name: level * rng.uniform(0.99, 1.01) for name, level in LEVELS.items()},
            }
            for at in times
        ],
    )
    write(
        made / HEAPS, [{"at": at, "daemon": "daemon-0", "heap_mb": 50 + rng.random()} for at in times[::10]]
    )
    pages = [
        {"at": at, "page": page, "status": 200, "seconds": 0.01}
        for at in times[::5]
        for page in ("/", "/readyz")
    ]
    write(
        made / SCRAPES,
        [*pages, {"at": 20.0, "page": "/metrics", "status": 200, "seconds": 0.01, "lag": {"committed": 2.5}}],
    )
    write(
        made / ERRANDS,
        [{"at": at, "command": ["status"], "code": 0, "seconds": 1.0, "said": ""} for at in times[::60]],
    )
    relate(made)
    return made


def write(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def relate(
    folder: Path,
    *more: dict[str, Any],
    verdict: str | None = "valid",
    phases: tuple[str, ...] = ("steady", "rough", "settling"),
) -> None:
    """The run's own ledger as a soak writes it, with `more` lines."""
    events = [
        event
        for event in read_ledger(folder, "run").events
        if event["event"] not in ("phase", "checked", "wrong")
    ]
    for path in folder.glob("run.*.jsonl"):
        path.unlink()
    starts = {"steady": 10.0, "rough": ROUGH_AT_S, "settling": ROUGH_AT_S + 100}
    reported = [{"event": "phase", "name": name, "at": starts[name]} for name in phases]
    reported += [
        {"event": "checked", "command": ["audit"], "code": 0, "seconds": 2.0, "said": "", "verdict": verdict}
    ] * 2
    with LedgerFile(folder, "run", 0.0) as ledger:
        ledger.write_all(
            [
                {key: value for key, value in event.items() if key != "n"}
                for event in (*events[:1], *reported, *more, *events[1:])
            ]
        )


def sampled(name: str, value: Callable[[dict[str, Any]], float | None]) -> Change:
    def change(folder: Path) -> None:
        write(folder / SAMPLES, [{**line, name: value(line)} for line in read(folder / SAMPLES)])

    return change


def spoiled(file: str, **fields: Any) -> Change:
    """Replaces one line in the middle of a file."""

    def change(folder: Path) -> None:
        lines = read(folder / file)
        lines[len(lines) // 2] |= fields
        write(folder / file, lines)

    return change


def lost_row(folder: Path) -> None:
    """Consume has one record less, and the reading agrees."""
    path = next(path for path in sorted(folder.glob("consume-*.jsonl")) if path.stat().st_size)
    rows = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join(rows[1:]) + "\n", encoding="utf-8")
    events = read_ledger(folder, "run").events
    for event in events:
        if event["event"] == "read" and f"{event['what']}-{event['topic']}" == path.stem:
            event["rows"] -= 1
    (folder / "run.0000.jsonl").write_text(
        "".join(json.dumps(event) + "\n" for event in events), encoding="utf-8"
    )


def test_a_good_soak_is_valid(folder: Path) -> None:
    report = report_on(folder)
    assert (report.verdict, report.invalid, report.unknown) == ("valid", [], [])
    assert {found["state"] for found in report.document["series"]} == {"flat"}
    assert report.document["lag_seconds"].keys() == {"committed"}
    assert "verdict: valid" in as_text(report)
    assert json.loads(json.dumps(report.to_json()))["verdict"] == "valid"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (sampled("rss_mb", lambda line: line["rss_mb"] + line["at"] * 100 / 3600), "daemon memory grows"),
        (sampled("fds", lambda line: line["fds"] + line["at"] / 60), "daemon descriptors grows"),
        (sampled("threads", lambda line: line["threads"] + 5 * line["at"]), "daemon threads too high"),
        (sampled("workers", lambda line: 100.0 if line["at"] > 900 else 3.0), "Python workers too high"),
        (spoiled(SCRAPES, status=500), "answered 1 times with something other than 200"),
        (spoiled(SCRAPES, status=None), "answered 1 times with something other than 200"),
        (spoiled(ERRANDS, code=1, said="it broke"), "`archiver status` ended with 1: it broke"),
        (spoiled(ERRANDS, code=None), "ended with None"),
        (lambda folder: relate(folder, {"event": "wrong", "what": "a daemon was left"}), "a daemon was left"),
        (lambda folder: relate(folder, verdict="invalid"), "audit says invalid"),
        (lost_row, "H1: "),
    ],
)
def test_what_is_wrong_is_invalid(change: Change, said: str, folder: Path) -> None:
    change(folder)
    report = report_on(folder)
    assert report.verdict == "invalid"
    assert any(said in reason for reason in report.invalid), report.invalid


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (sampled("jvm_rss_mb", lambda _: None), "JVM memory unmeasured"),
        (
            sampled("rss_mb", lambda line: line["rss_mb"] if line["at"] < 900 else None),
            "daemon memory unmeasured",
        ),
        (lambda folder: (folder / HEAPS).unlink(), "JVM live heap unmeasured"),
        (lambda folder: (folder / SAMPLES).unlink(), "daemon memory unmeasured"),
        (lambda folder: (folder / SCRAPES).unlink(), "no page was asked for"),
        (lambda folder: write(folder / SCRAPES, read(folder / SCRAPES)[:-1]), "/metrics told no lag"),
        (lambda folder: (folder / ERRANDS).unlink(), "no command was run"),
        (lambda folder: relate(folder, verdict=None), "audit says None"),
        (lambda folder: relate(folder, verdict="unknown"), "audit says unknown"),
        (
            lambda folder: relate(folder, phases=("steady",)),
            "did not get to its rough and its settling phase",
        ),
        (lambda folder: next(folder.glob("worker-*.jsonl")).unlink(), "worker-"),
    ],
)
def test_what_was_not_seen_is_unknown(change: Change, said: str, folder: Path) -> None:
    change(folder)
    report = report_on(folder)
    assert report.verdict == "unknown", report.invalid
    assert any(said in reason for reason in report.unknown), report.unknown


def test_wrong_stays_wrong_with_anything_else_missing(folder: Path) -> None:
    sampled("fds", lambda line: line["fds"] + line["at"] / 60)(folder)
    (folder / HEAPS).unlink()
    report = report_on(folder)
    assert report.verdict == "invalid"
    assert report.unknown


def test_what_happens_in_the_rough_phase_is_not_held_against_pages_and_commands(folder: Path) -> None:
    with (folder / SCRAPES).open("a") as file:
        file.write(
            json.dumps({"at": ROUGH_AT_S + 5, "page": "/", "status": None, "seconds": 2.0}) + '\n{"torn'
        )
    with (folder / ERRANDS).open("a") as file:
        file.write(
            json.dumps(
                {"at": ROUGH_AT_S - 0.5, "command": ["status"], "code": 2, "seconds": 4.0, "said": "no"}
            )
            + "\n"
        )
    assert report_on(folder).verdict == "valid"


def test_an_empty_folder_is_unknown(tmp_path: Path) -> None:
    assert report_on(tmp_path).verdict == "unknown"


def test_the_largest_lag_of_each_stage_is_read() -> None:
    page = (
        b'# HELP x_lag_seconds y\nx_lag_seconds{topic="a",stage="stable"} '
        b'1.5\nx_lag_seconds{topic="b",stage="stable"} 4\nother_total 9\n'
    )
    assert lags(page) == {"stable": 4.0}
    assert lags(b"") == {}
