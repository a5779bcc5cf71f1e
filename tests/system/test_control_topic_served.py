"""Real daemons, a real broker, and the trigger of docs/operations/control-topic.md: what the topic says has
happened, and is the ledger."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from pyiceberg.catalog import load_catalog

from archiver.runtime.clock import SystemClock
from archiver.runtime.rfc3339 import parse_time
from tests.support.builders.deployment import Deployment, jsonl, sample_records
from tests.support.events.event_judge import CURRENT, judge
from tests.support.kafka.control_topic import Seen, deduplicated, raw_stream, seen_in
from tests.support.kafka.kafka_server import KafkaServer
from tests.support.kafka.mirroring import Cluster
from tests.support.pages import ROOT, blocks
from tests.support.process.processes import until
from tests.support.process.serving import Served, quick

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(800)]
PATIENCE_S = 250.0
TOPIC, PARTITIONS, TABLE = "archiver-control", 3, "shop.orders"


def configured(deployment: Deployment, brokers: str) -> None:
    document = quick(deployment.document())
    document["events"] = {
        "kafka": {
            "brokers": brokers,
            "topic": TOPIC,
            "interval": "200ms",
            "request_timeout": "3s",
            "delivery_timeout": "3s",
        }
    }
    deployment.write(document)


def number(daemon: Served, metric: str) -> float | None:
    lines = [
        line for line in daemon.get("/metrics").body.decode().splitlines() if line.startswith(f"{metric} ")
    ]
    return float(lines[0].split()[1]) if lines else None


def is_level(daemon: Served) -> bool:
    return (
        number(daemon, "archiver_control_topic_lag_entries") == 0
        and number(daemon, "archiver_control_topic_up") == 1
    )


def as_the_ledger(folder: Path, deployment: Deployment, brokers: str, seen: list[Seen] | None = None) -> bool:
    """Whether the topic has, each once and in order, byte for byte what the ledger has."""
    found = deduplicated(seen_in(brokers, TOPIC, PARTITIONS) if seen is None else seen)
    kept = sorted(found, key=lambda one: int(one.headers["archiver.index"]))
    raw = folder / "ledger.raw"
    raw.unlink(missing_ok=True)
    assert deployment.run("ledger", "events", "--raw", str(raw)).code == 0
    return raw_stream(folder, kept).read_bytes() == raw.read_bytes()


class Sender:
    """Sends records to every topic, and counts them by topic."""

    def __init__(self) -> None:
        self.sent: dict[str, int] = {}

    def send(self, daemon: Served, count: int) -> None:
        records = sample_records(count, sum(self.sent.values()))
        for topic in dict.fromkeys(record["topic"] for record in records):
            mine = [
                {name: value for name, value in record.items() if name != "topic"}
                for record in records
                if record["topic"] == topic
            ]
            assert daemon.post(f"/v1/topics/{topic}/records", jsonl(mine).encode()).status == 200
            self.sent[topic] = self.sent.get(topic, 0) + len(mine)

    def until_archived(self, daemon: Served) -> None:
        def holds() -> bool:
            partitions = daemon.admin("audit")["done"]["document"]["partitions"]
            SystemClock().sleep(1)
            return all(
                sum(one["rows"] for one in partitions if one["topic"] == topic) == self.sent[topic]
                for topic in ("orders", "clicks")
            )

        until("everything is archived", holds, PATIENCE_S)


@contextmanager
def trigger(folder: Path, brokers: str) -> Iterator[Path]:
    """The program of the page, with a command that writes its arguments down; the file."""
    folder.mkdir()
    (program,) = [
        block
        for block in blocks(ROOT / "docs/operations/control-topic.md")
        if block.title == "on_complete.py"
    ]
    (folder / "on_complete.py").write_text(program.text)
    command = ["sh", "-c", 'echo "$0" "$1" >> spans']
    process = subprocess.Popen(
        [sys.executable, "on_complete.py", brokers, TOPIC, TABLE, "1", *command],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield folder / "spans"
    finally:
        ended = process.poll()
        process.kill()
        _, errors = process.communicate()
        assert ended is None, errors


def spans(file: Path) -> list[tuple[int, int]]:
    lines = file.read_text().splitlines() if file.exists() else []
    return [(whole_seconds(line.split()[0]), whole_seconds(line.split()[1])) for line in lines]


def until_it_acts_again(file: Path, sender: Sender, daemon: Served) -> None:
    """It acts for whole seconds: not for a commit of the second in which it last did, and only a later one
    brings the rest."""
    before = len(spans(file))

    def acts() -> bool:
        sender.send(daemon, 12)
        SystemClock().sleep(1)
        return len(spans(file)) > before

    until("the trigger acts again", acts, PATIENCE_S)


def whole_seconds(text: str) -> int:
    seconds, rest = divmod(parse_time(text), 1_000_000)
    assert rest == 0
    return seconds


def commits(seen: list[Seen]) -> list[Seen]:
    return [
        one
        for one in seen
        if one.headers["archiver.type"] == "COMMIT_TO_TABLE" and one.headers["archiver.table"] == TABLE
    ]


def rows_before(table: Any, snapshot_id: int, time_us: int) -> int:
    """Of a snapshot, with an earlier ingest time."""
    times = table.scan(snapshot_id=snapshot_id).to_arrow()["kafka"]
    return sum(value["ingest_timestamp"].timestamp() * 1e6 < time_us - 0.5 for value in times.to_pylist())


def check_commits(deployment: Deployment, seen: list[Seen]) -> None:
    """Each snapshot that the topic names is there, and had every record before the time that the topic
    says."""
    table = load_catalog("local", type="sql", uri=f"sqlite:///{deployment.root}/catalog.db").load_table(TABLE)
    newest = table.current_snapshot()
    assert newest is not None
    reported = [one for one in commits(seen) if "archiver.valid-through" in one.headers]
    assert reported
    for one in reported[-6:]:
        snapshot_id, time_us = (
            int(one.headers["archiver.snapshot-id"]),
            parse_time(one.headers["archiver.valid-through"]),
        )
        assert table.snapshot_by_id(snapshot_id) is not None
        assert rows_before(table, snapshot_id, time_us) == rows_before(table, newest.snapshot_id, time_us)
    assert pc.count(table.scan().to_arrow()["kafka"]).as_py() > 0


def again(cluster: Cluster, seen: list[Seen]) -> None:
    """Every record once more, as after a crash."""
    headers = [[(name, value.encode()) for name, value in one.headers.items()] for one in seen]
    cluster.send(
        TOPIC,
        [
            {"partition": one.partition, "key": one.key, "value": one.value, "headers": mine}
            for one, mine in zip(seen, headers, strict=True)
        ],
    )


def test_triggers_follow_what_happened(tmp_path: Path) -> None:
    deployment, sender = Deployment(tmp_path / "d"), Sender()
    with KafkaServer(tmp_path / "kafka") as server:
        cluster = Cluster(server.brokers)
        cluster.create(TOPIC, PARTITIONS)
        configured(deployment, server.brokers)
        server.kill()
        with Served(deployment, scratch=tmp_path / "one") as first:
            first.until_ready()
            sender.send(first, 60)
            sender.until_archived(first)  # without the broker
            assert number(first, "archiver_control_topic_up") == 0
            assert (number(first, "archiver_control_topic_lag_entries") or 0) > 5
            status = first.request(
                "GET", "/v1/admin/status", headers={"Authorization": f"Bearer {first.token}"}
            ).json()
            assert any(
                f"control topic {TOPIC}" in line and "entries of the control log wait" in line
                for line in status["attention"]
            ), status
            assert first.ready()
            server.start()
            until("the topic has everything", lambda: is_level(first), PATIENCE_S)
            with trigger(tmp_path / "trigger", server.brokers) as file:
                until("the trigger acts", lambda: spans(file), PATIENCE_S)
                for _ in range(3):
                    until_it_acts_again(file, sender, first)
                check_commits(deployment, deduplicated(seen_in(server.brokers, TOPIC, PARTITIONS)))
                again(cluster, seen_in(server.brokers, TOPIC, PARTITIONS))
                with Served(deployment, scratch=tmp_path / "two") as second:
                    second.until_ready()
                    assert (
                        number(second, "archiver_control_topic_lag_entries") is None
                    )  # the first one publishes
                    sender.send(first, 12)
                    first.kill()
                    sender.send(second, 12)
                    sender.until_archived(second)
                    until("the second one has published the rest", lambda: is_level(second), PATIENCE_S)
                    until_it_acts_again(file, sender, second)
                    sender.until_archived(second)
                    # Not by the metric: it may be of before the end of the last round.
                    until(
                        "all is published",
                        lambda: as_the_ledger(tmp_path, deployment, server.brokers),
                        PATIENCE_S,
                    )
                    assert second.stop() == 0
            found = spans(file)
            assert all(end - start == 1 for start, end in found)
            assert [start for start, _ in found[1:]] == [
                end for _, end in found[:-1]
            ]  # each once, without a hole
        seen = seen_in(server.brokers, TOPIC, PARTITIONS)
    assert len(seen) > len(deduplicated(seen))
    assert as_the_ledger(tmp_path, deployment, server.brokers, seen)
    for key in {one.key for one in seen}:
        indexes = [
            int(one.headers["archiver.index"])
            for one in deduplicated([one for one in seen if one.key == key])
        ]
        assert indexes == sorted(indexes)
    assert judge(CURRENT).read_stream(raw_stream(tmp_path, seen)).errors == []
