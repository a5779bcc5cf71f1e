"""What each topic accepts per second, counted from a real intake log."""

from __future__ import annotations

from pathlib import Path

from archiver.status.lag import LagReport, lag_report
from archiver.status.rates import Accepted, AcceptedRecords
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver


def report(driver: Driver) -> LagReport:
    app = driver.application
    now_us, settings = driver.clock.now_us(), app.settings
    return lag_report(app.backlog(), app.ledger(), settings.topics, now_us, {}, archive=settings.archive)


def test_records_and_bytes_between_two_polls(tmp_path: Path) -> None:
    with Driver(Deployment(tmp_path)) as driver:
        counted = AcceptedRecords()
        driver.send("kept", [b"1234567890"] * 3)
        before = report(driver)
        assert counted.poll(driver.application.backlog(), before, 10.0) == {}, "since when is not known"
        driver.send("kept", [b"12345"] * 4)
        driver.send("files", [b"1"], 0)
        found = counted.poll(driver.application.backlog(), report(driver), 12.0)
        assert (found["kept"], found["files"]) == (Accepted(2.0, 4, 20), Accepted(2.0, 1, 1))
        assert found["orders"] == Accepted(2.0, 0, 0)
        stale = report(driver)
        driver.send("kept", [b"x" * 100])
        assert counted.poll(driver.application.backlog(), stale, 13.0)["kept"] == Accepted(1.0, 0, 0), (
            "what came after the report belongs to the next poll"
        )
        found = counted.poll(driver.application.backlog(), report(driver), 15.0)
        assert found["kept"] == Accepted(2.0, 1, 100)
        assert counted.poll(driver.application.backlog(), report(driver), 15.0) == {}, "no time has passed"


def test_what_a_checkpoint_moved_is_unknown_and_read_nowhere(tmp_path: Path) -> None:
    with Driver(Deployment(tmp_path)) as driver:
        counted = AcceptedRecords()
        app = driver.application
        counted.poll(app.backlog(), report(driver), 10.0)
        driver.send("kept", [b"1"] * 3)
        state = app.topic("kept")
        partition = app.backlog().fold.partition((state.topic_id, 0))
        partition.history_end = partition.next_offset
        found = counted.poll(app.backlog(), report(driver), 11.0)
        assert "kept" not in found
        assert found["orders"] == Accepted(1.0, 0, 0)
        driver.send("kept", [b"12"])
        assert counted.poll(app.backlog(), report(driver), 12.0)["kept"] == Accepted(1.0, 1, 2)
