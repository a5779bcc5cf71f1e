"""The metrics of a real application: exactly the names of the table are exported, and the numbers equal what
was done.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from archiver.config.daemon import MetricsSettings
from archiver.daemon.status_poller import StatusPoller
from archiver.refine.task import PlanResult, RefineJob
from archiver.runtime import failpoints
from archiver.runtime.errors import RetryLater
from archiver.runtime.metric_names import METRICS
from archiver.status.history import LagHistory
from archiver.status.journal import Cycle, Journal
from archiver.status.metric_registry import Numbers, sources_of
from intake.records import Record
from intake.sources.files.source import FilesState
from intake.write.writer import IntakeWriter
from reconcile.snapshot.oldest_required import metrics_of
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import WAIT_S, Driver, refine_here
from tests.support.process.scrapes import Series, series, shown, table_names
from tests.support.schema.protos import TIMESTAMP, F, descriptor_set, field, file_of

BROKEN: dict[str, bytes] = {
    "malformed": b"\x08",
    "not_utf8": b"\x12\x02\xff\xfe",
    "time_range": b"\x1a\x0a\x08" + b"\x80" * 8 + b"\x01",
}
"""For each cause an event whose decoding fails for it: a truncated number, bad text, a time in the far
future."""
GOOD = b"\x08\x07\x12\x03ada"

ELSEWHERE = (
    "archiver_mirror_",
    "archiver_control_topic_",
    "archiver_kafka_",
    "archiver_group_lag_",
    "archiver_intake_worker",
)
"""Prefixes of parts that this application does not have; test_kafka_served.py, test_control_topic_served.py,
test_kafka_observed.py, test_groups_command.py and test_intake_workers.py scrape them."""


def deployment_in(folder: Path) -> Deployment:
    """A topic with schemas for key and value, one without, and one with archives but no table."""
    file = file_of(name="event.proto", package="log")
    event = file.message_type.add(name="Event")
    field(event, "number", 1, F.TYPE_INT64)
    field(event, "name", 2, F.TYPE_STRING)
    field(event, "at", 3, F.TYPE_MESSAGE, type_name=TIMESTAMP)
    schema = {"descriptor_set": "event.binpb", "message": "log.Event"}
    topics = [
        {
            "name": "events",
            "partitions": 2,
            "key": schema,
            "value": schema,
            "archive": {"kind": "iceberg", "catalog": "local", "table": "log.events"},
        },
        {
            "name": "clicks",
            "partitions": 1,
            "archive": {"kind": "iceberg", "catalog": "local", "table": "log.clicks"},
        },
        {"name": "files", "partitions": 1, "archive": {"kind": "parquet"}},
    ]
    made = Deployment(folder, failpoints_asked=True, overrides={"topics": topics})
    (made.root / "event.binpb").write_bytes(descriptor_set(file))
    return made


class Process:
    """The metrics objects that a daemon keeps, around one application."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.journal = Journal(50)
        self.numbers = Numbers(self.journal, driver.clock, MetricsSettings(), "0.1.0")
        self.numbers.declare(driver.application.settings.topics)
        self.sight = StatusPoller(
            self.numbers, LagHistory(3600.0, 10), driver.clock, driver.application.owner
        )
        self.writer: IntakeWriter | None = None

    def look(self) -> None:
        states = [FilesState("in/*", "clicks", "jsonl", waiting=1, files=2, records=30, bytes=400)]
        self.sight.poll(self.driver.application, {}, sources_of(states))

    def scrape(self) -> dict[Series, float]:
        return shown(self.numbers.families(self.writer))

    def archive(self, refine: Any = refine_here) -> None:
        run = self.driver.run(refine)
        try:
            run.run(everything=True)
        finally:
            self.numbers.archived(run.report)

    def send(self, topic: str, records: Sequence[Record], partition: int) -> None:
        assert self.writer is not None
        pending = [self.writer.send(topic, record, partition) for record in records]
        self.writer.flush()
        assert all(one.result(WAIT_S).outcome == "ok" for one in pending)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    with Driver(deployment_in(tmp_path / "d")) as driver:
        made = Process(driver)
        with driver.application.intake.writer() as writer:
            made.writer = writer
            yield made


def lag(topic: str, partition: int, stage: str) -> Series:
    return series("archiver_lag_records", topic=topic, partition=partition, stage=stage)


def test_lag_rows_bytes_and_commits_are_what_was_done(process: Process) -> None:
    process.send("events", [Record(b"\x08\x01", GOOD)] * 7 + [Record(None, None)], 0)
    process.send("events", [Record(None, GOOD)] * 3, 1)
    process.send("clicks", [Record(b"k", b"v" * 100)] * 5, 0)
    process.driver.clock.ahead_s = 40
    process.look()
    before = process.scrape()
    for stage in ("archived", "committed"):
        assert [before[lag("events", number, stage)] for number in (0, 1)] == [8, 3]
        assert (
            40
            <= before[series("archiver_lag_seconds", topic="clicks", partition=0, stage=stage)]
            < 40 + WAIT_S
        )
    assert before[lag("events", 0, "stable")] == 0
    assert before[series("archiver_archive_records_total", topic="events")] == 0
    assert series("archiver_commit_age_seconds", topic="events") not in before, "no commit yet"
    assert series("archiver_freshness_seconds", topic="events") not in before
    assert before[series("archiver_intake_records_ok_total")] == 16
    process.archive()
    process.look()
    after = process.scrape()
    assert all(
        value == 0
        for (name, _), value in after.items()
        if name in ("archiver_lag_records", "archiver_lag_seconds")
    )
    application = process.driver.application
    for topic, rows, raw in (("events", 11, 7 * (2 + len(GOOD)) + 3 * len(GOOD)), ("clicks", 5, 5 * 101)):
        table = application.table(topic)
        assert table is not None
        files = application.live_files("local", table)
        assert (
            after[series("archiver_archive_records_total", topic=topic)]
            == rows
            == sum(file.record_count for file in files)
        )
        assert after[series("archiver_archive_files_total", topic=topic)] == len(files)
        assert after[series("archiver_archive_stored_bytes_total", topic=topic)] == sum(
            file.file_size for file in files
        )
        assert after[series("archiver_archive_raw_bytes_total", topic=topic)] == raw
        assert (
            after[series("archiver_commits_total", topic=topic, end="committed")]
            == 1
            == len(list(table.lineage()))
        )
        assert after[series("archiver_commit_attempts_total", topic=topic)] == 1
        assert after[series("archiver_commit_age_seconds", topic=topic)] < WAIT_S
        assert after[series("archiver_freshness_seconds", topic=topic)] < WAIT_S
    assert after[series("archiver_commit_seconds_count")] == 2
    assert 0 < after[series("archiver_commit_seconds_sum")] < WAIT_S
    assert after[series("archiver_log_tail", log="intake")] == application.intake_log.tail()
    assert after[series("archiver_log_entries", log="control")] == application.control_log.tail()
    assert after[series("archiver_epoch")] == application.ledger().epoch


def test_decode_errors_by_cause(process: Process) -> None:
    for count, (_, payload) in enumerate(BROKEN.items(), start=1):
        process.send("events", [Record(None, payload), Record(None, GOOD)] * count, 0)
        process.send("events", [Record(payload, None)] * (count + 10), 1)
        process.send("clicks", [Record(payload, payload)] * 5, 0)
    assert set(process.scrape()) >= {
        series("archiver_decode_errors_total", topic="events", side="key", cause=cause) for cause in BROKEN
    }
    process.archive()
    found = process.scrape()
    for count, cause in enumerate(BROKEN, start=1):
        assert (
            found[series("archiver_decode_errors_total", topic="events", side="value", cause=cause)] == count
        )
        assert (
            found[series("archiver_decode_errors_total", topic="events", side="key", cause=cause)]
            == count + 10
        )
    assert not any(
        name == "archiver_decode_errors_total" and ("topic", "clicks") in labels for name, labels in found
    )


def test_a_lost_reply_is_one_commit_of_two_attempts(process: Process) -> None:
    process.send("clicks", [Record(None, b"v")], 0)
    failpoints.arm("table.swap.after=unknown")
    process.archive()
    found = process.scrape()
    assert found[series("archiver_commits_total", topic="clicks", end="committed")] == 1
    assert found[series("archiver_commit_attempts_total", topic="clicks")] == 2
    assert found[series("archiver_archive_records_total", topic="clicks")] == 1


def test_a_run_that_raises_counts_what_it_did(process: Process) -> None:
    process.send("clicks", [Record(None, b"v")] * 3, 0)
    failpoints.arm("settled.append.before=error")
    with pytest.raises(RetryLater):
        process.archive()
    found = process.scrape()
    assert found[series("archiver_archive_records_total", topic="clicks")] == 3
    assert found[series("archiver_commits_total", topic="clicks", end="committed")] == 1
    assert found[series("archiver_archive_rounds_total")] == 1


def test_a_refused_commit_has_its_end(process: Process) -> None:
    process.send("clicks", [Record(None, b"v")], 0)
    failpoints.arm("table.swap.before=error")
    process.archive()
    found = process.scrape()
    ends = {
        dict(labels)["end"]: value
        for (name, labels), value in found.items()
        if name == "archiver_commits_total" and ("topic", "clicks") in labels
    }
    assert sum(ends.values()) == found[series("archiver_commit_seconds_count")] >= 1
    assert ends["committed"] + ends.get("retry", 0) == sum(ends.values())
    assert found[series("archiver_archive_records_total", topic="clicks")] == 1


def test_every_name_is_exported_and_every_exported_name_is_in_the_table(process: Process) -> None:
    process.send("events", [Record(None, GOOD)], 0)
    process.archive()
    application = process.driver.application
    cleaned = application.maintenance.cleaning(process.driver.reported.append).run()
    process.numbers.cleaned(cleaned)
    process.sight.set_oldest_required(cleaned.pin)
    for job in ("audit", "deep_audit"):
        process.journal.add(
            Cycle(
                job, process.driver.clock.now_us(), 1.0, "fine", "valid", application.maintenance.audit(None)
            )
        )
    process.numbers.reconciled(
        application.maintenance.reconciling(process.driver.reported.append).run(), whole=True
    )
    application.sequencer.open_producer("", 0)
    process.journal.checked("metadata", None, process.driver.clock.now_us())
    process.numbers.requested("/metrics", 200, 0.01)
    process.look()
    found = process.scrape()
    elsewhere = {name for name in METRICS if name.startswith(ELSEWHERE)}
    assert len(elsewhere) == 31
    assert table_names(found) == set(METRICS) - elsewhere
    assert found[series("archiver_audit_verdict", verdict="valid")] == 1
    assert found[series("archiver_checkpoint_index")] == application.sequencer.checkpoint_index
    assert found[series("archiver_intake_producers")] == 1
    pin = cleaned.pin
    now_us = process.driver.clock.now_us()
    assert {name.partition("{")[0] for name in metrics_of(pin, now_us)} <= set(METRICS)


def test_a_scrape_touches_nothing(process: Process) -> None:
    """The watch's last state is shown though logs, catalog and data folder are closed; and its age grows."""
    process.send("events", [Record(None, GOOD)] * 4, 1)
    process.look()
    before = process.scrape()
    assert process.writer is not None
    process.writer.close()
    process.driver.application.close()
    process.driver.deployment.data.rename(process.driver.deployment.root / "elsewhere")
    process.driver.clock.ahead_s += 100
    after = process.scrape()
    assert after[lag("events", 1, "committed")] == before[lag("events", 1, "committed")] == 4
    age = series("archiver_watch_age_seconds")
    assert after[age] - before[age] >= 100
    process.driver.deployment.root.joinpath("elsewhere").rename(process.driver.deployment.data)


def test_an_archive_that_is_adopted_is_told_as_it_is(process: Process) -> None:
    """A first attempt that stored its files and went no further: the second finds them there, and counts one
    archive."""
    process.send("events", [Record(None, BROKEN["malformed"])] * 6, 0)

    def lost(job: RefineJob) -> list[PlanResult]:
        refine_here(job)
        raise RetryLater("the workers are gone")

    with pytest.raises(RetryLater):
        process.archive(lost)
    process.archive()
    found = process.scrape()
    assert found[series("archiver_archive_records_total", topic="events")] == 6
    assert found[series("archiver_decode_errors_total", topic="events", side="value", cause="malformed")] == 6
