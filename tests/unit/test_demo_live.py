"""What `demo --serve` sends and how it configures its folder: pace, moved times, settings, locks."""

from __future__ import annotations

import io
import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import proto

from archiver.config.settings import load_settings
from archiver.config.yaml_loader import read_document
from archiver.demo import flights, settings
from archiver.demo.flights_pb2 import FLIGHT_STATUS_CANCELLED, Flight
from archiver.demo.live_flights import BURST_S, Batch, LiveFlights, Pace, departing
from archiver.log.lease import FileLease
from archiver.proto.produce_pb2 import ProduceRecord
from archiver.runtime.clock import ManualClock
from archiver.runtime.errors import InvalidInput, RetryLater
from tests.support.builders.demo_source import write_source

NOW_S = 1_800_000_000


@pytest.fixture
def year(tmp_path: Path) -> pa.Table:
    """Four flights: numbers 1 (2 minutes late), 2 (4 late), 3 (cancelled) and 4 (5 early)."""
    source = tmp_path / "source"
    source.mkdir()
    return flights.load_flights(write_source(source))


def records(batch: Batch) -> list[ProduceRecord]:
    body = io.BytesIO(batch.body)
    found: list[ProduceRecord] = []
    while body.tell() < len(batch.body):
        found.append(proto.parse_length_prefixed(ProduceRecord, body))
    assert len(found) == batch.records
    return found


# pace


@pytest.mark.parametrize("rate", [1, 7, 50, 1000])
def test_as_many_are_due_as_the_rate_says(rate: int) -> None:
    source = random.Random(rate)
    pace, now_s, due = Pace(rate, 100.0), 100.0, 0
    while now_s < 400.0:
        now_s += source.uniform(0.0, BURST_S / 2)
        due += pace.due(now_s)
    assert abs(due - rate * (now_s - 100.0)) <= 1.001


def test_a_pause_is_not_caught_up() -> None:
    pace = Pace(50, 0.0)
    assert pace.due(3600.0) == 50 * BURST_S
    assert pace.due(3601.0) == 50
    assert pace.due(3601.0) == 0


def test_a_slow_rate_has_whole_records_too() -> None:
    pace = Pace(0.25, 0.0)
    assert [pace.due(float(second)) for second in range(1, 9)] == [0, 0, 0, 1, 0, 0, 0, 1]


# times


def test_a_late_flight_departs_now_and_stays_late(year: pa.Table) -> None:
    (before,) = flights.encode_flights(year.slice(0, 1))
    flight = Flight.FromString(departing(before, NOW_S))
    assert flight.departure.seconds == NOW_S
    assert flight.scheduled_departure.seconds == NOW_S - 120
    assert not flight.HasField("local_times")
    same = Flight.FromString(before)
    for name in ("scheduled_departure", "departure", "local_times"):
        same.ClearField(name)
        flight.ClearField(name)
    assert flight == same, "nothing else changes"


def test_a_cancelled_flight_is_scheduled_for_now(year: pa.Table) -> None:
    (before,) = flights.encode_flights(year.slice(2, 1))
    flight = Flight.FromString(departing(before, NOW_S))
    assert flight.status == FLIGHT_STATUS_CANCELLED
    assert flight.scheduled_departure.seconds == NOW_S
    assert not flight.HasField("departure")


def test_the_year_begins_again_with_new_records(year: pa.Table) -> None:
    live = LiveFlights(year, first=4 * 1000 + 3)
    taken = [record for second in range(3) for record in records(live.take(6, (NOW_S + second) * 1_000_000))]
    numbers = [Flight.FromString(record.value).number for record in taken]
    assert numbers == [4, 1, 2, 3] * 4 + [4, 1]
    first, later = taken[0], taken[8]
    assert (first.key, later.key) == (b"N14228", b"N14228"), "a key repeats"
    assert first.value != later.value
    assert not taken[3].HasField("key"), "the source has no tail number"
    assert first.timestamp_us == NOW_S * 1_000_000
    assert [(header.name, header.value) for header in first.headers] == [("source", b"flights.csv")]


# configuration


def test_a_demo_becomes_one_that_serves(tmp_path: Path) -> None:
    before = settings.prepare(tmp_path / "demo").read_text(encoding="utf-8")
    path = settings.prepare_live(tmp_path / "demo", 8788)
    first = path.read_text(encoding="utf-8")
    assert first != before
    found = load_settings(path, {})
    live = found.topic(settings.LIVE_TOPIC)
    assert live is not None
    assert live.retention == 7200
    assert [topic.name for topic in found.topics][:5] == [topic.name for topic in flights.TOPICS]
    assert all(topic.retention is None for topic in found.topics[:5]), "the year stays"
    assert found.http.listen == "127.0.0.1:8788"
    assert found.daemon.shutdown_grace == settings.SHUTDOWN_S
    settings.prepare_live(tmp_path / "demo", 8788)
    assert path.read_text(encoding="utf-8") == first
    assert settings.console_address(tmp_path / "demo") == "http://127.0.0.1:8788/"


def test_values_of_the_file_stay(tmp_path: Path) -> None:
    path = settings.prepare(tmp_path / "demo")
    document: dict[str, Any] = read_document(path)[0]
    document |= {
        "archive": {"tick": "1m"},
        "cleanup": None,
        "http": {"requests_max": 3, "listen": "127.0.0.1:1"},
    }
    changed = settings.live_configuration(document, 9000)
    assert changed["archive"] == {"tick": "1m"}
    assert changed["cleanup"]["grace"] == "2m"
    assert changed["http"] == {"requests_max": 3, "listen": "127.0.0.1:9000"}
    assert changed["cluster"] == document["cluster"]
    assert settings.live_configuration(changed, 9000) == changed


# locks


def test_one_demo_at_a_time(tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    with settings.locked(directory, "archiver demo --serve", ManualClock(), 0.0):
        settings.prepare(directory)
        settings.prepare_live(directory, 4711)
        with (
            pytest.raises(RetryLater) as refused,
            settings.locked(directory, "archiver demo", ManualClock(), 0.0),
        ):
            pass
        assert f"archiver demo --serve (process {os.getpid()}) uses" in str(refused.value)
        assert "its console is http://127.0.0.1:4711/" in str(refused.value)
    with settings.locked(directory, "archiver demo", ManualClock(), 0.0):
        settings.prepare(directory)
        assert (directory / settings.LOCK).exists(), "a removed lock could be locked twice"


def test_the_daemon_of_a_killed_demo_is_waited_for(tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    settings.prepare(directory)
    daemon = FileLease(directory / settings.DAEMON_LOCK, "here:4711")
    daemon.acquire()
    clock = ManualClock()
    began_s = clock.monotonic_s()
    with (
        pytest.raises(RetryLater, match=r"\(here:4711\) still uses"),
        settings.locked(directory, "archiver demo", clock, 40.0),
    ):
        pass
    assert 40.0 <= clock.monotonic_s() - began_s < 41.0
    daemon.release()
    with settings.locked(directory, "archiver demo", clock, 40.0):
        pass


def test_a_folder_of_others_gets_no_lock(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with (
        pytest.raises(InvalidInput, match="thesis"),
        settings.locked(tmp_path, "archiver demo", ManualClock(), 0.0),
    ):
        pass
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_lock_alone_is_an_empty_folder(tmp_path: Path) -> None:
    for _ in range(2):
        with settings.locked(tmp_path / "demo", "archiver demo", ManualClock(), 0.0):
            pass
    assert not settings.is_made(tmp_path / "demo")
    settings.prepare(tmp_path / "demo")
    assert settings.is_made(tmp_path / "demo")
