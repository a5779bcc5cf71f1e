"""A real daemon with a real broker: what was there and what comes while it runs is one row of offsets in one
table, audited as a whole."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from tests.support.builders.deployment import Deployment
from tests.support.kafka.kafka_server import KafkaServer
from tests.support.kafka.mirroring import Cluster, Mirrored, numbered, upstream_records
from tests.support.process.processes import until
from tests.support.process.serving import Served, quick

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(300)]
PASSWORD = "hush-of-the-broker"
PLAIN = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'username="admin" password="admin" user_admin="admin" user_archiver="{PASSWORD}";'
)
SECURED = {
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": PLAIN,
}
LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanisms": "PLAIN",
    "sasl.username": "archiver",
    "sasl.password": PASSWORD,
}
TOPIC = "shop.clicks"


def configured(deployment: Deployment, brokers: str) -> None:
    document = quick(deployment.document())
    document["topics"] = [
        {
            "name": TOPIC,
            "partitions": 0,
            "archive": {"kind": "iceberg", "catalog": "local", "table": "shop.mirrored"},
        },
    ]
    (deployment.root / "password").write_text(PASSWORD + "\n")
    kafka: dict[str, Any] = {"brokers": brokers, "topics": "shop[.].*", "discover_interval": "300ms"}
    kafka["properties"] = {**LOGIN, "sasl.password": {"file": "password"}}
    document["sources"] = [{"kafka": kafka}]
    deployment.write(document)


def here(deployment: Deployment) -> dict[int, list[Mirrored]]:
    found: dict[int, list[Mirrored]] = {}
    for record in deployment.consume(TOPIC):
        headers = tuple((name, raw(value)) for name, value in record["headers"])
        found.setdefault(record["partition"], []).append(
            Mirrored(
                record["offset"],
                raw(record["key"]),
                raw(record["value"]),
                headers,
                milliseconds(record["timestamp"]),
            )
        )
        assert record["batch_start"] is None
    return found


def raw(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def milliseconds(text: str) -> int:
    from datetime import datetime

    return round(datetime.fromisoformat(text).timestamp() * 1000)


def audited(deployment: Deployment, *arguments: str) -> dict[str, Any]:
    done = deployment.run("audit", "--output", "json", *arguments)
    document: dict[str, Any] = done.json()
    assert (done.code, document["verdict"]) == (0, "valid"), done.out + done.err
    return document


def test_backfill_and_live_are_one_table(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "d")
    with KafkaServer(tmp_path / "kafka", SECURED, listener="SASL_PLAINTEXT") as server:
        cluster = Cluster(server.brokers, **LOGIN)
        cluster.create(TOPIC, 2)
        cluster.send(TOPIC, numbered(0, 300))
        cluster.transact(TOPIC, numbered(300, 50), commit=False)
        cluster.transact(TOPIC, numbered(350, 50), commit=True)
        configured(deployment, server.brokers)
        with Served(deployment, scratch=tmp_path / "scratch") as daemon:
            daemon.until_ready()
            until("the backfill is archived", lambda: rows(daemon) == 350)
            cluster.grow(TOPIC, 3)
            cluster.send(TOPIC, numbered(400, 100) + numbered(0, 70, partition=2))
            until("what came later is archived", lambda: rows(daemon) == 520)
            metrics = daemon.get("/metrics").body.decode()
            assert 'archiver_source_up{source="kafka"} 1.0' in metrics
            assert 'archiver_source_records_total{source="kafka"} 520.0' in metrics
            assert 'archiver_mirror_stopped{source="kafka"} 0.0' in metrics
            assert "Kafka clusters that topics are mirrored from" in daemon.get("/").body.decode()
            refused = daemon.post(f"/v1/topics/{TOPIC}/records", b'{"value": "AAAA"}\n')
            assert refused.status == 400 and b"mirrored" in refused.body
            assert daemon.stop() == 0
            assert PASSWORD not in daemon.log_text()
        found = here(deployment)
        for partition in range(3):
            assert found.get(partition, []) == upstream_records(server.brokers, TOPIC, partition, **LOGIN)
    document = audited(deployment)
    parts = {part["partition"]: part for part in document["partitions"]}
    assert {number: part["rows"] for number, part in parts.items()} == {0: 450, 1: 0, 2: 70}
    assert parts[0]["gaps"] == [[300, 351], [401, 402]]
    audited(deployment, "--deep")


def rows(daemon: Served) -> int:
    """Rows of the table, as its newest snapshot states them."""
    assert daemon.running, daemon.log_text()
    answer = daemon.get(f"/v1/topics/{TOPIC}/table")
    if answer.status != 200:
        return 0  # The topic is not discovered yet, or the catalog does not answer in time.
    return answer.json()["rows"] or 0
