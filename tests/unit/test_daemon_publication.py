"""The job that publishes control events: what its line and its metrics say about its runs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from archiver.config.settings import MetricsSettings
from archiver.control_topic.publisher import PublishedState
from archiver.control_topic.waves import TopicRecord
from archiver.daemon.daemon import Publication
from archiver.runtime.clock import ManualClock
from archiver.status.journal import Journal
from archiver.status.metric_registry import Numbers
from tests.support.kafka.control_topic import LedgerWriter, MemoryTopic, Rig
from tests.support.log.memory_log import LeasePlace, MemoryLease, MemoryLogStore
from tests.support.objects.memory_store import MemoryObjectStore


def rig() -> Rig:
    logs = MemoryLogStore(512 * 1024)
    return Rig(logs.log("control"), logs.log("published"), MemoryObjectStore(), ManualClock())


def shown(state: PublishedState | None, clock: ManualClock) -> dict[str, float]:
    found = Numbers(Journal(10), clock, MetricsSettings(), "1").families(None, state)
    return {
        family.name.removeprefix("archiver_control_topic_"): family.samples[()]
        for family in found
        if "control_topic" in family.name
    }


def test_a_run_is_reported_and_counted() -> None:
    at, topic, clock = rig(), MemoryTopic(), ManualClock()
    publication = Publication(lambda: at.publisher(topic.connect))
    assert (publication.state, publication.notes(), shown(publication.state, clock)) == (None, [], {})
    LedgerWriter(at.control).round(1)
    reported = publication.run()
    assert (reported.outcome, reported.line, reported.idle, reported.document) == (
        "fine",
        "5 events published",
        False,
        {"events": 5},
    )
    again = publication.run()
    assert (again.outcome, again.idle) == ("fine", True)
    assert publication.notes() == []
    assert shown(publication.state, clock) == {"events_total": 5, "up": 1, "lag_entries": 0, "lag_seconds": 0}
    publication.close()
    assert topic.open == 0


def test_a_broker_that_is_away_is_a_lag_that_grows() -> None:
    at, topic, clock = rig(), MemoryTopic(), ManualClock()
    ledger = LedgerWriter(at.control)
    publication = Publication(lambda: at.publisher(topic.connect))
    publication.run()
    topic.away = True
    ledger.round(1)
    clock.advance(60)
    reported = [publication.run() for _ in range(3)]
    assert {(one.outcome, one.line) for one in reported} == {("untold", "the broker is away")}
    # The later runs have no news. They must not displace other entries from the journal.
    assert [one.idle for one in reported] == [
        False,
        True,
        True,
    ]
    waiting = at.control.tail() - 1
    assert shown(publication.state, clock) == {
        "events_total": 0,
        "up": 0,
        "lag_entries": waiting,
        "lag_seconds": 60,
    }
    assert publication.notes() == [
        f"control topic control: the broker is away; {waiting} entries of the control log wait"
    ]
    topic.away = False
    publication.run()
    assert shown(publication.state, clock) == {"events_total": 5, "up": 1, "lag_entries": 0, "lag_seconds": 0}
    assert publication.notes() == []


def test_who_does_not_publish_shows_no_lag() -> None:
    at, topic, clock, place = rig(), MemoryTopic(), ManualClock(), LeasePlace()
    LedgerWriter(at.control).round(1)
    first = Publication(lambda: at.publisher(topic.connect, MemoryLease("host:1", place)))
    second = Publication(lambda: at.publisher(topic.connect, MemoryLease("host:2", place), seed=2))
    first.run()
    reported = second.run()
    assert (reported.outcome, reported.line, reported.idle) == ("skipped", "host:1 publishes", True)
    assert shown(second.state, clock) == {"events_total": 0}
    assert second.notes() == []
    first.close()
    assert second.run().outcome == "fine"
    assert shown(second.state, clock)["lag_entries"] == 0


def test_an_error_that_no_one_expected_is_reported_and_goes_on_its_way() -> None:
    at, topic = rig(), MemoryTopic()
    LedgerWriter(at.control).round(1)

    def breaks(_: Sequence[TopicRecord]) -> None:
        raise ValueError("a fault of the library")

    topic.before = breaks
    publication = Publication(lambda: at.publisher(topic.connect))
    with pytest.raises(ValueError, match="a fault"):
        publication.run()
    waiting = at.control.tail()
    trouble = "an unexpected error: ValueError: a fault of the library"
    assert publication.notes() == [
        f"control topic control: {trouble}; {waiting} entries of the control log wait"
    ]
    assert shown(publication.state, ManualClock())["up"] == 0


def test_that_nothing_is_published_is_shown_also_where_it_is_not_known_how_much() -> None:
    state = PublishedState("control", trouble="the metadata store is away")
    assert shown(state, ManualClock()) == {"events_total": 0, "up": 0}
