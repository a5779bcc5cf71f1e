"""Where `consume` starts, on a real deployment: the end, the last records, a time, over gaps, archives, deleted
records and empty partitions."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from archiver.app import offset_targets
from archiver.app.offset_targets import Target, read_starts, target_offsets
from archiver.runtime.errors import RetryLater
from archiver.runtime.rfc3339 import format_time
from archiver.stream.archives import read_footer
from intake.log.backlog import Backlog
from tests.support.builders.deployment import Deployment, text
from tests.support.builders.driver import AheadClock, Driver
from tests.support.builders.retention import keep
from tests.support.intake.transactions import Transactional
from tests.support.schema.orders import order

pytestmark = pytest.mark.timeout(180)

PLACE = ("orders", 0)
T0_US = 1_700_000_000_000_000


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path / "d")


@pytest.fixture
def driver(deployment: Deployment) -> Iterator[Driver]:
    with Driver(deployment) as made:
        made.application.intake.writer().close()  # declares the topics
        yield made


def values(count: int) -> list[bytes | None]:
    return [order(number) for number in range(count)]


def offsets(deployment: Deployment, *arguments: str, topic: str = "orders") -> list[tuple[int, int]]:
    done = deployment.cli("consume", "--topic", topic, *arguments)
    assert done.code == 0, done.err
    return [(line["partition"], line["offset"]) for line in done.lines()]


def stored(driver: Driver, *, uncommitted: bool = False) -> dict[int, list[int]]:
    """The offsets of all records, per partition, read from the start."""
    stream, topic_id = driver.application.stream(), driver.topic_id("orders")
    return {
        partition: [record.offset for record in stream.read(topic_id, partition, uncommitted=uncommitted)]
        for partition in range(3)
    }


def starts(driver: Driver, target: Target, *, uncommitted: bool = False) -> dict[int, int]:
    application = driver.application
    state = application.topic("orders")
    return dict(read_starts(application, state, range(3), target, uncommitted=uncommitted))


def check_last(driver: Driver) -> None:
    """Each number of last records, in each partition, is what reading everything gives."""
    for uncommitted in (False, True):
        everything = stored(driver, uncommitted=uncommitted)
        stream, topic_id = driver.application.stream(), driver.topic_id("orders")
        for count in range(1, max(map(len, everything.values())) + 3):
            found = starts(driver, Target("last", count), uncommitted=uncommitted)
            for partition, before in everything.items():
                read = stream.read(topic_id, partition, found[partition], uncommitted=uncommitted)
                assert [record.offset for record in read] == before[-count:], (partition, count, uncommitted)
                # With a gap behind it, a smaller offset would give the same records.
                assert len(before) < count or found[partition] == before[-count]


@pytest.mark.parametrize("seed", range(5))
def test_the_last_records_of_random_histories(driver: Driver, seed: int) -> None:
    chance = random.Random(seed)
    producer = Transactional(driver.application, driver.clock, "random")
    opened = False
    for _ in range(14):
        match chance.choice(
            ["send", "send", "transaction", "transaction", "end", "end", "archive", "delete"]
        ):
            case "send":
                driver.send("orders", values(chance.randrange(1, 6)), chance.randrange(2))
            case "transaction":
                producer.send({("orders", chance.randrange(2)): values(chance.randrange(1, 9))})
                opened = True
            case "end" if opened:
                assert (producer.commit if chance.random() < 0.3 else producer.abort)() is None
                opened = False
            case "archive":
                driver.archive()
            case "delete":
                application = driver.application
                state, backlog = application.topic("orders"), application.backlog()
                below = backlog.stable_offset((state.topic_id, 0))
                if below:
                    application.intake.delete_records(state, {0: chance.randrange(below + 1)})
    check_last(driver)


def test_gaps_of_archives_and_of_intake_do_not_count(driver: Driver, deployment: Deployment) -> None:
    """0-1 plain, 2-6 aborted, 7 plain, all archived; 8-12 aborted, 13 plain, 14-15 aborted, 16 open."""
    aborting = Transactional(driver.application, driver.clock, "aborting")

    def abort(count: int) -> None:
        aborting.send({PLACE: values(count)})
        assert aborting.abort() is None

    driver.send("orders", values(2), 0)
    abort(5)
    driver.send("orders", values(1), 0)
    driver.send("orders", values(1), 1)
    driver.archive()
    abort(5)
    driver.send("orders", values(1), 0)
    abort(2)
    aborting.send({PLACE: values(1)})
    found = {n: offsets(deployment, "--partition", "0", "--from", f"latest-{n}") for n in range(1, 6)}
    assert found == {
        1: [(0, 13)],
        2: [(0, 7), (0, 13)],
        3: [(0, 1), (0, 7), (0, 13)],
        4: [(0, 0), (0, 1), (0, 7), (0, 13)],
        5: [(0, 0), (0, 1), (0, 7), (0, 13)],
    }
    assert offsets(deployment, "--partition", "0", "--from", "latest-2", "--uncommitted") == [
        (0, 13),
        (0, 16),
    ]
    assert offsets(deployment, "--from", "latest-1") == [(0, 13), (1, 0)], "each partition; one is empty"
    assert offsets(deployment, "--from", "latest-9000000000000000000") == [
        *[(0, offset) for offset in (0, 1, 7, 13)],
        (1, 0),
    ]
    check_last(driver)


def test_the_work_is_bounded(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many archives only the last are opened, and a large gap takes few questions."""
    for _ in range(6):
        driver.send("orders", values(4), 0)
        driver.archive()
    opened: list[str] = []

    def noted(objects: Any, found: Any, cluster_id: str) -> Any:
        opened.append(found.key)
        return read_footer(objects, found, cluster_id)

    monkeypatch.setattr("archiver.stream.stream.read_footer", noted)
    assert starts(driver, Target("last", 5))[0] == 19
    assert len(opened) == 2
    opened.clear()
    assert starts(driver, Target("last", 24))[0] == 0
    assert opened == [], "there are no more offsets than that"
    aborting = Transactional(driver.application, driver.clock, "aborting")
    aborting.send({PLACE: [b"v"] * 20_000})
    assert aborting.abort() is None
    asked: list[tuple[int, int]] = []
    gaps = Backlog.gaps

    def counted(self: Backlog, tp: Any, start: int, end: int) -> Any:
        asked.append((start, end))
        return gaps(self, tp, start, end)

    monkeypatch.setattr(Backlog, "gaps", counted)
    assert starts(driver, Target("last", 1))[0] == 23
    assert len(asked) < 20, asked


def test_deleted_records_are_not_among_the_last(driver: Driver, deployment: Deployment) -> None:
    driver.send("orders", values(6), 0)
    driver.application.intake.delete_records(driver.application.topic("orders"), {0: 4})
    done = deployment.cli("consume", "--topic", "orders", "--from", "latest-4")
    assert [line["offset"] for line in done.lines()] == [4, 5]
    assert done.err == "", "the start was computed, so it is not out of range"
    driver.application.intake.delete_records(driver.application.topic("orders"), {0: 6})
    for start in ("latest-4", "2020-01-01T00:00:00Z", "-1h"):
        done = deployment.cli("consume", "--topic", "orders", "--from", start)
        assert (done.code, done.out, done.err) == (0, "", "")


def test_expired_records_are_not_among_the_last(deployment: Deployment) -> None:
    keep(deployment, "2h")
    for hours in (0.0, 2.2, 2.5):
        clock = AheadClock()
        clock.ahead_s = hours * 3600
        with Driver(deployment, clock) as driver:
            if hours < 2.5:
                driver.send("orders", values(5), 0)
                driver.archive()
            else:
                driver.application.maintenance.cleaning(driver.reported.append).run()
    for count, first in ((3, 7), (5, 5), (6, 5), (100, 5)):
        done = deployment.cli("consume", "--topic", "orders:0", "--from", f"latest-{count}")
        assert [line["offset"] for line in done.lines()] == list(range(first, 10))
        assert done.err == ""
    done = deployment.cli("consume", "--topic", "orders:0", "--from", "2020-01-01T00:00:00Z", "--max", "1")
    assert ([line["offset"] for line in done.lines()], done.err) == ([5], "")


@pytest.mark.parametrize("topic", ["orders", "kept"])
def test_the_end_without_following_is_said(deployment: Deployment, topic: str) -> None:
    deployment.produce([{"topic": topic, "value": text(b"v")}])
    for start in ("end", "latest", "latest-0"):
        done = deployment.cli("consume", "--topic", topic, "--from", start)
        assert (done.code, done.out) == (0, "")
        assert done.err == (
            f"--from {start} prints records that come later; wait for them with --follow, or see the newest "
            "ones with --from latest-10\n"
        )
    assert len(deployment.cli("consume", "--topic", topic, "--from", "earliest").lines()) == 1
    assert deployment.cli("consume", "--topic", "orders:7", "--from", "end").code == 3


@pytest.mark.parametrize("archived", [False, True])
def test_a_time(driver: Driver, deployment: Deployment, archived: bool) -> None:
    """Event times need not ascend: the first record at or after the time, and all behind it."""
    times = [10, 20, 15, 30, 5]
    deployment.produce(
        [
            {"topic": "orders", "partition": 0, "value": None, "timestamp": format_time(T0_US + one * 10**6)}
            for one in times
        ]
    )
    if archived:
        driver.archive()

    def first(seconds: float) -> list[int]:
        at = format_time(T0_US + round(seconds * 1e6))
        return [offset for _, offset in offsets(deployment, "--from", at)]

    assert first(0) == first(10) == [0, 1, 2, 3, 4]
    assert first(10.000001) == first(20) == [1, 2, 3, 4]
    assert first(21) == first(30) == [3, 4]
    assert first(31) == []
    assert offsets(deployment, "--from", "-1h") == []
    assert len(offsets(deployment, "--from", "-36500d")) == len(times)


def test_a_time_does_not_pass_over_an_open_transaction(driver: Driver) -> None:
    """Its records count only when they are committed, and following must not begin behind them."""
    driver.send("orders", values(2), 0)
    producer = Transactional(driver.application, driver.clock, "slow")
    producer.send({PLACE: values(3)})
    later = Target("time", driver.clock.now_us() + 3600 * 10**6)
    assert starts(driver, later) == {0: 2, 1: 0, 2: 0}
    assert starts(driver, Target("latest")) == {0: 2, 1: 0, 2: 0}
    assert starts(driver, Target("latest"), uncommitted=True) == {0: 5, 1: 0, 2: 0}
    hour_ago = Target("time", driver.clock.now_us() - 3600 * 10**6)
    assert starts(driver, hour_ago) == {0: 0, 1: 0, 2: 0}


def test_invalid_starts_name_all_forms(deployment: Deployment) -> None:
    for start in ("-1", "newest", "tomorrow", "10m"):
        done = deployment.cli("consume", "--topic", "orders", "--from", start)
        assert (done.code, done.out) == (3, "")
        assert done.err == (
            f"error: --from {start} is not accepted; give earliest, latest or end (after the last record), "
            "latest-N (the last N records of each partition), an offset, a time such as 2026-11-27T12:00:00Z, or a duration such as -10m (that long ago)\n"
        )


def test_the_text_form_in_a_pipe_and_the_json_form_as_ever(deployment: Deployment) -> None:
    deployment.produce(
        [{"topic": "kept", "key": text(b"k"), "value": text("ä\x1b[2J".encode()), "headers": [["h", None]]}]
    )
    lines = deployment.cli("consume", "--topic", "kept")
    for arguments in (["--base64"], ["--output", "json"]):
        assert deployment.cli("consume", "--topic", "kept", *arguments).out == lines.out
    as_text = deployment.cli("consume", "--topic", "kept", "--output", "text").out.splitlines()
    assert as_text[0] == f"kept:0:0  {lines.lines()[0]['timestamp']}"
    assert as_text[1:] == [
        "  key             k",
        "  header (null)   h",
        "  value           ä\\u001b[2J",
    ]
    refused = deployment.cli("consume", "--topic", "kept", "--text", "--base64")
    assert (refused.code, refused.out) == (3, "")


def test_a_search_for_a_time_reads_as_many_files_as_there_are(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command has no second search that could go on from the files that the first one has read."""
    for _ in range(3):
        driver.send("orders", values(1), 0)
        driver.archive()
    application = driver.application
    state, later = application.topic("orders"), Target("time", driver.clock.now_us() + 3600 * 10**6)
    assert starts(driver, later)[0] == 3
    assert target_offsets(application, state, frozenset({0}), later)[0].offset == 3
    monkeypatch.setattr(offset_targets, "READS_MAX", 2)
    with pytest.raises(RetryLater, match="more than 2 files"):
        starts(driver, later)
    with pytest.raises(RetryLater, match="more than 2 files"):
        target_offsets(application, state, None, later)
