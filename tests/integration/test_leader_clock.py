"""The clock of the leader: its times go into the log for good, so they are compared with the time that
passed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from archiver.app.application import Application
from archiver.config.settings import load_settings
from archiver.refine.task import PlanResult, RefineJob
from archiver.runtime.clock import ManualClock
from archiver.runtime.errors import RetryLater
from intake.records import Record
from intake.write.producer import Producer
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import AheadClock, Driver, refine_here

WAIT_S = 120.0
DAY_S = 86_400.0


class SteppingClock(AheadClock):
    """A clock whose wall time a test can step; the monotonic one does not change."""

    def __init__(self) -> None:
        super().__init__()
        self.step_s = 0.0

    def now_us(self) -> int:
        return super().now_us() + round(self.step_s * 1e6)


class ManualDriver(Driver):
    """A driver with a manual clock."""

    def __init__(self, deployment: Deployment, clock: ManualClock) -> None:
        super().__init__(deployment)
        self.application.close()
        self.application = Application(load_settings(deployment.config, {}), {}, clock)


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path / "d", overrides={"archive": {"tick": "1s"}})


@pytest.mark.parametrize("step_s", [11, 3600, 400 * DAY_S])
def test_a_clock_that_steps_ahead_puts_nothing_into_the_log(deployment: Deployment, step_s: float) -> None:
    clock = ManualClock()
    with Driver(deployment) as sender, sender.application.intake.writer() as writer:
        clock.set_wall(sender.clock.now_us())
        producer = Producer.open(writer, "live", transaction_timeout_s=60)
        producer.begin()
        assert producer.send("clicks", Record(None, b"in flight"), 0).result(WAIT_S).outcome == "ok"
        idle = Producer.open(writer)
        assert idle.send("files", Record(None, b"1"), 0).result(WAIT_S).outcome == "ok"
        sender.send("orders", [b"1"], 0)
        with ManualDriver(deployment, clock) as driver:
            assert driver.archive().of("orders").rows == 1
            run = driver.run()
            clock.set_wall(clock.now_us() + round(step_s * 1e6))
            tail = driver.application.intake_log.tail()
            with pytest.raises(RetryLater, match=r"archiving ends here.*ahead of its reference"):
                run.run(everything=True)
            assert driver.application.intake_log.tail() == tail, (
                "no tick, no end of a transaction, nothing forgotten"
            )
            driver.application.lease.acquire()
            driver.application.lease.release()
        producer.commit()
        assert idle.send("files", Record(None, b"2"), 0).result(WAIT_S).outcome == "ok"
    with Driver(deployment) as after:
        assert after.application.backlog().tick_us < after.clock.now_us() + 1_000_000
        after.archive()
        after.check_complete("orders", "clicks", "files")


def test_a_step_between_two_rounds_ends_the_run_behind_the_first(deployment: Deployment) -> None:
    document = deployment.document()
    document["archive"] = {"tick": "1s", "concurrent_max": 1}
    deployment.write(document)
    clock = SteppingClock()
    with Driver(deployment, clock) as driver:
        driver.send("orders", [b"1"], 0)
        driver.send("orders", [b"2"], 1)

        def refine(job: RefineJob) -> list[PlanResult]:
            clock.step_s = 3600.0
            return refine_here(job)

        with pytest.raises(RetryLater, match="archiving ends here"):
            driver.archive(refine=refine)
        assert sum(driver.watermarks("orders").values()) == 1, "what the first round archived is archived"
        clock.step_s = 0.0
        driver.archive()
        driver.check_complete("orders")


def test_a_small_step_and_a_step_back_are_gone_on_with(deployment: Deployment) -> None:
    clock = SteppingClock()
    with Driver(deployment, clock) as driver:
        for step_s in (9.0, -3600.0):
            driver.send("orders", [b"1"], 0)
            run = driver.run()
            clock.step_s = step_s
            assert run.run(everything=True).of("orders").rows == 1
            clock.step_s = 0.0


def test_a_process_that_starts_with_the_wrong_time_is_not_noticed(deployment: Deployment) -> None:
    """A limit on record: there is no other clock."""
    clock = SteppingClock()
    clock.step_s = DAY_S
    with Driver(deployment, clock) as driver:
        driver.archive()
        assert driver.application.backlog().tick_us > AheadClock().now_us() + 80_000_000_000
