"""Do the measurements still run, and do they count what they say? Never how long anything takes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]


def measured(bench: str, tmp_path: Path) -> dict[str, Any]:
    output = tmp_path / "results" / "bench.json"
    command = [sys.executable, "-W", "error", "-m", f"bench.{bench}", "--quick", "--output", str(output)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    assert json.loads(done.stdout) == document
    assert document["machine"]["cores"] >= 1
    assert document["versions"]["python"]
    return document


def check_spread(found: dict[str, float]) -> None:
    assert set(found) == {"min", "median", "max"}
    assert 0 < found["min"] <= found["median"] <= found["max"]


def test_log(tmp_path: Path) -> None:
    document = measured("log", tmp_path)
    append = document["append"]
    # Every segment takes some bytes of the entry, and an append is one page of the WAL at least.
    assert append["entry_bytes"] > 10 * document["segments_per_entry"]
    assert append["wal_bytes_per_append"] >= 4096 + 24
    for name in ("log", "frames", "frames_growing", "entry_growing"):
        for what in ("appends_per_second", "p50_ms", "p99_ms"):
            check_spread(append[name][what])
        if name != "log":
            check_spread(append[name]["ratio"])
    cases = document["several_writers"]
    assert [(case["writers"], case["an_append_every_s"]) for case in cases] == [(1, 0), (3, 0), (3, 0.1)]
    for case in cases:
        assert case["appends"] >= case["writers"]
        for what in ("appends_per_second", "ratio_to_first", "p50_ms", "p99_ms", "max_ms"):
            check_spread(case[what])
        assert case["least_share_of_even"]["max"] <= 1 <= case["largest_share_of_even"]["min"]
    # The paced ones cannot append more often than their pace allows.
    assert cases[2]["appends"] <= 3 * (cases[2]["seconds"] / 0.1 + 1)


def test_intake(tmp_path: Path) -> None:
    document = measured("intake", tmp_path)
    cases = document["partitions"]
    assert [case["partitions"] for case in cases] == [10, 100, 1000, 10_000]
    # An entry of 10,000 segments would be over log.entry_bytes_max, so that flush is divided.
    assert [case["files_per_flush"] for case in cases] == [1, 1, 1, 2]
    for case in cases:
        for what in ("mb_per_second", "mb_per_cpu_second", "falls_by", "falls_by_in_cpu"):
            check_spread(case[what])
    files = document["file_bytes"]
    assert (files["segments"], files["records_per_segment"]) == (400, 10)
    for payload in ("random", "half_repeating"):
        assert files[payload]["ratio"] == pytest.approx(files[payload]["stored_bytes"] / files[payload]["raw_bytes"], abs=1e-4)
    # Bytes do not depend on the machine.
    assert files["random"]["raw_bytes"] == 660_000
    assert 1 < files["random"]["ratio"] < files["wanted_below"] == 1.1
    assert files["reached"] is True
    for case in document["acknowledgement"]:
        assert case["sends"] == 20
        for what in ("p50_ms", "p99_ms", "bare_p50_ms", "bare_p99_ms"):
            check_spread(case[what])
        assert case["p50_ms"]["min"] >= case["delay_max_ms"], "acknowledged before the time to wait for company was over"
        shares = [case[f"share_{part}"]["median"] for part in ("before_upload", "upload", "append", "rest")]
        assert all(share > 0 for share in shares)
        assert sum(shares) == pytest.approx(1, abs=0.01)
