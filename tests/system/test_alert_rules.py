"""The alert rules over hours that were made up: each fires in its bad hours and names what is wrong, and none
does in good ones.

Prometheus' own tool plays them. tests/unit/test_metrics_docs.py tests that the metrics have these names and
labels.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.builders.deployment import ROOT
from tests.support.deploy import deploy_parts

RULES = ROOT / "deploy" / "alerts" / "stream-archiver.rules.yaml"
MINUTES = 300
"""Five hours: longer than what the most patient rule waits for."""
LOOKS = (2, 53, 59, 103, 120, 180, 240, 290)
"""Some in the middle of the small troubles of good hours, and at their ends."""
TIMEOUT_S = 60

WHERE = {"instance": "a:8787", "job": "stream-archiver"}
ALONGSIDE = {"instance": "b:8787", "job": "stream-archiver"}
"""A second daemon, whose only metric is that it is up."""
ORDERS = {"topic": "orders", "partition": "0"}


def series(name: str, **labels: str) -> str:
    """As Prometheus writes it, of the one daemon, unless the labels say of which."""
    pairs = ", ".join(f'{label}="{value}"' for label, value in sorted({**WHERE, **labels}.items()))
    return f"{name}{{{pairs}}}"


def always(value: float) -> str:
    return f"{value:g}x{MINUTES}"


GROWS = f"0+1x{MINUTES}"

GOOD: dict[str, str] = {
    series("up"): f"1x50 0x3 1x{MINUTES}",
    series("archiver_build_info", version="0.1.0", python="3.11"): f"1x50 stale _x2 1x{MINUTES}",
    series("up", **ALONGSIDE): always(1),
    series("archiver_build_info", version="0.1.0", python="3.11", **ALONGSIDE): always(1),
    # Nothing of ours: it may be away for as long as it likes.
    series("up", instance="c:9100", job="node"): always(0),
    series("archiver_ready"): f"0x2 1x{MINUTES}",
    series("archiver_leader"): f"1x50 0x8 1x{MINUTES}",
    series("archiver_dependency_up", dependency="metadata"): always(1),
    series("archiver_dependency_up", dependency="catalog lake"): f"1x100 0x3 1x{MINUTES}",
    series("archiver_watch_age_seconds"): always(4),
    series("archiver_lag_seconds", stage="committed", **ORDERS): f"30x50 1000x2 30x{MINUTES}",
    series("archiver_lag_seconds", stage="stable", **ORDERS): always(5000),
    series("archiver_lag_records", stage="committed", **ORDERS): always(500),
    series("archiver_group_lag_seconds", group="report", **ORDERS): f"30x50 4000x10 30x{MINUTES}",
    series("archiver_lag_unknown_partitions", topic="orders"): always(0),
    series("archiver_commit_age_seconds", topic="orders"): always(40),
    # No client sends anything to this one.
    series("archiver_lag_records", stage="committed", topic="quiet", partition="0"): always(0),
    series("archiver_commit_age_seconds", topic="quiet"): f"4000+60x{MINUTES}",
    series("archiver_topic_stuck", topic="orders"): f"0x50 1x5 0x{MINUTES}",
    series("archiver_commits_total", topic="orders", end="committed"): GROWS,
    series("archiver_commits_total", topic="orders", end="unknown"): f"0x100 1x{MINUTES}",
    series("archiver_audit_verdict", verdict="valid"): always(1),
    series("archiver_audit_verdict", verdict="invalid"): always(0),
    series("archiver_audit_verdict", verdict="unknown"): f"0x50 1x90 0x{MINUTES}",
    series("archiver_audit_age_seconds"): always(3500),
    series("archiver_deep_audit_verdict", verdict="valid"): always(1),
    series("archiver_deep_audit_verdict", verdict="invalid"): always(0),
    series("archiver_findings", finding="orphan", severity="info"): always(3),
    series("archiver_findings", finding="gap", severity="error"): always(0),
    series("archiver_decode_errors_total", topic="orders", side="value", cause="malformed"): always(7),
    series("archiver_intake_queue_bytes"): f"1000000x50 64000000x2 1000000x{MINUTES}",
    series("archiver_intake_queue_bytes_max"): always(64e6),
    series("archiver_intake_clock_refusals_total"): always(2),
    series("archiver_intake_log_ahead_seconds"): always(3),
    series("archiver_intake_oldest_required_age_seconds", **ORDERS): always(90_000),
    series("archiver_source_up", source="inbox/*"): always(1),
    series("archiver_source_files", source="inbox/*", state="waiting"): always(5),
    series("archiver_source_files", source="inbox/*", state="failed"): always(0),
    series("archiver_kafka_registered"): f"1x50 0x3 1x{MINUTES}",
    series("archiver_kafka_errors_total", api="Produce", code="UNKNOWN_SERVER_ERROR"): always(0),
    series("archiver_kafka_errors_total", api="Fetch", code="CORRUPT_MESSAGE"): always(0),
    # A client that sends a damaged batch is no problem of the daemon.
    series("archiver_kafka_errors_total", api="Produce", code="CORRUPT_MESSAGE"): GROWS,
    series("archiver_kafka_connections_refused_total", cut="failed"): always(1),
    series("archiver_kafka_connections_refused_total", cut="slow"): GROWS,
    series("archiver_control_topic_up"): f"1x50 0x8 1x{MINUTES}",
    series("archiver_control_topic_lag_seconds"): f"0x50 1000x3 2x{MINUTES}",
}
"""A deployment that is well, with the small troubles that end by themselves."""


@dataclass(frozen=True)
class Bad:
    """Hours in which one thing is wrong."""

    alert: str
    changed: dict[str, str | None]
    """Series in the place of good ones; None: there are none of them."""
    labels: dict[str, str] = field(default_factory=dict)
    """The alert's labels other than its severity."""
    value: str = ""


BAD = [
    Bad("ArchiverGone", dict.fromkeys(GOOD)),
    Bad(
        "ArchiverDown",
        {
            series("up", **ALONGSIDE): f"1x50 0x{MINUTES}",
            series("archiver_build_info", version="0.1.0", python="3.11", **ALONGSIDE): "1x50 stale",
        },
        ALONGSIDE,
    ),
    Bad("ArchiverNotReady", {series("archiver_ready"): always(0)}, WHERE),
    Bad(
        "ArchiverDependencyDown",
        {series("archiver_dependency_up", dependency="catalog lake"): always(0)},
        {**WHERE, "dependency": "catalog lake"},
    ),
    Bad("ArchiverWatchOld", {series("archiver_watch_age_seconds"): f"0+60x{MINUTES}"}, WHERE),
    Bad("ArchiverNobodyLeads", {series("archiver_leader"): always(0)}),
    Bad(
        "ArchiverLag",
        {series("archiver_lag_seconds", stage="committed", **ORDERS): f"0+60x{MINUTES}"},
        {"instance": WHERE["instance"], "topic": "orders"},
    ),
    Bad(
        "ArchiverGroupLag",
        {series("archiver_group_lag_seconds", group="report", **ORDERS): always(4000)},
        {"instance": WHERE["instance"], "group": "report", "topic": "orders"},
    ),
    Bad(
        "ArchiverLagUntold",
        {series("archiver_lag_unknown_partitions", topic="orders"): always(2)},
        {**WHERE, "topic": "orders"},
        "2",
    ),
    Bad(
        "ArchiverNoGoodCommit",
        {series("archiver_commit_age_seconds", topic="orders"): always(4000)},
        {**WHERE, "topic": "orders"},
    ),
    Bad(
        "ArchiverTopicStuck",
        {series("archiver_topic_stuck", topic="orders"): always(1)},
        {**WHERE, "topic": "orders"},
    ),
    Bad(
        "ArchiverCommitsUnknown",
        {series("archiver_commits_total", topic="orders", end="unknown"): GROWS},
        {**WHERE, "topic": "orders", "end": "unknown"},
    ),
    Bad(
        "ArchiverAuditInvalid",
        {series("archiver_audit_verdict", verdict="invalid"): always(1)},
        {**WHERE, "verdict": "invalid"},
    ),
    Bad(
        "ArchiverAuditUnknown",
        {series("archiver_audit_verdict", verdict="unknown"): always(1)},
        {**WHERE, "verdict": "unknown"},
    ),
    Bad("ArchiverAuditOld", {series("archiver_audit_age_seconds"): f"0+60x{MINUTES}"}, WHERE),
    Bad(
        "ArchiverDeepAuditInvalid",
        {series("archiver_deep_audit_verdict", verdict="invalid"): always(1)},
        {**WHERE, "verdict": "invalid"},
    ),
    Bad(
        "ArchiverFinding",
        {series("archiver_findings", finding="gap", severity="error"): always(1)},
        {**WHERE, "finding": "gap"},
    ),
    Bad(
        "ArchiverDecodeErrors",
        {series("archiver_decode_errors_total", topic="orders", side="value", cause="malformed"): GROWS},
        {**WHERE, "topic": "orders", "side": "value", "cause": "malformed"},
    ),
    Bad("ArchiverQueueFull", {series("archiver_intake_queue_bytes"): always(63e6)}, WHERE),
    Bad("ArchiverClockAhead", {series("archiver_intake_clock_refusals_total"): GROWS}, WHERE),
    Bad("ArchiverLogAhead", {series("archiver_intake_log_ahead_seconds"): always(290_000_000)}, WHERE),
    Bad(
        "ArchiverIntakePinned",
        {series("archiver_intake_oldest_required_age_seconds", **ORDERS): always(200_000)},
        {**WHERE, **ORDERS},
    ),
    Bad(
        "ArchiverSourceFailed",
        {series("archiver_source_up", source="inbox/*"): always(0)},
        {**WHERE, "source": "inbox/*"},
    ),
    Bad(
        "ArchiverSourceFailed",
        {series("archiver_source_files", source="inbox/*", state="failed"): always(1)},
        {**WHERE, "source": "inbox/*", "state": "failed"},
    ),
    Bad("ArchiverKafkaUnreachable", {series("archiver_kafka_registered"): always(0)}, WHERE),
    Bad(
        "ArchiverKafkaErrors",
        {series("archiver_kafka_errors_total", api="Fetch", code="CORRUPT_MESSAGE"): GROWS},
        {**WHERE, "api": "Fetch", "code": "CORRUPT_MESSAGE"},
    ),
    Bad(
        "ArchiverKafkaErrors",
        {series("archiver_kafka_errors_total", api="Produce", code="UNKNOWN_SERVER_ERROR"): GROWS},
        {**WHERE, "api": "Produce", "code": "UNKNOWN_SERVER_ERROR"},
    ),
    Bad(
        "ArchiverKafkaErrors",
        {series("archiver_kafka_connections_refused_total", cut="failed"): GROWS},
        {**WHERE, "cut": "failed"},
    ),
    Bad("ArchiverControlTopicLag", {series("archiver_control_topic_lag_seconds"): f"0+60x{MINUTES}"}, WHERE),
    Bad("ArchiverControlTopicDown", {series("archiver_control_topic_up"): always(0)}, WHERE),
]


def rules() -> dict[str, dict[str, Any]]:
    document = yaml.safe_load(RULES.read_text())
    return {rule["alert"]: rule for group in document["groups"] for rule in group["rules"]}


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [deploy_parts.required("promtool"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )


def played(
    folder: Path, hours: dict[str, str], looks: list[tuple[int, str, list[dict[str, Any]]]]
) -> subprocess.CompletedProcess[str]:
    """What Prometheus' tool says of the rules in these hours. Each item of `looks` is a minute, an alert, and
    what is expected to fire."""
    document = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in hours.items()],
                "alert_rule_test": [
                    {"eval_time": f"{minute}m", "alertname": alert, "exp_alerts": expected}
                    for minute, alert, expected in looks
                ],
            }
        ],
    }
    path = folder / "hours.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return promtool("test", "rules", path)


def expected(bad: Bad) -> dict[str, Any]:
    """The alert, whole: labels, and its words with what it names in them."""
    rule = rules()[bad.alert]

    def filled(text: str) -> str:
        return re.sub(r"{{ \$labels\.(\w+) }}", lambda found: bad.labels[found[1]], text).replace(
            "{{ $value }}", bad.value
        )

    # A label of the rule goes before one of the series.
    labels = {**bad.labels, **rule["labels"]}
    return {
        "exp_labels": labels,
        "exp_annotations": {name: filled(text) for name, text in rule["annotations"].items()},
    }


def test_prometheus_takes_the_rules() -> None:
    done = promtool("check", "rules", RULES)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules())} rules found" in done.stdout


def test_nothing_fires_in_good_hours(tmp_path: Path) -> None:
    done = played(tmp_path, GOOD, [(minute, alert, []) for minute in LOOKS for alert in rules()])
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.turns(2)
@pytest.mark.parametrize("bad", BAD, ids=lambda bad: f"{bad.alert}-{len(bad.changed)}")
def test_an_alert_fires_in_its_bad_hours_and_no_other_does(bad: Bad, tmp_path: Path) -> None:
    assert set(bad.changed) <= set(GOOD)
    hours = {name: values for name, values in {**GOOD, **bad.changed}.items() if values is not None}
    looks = [(LOOKS[-1], alert, [expected(bad)] if alert == bad.alert else []) for alert in rules()]
    done = played(tmp_path, hours, looks)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_its_bad_hours() -> None:
    assert {bad.alert for bad in BAD} == set(rules())


def test_a_wrong_expectation_is_found_out(tmp_path: Path) -> None:
    """That what is expected is compared at all: of the alert, of its labels and of its words."""
    (bad,) = [one for one in BAD if one.alert == "ArchiverTopicStuck"]
    hours = {**GOOD, **{name: values for name, values in bad.changed.items() if values is not None}}
    right = expected(bad)
    assert played(tmp_path, hours, [(290, bad.alert, [right])]).returncode == 0
    wrong_label = {**right, "exp_labels": {**right["exp_labels"], "topic": "clicks"}}
    wrong_words = {**right, "exp_annotations": {**right["exp_annotations"], "summary": "all is well"}}
    for wrong in ([], [wrong_label], [wrong_words]):
        assert played(tmp_path, hours, [(290, bad.alert, wrong)]).returncode != 0


def test_every_alert_names_a_section_of_the_runbook() -> None:
    for name, rule in rules().items():
        page, _, anchor = rule["annotations"]["runbook"].partition("#")
        headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(), re.MULTILINE)
        assert anchor in {
            re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings
        }, name
