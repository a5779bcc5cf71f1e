"""Metadata and data that do not belong together: an older copy, none, another deployment's. Nothing is
sequenced, and it is said why."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.builders.deployment import Deployment, check_present, jsonl, sample_records

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]

SENT = sample_records(60)
MORE = sample_records(36, first=60)


@pytest.fixture
def deployment(tmp_path: Path, spark_session: SparkSession) -> Deployment:
    return Deployment(tmp_path / "d")


def refused(done: Any, code: int, *words: str) -> None:
    assert done.code == code, (done.code, done.out, done.err)
    assert all(word in done.err for word in words), done.err
    assert "Traceback" not in done.err


def test_an_older_copy_of_the_metadata_store(deployment: Deployment) -> None:
    acknowledged = deployment.produce(SENT)
    assert deployment.cli("archive", "--all").code == 0
    older = deployment.root / "older.db"
    shutil.copy(deployment.root / "metadata.db", older)
    acknowledged += deployment.produce(MORE)
    assert deployment.cli("archive", "--all").code == 0
    newest = deployment.root / "newest.db"
    (deployment.root / "metadata.db").rename(newest)
    shutil.copy(older, deployment.root / "metadata.db")
    before = deployment.cli("status", "--output", "json").json()["intake_log"]
    for command in (["produce"], ["archive", "--all"]):
        done = deployment.cli(*command, stdin=jsonl(sample_records(1)))
        refused(done, 1, "older than the data", "put the newest one in place")
    assert deployment.cli("status", "--output", "json").json()["intake_log"] == before
    assert deployment.cli("audit").code != 0
    (deployment.root / "metadata.db").unlink()
    newest.rename(deployment.root / "metadata.db")
    assert deployment.cli("audit").code == 0
    check_present(deployment, [*SENT, *MORE], acknowledged)


def test_no_metadata_store_any_more(deployment: Deployment) -> None:
    acknowledged = deployment.produce(SENT)
    assert deployment.cli("archive", "--all").code == 0
    kept = deployment.root / "kept.db"
    (deployment.root / "metadata.db").rename(kept)
    for command in (["produce"], ["archive", "--all"]):
        refused(
            deployment.cli(*command, stdin=jsonl(sample_records(1))),
            1,
            "the metadata store is empty",
            "put the newest one in place",
        )
    for status in (
        deployment.cli("status", "--exit-code"),
        deployment.cli("status", "--exit-code", "--output", "json"),
    ):
        assert status.code == 1, status.out
        assert "the metadata store is empty, but the data folder holds" in status.out
        assert "put the newest one in place" in status.out
        assert "not created yet" not in status.out, "as if it were a new deployment"
    audit = deployment.cli("audit", "--output", "json")
    assert audit.code == 2, audit.out
    assert audit.json()["verdict"] == "unknown"
    (deployment.root / "metadata.db").unlink()
    kept.rename(deployment.root / "metadata.db")
    assert deployment.cli("audit").code == 0
    check_present(deployment, SENT, acknowledged)


def test_the_metadata_store_of_another_deployment(deployment: Deployment, tmp_path: Path) -> None:
    deployment.produce(SENT)
    other = Deployment(tmp_path / "other")
    other.produce(SENT)
    shutil.copy(other.root / "metadata.db", deployment.root / "metadata.db")
    for command in (
        ["produce"],
        ["archive", "--all"],
        ["audit"],
        ["status"],
        ["consume", "--topic", "orders"],
    ):
        refused(deployment.cli(*command), 3, "the metadata store belongs to the data folder of cluster id")


def test_a_data_folder_that_is_gone(deployment: Deployment) -> None:
    acknowledged = deployment.produce(SENT)
    away = deployment.root / "away"
    deployment.data.rename(away)
    for command in (["produce"], ["archive", "--all"], ["audit"], ["status"]):
        refused(deployment.cli(*command), 3, "cluster.json", "bring that folder back")
    shutil.rmtree(deployment.data, ignore_errors=True)
    away.rename(deployment.data)
    check_present(deployment, SENT, acknowledged)


def test_a_kind_that_was_changed(tmp_path: Path, spark_session: SparkSession) -> None:
    deployment = Deployment(tmp_path / "d", failpoints_asked=True)
    acknowledged = deployment.produce(SENT)
    deployment.run("archive", "--all", armed="written.append.after=kill")
    document = deployment.document()
    document["topics"][1]["archive"] = {"kind": "parquet"}
    deployment.write(document)
    done = deployment.cli("archive", "--all", "--output", "json")
    assert done.code == 1, (done.out, done.err)
    reported = {item["topic"]: item for item in done.json()["topics"]}
    assert (reported["clicks"]["state"], reported["orders"]["state"]) == ("halted", "archived")
    assert "restore kind: iceberg" in reported["clicks"]["why"]
    deployment.write(deployment.document())
    assert deployment.cli("archive", "--all").code == 0
    document = deployment.document()
    document["topics"][2]["archive"] = {"kind": "iceberg", "catalog": "local", "table": "shop.files"}
    deployment.write(document)
    done = deployment.cli("archive", "--all", "--output", "json")
    assert done.code == 1, (done.out, done.err)
    reported = {item["topic"]: item for item in done.json()["topics"]}
    assert "restore kind: parquet" in reported["files"]["why"]
    deployment.write(deployment.document())
    assert deployment.cli("audit").code == 0
    check_present(deployment, SENT, acknowledged)


def test_one_topic_of_a_wrong_configuration_stops_only_itself(deployment: Deployment) -> None:
    acknowledged = deployment.produce(SENT)
    document = deployment.document()
    document["topics"].append({"name": "gone", "partitions": 1, "archive": {"kind": "parquet"}})
    deployment.write(document)
    assert deployment.cli("topics", "create", "gone").code == 0
    deployment.write(deployment.document())
    assert deployment.cli("topics", "delete", "gone", "--yes").code == 0
    deployment.write(document)
    done = deployment.cli("archive", "--all", "--output", "json")
    assert done.code == 3, (done.out, done.err)
    reported = {item["topic"]: item for item in done.json()["topics"]}
    assert reported["orders"]["state"] == "archived"
    assert reported["gone"]["state"] == "halted"
    assert "topic gone was deleted" in reported["gone"]["why"]
    acknowledged += deployment.produce(MORE)
    notes = deployment.cli("status", "--output", "json").json()["attention"]
    assert any("topic gone is configured and was deleted" in note for note in notes)
    deployment.write(deployment.document())
    assert deployment.cli("archive", "--all").code == 0
    assert deployment.cli("audit").code == 0
    check_present(deployment, [*SENT, *MORE], acknowledged)
