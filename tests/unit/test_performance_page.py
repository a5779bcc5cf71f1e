"""Checks that docs/performance.md follows the results: figures, sentences and verdicts change with them."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from archiver.status.advice import RUNBOOK
from scripts import generate_docs
from scripts.performance import cost, intake, kafka, logs, reading, refinement, tables
from scripts.performance.measured import FigureMissingError, Measured, Results
from scripts.performance.page import RESULTS, SECTIONS, page
from scripts.performance.sections import Section, verdict

Change = Callable[[dict[str, Any]], None]


@cache
def _stored(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return document


def document_of(name: str) -> dict[str, Any]:
    """A copy of the stored measurement, for the test to change."""
    return copy.deepcopy(_stored(name))


def section(make: Callable[[Results], Section], **documents: dict[str, Any]) -> Section:
    """The section for these results. Results not given are the stored ones."""
    return make(lambda name: Measured(name, documents.get(name) or document_of(name)))


@cache
def committed() -> str:
    """The page of the stored measurements."""
    return page()


def words(made: Section) -> str:
    return " ".join(made.text().split())


def verdicts(made: Section) -> list[str]:
    return [verdict(aim.cases) for aim in made.aims]


def spread(middle: float) -> dict[str, float]:
    return {"min": middle / 2, "median": middle, "max": middle * 2}


def test_every_result_but_those_of_other_pages_is_on_the_page() -> None:
    reported = set(re.findall(r"`bench/results/(\w+)\.json`", committed()))
    elsewhere = {"growth_commits"}  # They are in decisions 0032 and 0045.
    assert {path.stem for path in RESULTS.glob("*.json")} - elsewhere == reported


def test_every_section_has_a_target_of_its_own() -> None:
    text = committed()
    assert len(re.findall(r"^(?:- )?`make bench-[a-z-]+`, `bench/results/", text, re.MULTILINE)) >= len(
        SECTIONS
    )
    assert text.startswith("# Performance\n\nGenerated from `bench/results/` by `make docs`; do not edit.")


def _stores_least(peers: Any) -> bool:
    least = {
        name: min(one["stored_bytes"])
        for name, one in peers["contenders"].items()
        if name not in ("libraries", "own_intake")
    }
    return bool(least.pop("archiver") <= min(least.values()))


def _peers_reached(peers: Any) -> list[bool]:
    return [
        *(
            peers[which][name]
            for which in ("reached", "reached_from_own_intake")
            for name in ("streaming", "sink")
        ),
        _stores_least(peers),
    ]


@pytest.mark.parametrize(
    ("name", "make", "reached"),
    [
        ("peers", reading.peers, _peers_reached),
        (
            "freshness",
            reading.freshness,
            lambda found: [found["profiles"]["eager"]["p99_below_wanted"], found["idle"]["reached"]],
        ),
        ("writer", intake.writer, lambda found: [found["reached"]]),
        (
            "mirror",
            intake.mirror,
            lambda found: [
                found["ratio_of_wall_seconds"]["median"] >= found["wanted_ratio"],
                found["mirror_us_per_record"]["median"] <= found["wanted_us_per_record"],
            ],
        ),
        (
            "kafka",
            kafka.listener,
            lambda found: [
                found[f"lowest_{what}_ratio"] >= found[f"wanted_{what}_ratio"]
                for what in ("produce", "fetch")
            ],
        ),
        ("log", logs.sqlite, lambda found: [found["append"]["reached"]]),
    ],
)
def test_a_verdict_is_that_of_the_bench(
    name: str, make: Callable[[Results], Section], reached: Callable[[dict[str, Any]], list[bool]]
) -> None:
    assert verdicts(section(make)) == [
        "reached" if one else "**missed**" for one in reached(document_of(name))
    ]


def _put(found: dict[str, Any], path: str, value: Any) -> None:
    """Replace the value at a path that exists."""
    *names, last = path.split(".")
    part: Any = found
    for name in names:
        part = part[int(name)] if isinstance(part, list) else part[name]
    assert last in part
    part[last] = value


def _reached_elsewhere(found: dict[str, Any]) -> None:
    """Set the other figures to values that reach their aims, so that the verdict depends on one figure alone."""
    for one in found.get("tables", ()):
        one["growth"] |= {"bytes": 1.0, "requests": 1.0, "p50": 1.0}
    for one in found.get("cases", {}).values():
        one |= {
            name: spread(1.0)
            for name in ("ratio_to_plain", "ratio_to_clean", "produce_ratio", "fetch_ratio")
            if name in one
        }
        one |= {name: spread(1e6) for name in ("archive", "verified") if name in one}


@pytest.mark.parametrize(
    ("name", "make", "at", "aim", "good", "bad"),
    [
        ("writer", intake.writer, "writer_mb_per_core_second", 0, spread(150), spread(149)),
        ("mirror", intake.mirror, "ratio_of_wall_seconds", 0, spread(0.7), spread(0.69)),
        ("mirror", intake.mirror, "mirror_us_per_record", 1, spread(0.4), spread(0.41)),
        ("kafka", kafka.listener, "cases.p1-c1-lz4.produce_ratio", 0, spread(0.6), spread(0.59)),
        ("kafka", kafka.listener, "cases.p1-c1-lz4.fetch_ratio", 1, spread(0.6), spread(0.59)),
        ("fetch", kafka.fetch, "cases.nested.archive", 0, spread(300_000), spread(299_999)),
        ("log", logs.sqlite, "append.frames.ratio", 0, spread(0.6), spread(0.59)),
        ("intake", intake.partitions, "partitions.2.falls_by", 0, spread(1.99), spread(2.0)),
        ("intake", intake.partitions, "file_bytes.random.ratio", 1, 1.09, 1.1),
        ("deep_audit", refinement.deep_audit, "deep_rows_per_s", 0, spread(1_000_000), spread(999_999)),
        ("partitions", reading.partitions, "many.plan_s_max", 0, 0.99, 1.0),
        ("growth", tables.growth, "tables.1.growth.requests", 1, 1.2, 1.21),
        ("growth", tables.growth, "tables.1.growth.p50", 2, 1.5, 1.51),
        ("schema", refinement.schema, "cases.unknown_between.ratio_to_clean", 0, spread(0.4), spread(0.39)),
        ("schema", refinement.schema, "avro.cases.avro_flat.ratio_to_clean", 0, spread(0.8), spread(0.79)),
    ],
)
def test_a_verdict_follows_the_figure(
    name: str, make: Callable[[Results], Section], at: str, aim: int, good: object, bad: object
) -> None:
    reported = []
    for value in (good, bad):
        found = document_of(name)
        _reached_elsewhere(found)
        _put(found, at, value)
        reported.append(verdicts(section(make, **{name: found}))[aim])
    assert (reported[0], "**missed**" in reported[1]) == ("reached", True)


def test_the_limit_follows_its_figures() -> None:
    found = document_of("limit")
    found["wanted_at_least"] = {name: 0.95 if number else 0.9 for number, name in enumerate(found["shapes"])}
    for number, shape in enumerate(found["shapes"].values()):
        shape["refine_by_libraries"] = spread(0.95 if number else 0.123)
        shape["refine_few_by_libraries"] = spread(0.6)
        shape["whole_by_libraries"] = spread(0.5)
        shape["whole_few_by_libraries"] = spread(0.7)
    first, *others = found["shapes"]
    made = section(refinement.limit, limit=found)
    assert verdicts(made) == [f"reached: {' and '.join(others)}; **missed**: {first}"]
    assert made.aims[0].target == f"at least {first} 0.90, {others[0]} 0.95 and {others[1]} 0.95 times"
    assert "| refinement on Spark | 0.12 (0.06 to 0.25) | 0.95 (0.47 to 1.90) |" in words(made).replace(
        "0.061", "0.06"
    )
    assert "| target of refinement on Spark | 0.90 | 0.95 | 0.95 |" in words(made)
    assert "| refinement on Spark, a partition per core | 0.60 (0.30 to 1.20) |" in words(made)
    assert "| a whole run, a partition per core | 0.70 (0.35 to 1.40) |" in words(made)
    found["wanted_at_least"][first] = 0.1
    assert verdicts(section(refinement.limit, limit=found)) == ["reached"]


def test_a_step_that_is_not_taken_has_no_row() -> None:
    found = document_of("limit")
    assert "| digest |" in words(section(refinement.limit, limit=found))
    for shape in found["shapes"].values():
        shape["steps"]["task"].pop("digest")
        shape["steps"]["task"]["fsync"] = 1.25
        shape["steps"]["default"]["a new one"] = 0.5
    made = words(section(refinement.limit, limit=found))
    assert "| digest |" not in made
    assert "| fsync | -, 1.2 |" in made
    assert "| a new one | 0.5, - |" in made


def test_peers_follow_their_figures() -> None:
    found = document_of("peers")
    found["archiver_by_peer"] = {name: spread(4.0) for name in found["archiver_by_peer"]}
    found["contenders"]["archiver"]["records_per_core_second"] = spread(200_000)
    found["contenders"]["archiver"]["stored_bytes"] = [10, 50, 60]
    found["contenders"]["libraries"]["stored_bytes"] = [1]
    found["libraries_by_peer"] = {"streaming": spread(5.0), "sink": spread(6.0)}
    found["own_intake_by_peer"] = {"streaming": spread(3.0), "sink": spread(7.0)}
    found["wanted_at_least"] = {"streaming": 4, "sink": 6}
    found["wanted_at_least_from_own_intake"] = {"streaming": 3.5, "sink": 7}
    found["own_intake_with_its_writer_by_peer"] = {"streaming": spread(2.0), "sink": spread(5.0)}
    found["contenders"]["own_intake"]["cpu_s_before"] = spread(1.5)
    for number, name in enumerate(("streaming", "small_triggers", "sink_by_schema", "sink")):
        found["contenders"][name]["stored_bytes"] = [60 - number]
    made = section(reading.peers, peers=found)
    assert verdicts(made) == ["reached", "**missed**", "**missed**", "reached", "reached"], (
        "the aims are 4 and 6, and 3.5 and 7, and no more bytes"
    )
    assert (
        "| Structured Streaming in one batch | 4.0 (2.0 to 8.0) | 3.0 (1.5 to 6.0) | 2.0 (1.0 to 4.0) "
        "| 5.0 (2.5 to 10.0) | 4, 3.5 |" in words(made)
    )
    assert (
        "| Iceberg's sink for Kafka Connect | 4.0 (2.0 to 8.0) | 7.0 (3.5 to 14.0) | 5.0 (2.5 to 10.0) "
        "| 6.0 (3.0 to 12.0) | 6, 7 |" in words(made)
    )
    assert "| the sink by DynamicMessage | 4.0 (2.0 to 8.0) | - | - | - | - |" in words(made)
    assert "| the libraries alone | 4.00 (2.00 to 8.00) | - | - | - | - |" in words(made)
    assert "took 1.50 s of CPU in the sending process" in words(made)
    found["contenders"]["sink"]["stored_bytes"] = [49]
    assert verdicts(section(reading.peers, peers=found))[-1] == "**missed**"
    assert "| the archiver | 200 (100 to 400) |" in words(made)


def test_freshness_follows_its_figures_and_what_was_run() -> None:
    found = document_of("freshness")
    eager = found["profiles"]["eager"]
    eager["visible_s"]["p99"], found["idle"]["many"]["cores"]["all"] = 15.0, 0.051
    made = section(reading.freshness, freshness=found)
    assert verdicts(made) == ["**missed**", "**missed**"]
    assert "took 5.1 % of a core" in words(made)
    found["profiles"]["upkeep"] = eager
    assert "cleaning each minute" in words(section(reading.freshness, freshness=found))
    found["profiles"] = {"defaults": {**eager, "oldest_slope_s_per_minute": None}}
    found["idle"] = None
    made = section(reading.freshness, freshness=found)
    assert (verdicts(made), "too few snapshots" in words(made), "idle" in words(made)) == ([], True, False)


def test_many_partitions_follow_their_figures_and_what_was_run() -> None:
    found = document_of("partitions")
    found["many"]["plan_s_max"] = 0.99
    found["many"]["oldest_s"] = [[0, 1.0], [15, 444.4], [30, 2.0]]
    found["one_topic"] |= {
        "slower_by_cpu": spread(1.2),
        "slower_by_the_clock": spread(1.6),
        "archive_ms": spread(2.0),
    }
    found["one_topic"]["wanted_ratio"] = 1.5
    found["one_topic"] |= {"libraries_slower_by_cpu": spread(1.7), "libraries_file_ms": spread(1.5)}
    found["one_topic"]["records_per_core_second_8"] = spread(250_000)
    found["one_topic_large"] = found["one_topic"] | {
        "records": 20_000_000,
        "slower_by_the_clock": spread(1.4),
    }
    made = section(reading.partitions, partitions=found)
    assert verdicts(made) == ["reached", "reached: CPU; **missed**: elapsed time", "reached"]
    assert made.aims[-1].what == "2,000 partitions of a topic, relative to 8 with the same 20,000,000 records"
    assert "| age of the oldest record that is in no table, maximum | 444 s |" in words(made)
    assert (
        "takes 2.00 (1.00 to 4.00) ms of CPU in addition to that of its records. In large archives a "
        "record takes 4.00 µs." in words(made)
    )
    assert (
        "For 2,000 files they take 1.70 (0.85 to 3.40) times the CPU of 8 files. Each further file takes "
        "1.50 (0.750 to 3.00) ms." in words(made)
    )
    found["many"]["memory"]["daemon"]["max_mb_by_minute"] = [9, 700, 500, 600]
    assert "| maximum in each minute of the second half | 500 to 600 MB |" in words(
        section(reading.partitions, partitions=found)
    )
    for one in found["many"]["round_steps_s"]:
        one["refine"] = 0.9
    assert "| refine |" not in words(section(reading.partitions, partitions=found)), (
        "no round refined for a second"
    )
    for part, verdicts_left in (("many", 2), ("requests", 2), ("one_topic", 1), ("one_topic_large", 0)):
        found.pop(part)
        assert len(verdicts(section(reading.partitions, partitions=found))) == verdicts_left


def test_growth_follows_its_figures_at_any_ages() -> None:
    found = document_of("growth")
    small, large = found["tables"]
    small["growth"]["bytes"], large["growth"]["bytes"] = 1.0, 1.3
    small["growth"]["audit_entries_per_cpu_s"], large["growth"]["audit_entries_per_cpu_s"] = 100, 6000
    for curve in small["curves"].values():
        curve["points"]["10000"] = 3.0
    last = list(large["windows"])[-1]
    large["windows"][last] = {**large["windows"][last], "then": {"archives": 6_000_000}}
    made = section(tables.growth, growth=found)
    assert verdicts(made)[0] == "reached: 1 archive a commit; **missed**: 200 archives a commit"
    assert verdicts(made)[-1] == "reached", "of the largest table, not of the small one"
    assert made.aims[-1].what == "fast audit of 6,000,000 archives, entries per CPU second"
    assert "| 10,000 | last / first |" in words(made)


def test_compaction_says_what_became_slower_too() -> None:
    found = document_of("compaction")
    found["queries"]["duckdb"] = {"before_seconds": [1.0, 2.0, 9.0], "after_seconds": [4.0, 4.0, 4.0]}
    assert "| query by DuckDB, median | 2.00 s | 4.00 s | 0.50 |" in words(
        section(reading.compaction, compaction=found)
    )


def test_costs_follow_what_was_measured() -> None:
    found = document_of("cost")
    before = " ".join(committed().split())
    for message in found["messages"].values():
        message["archive_by_kafka"]["1MiB"] = 0.25
        message["archive_cpu_s_per_gib"]["median"] *= 3
    after = words(section(cost.cost, cost=found))
    assert "takes 0.25 of a segment" in after
    together = [re.findall(r"\| total \| ([^|]+) \|", text) for text in (before, after)]
    assert together[0] != together[1]


def test_refused_appends_are_reported() -> None:
    found = document_of("log")
    assert "No appends were refused" in words(section(logs.sqlite, log=found))
    found["several_writers"][0]["refused"] = 3
    assert "3 appends were refused" in words(section(logs.sqlite, log=found))


def _scaled(value: Any, factor: float) -> Any:
    """Scale every figure that is not a whole number. Names and counts stay."""
    if isinstance(value, dict):
        return {name: _scaled(part, factor) for name, part in value.items()}
    if isinstance(value, list):
        return [_scaled(part, factor) for part in value]
    return value * factor if isinstance(value, float) else value


@pytest.mark.parametrize("factor", [0.37, 3.0, 1000.0])
@pytest.mark.parametrize(
    "make",
    [one for one in SECTIONS if one is not cost.cost],
    ids=lambda one: f"{one.__module__}.{one.__name__}",
)
def test_a_result_of_the_same_shape_makes_another_section(
    make: Callable[[Results], Section], factor: float
) -> None:
    before, after = section(make), make(lambda name: Measured(name, _scaled(_stored(name), factor)))
    assert after.text() != before.text()
    assert not re.search(r"\bnan\b|\binf\b|None|Measured|Spread\(", after.text())
    assert [line.count("|") for line in after.text().splitlines() if "|" in line] == [
        line.count("|") for line in before.text().splitlines() if "|" in line
    ]


def _keys(value: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any], str]]:
    """Each name of a document, with its path and its parent."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield f"{path}.{name}".lstrip("."), value, name
            yield from _keys(part, f"{path}.{name}".lstrip("."))


@pytest.mark.parametrize("name", ["writer", "mirror", "kafka", "deep_audit", "backlog"])
def test_a_figure_that_is_not_there_is_reported_with_file_and_key(name: str) -> None:
    makes = {
        "writer": intake.writer,
        "mirror": intake.mirror,
        "kafka": kafka.listener,
        "deep_audit": refinement.deep_audit,
        "backlog": tables.backlog,
    }
    needed = 0
    for path in [path for path, _, _ in _keys(document_of(name))]:
        found = document_of(name)
        for at, parent, key in _keys(found):
            if at == path:
                del parent[key]
                break
        message = _missing(makes[name], name, found)
        needed += message is not None
        assert message in (None, f"bench/results/{name}.json: there is no {path}")
    assert needed > 5


def _missing(make: Callable[[Results], Section], name: str, found: dict[str, Any]) -> str | None:
    """The error for a missing figure; None if the section does not need the figure."""
    try:
        section(make, **{name: found}).text()
    except FigureMissingError as error:
        return str(error)
    return None


def test_a_result_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(FigureMissingError, match=r"bench/results/limit\.json is not there"):
        page(tmp_path)


def test_the_cost_model_says_what_it_lacks() -> None:
    found = document_of("requests")
    del found["steps"]["commit"]
    with pytest.raises(FigureMissingError, match=r"bench/results/requests\.json.*'commit'"):
        section(cost.cost, requests=found)


def test_the_check_fails_on_a_page_that_is_not_made_of_the_results(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (tmp_path / RUNBOOK).parent.mkdir()
    (tmp_path / RUNBOOK).write_text("# Runbook\n", encoding="utf-8")
    size = "| one record in a file | {} bytes | `capacity.json`: intake.1x1.file_bytes |\n"
    (docs / "capacity.md").write_text(size.format("7"), encoding="utf-8")
    for name in ("PAGE", "METRICS_PAGE", "OPENAPI", "PERFORMANCE_PAGE", "CAPACITY_PAGE", "RUNBOOK_COPY"):
        monkeypatch.setattr(generate_docs, name, docs / getattr(generate_docs, name).name)
    monkeypatch.setattr(generate_docs, "ROOT", tmp_path)
    monkeypatch.setattr("scripts.performance.page.page", committed)

    def run(*arguments: str) -> int:
        monkeypatch.setattr("sys.argv", ["generate_docs.py", *arguments])
        return generate_docs.main()

    assert run("--check") == 1
    assert run() == 0
    assert (docs / "capacity.md").read_text(encoding="utf-8") == size.format("2,110")
    assert run("--check") == 0
    (docs / "capacity.md").write_text(size.format("2,100"), encoding="utf-8")
    assert run("--check") == 1
    assert run() == 0
    written = (docs / "performance.md").read_text(encoding="utf-8")
    (docs / "performance.md").write_text(written.replace("**missed**", "reached"), encoding="utf-8")
    assert run("--check") == 1
