"""A daemon's rounds, in process: idle topics cost a poll and nothing else, and active ones are archived."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from archiver.app.application import Application
from archiver.config.settings import load_settings
from archiver.daemon.operations import Tick
from archiver.publish.report import ArchiveReport
from archiver.refine.triggers import PollState
from archiver.runtime import failpoints
from archiver.runtime.errors import ArchiverError, LeaseHeld
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import AheadClock, Driver, refine_here


class Lasting(Driver):
    """A daemon's application, and the topics that each round prepared."""

    def __init__(
        self, deployment: Deployment, clock: AheadClock | None = None, *, holding: bool = True
    ) -> None:
        self.deployment = deployment
        self.clock = clock or AheadClock()
        self.reported = []
        self.jobs = []
        self.prepared: list[str] = []
        self.application = Application(
            load_settings(deployment.config, {}), {}, self.clock, lasting=True, holding=holding
        )
        self.tick = Tick(self._round, lambda: self.application.settings)

    def _round(self, looks: PollState) -> ArchiveReport:
        made = self.application.archiving.round(self.reported.append)
        prepare = made.setup.prepare

        def noted(settings: Any, *rest: Any) -> Any:
            self.prepared.append(settings.name)
            return prepare(settings, *rest)

        setattr(made.setup, "prepare", noted)  # noqa: B010 - stands before the method
        return replace(made, refine=refine_here, cores=lambda: 2).run(polls=looks)

    def close(self) -> None:
        self.application.leadership.resign()
        super().close()

    def ticks(self) -> tuple[Any, list[str]]:
        """One tick: its outcome, and which topics it prepared."""
        self.prepared.clear()
        return self.tick.run(), sorted(self.prepared)

    def tails(self) -> tuple[int, int]:
        return self.application.intake_log.tail(), self.application.control_log.tail()


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    made = Deployment(tmp_path / "d")
    document = made.document()
    document["archive"] = {
        "start_delay_max": "10s",
        "idle_max": "30s",
        "complete_delay_max": "5m",
        "tick": "10s",
    }
    made.write(document)
    return made


@pytest.fixture
def daemon(deployment: Deployment) -> Iterator[Lasting]:
    with Lasting(deployment) as made:
        yield made


def test_a_quiet_night_adds_no_entry_and_prepares_nothing(daemon: Lasting) -> None:
    reported, prepared = daemon.ticks()
    assert prepared == ["clicks", "files", "orders"], "the first poll prepares everything"
    assert reported.idle
    assert reported.outcome == "fine"
    before = daemon.tails()
    for _ in range(20):
        daemon.clock.ahead_s += 10
        reported, prepared = daemon.ticks()
        assert prepared == []
        assert reported.idle
    assert daemon.tails() == before


def test_only_what_is_due_is_prepared_and_the_epoch_stays(daemon: Lasting) -> None:
    daemon.ticks()
    epoch = daemon.application.leader.epoch
    daemon.send("clicks", [b"one"] * 3)
    daemon.clock.ahead_s += 11
    assert daemon.ticks()[1] == [], "records are there, but not due"
    daemon.clock.ahead_s += 31
    reported, prepared = daemon.ticks()
    assert prepared == ["clicks"]
    assert reported.line.startswith("3 records of 1 topic archived in "), reported
    assert daemon.application.leader.epoch == epoch == daemon.application.ledger().epoch
    daemon.clock.ahead_s += 1
    assert daemon.ticks()[1] == [], "it was looked at again, for it might have had more"
    daemon.check_complete("clicks")


def test_an_idle_topic_rests_between_two_looks(daemon: Lasting) -> None:
    daemon.ticks()
    daemon.clock.ahead_s += 11
    daemon.ticks()  # a poll that finds nothing
    daemon.send("clicks", [b"one"])
    daemon.clock.ahead_s += 31
    assert daemon.ticks()[1] == ["clicks"], "the poll is due by now"
    daemon.send("clicks", [b"two"])
    daemon.clock.ahead_s += 31
    assert daemon.ticks()[1] == ["clicks"]


def test_between_two_looks_nothing_is_looked_at(deployment: Deployment) -> None:
    document = deployment.document()
    document["archive"] = {"start_delay_max": "100s", "idle_max": "0s", "tick": "10s"}
    deployment.write(document)
    with Lasting(deployment) as daemon:
        daemon.ticks()
        daemon.send("clicks", [b"one"])
        daemon.clock.ahead_s += 50
        assert daemon.ticks()[1] == []
        daemon.clock.ahead_s += 51
        assert daemon.ticks()[1] == ["clicks"]
        daemon.tick.forget()
        assert daemon.ticks()[1] == ["clicks", "files", "orders"], "after a reload everything is looked at"


def test_a_topic_in_trouble_is_polled_again_and_stays_reported(daemon: Lasting) -> None:
    descriptors = daemon.deployment.root / "shop.binpb"
    whole = descriptors.read_bytes()
    descriptors.write_bytes(b"not a descriptor set")
    reported, _ = daemon.ticks()
    assert reported.outcome == "wrong"
    assert "halted: orders" in reported.line
    assert set(daemon.tick.stuck()) == {"orders"}
    daemon.clock.ahead_s += 1
    reported, prepared = daemon.ticks()
    assert prepared == [], "it rests"
    assert reported.outcome == "wrong", "and is still reported"
    assert [item["state"] for item in reported.document["topics"] if item["topic"] == "orders"] == ["halted"]
    daemon.clock.ahead_s += 10
    assert daemon.ticks()[1] == ["orders"], "looked at without anything due"
    descriptors.write_bytes(whole)
    daemon.clock.ahead_s += 10
    reported, _ = daemon.ticks()
    assert reported.outcome == "fine"
    assert daemon.tick.stuck() == {}


def test_what_an_earlier_leader_left_pending_is_settled_at_the_first_tick(deployment: Deployment) -> None:
    document = deployment.document() | {"testing": {"failpoints": True}}
    document["archive"] = {"idle_max": "0s"}
    deployment.write(document)
    with Driver(deployment) as other:
        other.send("clicks", [b"one"] * 3)
        failpoints.arm("table.swap.before=error")
        assert {item.topic for item in other.archive(refine=refine_here).deferred} == {"clicks"}
    with Lasting(deployment) as daemon:
        reported, prepared = daemon.ticks()
        assert "clicks" in prepared
        assert reported.outcome == "fine"
        assert not reported.idle
        daemon.check_complete("clicks")


def test_where_spark_cannot_start_no_round_begins(daemon: Lasting) -> None:
    daemon.ticks()
    daemon.send("clicks", [b"one"])
    daemon.clock.ahead_s += 31
    before = daemon.tails()[1]

    def cores() -> int:
        raise ArchiverError("no java")

    for _ in range(3):
        made = daemon.application.archiving.round(daemon.reported.append)
        with pytest.raises(ArchiverError, match="no java"):
            replace(made, cores=cores).run()
    assert daemon.tails()[1] == before


def test_another_leader_is_skipped_and_its_trouble_is_not_ours(
    daemon: Lasting, deployment: Deployment
) -> None:
    (deployment.root / "shop.binpb").write_bytes(b"not a descriptor set")
    daemon.ticks()
    assert daemon.tick.stuck()
    daemon.application.leadership.resign()
    with Lasting(deployment) as other:
        other.ticks()
        with pytest.raises(LeaseHeld):
            daemon.tick.run()
        assert daemon.tick.stuck() == {}
    reported, _ = daemon.ticks()
    assert reported.outcome == "wrong", "it leads again, and looks at everything"


def test_reading_goes_on_next_to_the_leader(daemon: Lasting) -> None:
    daemon.ticks()
    daemon.send("clicks", [b"one"])
    daemon.clock.ahead_s += 31
    daemon.ticks()
    assert daemon.application.ledger() is not daemon.application.leader.fold
    assert daemon.application.ledger().next_index == daemon.application.leader.fold.next_index
    assert daemon.audit()["verdict"] == "valid"


def test_daemons_that_share_the_roles_lead_in_turns(deployment: Deployment) -> None:
    """One daemon archives and leaves cleaning to the other. It must not keep the lease from it, and idle
    turns must not cost entries."""
    clock = AheadClock()
    with (
        Lasting(deployment, clock, holding=False) as archiving,
        Lasting(deployment, clock, holding=False) as cleaning,
    ):
        archiving.ticks()
        archiving.send("clicks", [b"one"] * 3)
        clock.ahead_s += 31
        archiving.ticks()
        epoch = archiving.application.ledger().epoch
        clock.ahead_s += 11
        before = archiving.tails()
        for _ in range(5):
            clock.ahead_s += 11
            archiving.ticks()
        assert archiving.tails() == before
        clock.ahead_s += 2 * 3600
        report = cleaning.application.maintenance.cleaning(cleaning.reported.append).run()
        assert report.condemned, "what is archived is needed no more"
        assert archiving.application.ledger().epoch > epoch, "another leader has begun"
        archiving.send("clicks", [b"two"] * 3)
        clock.ahead_s += 31
        reported, _ = archiving.ticks()
        assert reported.line.startswith("3 records"), reported
        archiving.check_complete("clicks")


def test_one_that_holds_the_lease_is_the_only_leader(deployment: Deployment) -> None:
    with Lasting(deployment) as first, Lasting(deployment) as second:
        first.ticks()
        with pytest.raises(LeaseHeld):
            second.application.maintenance.cleaning(second.reported.append).run()
        first.application.leadership.resign()
        second.application.maintenance.cleaning(second.reported.append).run()
