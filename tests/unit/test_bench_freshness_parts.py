"""Does a run of some parts of bench/freshness keep the results of the others, and refuse to mix sizes?"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import freshness
from bench.freshness import Sizes

SIZES = Sizes(300.0, 20_000, 15.0, 1000, 60.0)
KNOWN = {
    "profiles": {"eager": {"snapshots": 61}},
    "idle": {"reached": True},
    "machine": {"load_before": 90.0},
    **SIZES.reported,
}


def test_what_was_not_asked_for_is_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def profile(*_: object) -> dict[str, Any]:
        return {"snapshots": 2}

    monkeypatch.setattr(freshness, "profile", profile)
    found = freshness.measure(SIZES, ["defaults"], tmp_path, KNOWN)
    assert found["profiles"] == {"eager": {"snapshots": 61}, "defaults": {"snapshots": 2}}
    assert found["idle"] == {"reached": True}
    assert found["machine"]["load_before"] == 90.0, "the most of both runs"


@pytest.mark.parametrize("more", [["--seconds", "60"], ["--rate", "100"], ["--quick"]])
def test_other_sizes_are_refused_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    output = tmp_path / "found.json"
    output.write_text(json.dumps(KNOWN), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["freshness", "--output", str(output), *more])

    def measure(*_: object) -> dict[str, Any]:
        raise AssertionError("began")

    monkeypatch.setattr(freshness, "measure", measure)
    with pytest.raises(SystemExit, match="2"):
        freshness.main()
    assert json.loads(output.read_text(encoding="utf-8")) == KNOWN
    monkeypatch.setattr(sys, "argv", ["freshness", "--output", str(output), "--parts", "eager"])
    with pytest.raises(AssertionError, match="began"):
        freshness.main()
