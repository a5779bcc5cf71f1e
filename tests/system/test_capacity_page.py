"""docs/operations/capacity.md says what was measured, and what follows from it."""

from __future__ import annotations

import json
import operator
import re
import statistics
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from archiver.config.settings import load_settings
from archiver.runtime.logging import METRICS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/operations/capacity.md").read_text(encoding="utf-8")
UNITS = {"": 1.0, "bytes": 1.0, "kB": 1e3, "MB": 1e6, "µs": 1.0, "ms": 1.0, "s": 1.0}
"""Of a figure, in what its result has: times stand in the unit that the result has, too."""
ROW = re.compile(r"^\| ([^|]+) \| ([0-9.,]+) ?(\w*) \| `(\w+\.json)`: ([\w./ ]+) \|$", re.MULTILINE)
ROWS = ROW.findall(PAGE)


def value_at(document: Any, path: str) -> float:
    """What stands there: names and places in lists; of a list of numbers the middle."""
    for name in path.split("."):
        document = document[int(name)] if isinstance(document, list) else document[name]
    return float(statistics.median(document) if isinstance(document, list) else document)


@pytest.mark.parametrize(("what", "figure", "unit", "file", "source"), ROWS, ids=[row[4] for row in ROWS])
def test_a_figure_is_what_was_measured(what: str, figure: str, unit: str, file: str, source: str) -> None:
    document = json.loads((ROOT / "bench/results" / file).read_text(encoding="utf-8"))
    measured = reduce(operator.truediv, (value_at(document, path) for path in source.split(" / ")))
    shown = float(figure.replace(",", ""))
    digits = len(figure.partition(".")[2])
    least = 0.5 * 10**-digits * UNITS[unit] if "." in figure else 0.5
    reported = shown * UNITS[unit]
    assert reported == pytest.approx(measured, rel=0.005, abs=least * 1.01), what


def test_every_row_with_a_result_is_compared() -> None:
    assert len(ROWS) == len(re.findall(r"`\w+\.json`: ", PAGE)) > 25


def test_what_is_reckoned_follows_from_the_figures() -> None:
    capacity = json.loads((ROOT / "bench/results/capacity.json").read_text(encoding="utf-8"))
    each_round, each_archive = (
        capacity["ledger"]["bytes_each_round"],
        capacity["ledger"]["bytes_each_further_archive"],
    )
    segment = capacity["intake"]["1000x10"]["entry_bytes_per_segment"]
    reckoned = {
        "archives": (10e6 * 86_400 * 0.245, 1e9, "GB"),
        "entries of the intake log": (5 * 86_400 * 100 * segment, 1e6, "MB"),
        "entries of the ledger": (2880 * (each_round + 100 * each_archive), 1e6, "MB"),
    }
    for what, (total, unit, name) in reckoned.items():
        (shown,) = re.findall(rf"^\| {what} \| ([0-9]+) {name}\b", PAGE, re.MULTILINE)
        assert float(shown) == pytest.approx(total / unit, rel=0.01), what
    settings = load_settings(ROOT / "deploy/config/minimal.example.yaml", {})
    assert 3600 / settings.intake.delay_max == 18_000
    assert "at most 18,000 PUTs" in PAGE


def test_metrics_that_the_page_names_exist() -> None:
    assert set(re.findall(r"`(archiver_[a-z_]+)`", PAGE)) <= set(METRICS)
