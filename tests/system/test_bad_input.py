"""Bad input through the command, as a user meets it: the message, the exit code, and what is still there
afterwards."""

from __future__ import annotations

import io
import json
import random
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.support.builders.deployment import Deployment, check_present, jsonl, sample_records, text

SENT = sample_records(60)


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    """A deployment without records."""
    return Deployment(tmp_path / "d")


@pytest.fixture
def filled(deployment: Deployment) -> tuple[Deployment, list[Any]]:
    """A deployment with acknowledged records, none of them archived."""
    return deployment, deployment.produce(SENT)


def refused(done: Any, *words: str, code: int = 3) -> None:
    """The command ended with `code`, and one line of its error output says all the words."""
    assert done.code == code, (done.code, done.out, done.err)
    assert "Traceback" not in done.err
    lines = [line for line in done.err.splitlines() if all(word in line for word in words)]
    assert lines, (words, done.err)


# configuration


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"intake": {"dealy_max": "1s"}}, ("dealy_max", "delay_max")),
        ({"cleanup": {"interval": "5 parsecs"}}, ("interval", "5 parsecs")),
        ({"archive": {"max_bytes": "12 XB"}}, ("max_bytes", "12 XB")),
        ("cluster: again\n", ("line 42", "cluster", "given before", "line 1")),
    ],
)
def test_configuration(change: Any, words: tuple[str, ...], filled: tuple[Deployment, list[Any]]) -> None:
    deployment, acknowledged = filled
    if isinstance(change, str):
        deployment.config.write_text(deployment.config.read_text() + change)
    else:
        deployment.write(deployment.document() | change)
    for command in (["config", "check"], ["status"], ["archive", "--all"], ["produce"], ["audit"]):
        refused(deployment.cli(*command), *words)
    deployment.write(deployment.document())
    check_present(deployment, SENT, acknowledged)


def test_no_configuration(deployment: Deployment) -> None:
    refused(deployment.run("status", "-c", "nowhere.yaml"), "nowhere.yaml")
    (deployment.root / "archiver.yaml").rename(deployment.root / "other.yaml")
    refused(deployment.run("status", environ={"ARCHIVER_CONFIG": ""}), "archiver.yaml", "-c FILE")
    refused(deployment.run("frobnicate"), "frobnicate")
    refused(deployment.run("archive", "--fast"), "--fast")


def test_failpoints_need_both(tmp_path: Path) -> None:
    armed = Deployment(tmp_path / "asked", failpoints_asked=True)
    only_setting = {name: value for name, value in armed.environ().items() if name != "ARCHIVER_FAILPOINTS"}
    done = subprocess.run(
        [sys.executable, "-m", "archiver", "status"],
        env=only_setting,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 3
    assert "ARCHIVER_FAILPOINTS is not set" in done.stderr
    plain = Deployment(tmp_path / "plain")
    refused(
        plain.run("status", environ={"ARCHIVER_FAILPOINTS": "writer.upload.before=kill"}),
        "testing.failpoints is not true",
    )
    refused(armed.run("status", armed="no.such.point=kill"), "no.such.point")
    assert armed.run("status", armed="").code == 0


@pytest.mark.spark
def test_unreadable_descriptor_set(
    filled: tuple[Deployment, list[Any]],
    spark_session: SparkSession,
) -> None:
    deployment, acknowledged = filled
    good = (deployment.root / "shop.binpb").read_bytes()
    for bad, words in ((b"\xff\x00 no descriptor", ("shop.binpb",)), (None, ("shop.binpb",))):
        if bad is None:
            (deployment.root / "shop.binpb").unlink()
        else:
            (deployment.root / "shop.binpb").write_bytes(bad)
        refused(deployment.cli("config", "check"), *words)
        refused(deployment.cli("archive", "--all"), *words)
    (deployment.root / "shop.binpb").write_bytes(good)
    check_present(deployment, SENT, acknowledged)


@pytest.mark.spark
def test_message_not_in_the_descriptor_set(
    filled: tuple[Deployment, list[Any]],
    spark_session: SparkSession,
) -> None:
    deployment, acknowledged = filled
    document = deployment.document()
    document["topics"][0]["value"]["message"] = "shop.Ordre"
    deployment.write(document)
    refused(deployment.cli("config", "check"), "shop.Ordre", "shop.Order")
    refused(deployment.cli("archive", "--all"), "shop.Ordre")
    deployment.write(deployment.document())
    check_present(deployment, SENT, acknowledged)


# topics, partitions, records


def test_unknown_topic_and_partition(filled: tuple[Deployment, list[Any]]) -> None:
    deployment, acknowledged = filled
    refused(deployment.cli("consume", "--topic", "ordres"), "ordres", "orders")
    refused(deployment.cli("consume", "--topic", "orders", "--partition", "3"), "orders", "partition 3")
    refused(deployment.cli("consume", "--topic", "orders:3"), "orders", "partition 3")
    refused(deployment.cli("consume", "--topic", "orders:1-0"), "ends before it begins")
    refused(deployment.cli("consume", "--topic", "orders:0", "--partition", "1"), "--partition")
    refused(deployment.cli("consume", "--topic", "orders", "--partition", "0", "--from", "99999"), "99999")
    refused(deployment.cli("consume", "--topic", "orders", "--partition", "0", "--from", "-1"), "-1")
    alone = deployment.cli("consume", "--topic", "orders", "--from", "-1")
    refused(alone, "--from -1")
    assert len(alone.err.strip().splitlines()) == 1, "the error alone, and nothing about retention"
    refused(deployment.cli("archive", "--topic", "ordres"), "ordres")
    refused(deployment.cli("archive", "--topic", "orders:0-7"), "orders", "partition 3")
    refused(deployment.cli("archive", "--topic", "orders:2-1"), "orders:2-1")
    refused(deployment.cli("audit", "--topic", "ordres"), "ordres")
    refused(deployment.cli("topics", "describe", "ordres"), "ordres")
    done = deployment.cli(
        "produce",
        "--output",
        "json",
        stdin=jsonl(
            [{"topic": "ordres", "value": "eA=="}, {"topic": "orders", "partition": 9, "value": "eA=="}]
        ),
    )
    assert done.code == 3
    first, second = done.lines()
    assert (first["offset"], first["outcome"], "ordres" in first["error"]) == (None, "failed", True)
    assert (second["offset"], second["outcome"], "partition 9" in second["error"]) == (None, "failed", True)
    check_present(deployment, SENT, acknowledged)


def test_a_record_over_the_limit(tmp_path: Path) -> None:
    deployment = Deployment(
        tmp_path / "d", overrides={"intake": {"record_bytes_max": "1KiB", "delay_max": "10ms"}}
    )
    records = [
        {"topic": "clicks", "value": text(b"a")},
        {"topic": "clicks", "value": text(b"b" * 1025)},
        {"topic": "clicks", "value": text(b"c")},
    ]
    done = deployment.cli("produce", "--output", "json", stdin=jsonl(records))
    assert done.code == 3
    small, large, last = done.lines()
    assert small["offset"] is not None
    assert last["offset"] is not None
    assert (large["offset"], large["outcome"]) == (None, "failed")
    assert "1024" in large["error"]
    assert "line 2" in large["error"]
    assert sorted(record["value"] for record in deployment.consume("clicks")) == [text(b"a"), text(b"c")]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"topic": "clicks", "value": "eA==", "key": 17}', ("line 2", "key", "number")),
        ('{"topic": "clicks", "value": "eA==", "headers": {"a": "b"}}', ("line 2", "headers", "list")),
        ('{"topic": "clicks", "value": "eA==", "headers": [["a", 1]]}', ("line 2", "header a", "number")),
        ('{"topic": "clicks", "value": "eA==", "headers": [[1, "eA=="]]}', ("line 2", "header 0", "number")),
        ('{"topic": "clicks", "value": "not base64!"}', ("line 2", "value", "base64")),
        ('{"topic": "clicks", "value": "eA==", "offset": 3}', ("line 2", "offset")),
        ('{"topic": "clicks", "value": "eA==", "colour": 3}', ("line 2", "colour")),
        (
            '{"topic": "clicks", "value": "eA==", "timestamp": "yesterday"}',
            ("line 2", "timestamp", "yesterday"),
        ),
        ("{nonsense", ("line 2", "JSON")),
    ],
)
def test_a_line_that_is_no_record(line: str, words: tuple[str, ...], deployment: Deployment) -> None:
    good = jsonl([{"topic": "clicks", "value": text(b"before")}])
    done = deployment.cli("produce", "--output", "json", stdin=good + line + "\n" + good)
    refused(done, *words)
    assert [item["offset"] for item in done.lines()] == [0], (
        "what came before the line is sent and acknowledged, nothing behind it"
    )
    assert [record["value"] for record in deployment.consume("clicks")] == [text(b"before")]


def test_input_that_is_not_there(deployment: Deployment) -> None:
    refused(deployment.cli("produce", "--input", "nowhere.jsonl"), "nowhere.jsonl")
    refused(deployment.cli("produce", "--format", "parquet", stdin="x"), "--input")
    refused(deployment.cli("produce", "--format", "delimited", stdin="x"), "--topic")
    path = deployment.root / "x.parquet"
    path.write_bytes(b"no parquet at all")
    refused(deployment.cli("produce", "--format", "parquet", "--input", str(path)), "Parquet")


# tables, folders, files


@pytest.mark.spark
def test_a_table_of_another_topic(filled: tuple[Deployment, list[Any]], spark_session: SparkSession) -> None:
    deployment, acknowledged = filled
    assert deployment.cli("archive", "--all").code == 0
    document = deployment.document()
    document["topics"][1]["archive"]["table"] = "shop.orders"
    document["topics"][0]["archive"]["table"] = "shop.clicks"
    deployment.write(document)
    more = sample_records(12, first=60)
    acknowledged = acknowledged + deployment.produce(more)
    done = deployment.cli("archive", "--all", "--output", "json")
    assert done.code == 1
    states = {item["topic"]: item for item in done.json()["topics"]}
    for topic in ("orders", "clicks"):
        assert states[topic]["state"] == "halted"
        assert "belongs to a topic with id" in states[topic]["why"]
    assert states["files"]["state"] == "archived", "the other topics go on"
    deployment.write(deployment.document())
    assert deployment.cli("archive", "--all").code == 0
    assert deployment.cli("audit").code == 0
    check_present(deployment, [*SENT, *more], acknowledged)


def test_a_data_folder_of_another_cluster(filled: tuple[Deployment, list[Any]]) -> None:
    deployment, acknowledged = filled
    deployment.write(deployment.document() | {"cluster": "other"})
    for command in (["status"], ["archive", "--all"], ["produce"], ["audit"]):
        refused(deployment.cli(*command), "cluster", "'test'", "other")
    deployment.write(deployment.document())
    check_present(deployment, SENT, acknowledged)


@pytest.mark.spark
@pytest.mark.parametrize("harm", ["truncated", "altered", "gone"])
def test_an_intake_file_that_was_harmed(
    harm: str,
    filled: tuple[Deployment, list[Any]],
    spark_session: SparkSession,
) -> None:
    deployment, acknowledged = filled
    more = sample_records(60, first=60)
    again = deployment.produce(more)
    first = min((deployment.data / "intake").rglob("*.parquet"))
    good = first.read_bytes()
    first.chmod(0o644)
    if harm == "gone":
        first.unlink()
    else:
        middle = len(good) // 3
        first.write_bytes(
            good[:-9]
            if harm == "truncated"
            else good[:middle] + bytes([good[middle] ^ 0x55]) + good[middle + 1 :]
        )
    done = deployment.cli("archive", "--all", "--output", "json")
    assert done.code == 1, (done.out, done.err)
    halted = [item for item in done.json()["topics"] if item["state"] == "halted"]
    assert halted
    assert all(first.name in item["why"] for item in halted), halted
    audit = deployment.cli("audit", "--output", "json")
    partitions = audit.json()["partitions"]
    assert any(item["watermark"] < item["stable"] for item in partitions), (
        "what could not be read is not archived"
    )
    if harm == "altered":
        assert audit.code == 0, audit.out  # its size is right, and the fast audit reads no intake
    else:
        assert audit.code == 1, audit.out
        wrong = [item for item in partitions if item["verdict"] == "invalid"]
        assert {item["topic"] for item in wrong} >= {item["topic"] for item in halted}, (
            "and topics that are never archived"
        )
        assert all(first.name in item["why"] for item in wrong), wrong
        assert all(
            item["watermark"] <= low < high <= item["stable"]
            for item in wrong
            for low, high in item["missing"]
        )
        assert (
            sum(high - low for item in wrong for low, high in item["missing"])
            == pq.read_metadata(io.BytesIO(good)).num_rows
        )
    refused(deployment.cli("consume", "--topic", "clicks"), first.name, code=1)
    first.write_bytes(good)
    assert deployment.cli("archive", "--all").code == 0
    assert deployment.cli("audit").code == 0
    check_present(deployment, [*SENT, *more], [*acknowledged, *again])


def test_a_full_disk_while_producing(filled: tuple[Deployment, list[Any]]) -> None:
    """A limit on the size of files is met where a full disk would be: in the middle of a write."""
    deployment, acknowledged = filled

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    noise = jsonl(
        [{"topic": "kept", "value": text(random.Random(number).randbytes(30_000))} for number in range(20)]
    )
    done = subprocess.run(
        [sys.executable, "-m", "archiver", "produce", "--output", "json"],
        input=noise,
        env=deployment.environ(),
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=limit,
        check=False,
    )
    assert done.returncode == 1, (done.returncode, done.stderr)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == 20
    assert {line["outcome"] for line in lines if line["offset"] is None} == {"failed"}
    assert "Traceback" not in done.stderr
    assert not list((deployment.data / ".spool").rglob("*.tmp"))
    kept = {line["offset"] for line in lines if line["offset"] is not None}
    check_present(deployment, SENT, acknowledged)
    more: list[dict[str, Any]] = [
        {
            "topic": "kept",
            "timestamp": "2026-01-01T00:00:00.000000Z",
            "key": None,
            "value": text(b"after"),
            "headers": [],
        }
    ]
    again = deployment.produce(more)
    assert again[0]["offset"] not in kept
    check_present(deployment, [*SENT, *more], [*acknowledged, *again])


def test_java_missing(filled: tuple[Deployment, list[Any]], tmp_path: Path) -> None:
    deployment, acknowledged = filled
    empty = tmp_path / "empty"
    empty.mkdir()
    done = deployment.run("archive", "--all", environ={"PATH": str(empty), "JAVA_HOME": ""})
    assert done.code == 1
    assert "17" in done.err
    assert "apt-get install openjdk-17-jre-headless" in done.err
    check_present(deployment, SENT, acknowledged)
    done = deployment.run(
        "demo", "--dir", str(tmp_path / "demo"), environ={"PATH": str(empty), "JAVA_HOME": ""}
    )
    assert done.code == 1
    assert "openjdk" in done.err
    assert not (tmp_path / "demo").exists()
