"""`archiver groups` over a real log, with and without a running daemon."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from archiver.cli.app import run
from archiver.runtime.exit_codes import FINE, USAGE
from tests.support.kafka.listening import Listening, configured, listening

pytestmark = pytest.mark.timeout(120)

TOPICS = [{"name": name, "partitions": 2} for name in ("orders", "clicks")]
COUNT = 10
"""Records of each partition of `orders`."""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return configured(
        tmp_path / "kafka",
        TOPICS,
        kafka={"group_initial_rebalance_delay": "0s", "group_session_timeout_min": "100ms"},
    )


@pytest.fixture
def served(config: Path) -> Iterator[Listening]:
    with listening(config) as found:
        produce(found)
        yield found


def produce(served: Listening) -> None:
    producer = Producer({"bootstrap.servers": served.bootstrap})
    for number in range(2 * COUNT):
        producer.produce("orders", b"%d" % number, partition=number % 2)
    assert producer.flush(30) == 0


def commit(served: Listening, group: str, offsets: Mapping[int, int]) -> None:
    consumer = Consumer({"bootstrap.servers": served.bootstrap, "group.id": group})
    try:
        consumer.commit(
            offsets=[TopicPartition("orders", number, offset) for number, offset in offsets.items()],
            asynchronous=False,
        )
    finally:
        consumer.close()


def answer(capsys: pytest.CaptureFixture[str], config: Path, *arguments: str) -> Any:
    capsys.readouterr()
    assert run(["groups", *arguments, "-c", str(config), "--output", "json"]) == FINE
    return json.loads(capsys.readouterr().out)


def test_list_and_describe_with_a_coordinator_and_without_one(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with listening(config) as served:
        produce(served)
        commit(served, "report", {0: 4, 1: COUNT})
        commit(served, "done", {0: COUNT, 1: COUNT})
        running = answer(capsys, config, "describe", "report")
        assert running["coordinator"]["address"] == served.bootstrap
    listed = answer(capsys, config, "list")["groups"]
    assert [(one["group"], one["topics"], one["partitions"], one["lag_records"]) for one in listed] == [
        ("done", ["orders"], 2, 0),
        ("report", ["orders"], 2, COUNT - 4),
    ]
    assert listed[0]["lag_seconds"] == 0.0
    assert listed[1]["lag_seconds"] > 0
    stopped = answer(capsys, config, "describe", "report")
    assert stopped["coordinator"]["address"] is None
    for one in (running, stopped):
        rows = one["partitions"]
        assert [(row["partition"], row["committed"], row["end"], row["lag_records"]) for row in rows] == [
            (0, 4, COUNT, COUNT - 4),
            (1, COUNT, COUNT, 0),
        ]
        # Of the records, not of the commit, which came after them.
        assert rows[0]["lag_seconds"] > rows[0]["commit_age_seconds"]
        assert rows[1]["lag_seconds"] == 0.0


def test_people_get_a_table(config: Path, served: Listening, capsys: pytest.CaptureFixture[str]) -> None:
    commit(served, "report", {0: 4})
    for arguments in (["list"], ["describe", "report"]):
        assert run(["groups", *arguments, "-c", str(config)]) == FINE
        assert "report" in capsys.readouterr().out


def test_a_group_without_offsets_is_named(
    config: Path, served: Listening, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["groups", "describe", "nix", "-c", str(config)]) == USAGE
    assert "consumer group nix has no committed offsets" in capsys.readouterr().err
