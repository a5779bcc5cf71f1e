"""The ledger entries of a round, which are control-topic events, and the data that they hold next to the
archives.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from archiver.cli.ledger import _events
from archiver.events import codec
from archiver.events.types import CommitComplete, CommitToTable, DataComplete, DataWritten, Event, StartCommit
from archiver.objects import paths
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver, catalog_table
from tests.support.intake.transactions import Transactional
from tests.support.schema.orders import order


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    with Driver(Deployment(tmp_path / "d")) as made:
        yield made


def events(driver: Driver) -> list[Event]:
    return [codec.decode(data) for _, data in _events(driver.application)]


def test_a_round_of_nothing_but_gaps_lists_no_file_and_knows_no_time(driver: Driver) -> None:
    driver.application.intake.writer().close()
    aborting = Transactional(driver.application, driver.clock, "t")
    aborting.send({("orders", 1): [order(1)] * 3})
    aborting.abort()
    driver.archive()
    payloads: list[Any] = [event.payload for event in events(driver)]
    assert [type(payload) for payload in payloads] == [
        StartCommit,
        DataWritten,
        DataComplete,
        CommitToTable,
        CommitComplete,
    ]
    _, written, complete, committed, _ = payloads
    assert written.data_files == ()
    assert [(item.partition, item.offset, item.timestamp_us) for item in complete.assignments] == [
        (1, 3, None)
    ]
    with catalog_table(driver.deployment, "shop.orders") as seen:
        assert seen.current_snapshot().snapshot_id == committed.snapshot_id
        assert list(seen.scan().plan_files()) == []


def test_the_five_events_of_a_round(driver: Driver) -> None:
    driver.send("orders", [order(1), order(2)], 0)
    driver.send("orders", [order(3)], 2)
    driver.send("clicks", [b"a"], 1)
    driver.send("files", [b"a"])
    before_us = driver.clock.now_us()
    driver.archive()
    found = events(driver)
    payloads: list[Any] = [event.payload for event in found]
    assert [type(payload) for payload in payloads] == [
        StartCommit,
        DataWritten,
        DataWritten,
        DataComplete,
        CommitToTable,
        CommitToTable,
        CommitComplete,
    ]
    assert len({payload.commit_id for payload in payloads}) == 1
    assert len({event.id for event in found}) == len(found)
    assert {event.group_id for event in found} == {"archiver-test"}
    assert all(before_us <= event.timestamp_us <= driver.clock.now_us() for event in found)
    start, clicks, orders, complete, clicks_committed, orders_committed, settled = payloads
    assert str(start.commit_id) == driver.application.ledger().rounds[-1].to_json()["commit_id"]
    with catalog_table(driver.deployment, "shop.orders") as seen:
        live = {task.file.file_path: task.file.record_count for task in seen.scan().plan_files()}
        uuid, snapshot_id = seen.metadata.table_uuid, seen.current_snapshot().snapshot_id
    reference = orders.table
    assert (reference.catalog, reference.namespace, reference.name, reference.uuid) == (
        "local",
        ("shop",),
        "orders",
        uuid,
    )
    assert clicks.table.name == "clicks"
    assert {file.path: file.record_count for file in orders.data_files} == live
    assert sorted(live.values()) == [1, 2]
    reached = {(item.topic, item.partition): item.offset for item in complete.assignments}
    assert reached == {("orders", 0): 2, ("orders", 2): 1, ("clicks", 1): 1, ("files", 0): 1}
    assert orders_committed.table == reference
    assert orders_committed.snapshot_id == snapshot_id
    through = {orders_committed.valid_through_us, clicks_committed.valid_through_us}
    assert settled.valid_through_us == min(through)
    assert min(through) >= before_us


def test_a_run_without_work_says_nothing(driver: Driver) -> None:
    driver.send("orders", [order(1)], 0)
    driver.archive()
    count, tail = len(events(driver)), driver.application.ledger().next_index
    driver.archive()
    assert len(events(driver)) == count
    assert driver.application.ledger().next_index == tail + 1, "the new epoch alone"


def test_a_folder_reports_its_topic(driver: Driver) -> None:
    driver.send("files", [b"a"])
    driver.archive()
    state = driver.application.topic("files")
    document = json.loads(driver.application.objects.read(paths.topic_key(state.topic_id)))
    assert document == {
        "format": 1,
        "topic": "files",
        "topic_id": state.topic_id,
        "partitions": 1,
        "created_us": state.created_us,
    }
