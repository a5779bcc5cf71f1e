"""Transactions in archives, in tables, for readers and in the audit.

Log, store, ledger and catalog are real; only Spark is left out.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from archiver.api import Reader
from archiver.app.intake import Intake
from archiver.catalog.table_layout import RANGES
from archiver.refine.task import PlanResult, RefineJob
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver, catalog_table
from tests.support.intake.transactions import Transactional
from tests.support.schema.orders import order

ORDERS = ("orders", 0)


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path / "d")


@pytest.fixture
def driver(deployment: Deployment) -> Iterator[Driver]:
    with Driver(deployment) as made:
        made.application.intake.writer().close()  # declares the topics
        yield made


def producer(driver: Driver, name: str, timeout_s: float = 3600.0) -> Transactional:
    return Transactional(driver.application, driver.clock, name, timeout_s)


def values(count: int, first: int = 0) -> list[bytes | None]:
    return [order(number) for number in range(first, first + count)]


def table_rows(deployment: Deployment, name: str) -> dict[int, list[int]]:
    """Offsets per partition of a table's rows, read without the project's code."""
    found: dict[int, list[int]] = {}
    with catalog_table(deployment, name) as table:
        for task in table.scan().plan_files():
            places: list[Any] = (
                pq.read_table(task.file.file_path.removeprefix("file://"), columns=["kafka"])
                .column("kafka")
                .to_pylist()
            )
            for place in places:
                found.setdefault(place["partition"], []).append(place["offset"])
    return {partition: sorted(offsets) for partition, offsets in found.items()}


def read(
    driver: Driver, topic: str, partition: int, start: int = 0, *, uncommitted: bool = False
) -> list[int]:
    stream = driver.application.stream()
    return [
        record.offset
        for record in stream.read(driver.topic_id(topic), partition, start, uncommitted=uncommitted)
    ]


def audited(driver: Driver, topic: str, partition: int = 0) -> dict[str, Any]:
    found: list[dict[str, Any]] = driver.audit()["partitions"]
    return next(item for item in found if (item["topic"], item["partition"]) == (topic, partition))


def no_refining(job: RefineJob) -> list[PlanResult]:
    raise AssertionError("there is no record to refine")


def mixed(driver: Driver) -> tuple[Transactional, Transactional]:
    """Partition 0 of orders: 0-4 plain, 5-7 committed, 8-9 aborted, 10-11 plain, 12-13 open, 14 committed, 15
    plain; and clicks."""
    committing, aborting = producer(driver, "committing"), producer(driver, "aborting")
    driver.send("orders", values(5), 0)
    committing.send({ORDERS: values(3), ("orders", 1): values(2), ("clicks", 0): [b"a"]})
    aborting.send({ORDERS: values(2), ("orders", 2): values(4), ("clicks", 0): [b"b"]})
    driver.send("orders", values(2), 0)
    assert (committing.commit(), aborting.abort()) == (None, None)
    aborting.send({ORDERS: values(2)})
    committing.send({ORDERS: values(1)})
    committing.commit()
    driver.send("orders", values(1), 0)
    return committing, aborting


def test_exactly_the_committed_records_are_archived_and_read(driver: Driver, deployment: Deployment) -> None:
    _, aborting = mixed(driver)
    before = {partition: read(driver, "orders", partition) for partition in range(3)}
    assert before == {0: [*range(8), 10, 11], 1: [0, 1], 2: []}
    assert read(driver, "orders", 0, uncommitted=True) == [*range(8), *range(10, 16)]

    report = driver.archive().of("orders")
    assert driver.watermarks("orders") == {0: 12, 1: 2, 2: 4}, (
        "nothing at or past the stable offset; what was aborted is passed"
    )
    assert (report.rows, report.gaps, report.archives) == (12, 6, 2)
    assert table_rows(deployment, "shop.orders") == {0: before[0], 1: before[1]}
    assert table_rows(deployment, "shop.clicks") == {0: [0]}
    assert {partition: read(driver, "orders", partition) for partition in range(3)} == before
    assert read(driver, "orders", 0, uncommitted=True) == [*range(8), *range(10, 16)]
    document = driver.audit()
    assert document["verdict"] == "valid", document
    assert audited(driver, "orders")["gaps"] == [[8, 10]]
    assert audited(driver, "orders", 2) | {"why": None} == audited(driver, "orders", 2)
    assert audited(driver, "orders", 2)["gaps"] == [[0, 4]]

    aborting.abort()
    assert audited(driver, "orders")["gaps"] == [[8, 10], [12, 14]], "also above the watermark"
    driver.archive()
    driver.check_complete("orders", "clicks")
    assert (
        table_rows(deployment, "shop.orders")[0] == [*range(8), 10, 11, 14, 15] == read(driver, "orders", 0)
    )
    assert driver.archive().rounds == 0, "nothing is left"


def test_archives_name_their_gaps(driver: Driver, deployment: Deployment) -> None:
    _, aborting = mixed(driver)
    aborting.abort()
    driver.archive()
    found = {}
    for path in sorted(deployment.data.glob("archive/*/data/partition=00000/**/*.parquet")):
        metadata = pq.read_metadata(path).metadata or {}
        if metadata[b"archiver.topic"] == b"orders":
            found[path.name.rpartition("-")[0]] = metadata[b"archiver.gaps"]
    assert found == {f"{0:020}-{16:020}": b"[[8, 10], [12, 14]]"}
    ledger = driver.application.ledger().topic(driver.topic_id("orders"))
    assert ledger.passed.ranges(0) == ()
    assert ledger.passed.ranges(2) == ((0, 4),), "a range without any record has no file to say so"


def test_reading_from_inside_a_gap_goes_on_behind_it(driver: Driver) -> None:
    mixed(driver)
    wanted = [10, 11]
    assert [read(driver, "orders", 0, start) for start in (8, 9, 10)] == [wanted] * 3
    driver.archive()
    assert [read(driver, "orders", 0, start) for start in (8, 9, 10)] == [wanted] * 3
    assert read(driver, "orders", 2, 1) == []


@pytest.mark.parametrize("kind", ["iceberg", "parquet"])
def test_a_topic_with_only_aborted_records_advances(kind: str, tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "d")
    document = deployment.document()
    if kind == "parquet":
        document["topics"][0]["archive"] = {"kind": "parquet"}
    deployment.write(document)
    with Driver(deployment) as driver:
        driver.application.intake.writer().close()
        aborting = producer(driver, "aborting")
        for _ in range(3):
            aborting.send({ORDERS: values(3)})
            aborting.abort()
        report = driver.archive(refine=no_refining)
        assert (
            report.rounds,
            report.of("orders").state,
            report.of("orders").archives,
            report.of("orders").gaps,
        ) == (1, "archived", 0, 9)
        assert driver.watermarks("orders") == {0: 9}
        item = audited(driver, "orders")
        assert (item["verdict"], item["gaps"], item["watermark"], item["rows"]) == ("valid", [[0, 9]], 9, 0)
        assert driver.archive(refine=no_refining).rounds == 0
        driver.send("orders", values(2), 0)
        driver.archive()
        driver.check_complete("orders")
        assert read(driver, "orders", 0) == [9, 10]
        if kind == "iceberg":
            with catalog_table(deployment, "shop.orders") as table:
                assert [snapshot.summary[RANGES] for snapshot in table.snapshots()] == ["0:0-9", "0:9-11"]


def test_gaps_alone_are_not_worth_a_snapshot_each(driver: Driver, deployment: Deployment) -> None:
    """By the triggers, gaps alone are passed with the topic's next archive, or once in `complete_delay_max`."""
    aborting = producer(driver, "aborting")
    driver.send("orders", values(1), 1)
    driver.archive()
    aborting.send({ORDERS: values(3)})
    aborting.abort()
    assert driver.archive(everything=False, refine=no_refining).rounds == 0
    driver.clock.ahead_s = 301
    assert driver.archive(everything=False, refine=no_refining).rounds == 1
    assert driver.watermarks("orders") == {0: 3, 1: 1}
    aborting.send({ORDERS: values(1)})
    aborting.abort()
    driver.send("orders", values(1), 1)
    assert driver.archive(everything=False).rounds == 0
    driver.clock.ahead_s = 340
    assert driver.archive(everything=False).rounds == 1, "the idle partition takes the other one along"
    assert driver.watermarks("orders") == {0: 4, 1: 2}
    driver.check_complete("orders")


@pytest.fixture
def without_upkeep(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer does not abort overdue transactions, so that the round is first. For writers that start later."""
    monkeypatch.setattr(Intake, "end_overdue", lambda self: None)


@pytest.mark.usefixtures("without_upkeep")
def test_an_open_transaction_holds_back_and_is_named_until_its_time_is_over(
    driver: Driver, deployment: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    slow = producer(driver, "slow-one", timeout_s=60.0)
    driver.send("orders", values(2), 0)
    slow.send({ORDERS: values(3)})
    driver.send("orders", values(4), 0)
    report = driver.archive().of("orders")
    assert driver.watermarks("orders") == {0: 2}
    assert report.held[0] | {"since": 0, "deadline": 0} == {
        "partition": 0,
        "transactional_id": "slow-one",
        "producer_id": slow.producer_id,
        "epoch": 0,
        "since": 0,
        "deadline": 0,
        "waiting": 7,
    }
    assert "7 offsets wait for open transactions, the oldest of them slow-one" in str(report.why)

    status = deployment.cli("status", "--output", "json").json()
    (orders,) = [item for item in status["topics"] if item["topic"] == "orders"]
    assert [(item["partition"], item["transactional_id"], item["waiting"]) for item in orders["held"]] == [
        (0, "slow-one", 7)
    ]
    assert not any("slow-one" in line for line in status["attention"]), "it has its time"
    reported = deployment.cli("status").out
    assert "held back by open transactions" in reported
    assert "slow-one" in reported
    assert orders["held"][0]["deadline"][:19].replace("T", " ") + " UTC" in reported
    assert "after its time a running writer or the next `archiver archive` aborts it" in reported

    driver.clock.ahead_s = 61
    with caplog.at_level(logging.WARNING, logger="archiver.publish.round"):
        driver.archive()
    (message,) = caplog.messages
    named = f"transaction slow-one of producer {slow.producer_id} \\(epoch 0\\) was open for ([0-9]+) s"
    # The clock is 61 s ahead, and the test takes its time.
    assert (found := re.match(named, message)) is not None and int(found[1]) >= 61
    assert message in driver.reported
    assert driver.watermarks("orders") == {0: 9}
    assert read(driver, "orders", 0) == [0, 1, 5, 6, 7, 8]
    driver.check_complete("orders")
    assert slow.commit() == "fenced", "a late commit touches nothing"
    driver.check_complete("orders")


def test_a_round_forgets_the_producers_above_the_limit(tmp_path: Path) -> None:
    with Driver(Deployment(tmp_path / "d", overrides={"intake": {"producers_max": 100}})) as driver:
        driver.send("orders", values(1))
        sequencer = driver.application.sequencer
        opened = [sequencer.open_producer("", 0)[0] for _ in range(103)]
        driver.archive()
        assert len(sequencer.refresh().producers) == 103  # each was used within `intake.producer_idle_min`
        driver.clock.ahead_s = 1800 + 60
        driver.archive()
        assert [one.producer_id for one in sequencer.refresh().producers] == opened[3:]


def test_an_overdue_transaction_needs_attention(deployment: Deployment) -> None:
    with Driver(deployment) as driver:
        driver.application.intake.writer().close()
        driver.clock.ahead_s = -100  # For the writer here it is not overdue, or the writer would abort it.
        producer(driver, "late", timeout_s=60.0).send(
            {ORDERS: values(1), ("orders", 1): values(2), ("clicks", 0): values(1)}
        )
        done = deployment.cli("status", "--exit-code")
        assert done.code == 1
        assert "note: transaction late (" in done.out
        (note,) = [
            line
            for line in deployment.cli("status", "--output", "json").json()["attention"]
            if "late" in line
        ]
        assert "it timed out at 20" in note, "reported once, though it holds three partitions"
        assert (
            "the next `archiver archive` aborts it, and opening its transactional id again does so at once"
            in note
        )


def test_idle_producers_are_forgotten_and_busy_ones_are_not(driver: Driver) -> None:
    idle, busy = producer(driver, "idle"), producer(driver, "busy", timeout_s=86400.0 * 30)
    idle.send({ORDERS: values(1)})
    idle.commit()
    busy.send({("orders", 1): values(1)})
    fold = driver.application.sequencer.fold
    driver.clock.ahead_s = 7 * 86400 - 60
    driver.archive()
    assert {one.transactional_id for one in fold.producers} == {"idle", "busy"}
    driver.clock.ahead_s = 7 * 86400 + 60
    driver.archive()
    assert {one.transactional_id for one in fold.producers} == {"busy"}
    assert idle.try_send({ORDERS: values(1)})[0].refusal == "unknown_producer"


def test_a_range_with_gaps_across_days(driver: Driver, deployment: Deployment) -> None:
    """Midnight falls into the gap, before it, and after it; each gap is named by exactly one file."""
    now_s = driver.clock.now_us() / 1e6
    to_midnight = 86400 - now_s % 86400
    aborting = producer(driver, "aborting", timeout_s=30 * 86400.0)
    expected: list[int] = []
    at = 0
    for day in range(3):
        for step in range(3):
            driver.clock.ahead_s = to_midnight + 86400 * day - 30 + 20 * step
            driver.send("orders", values(2), 0)
            expected += [at, at + 1]
            aborting.send({ORDERS: values(3)})
            aborting.abort()
            at += 5
    driver.archive()
    driver.check_complete("orders")
    assert table_rows(deployment, "shop.orders") == {0: expected}
    ranges, gaps = [], []
    for path in deployment.data.glob("archive/*/data/partition=00000/**/*.parquet"):
        metadata = pq.read_metadata(path).metadata or {}
        if metadata[b"archiver.topic"] == b"orders":
            base, end = int(metadata[b"archiver.base"]), int(metadata[b"archiver.end"])
            ranges.append((base, end))
            inside = json.loads(metadata[b"archiver.gaps"])
            assert all(base <= low < high <= end for low, high in inside)
            gaps += inside
            times = pc.struct_field(
                pq.read_table(path, columns=["kafka"]).column("kafka"), "ingest_timestamp"
            )
            days = set(pc.floor_temporal(times, unit="day").to_pylist())
            assert len(days) == 1
    assert len(ranges) == 4
    assert min(ranges)[0] == 0
    assert [end for _, end in sorted(ranges)][:-1] == [base for base, _ in sorted(ranges)][1:], (
        "the files follow each other"
    )
    assert sorted(gaps) == [[low, low + 3] for low in range(2, at, 5)]
    assert [record.offset for record in driver.records("orders")[0]] == expected


def test_the_public_reader_is_read_committed_by_default(
    driver: Driver, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed(driver)
    driver.archive()
    with Reader(deployment.config) as reader:
        assert [record.offset for record in reader.read("orders", [0])] == [*range(8), 10, 11]
        assert [record.offset for record in reader.read("orders", [0], start=9, uncommitted=True)] == [
            10,
            11,
            12,
            13,
            14,
            15,
        ]
        assert [batch.records.num_rows for batch in reader.read_batches("orders", [0], start=12)] == []
    done = deployment.cli("consume", "--topic", "orders", "--partition", "0")
    assert [item["offset"] for item in done.lines()] == [*range(8), 10, 11]
    done = deployment.cli(
        "consume", "--topic", "orders", "--partition", "0", "--from", "9", "--max", "3", "--uncommitted"
    )
    assert [item["offset"] for item in done.lines()] == [10, 11, 12]
