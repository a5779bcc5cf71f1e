"""Grafana's dashboard asks only for metrics that the daemon has, in expressions that Prometheus understands.
No Grafana runs here."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from archiver.runtime.metric_names import ALIASES, LABELS, METRICS
from tests.support.builders.deployment import ROOT
from tests.support.deploy import deploy_parts

BOARD = json.loads((ROOT / "deploy" / "grafana" / "stream-archiver.json").read_text())
VARIABLES = {"$__rate_interval": "5m", "$topic": ".*", "$instance": ".*"}
FROM_PROMETHEUS = {"instance", "job", "le"}
"""Labels that no metric of ours has: of the scrape, and of a histogram's buckets."""
NAME = re.compile(r"\b(?:archiver|process)_[a-z0-9_]+\b")
SELECTOR = re.compile(r"\b(?P<name>(?:archiver|process)_[a-z0-9_]+)(?:\{(?P<matchers>[^}]*)\})?")
GROUPED = re.compile(r"\b(?:by|on|without|ignoring)\s*\((?P<labels>[^)]*)\)")
TIMEOUT_S = 60


def panels() -> list[dict[str, Any]]:
    return [panel for panel in BOARD["panels"] if panel["type"] != "row"]


def targets() -> Iterator[tuple[str, str, str]]:
    """Title, expression and legend of everything that is drawn."""
    for panel in panels():
        for target in panel["targets"]:
            yield panel["title"], target["expr"], target["legendFormat"]


def family(name: str) -> str:
    """The metric behind a series; those of a histogram have more behind its name."""
    plain = re.sub(r"_(?:bucket|sum|count)$", "", name)
    return plain if name not in METRICS and plain in METRICS and METRICS[plain].kind == "histogram" else name


def problems(expression: str, legend: str) -> list[str]:
    """What an expression asks for that no metric provides."""
    found = []
    own = set(FROM_PROMETHEUS)
    for selector in SELECTOR.finditer(expression):
        metric = METRICS.get(family(selector["name"]))
        if metric is None or selector["name"] in ALIASES:
            found.append(f"there is no {selector['name']}")
            continue
        own |= set(metric.labels)
        for label, value in re.findall(r'(\w+)=~?"([^"]*)"', selector["matchers"] or ""):
            values = LABELS.get(label)
            if label not in {*metric.labels, *FROM_PROMETHEUS}:
                found.append(f"{selector['name']} has no label {label}")
            elif values is not None and value not in values:
                found.append(f"{label} is never {value}")
    grouped = [
        {label.strip() for label in group["labels"].split(",")} for group in GROUPED.finditer(expression)
    ]
    for labels in grouped:
        found += [f"no label {label} to group by" for label in labels - own]
    left = grouped[0] if grouped and " on " not in f" {expression} " else own
    found += [
        f"the legend shows {label}, which is gone"
        for label in re.findall(r"{{(\w+)}}", legend)
        if label not in left
    ]
    for name in re.findall(r"\b(?:rate|increase)\((\w+)", expression):
        metric = METRICS.get(family(name))
        if metric is not None and metric.kind == "gauge":
            found.append(f"{name} is a gauge")
    return found


@pytest.mark.parametrize(("title", "expression", "legend"), list(targets()), ids=lambda text: text[:40])
def test_an_expression_asks_for_what_there_is(title: str, expression: str, legend: str) -> None:
    assert NAME.search(expression)
    assert problems(expression, legend) == []


@pytest.mark.parametrize(
    ("expression", "legend"),
    [
        ("sum(archiver_lags)", ""),
        ('sum(archiver_ready{topic="a"})', ""),
        ('max(archiver_lag_seconds{stage="done"})', ""),
        ("sum by (topic) (archiver_ready)", ""),
        ("sum by (topic) (archiver_lag_seconds)", "{{partition}}"),
        ("rate(archiver_ready[5m])", ""),
        ("sum(archiver_ready_bucket)", ""),
    ],
)
def test_what_there_is_not_is_found(expression: str, legend: str) -> None:
    assert problems(expression, legend) != []


def test_prometheus_understands_every_expression(tmp_path: Path) -> None:
    def said(expressions: list[str]) -> subprocess.CompletedProcess[str]:
        rules = [
            {"record": f"drawn:{number}", "expr": expression} for number, expression in enumerate(expressions)
        ]
        path = tmp_path / "rules.yaml"
        path.write_text(yaml.safe_dump({"groups": [{"name": "drawn", "rules": rules}]}))
        command: list[str | Path] = [deploy_parts.required("promtool"), "check", "rules", path]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)

    expressions = []
    for _, expression, _ in targets():
        plain = expression
        for name, value in VARIABLES.items():
            plain = plain.replace(name, value)
        assert "$" not in plain
        expressions.append(plain)
    done = said(expressions)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(expressions)} rules found" in done.stdout
    assert said([*expressions, "sum(archiver_ready"]).returncode != 0


def test_the_choices_above_the_panels_are_of_labels_that_there_are() -> None:
    chosen = {one["name"]: one for one in BOARD["templating"]["list"]}
    assert {f"${name}" for name in chosen} - {"$datasource"} == set(VARIABLES) - {"$__rate_interval"}
    for name, one in chosen.items():
        if one["type"] == "query":
            asked = re.fullmatch(r"label_values\((?P<metric>\w+), (?P<label>\w+)\)", one["query"]["query"])
            assert asked is not None
            assert asked["label"] == name
            assert name in {*METRICS[asked["metric"]].labels, *FROM_PROMETHEUS}


def test_every_panel_says_what_it_shows_and_has_a_place_of_its_own() -> None:
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    for panel in panels():
        assert panel["description"].endswith("."), panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    for one, other in combinations((panel["gridPos"] for panel in BOARD["panels"]), 2):
        alongside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert alongside or below
        assert one["x"] + one["w"] <= 24


def test_every_metric_that_an_alert_looks_at_is_drawn() -> None:
    groups = yaml.safe_load((ROOT / "deploy" / "alerts" / "stream-archiver.rules.yaml").read_text())["groups"]
    alerted = {name for group in groups for rule in group["rules"] for name in NAME.findall(rule["expr"])}
    drawn = {family(name) for _, expression, _ in targets() for name in NAME.findall(expression)}
    assert alerted - drawn == set()
