"""The page of metrics and the alert rules agree with the table of metrics."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from archiver.runtime.metric_names import ALIASES, LABELS, METRICS
from scripts import metrics_page
from tests.support.builders.deployment import ROOT

RULES = ROOT / "deploy" / "alerts" / "stream-archiver.rules.yaml"
NAME = re.compile(r"\b(?:archiver|process)_[a-z0-9_]+\b")
MATCHER = re.compile(r"(?P<name>[a-z_]+)\{(?P<matchers>[^}]*)\}")
GROUPED = re.compile(r"\b(?:by|on|without|ignoring)\s*\((?P<labels>[^)]*)\)")


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    return [rule for group in document["groups"] for rule in group["rules"]]


def test_the_page_is_up_to_date() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert page == metrics_page.page(), "run make docs"
    for name, metric in METRICS.items():
        assert page.count(f"\n| `{name}` | {metric.kind} |") == 1
        assert metric.text in page


def test_the_head_names_what_there_is() -> None:
    assert set(NAME.findall(metrics_page.HEAD)) <= set(METRICS)
    assert str(RULES.relative_to(ROOT)) in metrics_page.HEAD


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_rules_name_what_there_is(rule: dict[str, Any]) -> None:
    expression = rule["expr"]
    names = NAME.findall(expression)
    assert names and set(names) <= set(METRICS) - set(ALIASES)
    assert expression.count("(") == expression.count(")") and expression.count("{") == expression.count("}")
    for found in MATCHER.finditer(expression):
        for matcher in found["matchers"].split(","):
            label, _, value = matcher.partition("=")
            assert label in METRICS[found["name"]].labels
            values = LABELS[label]
            assert values is None or value.strip('"') in values
    own = {label for name in names for label in METRICS[name].labels} | {"instance"}
    for found in GROUPED.finditer(expression):
        assert {label.strip() for label in found["labels"].split(",")} <= own
    texts = " ".join(rule["annotations"].values())
    assert set(re.findall(r"\$labels\.(\w+)", texts)) <= own
    assert set(rule["labels"]) == {"severity"} and rule["labels"]["severity"] in ("critical", "warning")
    assert {"summary", "action", "runbook"} == set(rule["annotations"])
    if "increase(" in expression or "rate(" in expression:
        assert all(METRICS[name].kind == "counter" for name in names)


def test_alerts_cover_what_the_page_asks_to_watch() -> None:
    watched = set(NAME.findall(metrics_page.HEAD.partition("## What to alert on")[2]))
    ruled = {name for rule in rules() for name in NAME.findall(rule["expr"])}
    assert watched <= ruled
    assert len({rule["alert"] for rule in rules()}) == len(rules())
