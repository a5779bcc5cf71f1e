"""Do the sections Peers and Compaction of docs/performance.md say what was measured?"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
ROWS = {
    "archiver": "archiver",
    "streaming": "Structured Streaming, one batch",
    "small_triggers": "Structured Streaming, batches of 100,000",
    "sink": "Iceberg's sink for Kafka Connect",
}


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def measured(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((ROOT / f"bench/results/{name}.json").read_text(encoding="utf-8"))
    return document


@pytest.mark.parametrize("name", ROWS)
def test_a_row_of_the_peers_is_what_was_measured(name: str) -> None:
    one = measured("peers")["contenders"][name]
    speed, late = one["records_per_core_second"], one["last_commit_after_most_of_the_work_s"]["median"]
    low, middle, high, clock = (
        round(value / 1000) for value in (*(speed[which] for which in ("min", "median", "max")), one["records_per_second"]["median"])
    )
    waited = f"{late:.1f}" if late < 10 else f"{late:.0f}"
    stored = round(one["stored_bytes"][0] / 1e6, 1)
    assert f"| {ROWS[name]} | {middle} | {low} to {high} | {clock} | {waited} s | {stored} MB |" in section("Peers")


def test_the_ratios_to_peers_are_what_was_measured() -> None:
    document, words = measured("peers"), " ".join(section("Peers").split())
    told = {"streaming": "1.4 times (1.3 to 1.7)", "small_triggers": "4.0 times (3.0 to 4.2)", "sink": "1.9 times (1.4 to 2.1)"}
    for name, text in told.items():
        ratio = document["archiver_by_peer"][name]
        assert text == f"{ratio['median']:.1f} times ({ratio['min']:.1f} to {ratio['max']:.1f})"
        assert text in words
    assert document["reached"] == {"sink": False, "streaming": False}
    assert "**that is missed.**" in words


def test_the_section_on_compaction_says_what_was_measured() -> None:
    document, told = measured("compaction"), section("Compaction")
    before, after, queries = document["before"], document["after"], document["queries"]
    assert f"| archives | {before['archives']:,} | {after['archives']:,} |" in told
    megabytes = [round(one["bytes"] / 1e6, 1) for one in (before, after)]
    assert f"| bytes | {megabytes[0]} MB | {megabytes[1]} MB | {after['bytes'] / before['bytes']:.2f} |" in told
    for engine, name in (("DuckDB", "duckdb"), ("Spark", "spark")):
        was, now = (median(queries[name][f"{when}_seconds"]) for when in ("before", "after"))
        row = f"| {engine}, median | {was:.1f}" if was >= 1 else f"| {engine}, median | {was:.2f}"
        assert f"{row} s | {now:.2f} s | {queries[name]['faster']} times faster |" in told
    assert f"{document['cpu_seconds']:.0f} CPU seconds: {round(document['records_per_cpu_second'], -3):,} records" in told
    assert f"{1000 * document['cpu_seconds'] / before['archives']:.0f} ms for each old archive" in told
