"""`archiver groups reset` through the port of a running daemon."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml
from confluent_kafka import Consumer, Producer, TopicPartition

from archiver.runtime.exit_codes import FINE, UNKNOWN
from tests.support.builders.deployment import Deployment
from tests.support.process.processes import until
from tests.support.process.serving import Served
from tests.system.test_kafka_listener_served import CLIENT, TOPIC, bootstrap, configure, started

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="searches /proc for descendants"),
]

COUNT = 10
RESET = ("groups", "reset", "--group", "report", "--topic", f"{TOPIC}:0", "--to", "3", "--yes")


def committed(deployment: Deployment) -> int:
    shown = json.loads(deployment.cli("groups", "describe", "report", "--output", "json").out)
    return {row["partition"]: int(row["committed"]) for row in shown["partitions"]}[0]


def point_at(deployment: Deployment, daemon: Served) -> None:
    """Write the port that the daemon chose into the configuration that commands read."""
    document = yaml.safe_load(deployment.config.read_text(encoding="utf-8"))
    document["http"]["listen"] = "{}:{}".format(*daemon.address)
    deployment.write(document)


def test_the_daemon_resets_a_group_and_refuses_one_in_use(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "d")
    configure(deployment, group_initial_rebalance_delay="0s")
    with started(deployment, tmp_path) as daemon:
        servers = {"bootstrap.servers": bootstrap(daemon), **CLIENT}
        producer = Producer(servers)
        for number in range(COUNT):
            producer.produce(TOPIC, b"%d" % number, partition=0)
        assert producer.flush(30) == 0
        point_at(deployment, daemon)
        member = Consumer(
            {**servers, "group.id": "report", "auto.offset.reset": "earliest", "enable.auto.commit": False}
        )
        member.subscribe([TOPIC])
        seen: list[int | None] = []

        def read_all() -> bool:
            message = member.poll(0.2)
            if message is not None and message.error() is None and message.partition() == 0:
                seen.append(message.offset())
            return len(seen) == COUNT

        until("it has read all", read_all)
        member.commit(asynchronous=False)
        refused = deployment.cli(*RESET)
        assert refused.code == UNKNOWN
        assert "in use and was not reset: it has 1 member" in refused.err
        assert committed(deployment) == COUNT
        member.close()
        done = deployment.cli(*RESET, "--output", "json")
        assert done.code == FINE, done.err
        (row,) = json.loads(done.out)["partitions"]
        assert (row["committed_before"], row["committed"]) == (COUNT, 3)
        again = Consumer({**servers, "group.id": "report"})
        (found,) = again.committed([TopicPartition(TOPIC, 0)], timeout=30)
        assert found.offset == 3
        again.close()
    assert committed(deployment) == 3
