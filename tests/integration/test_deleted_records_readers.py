"""Records that clients deleted, on a real deployment: readers, refinement, cleaning, audits, rebuilt tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from archiver.api import Reader
from archiver.kafka.fetch import EARLIEST, OffsetOutOfRange
from archiver.objects.paths import INTAKE_PREFIX, parse_archive_key
from archiver.runtime.errors import ConfigInvalid
from reconcile.vacuum.report import CleanReport
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import AheadClock, Driver, catalog_table
from tests.support.builders.rebuilding import lose_catalog, lose_metadata
from tests.support.builders.retention import forget_snapshots
from tests.support.kafka.fetching import LARGE, Client, fetch_reader
from tests.support.schema.orders import order

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path / "d")


@pytest.fixture
def driver(deployment: Deployment) -> Iterator[Driver]:
    with Driver(deployment) as made:
        yield made


def send(driver: Driver, topic: str, count: int = 5) -> None:
    values = [order(number) for number in range(count)]
    assert {one.outcome for one in driver.send(topic, values, 0)} == {"ok"}


def delete(driver: Driver, topic: str, below: int, partition: int = 0) -> None:
    driver.application.intake.delete_records(driver.application.topic(topic), {partition: below})


def read(driver: Driver, topic: str, start: int = 0) -> list[int]:
    stream = driver.application.stream()
    return [record.offset for record in stream.read(driver.topic_id(topic), 0, start)]


def clean(deployment: Deployment, hours: float) -> CleanReport:
    """One run, by a process of its own, so many hours from now."""
    clock = AheadClock()
    clock.ahead_s = hours * 3600
    with Driver(deployment, clock) as driver:
        report = driver.application.maintenance.cleaning(driver.reported.append).run()
        assert report.exit_code == 0, report.to_json()
        return report


def archives(driver: Driver, topic: str) -> list[tuple[int, int]]:
    listed = driver.application.objects.list(f"archive/{driver.topic_id(topic)}/data/")
    found = [parse_archive_key(info.key) for info in listed]
    return [(key.base, key.end) for key in found if key is not None]


def removed(reports: list[CleanReport], what: str) -> int:
    """Archives that were marked, or deleted, because they lie below a start."""
    return sum(report.kinds[what].get("retired", {"objects": 0})["objects"] for report in reports)


def rows(deployment: Deployment, table: str) -> list[int]:
    with catalog_table(deployment, table) as opened:
        return sorted(row["offset"] for row in opened.scan().to_arrow().column("kafka").to_pylist())


@pytest.mark.parametrize("topic", ["orders", "files", "kept"])
def test_every_reader_begins_behind_deleted_records(driver: Driver, topic: str) -> None:
    deployment = driver.deployment
    send(driver, topic, 8)
    with Driver(deployment) as other:
        assert read(other, topic) == list(range(8))
        delete(driver, topic, 3)
        assert read(other, topic) == read(driver, topic) == [3, 4, 5, 6, 7]
        assert read(other, topic, 2) == [3, 4, 5, 6, 7]
    with Reader(deployment.config) as reader:
        assert [record.offset for record in reader.read(topic, [0])] == [3, 4, 5, 6, 7]
    consumed = deployment.cli("consume", "--topic", topic, "--partition", "0")
    assert [line["offset"] for line in consumed.lines()] == [3, 4, 5, 6, 7]
    assert "begins at offset 3; reading from there" in " ".join(consumed.err.split())
    shown = deployment.cli("topics", "describe", topic, "--output", "json").json()
    assert [one["start"] for one in shown["partitions"]][:1] == [3]
    status = deployment.cli("status", "--output", "json").json()
    (found,) = (one for one in status["topics"] if one["topic"] == topic)
    assert found["partitions"][0]["start"] == 3
    explained = deployment.cli("explain", f"{topic}:0:2", "--output", "json")
    assert explained.code == 0, explained.out
    assert explained.json()["state"] == "retired"
    assert "a client deleted the records below offset 3" in explained.json()["why"]
    # The rest, up to the end: an empty partition goes on at its next offset.
    delete(driver, topic, 8)
    assert read(driver, topic) == []
    send(driver, topic, 1)
    assert read(driver, topic) == [8]


@pytest.mark.parametrize("archived", [False, True])
def test_a_fetch_at_another_daemon_finds_nothing_that_is_deleted(driver: Driver, archived: bool) -> None:
    send(driver, "orders", 8)
    if archived:
        driver.archive()
    with Driver(driver.deployment) as other:
        topic_id = other.topic_id("orders")
        with closing(fetch_reader(other)) as reader:
            # So that it has cached what is deleted then.
            assert Client(reader, topic_id).to_end()
            delete(driver, "orders", 3)
            with pytest.raises(OffsetOutOfRange) as refused:
                reader.read(topic_id, 0, 2, LARGE, committed=True)
            assert (refused.value.log_start, refused.value.end) == (3, 8)
            assert [one[0] for one in Client(reader, topic_id, position=3).to_end()] == [3, 4, 5, 6, 7]
            assert reader.list_offset(topic_id, 0, EARLIEST, committed=True) == (3, -1)
            # By time: the first that is left.
            assert reader.list_offset(topic_id, 0, 0, committed=True)[0] == 3


@pytest.mark.parametrize("topic", ["orders", "files"])
def test_deleted_records_are_archived_and_their_archives_are_removed(
    deployment: Deployment, topic: str
) -> None:
    with Driver(deployment) as driver:
        send(driver, topic)
        driver.archive()
        send(driver, topic)
        # Of the second archive, which is not written yet, a part.
        delete(driver, topic, 7)
        assert driver.archive().of(topic).state == "archived"
        assert archives(driver, topic) == [(0, 5), (5, 10)]
        driver.check_complete(topic)
        assert read(driver, topic) == [7, 8, 9]
    reports = [clean(deployment, 0)]
    assert [(one.before, one.start) for one in reports[0].starts] == [(0, 7)]
    if topic == "orders":
        # The file that reaches beyond stays whole: it is not rewritten.
        assert rows(deployment, "shop.orders") == [5, 6, 7, 8, 9]
        # Retained snapshots name the file. Another client forgets them.
        forget_snapshots(deployment, "shop.orders")
    reports += [clean(deployment, hours) for hours in (0.1, 1.3)]
    assert removed(reports, "condemned") == removed(reports, "deleted") == 1
    with Driver(deployment) as driver:
        assert archives(driver, topic) == [(5, 10)]
        document = driver.audit()
        assert document["verdict"] == "valid", document
        (found,) = (one for one in document["partitions"] if (one["topic"], one["partition"]) == (topic, 0))
        assert (found["start"], found["watermark"]) == (7, 10)
        assert read(driver, topic) == [7, 8, 9]
        # Everything, and what comes later.
        delete(driver, topic, 10)
        send(driver, topic)
        driver.archive()
        assert read(driver, topic) == [10, 11, 12, 13, 14]
    assert [(one.before, one.start) for one in clean(deployment, 1.4).starts] == [(7, 10)]
    with Driver(deployment) as driver:
        assert driver.audit()["verdict"] == "valid"
        assert read(driver, topic) == [10, 11, 12, 13, 14]
        assert topic == "files" or rows(deployment, "shop.orders") == [10, 11, 12, 13, 14]


def test_records_that_are_not_archived_keep_their_storage(deployment: Deployment) -> None:
    """Refinement writes them first, so no offset is left out of the table."""
    with Driver(deployment) as driver:
        for topic in ("orders", "kept"):
            send(driver, topic)
            delete(driver, topic, 5)
    for hours in (0, 30, 60):
        report = clean(deployment, hours)
        assert (report.starts, report.deleted) == ([], []), report.to_json()
    with Driver(deployment) as driver:
        assert len(list(driver.application.objects.list(INTAKE_PREFIX))) == 2
        driver.archive()
        driver.check_complete("orders")
        assert (archives(driver, "orders"), read(driver, "orders")) == ([(0, 5)], [])


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_what_is_deleted_is_not_missing_for_the_deep_audit(
    deployment: Deployment, spark_session: SparkSession
) -> None:
    del spark_session
    with Driver(deployment) as driver:
        for topic in ("orders", "files"):
            send(driver, topic, 10)
        driver.archive()
        for topic in ("orders", "files"):
            delete(driver, topic, 4)
    for start in (0, 4):
        for topic in ("orders", "files"):
            done = deployment.cli("audit", "--deep", "--topic", f"{topic}:0", "--output", "json")
            (found,) = done.json()["partitions"]
            assert (found["verdict"], found["proof"]) == ("valid", "rows"), done.out
            assert found["start"] == start
        clean(deployment, 0)


def test_a_rebuilt_table_begins_with_the_archive_that_holds_the_start(deployment: Deployment) -> None:
    with Driver(deployment) as driver:
        for _ in range(3):
            send(driver, "orders")
            driver.archive()
        delete(driver, "orders", 7)
    clean(deployment, 0)
    forget_snapshots(deployment, "shop.orders")
    for hours in (0.1, 1.3):
        clean(deployment, hours)
    lose_catalog(deployment)
    done = deployment.cli("reconcile", "--rebuild", "--output", "json")
    assert done.code == 0, (done.out, done.err)
    assert rows(deployment, "shop.orders") == list(range(5, 15))
    with Driver(deployment) as driver:
        assert driver.audit()["verdict"] == "valid"
        assert read(driver, "orders") == list(range(7, 15))
    # Without the logs, nothing says what was deleted: the table has what the bucket has.
    lose_catalog(deployment)
    lose_metadata(deployment)
    done = deployment.cli("reconcile", "--rebuild", "--output", "json")
    assert done.code == 0, (done.out, done.err)
    assert rows(deployment, "shop.orders") == list(range(5, 15))


def test_an_entry_that_keeps_every_record_and_a_mirrored_topic_refuse(deployment: Deployment) -> None:
    document = deployment.document()
    document["topics"][0]["retention"] = "forever"
    document["topics"][1]["retention"] = "30d"
    deployment.write(document)
    with Driver(deployment) as driver:
        send(driver, "orders")
        send(driver, "clicks")
        with pytest.raises(ConfigInvalid, match=r"topics\.orders\.retention is forever"):
            delete(driver, "orders", 3)
        delete(driver, "clicks", 3)
        mirrored = driver.application.sequencer.declare_topic("theirs", 1, mirrored=True)
        with pytest.raises(ConfigInvalid, match="is mirrored"):
            driver.application.intake.delete_records(mirrored, {0: 0})
        assert (read(driver, "orders"), read(driver, "clicks")) == ([0, 1, 2, 3, 4], [3, 4])
