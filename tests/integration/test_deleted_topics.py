"""A topic that is deleted on a real deployment: its archives stay, no other topic waits, and nothing
recreates it unasked.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from archiver.runtime.errors import ConfigInvalid, NotFound
from intake.records import Record
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import WAIT_S, Driver, catalog_table
from tests.support.intake.transactions import Transactional

GRACE_S = 3601.0


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path / "d")


@pytest.fixture
def driver(deployment: Deployment) -> Iterator[Driver]:
    """One process: it continues with the configuration it has read."""
    with Driver(deployment) as made:
        yield made


def without(deployment: Deployment, topic: str) -> None:
    """Take a topic out of the configuration."""
    document = deployment.document()
    deployment.write(document | {"topics": [item for item in document["topics"] if item["name"] != topic]})


def with_table(deployment: Deployment, topic: str, table: str) -> None:
    document = deployment.document()
    for item in document["topics"]:
        if item["name"] == topic:
            item["archive"]["table"] = table
    deployment.write(document)


def delete(deployment: Deployment, topic: str) -> dict[str, Any]:
    """Delete the topic as an operator does."""
    done = deployment.cli("topics", "delete", topic, "--yes", "--output", "json")
    assert done.code == 0, done.err
    found: dict[str, Any] = done.json()
    return found


def fill(driver: Driver) -> None:
    """Archived records of every topic, and more that are not archived."""
    for topic in ("orders", "clicks", "files", "kept"):
        driver.send(topic, [f"{topic} {n}".encode() for n in range(6)])
    driver.archive()
    for topic in ("orders", "clicks", "files", "kept"):
        driver.send(topic, [f"{topic} later {n}".encode() for n in range(4)])


def rows(deployment: Deployment, table: str) -> int:
    with catalog_table(deployment, table) as found:
        return int(found.scan().to_arrow().num_rows)


def listed(deployment: Deployment) -> set[str]:
    return {item["topic"] for item in deployment.cli("topics", "list", "--output", "json").json()["topics"]}


def test_it_ends_for_everybody_and_what_was_archived_stays(deployment: Deployment, driver: Driver) -> None:
    fill(driver)
    topic_id = driver.topic_id("orders")
    archived = {info.key for info in driver.application.objects.list(f"archive/{topic_id}/")}
    without(deployment, "orders")
    done = delete(deployment, "orders")
    assert done == {
        "topic": "orders",
        "topic_id": topic_id,
        "deleted": True,
        "offsets_lost": 4,
        "archives": done["archives"],
    }
    assert done["archives"] == driver.application.objects.uri(f"archive/{topic_id}")
    assert listed(deployment) == {"clicks", "files", "kept"}
    for command in (
        ("consume", "--topic", "orders"),
        ("topics", "describe", "orders"),
        ("topics", "delete", "orders", "--yes"),
    ):
        gone = deployment.cli(*command)
        assert (gone.code, "topic orders was deleted" in gone.err) == (3, True), gone.err
    assert len(deployment.consume("clicks")) == 10
    assert {item["topic"] for item in deployment.cli("status", "--output", "json").json()["topics"]} == {
        "clicks",
        "files",
        "kept",
    }

    with Driver(deployment, driver.clock) as after:
        after.archive()
        after.check_complete("clicks", "files")
        assert {item["topic"] for item in after.audit()["partitions"]} == {"clicks", "files", "kept"}
        assert {info.key for info in after.application.objects.list(f"archive/{topic_id}/")} == archived
    assert rows(deployment, "shop.orders") == 6
    ledger = deployment.cli("ledger", "show", "--output", "json").json()
    assert topic_id in {item["topic_id"] for item in ledger["topics"] if item["topic"] == "orders"}


def test_its_intake_files_go_after_the_grace(deployment: Deployment, driver: Driver) -> None:
    fill(driver)
    held = {info.key for info in driver.application.objects.list("intake/")}
    for topic in ("orders", "kept"):
        document = deployment.document()
        deployment.write(
            document
            | {"topics": [item for item in document["topics"] if item["name"] not in ("orders", "kept")]}
        )
        delete(deployment, topic)
    with Driver(deployment, driver.clock) as after:
        after.archive()
        pin = after.application.oldest_required()
        assert pin is None or pin.topic not in ("orders", "kept")
        for run in range(2):
            after.clock.ahead_s += GRACE_S
            report = after.application.maintenance.cleaning(after.reported.append).run()
            assert (len(report.condemned) > 0, report.findings, report.unread) == (run == 0, [], False)
        kept = {info.key for info in after.application.objects.list("intake/")} & held
        assert len(kept) < len(held) - 2
        assert after.audit()["verdict"] == "valid"


def test_a_configured_topic_is_not_deleted_and_neither_is_one_no_one_knows(
    deployment: Deployment, driver: Driver
) -> None:
    fill(driver)
    refused = deployment.cli("topics", "delete", "orders", "--yes")
    assert (refused.code, "`- name: orders`" in refused.err) == (3, True), refused.err
    assert deployment.cli("topics", "delete", "nowhere", "--yes").code == 3
    without(deployment, "orders")
    unasked = deployment.cli("topics", "delete", "orders")
    assert (unasked.code, "--yes" in unasked.err) == (3, True), unasked.err
    assert "orders" in listed(deployment)


def test_of_a_topic_without_archives_none_are_spoken_of(deployment: Deployment, driver: Driver) -> None:
    fill(driver)
    without(deployment, "kept")
    done = deployment.cli("topics", "delete", "kept", "--yes")
    assert (done.code, "archive" in done.out.replace("that no archive held", ""), "table" in done.out) == (
        0,
        False,
        False,
    ), done.out
    gone = deployment.cli("topics", "describe", "kept")
    assert (gone.code, gone.err.strip()) == (3, "error: topic kept was deleted")
    without(deployment, "orders")
    assert "its archives and table in " in deployment.cli("topics", "delete", "orders", "--yes").out
    assert "its archives and table are still there" in deployment.cli("topics", "describe", "orders").err


@pytest.mark.parametrize("answer", ["n", "y"])
def test_on_a_terminal_it_asks(deployment: Deployment, driver: Driver, answer: str) -> None:
    fill(driver)
    without(deployment, "orders")
    terminal, its_end = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "archiver", "topics", "delete", "orders"],
        stdin=its_end,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=deployment.environ(),
        cwd=deployment.root,
    )
    with process:
        try:
            os.write(terminal, f"{answer}\n".encode())
            out, _ = process.communicate(timeout=60)
        finally:
            process.kill()
            os.close(terminal)
            os.close(its_end)
    assert process.returncode == 0, out
    assert "4 offsets that no archive holds are lost" in out
    assert "its archives and table in " in out
    assert ("orders" in listed(deployment)) == (answer == "n")


def test_a_process_that_does_not_know_of_it_learns_it_and_does_not_repeat_it(
    deployment: Deployment, driver: Driver
) -> None:
    """It serves with the configuration of yesterday, and its writer was open all the time."""
    fill(driver)
    with driver.application.intake.writer() as writer:
        assert writer.send("orders", Record(None, b"before"), 0).result(WAIT_S).outcome == "ok"
        without(deployment, "orders")
        delete(deployment, "orders")
        refused = writer.send("orders", Record(None, b"after"), 0)
        alongside = writer.send("clicks", Record(None, b"alongside"), 0)
        writer.flush()
        acknowledged = refused.result(WAIT_S)
        assert (acknowledged.outcome, acknowledged.refusal) == ("failed", "deleted")
        assert "topic orders was deleted" in str(acknowledged.error)
        assert alongside.result(WAIT_S).outcome == "ok"
        with pytest.raises(NotFound, match="topic orders was deleted"):
            writer.send("orders", Record(None, b"later"), 0)
    report = driver.archive()
    assert report.topics["orders"].state == "halted"
    assert "archiver topics create orders" in str(report.topics["orders"].why)
    assert "orders" not in driver.application.backlog().topics_by_name
    driver.check_complete("clicks", "files")
    with driver.application.intake.writer() as writer:
        assert writer.send("clicks", Record(None, b"still"), 1).result(WAIT_S).outcome == "ok"
    with pytest.raises(ConfigInvalid, match="in the configuration"):
        driver.application.intake.check_deletable(driver.application.topic("clicks"))


def test_an_open_transaction_of_it_holds_no_other_topic_back(deployment: Deployment, driver: Driver) -> None:
    driver.send("orders", [b"first"])
    driver.send("clicks", [b"first"], 0)
    sender = Transactional(driver.application, driver.clock, "both")
    sender.send({("orders", 0): [b"a"], ("clicks", 0): [b"b", b"c"]})
    driver.send("clicks", [b"behind"], 0)
    driver.archive()
    assert driver.watermarks("clicks") == {0: 1}
    without(deployment, "orders")
    delete(deployment, "orders")
    assert sender.commit() == "fenced"
    driver.archive()
    assert driver.watermarks("clicks") == {0: 4}
    assert [record.value for record in driver.records("clicks")[0]] == [b"first", b"behind"]
    driver.check_complete("clicks")


def test_declared_again_it_halts_on_the_old_table_until_it_gets_another(
    deployment: Deployment, driver: Driver
) -> None:
    fill(driver)
    first = driver.topic_id("orders")
    without(deployment, "orders")
    delete(deployment, "orders")
    deployment.write(deployment.document())
    assert (
        deployment.cli(
            "produce", stdin='{"topic": "orders", "partition": 0, "key": null, "value": "MQ=="}\n'
        ).code
        == 3
    )
    assert deployment.cli("topics", "create", "orders").code == 0
    with Driver(deployment, driver.clock) as again:
        assert again.topic_id("orders") != first
        assert again.send("orders", [b"new 1", b"new 2"], 0)[1].offset == 1
        report = again.archive()
        assert report.topics["orders"].state == "halted", report.topics["orders"]
        assert report.topics["clicks"].state == "archived"
    assert rows(deployment, "shop.orders") == 6
    with_table(deployment, "orders", "shop.orders_2")
    with Driver(deployment, driver.clock) as moved:
        moved.archive()
        moved.check_complete("orders", "clicks", "files")
        assert [record.value for record in moved.records("orders")[0]] == [b"new 1", b"new 2"]
    assert (rows(deployment, "shop.orders"), rows(deployment, "shop.orders_2")) == (6, 2)


def test_the_deletion_is_in_checkpoints_and_shelves_are_read_next_to_it(tmp_path: Path) -> None:
    """The log was trimmed below everything, so a later process learns of the deletion from a checkpoint
    alone."""
    deployment = Deployment(
        tmp_path / "d", overrides={"log": {"append_backoff": "5ms", "checkpoint_entries": 4}}
    )
    with Driver(deployment) as driver:
        for number in range(8):
            for topic in ("orders", "clicks", "kept"):
                driver.send(topic, [f"{topic} {number}".encode()], 0)
        without(deployment, "orders")
        delete(deployment, "orders")
        entry = driver.application.intake_log.tail() - 1
        with Driver(deployment, driver.clock) as alongside:
            for number in range(8, 16):
                for topic in ("clicks", "kept"):
                    alongside.send(topic, [f"{topic} {number}".encode()], 0)
            alongside.application.checkpointer.run()
            assert alongside.application.intake_log.floor() > entry
        with Driver(deployment, driver.clock) as late:
            intake = late.application.backlog()
            assert [topic.name for topic in intake.fold.deleted_topics.values()] == ["orders"]
            late.archive()
            late.check_complete("clicks")
            for topic in ("clicks", "kept"):
                assert [record.value for record in late.records(topic)[0]] == [
                    f"{topic} {n}".encode() for n in range(16)
                ]
        # The process from before the trimming finds out at its next append, and its own fold continues.
        with pytest.raises(NotFound, match="was deleted"):
            driver.send("orders", [b"too late"], 0)
        assert driver.send("clicks", [b"on time"], 0)[0].outcome == "ok"
