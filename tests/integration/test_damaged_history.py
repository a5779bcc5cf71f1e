"""A missing or damaged history file stops only the topics that need it; what is uncertain is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from archiver.runtime.errors import Corrupted
from tests.support.builders.deployment import Deployment, Done
from tests.support.builders.driver import AheadClock, Driver

HURT, WELL = ("clicks", "files"), ("orders", "kept")
"""Topics with records in the damaged history file, and topics whose records are all after it."""
GRACE_S = 3601.0

Spoil = Callable[[Path], None]


def removed(ref: Path) -> None:
    ref.unlink()


def damaged_rows(ref: Path) -> None:
    """Write wrong bytes wherever there are rows; the footer, and so the index, stays as it was."""
    data = ref.read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    ref.write_bytes(data[:4] + bytes(byte ^ 0xFF for byte in data[4:footer]) + data[footer:])


def damaged_footer(ref: Path) -> None:
    data = bytearray(ref.read_bytes())
    data[-40] ^= 4
    ref.write_bytes(data)


SPOILS = pytest.mark.parametrize("spoil", [removed, damaged_rows, damaged_footer])


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    """One history file with records of `HURT`, after it records of `WELL`; everything was written hours ago."""
    made = Deployment(tmp_path / "d", overrides={"log": {"append_backoff": "5ms", "checkpoint_entries": 16}})
    with hours_ago(made) as driver:
        for number in range(8):
            for topic in HURT:
                driver.send(topic, [b"%d" % number], 0)
        driver.application.checkpointer.run_if_due()
        for topic in WELL:
            driver.send(topic, [b"1", b"2"], 0)
    assert len(history(made)) == 1
    return made


def hours_ago(deployment: Deployment, hours: float = 3.0) -> Driver:
    clock = AheadClock()
    clock.ahead_s = -hours * 3600
    return Driver(deployment, clock)


@pytest.fixture
def driver(deployment: Deployment) -> Iterator[Driver]:
    with Driver(deployment) as made:
        yield made


def history(deployment: Deployment) -> list[Path]:
    return sorted(path for path in (deployment.data / "shelf").rglob("*") if path.is_file())


def needing(driver: Driver) -> set[str]:
    """Topics whose segments cannot all be read, by the view itself."""
    intake, found = driver.application.backlog(), set()
    for state in intake.topics_by_id.values():
        try:
            for partition in range(state.partitions):
                intake.segments((state.topic_id, partition))
        except Corrupted:
            found.add(state.name)
    return found


def json_of(done: Done, code: int = 0) -> dict[str, Any]:
    assert done.code == code, done.err
    reported: dict[str, Any] = done.json()
    return reported


@SPOILS
def test_archiving_halts_the_topics_that_need_it_and_goes_on_with_the_others(
    driver: Driver, spoil: Spoil
) -> None:
    spoil(history(driver.deployment)[0])
    assert needing(driver) == set(HURT), "the test spoils what it says"
    report = driver.archive()
    for topic in HURT:
        waiting = 8 if spoil is damaged_rows else None
        assert (report.of(topic).state, report.of(topic).archives, report.of(topic).waiting) == (
            "halted",
            0,
            waiting,
        )
        assert "restore it from a copy" in (report.of(topic).why or "")
    assert (report.of("orders").state, report.of("orders").rows, report.of("orders").waiting) == (
        "archived",
        2,
        0,
    )
    assert driver.watermarks("orders") == {0: 2}
    assert driver.watermarks("clicks") == driver.watermarks("files") == {}


@SPOILS
def test_a_healthy_topic_alone_is_archived_without_a_word(driver: Driver, spoil: Spoil) -> None:
    spoil(history(driver.deployment)[0])
    report = driver.archive(("orders", None))
    assert (report.halted, report.deferred, report.of("orders").rows) == ([], [], 2)


def test_a_topic_that_is_archived_beyond_the_shelf_needs_it_no_more(
    deployment: Deployment, driver: Driver
) -> None:
    with Driver(
        deployment
    ) as before:  # another process: one that has read the history file continues with what it knows
        before.archive(("files", None))
        before.send("files", [b"later"], 0)
    removed(history(deployment)[0])
    report = driver.archive()
    assert [item.topic for item in report.halted] == ["clicks"]
    assert (report.of("files").state, report.of("files").rows) == ("archived", 1)


def test_a_topic_goes_on_when_the_shelf_is_back(driver: Driver) -> None:
    ref = history(driver.deployment)[0]
    data = ref.read_bytes()
    removed(ref)
    driver.archive()
    ref.write_bytes(data)
    assert not driver.archive().halted
    driver.check_complete("orders", "clicks", "files")


def test_listings_of_damaged_rows_are_as_ever_because_the_index_is_whole(deployment: Deployment) -> None:
    before = [
        deployment.cli(*command, "--output", "json").out
        for command in (["topics", "list"], ["topics", "describe", "clicks"])
    ]
    damaged_rows(history(deployment)[0])
    assert before == [
        deployment.cli(*command, "--output", "json").out
        for command in (["topics", "list"], ["topics", "describe", "clicks"])
    ]
    page = json_of(deployment.cli("status", "--output", "json"))
    assert {item["topic"]: item["backlog_rows"] for item in page["topics"]} == {
        "clicks": 8,
        "files": 8,
        "orders": 2,
        "kept": 2,
    }
    assert deployment.cli("status").code == 0


@pytest.mark.parametrize("spoil", [removed, damaged_footer])
def test_listings_show_what_is_known_and_say_what_is_not(deployment: Deployment, spoil: Spoil) -> None:
    spoil(history(deployment)[0])
    listed = json_of(deployment.cli("topics", "list", "--output", "json"))
    assert {item["topic"]: item["records"] for item in listed["topics"]} == {
        "clicks": 8,
        "files": 8,
        "orders": 2,
        "kept": 2,
    }
    assert {str(note).split()[1] for note in listed["attention"]} == set(HURT)
    page = json_of(deployment.cli("status", "--output", "json"))
    backlog = {
        item["topic"]: (item["records"], item["backlog_rows"], item["backlog_bytes"])
        for item in page["topics"]
    }
    assert backlog == {
        "clicks": (8, None, None),
        "files": (8, None, None),
        "orders": (2, 2, 2),
        "kept": (2, 2, 2),
    }
    assert [note for note in page["attention"] if "restore it from a copy" in str(note)] == listed[
        "attention"
    ]
    described = json_of(deployment.cli("topics", "describe", "clicks", "--output", "json"))
    assert [item["backlog_rows"] for item in described["partitions"]] == [None, 0], (
        "the other partition has nothing in the shelf"
    )
    assert described["attention"] == listed["attention"][:1]
    assert json_of(deployment.cli("topics", "describe", "orders", "--output", "json"))["attention"] == []


def test_text_says_it_too(deployment: Deployment) -> None:
    removed(history(deployment)[0])
    for command in (["topics", "list"], ["topics", "describe", "clicks"], ["status"]):
        done = deployment.cli(*command)
        assert done.code == 0, done.err
        assert (
            "note: topic clicks partition 0: the backlog cannot be counted: a history file that the newest "
            "checkpoint names is missing" in done.out
        )
    assert deployment.cli("status", "--exit-code").code == 1


def test_listings_of_a_whole_deployment_have_no_notes(deployment: Deployment) -> None:
    assert json_of(deployment.cli("topics", "list", "--output", "json"))["attention"] == []
    assert json_of(deployment.cli("status", "--output", "json"))["attention"] == []


@SPOILS
def test_cleaning_deletes_nothing_on_such_a_doubt(deployment: Deployment, spoil: Spoil) -> None:
    with hours_ago(deployment) as driver:
        driver.archive(("orders", None))
        driver.archive(("files", None))
    with hours_ago(deployment, hours=1.5) as driver:
        condemned = set(driver.application.maintenance.cleaning(driver.reported.append).run().condemned)
    assert len(condemned) == 9, "every file of files, and the one of orders"
    with Driver(deployment) as driver:
        driver.archive(("orders", None))
    before = sorted(deployment.data.rglob("*.parquet"))
    ref = history(deployment)[0]
    data = ref.read_bytes()
    spoil(ref)
    spoilt = sorted(deployment.data.rglob("*.parquet"))
    for arguments in (["--dry-run"], []):
        reported = json_of(deployment.cli("clean", "--output", "json", *arguments), code=2)
        assert (reported["condemned"], reported["deleted"], reported["barrier_ms"], reported["findings"]) == (
            [],
            [],
            None,
            [],
        )
        assert {item["topic"]: item["doubted"] for item in reported["topics"]} == {
            "clicks": True,
            "kept": False,
        }
    assert sorted(deployment.data.rglob("*.parquet")) == spoilt
    ref.write_bytes(data)
    assert sorted(deployment.data.rglob("*.parquet")) == before
    assert set(json_of(deployment.cli("clean", "--output", "json"))["deleted"]) == condemned


def test_cleaning_goes_on_once_the_shelf_is_not_needed(deployment: Deployment) -> None:
    with hours_ago(deployment) as driver:
        driver.archive()
    removed(history(deployment)[0])
    reported = json_of(deployment.cli("clean", "--output", "json"))
    assert len(reported["condemned"]) == 17
