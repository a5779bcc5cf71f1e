"""`archiver groups` over a real log, with and without a running daemon."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Consumer, Producer, TopicPartition

from archiver.app.application import open_application
from archiver.app.group_reset import reset_alone, reset_commit
from archiver.cli.app import run
from archiver.config.settings import load_settings
from archiver.log.brokers import coordinator_of
from archiver.runtime.errors import RetryLater
from archiver.runtime.exit_codes import FINE, UNKNOWN, USAGE
from archiver.status.group_lag import group_report
from archiver.status.lag_metrics import group_families
from intake.log.committed_offsets import CommittedOffsets, OffsetBounds
from intake.log.consumer_groups import slot_of
from tests.support.kafka.listening import Listening, configured, listening
from tests.support.process.processes import until

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


def hold(served: Listening, group: str) -> None:
    """Begin a transaction with an offset of partition 1, and leave it open."""
    producer = Producer({"bootstrap.servers": served.bootstrap, "transactional.id": "billing"})
    consumer = Consumer({"bootstrap.servers": served.bootstrap, "group.id": group})
    producer.init_transactions(30)
    producer.begin_transaction()
    offsets = [TopicPartition("orders", 1, 3)]
    producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 30)
    consumer.close()


def test_pending_offsets_are_shown_and_prevent_a_reset(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with listening(config) as served:
        produce(served)
        hold(served, "report")
        assert run(["groups", "describe", "report", "-c", str(config)]) == USAGE
        assert "an open transaction has its first ones: orders:1" in capsys.readouterr().err
        commit(served, "report", {0: 4})
        shown = answer(capsys, config, "describe", "report")
        assert shown["pending"] == [{"topic": "orders", "partition": 1}]
        assert run(["groups", "describe", "report", "-c", str(config)]) == FINE
        assert "pending offsets: orders:1" in capsys.readouterr().out
    # Without a live daemon the command refuses it as well.
    assert reset(config, "report", "orders", "latest", "--yes") == UNKNOWN
    assert "an open transaction has offsets of it" in capsys.readouterr().err
    assert committed(config, capsys, "report") == {0: 4}


def committed(config: Path, capsys: pytest.CaptureFixture[str], group: str) -> dict[int, int]:
    rows = answer(capsys, config, "describe", group)["partitions"]
    return {row["partition"]: row["committed"] for row in rows}


def reset(config: Path, group: str, topic: str, to: str, *more: str) -> int:
    return run(["groups", "reset", "--group", group, "--topic", topic, "--to", to, *more, "-c", str(config)])


@pytest.fixture
def stopped(config: Path) -> Path:
    """The configuration of a deployment whose daemon has ended; `report` has committed 4 of 10 records."""
    with listening(config) as served:
        produce(served)
        commit(served, "report", {0: 4, 1: 4})
    return config


@pytest.mark.parametrize(
    ("topic", "to", "expected"),
    [
        ("orders", "earliest", {0: 0, 1: 0}),
        ("orders:1", "latest", {0: 4, 1: COUNT}),
        ("orders:1", "end", {0: 4, 1: COUNT}),
        ("orders", "latest-3", {0: COUNT - 3, 1: COUNT - 3}),
        ("orders", "-36500d", {0: 0, 1: 0}),
        ("orders", "7", {0: 7, 1: 7}),
        ("orders", "99", {0: COUNT, 1: COUNT}),
        ("orders", "2001-01-01T00:00:00Z", {0: 0, 1: 0}),
        ("orders", "2999-01-01T00:00:00Z", {0: COUNT, 1: COUNT}),
    ],
)
def test_a_reset_without_a_daemon(
    stopped: Path, topic: str, to: str, expected: dict[int, int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert reset(stopped, "report", topic, to, "--dry-run") == FINE
    assert committed(stopped, capsys, "report") == {0: 4, 1: 4}
    # Without a terminal there is no confirmation.
    assert reset(stopped, "report", topic, to) == USAGE
    assert committed(stopped, capsys, "report") == {0: 4, 1: 4}
    assert reset(stopped, "report", topic, to, "--yes") == FINE
    assert committed(stopped, capsys, "report") == expected
    with listening(stopped) as again:
        consumer = Consumer({"bootstrap.servers": again.bootstrap, "group.id": "report"})
        asked = [TopicPartition("orders", number) for number in expected]
        assert {one.partition: one.offset for one in consumer.committed(asked, timeout=30)} == expected
        consumer.close()


def test_a_coordinator_that_a_command_replaced_changes_nothing(
    stopped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with listening(stopped) as paused:
        offsets = CommittedOffsets(
            paused.writer.sequencer, paused.application.clock, OffsetBounds(2**20, 10**9)
        )
        claim = offsets.claim_slots([slot_of("report")], 1)
        state = paused.application.topic("orders")
        settings = paused.application.settings.kafka
        assert settings is not None
        with open_application(load_settings(stopped, {}), {}) as command:
            reset_alone(command, settings, "report", state.topic_id, {0: 1})
        assert offsets.commit([reset_commit("report", claim, state.topic_id, {0: 9})]) == ["stale_claim"]
    assert committed(stopped, capsys, "report") == {0: 1, 1: 4}


@pytest.mark.parametrize("to", ["soon", "-1", "9" * 30, "2026-01-01"])
def test_an_impossible_target_is_refused(stopped: Path, to: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert reset(stopped, "report", "orders", f"{to}", "--yes") == USAGE
    assert committed(stopped, capsys, "report") == {0: 4, 1: 4}


def test_a_live_daemon_that_cannot_be_asked_keeps_the_offsets(
    config: Path, served: Listening, capsys: pytest.CaptureFixture[str]
) -> None:
    commit(served, "report", {0: 4})
    assert reset(config, "report", "orders", "earliest", "--yes") == UNKNOWN
    assert f"the daemon at {served.bootstrap} coordinates it" in capsys.readouterr().err
    assert committed(config, capsys, "report") == {0: 4}


def test_the_coordinator_refuses_a_group_with_members(
    config: Path, served: Listening, capsys: pytest.CaptureFixture[str]
) -> None:
    commit(served, "report", {0: 4, 1: 4})
    topic_id = served.application.topic("orders").topic_id
    member = Consumer(
        {"bootstrap.servers": served.bootstrap, "group.id": "report", "enable.auto.commit": False}
    )
    member.subscribe(["orders"])
    try:
        until("it is assigned", lambda: member.poll(0.1) is None and len(member.assignment()) == 2)
        with pytest.raises(RetryLater, match="is in use and was not reset: it has 1 member"):
            served.service.reset_offsets("report", topic_id, {0: 1})
    finally:
        member.close()
    assert committed(config, capsys, "report") == {0: 4, 1: 4}
    served.service.reset_offsets("report", topic_id, {0: 1})
    assert committed(config, capsys, "report") == {0: 1, 1: 4}


@pytest.fixture
def both(stopped: Path) -> Path:
    """With a second group, which has no lag."""
    with listening(stopped) as served:
        commit(served, "done", {0: COUNT, 1: COUNT})
    return stopped


def limited(config: Path, partitions_max: int) -> None:
    """Write the setting `metrics.group_partitions_max`."""
    document = yaml.safe_load(config.read_text(encoding="utf-8"))
    document["metrics"] = {"group_partitions_max": partitions_max}
    config.write_text(yaml.safe_dump(document), encoding="utf-8")


def test_the_status_has_the_lag_of_groups_up_to_its_limit(
    both: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for partitions_max, names, left in ((4, ["done", "report"], 0), (3, ["done"], 1), (1, [], 2)):
        limited(both, partitions_max)
        capsys.readouterr()
        assert run(["status", "-c", str(both), "--output", "json"]) == FINE
        shown = json.loads(capsys.readouterr().out)["groups"]
        assert [one["group"] for one in shown["groups"]] == names
        assert shown["left"] == left
        lags = {one["group"]: one["lag_records"] for one in shown["groups"]}
        assert lags == {name: {"done": 0, "report": 2 * (COUNT - 4)}[name] for name in names}


def test_metrics_have_a_series_for_each_partition_within_the_limit(both: Path) -> None:
    with open_application(load_settings(both, {}), {}) as opened:
        now_us = opened.clock.now_us()
        ledger, backlog = opened.ledger(), opened.backlog()
        for partitions_max, groups, left in ((4, {"done", "report"}, 0.0), (2, {"done"}, 2.0)):
            report = group_report(backlog, ledger, now_us, partitions_max)
            found = {family.name: family.samples for family in group_families(report)}
            expected = {(group, "orders", str(number)) for group in groups for number in range(2)}
            assert set(found["archiver_group_lag_seconds"]) == expected
            records = {labels: 0.0 if labels[0] == "done" else COUNT - 4.0 for labels in expected}
            assert found["archiver_group_lag_records"] == records
            assert found["archiver_group_partitions_left"] == {(): left}
        # Later: the records are older, and those that are committed have no age.
        (done, late) = group_report(backlog, ledger, now_us + 60_000_000, 4).groups
        assert (done.group, done.lag_s) == ("done", 0.0)
        assert late.lag_s is not None and late.lag_s >= 60


def test_a_daemon_names_the_coordinator_of_a_group_that_is_not_its_own(
    config: Path, served: Listening, capsys: pytest.CaptureFixture[str]
) -> None:
    topic_id = served.application.topic("orders").topic_id
    with open_application(load_settings(config, {}), {}) as other:
        registry = other.logs.brokers(30.0)
        away = registry.register("127.0.0.1", 9, "")
        try:
            until("both are live", lambda: len(served.service.state.live) == 2)
            group = next(
                name
                for name in (f"g{number}" for number in range(1000))
                if coordinator_of(registry.live(), f"group-slot-{slot_of(name)}") == away
            )
            with pytest.raises(RetryLater, match=r"NOT_COORDINATOR.*127\.0\.0\.1:9 does"):
                served.service.reset_offsets(group, topic_id, {0: 1})
        finally:
            registry.release()
    assert run(["groups", "describe", group, "-c", str(config)]) == USAGE
    capsys.readouterr()
