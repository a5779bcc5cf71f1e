"""Kill the process at each failpoint once: what was acknowledged is there, `archive --all` goes on, and the audit says valid."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from archiver import failpoints
from tests.support.deployment import Deployment, check_present, jsonl, sample_records
from tests.support.driver import AheadClock, Driver
from tests.support.reconciling import archived, roll_back
from tests.support.spark import spark_session, spark_sessions  # noqa: F401 - fixtures
from tests.support.undecoded import COUNT, rows_in_table, send_unmended, undecoded_in_table

PRODUCING = [name for name in failpoints.NAMES if name.startswith(("writer.", "topic.", "cluster."))]
IN_WORKERS = [name for name in failpoints.NAMES if name.startswith("archive.upload.")]
CLEANING = [name for name in failpoints.NAMES if name.startswith(("condemn.", "intake.delete.", "deleted."))]
CHECKPOINTING = [name for name in failpoints.NAMES if name.startswith(("checkpoint.", "log."))]
SOURCES = [name for name in failpoints.NAMES if name.startswith("source.")]
"""`test_source_kill.py` kills at these."""
EVOLVING = [name for name in failpoints.NAMES if name.startswith("table.evolve.")]
"""`test_schema_evolution.py` kills at these."""
REPLAYING = [name for name in failpoints.NAMES if name.startswith("replay.")]
RETIRING = [name for name in failpoints.NAMES if name.startswith(("start.", "upkeep."))]
"""`test_kill_retention.py` kills at these, and at those of cleaning and of the swap once more."""
SETTING_BACK = [name for name in failpoints.NAMES if name.startswith("restate.")]
DELETING = [name for name in failpoints.NAMES if name.startswith("topic_deleted.")]
_OTHERS = [*PRODUCING, *IN_WORKERS, *CLEANING, *CHECKPOINTING, *SOURCES, *DELETING, *SETTING_BACK, *REPLAYING, *EVOLVING, *RETIRING]
ARCHIVING = [name for name in failpoints.NAMES if name not in _OTHERS]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]


def test_every_failpoint_has_its_kill() -> None:
    assert sorted([*_OTHERS, *ARCHIVING]) == sorted(failpoints.NAMES)


@pytest.mark.parametrize("name", PRODUCING)
def test_killed_while_producing(name: str, tmp_path: Path, spark_session: SparkSession) -> None:  # noqa: F811
    deployment = Deployment(tmp_path / "d", failpoints_asked=True)
    sent = sample_records(120)
    killed = deployment.run("produce", "--output", "json", stdin=jsonl(sent), armed=f"{name}=kill")
    assert killed.code == -signal.SIGKILL, killed.err
    acknowledged = killed.lines()
    again = deployment.produce(sample_records(60, first=120))
    _archive_and_check(deployment)
    check_present(deployment, sent, acknowledged)
    check_present(deployment, sample_records(60, first=120), again)


@pytest.mark.parametrize("name", ARCHIVING)
def test_killed_while_archiving(name: str, tmp_path: Path, spark_session: SparkSession) -> None:  # noqa: F811
    deployment = Deployment(tmp_path / "d", failpoints_asked=True)
    sent = sample_records(120)
    acknowledged = deployment.produce(sent)
    killed = deployment.run("archive", "--all", armed=f"{name}=kill")
    assert killed.code == -signal.SIGKILL, killed.err
    check_present(deployment, sent, acknowledged)
    more = sample_records(60, first=120)
    acknowledged += deployment.produce(more)
    _archive_and_check(deployment)
    check_present(deployment, [*sent, *more], acknowledged)


@pytest.mark.parametrize("name", IN_WORKERS)
def test_worker_killed(name: str, tmp_path: Path, spark_session: SparkSession) -> None:  # noqa: F811
    deployment = Deployment(tmp_path / "d", failpoints_asked=True)
    sent = sample_records(120)
    acknowledged = deployment.produce(sent)
    failed = deployment.run("archive", "--all", armed=f"{name}=kill")
    assert failed.code == 2, (failed.out, failed.err)
    _archive_and_check(deployment)
    check_present(deployment, sent, acknowledged)


@pytest.mark.parametrize("name", SETTING_BACK)
def test_killed_while_a_rollback_is_taken_over(name: str, tmp_path: Path) -> None:
    """The topic is halted as before, or set back in ledger and table; asking again ends in one place, and nothing is lost or doubled."""
    deployment = archived(tmp_path / "d", failpoints_asked=True)
    roll_back(deployment)
    killed = deployment.run("reconcile", "--fix", armed=f"{name}=kill")
    assert killed.code == -signal.SIGKILL, killed.err
    assert deployment.run("reconcile", "--fix").code == 0
    with Driver(deployment) as driver:
        driver.archive()
        driver.check_complete("clicks")
        assert [len(driver.records("clicks")[partition]) for partition in (0, 1)] == [9, 3]
    assert deployment.run("reconcile").code == 0


@pytest.mark.parametrize("name", DELETING)
def test_killed_while_deleting_a_topic(name: str, tmp_path: Path) -> None:
    """The topic is deleted or it is not, and asking again ends in the same place."""
    deployment = Deployment(tmp_path / "d", failpoints_asked=True)
    deployment.produce(sample_records(60))
    document = deployment.document()
    document["topics"] = [topic for topic in document["topics"] if topic["name"] != "kept"]
    deployment.write(document)
    killed = deployment.run("topics", "delete", "kept", "--yes", armed=f"{name}=kill")
    assert killed.code == -signal.SIGKILL, killed.err
    assert ("kept" in deployment.cli("topics", "list").out) == name.endswith(".before")
    again = deployment.cli("topics", "delete", "kept", "--yes")
    assert again.code == (0 if name.endswith(".before") else 3), again.err
    assert deployment.cli("consume", "--topic", "kept").code == 3
    assert deployment.cli("audit").code == 0


@pytest.mark.parametrize("name", CLEANING)
def test_killed_while_cleaning(name: str, tmp_path: Path) -> None:
    """What was sent three hours ago is archived; it is condemned (an hour and a half ago, or now) and goes, whenever the process dies."""
    deployment = Deployment(tmp_path / "d", failpoints_asked=True)
    topics = ("orders", "clicks", "files", "kept")
    with Driver(deployment, _at(-3.0)) as before:
        for topic in topics:
            assert {one.outcome for one in before.send(topic, [f"{topic} {n}".encode() for n in range(9)])} == {"ok"}
        before.archive()
    consumed = {topic: deployment.consume(topic) for topic in topics}
    if not name.startswith("condemn."):
        with Driver(deployment, _at(-1.5)) as condemning:
            assert condemning.application.cleaning(print).run().condemned
    killed = deployment.run("clean", armed=f"{name}=kill")
    assert killed.code == -signal.SIGKILL, (killed.out, killed.err)
    assert {topic: deployment.consume(topic) for topic in topics} == consumed
    again = deployment.cli("clean", "--output", "json")
    assert (again.code, again.json()["findings"]) == (0, []), (again.out, again.err)
    with Driver(deployment, _at(2.0)) as after:
        after.application.cleaning(print).run()
        assert after.application.ledger().condemned == {}
        intake = after.application.intake()
        kept = {segment.file.key for segment in intake.segments((after.topic_id("kept"), 0))}
        assert {info.key for info in after.application.objects.list("intake/")} == kept
        assert {topic: deployment.consume(topic) for topic in topics} == consumed
        after.send("orders", [b"one more"])
        after.archive()
        after.check_complete("orders", "clicks", "files")


@pytest.mark.parametrize("name", REPLAYING)
def test_killed_while_replaying(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, in the middle and after, each record is read back as it was, the table has it once, and the audit is valid."""
    deployment = Deployment(tmp_path / "d", failpoints_asked=True)
    with Driver(deployment) as before:
        send_unmended(before, monkeypatch)
    consumed = deployment.consume("orders")
    killed = deployment.run("dlq", "replay", armed=f"{name}=kill")
    assert killed.code == -signal.SIGKILL, (killed.out, killed.err)
    assert deployment.consume("orders") == consumed
    assert len(rows_in_table(deployment)) == len(consumed)
    assert deployment.cli("audit").code == 0
    again = deployment.cli("dlq", "replay", "--output", "json")
    assert again.code == 0, (again.out, again.err)
    assert deployment.consume("orders") == consumed
    assert undecoded_in_table(deployment) == [(0, COUNT)]
    with Driver(deployment) as after:
        rewrites = after.application.ledger().topic(after.topic_id("orders")).rewrites
        assert (len(rewrites.under_way), len(rewrites.replaced)) == (0, 1)
        after.check_complete("orders")


def _cut_often(deployment: Deployment) -> None:
    """A checkpoint every two entries from here on, as if the log had grown long."""
    deployment.overrides["log"] = {"append_backoff": "5ms", "checkpoint_entries": 2}
    deployment.write(deployment.document())


@pytest.mark.parametrize("command", ["produce", "archive"])
@pytest.mark.parametrize("name", CHECKPOINTING)
def test_killed_while_a_checkpoint_is_made(name: str, command: str, tmp_path: Path, spark_session: SparkSession) -> None:  # noqa: F811
    deployment = Deployment(tmp_path / "d", failpoints_asked=True)
    sent = sample_records(120)
    acknowledged = deployment.produce(sent)
    _cut_often(deployment)
    more = sample_records(60, first=120)
    if command == "produce":
        killed = deployment.run("produce", "--output", "json", stdin=jsonl(more), armed=f"{name}=kill")
    else:
        killed = deployment.run("archive", "--all", armed=f"{name}=kill")
    assert killed.code == -signal.SIGKILL, killed.err
    check_present(deployment, sent, acknowledged)
    check_present(deployment, more, killed.lines() if command == "produce" else [])
    last = sample_records(60, first=180)
    _check_again(deployment, last)
    with Driver(deployment) as after:
        after.application.checkpointer.run()  # what was left may not have been due again
        assert len(after.application.checkpointer._store.last()) == 2
        assert after.application.intake_log.floor() > 0


def _check_again(deployment: Deployment, records: list[dict[str, Any]]) -> None:
    acknowledged = deployment.produce(records)
    _archive_and_check(deployment)
    check_present(deployment, records, acknowledged)


@pytest.mark.parametrize("action", ["error", "unknown"])
@pytest.mark.parametrize("name", CHECKPOINTING)
def test_a_checkpoint_that_fails_stops_nothing(name: str, action: str, tmp_path: Path, spark_session: SparkSession) -> None:  # noqa: F811
    deployment = Deployment(tmp_path / "d", failpoints_asked=True)
    _cut_often(deployment)
    sent = sample_records(60)
    done = deployment.cli("produce", "--output", "json", stdin=jsonl(sent), armed=f"{name}={action}")
    assert done.code == 0, done.err
    check_present(deployment, sent, done.lines())
    _check_again(deployment, sample_records(60, first=60))


def _at(hours: float) -> AheadClock:
    clock = AheadClock()
    clock.ahead_s = hours * 3600
    return clock


@pytest.mark.parametrize("action", ["error", "unknown"])
@pytest.mark.parametrize("name", [name for name in ARCHIVING if name not in IN_WORKERS])
def test_a_step_that_fails_or_loses_its_reply(name: str, action: str, tmp_path: Path, spark_session: SparkSession) -> None:  # noqa: F811
    deployment = Deployment(tmp_path / "d", failpoints_asked=True)
    sent = sample_records(60)
    acknowledged = deployment.produce(sent)
    failed = deployment.cli("archive", "--all", armed=f"{name}={action}")
    assert failed.code in (0, 2), (failed.out, failed.err)
    _archive_and_check(deployment)
    check_present(deployment, sent, acknowledged)


def _archive_and_check(deployment: Deployment) -> None:
    done = deployment.cli("archive", "--all", "--output", "json")
    assert done.code == 0, (done.out, done.err)
    audit = deployment.cli("audit", "--output", "json")
    assert audit.code == 0, audit.out
    document = audit.json()
    assert document["verdict"] == "valid"
    rows = 0
    for partition in document["partitions"]:
        if partition["topic"] == "kept":
            continue
        assert partition["watermark"] == partition["stable"] == partition["next"], partition
        assert partition["rows"] == partition["next"], partition
        rows += partition["rows"]
    assert rows > 0
    _once_by_other_means(deployment, document)


def _once_by_other_means(deployment: Deployment, document: dict[str, Any]) -> None:
    """The tables' own files, read without the project's code: every offset once."""
    for item in deployment.cli("tables", "--output", "json").json()["tables"]:
        offsets: dict[int, list[int]] = {}
        for path in _table_files(deployment, item["table"]):
            places: list[Any] = pq.read_table(path, columns=["kafka"]).column("kafka").to_pylist()
            for place in places:
                offsets.setdefault(place["partition"], []).append(place["offset"])
        for partition in document["partitions"]:
            if partition["topic"] == item["topic"]:
                assert sorted(offsets.get(partition["partition"], [])) == list(range(partition["next"]))


def _table_files(deployment: Deployment, table: str) -> list[str]:
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("local", type="sql", uri=f"sqlite:///{deployment.root}/catalog.db?timeout=60")
    try:
        return [task.file.file_path.removeprefix("file://") for task in catalog.load_table(table).scan().plan_files()]
    finally:
        catalog.close()
