"""Converts rows of the source data to Protobuf messages of `flights.proto`.

A value that the source does not have is an absent field. The Protobuf library encodes the messages one by
one, so that refinement decodes bytes that its own engine did not produce.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa
from google.protobuf.timestamp_pb2 import Timestamp

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
        Airline(carrier=carrier, name=name, flights_by_origin=dict(flights)).SerializeToString(
            deterministic=True
        )
        for carrier, name, flights in _rows(rows, ("carrier", "name", "flights_by_origin"))
    ]


def _rows(table: pa.Table, columns: tuple[str, ...]) -> zip[tuple]:  # type: ignore[type-arg]
    """The rows as tuples of Python values, in the order of `columns`."""
    return zip(*(table[name].to_pylist() for name in columns), strict=True)
