"""The table of metrics and the samples made of it: names, bounds, unknown values, counters."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import pytest

from archiver.config.daemon import MetricsSettings
from archiver.config.topics import TopicSettings
from archiver.publish.report import ArchiveReport, CommitEnd, CommitTry
from archiver.rewrite.compact import TopicCompaction
from archiver.runtime.clock import ManualClock
from archiver.runtime.errors import RetryLater
from archiver.runtime.ids import TopicId
from archiver.runtime.metric_names import (
    ALIASES,
    COMMIT_ENDS,
    DECODE_CAUSES,
    HELD_CAUSES,
    LABELS,
    METRICS,
    OTHER,
    OUTCOMES,
    ROUTES,
    SIDES,
    STAGES,
    STATUSES,
    series_max,
)
from archiver.schema.protobuf.error_causes import CAUSES, Cause, cause_of
from archiver.status import lag as standings
from archiver.status import reasons
from archiver.status.journal import Cycle, Journal, Outcome
from archiver.status.lag import LagReport, PartitionLag, Stage, StageLag, TopicLag
from archiver.status.metric_registry import LogNumbers, Numbers, SourceNumbers, Watched, sources_of
from archiver.web.metrics import Message, Scope, counting, exposition, route_of
from archiver.web.openapi import ENDPOINTS
from intake.sources.files.source import FilesState
from intake.write.metrics import WriterMetrics
from reconcile.findings.finding import Finding
from reconcile.repair.run import ReconcileReport
from reconcile.snapshot.oldest_required import OldestRequired
from reconcile.vacuum.report import CleanReport
from tests.support.process.scrapes import series, shown

NOW_US = 1_700_000_000_000_000
HOSTILE = ["a\nb", 'q"uo\\te', "{x=}", "", "ünï", "# HELP x", "_other", "a,b", "-1", "NaN 1"]


def lag(records: int | None, seconds: float | None) -> StageLag:
    return StageLag(0, records, seconds)


def topic(name: str, lags: Sequence[StageLag], **changes: Any) -> TopicLag:
    """A topic whose partitions have these lags at every stage."""
    stages: list[Stage] = ["stable", "archived", "committed"]
    partitions = tuple(
        PartitionLag(name, number, 0, 10, dict.fromkeys(stages, one), None, "due", "why")
        for number, one in enumerate(lags)
    )
    made = TopicLag(
        name, TopicId("a" * 32), "iceberg", partitions, NOW_US - 5_000_000, NOW_US - 9_000_000, 0, None
    )
    return replace(made, **changes)


@dataclass
class Rig:
    """The metrics of one process."""

    numbers: Numbers
    journal: Journal
    clock: ManualClock

    def see(self, *topics: TopicLag, **seen: Any) -> None:
        self.numbers.watched(
            Watched(seen_us=self.clock.now_us(), standing=LagReport(NOW_US, topics, ()), **seen)
        )

    def shown(self, writer: Any = None) -> dict[Any, float]:
        return shown(self.numbers.families(writer))


def rig(partitions_max: int = 1000, topics_max: int = 1000) -> Rig:
    clock, journal = ManualClock(NOW_US), Journal(50)
    limits = MetricsSettings(partitions_max=partitions_max, topics_max=topics_max)
    return Rig(Numbers(journal, clock, limits, "0.1.0"), journal, clock)


# the table


def test_names_and_labels_follow_the_conventions() -> None:
    units = ("_seconds", "_bytes", "_total", "_info")
    for name, metric in METRICS.items():
        assert re.fullmatch(r"(archiver|process)_[a-z][a-z0-9_]*[a-z0-9]", name)
        assert name.endswith("_total") == (metric.kind == "counter"), name
        assert not re.search(r"_(ms|millis|minutes|hours|kb|mb|percent)(_|$)", name), name
        assert metric.text and not metric.text.endswith("."), name
        assert set(metric.labels) <= set(LABELS), name
        assert name.endswith(units) or not re.search(r"(age|duration|time)$", name), name


def test_an_alias_has_the_value_of_its_metric() -> None:
    at = rig()
    at.see(topic("a", [lag(1, 1.0)]), condemned=4, pin=OldestRequired("a", 0, "key", NOW_US, "why"))
    found = at.shown()
    shown = {name for name, _ in found}
    assert {old for old, new in ALIASES.items() if new in shown} == shown & set(ALIASES)
    for (name, labels), value in found.items():
        if name in ALIASES:
            assert found[ALIASES[name], labels] == value
    assert found[series("archiver_condemned_objects")] == 4
    for old, new in ALIASES.items():
        assert new not in ALIASES and METRICS[old].text.startswith(f"deprecated alias of {new},")
        assert (METRICS[old].kind, METRICS[old].labels) == (METRICS[new].kind, METRICS[new].labels)


def test_closed_sets_are_those_of_the_code() -> None:
    assert standings.STAGES == STAGES
    assert reasons.CAUSES == HELD_CAUSES == get_args(reasons.Cause)
    assert CAUSES == DECODE_CAUSES == get_args(Cause)
    assert get_args(CommitEnd) == COMMIT_ENDS
    assert get_args(Outcome) == OUTCOMES
    assert SIDES == ("key", "value")
    assert {route_of(endpoint.path) for endpoint in ENDPOINTS} == set(ROUTES) - {"other"}
    for endpoint in ENDPOINTS:
        if endpoint.reads and endpoint.path != "/":
            group = "console" if endpoint.name.startswith("page_") else "read"
            assert route_of(endpoint.path.replace("{", "").replace("}", "")) == group
        elif endpoint.name != "style":
            assert route_of(endpoint.path) == endpoint.path
    answered = {str(status) for endpoint in ENDPOINTS for status in endpoint.answers}
    assert answered <= set(STATUSES), "a status that the port can have is no series of its own"


@pytest.mark.parametrize(
    ("why", "cause"),
    [
        ("cannot be decoded as shop.Order: Wire format was corrupt", "malformed"),
        ("cannot be decoded as shop.Order: String field had bad UTF-8", "not_utf8"),
        (
            "cannot be decoded as a.B: field at: timestamp of 9 s and -1 ns is outside the years 1 to 9999",
            "time_range",
        ),
        (
            (
                "cannot be decoded as a.B: its registry envelope has schema id 9, which is not one of the "
                "topic's subject"
            ),
            "unknown_schema",
        ),
        (
            (
                "cannot be decoded as a.B: its registry envelope has message indexes [1], which is not the "
                "topic's message"
            ),
            "other_message",
        ),
        ("cannot be decoded as a.B: its registry envelope is cut off or damaged, after 3 bytes", "malformed"),
        ("", "malformed"),
    ],
)
def test_every_error_has_a_cause(why: str, cause: str) -> None:
    assert cause_of(why) == cause


def test_a_daemon_shows_what_its_roles_do() -> None:
    intake = Numbers(Journal(1), ManualClock(NOW_US), MetricsSettings(), "1", roles=["intake"])
    names = {name for name, _ in shown(intake.families(Writer(WriterMetrics(*range(13)))))}
    assert "archiver_intake_flushes_total" in names and "archiver_ready" in names
    assert not {
        name
        for name in names
        if METRICS.get(name, METRICS["archiver_ready"]).shown in ("archive", "reconcile")
    }
    assert "archiver_archive_rounds_total" not in names and "archiver_commit_seconds_count" not in names


# lag


def test_lag_per_partition_and_unknown_lag() -> None:
    at = rig()
    at.see(
        topic("a", [lag(3, 7.5), lag(0, 0.0)]),
        topic("b", [lag(None, None), lag(1, None)], valid_through_us=None, last_commit_us=None),
    )
    found = at.shown()
    assert found[series("archiver_lag_records", topic="a", partition=0, stage="committed")] == 3
    assert found[series("archiver_lag_seconds", topic="a", partition=0, stage="stable")] == 7.5
    assert found[series("archiver_lag_seconds", topic="a", partition=1, stage="archived")] == 0
    assert found[series("archiver_lag_records", topic="b", partition=1, stage="stable")] == 1
    assert series("archiver_lag_records", topic="b", partition=0, stage="stable") not in found
    assert series("archiver_lag_seconds", topic="b", partition=1, stage="stable") not in found
    assert found[series("archiver_lag_unknown_partitions", topic="b")] == 2
    assert found[series("archiver_freshness_seconds", topic="a")] == 9
    assert found[series("archiver_commit_age_seconds", topic="a")] == 5
    assert series("archiver_freshness_seconds", topic="b") not in found
    assert series("archiver_commit_age_seconds", topic="b") not in found
    assert found[series("archiver_held_partitions", reason="due")] == 4
    at.clock.advance(10)
    found = at.shown()
    assert found[series("archiver_watch_age_seconds")] == 10
    assert found[series("archiver_freshness_seconds", topic="a")] == 19, (
        "an age grows although the watch does not run"
    )


def test_partitions_beyond_the_bound_are_one_sum_per_topic() -> None:
    at = rig(partitions_max=3)
    at.see(topic("b", [lag(1, 1.0)] * 4), topic("a", [lag(10, 2.0), lag(20, 9.0)]))
    found = at.shown()
    assert found[series("archiver_lag_records", topic="a", partition=1, stage="stable")] == 20
    assert found[series("archiver_lag_records", topic="b", partition=0, stage="stable")] == 1
    assert found[series("archiver_lag_records", topic="b", partition=OTHER, stage="stable")] == 3
    assert found[series("archiver_lag_seconds", topic="b", partition=OTHER, stage="stable")] == 1.0
    assert found[series("archiver_aggregated_partitions")] == 3
    assert found[series("archiver_aggregated_topics")] == 0
    assert len([key for key in found if key[0] == "archiver_lag_records"]) == 4 * 3


def test_topics_beyond_the_bound_are_one_topic() -> None:
    at = rig(topics_max=1)
    at.see(
        topic("a", [lag(1, 1.0)]),
        topic("b", [lag(2, 8.0), lag(3, 4.0)]),
        topic("_other", [lag(4, 2.0)], stuck="why"),
    )
    found = at.shown()
    assert found[series("archiver_lag_records", topic=OTHER, partition=OTHER, stage="committed")] == 9
    assert found[series("archiver_lag_seconds", topic=OTHER, partition=OTHER, stage="committed")] == 8.0
    assert found[series("archiver_topic_stuck", topic=OTHER)] == 1
    assert found[series("archiver_topic_stuck", topic="a")] == 0
    assert found[series("archiver_aggregated_topics")] == 2
    at.see(topic("a", [lag(1, 1.0)]), topic("b", [lag(2, None), lag(None, 4.0)]), topic("c", [lag(4, 2.0)]))
    found = at.shown()
    assert series("archiver_lag_records", topic=OTHER, partition=OTHER, stage="committed") not in found, (
        "a part is unknown, so the sum is"
    )
    assert series("archiver_lag_seconds", topic=OTHER, partition=OTHER, stage="committed") not in found
    assert found[series("archiver_lag_unknown_partitions", topic=OTHER)] == 2


@pytest.mark.parametrize("bounds", [(0, 1), (5, 2), (1000, 1000), (100_000, 5)])
def test_ten_thousand_partitions_and_hostile_names(bounds: tuple[int, int]) -> None:
    rng = random.Random(5)
    at = rig(*bounds)
    names = [*HOSTILE, *(f"topic-{number}" for number in range(90))]
    at.see(
        *(topic(name, [lag(rng.randrange(9), rng.random())] * 100) for name in sorted(names)),
        logs={"intake": LogNumbers(3, 9), "control": LogNumbers(0, 4)},
        leader=True,
        epoch=3,
        condemned=4,
        checkpoint_index=3,
        pin=OldestRequired(HOSTILE[0], 3, "key", NOW_US - 1_000_000, "why"),
        sources={name: SourceNumbers(True, 1, 2, 3, 4, 5) for name in HOSTILE},
    )
    report = ArchiveReport(1, 3)
    for name in names:
        report.of(name).rows = 5
        report.of(name).decode_errors = {f"{side}:{cause}": 1 for side in SIDES for cause in DECODE_CAUSES}
        for end in get_args(CommitEnd):
            report.committing(CommitTry(name, rng.random() * 200, 2, end))
    at.numbers.archived(report)
    for name in HOSTILE:
        at.journal.checked(f"catalog {name}", name, NOW_US)
        for outcome in get_args(Outcome):
            at.journal.add(Cycle(name, NOW_US, 1.0, outcome, name))
    for job in ("tick", "cleanup", "audit", "watch", "x"):
        at.journal.add(Cycle(job, NOW_US, 1.0, "fine", "", {"verdict": "valid"}))
    for path in [*ROUTES, *HOSTILE, "/v1/topics/x/records"]:
        for status in range(100, 600):
            at.numbers.requested(route_of(path), status, 0.1)
    found = at.shown(Writer(WriterMetrics(*range(13))))
    assert len(found) <= series_max(*bounds, dependencies=len(HOSTILE), sources=len(HOSTILE)), len(found)
    total = sum(value for (name, labels), value in found.items() if name == "archiver_archive_records_total")
    assert total == 5 * len(names), "folding loses nothing"
    folded = {dict(labels)["topic"] for name, labels in found if name == "archiver_archive_records_total"}
    assert len(folded) <= bounds[1] + 1


def test_the_bound_of_series_is_met() -> None:
    """Every possible label value gives as many series as the formula says. Derived metrics have fewer label
    values."""
    at = rig(2, 1)
    at.see(
        topic("a", [lag(1, 1.0)] * 3),
        topic("b", [lag(1, 1.0)]),
        logs={"intake": LogNumbers(0, 1), "control": LogNumbers(0, 1)},
    )
    found = at.shown()
    lags = [key for key in found if key[0] == "archiver_lag_records"]
    assert len(lags) == (2 + 1 + 1) * 3
    assert len([key for key in found if key[0] == "archiver_topic_stuck"]) == 2
    assert len([key for key in found if key[0].startswith("archiver_commit_seconds")]) == 14


# what only grows


class Writer:
    """The counters of an intake writer."""

    def __init__(self, numbers: WriterMetrics) -> None:
        self.numbers = numbers

    def metrics(self) -> WriterMetrics:
        return self.numbers


def test_counters_go_on_when_the_writer_is_opened_again() -> None:
    at, first = rig(), Writer(WriterMetrics(*([7] * 13)))
    ok, queue = series("archiver_intake_records_ok_total"), series("archiver_intake_queue_bytes")
    assert series("archiver_intake_records_ok_total") not in at.shown(), "without a writer there is no value"
    assert (at.shown(first)[ok], at.shown(first)[queue]) == (7, 7)
    first.numbers = replace(first.numbers, records_ok=9)
    found = at.shown(None)
    assert found[ok] == 9 and queue not in found
    second = Writer(WriterMetrics(*([2] * 13)))
    assert (at.shown(second)[ok], at.shown(second)[queue]) == (11, 2)
    assert at.shown(second)[ok] == 11


def test_sums_of_other_topics_never_step_back() -> None:
    at = rig(topics_max=2)
    seen: Mapping[Any, float] = {}
    rng = random.Random(3)
    for _ in range(50):
        report = ArchiveReport()
        for name in rng.sample(["a", "b", "c", "d", "e", "_other"], 3):
            report.of(name).rows = rng.randrange(5)
            report.of(name).decode_errors = {"value:malformed": 1}
        at.numbers.archived(report)
        found = at.shown()
        for key, value in seen.items():
            if key[0].endswith("_total") and not key[0].startswith("process_"):
                assert found[key] >= value, key
        seen = found
    assert {dict(labels)["topic"] for name, labels in seen if name == "archiver_archive_records_total"} >= {
        OTHER
    }


def test_counters_of_topics_begin_with_0() -> None:
    at = rig()
    at.numbers.declare(
        [
            TopicSettings.model_validate({"name": "kept", "partitions": 1, "archive": {"kind": "none"}}),
            TopicSettings.model_validate(
                {
                    "name": "raw",
                    "partitions": 1,
                    "archive": {"kind": "iceberg", "catalog": "c", "table": "a.b"},
                }
            ),
        ]
    )
    found = at.shown()
    assert found[series("archiver_archive_records_total", topic="raw")] == 0
    assert found[series("archiver_commits_total", topic="raw", end="committed")] == 0
    assert not any(name == "archiver_decode_errors_total" for name, _ in found), "nothing of it is decoded"
    assert not any(("topic", "kept") in labels for _, labels in found)


def test_what_runs_did() -> None:
    at = rig()
    report = ArchiveReport(rounds=2)
    report.of("a").rows, report.of("a").raw_bytes, report.of("a").gaps = 10, 1000, 2
    report.of("a").not_decoded({"value:malformed": 2})
    report.of("a").not_decoded({"value:malformed": 1, "key:not_utf8": 4})
    report.committing(CommitTry("a", 0.3, 1, "committed"))
    report.committing(CommitTry("a", 500.0, 4, "unknown"))
    at.numbers.archived(report)
    at.numbers.archived(report)
    at.numbers.cleaned(CleanReport(True, 0, condemned=["x"]))
    compacted = [TopicCompaction("a", merged=1, archives=4), TopicCompaction("b", merged=1, archives=2)]
    at.numbers.cleaned(CleanReport(False, 0, condemned=["x"], deleted=["y", "z"], compacted=compacted))
    found = at.shown()
    assert found[series("archiver_archive_rounds_total")] == 4
    assert found[series("archiver_archive_records_total", topic="a")] == 20
    assert found[series("archiver_archive_gap_offsets_total", topic="a")] == 4
    assert found[series("archiver_decode_errors_total", topic="a", side="value", cause="malformed")] == 6
    assert found[series("archiver_decode_errors_total", topic="a", side="key", cause="not_utf8")] == 8
    assert found[series("archiver_commits_total", topic="a", end="unknown")] == 2
    assert found[series("archiver_commit_attempts_total", topic="a")] == 10
    assert found[series("archiver_commit_seconds_count")] == 4
    assert found[series("archiver_commit_seconds_sum")] == pytest.approx(1000.6)
    assert found[series("archiver_commit_seconds_bucket", le="0.25")] == 0
    assert found[series("archiver_commit_seconds_bucket", le="0.5")] == 2
    assert found[series("archiver_commit_seconds_bucket", le="120.0")] == 2
    assert found[series("archiver_commit_seconds_bucket", le="+Inf")] == 4
    cleaned = [
        found[series(f"archiver_clean_{what}_total")] for what in ("condemned", "deleted", "compacted")
    ]
    assert cleaned == [1, 2, 6]


def test_changes_of_schemas_are_counted_by_compatibility() -> None:
    at = rig()
    report = ArchiveReport()
    report.of("orders").schema_change = {
        "from": 1,
        "to": 2,
        "changes": 3,
        "incompatible": 2,
        "incompatible_fields": ["value.price"],
    }
    report.of("events").schema_change = {
        "from": 4,
        "to": 5,
        "changes": 1,
        "incompatible": 0,
        "incompatible_fields": [],
    }
    report.of("other")
    at.numbers.archived(report)
    at.numbers.archived(report)
    found = at.shown()
    assert found[series("archiver_schema_changes_total", topic="orders", compatibility="incompatible")] == 2
    assert found[series("archiver_schema_changes_total", topic="events", compatibility="compatible")] == 2
    assert series("archiver_schema_changes_total", topic="other", compatibility="compatible") not in found


def test_findings_are_shown_by_id_and_what_was_repaired_is_counted() -> None:
    at = rig()
    assert not any("archiver_findings{" in name for name in at.shown()), "absent before the first reconciling"
    gap, pending = (
        Finding("gap", "error", "a", 0, "x", "y"),
        Finding("missing-in-catalog", "warning", "a", 0, "x", "y", safe=True),
    )
    at.numbers.reconciled(ReconcileReport("safe", 0, [(gap, False), (gap, False), (pending, True)]))
    found = at.shown()
    assert found[series("archiver_findings", finding="gap", severity="error")] == 2
    assert found[series("archiver_findings", finding="missing-in-catalog", severity="warning")] == 0
    assert found[series("archiver_findings", finding="rolled-back", severity="error")] == 0, (
        "every id has a series"
    )
    assert found[series("archiver_findings_fixed_total", finding="missing-in-catalog")] == 1
    at.numbers.reconciled(ReconcileReport("everything", 0, []), whole=False)
    assert at.shown()[series("archiver_findings", finding="gap", severity="error")] == 2, (
        "one topic says nothing of the others"
    )
    at.numbers.reconciled(ReconcileReport("safe", 0, [], error=RetryLater("away")))
    assert at.shown()[series("archiver_findings", finding="gap", severity="error")] == 2, (
        "nor does a run that could not inspect anything"
    )
    at.numbers.reconciled(ReconcileReport("safe", 0, []))
    assert at.shown()[series("archiver_findings", finding="gap", severity="error")] == 0


def test_sources_go_on_when_they_are_opened_again() -> None:
    at = rig()
    records = series("archiver_source_records_total", source="in/*.jsonl")
    for now, total in ((0, 0), (5, 5), (9, 9), (2, 11), (2, 11), (4, 13)):
        states = [
            FilesState("in/*.jsonl", "a", "jsonl", waiting=3, failed=1, records=now),
            FilesState("x", "b", "jsonl", trouble="why"),
        ]
        at.see(sources=sources_of(states))
        assert at.shown()[records] == total
    found = at.shown()
    assert found[series("archiver_source_files", source="in/*.jsonl", state="waiting")] == 3
    assert (
        found[series("archiver_source_up", source="in/*.jsonl")],
        found[series("archiver_source_up", source="x")],
    ) == (1, 0)
    same = [FilesState("x", "a", "jsonl", failed=1), FilesState("x", "b", "jsonl", failed=2, trouble="why")]
    assert sources_of(same) == {"x": SourceNumbers(False, 0, 3, 0, 0, 0)}


# the journal, the port


def test_cycles_checks_and_the_audit() -> None:
    at = rig()
    assert not any(name.startswith("archiver_audit") for name, _ in at.shown())
    at.journal.add(Cycle("audit", NOW_US - 60_000_000, 2.0, "wrong", "invalid", {"verdict": "invalid"}))
    at.journal.add(Cycle("tick", NOW_US, 0.5, "fine", ""))
    at.journal.add(Cycle("tick", NOW_US, 1.5, "fine", ""))
    at.journal.checked("metadata", None, NOW_US - 3_000_000)
    at.journal.becomes("serving")
    assert at.shown()[series("archiver_ready")] == 1
    at.journal.checked("catalog local", "down", NOW_US - 1_000_000)
    found = at.shown()
    assert found[series("archiver_ready")] == 0
    assert [
        found[series("archiver_audit_verdict", verdict=one)] for one in ("valid", "invalid", "unknown")
    ] == [0, 1, 0]
    assert found[series("archiver_audit_age_seconds")] == 60
    assert not any(name.startswith("archiver_deep_audit") for name, _ in at.shown()), "there was none yet"
    at.journal.add(Cycle("deep_audit", NOW_US - 90_000_000, 2.0, "untold", "unknown", {"verdict": "unknown"}))
    deep = at.shown()
    assert [
        deep[series("archiver_deep_audit_verdict", verdict=one)] for one in ("valid", "invalid", "unknown")
    ] == [0, 0, 1]
    assert deep[series("archiver_deep_audit_age_seconds")] == 90
    assert found[series("archiver_cycles_total", job="tick", outcome="fine")] == 2
    assert found[series("archiver_cycle_seconds_total", job="tick", outcome="fine")] == 2.0
    assert found[series("archiver_cycle_last_seconds", job="tick")] == 1.5
    assert found[series("archiver_cycle_age_seconds", job="audit")] == 60
    assert found[series("archiver_dependency_up", dependency="metadata")] == 1
    assert found[series("archiver_dependency_up", dependency="catalog local")] == 0
    assert found[series("archiver_dependency_age_seconds", dependency="catalog local")] == 1


def test_requests_are_counted_by_route_and_status() -> None:
    at, reported = rig(), Counter[tuple[str, int]]()

    async def application(scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] != "/broken":
            await send({"type": "http.response.start", "status": scope["status"], "headers": []})
            await send({"type": "http.response.body", "body": b""})
        elif scope["type"] == "http":
            raise ConnectionError("gone")

    async def nothing() -> Message:
        return {}

    async def sent(message: Message) -> None:
        reported[message["type"], message.get("status", 0)] += 1

    counted = counting(application, at.numbers.requested, at.clock)

    async def all_of_them() -> None:
        for path, status in (
            ("/metrics", 200),
            ("/v1/topics/a%20b/records", 429),
            ("/v1/topics/a/records", 200),
            ("/secret/path", 404),
        ):
            await counted({"type": "http", "path": path, "status": status}, nothing, sent)
        await counted({"type": "lifespan"}, nothing, sent)
        with pytest.raises(ConnectionError):
            await counted({"type": "http", "path": "/broken"}, nothing, sent)

    asyncio.run(all_of_them())
    found = at.shown()
    records = "/v1/topics/{topic}/records"
    assert found[series("archiver_http_requests_total", route=records, status=429)] == 1
    assert found[series("archiver_http_requests_total", route=records, status=200)] == 1
    assert found[series("archiver_http_requests_total", route="/metrics", status=200)] == 1
    assert found[series("archiver_http_requests_total", route="other", status=404)] == 1
    assert found[series("archiver_http_requests_total", route="other", status=500)] == 1
    assert series("archiver_http_request_seconds_total", route=records) in found
    assert reported["http.response.start", 429] == 1
    assert b"secret" not in exposition(at.numbers.families(None))
